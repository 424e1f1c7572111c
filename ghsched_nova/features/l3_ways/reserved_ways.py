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

"""Ways of L3 caches that control groups of guests reserve (pure).

The host and all guests that reserve none share the remaining ways. The shared
ways, and those of each guest, are contiguous, because some kernels and
processors refuse other masks (``info/L3/sparse_masks``).
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
import operator

from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl.cache_facts import find_longest_bit_run
from ghsched_nova.resctrl.cache_facts import find_longest_free_run
from ghsched_nova.resctrl.cache_facts import make_low_bits_mask
from ghsched_nova.resctrl import schemata


def is_contiguous(mask: int) -> bool:
    """Whether the set bits of an L3 cache bit mask are contiguous."""
    return mask > 0 and (mask >> (mask & -mask).bit_length() - 1
                         ) & ((mask >> (mask & -mask).bit_length() - 1) + 1
                              ) == 0


def _prefers_low_ways(cache: CacheWays) -> bool:
    """Return whether guests get the lowest free L3 cache ways first.

    Otherwise they get the highest free ways first.
    """
    free = find_longest_free_run(cache.mask, cache.exclusive)
    below = free & ((cache.region & -cache.region) - 1)
    above = free >> cache.region.bit_length()
    return above.bit_count() >= below.bit_count()


def compute_unreserved_ways(
    cache: CacheWays, masks: Mapping[str, int], domain: int
) -> int:
    """Return the L3 ways of one cache that no control group has reserved.

    All control groups without reserved ways share these ways.

    :param masks: bit mask of exclusive ways on this cache, by control group.
    :param domain: id of the cache.
    :returns: bit mask of the unreserved ways.
    """
    used = functools.reduce(operator.or_, masks.values(), 0)
    left = cache.mask
    if used and _prefers_low_ways(cache):
        left &= ~make_low_bits_mask(used.bit_length())
    elif used:
        left &= (used & -used) - 1
    taken = cache.exclusive.get(domain, 0)
    return find_longest_bit_run(left & ~taken) if left & taken else left


def assign_reserved_masks(
    cache: CacheWays, wanted: Mapping[str, int], current: Mapping[str, int]
) -> dict[str, int]:
    """Assign reserved L3 ways of one cache to control groups.

    A group keeps its present ways if they are valid. If the free ways are not
    contiguous, all groups get new ways, so that the free ways become
    contiguous.

    :param wanted: number of exclusive ways by control group.
    :param current: present bit mask by control group.
    :returns: bit mask by control group. A group is left out if there are not
        enough ways for it.
    """
    kept = dict(_find_valid_masks(cache, wanted, current))
    new = [name for name in sorted(wanted) if name not in kept]
    found = _add_outermost_masks(
        cache, kept, {name: wanted[name] for name in new}
    )
    if len(found) == len(wanted):
        return found
    order = sorted(
        kept, key=lambda name: make_mask_order_key(cache, kept[name])
    )
    return _add_outermost_masks(
        cache, {}, {name: wanted[name] for name in [*order, *new]}
    )


def _find_valid_masks(
    cache: CacheWays, wanted: Mapping[str, int], current: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    taken = 0
    for name in sorted(wanted):
        mask = current.get(name, 0)
        if (mask.bit_count() == wanted[name] and is_contiguous(mask)
                and not mask & ~cache.region and not mask & taken):
            taken |= mask
            yield name, mask


def _add_outermost_masks(cache: CacheWays, masks: Mapping[str, int],
                         wanted: Mapping[str, int]) -> dict[str, int]:
    """Assign free L3 ways of one cache to further control groups.

    Each group gets the free ways that are nearest to the end of the cache at
    which guests get ways first. This keeps the remaining free ways contiguous.
    A group for which too few adjacent ways are free gets none.

    :param masks: bit masks of the groups that have one already.
    :param wanted: number of exclusive ways of each further group.
    :returns: bit masks of all groups.
    """
    found = dict(masks)
    taken = 0
    for mask in masks.values():
        taken |= mask
    for name, ways in wanted.items():
        free = [
            mask
            for mask in _list_candidate_masks(cache, ways)
            if not mask & taken
        ]
        if free:
            found[name] = free[0]
            taken |= free[0]
    return found


def _list_candidate_masks(cache: CacheWays, ways: int) -> list[int]:
    """Return all bit masks of a number of adjacent L3 ways.

    The masks are in the order in which guests get them: ascending if guests
    get low ways first, otherwise descending.

    :param ways: number of ways in each mask.
    """
    first = (cache.region & -cache.region).bit_length() - 1
    spans = [make_low_bits_mask(ways) << place
             for place in range(first, first + cache.way_count - ways + 1)]
    return spans if _prefers_low_ways(cache) else spans[::-1]


def get_group_mask(group: schemata.Schemata, line: str, domain: int) -> int:
    """Return a control group's bit mask of ways on one L3 cache.

    :param group: schemata of the control group.
    :param line: name of the schemata line.
    :param domain: id of the cache.
    :returns: 0 if the mask is unknown.
    """
    try:
        return (group.values(line, 16) or {}).get(domain, 0)
    except schemata.SchemataError:
        return 0


def describe_shared_ways(cache: CacheWays, domains: Iterable[int],
                         first: schemata.Schemata,
                         second: schemata.Schemata) -> str:
    """Describe the L3 cache ways that two control groups share.

    :param cache: L3 caches of the host.
    :param domains: ids of the caches to compare.
    :param first: schemata of the first group.
    :param second: schemata of the second group.
    :returns: an empty text if they share none.
    """
    found = []
    for domain in sorted(domains):
        both = functools.reduce(
            operator.or_,
            (
                get_group_mask(first, line, domain)
                & get_group_mask(second, line, domain)
                for line in cache.lines
            ),
        )
        if both:
            found.append(f'{both.bit_count()} ways of L3 {domain}')
    return ' and '.join(found)


def list_unshared_caches(
    cache: CacheWays, group: schemata.Schemata, root: schemata.Schemata
) -> list[int]:
    """Return the L3 caches in which a group shares no way with the root group.

    The root group is the kernel's default control group. Caches in which the
    control group has no way are left out.

    :param group: schemata of the control group.
    :param root: schemata of the root group.
    :returns: ids of the caches.
    """
    line = cache.lines[0]
    return [domain for domain in sorted(cache.domains)
            if get_group_mask(group, line, domain)
            and not get_group_mask(group, line, domain)
            & get_group_mask(root, line, domain)]


def make_mask_order_key(cache: CacheWays, mask: int) -> int:
    """Return a sort key that orders L3 bit masks as guests get them.

    If guests get low ways first, the lowest mask comes first, otherwise the
    highest.
    """
    return mask if _prefers_low_ways(cache) else -mask
