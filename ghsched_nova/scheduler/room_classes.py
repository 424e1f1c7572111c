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

"""Classes of hosts by the free CPUs and bandwidth of their nodes (pure).

A full cloud has few classes and many hosts. A request that needs more than any
host of a class has is refused for the whole class at once. Amounts are rounded
to levels, so a class never rules out a host that fits, and may keep one that
does not.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import math
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

_Member = TypeVar('_Member')

#: Part of the members by which a walk steps on.
_GOLDEN = (math.sqrt(5) - 1) / 2

#: Percent of bandwidth between two levels.
_BANDWIDTH_STEP = 5

#: Level of an unknown bandwidth, which is taken to be enough.
_UNKNOWN = 1000


class Level(NamedTuple):
    """Rounded free amounts of a host NUMA node.

    :param pinned: level of the dedicated CPUs.
    :param bandwidth: level of the percent of bandwidth.
    """

    pinned: int
    bandwidth: int


@dataclass(frozen=True)
class RoomClass:
    """Hosts whose nodes have the same greatest levels.

    :param one: levels that some node reaches; none is below another one.
    :param two: levels that some two nodes reach, likewise.
    """

    one: tuple[Level, ...]
    two: tuple[Level, ...]

    def may_hold(self, needs: 'Needs') -> bool:
        """Whether a host of the class may have room for a guest."""
        return (all(_reaches(self.one, need) for need in needs.each)
                and (needs.both is None or _reaches(self.two, needs.both)))


@dataclass(frozen=True)
class Needs:
    """Levels that the nodes of a guest need.

    :param each: by guest node.
    :param both: levels that at least two host nodes have to reach; None for
        a guest of one node.
    """

    each: tuple[Level, ...]
    both: Level | None


class Classes(Generic[_Member]):
    """Members by class. Not safe for threads."""

    def __init__(self) -> None:
        self._members: dict[RoomClass, dict[str, _Member]] = {}
        self._class_of: dict[str, RoomClass] = {}

    def file(self, uuid: str, member: _Member, known: RoomClass) -> None:
        """Put a member into its class, and remove it from an earlier one."""
        if self._class_of.get(uuid) != known:
            self.remove(uuid)
            self._class_of[uuid] = known
            self._members.setdefault(known, {})[uuid] = member

    def remove(self, uuid: str) -> None:
        """Remove a member, and the class with its last member."""
        known = self._class_of.pop(uuid, None)
        if known is not None:
            del self._members[known][uuid]
            if not self._members[known]:
                del self._members[known]

    def list_classes(self) -> list[RoomClass]:
        """Return the classes that have members."""
        return list(self._members)

    def list_members(self, chosen: Iterable[RoomClass]) -> list[_Member]:
        """Return the members of some classes."""
        found: list[_Member] = []
        for known in chosen:
            found += self._members.get(known, {}).values()
        return found


def take_run(members: Sequence[_Member], start: int,
             count: int) -> Iterator[_Member]:
    """Return some members in a row, the first after the last.

    :param start: place of the first member.
    """
    end = start + min(count, len(members))
    return itertools.chain(members[start:end],
                           members[:max(0, end - len(members))])


def take_turns(members: Sequence[_Member], start: int) -> Iterator[_Member]:
    """Yield every member once, neighbours far from each other.

    :param start: place of the first member.
    """
    count = len(members)
    # A step of no common divisor reaches every member.
    step = max(1, round(count * _GOLDEN))
    while math.gcd(step, count) > 1:
        step += 1
    for number in range(count):
        yield members[(start + number * step) % count]


def make_level(pinned: int, bandwidth: int | None) -> Level:
    """Round free or needed amounts of a NUMA node to levels.

    :param pinned: dedicated CPUs.
    :param bandwidth: percent; None if unknown.
    """
    cpus = max(0, pinned)
    # Two levels for each power of two: 4, 6, 8, 12, 16 ...
    bits = cpus.bit_length()
    half = cpus >> (bits - 2) & 1 if bits > 1 else 0
    return Level(2 * bits + half, _UNKNOWN if bandwidth is None
                 else max(0, bandwidth) // _BANDWIDTH_STEP)


def classify(amounts: Iterable[tuple[int, int | None]]) -> RoomClass:
    """Return the class of a host.

    :param amounts: free dedicated CPUs and percent of bandwidth of each node.
    """
    levels = list(itertools.starmap(make_level, amounts))
    return RoomClass(_list_greatest(levels), _list_greatest(
        _lower(one, other) for one, other in itertools.combinations(
            levels, 2)))


def make_needs(amounts: Iterable[tuple[int, int]]) -> Needs:
    """Return the levels that a guest needs.

    :param amounts: dedicated CPUs and percent of bandwidth of each node.
    """
    each = tuple(itertools.starmap(make_level, amounts))
    if len(each) < 2:
        return Needs(each, None)
    return Needs(tuple(set(each)), Level(
        min(level.pinned for level in each),
        min(level.bandwidth for level in each)))


def _reaches(levels: Iterable[Level], need: Level) -> bool:
    pinned, bandwidth = need
    return any(cpus >= pinned and share >= bandwidth
               for cpus, share in levels)


def _lower(one: Level, other: Level) -> Level:
    return Level(min(one.pinned, other.pinned),
                 min(one.bandwidth, other.bandwidth))


def _list_greatest(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Return the levels that are not below another one."""
    found: list[Level] = []
    for level in sorted(levels, reverse=True):
        if not found or level.bandwidth > found[-1].bandwidth:
            found.append(level)
    return tuple(found)
