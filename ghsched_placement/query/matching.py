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

"""Bipartite matching: a place of its own for each item (pure).

The items are mostly guest NUMA nodes and the places host NUMA nodes. Whether
all items have a place is decided by augmenting paths (Kuhn's algorithm), in a
time that grows with the product of items and choices, never exponentially.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import heapq
import itertools
import math
from typing import Any
from typing import TypeAlias
from typing import TypeVar

Place = TypeVar('Place', bound=Hashable)

#: Cost of each place that an item may have, by item.
Costs: TypeAlias = Sequence[Mapping[int, int]]

#: Returns the part of an assignment's sort key after the cost, see
#: :func:`yield_assignments_by_cost`.
TieBreak: TypeAlias = Callable[[Sequence[int]], tuple[Any, ...]]


#: Number of steps that take as long as storing one longer prefix of an
#: assignment.
PREFIX_STEPS = 5


class Steps:
    """Counter of the steps of a search, with a limit that ends the search.

    :param limit: number of steps after which the search should end.
    :ivar taken: number of steps taken so far.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self.taken = 0
        self.limit = limit

    @property
    def has_steps_left(self) -> bool:
        """Whether the search has not reached its limit of steps yet."""
        return self.taken < self.limit


def match_items_to_places(choices: Sequence[Collection[Place]],
                          order: Iterable[int] | None = None
                          ) -> tuple[Place, ...] | None:
    """Assign each item a place that it accepts, no two items the same place.

    Items are guest NUMA nodes and places are host NUMA nodes, for instance.

    :param choices: places that each item accepts, the preferred first.
    :param order: order in which items choose; None for the order of
        ``choices``.
    :returns: place of each item; None if there is no such assignment.
    """
    item_at: dict[Place, int] = {}
    for item in range(len(choices)) if order is None else order:
        if not _augment_matching(choices, item, item_at, set(), Steps()):
            return None
    place_of = {item: place for place, item in item_at.items()}
    return tuple(place_of[item] for item in range(len(choices)))


def _augment_matching(choices: Sequence[Collection[Place]], item: int,
                      item_at: dict[Place, int], seen: set[Place],
                      steps: Steps) -> bool:
    """Assign a place to one more item, reassigning other items if needed.

    :param choices: places that each item accepts.
    :param item: index of the item.
    :param item_at: item by place, changed in place.
    :param seen: places that have been tried.
    :param steps: counts the steps of the search.
    :returns: whether the item has got a place.
    """
    steps.taken += len(choices[item])
    for place in choices[item]:
        if place not in item_at:
            item_at[place] = item
            return True
    for place in choices[item]:
        if place in seen:
            continue
        seen.add(place)
        if _augment_matching(choices, item_at[place], item_at, seen, steps):
            item_at[place] = item
            return True
    return False


#: The last place of a path, the distance of each place that is as near as
#: that, and the place before each place.
_Path: TypeAlias = tuple[int, dict[int, int], dict[int, int | None]]


@dataclass(frozen=True)
class CheapestAssignment:
    """Assignment of items to places with the lowest total cost.

    The potentials are a proof that no other assignment costs less: the cost of
    any choice minus the potentials of its item and its place is never
    negative, and it is 0 for each choice of this assignment (Hungarian
    method).

    :param item_at: item by place.
    :param of_item: potential of each item.
    :param of_place: potential by place.
    """

    item_at: Mapping[int, int]
    of_item: Sequence[int]
    of_place: Mapping[int, int]

    def list_places(self) -> tuple[int, ...]:
        """Return to which place each item is assigned, in item order.

        Items are guest NUMA nodes, for example, and places host NUMA nodes.
        """
        place_of = {item: place for place, item in self.item_at.items()}
        return tuple(place_of[item] for item in range(len(place_of)))

    def get_excess_cost(self, item: int, place: int, cost: int) -> int:
        """Return by how much the total cost rises at least if an item moves.

        The rise may be larger, because other items may have to change their
        places, too.

        :param item: index of the item.
        :param place: place to which the item moves.
        :param cost: cost of the item in that place.
        """
        return cost - self.of_item[item] - self.of_place[place]


def find_cheapest_assignment(costs: Costs,
                             steps: Steps) -> CheapestAssignment | None:
    """Assign each item a place of its own so that the total cost is lowest.

    :param costs: for each item, the cost of each place that it may have.
    :param steps: counts the steps of the search (Hungarian method).
    :returns: None if the items cannot all have a place of their own.
    """
    of_item = [0] * len(costs)
    of_place = dict.fromkeys(itertools.chain.from_iterable(costs), 0)
    item_at: dict[int, int] = {}
    for item in range(len(costs)):
        path = _find_augmenting_path(
            costs, item, CheapestAssignment(item_at, of_item, of_place), steps)
        if path is None:
            return None
        place, distance, before = path
        of_item[item] += distance[place]
        for other, near in distance.items():
            if other in item_at:
                of_item[item_at[other]] += distance[place] - near
                of_place[other] -= distance[place] - near
        while (previous := before[place]) is not None:
            item_at[place], place = item_at[previous], previous
        item_at[place] = item
    return CheapestAssignment(item_at, of_item, of_place)


def _find_augmenting_path(costs: Costs, item: int, known: CheapestAssignment,
                          steps: Steps) -> _Path | None:
    """Find the cheapest way to give one more item a place.

    If other items must change their places for this, the result says which (an
    augmenting path).

    :param costs: for each item, the cost of each place that it may have.
    :param item: item without a place.
    :param known: cheapest assignment of the items before it.
    :param steps: counts the steps of the search.
    :returns: None if the item cannot have a place.
    """
    near: dict[int, int] = {}
    done: dict[int, int] = {}
    before: dict[int, int | None] = {}
    last, base = None, 0
    while True:
        steps.taken += len(costs[item])
        for place, cost in costs[item].items():
            distance = base + known.get_excess_cost(item, place, cost)
            if place not in done and distance < near.get(place, distance + 1):
                near[place], before[place] = distance, last
        if not near:
            return None
        last = min(near, key=near.__getitem__)
        base = done[last] = near.pop(last)
        if last not in known.item_at:
            return last, done, before
        item = known.item_at[last]


def yield_assignments_by_cost(costs: Costs, tie_break: TieBreak, steps: Steps
                              ) -> Iterator[tuple[tuple[Any, ...],
                                                  tuple[int, ...]]]:
    """Yield assignments of items to different places, the cheapest first.

    :param costs: for each item, the cost of each place that it may have.
    :param tie_break: returns the key by which assignments of equal cost are
        sorted, from the places of all items. From the places of only the first
        items, it returns a lower bound of this key.
    :param steps: limit of the search. If it is reached before the first
        result, only one of the cheapest assignments is yielded.
    :returns: cost and key, and place of each item.
    """
    best = find_cheapest_assignment(costs, steps)
    if best is None:
        return
    least = _sum_costs(costs, best.list_places())
    ways: list[Any] = [((least, *tie_break(())), (), best.item_at)]
    is_first = True
    while ways and (steps.has_steps_left or is_first):
        if not steps.has_steps_left:
            yield (least, *tie_break(best.list_places())), best.list_places()
            return
        key, places, item_at = heapq.heappop(ways)
        moved = _complete_assignment(costs, places, item_at, steps)
        if moved is None:
            continue
        item = len(places)
        if item == len(costs):
            is_first = False
            yield key, places
            continue
        for place, cost in costs[item].items():
            if moved.get(place, item) < item:
                continue
            steps.taken += PREFIX_STEPS
            longer = (*places, place)
            bound = (key[0] + best.get_excess_cost(item, place, cost)
                     if item + 1 < len(costs) else _sum_costs(costs, longer))
            heapq.heappush(ways, ((bound, *tie_break(longer)), longer, moved))


def _sum_costs(costs: Costs, places: Sequence[int]) -> int:
    return sum(of_item[place]
               for of_item, place in zip(costs, places, strict=True))


def _complete_assignment(costs: Costs, places: Sequence[int],
                         item_at: Mapping[int, int],
                         steps: Steps) -> Mapping[int, int] | None:
    """Return an assignment of all items, with the first ones in given places.

    :param costs: for each item, the cost of each place that it may have.
    :param places: places of the first items.
    :param item_at: assignment of all items, as item by place, in which all of
        the first items but the last have these places.
    :param steps: counts the steps of the search.
    :returns: item by place; None if there is no such assignment.
    """
    if not places:
        return item_at
    item, place = len(places) - 1, places[-1]
    other = item_at.get(place)
    if other == item:
        return item_at
    steps.taken += len(item_at)
    moved = {at: one for at, one in item_at.items() if one != item}
    moved[place] = item
    if other is None or _augment_matching(costs, other, moved, set(places),
                                          steps):
        return moved
    return None
