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

"""Guests of burst_bench.py: what each wants of its burst in each minute.

All of them are simulated, except where files of load are replayed.
"""

from collections.abc import Sequence
from collections import deque
from dataclasses import dataclass
import math
from pathlib import Path
import random

DAY = 24 * 60
#: Minutes that a guest is busy, or idle, on average.
TURN = 10
#: Minutes by which replicas of a service differ at most.
LAG = 10
#: Minutes of one value of a file of load.
STEP = 5


@dataclass(frozen=True)
class Kind:
    """Guests of one kind.

    :param duty: part of the time that they are busy, on average.
    :param correlation: part of the turns that they have in common.
    :param swing: how much the duty swells over a day, 0 to 1.
    :param varied: whether guests are of all sorts, see :class:`Varied`; the
        duty does not count then.
    :param services: number of services that guests are replicas of, see
        :class:`Replicas`; 0 where each guest is by itself.
    :param event: whether most guests are busy for half an hour each day.
    :param traces: files that guests replay, see :class:`Traces`.
    """

    duty: float
    correlation: float = 0.0
    swing: float = 0.0
    varied: bool = False
    services: int = 0
    event: bool = False
    traces: tuple[Path, ...] = ()

    def busy(self, minute: int) -> float:
        """Part of the turns that are busy at a time of day."""
        return min(1.0, self.duty * self.swell(minute))

    def swell(self, minute: int) -> float:
        """Return the duty at a time of day as a multiple of its mean."""
        return 1 + self.swing * math.sin(2 * math.pi * minute / DAY)


class Crowd:
    """Guests as they come, and what they want in each minute."""

    def __init__(self, kind: Kind, chance: random.Random) -> None:
        self._kind, self._chance = kind, chance
        self._together = 0.0
        self.levels: list[float] = []

    def grow(self, guests: int) -> None:
        """Add guests up to a number of them."""
        self.levels += [0.0] * (guests - len(self.levels))

    @property
    def projects(self) -> list[str]:
        """Name of the project of each guest."""
        return [str(number) for number in range(len(self.levels))]

    def minute(self, number: int) -> list[float]:
        """Parts of their bursts that guests want, 0 to 1."""
        share = self._kind.busy(number)
        if self._chance.random() < 1 / TURN:
            self._together = self._turn(share)
        for place in range(len(self.levels)):
            if self._chance.random() < 1 / TURN:
                # The square root: two guests have the correlation that is
                # asked for when each follows the crowd so often.
                self.levels[place] = (
                    -1.0 if self._chance.random()
                    < math.sqrt(self._kind.correlation)
                    else self._turn(share))
        return [self._together if level < 0 else level
                for level in self.levels]

    def _turn(self, share: float) -> float:
        if self._chance.random() >= share:
            return 0.0
        return self._chance.uniform(0.5, 1.0)


class Varied(Crowd):
    """Guests as different from each other as those of Azure in 2017.

    Of the guests 60 % use less than 20 % on average, and for 40 % the 95th
    percentile is below 50 %. In the figure of CPU use that the authors of
    "Resource Central" (Cortez et al., SOSP 2017) publish with their trace, the
    virtual machines of the paper have 68 % and 44 %, and those of the public
    trace 73 % and 40 % (AzurePublicDataset V1, notebook of the trace, read off
    its picture): these guests use more. The distributions of how often guests
    are busy and of how high they go then are assumed, with parameters for
    which both parts come out. They are of CPUs: that memory bandwidth is used
    alike is assumed, too, and so is how much guests are busy at the same time.
    Nothing of the trace is in here.
    """

    #: Of the beta distribution of the duty.
    SHAPE = 1, 1.6
    #: Limits of the uniform distribution of the peak, part of the burst.
    PEAKS = 0.3, 1.0

    def __init__(self, kind: Kind, chance: random.Random) -> None:
        super().__init__(kind, chance)
        self.sorts: list[tuple[float, float]] = []
        #: What those do who do the same: whether busy, and how much.
        self._turns: list[tuple[float, float] | None] = []
        self._common = 1.0, 0.0

    def grow(self, guests: int) -> None:
        super().grow(guests)
        while len(self.sorts) < len(self.levels):
            self.sorts.append((self._chance.betavariate(*self.SHAPE),
                               self._chance.uniform(*self.PEAKS)))
            self._turns.append((1.0, 0.0))

    def minute(self, number: int) -> list[float]:
        chance, swell = self._chance, self._kind.swell(number)
        if chance.random() < 1 / TURN:
            self._common = chance.random(), chance.uniform(0.5, 1.0)
        found = []
        for place, (duty, peak) in enumerate(self.sorts):
            if chance.random() < 1 / TURN:
                self._turns[place] = (
                    None if chance.random()
                    < math.sqrt(self._kind.correlation)
                    else (chance.random(), chance.uniform(0.5, 1.0)))
            below, level = self._turns[place] or self._common
            found.append(peak * level if below < duty * swell else 0.0)
        return found


class Event(Crowd):
    """Guests of which 70 % are busy for half an hour each day."""

    LENGTH = 30
    PART = 0.7

    def __init__(self, kind: Kind, chance: random.Random) -> None:
        super().__init__(kind, chance)
        self._begin = 0
        self._level = 0.0
        self._joins: list[bool] = []

    def minute(self, number: int) -> list[float]:
        chance, found = self._chance, super().minute(number)
        if number % DAY == 0:
            self._begin = number + chance.randrange(DAY - self.LENGTH)
            self._joins = []
        while len(self._joins) < len(found):
            self._joins.append(chance.random() < self.PART)
        if number == self._begin:
            self._level = chance.uniform(0.7, 1.0)
        if not 0 <= number - self._begin < self.LENGTH:
            return found
        return [self._level if joins else level for joins, level
                in zip(self._joins, found, strict=True)]


class _Service:
    """Load of one service: idle or busy, for heavy-tailed times."""

    SHAPE = 1.3
    SHORTEST, LONGEST = 20, 3 * DAY

    def __init__(self, duty: float, chance: random.Random) -> None:
        self._duty, self._chance = duty, chance
        self._left, self._level = 0, 0.0
        self._recent = deque([0.0] * (LAG + 1), maxlen=LAG + 1)

    def step(self) -> None:
        """Go on to the next minute."""
        if not self._left:
            self._left = min(self.LONGEST, int(
                self.SHORTEST * self._chance.paretovariate(self.SHAPE)))
            self._level = (self._chance.uniform(0.5, 1.0)
                           if self._chance.random() < self._duty else 0.0)
        self._left -= 1
        self._recent.append(self._level)

    def level(self, lag: int) -> float:
        """Return the part of its burst that a replica wants.

        :param lag: minutes that the replica is behind.
        """
        return self._recent[LAG - lag]


class Replicas(Crowd):
    """Replicas of services, as many of each, each service in a project.

    Any of them may come first: the order of arrival is that of chance.
    """

    #: More guests than a node ever has.
    MOST = 60

    def __init__(self, kind: Kind, chance: random.Random) -> None:
        super().__init__(kind, chance)
        self._owners = [number % kind.services for number in range(self.MOST)]
        chance.shuffle(self._owners)
        self._lags = [chance.randrange(LAG + 1) for _guest in self._owners]
        self._services = [_Service(kind.duty, chance)
                          for _service in range(kind.services)]

    @property
    def projects(self) -> list[str]:
        return [str(owner) for owner in self._owners[:len(self.levels)]]

    def minute(self, number: int) -> list[float]:
        for service in self._services:
            service.step()
        return [self._services[owner].level(lag) for owner, lag in zip(
            self._owners[:len(self.levels)], self._lags, strict=False)]


class Traces(Replicas):
    """Guests that replay files, as replicas or each for itself."""

    def __init__(self, kind: Kind, chance: random.Random) -> None:
        super().__init__(kind, chance)
        files = chance.choices(kind.traces, k=kind.services)
        self._loads = [loaded(path) for path in files]
        self._begin = chance.randrange(max(map(len, self._loads))) * STEP

    def minute(self, number: int) -> list[float]:
        return [self._load(owner, number - lag) for owner, lag in zip(
            self._owners[:len(self.levels)], self._lags, strict=False)]

    def _load(self, owner: int, minute: int) -> float:
        load = self._loads[owner]
        return load[(self._begin + minute) // STEP % len(load)]


def loaded(path: Path) -> Sequence[float]:
    """Return the parts of its burst that the guest of a file wants.

    Its burst is the 99.5th percentile of its load.

    :raises ValueError: when the file does not have a number per line.
    """
    percents = [float(line) for line in path.read_text().split()]
    if len(percents) < 2:
        raise ValueError(f'{path}: less than two values')
    most = sorted(percents)[int(0.995 * (len(percents) - 1))] or 1.0
    return [min(1.0, max(0.0, one / most)) for one in percents]


def crowd_of(kind: Kind, chance: random.Random) -> Crowd:
    """Return the guests of a kind, before the first has come."""
    if kind.traces:
        return Traces(kind, chance)
    if kind.services:
        return Replicas(kind, chance)
    if kind.event:
        return Event(kind, chance)
    return Varied(kind, chance) if kind.varied else Crowd(kind, chance)
