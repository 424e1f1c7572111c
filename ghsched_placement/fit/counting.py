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
on edge colourings, this is the only condition.) Guest nodes that differ are
counted by a search over the host nodes, which is bounded in steps and says so
where it ends at the bound.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
import itertools

from ghsched_placement.fit.model import Count
from ghsched_placement.fit.model import FewOf
from ghsched_placement.fit.model import Host
from ghsched_placement.fit.model import Need
from ghsched_placement.fit.model import Node
from ghsched_placement.fit.model import NodeNeed
from ghsched_placement.fit.model import TOO_FEW_NODES
from ghsched_placement.query import matching

#: Guests that are counted on one host at most.
MOST = 10 ** 4

#: Guests that are placed one after the other to find a lower bound.
_MOST_PLACED = 200

#: Maximum number of steps of one search; about half a second of a processor.
MAX_STEPS = 300000

#: Number of steps that are as long as placing guest nodes on a host node.
_TAKE_STEPS = 10


def count_guests(host: Host, need: Need, most: int = MOST,
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
    alone = [count_equal_guests(counts, number, most) for counts, number
             in zip(by_kind, need.kinds.values(), strict=True)]
    found, is_exact = min(alone, default=most), True
    if len(alone) > 1 and found:
        found, is_exact = _count_unequal_guests(host, need, by_kind, found,
                                                steps)
    of_host = (frozenset[int]() if found < whole
               else host.list_limits(need, found))
    if not need.nodes or of_host and found:
        return Count(found, is_exact, of_host)
    # Kinds that fit no more; all of them if they are only together too many.
    kinds = [of_kind for of_kind, counts, guests
             in zip(limits, by_kind, alone, strict=True)
             if (guests == found if found else not any(counts))]
    # A host node that would hold more is not used up.
    of_nodes = {place for of_kind in kinds or (() if of_host else limits)
                for count, place in of_kind if count <= found}
    if len(host.nodes) < len(need.nodes):
        of_nodes.add(TOO_FEW_NODES)
    return Count(found, is_exact, of_host, frozenset(of_nodes))


def _count_unequal_guests(host: Host, need: Need,
                          by_kind: Sequence[Sequence[int]], most: int,
                          steps: int) -> tuple[int, bool]:
    """Return how many guests fit, and whether no more do."""
    smallest = _find_common_need(list(need.kinds))
    most = count_equal_guests(
        [node.find_limit(smallest, is_alone=False)[0] for node in host.nodes],
        len(need.nodes), most)
    least = _count_by_placing(host, need, min(most, _MOST_PLACED))
    found, is_exact = _search_largest_count(
        _Search(host.nodes, need.kinds, by_kind, steps), least, most)
    # The search tries one way to divide different amounts among positions.
    spans = {few for kind in need.kinds for few in kind.few if few.may_span}
    return found, is_exact and (found == most or len(spans) <= 1)


def count_equal_guests(counts: Iterable[int], guest_nodes: int,
                       most: int = MOST) -> int:
    """Count the guests with equal NUMA nodes that fit on a host.

    :param counts: number of such guest nodes that each host node holds.
    :param guest_nodes: number of NUMA nodes of one guest.
    :param most: number at which counting ends.
    """
    counts = list(counts)
    while True:
        fitting = sum([count if count < most else most
                       for count in counts]) // guest_nodes
        if fitting >= most:
            return most
        most = fitting


def find_needed_nodes(counts: Mapping[int, int], guest_nodes: int,
                      most: int = MOST) -> frozenset[int]:
    """Return the host nodes that a guest should take so that most others fit.

    If a guest with equal NUMA nodes leaves out more of these host nodes than
    it must, at least one guest less fits in total.

    :param counts: number of guest nodes that each host node holds, by number
        of the host node.
    :param guest_nodes: number of NUMA nodes of one guest.
    :param most: number of guests for which the host as a whole has resources.
    :returns: empty if any host nodes will do.
    """
    guests = count_equal_guests(counts.values(), guest_nodes, most)
    spare = sum(min(count, guests)
                for count in counts.values()) - guest_nodes * guests
    needed = frozenset(node for node, count in counts.items()
                       if count >= guests > 0)
    return needed if len(needed) > spare else frozenset()


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
        found = _list_fitting_nodes(host, need.nodes[0])[:len(need.nodes)]
        return tuple(found) if len(found) == len(need.nodes) else None
    preferred = {part: _list_fitting_nodes(host, part) for part in need.kinds}
    choices = [preferred[part] for part in need.nodes]
    order = sorted(range(len(choices)), key=lambda one: len(choices[one]))
    return matching.match_items_to_places(choices, order)


def _list_fitting_nodes(host: Host, part: NodeNeed) -> list[int]:
    """Return the host nodes that hold a guest node, most of it first."""
    counts = [(-node.count_guest_nodes(part), node.number)
              for node in host.nodes]
    return [number for count, number in sorted(counts) if count]


def take_guests(host: Host, need: Need, guests: int) -> Host:
    """Return a host with the resources of several guests taken.

    The guests are placed one after the other, each on the host nodes that hold
    most of its nodes. Less is taken if not all fit.
    """
    if len(need.kinds) == 1:
        return _take_equal_guests(host, need, min(
            guests, host.count_without_nodes(need)))
    for _guest in range(guests):
        chosen = choose_host_nodes(host, need)
        if chosen is None:
            break
        host = host.take(need, chosen)
    return host


def _take_equal_guests(host: Host, need: Need, guests: int) -> Host:
    """Return a host with the resources of guests with equal nodes taken.

    Each guest node leaves room for one less.
    """
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
    return host.take_times(need, guests, {
        number: (part, times) for number, times in taken.items()})


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


def _count_by_placing(host: Host, need: Need, most: int) -> int:
    """Return how many guests fit if they are placed one after the other.

    :returns: a lower bound of the number that fits.
    """
    for guests in range(most):
        chosen = choose_host_nodes(host, need)
        if chosen is None:
            return guests
        host = host.take(need, chosen)
    return most


def _find_common_need(kinds: Sequence[NodeNeed]) -> NodeNeed:
    """Return what each of several guest NUMA nodes needs at least."""
    return NodeNeed(
        tuple(map(min, *(kind.amounts for kind in kinds))),
        tuple(FewOf(min(few.amount for few in alike),
                    tuple(dict.fromkeys(itertools.chain.from_iterable(
                        few.places for few in alike))), alike[0].may_span)
              for alike in zip(*(kind.few for kind in kinds), strict=False)),
        frozenset.intersection(*(kind.traits for kind in kinds)))


# -- guest nodes that differ --------------------------------------------------


def _search_largest_count(search: '_Search', least: int,
                          most: int) -> tuple[int, bool]:
    """Find the largest number of guests that fit, by bisection.

    :param least: number of guests that are known to fit.
    :param most: number of guests of which no more fit.
    :returns: number, and whether the search has come to its end.
    """
    while least < most:
        guests = (least + most + 1) // 2
        fits = search.can_hold(guests)
        if fits is None:
            return least, False
        least, most = (guests, most) if fits else (least, guests - 1)
    return least, True


class _Search:
    """Search for a division of guest nodes of several kinds among host nodes.

    :param kinds: number of guest nodes of each kind that one guest has.
    :param by_kind: for each kind, how many of it each host node holds alone.
    :param steps: limit of the search.
    """

    def __init__(self, nodes: Sequence[Node], kinds: Mapping[NodeNeed, int],
                 by_kind: Sequence[Sequence[int]], steps: int) -> None:
        self._nodes, self._kinds = nodes, list(kinds)
        self._numbers = list(kinds.values())
        self._by_kind, self._steps = by_kind, steps

    def can_hold(self, guests: int) -> bool | None:
        """Return whether the host nodes hold so many guests.

        :returns: None if the search has reached its limit of steps.
        """
        wanted = [guests * number for number in self._numbers]
        # Largest number of guest nodes of the last kind that are placed, by
        # the number of those of the other kinds.
        placed = {(0,) * (len(wanted) - 1): 0}
        for place, node in enumerate(self._nodes):
            rest = [want - sum(min(count, guests)
                               for count in counts[place + 1:])
                    for want, counts in zip(wanted, self._by_kind,
                                            strict=True)]
            ways = list(self._yield_ways(node, guests))
            self._steps -= len(ways) * len(placed)
            if self._steps < 0:
                return None
            found: dict[tuple[int, ...], int] = {}
            for before, (*others, last) in itertools.product(
                    placed.items(), ways):
                key = tuple(map(min, wanted, map(
                    int.__add__, before[0], others)))
                count = min(wanted[-1], before[1] + last)
                if count > found.get(key, -1) and all(
                        map(int.__ge__, (*key, count), rest)):
                    found[key] = count
            placed = found
        return bool(placed)

    def _yield_ways(self, node: Node, most: int,
                    kind: int = 0) -> Iterator[tuple[int, ...]]:
        """Yield numbers of guest nodes of each kind that a host node holds.

        The number of the last kind is the largest that is possible beside the
        others.

        :param most: number of guest nodes on the host node.
        :param kind: index of the first kind to place.
        """
        need = self._kinds[kind]
        count = min(most, node.count_guest_nodes(need))
        if kind == len(self._kinds) - 1:
            yield (count,)
            return
        for number in range(count + 1):
            self._steps -= _TAKE_STEPS
            if self._steps < 0:
                return
            for others in self._yield_ways(node.take(need, number),
                                           most - number, kind + 1):
                yield (number, *others)
