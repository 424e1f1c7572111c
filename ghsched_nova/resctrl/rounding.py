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


"""Percentages that schemata lines can be set to, and the values to write.

The kernel rounds the percentages that are written to a schemata line. A
requested cap or guarantee is therefore rounded up to a percentage that the
line can be set to, so that the guest gets at least what it requested. The
percentage in effect is the one that the line shows after the write:

* Intel and AMD round up to a multiple of info/MB/bandwidth_gran
  (``bw_validate()`` in fs/resctrl/ctrlmondata.c).
* MPAM of the mainline kernel stores a binary fraction of the maximum and shows
  it in percent. The number of bits, up to 8, can be derived from
  info/MB/bandwidth_gran and min_bandwidth (:func:`make_mpam_percentages`). A
  written value is first rounded up to a multiple of bandwidth_gran and then to
  the *nearest* fraction (``percent_to_mbw_max()`` and
  ``mbw_max_to_percent()`` in drivers/resctrl/mpam_resctrl.c, up to Linux 7.3);
  a series of July 2026 (``resctrl_arch_preconvert_bw()``) removes the first
  step.
* openEuler's MPAM drivers round in other ways, and no file of info/ has the
  number of bits.

Where the rounding is not known in advance, it is measured
(:mod:`ghsched_nova.resctrl.measure`), and the :class:`SettablePercentages` are
made from the measurements.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import functools

#: info/MB/bandwidth_gran and min_bandwidth of an MPAM control, by the number
#: of bits in its fraction (``get_mba_granularity()``, ``get_mba_min()``).
#: With 7 bits and more, every whole percentage can be set.
FRACTIONS = {
    (50, 50): 1, (25, 25): 2, (13, 13): 3, (7, 6): 4, (4, 3): 5, (2, 2): 6,
    (1, 1): 7, (1, 0): 8,
}

#: Percentage that a line showed after each of 0 to 100 was written; None where
#: the write was refused.
Readings = Sequence[int | None]


@dataclass(frozen=True)
class SettablePercentages:
    """Percentages that a schemata line can be set to.

    :param written: value to write, by percentage that the line then shows, in
        ascending order.
    """

    written: Mapping[int, int]

    @classmethod
    def from_readings(cls, readings: Readings) -> 'SettablePercentages':
        """Return the percentages that a schemata line can be set to.

        They are derived from measurements, because the kernel rounds a
        percentage that is written to the line.

        :param readings: percentage that the line showed after each of 0 to 100
            was written; None where the kernel refused the write.
        """
        found: dict[int, int] = {}
        for value, shown in enumerate(readings):
            if shown is not None and (shown not in found or shown == value):
                found[shown] = value
        return cls(dict(sorted(found.items())))

    @property
    def highest_percent(self) -> int:
        """Highest percentage that the schemata line can be set to."""
        return max(self.written, default=0)

    def round_percent_up(self, percent: int) -> int | None:
        """Round a percentage up to one that the schemata line can be set to.

        Returns None if all such percentages are lower.
        """
        return next((shown for shown in self.written if shown >= percent),
                    None)

    def round_percent_down(self, percent: float) -> int:
        """Round a percentage down to one that the schemata line can be set to.

        Returns 0 if all such percentages are higher.
        """
        return max((shown for shown in self.written if shown <= percent),
                   default=0)


def round_up_to_multiple(value: int, granularity: int) -> int:
    """Round a value up to a multiple of the granularity."""
    return -(-value // granularity) * granularity


@functools.cache
def make_mpam_percentages(granularity: int,
                          minimum: int) -> SettablePercentages:
    """Return the percentages that a schemata line can be set to on Arm MPAM.

    MPAM is Arm's control of memory bandwidth. The result applies to the driver
    in mainline Linux.

    :param granularity: bandwidth_gran of the host.
    :param minimum: min_bandwidth of the host.
    :raises KeyError: for a combination that mainline kernels do not have.
    """
    bits = FRACTIONS[granularity, minimum]
    found: dict[int, int] = {}
    for percent in (*range(granularity, 101, granularity), 100):
        shown = _round_mpam_percent(percent, bits)
        if (
            shown
            == _round_mpam_percent(
                round_up_to_multiple(percent, granularity), bits)
            and shown <= 100
        ):
            # Of several multiples the lowest that is not below what is shown.
            if found.get(shown, 0) < shown:
                found[shown] = percent
    return SettablePercentages(found)


def _round_mpam_percent(percent: int, bits: int) -> int:
    """Round a percentage to the next one that Arm's MPAM can represent.

    The kernel shows the rounded percentage after the other one was written.

    :param percent: percentage to write, 0 to 100.
    :param bits: number of bits with which the hardware stores it.
    """
    bands = 1 << bits
    band = max(_divide_rounded(percent * bands, 100), 1)
    return _divide_rounded(band * 100, bands)


def _divide_rounded(dividend: int, divisor: int) -> int:
    """Return the quotient of two integers, rounded to the nearest integer.

    The kernel rounds in the same way in DIV_ROUND_CLOSEST() of
    include/linux/math.h.
    """
    return (dividend + divisor // 2) // divisor
