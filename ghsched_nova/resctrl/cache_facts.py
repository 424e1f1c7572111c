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

"""L3 caches of a host that the kernel divides in ways, as resctrl shows them.

A cache bit mask has a bit for each way (CAT of Intel and AMD) or portion
(MPAM). Guests can reserve ways from one end of a cache. They cannot reserve
the ways that devices write into (``info/L3/shareable_bits``, and with
``io_alloc`` those of ``info/L3/bit_usage`` that hardware uses), as
Documentation/filesystems/resctrl.rst advises. Nor can they reserve ways of a
control group in mode exclusive, because the kernel refuses to give these to
another group.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import functools
import operator
from pathlib import Path
from typing import Annotated

from ghsched_nova.base import bounds
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

#: Ways of a cache, as a bit mask. The kernel has 32 bits for it.
Mask = Annotated[int, bounds.Range(1, 2 ** 32 - 1)]


@dataclass(frozen=True)
class CacheWays:
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

    lines: Sequence[schemata.LineName]
    mask: Mask
    region: Mask
    least: Mask
    domains_by_node: Mapping[schemata.Number,
                             Sequence[schemata.Number]] = field(
        default_factory=dict)
    exclusive: Mapping[schemata.Number, Mask] = field(default_factory=dict)

    @property
    def is_consistent(self) -> bool:
        """Whether all sets of ways are ways of the cache."""
        return not (self.region & ~self.mask or any(
            taken & ~self.mask for taken in self.exclusive.values()))

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
) -> tuple[CacheWays | None, tuple[str, ...]]:
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
        return CacheWays(lines, mask, region, least, by_node, exclusive), ()
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
        found = {node} if ids_are_nodes else {
            number for number, _cpus
            in sysfs_files.iterate_l3_caches(sysfs, cpus)}
        if cpus and None not in found and found <= domains:
            by_node[node] = {one for one in found if one is not None}
    return {node: tuple(sorted(mine)) for node, mine in by_node.items()
            if mine and not any(mine & others for other, others
                                in by_node.items() if other != node)}


def _parse_mask(text: str) -> int:
    try:
        mask = int(text.strip() or '0', 16)
    except ValueError:
        return 0
    return mask if mask < 2 ** 32 else 0


def _parse_count(text: str) -> int:
    return decimals.parse_decimal(text) or 0
