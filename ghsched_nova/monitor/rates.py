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


"""Parser of resctrl monitor files, and the bandwidth computed from them
(pure).

Two kinds of figures share a file name. A counter is the number of bytes
transferred; its rate needs two readings and the reader's clock. openEuler's
kernels report the current rate in MB/s (Documentation/arch/arm64/mpam.md of
OLK-6.6).

In place of a figure the kernel may write a word
(Documentation/filesystems/resctrl.rst, fs/resctrl/ctrlmondata.c):
``Unavailable`` if the hardware does not count the group now, ``Unassigned`` if
no counter is assigned to the group, and ``Error``. None of them means 0, with
one exception: AMD processors without assignable counters report
``Unavailable`` for an L3 cache below which no task of the group has run yet.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
import enum
import re
from typing import Literal
from typing import NamedTuple
from typing import TypeVar

Unit = Literal['rate_mb', 'counter_bytes']
_Key = TypeVar('_Key', bound=Hashable)

#: Bytes per MB in openEuler's monitor files.
MB = 10 ** 6

#: Value at which counters wrap: the kernel extends hardware counters to 64
#: bits.
WRAP = 2 ** 64

#: Upper limit of a plausible rate of a host NUMA node in bytes per second; a
#: higher one means that the counter was reset.
LIMIT = 10 ** 13

_NUMBER = re.compile(rb'[0-9]{1,20}')
_DECIMAL = re.compile(rb'[0-9]{1,20}(\.[0-9]{1,20})?')


class RateState(enum.IntEnum):
    """State of a measured bandwidth; a larger value is a worse state.

    OK means that the bandwidth is known. Any other state is the reason why it
    is unknown or incomplete.
    """

    OK = 0
    #: The hardware has not counted the group in the domain yet, because none
    #: of its tasks ran there. Only readings have this state; the bandwidth is
    #: 0 then.
    IDLE = 1
    #: Only one reading of the counter since its start or reset, so that no
    #: bandwidth can be computed.
    FIRST = 2
    UNASSIGNED = 3
    UNAVAILABLE = 4
    #: The file or the group does not exist.
    MISSING = 5
    ERROR = 6

    @property
    def label(self) -> str:
        """Name of this state of a measurement, as shown in output and metrics.
        """
        return self.name.lower()


_WORDS = {b'Unavailable': RateState.UNAVAILABLE,
          b'Unassigned': RateState.UNASSIGNED,
          b'Error': RateState.ERROR}


class Reading(NamedTuple):
    """Content of a monitor file at one moment.

    :param state: OK with a value, else the reason why the value is missing.
    :param value: number in the file.
    :param when: seconds of a monotonic clock.
    """

    state: RateState
    value: int
    when: float


class Figure(NamedTuple):
    """Measured bandwidth, and whether the measurement is complete.

    :param state: OK if the rate is complete.
    :param rate: bytes per second; a sum of the known parts, None if no part is
        known.
    """

    state: RateState
    rate: float | None


NOTHING = Figure(RateState.MISSING, None)
ZERO = Figure(RateState.OK, 0.0)


def parse_monitor_file(content: bytes, read_at: float) -> Reading:
    """Parse the content of a resctrl file that reports bandwidth.

    If the content is malformed, the reading has no value.

    :param content: complete content of the file.
    :param read_at: time of the reading in seconds.
    """
    content = content.strip()
    if _NUMBER.fullmatch(content):
        value = int(content)
        if value < WRAP:
            return Reading(RateState.OK, value, read_at)
    return Reading(_WORDS.get(content, RateState.ERROR), 0, read_at)


def parse_core_energy(content: bytes) -> float | None:
    """Return the energy in joules from a resctrl file ``core_energy``.

    Returns None if the content is not a number.
    """
    content = content.strip()
    return float(content) if _DECIMAL.fullmatch(content) else None


def compute_bandwidths(before: Mapping[_Key, Reading],
                       now: Mapping[_Key, Reading],
                       unit: Unit) -> dict[_Key, Figure]:
    """Compute the bandwidth from two readings of each monitor file.

    A monitor file of resctrl reports the bandwidth of a group in a domain.

    :param before: previous readings by file.
    :param now: current readings by file.
    :param unit: unit of the monitor files: rate or counter.
    """
    if unit == 'rate_mb':
        return {key: _convert_rate(reading) for key, reading in now.items()}
    return {key: _compute_counter_rate(before.get(key), reading)
            for key, reading in now.items()}


def _convert_rate(reading: Reading) -> Figure:
    if reading.state is not RateState.OK:
        return Figure(reading.state, None)
    return Figure(RateState.OK, float(reading.value * MB))


def _compute_counter_rate(before: Reading | None, now: Reading) -> Figure:
    if now.state is RateState.IDLE:
        return ZERO
    if now.state is not RateState.OK:
        return Figure(now.state, None)
    # After a word the counter may have been reset without being lower.
    if before is None or before.state is not RateState.OK:
        return _FIRST
    elapsed = now.when - before.when
    if elapsed <= 0:
        return _FIRST
    moved = now.value - before.value
    if moved < 0:
        moved += WRAP
    rate = moved / elapsed
    return _FIRST if rate > LIMIT else Figure(RateState.OK, rate)


_FIRST = Figure(RateState.FIRST, None)


def sum_bandwidths(figures: Iterable[Figure]) -> Figure:
    """Return the sum of measured bandwidths.

    Unknown bandwidths are left out of the sum. The state of the sum is the
    worst state of the summands, so it shows whether one is unknown.

    :returns: NOTHING if there are no summands.
    """
    known = list(figures)
    if len(known) == 1:     # as a rule
        return known[0]
    state, rate = None, None
    for part in known:
        if state is None or part.state > state:
            state = part.state
        if part.rate is not None:
            rate = part.rate if rate is None else rate + part.rate
    return NOTHING if state is None else Figure(state, rate)


def subtract_bandwidths(whole: Figure, parts: Iterable[Figure]) -> Figure:
    """Return a total bandwidth minus some parts of it; at least 0.

    The sum of the parts may be larger than the total, because the parts are
    measured a moment later.
    """
    if whole.rate is None:
        return whole
    taken = sum_bandwidths(parts).rate or 0.0
    return Figure(whole.state, max(0.0, whole.rate - taken))
