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


"""Free VFs of PFs, and the ways to divide a guest's VFs among PFs (pure)."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
import itertools
from typing import Any
from typing import TypeAlias

from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import Vfs
from ghsched_placement.query.request import LOCALITIES

#: Number of VFs from each PF, by guest NUMA node and alias.
Sizes: TypeAlias = Mapping[tuple[int, str], tuple[int, ...]]

#: Number of ways to divide a guest's VFs among PFs that are tried for each
#: locality, of the ways that are possible on some host.
WAYS = 4

#: Maximum number of combinations of a host's PFs and the groups of a request.
#: Placement tries all of them; with more it would take too long.
_MAX_COMBINATIONS = 20000


@dataclass(frozen=True)
class Pf:
    """A resource provider of VFs, or of other counted PCI devices.

    :param root: UUID of the compute node's provider.
    :param parent: UUID of the parent provider: the host NUMA node of the
        devices if it is known.
    :param free: number of free devices.
    """

    root: str
    parent: str
    free: int

    def get_provider_for_locality(self, locality: str) -> str:
        """Return the UUID of the provider in which all VFs are near enough.

        If VFs must be on the guest's own host NUMA node (locality ``node``),
        this is the provider of the PF's NUMA node. For other localities, this
        is the provider of the compute node.

        :param locality: how near VFs must be to a guest NUMA node.
        """
        return self.parent if locality == 'node' else self.root


def make_pf_query(resource_class: str,
                  required: frozenset[str]) -> list[tuple[str, str]]:
    """Return the allocation candidates query that finds PFs with a free VF.

    :param resource_class: resource class of the VFs.
    :param required: traits that the PFs must have.
    """
    asked = [('resources_vf', f'{resource_class}:1')]
    if required:
        asked.append(('required_vf', ','.join(sorted(required))))
    return asked


def parse_pfs(summaries: Mapping[str, Any], resource_class: str,
              required: frozenset[str]) -> list[Pf]:
    """Parse PFs and their free VFs from Placement's allocation candidates.

    :param summaries: ``provider_summaries`` of microversion 1.29 or later.
    :param resource_class: resource class of the VFs.
    :param required: traits that the PFs must have; others are left out.
    """
    found = []
    for summary in summaries.values():
        record = summary['resources'].get(resource_class)
        if record and required <= set(summary['traits']):
            root = summary['root_provider_uuid']
            found.append(Pf(
                root, _find_node_provider(summaries, summary, root),
                record['capacity'] - record['used']))
    return found


def _find_node_provider(summaries: Mapping[str, Any],
                        summary: Mapping[str, Any], root: str) -> str:
    """Return the UUID of the provider of a PF's host NUMA node.

    In Placement, the provider of a node without CPUs is below the provider of
    the nearest node with CPUs. The latter is returned for PFs of such nodes.

    :param summaries: provider summaries of Placement, by UUID.
    :param summary: provider summary of the PF.
    :param root: UUID of the compute node's provider.
    """
    place: str = summary['parent_provider_uuid'] or ''
    above = summaries.get(place)
    while above is not None and above['parent_provider_uuid'] not in (
            None, root):
        place = above['parent_provider_uuid']
        above = summaries.get(place)
    return place


def group_free_vfs(pfs: Iterable[Pf], locality: str) -> dict[str, list[int]]:
    """Return the free VFs of each PF, grouped by NUMA node or by host.

    :param locality: ``node`` groups by NUMA node, other values by host.
    :returns: numbers of free VFs, the largest first, by UUID of the provider
        of the NUMA node or compute node.
    """
    places: dict[str, list[int]] = {}
    for pf in pfs:
        place = pf.get_provider_for_locality(locality)
        places.setdefault(place, []).append(pf.free)
    return {place: sorted(free, reverse=True)
            for place, free in places.items()}


def yield_vf_requests(policy: GuestPolicy,
                      find_pfs: Callable[[], Mapping[str, Sequence[Pf]]],
                      report_skipped: Callable[
                          [Sizes], None] = lambda _sizes: None,
                      ) -> Iterator[tuple[str, Sizes]]:
    """Yield the ways to request a guest's VFs from Placement, best first.

    A way says how near the VFs must be to their guest nodes (the locality),
    and how many VFs to take from each PF. The nearest locality comes first.
    For each locality, the first way takes all VFs of a guest node from one PF.

    :param policy: policy of ghsched's extra specs in the guest's flavor.
    :param find_pfs: function that returns the PFs of each PCI alias; called
        only if needed.
    :param report_skipped: called for each way that is skipped because
        Placement would take too long.
    """
    pfs: Mapping[str, Sequence[Pf]] | None = None
    last = LOCALITIES.index(policy.vfs_locality)
    for locality in LOCALITIES[:last + 1]:
        yield locality, {}
        pfs = find_pfs() if pfs is None else pfs
        for sizes in list_vf_divisions(policy.vfs, pfs, locality, WAYS):
            if is_search_feasible(policy.vfs, pfs, sizes):
                yield locality, sizes
            else:
                report_skipped(sizes)


def is_search_feasible(needs: Sequence[Vfs], pfs: Mapping[str, Sequence[Pf]],
                       sizes: Sizes) -> bool:
    """Whether Placement can search for VFs from several PFs fast enough.

    :param needs: VFs that the guest requests.
    :param pfs: PFs by PCI alias.
    :param sizes: number of VFs from each PF, by guest node and alias.
    """
    parts = Counter[str]()
    for need in needs:
        parts[need.alias] += len(sizes[need.guest_node, need.alias])
    return count_pf_combinations(parts, pfs) <= _MAX_COMBINATIONS


def list_vf_divisions(needs: Sequence[Vfs], pfs: Mapping[str, Sequence[Pf]],
                      locality: str, max_count: int) -> list[Sizes]:
    """Return ways to take a guest's VFs from several PFs of one host.

    Each way is possible on at least one host. Ways with the fewest PFs come
    first, then ways that are possible on most hosts.

    :param needs: VFs that the guest requests.
    :param pfs: PFs by PCI alias.
    :param locality: how near the VFs must be to their guest NUMA nodes.
    :param max_count: maximum number of ways to return.
    :returns: numbers of VFs from each PF, by guest NUMA node and PCI alias.
    """
    found: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for root in {pf.root for of_alias in pfs.values() for pf in of_alias}:
        of_host = {alias: [pf for pf in of_alias if pf.root == root]
                   for alias, of_alias in pfs.items()}
        found.update(set(_yield_vfs_per_pf(needs, of_host, locality)))
    ready = sorted(
        (way for way in found if any(len(sizes) > 1 for sizes in way)),
        key=lambda way: (sum(map(len, way)), -found[way], way))
    return [{(need.guest_node, need.alias): sizes
             for need, sizes in zip(needs, way, strict=True)}
            for way in ready[:max_count]]


def _yield_vfs_per_pf(needs: Sequence[Vfs],
                      pfs: Mapping[str, Sequence[Pf]], locality: str
                      ) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield possible numbers of VFs to take from each PF of one host.

    Each result has a tuple for each requested kind of VF. Each assignment of
    guest NUMA nodes to host nodes is tried.

    :param needs: VFs that the guest requests.
    :param pfs: PFs of the host, by PCI alias.
    :param locality: value of ``ghsched:vfs_locality``, for instance ``node``
        for VFs that must be on the host node of their guest NUMA node.
    """
    places = {alias: group_free_vfs(of_alias, locality)
              for alias, of_alias in pfs.items()}
    nodes = sorted({need.guest_node for need in needs})
    known = sorted({place for of_alias in places.values()
                    for place in of_alias})
    # Anywhere on the host is one place for all of them.
    taken: Iterator[tuple[str, ...]] = itertools.permutations(
        known, len(nodes))
    if locality != 'node':
        taken = iter([tuple(known[:1]) * len(nodes)])
    for chosen in itertools.islice(taken, _MOST_PLACES):
        place_of = dict(zip(nodes, chosen, strict=True)) if chosen else {}
        way = _choose_vfs_per_pf(needs, places, place_of)
        if way is not None:
            yield way


#: Ways to give places to guest nodes that are looked at for one host.
_MOST_PLACES = 1000


def _choose_vfs_per_pf(needs: Sequence[Vfs],
                       places: Mapping[str, Mapping[str, Sequence[int]]],
                       place_of: Mapping[int, str],
                       ) -> tuple[tuple[int, ...], ...] | None:
    """Choose how many of a guest's VFs to take from each PF.

    A place is a host NUMA node or a whole host, by UUID of its provider.

    :param needs: VFs that the guest requests.
    :param places: numbers of free VFs of PFs, by PCI alias and place.
    :param place_of: place of each guest NUMA node.
    :returns: for each requested kind of VF the number by PF; None if too few
        VFs are free.
    """
    left = {alias: {place: sorted(free, reverse=True)
                    for place, free in of_alias.items()}
            for alias, of_alias in places.items()}
    way = []
    for need in needs:
        pool = left.get(need.alias, {}).get(
            place_of.get(need.guest_node, ''), [])
        sizes = tuple(_take_greedily(need.count, pool))
        if sum(sizes) < need.count:
            return None
        for position, size in enumerate(sizes):
            pool[position] -= size
        pool.sort(reverse=True)
        way.append(sizes)
    return tuple(way)


def count_pf_combinations(parts: Mapping[str, int],
                          pfs: Mapping[str, Sequence[Pf]]) -> int:
    """Return how many combinations of PFs Placement tries on one host.

    For each request group for VFs, Placement tries every PF.

    :param parts: number of request groups for VFs, by PCI alias.
    :param pfs: PFs by PCI alias.
    """
    found = 1
    for alias, number in parts.items():
        of_a_host = group_free_vfs(pfs.get(alias, ()), 'any').values()
        found *= max(map(len, of_a_host), default=0) ** number
    return found


def _take_greedily(count: int, pool: Sequence[int]) -> Iterator[int]:
    for free in pool:
        if count <= 0 or free <= 0:
            return
        yield min(free, count)
        count -= free
