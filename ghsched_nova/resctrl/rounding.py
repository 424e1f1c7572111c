# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""The values that a line can hold, and the next one up.

A cap or a guarantee that a host cannot hold exactly goes up to the next
value that it can, so that no promise to the guest is broken. What it can hold
depends on the kernel:

* Intel, AMD and openEuler round a written value up to a multiple of
  info/MB/bandwidth_gran (``bw_validate()`` in fs/resctrl/ctrlmondata.c,
  ``parse_bw()`` in arch/arm64/kernel/mpam/mpam_resctrl.c of OLK-5.10).
* MPAM of the mainline kernel holds a binary fraction of the maximum and shows
  it in percent. A written value goes to the *nearest* fraction
  (``percent_to_mbw_max()`` and ``mbw_max_to_percent()`` in
  drivers/resctrl/mpam_resctrl.c); before that, Linux 7.1 and 7.2 round it up
  to a multiple of info/MB/bandwidth_gran, and later ones do not
  (``resctrl_arch_preconvert_bw()``). So only multiples are written, which
  both families bring to the same fraction; what is shown then is seldom the
  multiple itself.
* The MPAM of OLK-6.6 is older than that of mainline, and goes back from a
  fraction to percent in another way: up to a control of 8 bits it shows a
  little less than was written. Its manual has a written 1 that is read as 0.
  That is no difference to be repaired; writing again would change nothing.
"""

from collections.abc import Mapping
import functools
from types import MappingProxyType

#: info/MB/bandwidth_gran and min_bandwidth of an MPAM control, by the number
#: of bits in its fraction (``get_mba_granularity()``, ``get_mba_min()``).
#: With 7 bits and more every whole percent can be held.
FRACTIONS = {
    (50, 50): 1, (25, 25): 2, (13, 13): 3, (7, 6): 4, (4, 3): 5, (2, 2): 6,
    (1, 1): 7, (1, 0): 8,
}


def multiple(value: int, granularity: int) -> int:
    """The least multiple that is not below a value."""
    return -(-value // granularity) * granularity


@functools.cache
def fractions(granularity: int, minimum: int) -> Mapping[int, int]:
    """Percentages that an MPAM control shows, and what to write for each.

    What is written leads to the same on every kernel that there is. They are
    ascending; 100 is always the last one.

    :raises KeyError: when no such control has this granularity and minimum.
    """
    bits = FRACTIONS[granularity, minimum]
    found: dict[int, int] = {}
    for percent in (*range(granularity, 101, granularity), 100):
        shown = _nearest(percent, bits)
        if (shown == _nearest(multiple(percent, granularity), bits)
                and shown <= 100):
            # Of several multiples the lowest that is not below what is shown.
            if found.get(shown, 0) < shown:
                found[shown] = percent
    return MappingProxyType(found)


def rewritten(granularity: int, minimum: int) -> dict[int, int]:
    """Those of :func:`fractions` that are not written as they are shown."""
    return {shown: percent for shown, percent
            in fractions(granularity, minimum).items() if shown != percent}


@functools.cache
def shown_instead(percent: int) -> frozenset[int]:
    """What OLK-6.6 may show of a percentage that was written."""
    return frozenset(_snapshot(percent, bits) for bits in (6, 7, 8))


def _snapshot(percent: int, bits: int) -> int:
    """percent_to_mbw_max() and back, before MPAM came into mainline."""
    highest = (1 << bits) - 1
    fraction = max(_divide(percent << bits, 100), 1) - 1
    return _divide(fraction * 100, highest)


def _nearest(percent: int, bits: int) -> int:
    """What is read after a percentage was written, without rounding first."""
    bands = 1 << bits
    band = max(_divide(percent * bands, 100), 1)
    return _divide(band * 100, bands)


def _divide(dividend: int, divisor: int) -> int:
    """DIV_ROUND_CLOSEST() of include/linux/math.h, for positive numbers."""
    return (dividend + divisor // 2) // divisor


#: The least percentage that no kernel with such lines shows as 0.
LEAST_SHOWN = next(percent for percent in range(1, 101)
                   if 0 not in shown_instead(percent))
