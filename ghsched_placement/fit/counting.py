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

"""Count of guests that fit on a host, and choice of its NUMA nodes (pure).

The count is exact. Equal guest NUMA nodes are counted by a closed form: m
guests of k nodes fit if and only if the sum of min(c, m) over the host nodes
is at least k * m, where c is how many of the guest nodes a host node holds.
(Each guest node of one guest is on a host node of its own; by Koenig's theorem
on edge colourings, this is the only condition.) The sum of the nodes of a
socket is at most what they have in common. Guest nodes that differ are
counted by a search over the host nodes, which is bounded in steps and says so
where it ends at the bound.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
import itertools
from typing import TypeAlias

from ghsched_placement.fit.model import Count
from ghsched_placement.fit.model import Host
from ghsched_placement.fit.model import Need
from ghsched_placement.fit.model import Node
from ghsched_placement.fit.model import NodeNeed
from ghsched_placement.fit.model import SocketAmount
from ghsched_placement.fit.model import StockChoice
from ghsched_placement.fit.model import TOO_FEW_NODES
from ghsched_placement.query import matching

#: Guests that are counted on one host at most.
MAX_GUESTS = 10 ** 4

#: Guests that are placed one after the other to find a lower bound.
_MOST_PLACED = 200

#: Maximum number of steps of one search; about half a second of a processor.
MAX_STEPS = 300000

#: Number of steps that are as long as placing guest nodes on a host node.
_TAKE_STEPS = 10


def count_guests(host: Host, need: Need, most: int = MAX_GUESTS,
                 steps: int = MAX_STEPS) -> Count:
    """Count the guests with equal needs that fit on a host at the same time.

    :param most: number at which counting ends.
    :param steps: limit of the search if the guest NUMA nodes differ.
    """
    whole = host.count_without_nodes(need)
    most = min(most, whole)
    limits = [[node.find_limit(kind) for node in host.nodes]
              for kind in need.kinds]
    by_kind = [[count for count, _place in of_kind] for of_kind in limits]
    shared = list(map(host.list_socket_amounts, need.kinds))
    alone = [count_equal_guests(counts, number, most, of_kind)
             for counts, number, of_kind
             in zip(by_kind, need.kinds.values(), shared, strict=True)]
    found, is_exact = min(alone, default=most), True
    if len(alone) > 1 and found:
        found, is_exact = _count_unequal_guests(host, need, by_kind, found,
                                                steps)
    of_host = (frozenset[int]() if found < whole
               else host.list_used_up(need, found))
    if not need.nodes or of_host and found:
        return Count(found, is_exact, of_host)
    # Kinds that fit no more; all of them if they are only together too many.
    all_kinds = [*zip(limits, by_kind, shared, strict=True)]
    kinds = [kind for kind, guests in zip(all_kinds, alone, strict=True)
             if (guests == found if found else not any(kind[1]))]
    of_nodes = set[int]()
    for of_kind, counts, of_sockets in kinds or (
            () if of_host else all_kinds):
        # A host node that would hold more is not used up.
        of_nodes |= {place for count, place in of_kind if count <= found}
        of_nodes |= {pool.place for pool in of_sockets
                     if _count_excess(counts, pool, found + 1)}
    if len(host.nodes) < len(need.nodes):
        of_nodes.add(TOO_FEW_NODES)
    return Count(found, is_exact, of_host, frozenset(of_nodes))


def _count_unequal_guests(host: Host, need: Need,
                          by_kind: Sequence[Sequence[int]], most: int,
                          steps: int) -> tuple[int, bool]:
    """Count the guests that fit on a host if their NUMA nodes differ.

    :param by_kind: number of guest nodes of each kind that each host node
        holds alone.
    :param most: number of guests of which no more fit.
    :param steps: limit of the search.
    :returns: number of guests, and whether it is exact.
    """
    smallest = _find_common_need(list(need.kinds))
    most = count_equal_guests(
        [node.find_limit(smallest, is_alone=False)[0] for node in host.nodes],
        len(need.nodes), most, host.list_socket_amounts(smallest))
    _after, least = place_guests(host, need, min(most, _MOST_PLACED))
    found, is_exact = _search_largest_count(
        _Search(host, need.kinds, by_kind, steps), least, most)
    # The search tries one way to divide different amounts among positions.
    spans = {choice for kind in need.kinds for choice in kind.choices
             if choice.may_span}
    return found, is_exact and (found == most or len(spans) <= 1)


def count_equal_guests(counts: Sequence[int], guest_nodes: int,
                       most: int = MAX_GUESTS,
                       shared: Iterable[SocketAmount] = ()) -> int:
    """Count the guests with equal NUMA nodes that fit on a host.

    :param counts: number of such guest nodes that each host node holds.
    :param guest_nodes: number of NUMA nodes of one guest.
    :param most: number at which counting ends.
    :param shared: amounts that host nodes have in common.
    """
    while True:
        fitting = _count_guest_nodes(counts, most, shared) // guest_nodes
        if fitting >= most:
            return most
        most = fitting


def _count_guest_nodes(counts: Sequence[int], guests: int,
                       shared: Iterable[SocketAmount]) -> int:
    """Count the guest nodes that host nodes hold, one of each guest at most.

    :param counts: number of guest nodes that each host node holds.
    :param guests: number of guests.
    :param shared: amounts that host nodes have in common.
    """
    return sum([count if count < guests else guests
                for count in counts]) - sum([
                    _count_excess(counts, pool, guests) for pool in shared])


def _count_excess(counts: Sequence[int], pool: SocketAmount,
                  guests: int) -> int:
    """Count the guest nodes for which a common amount is too small.

    The host nodes that have the amount in common would hold them otherwise.

    :param counts: number of guest nodes that each host node holds.
    :param guests: maximum number of guest nodes on one host node.
    """
    return max(0, sum(min(counts[index], guests)
                      for index in pool.members) - pool.most)


def find_needed_nodes(counts: Mapping[int, int], guest_nodes: int,
                      most: int = MAX_GUESTS,
                      shared: Sequence[SocketAmount] = ()) -> frozenset[int]:
    """Return the host nodes that a guest should take so that most others fit.

    If a guest with equal NUMA nodes leaves out more of these host nodes than
    it must, at least one guest less may fit in total.

    :param counts: number of guest nodes that each host node holds, by number
        of the host node.
    :param guest_nodes: number of NUMA nodes of one guest.
    :param most: number of guests for which the host as a whole has resources.
    :param shared: amounts that host nodes have in common; their members are
        the positions in the counts.
    :returns: empty if any host nodes will do.
    """
    of_nodes = list(counts.values())
    guests = count_equal_guests(of_nodes, guest_nodes, most, shared)
    spare = (_count_guest_nodes(of_nodes, guests, shared)
             - guest_nodes * guests)
    needed = [index for index, count in enumerate(of_nodes)
              if count >= guests > 0]
    for pool in shared:
        # As long as its pool is too small, a host node may be left out.
        for index in [index for index in pool.members if index in needed][
                :_count_excess(of_nodes, pool, guests)]:
            needed.remove(index)
    numbers = list(counts)
    return frozenset(map(numbers.__getitem__, needed)) if (
        len(needed) > spare) else frozenset()


def choose_host_nodes(host: Host, need: Need) -> tuple[int, ...] | None:
    """Choose a host NUMA node for each guest NUMA node.

    Host nodes that hold most of the guest node come first, so that as many
    guests as possible fit if all have equal nodes.

    :returns: number of the host node of each guest node; None if the guest
        does not fit.
    """
    if not host.count_without_nodes(need):
        return None
    if len(need.kinds) == 1:
        nodes = _list_fitting_nodes(host, need.nodes[0],
                                    len(need.nodes))[:len(need.nodes)]
        return tuple(nodes) if len(nodes) == len(need.nodes) else None
    preferred = {part: _list_fitting_nodes(host, part) for part in need.kinds}
    choices = [preferred[part] for part in need.nodes]
    order = sorted(range(len(choices)), key=lambda one: len(choices[one]))
    found = matching.match_items_to_places(choices, order)
    return found if found is None or host.has_enough_of_sockets(
        need, found) else _search_host_nodes(host, need, choices)


def _search_host_nodes(host: Host, need: Need,
                       choices: Sequence[Sequence[int]]
                       ) -> tuple[int, ...] | None:
    """Choose host nodes whose sockets have enough for the guest nodes on them.

    Guest nodes that need VFs of a socket are placed first, by a search with a
    limit of steps. A matching places the other guest nodes.

    :param choices: possible host nodes of each guest node, the best first.
    """
    first = [index for index, part in enumerate(need.nodes)
             if host.list_socket_amounts(part)]
    steps = iter(range(MAX_STEPS // _TAKE_STEPS))

    def place_rest(placed: dict[int, int]) -> Iterator[dict[int, int]]:
        if len(placed) == len(first):
            yield placed
            return
        index = first[len(placed)]
        for node in choices[index]:
            more = {**placed, index: node}
            if (node not in placed.values() and next(steps, None) is not None
                    and host.has_enough_of_sockets(
                        need, [*map(more.get, range(len(choices)))])):
                yield from place_rest(more)

    for placed in place_rest({}):
        found = matching.match_items_to_places([
            [placed[index]] if index in placed else [
                node for node in of_part if node not in placed.values()]
            for index, of_part in enumerate(choices)])
        if found is not None:
            return found
    return None


def _list_fitting_nodes(host: Host, part: NodeNeed,
                        guest_nodes: int = 0) -> list[int]:
    """Return the host nodes on which a guest node fits, the emptiest first.

    Host nodes that hold many guest nodes of this kind come before those that
    hold few.

    :param guest_nodes: number of equal nodes of the guest. If given, the
        amounts that host nodes of a socket have in common are divided among
        these host nodes.
    """
    counts = [node.count_guest_nodes(part) for node in host.nodes]
    left = list(counts)
    shared = host.list_socket_amounts(part) if guest_nodes else ()
    guests = count_equal_guests(counts, guest_nodes,
                                shared=shared) if shared else 0
    for pool in shared:
        most = pool.most
        for index in sorted(pool.members, key=lambda one: -counts[one]):
            left[index] = min(counts[index], guests, most)
            most -= left[index]
    order = sorted(range(len(counts)), key=lambda index: (
        -min(left[index], guests) if shared else 0, -counts[index],
        host.nodes[index].number))
    return [host.nodes[index].number for index in order if left[index]]


def place_guests(host: Host, need: Need, guests: int) -> tuple[Host, int]:
    """Place guests, each on the host nodes that hold most of its nodes.

    :param guests: number of guests; fewer are placed if fewer fit.
    :returns: the host's free resources then, and the number of placed guests.
    """
    if len(need.kinds) == 1 and not host.list_socket_amounts(need.nodes[0]):
        return _place_equal_guests(host, need, min(
            guests, host.count_without_nodes(need)))
    for guest in range(guests):
        chosen = choose_host_nodes(host, need)
        if chosen is None:
            return host, guest
        host = host.subtract_guest(need, chosen)
    return host, guests


def _place_equal_guests(host: Host, need: Need,
                        guests: int) -> tuple[Host, int]:
    """Place guests whose NUMA nodes are equal; see :func:`place_guests`."""
    part, width = need.nodes[0], len(need.nodes)
    left = sorted((-node.count_guest_nodes(part), node.number)
                  for node in host.nodes)
    taken = Counter[int]()
    for _guest in range(guests):
        if len(left) < width or not left[width - 1][0]:
            guests = _guest
            break
        taken.update(number for _count, number in left[:width])
        left = sorted((*((count + 1, number) for count, number
                         in left[:width]), *left[width:]))
    return host.subtract_guests(need, guests, {
        number: (part, times) for number, times in taken.items()}), guests


def count_guests_without_nodes(host: Host, need: Need) -> int:
    """Return how many guests would fit if a host had a single NUMA node.

    Sizes that one allocation from a host node may have are not compared.
    """
    guests = host.count_without_nodes(need)
    if not need.nodes:
        return guests
    for place, asked in enumerate(map(sum, zip(*(
            part.amounts for part in need.nodes), strict=True))):
        if asked:
            free = sum(node.free[place] for node in host.nodes)
            guests = min(guests, free // asked)
    return max(0, guests)


def _find_common_need(kinds: Sequence[NodeNeed]) -> NodeNeed:
    """Return the amounts that each of several guest NUMA nodes needs."""
    return NodeNeed(
        tuple(map(min, *(kind.amounts for kind in kinds))),
        tuple(StockChoice(
            min(choice.amount for choice in alike),
            tuple(dict.fromkeys(itertools.chain.from_iterable(
                choice.positions for choice in alike))), alike[0].may_span)
              for alike in zip(*(kind.choices for kind in kinds),
                               strict=False)),
        frozenset.intersection(*(kind.traits for kind in kinds)))


# -- guest nodes that differ --------------------------------------------------


def _search_largest_count(search: '_Search', least: int,
                          most: int) -> tuple[int, bool]:
    """Find the largest number of guests that fit, by bisection.

    :param least: number of guests that are known to fit.
    :param most: number of guests of which no more fit.
    :returns: number of guests, and whether the search has come to its end.
    """
    while least < most:
        guests = (least + most + 1) // 2
        fits = search.can_hold(guests)
        if fits is None:
            return least, False
        least, most = (guests, most) if fits else (least, guests - 1)
    return least, True


#: Numbers of guest nodes of all kinds but the last that are placed, and the
#: amounts that they take of the socket of the present host node.
_State: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


class _Search:
    """Search for a division of guest nodes of several kinds among host nodes.

    :param kinds: number of guest nodes of each kind that one guest has.
    :param by_kind: number of guest nodes of each kind that each host node
        holds alone.
    :param steps: limit of the search.
    """

    def __init__(self, host: Host, kinds: Mapping[NodeNeed, int],
                 by_kind: Sequence[Sequence[int]], steps: int) -> None:
        self._of_sockets = tuple(place for place in host.of_sockets if any(
            kind.amounts[place] for kind in kinds))
        # Kinds that take nothing of a socket come last.
        self._kinds = sorted(kinds, key=lambda kind: not self._take(kind, 1))
        order = [list(kinds).index(kind) for kind in self._kinds]
        self._numbers = [kinds[kind] for kind in self._kinds]
        places = sorted(range(len(host.nodes)), key=lambda place: (
            host.nodes[place].socket is None, host.nodes[place].socket or 0))
        self._nodes = [host.nodes[place] for place in places]
        self._by_kind = [[by_kind[kind][place] for place in places]
                         for kind in order]
        self._steps = steps

    def _take(self, kind: NodeNeed, number: int) -> tuple[int, ...]:
        """Return the amounts of a socket that guest nodes of one kind take.

        :returns: amounts by resource; empty if all are 0.
        """
        taken = tuple(number * kind.amounts[place]
                      for place in self._of_sockets)
        return taken if any(taken) else ()

    def can_hold(self, guests: int) -> bool | None:
        """Return whether the host nodes hold so many guests.

        :returns: None if the search has reached its limit of steps.
        """
        wanted = [guests * number for number in self._numbers]
        # Largest number of guest nodes of the last kind that are placed.
        placed: dict[_State, int] = {((0,) * (len(wanted) - 1), ()): 0}
        for place, node in enumerate(self._nodes):
            rest = [want - sum(min(count, guests)
                               for count in counts[place + 1:])
                    for want, counts in zip(wanted, self._by_kind,
                                            strict=True)]
            ways = list(self._yield_node_contents(node, guests))
            if place and node.socket != self._nodes[place - 1].socket:
                placed = _forget_socket(placed)
            self._steps -= len(ways) * len(placed)
            if self._steps < 0:
                return None
            found: dict[_State, int] = {}
            for ((before, used), number), (*others, last) in itertools.product(
                    placed.items(), ways):
                taken = self._take_of_socket(node, used, (*others, last))
                key = tuple(map(min, wanted, map(int.__add__, before, others)))
                count = min(wanted[-1], number + last)
                if taken is not None and count > found.get(
                        (key, taken), -1) and all(
                            map(int.__ge__, (*key, count), rest)):
                    found[key, taken] = count
            placed = found
        return bool(placed)

    def _take_of_socket(self, node: Node, used: tuple[int, ...],
                        numbers: Sequence[int]) -> tuple[int, ...] | None:
        """Return the amounts of a socket that guest nodes on a host node take.

        :param used: amounts that other host nodes of the socket take.
        :param numbers: number of guest nodes of each kind on the host node.
        :returns: None if the socket has too little.
        """
        if not self._of_sockets or node.socket is None:
            return ()
        taken = tuple(map(sum, zip(
            *filter(None, map(self._take, self._kinds, numbers)),
            used or (0,) * len(self._of_sockets), strict=True)))
        return taken if all(map(
            int.__le__, taken, map(node.free.__getitem__, self._of_sockets))
        ) else None

    def _yield_node_contents(self, node: Node, most: int, kind: int = 0,
                             ) -> Iterator[tuple[int, ...]]:
        """Yield combinations of guest nodes that a host node can hold.

        A combination is the number of guest nodes of each kind. The last kind
        gets the largest number that fits beside the other kinds, or each
        number up to it if this kind needs VFs of a socket.

        :param most: maximum number of guest nodes on the host node.
        :param kind: index of the first kind in the yielded combinations.
        """
        need = self._kinds[kind]
        count = min(most, node.count_guest_nodes(need))
        if kind == len(self._kinds) - 1:
            yield from ((number,) for number in range(
                0 if self._take(need, 1) else count, count + 1))
            return
        for number in range(count + 1):
            self._steps -= _TAKE_STEPS
            if self._steps < 0:
                return
            for others in self._yield_node_contents(
                    node.subtract_guest_nodes(need, number), most - number,
                    kind + 1):
                yield (number, *others)


def _forget_socket(placed: Mapping[_State, int]) -> dict[_State, int]:
    """Return the states of a count in which a socket's nodes are all filled.

    What they have taken of the socket no longer matters for other sockets.
    """
    found: dict[_State, int] = {}
    for (numbers, _taken), count in placed.items():
        found[numbers, ()] = max(count, found.get((numbers, ()), -1))
    return found
