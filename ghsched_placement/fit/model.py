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

"""Free resources of a host and needs of a guest, by position (pure).

Amounts are tuples: each resource has a position, the same one in the free
amounts of a host NUMA node and in the needs of a guest NUMA node. The reader
of the records (:mod:`ghsched_placement.fit.fitting`, for instance) fixes the
positions; nothing here depends on which resources there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

#: Amount of each resource, by position.
Amounts: TypeAlias = tuple[int, ...]

#: Positions of resources of which something is needed, with the amounts.
Taken: TypeAlias = tuple[tuple[int, int], ...]

#: Free amount of a resource that nobody counts.
UNCOUNTED = 2 ** 40


@dataclass(frozen=True)
class Units:
    """Sizes that one allocation may have, by position of the resource.

    :param most: largest amount of one allocation.
    :param least: smallest amount of one allocation.
    :param step: number of which each amount must be a multiple.
    """

    most: Amounts
    least: Amounts
    step: Amounts

    def allow(self, taken: Taken) -> bool:
        """Whether one allocation of each amount may have this size."""
        return all(self.least[place] <= amount <= self.most[place]
                   and amount % self.step[place] == 0
                   for place, amount in taken)


@dataclass(frozen=True)
class NodeNeed:
    """Resources that one guest NUMA node needs of a host NUMA node.

    :param amounts: amount of each resource.
    :param memory: MiB of memory in pages of one size; 0 if memory is not
        counted by page size.
    :param pages: positions of the page sizes from any of which the memory can
        be taken, the preferred first.
    :param traits: traits that the host node must have.
    """

    amounts: Amounts
    memory: int = 0
    pages: tuple[int, ...] = ()
    traits: frozenset[str] = frozenset()

    @cached_property
    def taken(self) -> Taken:
        """Amounts that are not 0, by position."""
        return _list_taken(self.amounts)


@dataclass(frozen=True)
class Need:
    """Resources that one guest needs of a host.

    :param amounts: amounts of the host as a whole.
    :param nodes: needs of each guest NUMA node; each of them is placed on a
        host NUMA node of its own. Empty for a guest without a NUMA topology.
    """

    amounts: Amounts = ()
    nodes: tuple[NodeNeed, ...] = ()

    @cached_property
    def taken(self) -> Taken:
        """Amounts of the host as a whole that are not 0, by position."""
        return _list_taken(self.amounts)


def _list_taken(amounts: Amounts) -> Taken:
    return tuple((place, amount) for place, amount in enumerate(amounts)
                 if amount)


@dataclass(frozen=True)
class Node:
    """Host NUMA node with its free resources."""

    number: int
    free: Amounts
    units: Units
    traits: frozenset[str] = frozenset()

    def count_guest_nodes(self, need: NodeNeed) -> int:
        """Return how many guest NUMA nodes with equal needs fit on this node.

        :returns: at most :data:`UNCOUNTED`.
        """
        if not need.traits <= self.traits or not self.units.allow(
                need.taken):
            return 0
        return self.divide_free_amounts(need)

    def divide_free_amounts(self, need: NodeNeed) -> int:
        """Return how many guest NUMA nodes the free amounts are enough for.

        Traits and sizes of allocations are not compared.
        """
        counts = [UNCOUNTED]
        counts += [self.free[place] // amount for place, amount in need.taken]
        if need.memory:
            counts.append(sum(max(0, self.free[place]) // need.memory
                              for place in need.pages))
        return max(0, min(counts))

    def take(self, need: NodeNeed, times: int = 1) -> 'Node':
        """Return this node with the resources of guest NUMA nodes taken.

        :param times: number of guest nodes with equal needs; they must fit.
        """
        free = [left - times * amount for left, amount
                in zip(self.free, need.amounts, strict=True)]
        for place in need.pages if need.memory else ():
            here = min(times, free[place] // need.memory)
            free[place] -= here * need.memory
            times -= here
        return replace(self, free=tuple(free))


@dataclass(frozen=True)
class Host:
    """Host with its free resources.

    :param free: free amounts of the host as a whole.
    :param units: sizes of allocations from these.
    :param nodes: NUMA nodes of the host.
    """

    free: Amounts
    units: Units
    nodes: tuple[Node, ...]

    def count_without_nodes(self, need: Need) -> int:
        """Return how many guests fit if only the whole host's amounts count.

        :returns: at most :data:`UNCOUNTED`.
        """
        if not self.units.allow(need.taken):
            return 0
        return max(0, min([self.free[place] // amount
                           for place, amount in need.taken],
                          default=UNCOUNTED))

    def take(self, need: Need, chosen: Sequence[int]) -> 'Host':
        """Return this host with the resources of one guest taken.

        :param chosen: number of the host NUMA node of each guest NUMA node.
        """
        part_of = dict(zip(chosen, need.nodes, strict=True))
        return replace(
            self, free=tuple(left - amount for left, amount
                             in zip(self.free, need.amounts, strict=True)),
            nodes=tuple(node.take(part_of[node.number])
                        if node.number in part_of else node
                        for node in self.nodes))


@dataclass(frozen=True)
class Count:
    """Number of guests of one kind that fit on a host.

    :param guests: number of guests.
    :param is_exact: whether no more fit. If not, the search ended at its limit
        of steps, and the number is a lower bound.
    """

    guests: int
    is_exact: bool = True
