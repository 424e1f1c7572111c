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

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TypeVar

Place = TypeVar('Place', bound=Hashable)


def match(choices: Sequence[Sequence[Place]],
          order: Iterable[int] | None = None) -> tuple[Place, ...] | None:
    """Return a distinct place for each item; None if there is no such way.

    Each item takes its first choice that is free. An item that finds all its
    choices taken makes another item give way that can go elsewhere.

    :param choices: places by item, the preferred ones first.
    :param order: items in the order in which they choose; by number if left
        out.
    """
    item_at: dict[Place, int] = {}
    for item in range(len(choices)) if order is None else order:
        if not _augment(choices, item, item_at, set()):
            return None
    place_of = {item: place for place, item in item_at.items()}
    return tuple(place_of[item] for item in range(len(choices)))


def _augment(choices: Sequence[Sequence[Place]], item: int,
             item_at: dict[Place, int], seen: set[Place]) -> bool:
    """Give an item a place, moving other items; False if impossible.

    :param item_at: item by place, changed in place.
    :param seen: places that have been tried for this path.
    """
    for place in choices[item]:
        if place not in item_at:
            item_at[place] = item
            return True
    for place in choices[item]:
        if place in seen:
            continue
        seen.add(place)
        if _augment(choices, item_at[place], item_at, seen):
            item_at[place] = item
            return True
    return False
