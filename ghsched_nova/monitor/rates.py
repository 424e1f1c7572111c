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


"""What a monitor file says, and the bandwidth that follows (pure).

Two kinds of figures have the same file name. A counter grows by the bytes
that went through, and the reader makes a rate of two readings and its own
clock. openEuler's kernels give the rate itself, in MB/s at this moment
(Documentation/arch/arm64/mpam.md of OLK-6.6).

In place of a figure the kernel writes a word
(Documentation/filesystems/resctrl.rst, fs/resctrl/ctrlmondata.c):
``Unavailable`` where the hardware does not count the group now,
``Unassigned`` where no counter is assigned to it, and ``Error``. None of
them is 0.
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

#: Bytes of the MB of openEuler's monitors.
MB = 10 ** 6

#: Counters are 64 bits wide in the kernel, whatever the hardware has.
WRAP = 2 ** 64

#: No host NUMA node moves more bytes per second; a counter that says so has
#: begun again.
LIMIT = 10 ** 13

_NUMBER = re.compile(rb'[0-9]{1,20}')


class State(enum.IntEnum):
    """What became of a figure; the worst of several is the highest."""

    OK = 0
    #: A counter was read once, or began again: there is no rate yet.
    FIRST = 1
    UNASSIGNED = 2
    UNAVAILABLE = 3
    #: The file, or the group, is not there (any more).
    MISSING = 4
    ERROR = 5

    @property
    def word(self) -> str:
        """As it is shown."""
        return self.name.lower()


_WORDS = {b'Unavailable': State.UNAVAILABLE, b'Unassigned': State.UNASSIGNED,
          b'Error': State.ERROR}


class Reading(NamedTuple):
    """A monitor file at one moment.

    :param state: OK with a value, else why there is none.
    :param value: the number in the file.
    :param when: seconds of a clock that never goes back.
    """

    state: State
    value: int
    when: float


class Figure(NamedTuple):
    """A bandwidth.

    :param state: OK when all of it is known.
    :param rate: bytes per second; of a sum, what is known of it. None when
        nothing is.
    """

    state: State
    rate: float | None


NOTHING = Figure(State.MISSING, None)
ZERO = Figure(State.OK, 0.0)


def parse(text: bytes, when: float) -> Reading:
    """What a monitor file says; never raises.

    :param text: the whole file.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        value = int(text)
        if value < WRAP:
            return Reading(State.OK, value, when)
    return Reading(_WORDS.get(text, State.ERROR), 0, when)


def figures(before: Mapping[_Key, Reading], now: Mapping[_Key, Reading],
            unit: Unit) -> dict[_Key, Figure]:
    """The bandwidth behind each reading.

    :param before: the readings of the time before; only counters need them.
    """
    if unit == 'rate_mb':
        return {key: _of_rate(reading) for key, reading in now.items()}
    return {key: _of_counter(before.get(key), reading)
            for key, reading in now.items()}


def _of_rate(reading: Reading) -> Figure:
    if reading.state is not State.OK:
        return Figure(reading.state, None)
    return Figure(State.OK, float(reading.value * MB))


def _of_counter(before: Reading | None, now: Reading) -> Figure:
    if now.state is not State.OK:
        return Figure(now.state, None)
    # After a word the counter may have begun again, without being lower.
    if before is None or before.state is not State.OK:
        return _FIRST
    elapsed = now.when - before.when
    if elapsed <= 0:
        return _FIRST
    moved = now.value - before.value
    if moved < 0:
        moved += WRAP
    rate = moved / elapsed
    return _FIRST if rate > LIMIT else Figure(State.OK, rate)


_FIRST = Figure(State.FIRST, None)


def total(parts: Iterable[Figure]) -> Figure:
    """The sum of some bandwidths; NOTHING of none.

    Where a part is not known, the sum is of the others, and its state tells.
    """
    known = list(parts)
    if len(known) == 1:     # as a rule
        return known[0]
    state, rate = None, None
    for part in known:
        if state is None or part.state > state:
            state = part.state
        if part.rate is not None:
            rate = part.rate if rate is None else rate + part.rate
    return NOTHING if state is None else Figure(state, rate)


def without(whole: Figure, parts: Iterable[Figure]) -> Figure:
    """What is left of a bandwidth; never below 0.

    The parts are read a moment later than the whole, and can be more.
    """
    if whole.rate is None:
        return whole
    taken = total(parts).rate or 0.0
    return Figure(whole.state, max(0.0, whole.rate - taken))
