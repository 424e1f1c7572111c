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

from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import replace
import functools
from functools import cached_property
from typing import NamedTuple
from typing import TypeAlias

from ghsched_placement.fit import parts

#: Amount of each resource, by position.
Amounts: TypeAlias = tuple[int, ...]

#: Positions of resources of which something is needed, with the amounts.
Taken: TypeAlias = tuple[tuple[int, int], ...]

#: Free amount of a resource that nobody counts.
UNCOUNTED = 2 ** 40

#: In place of a position: a trait that a host node does not have, and a host
#: with fewer NUMA nodes than the guest.
TRAIT, TOO_FEW_NODES = -1, -2


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

    def find_limit(self, free: Amounts, taken: Taken,
                   is_sized: bool = True) -> tuple[int, int]:
        """Return how many equal allocations fit, and the scarcest resource.

        :param free: free amount of each resource.
        :param taken: amounts of one allocation.
        :param is_sized: whether an amount must also be a size that Placement
            allows for one allocation.
        :returns: number of allocations, at most :data:`UNCOUNTED`, and the
            position of the resource that limits the number.
        """
        times, limit = UNCOUNTED, 0
        for place, amount in taken:
            here = free[place] // amount
            if here <= 0 or is_sized and (
                    amount > self.most[place] or amount < self.least[place]
                    or amount % self.step[place]):
                return 0, place
            if here < times:
                times, limit = here, place
        return times, limit


class SocketAmount(NamedTuple):
    """Amount that the host NUMA nodes of a socket have in common: VFs.

    :param most: number of guest nodes for which it is enough.
    :param place: position of the resource.
    :param members: indexes of the host nodes in their host.
    """

    most: int
    place: int
    members: tuple[int, ...]


class StockChoice(NamedTuple):
    """Amount that one guest NUMA node takes from few of several stocks.

    The stocks are memory pages by size, or dedicated CPUs by L3 cache.

    :param positions: positions, the preferred first.
    :param may_span: whether to divide the amount among as many positions as
        it needs on an empty host node. If not, one position has all of it.
    """

    amount: int
    positions: tuple[int, ...]
    may_span: bool = False


@dataclass(frozen=True)
class NodeNeed:
    """Resources that one guest NUMA node needs of a host NUMA node.

    :param amounts: amount of each resource.
    :param choices: amounts each of which is taken from one of several
        positions, or from few: memory in pages of one size, CPUs of one L3
        cache.
    :param traits: traits that the host node must have.
    """

    amounts: Amounts
    choices: tuple[StockChoice, ...] = ()
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

    @cached_property
    def kinds(self) -> Mapping[NodeNeed, int]:
        """Number of guest NUMA nodes by what each of them needs."""
        return Counter(self.nodes)


def _list_taken(amounts: Amounts) -> Taken:
    return tuple((place, amount) for place, amount in enumerate(amounts)
                 if amount)


@dataclass(frozen=True)
class Node:
    """Host NUMA node with its free resources.

    :param socket: socket of the node; None if it is unknown.
    """

    number: int
    free: Amounts
    units: Units
    traits: frozenset[str] = frozenset()
    socket: int | None = None

    def find_limit(self, need: NodeNeed,
                   is_alone: bool = True) -> tuple[int, int]:
        """Return how many guest NUMA nodes with equal needs fit on this node.

        :param is_alone: whether traits and sizes of allocations are compared.
        :returns: number, at most :data:`UNCOUNTED`, and the position of the
            resource that is used up then, or :data:`TRAIT`.
        """
        if is_alone and not need.traits <= self.traits:
            return 0, TRAIT
        count, limit = self.units.find_limit(self.free, need.taken, is_alone)
        for choice in need.choices if count else ():
            if choice.amount and (is_alone or not choice.may_span):
                times = parts.count_amounts(
                    [self.free[place] for place in choice.positions],
                    choice.amount, _count_parts(self.units.most, choice))
                if times < count:
                    count, limit = times, max(choice.positions,
                                              key=self.free.__getitem__)
        return count, limit

    def count_guest_nodes(self, need: NodeNeed) -> int:
        """Return how many guest NUMA nodes with equal needs fit on this node.

        :returns: at most :data:`UNCOUNTED`.
        """
        return self.find_limit(need)[0]

    def subtract_guest_nodes(self, need: NodeNeed,
                             times: int = 1) -> 'Node':
        """Return this node with the resources of guest NUMA nodes taken.

        :param times: number of guest nodes with equal needs; they must fit.
        """
        free = [left - times * amount for left, amount
                in zip(self.free, need.amounts, strict=True)]
        for choice in need.choices:
            self._subtract_choice(free, choice, times)
        return Node(self.number, tuple(free), self.units, self.traits,
                    self.socket)

    def _subtract_choice(self, free: list[int], choice: StockChoice,
                         times: int) -> None:
        """Take an amount several times from few of several positions.

        :param free: free amounts by position, changed in place.
        """
        if choice.may_span:
            left = parts.take_amounts(
                [free[place] for place in choice.positions], choice.amount,
                _count_parts(self.units.most, choice), times)
            for place, amount in zip(choice.positions, left, strict=True):
                free[place] = amount
            return
        for place in choice.positions if choice.amount else ():
            here = min(times, free[place] // choice.amount)
            free[place] -= here * choice.amount
            times -= here


@functools.lru_cache(maxsize=1024)
def _count_parts(most: Amounts, choice: StockChoice) -> int:
    """Return from how many positions one guest node takes an amount.

    :param most: largest amount of each position.
    """
    return parts.count_least_parts(
        [most[place] for place in choice.positions],
        choice.amount) if choice.may_span else 1


@dataclass(frozen=True)
class Host:
    """Host with its free resources.

    :param free: free amounts of the host as a whole.
    :param units: sizes of allocations from these.
    :param nodes: NUMA nodes of the host.
    :param of_sockets: positions of resources that the nodes of a socket have
        in common. Each of these nodes has the free amount of the socket.
    """

    free: Amounts
    units: Units
    nodes: tuple[Node, ...]
    of_sockets: frozenset[int] = frozenset()

    def list_socket_amounts(self, part: NodeNeed) -> tuple[SocketAmount, ...]:
        """Return the amounts of each socket that a guest node can take.

        :returns: empty if the guest node needs nothing that the nodes of a
            socket have in common.
        """
        taken = tuple(item for item in part.taken
                      if item[0] in self.of_sockets)
        sockets: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes if taken else ()):
            if node.socket is not None:
                sockets.setdefault(node.socket, []).append(index)
        return tuple(
            SocketAmount(*first.units.find_limit(first.free, taken,
                                                 is_sized=False),
                         tuple(members))
            for members in sockets.values() if len(members) > 1
            for first in (self.nodes[members[0]],))

    def count_without_nodes(self, need: Need) -> int:
        """Return how many guests fit if only the whole host's amounts count.

        :returns: at most :data:`UNCOUNTED`.
        """
        return self.units.find_limit(self.free, need.taken)[0]

    def has_enough_of_sockets(self, need: Need,
                              chosen: Sequence[int | None]) -> bool:
        """Return whether each socket has enough VFs for a guest's nodes.

        :param chosen: number of the host node of each guest node; None for
            guest nodes that are not counted.
        """
        socket_of = {node.number: node.socket for node in self.nodes}
        free = {node.socket: node.free for node in self.nodes}
        taken = Counter[tuple[int, int]]()
        for number, part in zip(chosen, need.nodes, strict=True):
            socket = None if number is None else socket_of[number]
            if socket is not None:
                for place in self.of_sockets:
                    taken[socket, place] += part.amounts[place]
        return all(amount <= free[socket][place]
                   for (socket, place), amount in taken.items())

    def list_used_up(self, need: Need, guests: int) -> frozenset[int]:
        """Return the resources that suffice for no more than some guests.

        :returns: positions of resources of the host as a whole.
        """
        return frozenset(
            item[0] for item in need.taken
            if self.units.find_limit(self.free, (item,))[0] <= guests)

    def subtract_guest(self, need: Need,
                       chosen: Sequence[int]) -> 'Host':
        """Return this host with the resources of one guest taken.

        :param chosen: number of the host NUMA node of each guest NUMA node.
        """
        return self.subtract_guests(need, 1, {
            node: (part, 1) for node, part
            in zip(chosen, need.nodes, strict=True)})

    def subtract_guests(self, need: Need, guests: int,
                        chosen: Mapping[int, tuple[NodeNeed, int]]) -> 'Host':
        """Return this host with the resources of several guests taken.

        :param chosen: need of equal guest NUMA nodes, and their number, by
            number of the host node that they are placed on.
        """
        nodes = tuple(node.subtract_guest_nodes(*chosen[node.number])
                      if node.number in chosen else node
                      for node in self.nodes)
        for place in self.of_sockets:
            nodes = self._update_socket_amounts(place, nodes)
        return Host(
            tuple(left - guests * amount for left, amount
                  in zip(self.free, need.amounts, strict=True)), self.units,
            nodes, self.of_sockets)

    def _update_socket_amounts(self, place: int,
                               nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return nodes whose free amount is what their whole socket has left.

        :param place: position of the resource in the table of resources.
        :param nodes: nodes of this host, with only their own use subtracted.
        """
        taken = Counter[int | None]()
        for before, node in zip(self.nodes, nodes, strict=True):
            taken[node.socket] += before.free[place] - node.free[place]
        if not any(taken.values()):
            return nodes
        return tuple(
            node if node.socket is None or not taken[node.socket]
            else replace(node, free=(
                *node.free[:place], before.free[place] - taken[node.socket],
                *node.free[place + 1:]))
            for before, node in zip(self.nodes, nodes, strict=True))


@dataclass(frozen=True)
class Count:
    """Number of guests of one kind that fit on a host.

    :param guests: number of guests.
    :param is_exact: whether no more fit. If not, the search ended at its limit
        of steps, and the number is a lower bound.
    :param of_host: positions of the resources of the host as a whole that are
        used up then.
    :param of_nodes: positions of the resources that are used up on host nodes,
        one of each host node; :data:`TRAIT` or :data:`TOO_FEW_NODES` if it is
        no resource.
    """

    guests: int
    is_exact: bool = True
    of_host: frozenset[int] = frozenset()
    of_nodes: frozenset[int] = frozenset()
