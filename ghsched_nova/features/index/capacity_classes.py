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

"""HostClasses of hosts by the free CPUs and bandwidth of their nodes (pure).

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

#: Fraction of the list between two successive hosts in scattered order.
_GOLDEN = (math.sqrt(5) - 1) / 2

#: Percent of bandwidth between two levels.
_BANDWIDTH_STEP = 5

#: Level of an unknown bandwidth, which is taken to be enough.
_UNKNOWN = 1000


class Level(NamedTuple):
    """Rounded amounts that a host NUMA node has free or a guest node needs.

    :param pinned: level of the dedicated CPUs.
    :param bandwidth: level of the percent of bandwidth.
    """

    pinned: int
    bandwidth: int


@dataclass(frozen=True)
class CapacityClass:
    """Class of hosts whose NUMA nodes have equal (rounded) free capacity.

    :param node_levels: levels of the host NUMA nodes, without those that are
        lower than the level of another node.
    :param pair_levels: levels that both nodes of a pair of host NUMA nodes
        have, without those that are lower than the level of another pair.
    """

    node_levels: tuple[Level, ...]
    pair_levels: tuple[Level, ...]

    def may_fit(self, needs: 'GuestLevels') -> bool:
        """Return whether a guest may fit on the hosts of this class.

        A class is a set of hosts with equal (rounded) free capacity. If the
        result is False, the guest certainly fits on none of them.

        :param needs: levels that the NUMA nodes of the guest need.
        """
        return (all(_has_level(self.node_levels, need)
                    for need in needs.node_levels)
                and (needs.pair_level is None
                     or _has_level(self.pair_levels, needs.pair_level)))


@dataclass(frozen=True)
class GuestLevels:
    """Levels that host NUMA nodes must have for a guest to fit.

    :param node_levels: levels that the guest NUMA nodes need.
    :param pair_level: level that at least two host NUMA nodes must have; None
        for a guest with one NUMA node.
    """

    node_levels: tuple[Level, ...]
    pair_level: Level | None


class HostClasses(Generic[_Member]):
    """Hosts grouped into classes of equal (rounded) free capacity.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._members: dict[CapacityClass, dict[str, _Member]] = {}
        self._class_of: dict[str, CapacityClass] = {}

    def set_host_class(self, uuid: str, member: _Member,
                       host_class: CapacityClass) -> None:
        """Put a host into a class of hosts with equal free capacity.

        The host is removed from its earlier class.

        :param uuid: UUID of the host.
        :param member: the object stored for the host.
        """
        if self._class_of.get(uuid) != host_class:
            self.remove_member(uuid)
            self._class_of[uuid] = host_class
            self._members.setdefault(host_class, {})[uuid] = member

    def remove_member(self, uuid: str) -> None:
        """Remove a host from its class.

        A class is a set of hosts with equal (rounded) free capacity. An empty
        class is removed, too.
        """
        known = self._class_of.pop(uuid, None)
        if known is not None:
            del self._members[known][uuid]
            if not self._members[known]:
                del self._members[known]

    def list_classes(self) -> list[CapacityClass]:
        """Return all classes of hosts with equal (rounded) free capacity."""
        return list(self._members)

    def list_members(self,
                     host_classes: Iterable[CapacityClass]) -> list[_Member]:
        """Return all hosts of the given classes.

        A class is a set of hosts with equal (rounded) free capacity.
        """
        found: list[_Member] = []
        for known in host_classes:
            found += self._members.get(known, {}).values()
        return found


def iterate_hosts_from(members: Sequence[_Member], start: int,
                       count: int) -> Iterator[_Member]:
    """Iterate over hosts from one position of a list on.

    After the end of the list, iteration continues at its beginning.

    :param members: the hosts.
    :param start: position of the first host.
    :param count: maximum number of hosts.
    """
    end = start + min(count, len(members))
    return itertools.chain(members[start:end],
                           members[:max(0, end - len(members))])


def iterate_hosts_scattered(members: Sequence[_Member],
                            start: int) -> Iterator[_Member]:
    """Iterate over all hosts of a list in scattered order.

    Successive hosts are far apart in the list.

    :param members: the hosts.
    :param start: position of the first host.
    """
    count = len(members)
    # A step of no common divisor reaches every member.
    step = max(1, round(count * _GOLDEN))
    while math.gcd(step, count) > 1:
        step += 1
    for number in range(count):
        yield members[(start + number * step) % count]


def round_to_level(pinned: int, bandwidth: int | None) -> Level:
    """Round an amount of CPUs and bandwidth to one of a few levels.

    The amount is free on a host NUMA node or needed by a guest NUMA node. Host
    nodes with the same level count as equal when hosts are classified.

    :param pinned: number of dedicated CPUs.
    :param bandwidth: percent of the node's bandwidth; None if unknown.
    """
    cpus = max(0, pinned)
    # Two levels for each power of two: 4, 6, 8, 12, 16 ...
    bits = cpus.bit_length()
    half = cpus >> (bits - 2) & 1 if bits > 1 else 0
    return Level(2 * bits + half, _UNKNOWN if bandwidth is None
                 else max(0, bandwidth) // _BANDWIDTH_STEP)


def classify_host(
        node_amounts: Iterable[tuple[int, int | None]]) -> CapacityClass:
    """Return the capacity class of a host.

    Hosts whose NUMA nodes have equal (rounded) free resources have the same
    class.

    :param node_amounts: number of free dedicated CPUs and percent of free
        bandwidth of each NUMA node.
    """
    levels = list(itertools.starmap(round_to_level, node_amounts))
    return CapacityClass(_list_maximal_levels(levels), _list_maximal_levels(
        _get_minimum(one, other) for one, other in itertools.combinations(
            levels, 2)))


def round_guest_needs(node_amounts: Iterable[tuple[int, int]]) -> GuestLevels:
    """Return the rounded resources that the NUMA nodes of a guest need.

    They are compared with classes of hosts to skip hosts without enough free
    resources.

    :param node_amounts: number of dedicated CPUs and percent of bandwidth of
        each guest NUMA node.
    """
    each = tuple(itertools.starmap(round_to_level, node_amounts))
    if len(each) < 2:
        return GuestLevels(each, None)
    return GuestLevels(tuple(set(each)), Level(
        min(level.pinned for level in each),
        min(level.bandwidth for level in each)))


def _has_level(levels: Iterable[Level], need: Level) -> bool:
    pinned, bandwidth = need
    return any(cpus >= pinned and share >= bandwidth
               for cpus, share in levels)


def _get_minimum(one: Level, other: Level) -> Level:
    return Level(min(one.pinned, other.pinned),
                 min(one.bandwidth, other.bandwidth))


def _list_maximal_levels(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Return the levels that no other level exceeds.

    A level is a pair of rounded amounts, of free CPUs and of bandwidth. A
    level exceeds another one if both of its amounts are at least as large.
    """
    found: list[Level] = []
    for level in sorted(levels, reverse=True):
        if not found or level.bandwidth > found[-1].bandwidth:
            found.append(level)
    return tuple(found)
