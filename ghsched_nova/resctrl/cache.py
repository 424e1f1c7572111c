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

"""Ways of the L3 that guests have to themselves (pure).

A cache bit mask has a bit for each way (CAT of Intel and AMD) or portion
(MPAM). Guests get theirs from one end of the mask, the host and all guests
that ask for none have the rest: what is not in use by then, too. Both are
without gaps, so that they are taken by kernels and processors that have no
sparse masks (``info/L3/sparse_masks``).

The ways that devices write into (``info/L3/shareable_bits``, and with
``io_alloc`` those of ``info/L3/bit_usage`` that hardware uses) stay with the
rest, as Documentation/filesystems/resctrl.rst advises.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement import decimals

#: The lines that can hold the ways of an L3, and whether their domains are
#: NUMA nodes. With CDP there are two, which get the same; OLK-5.10 has a line
#: of its own for the portions (mpam_resctrl.c).
_LINES = ((('L3',), False), (('L3CODE', 'L3DATA'), False),
          (('L3PBM',), True))

#: Where resctrl describes them, by the first of the lines.
_INFO = {'L3': 'L3', 'L3CODE': 'L3CODE', 'L3PBM': 'L3'}


@dataclass(frozen=True)
class Cache:
    """What the L3 caches of a host can be divided into.

    :param lines: of schemata, all of which hold the same.
    :param mask: all ways.
    :param region: those that guests can have to themselves.
    :param least: the fewest ways of a mask.
    :param domains_by_node: caches of each host NUMA node that shares none of
        them with another node.
    """

    lines: tuple[str, ...]
    mask: int
    region: int
    least: int
    domains_by_node: Mapping[int, tuple[int, ...]] = field(
        default_factory=dict)

    @property
    def ways(self) -> int:
        """How many ways of one L3 guests can have."""
        return self.region.bit_count()

    @property
    def domains(self) -> frozenset[int]:
        return frozenset(domain for domains in self.domains_by_node.values()
                         for domain in domains)


def read(info: Mapping[str, str], root: schemata.Schemata, sysfs: Path,
         shared: int) -> Cache | None:
    """The L3 caches of a host; None where they cannot be divided.

    :param info: files of info/, by path in there.
    :param shared: how many ways are left to all at least.
    """
    for lines, of_nodes in _LINES:
        top = _INFO[lines[0]]
        mask = _mask(info.get(f'{top}/cbm_mask', ''))
        found = root.line(lines[0])
        if not mask or found is None or any(
                root.line(line) is None for line in lines):
            continue
        least = max(1, _count(info.get(f'{top}/min_cbm_bits', '')))
        taken = (_mask(info.get(f'{top}/shareable_bits', ''))
                 | _of_devices(info.get(f'{top}/bit_usage', '')))
        # OLK-5.10 shows all of them as shareable (mpam_resctrl.c), and so
        # does io_alloc until its mask is made smaller: the rest can be no
        # place for devices then.
        region = region_of(mask, 0 if taken == mask else taken,
                           max(least, shared))
        domains = frozenset(domain for domain, _value in found.values)
        by_node = _private(domains, sysfs, of_nodes)
        if region.bit_count() < least or not by_node:
            return None
        return Cache(lines, mask, region, least, by_node)
    return None


def _of_devices(usage: str) -> int:
    """The ways that hardware uses on some cache (``H``, ``X``)."""
    taken = 0
    for cache in usage.split(';'):
        for place, letter in enumerate(reversed(
                cache.partition('=')[2].strip())):
            taken |= (letter in 'HX') << place
    return taken


def region_of(mask: int, taken: int, shared: int) -> int:
    """The ways for guests: all of one end of a mask but those that are taken.

    :param taken: ways that devices write into.
    :param shared: how many ways are left to all at least.
    """
    width = mask.bit_length()
    bits = [bool(taken >> bit & 1) or not mask >> bit & 1
            for bit in range(width)]
    low = bits.index(True) if True in bits else width
    high = bits[::-1].index(True) if True in bits else width
    ways = max(0, min(max(low, high), mask.bit_count() - shared))
    return span(ways) if low >= high else span(ways) << (width - ways)


def span(ways: int) -> int:
    """So many ways, from the first on."""
    return (1 << ways) - 1


def is_whole(mask: int) -> bool:
    """Whether a mask has no gap, and any bit."""
    return mask > 0 and (mask >> (mask & -mask).bit_length() - 1
                         ) & ((mask >> (mask & -mask).bit_length() - 1) + 1
                              ) == 0


def rest(cache: Cache, masks: Mapping[str, int]) -> int:
    """The ways of all others than the guests that have some."""
    used = 0
    for mask in masks.values():
        used |= mask
    if not used:
        return cache.mask
    if cache.region & 1:
        return cache.mask & ~span(used.bit_length())
    return cache.mask & ((used & -used) - 1)


def assign(cache: Cache, wanted: Mapping[str, int],
           held: Mapping[str, int]) -> dict[str, int]:
    """A mask for each group, on one cache; those that are right are kept.

    Where the ways that are free are not next to each other, guests are moved
    together: a mask can be changed at any time, at the price of a cold
    cache.

    :param wanted: ways by group.
    :param held: the masks that the groups have.
    :returns: without groups for which there is no room.
    """
    kept = dict(_kept(cache, wanted, held))
    new = [name for name in sorted(wanted) if name not in kept]
    found = _filled(cache, kept, {name: wanted[name] for name in new})
    if len(found) == len(wanted):
        return found
    order = sorted(kept, key=lambda name: _place(cache, kept[name]))
    return _filled(cache, {}, {name: wanted[name] for name in [*order, *new]})


def _kept(cache: Cache, wanted: Mapping[str, int],
          held: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    taken = 0
    for name in sorted(wanted):
        mask = held.get(name, 0)
        if (mask.bit_count() == wanted[name] and is_whole(mask)
                and not mask & ~cache.region and not mask & taken):
            taken |= mask
            yield name, mask


def _filled(cache: Cache, masks: Mapping[str, int],
            wanted: Mapping[str, int]) -> dict[str, int]:
    """With a mask of each further group that finds room, the outermost."""
    found = dict(masks)
    taken = 0
    for mask in masks.values():
        taken |= mask
    for name, ways in wanted.items():
        free = [mask for mask in _spans(cache, ways) if not mask & taken]
        if free:
            found[name] = free[0]
            taken |= free[0]
    return found


def _spans(cache: Cache, ways: int) -> list[int]:
    """All masks of so many ways for guests, from the end of the mask on."""
    first = (cache.region & -cache.region).bit_length() - 1
    spans = [span(ways) << place
             for place in range(first, first + cache.ways - ways + 1)]
    return spans if cache.region & 1 else spans[::-1]


def _place(cache: Cache, mask: int) -> int:
    return mask if cache.region & 1 else -mask


def _private(domains: frozenset[int], sysfs: Path,
             of_nodes: bool) -> dict[int, tuple[int, ...]]:
    """The caches of each node that no other node has a part in."""
    by_node: dict[int, set[int]] = {}
    for node, path in sysfs_files.nodes(sysfs):
        cpus = sysfs_files.cpus_of(path)
        found = {node} if of_nodes else set(
            sysfs_files.l3_caches(sysfs, cpus))
        if cpus and None not in found and found <= domains:
            by_node[node] = {one for one in found if one is not None}
    return {node: tuple(sorted(mine)) for node, mine in by_node.items()
            if mine and not any(mine & others for other, others
                                in by_node.items() if other != node)}


def _mask(text: str) -> int:
    try:
        return int(text.strip() or '0', 16)
    except ValueError:
        return 0


def _count(text: str) -> int:
    return decimals.decimal(text) or 0
