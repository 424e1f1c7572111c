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

"""L3 cache ways that guests reserve (pure).

A cache bit mask has a bit for each way (CAT of Intel and AMD) or portion
(MPAM). Guests get reserved ways from one end of the ways that they can
reserve. The host and all other guests share the remaining ways. The shared
ways, and those of each guest, are contiguous, because some kernels and
processors refuse other masks (``info/L3/sparse_masks``).

Guests cannot reserve the ways that devices write into
(``info/L3/shareable_bits``, and with ``io_alloc`` those of
``info/L3/bit_usage`` that hardware uses), as
Documentation/filesystems/resctrl.rst advises. Nor can they reserve ways of a
control group in mode exclusive, because the kernel refuses to give these to
another group.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import functools
import operator
from pathlib import Path

from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement.base import decimals

#: Names of the schemata lines for L3 ways, and whether their domains are NUMA
#: nodes. With CDP there are two lines, which get the same values; OLK-5.10 has
#: a line of its own for the portions (mpam_resctrl.c).
_LINES = ((('L3',), False), (('L3CODE', 'L3DATA'), False),
          (('L3PBM',), True))

#: Directory in info/ that describes the ways, by first of these lines.
_INFO = {'L3': 'L3', 'L3CODE': 'L3CODE', 'L3PBM': 'L3'}


@dataclass(frozen=True)
class Cache:
    """Ways of a host's L3 caches, and those that guests can reserve.

    All sets of ways are bit masks, which apply to each L3 cache of the host.

    :param lines: names of the schemata lines for L3 ways. With CDP there are
        two, which always get the same values.
    :param mask: all ways of a cache.
    :param region: ways that guests can reserve for themselves.
    :param least: minimum number of ways of a control group.
    :param domains_by_node: ids of the caches of each host NUMA node. Nodes
        that share a cache are left out.
    :param exclusive: ways, by id of the cache, that other software uses in a
        control group of mode ``exclusive``. No other group can get them.
    """

    lines: tuple[str, ...]
    mask: int
    region: int
    least: int
    domains_by_node: Mapping[int, tuple[int, ...]] = field(
        default_factory=dict)
    exclusive: Mapping[int, int] = field(default_factory=dict)

    @property
    def longest_free_mask(self) -> int:
        """Longest run of adjacent L3 cache ways that no group reserves.

        The value is a bit mask of the ways.
        """
        return find_longest_free_run(self.mask, self.exclusive)

    @property
    def prefers_low_ways(self) -> bool:
        """Whether guests get the lowest free L3 cache ways first.

        Otherwise they get the highest free ways first.
        """
        below = self.longest_free_mask & ((self.region & -self.region) - 1)
        above = self.longest_free_mask >> self.region.bit_length()
        return above.bit_count() >= below.bit_count()

    @property
    def way_count(self) -> int:
        """Number of ways of each L3 cache that guests can reserve."""
        return self.region.bit_count()

    @property
    def domains(self) -> frozenset[int]:
        """Ids of the L3 caches in which guests can reserve ways."""
        return frozenset(domain for domains in self.domains_by_node.values()
                         for domain in domains)


def read_caches(
    info: Mapping[str, str], root: schemata.Schemata, sysfs: Path, shared: int
) -> tuple[Cache | None, tuple[str, ...]]:
    """Return the L3 caches of a host, with the ways that guests can reserve.

    A way is a part of a cache that can be allocated to a control group.

    :param info: text of the files below resctrl's info/, by path.
    :param root: schemata of the root group.
    :param sysfs: mount point of sysfs.
    :param shared: minimum number of ways that stay shared by all guests.
    :returns: the caches, and no notes; None and the reasons if guests cannot
        reserve ways. There is no reason if the kernel allocates no ways.
    """
    for lines, of_nodes in _LINES:
        top = _INFO[lines[0]]
        mask = _parse_mask(info.get(f'{top}/cbm_mask', ''))
        found = root.line(lines[0])
        if not mask or found is None or any(
                root.line(line) is None for line in lines):
            continue
        least = max(1, _parse_count(info.get(f'{top}/min_cbm_bits', '')))
        exclusive = _parse_marked_ways_by_cache(
            info.get(f'{top}/bit_usage', ''), 'E')
        free = find_longest_free_run(mask, exclusive)
        devices = _read_device_ways(info, top, mask)
        region = choose_guest_ways(free, devices, max(least, shared))
        by_node = _map_unshared_caches(frozenset(
            domain for domain, _value in found.values), sysfs, of_nodes)
        if region.bit_count() < least:
            return None, (
                f'guests cannot reserve L3 ways: of {mask.bit_count()} ways, '
                f'{free.bit_count()} adjacent ones are in no exclusive group, '
                f'devices use {devices.bit_count()}, and '
                f'{max(least, shared)} adjacent ways must stay shared',)
        if not by_node:
            return None, ('guests cannot reserve L3 ways: no host NUMA node '
                          'has L3 caches of its own',)
        return Cache(lines, mask, region, least, by_node, exclusive), ()
    return None, ()


def _read_device_ways(info: Mapping[str, str], top: str, mask: int) -> int:
    """Return the L3 ways that devices write into, as a bit mask.

    :param top: directory of info/ that describes the ways.
    :param mask: all ways of a cache.
    """
    devices = mask & (
        _parse_mask(info.get(f'{top}/shareable_bits', ''))
        | _parse_marked_ways(info.get(f'{top}/bit_usage', ''), 'HX'))
    # MPAM shows all of them as shareable (mpam_resctrl.c), and so does
    # io_alloc until its mask is made smaller: the rest can be no place for
    # devices then.
    return 0 if devices == mask else devices


def count_ways(info: Mapping[str, str]) -> int:
    """Return the number of ways of each L3 cache.

    :param info: text of the files below resctrl's info/, by path.
    :returns: 0 if the kernel allocates no ways.
    """
    return max(_parse_mask(info.get(f'{top}/cbm_mask', '')).bit_count()
               for top in _INFO.values())


def _parse_marked_ways(usage: str, letters: str) -> int:
    """Return the L3 ways that info/L3/bit_usage marks with certain letters.

    The kernel marks ways that hardware uses with ``H`` or ``X``, and ways of
    control groups in mode exclusive with ``E``.

    :param usage: text of info/L3/bit_usage.
    :param letters: the letters.
    :returns: bit mask of the marked ways of all caches together.
    """
    return functools.reduce(
        operator.or_, _parse_marked_ways_by_cache(usage, letters).values(), 0
    )


def _parse_marked_ways_by_cache(usage: str, letters: str) -> dict[int, int]:
    found = {}
    for cache in usage.split(';'):
        domain, _equals, ways = cache.strip().partition('=')
        used = sum(1 << place for place, letter
                   in enumerate(reversed(ways)) if letter in letters)
        number = decimals.parse_decimal(domain)
        if used and number is not None:
            found[number] = used
    return found


def find_longest_free_run(mask: int, exclusive: Mapping[int, int]) -> int:
    """Return the longest run of adjacent L3 ways that no group reserves.

    A group reserves ways by its mode ``exclusive``.

    :param mask: bit mask of the ways to choose from.
    :param exclusive: bit mask of ways in mode exclusive, by cache.
    :returns: bit mask of the run.
    """
    return find_longest_bit_run(mask & ~functools.reduce(
        operator.or_, exclusive.values(), 0))


def choose_guest_ways(free: int, device_ways: int, shared: int) -> int:
    """Choose the L3 cache ways that guests may reserve for themselves.

    The chosen ways are adjacent, and no device writes into them. Enough ways
    below or above them stay shared.

    :param free: bit mask of the free ways, which are adjacent.
    :param device_ways: bit mask of ways that devices write into.
    :param shared: minimum number of adjacent ways that stay shared by all
        guests.
    :returns: bit mask of the chosen ways.
    """
    first = (free & -free).bit_length() - 1
    end = free.bit_length()
    best = 0
    for run in iterate_bit_runs(free & ~device_ways):
        low, high = (run & -run).bit_length() - 1, run.bit_length()
        # The lowest ways of the run, with shared ways above, and vice versa.
        for start, stop in ((low, min(high, end - shared)),
                            (max(low, first + shared), high)):
            if stop - start > best.bit_count():
                best = make_low_bits_mask(stop - start) << start
    return best


def make_low_bits_mask(ways: int) -> int:
    """Return a bit mask whose lowest bits are set.

    :param ways: number of bits.
    """
    return (1 << ways) - 1


def is_contiguous(mask: int) -> bool:
    """Whether the set bits of an L3 cache bit mask are contiguous."""
    return mask > 0 and (mask >> (mask & -mask).bit_length() - 1
                         ) & ((mask >> (mask & -mask).bit_length() - 1) + 1
                              ) == 0


def compute_unreserved_ways(
    cache: Cache, masks: Mapping[str, int], domain: int
) -> int:
    """Return the L3 ways of one cache that no control group has reserved.

    All control groups without reserved ways share these ways.

    :param masks: bit mask of exclusive ways on this cache, by control group.
    :param domain: id of the cache.
    :returns: bit mask of the unreserved ways.
    """
    used = functools.reduce(operator.or_, masks.values(), 0)
    left = cache.mask
    if used and cache.prefers_low_ways:
        left &= ~make_low_bits_mask(used.bit_length())
    elif used:
        left &= (used & -used) - 1
    taken = cache.exclusive.get(domain, 0)
    return find_longest_bit_run(left & ~taken) if left & taken else left


def find_longest_bit_run(mask: int) -> int:
    """Return the longest run of adjacent set bits of a mask, as a mask.

    If several runs are equally long, the lowest is returned.
    """
    return max(iterate_bit_runs(mask), key=int.bit_count, default=0)


def iterate_bit_runs(mask: int) -> Iterator[int]:
    """Yield each run of adjacent set bits of a mask, as a mask, lowest first.
    """
    while mask:
        run = mask & ~(mask + (mask & -mask))
        mask &= ~run
        yield run


def assign_reserved_masks(
    cache: Cache, wanted: Mapping[str, int], current: Mapping[str, int]
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
    cache: Cache, wanted: Mapping[str, int], current: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    taken = 0
    for name in sorted(wanted):
        mask = current.get(name, 0)
        if (mask.bit_count() == wanted[name] and is_contiguous(mask)
                and not mask & ~cache.region and not mask & taken):
            taken |= mask
            yield name, mask


def _add_outermost_masks(cache: Cache, masks: Mapping[str, int],
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


def _list_candidate_masks(cache: Cache, ways: int) -> list[int]:
    """Return all bit masks of a number of adjacent L3 ways.

    The masks are in the order in which guests get them: ascending if guests
    get low ways first, otherwise descending.

    :param ways: number of ways in each mask.
    """
    first = (cache.region & -cache.region).bit_length() - 1
    spans = [make_low_bits_mask(ways) << place
             for place in range(first, first + cache.way_count - ways + 1)]
    return spans if cache.prefers_low_ways else spans[::-1]


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


def describe_shared_ways(cache: Cache, domains: Iterable[int],
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
    cache: Cache, group: schemata.Schemata, root: schemata.Schemata
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


def make_mask_order_key(cache: Cache, mask: int) -> int:
    """Return a sort key that orders L3 bit masks as guests get them.

    If guests get low ways first, the lowest mask comes first, otherwise the
    highest.
    """
    return mask if cache.prefers_low_ways else -mask


def _map_unshared_caches(domains: frozenset[int], sysfs: Path,
                         ids_are_nodes: bool) -> dict[int, tuple[int, ...]]:
    """Return the L3 caches of each host NUMA node that has its own caches.

    A node is left out if it shares a cache with another node, or if one of
    its caches is unknown.

    :param domains: ids of caches in the schemata.
    :param ids_are_nodes: whether these ids are numbers of NUMA nodes.
    :returns: ids of the caches, by node.
    """
    by_node: dict[int, set[int]] = {}
    for node, path in sysfs_files.iterate_numa_nodes(sysfs):
        cpus = sysfs_files.read_node_cpus(path)
        found = {node} if ids_are_nodes else set(
            sysfs_files.iterate_l3_caches(sysfs, cpus))
        if cpus and None not in found and found <= domains:
            by_node[node] = {one for one in found if one is not None}
    return {node: tuple(sorted(mine)) for node, mine in by_node.items()
            if mine and not any(mine & others for other, others
                                in by_node.items() if other != node)}


def _parse_mask(text: str) -> int:
    try:
        return int(text.strip() or '0', 16)
    except ValueError:
        return 0


def _parse_count(text: str) -> int:
    return decimals.parse_decimal(text) or 0
