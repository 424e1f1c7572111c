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


"""The candidates of one described host, without Placement (pure).

A copy of what Placement does with the part of a query that is
ghsched's, for the dry run that must work without it. A test compares it with
Placement.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools

from ghsched_placement.features.planner import hosts
from ghsched_placement.features.planner.need import Need
from ghsched_placement.features.planner.state import State
from ghsched_placement.query import candidates
from ghsched_placement.query import node_assignment
from ghsched_placement.query import request as requests
from ghsched_placement.query import vfs

#: A scheduler sees no more than 1000 for all hosts; there are more only with
#: very many NUMA nodes or PFs.
_MOST_OFFERS = 10000


def list_host_placements(
        state: State, need: Need, locality: str, sizes: vfs.Sizes,
        has_capacity: candidates.HasCapacity
) -> list[candidates.NodeAssignment]:
    """Return the ways to place a guest on a host, in the scheduler's order.

    The ways are computed without Placement. Resources of the root provider,
    which belong to no NUMA node, are not checked.

    :param state: used and free resources of the host.
    :param need: resources that the guest needs.
    :param locality: how near the VFs must be to the guest's NUMA nodes.
    :param sizes: how the VFs are divided among PFs.
    :param has_capacity: function that returns whether a host NUMA node has
        enough free CPUs and memory for a guest NUMA node.
    """
    wanted = need.make_ranking_criteria(locality)
    asked = need.make_ghsched_query_part(locality, sizes)
    host = state.host
    if not asked.root_required <= host.root.traits:
        return []
    group_policy = dict(need.make_planner_query(locality, sizes)).get(
        'group_policy')
    found = _ProviderAssignments(
        state, asked, frozenset(wanted.suffixes.values()),
        group_policy == 'isolate')
    assignments = itertools.islice(found.yield_provider_assignments(),
                                   _MOST_OFFERS)
    answer = [{'allocations': {},
               'mappings': {suffix: [host.providers[place].uuid]
                            for suffix, place in places.items()}}
              for places in assignments]
    candidates.map_vfs_to_pfs(answer, wanted.vfs)
    ways, _refusal = node_assignment.assign_host_nodes(
        answer, wanted,
        dataclasses.replace(
            host.make_ranking_input(lambda place: host.providers[place].uuid),
            needed=state.find_needed_nodes(need)),
        has_capacity)
    return list(ways)


def list_pfs_by_alias(state: State, need: Need) -> dict[str, list[vfs.Pf]]:
    """Return the PFs of a host whose VFs a flavor can get, by PCI alias."""
    host = state.host
    return {alias: [
        vfs.Pf(host.root.uuid, _get_node_provider_of_pf(host, place),
               state.get_free_amount((place, need.aliases[alias])))
        for place in host.node_by_device_provider
        if need.aliases[alias] in host.providers[place].inventories]
        for alias in {one.alias for one in need.policy.vfs}}


def _get_node_provider_of_pf(host: hosts.Host, pf_index: int) -> str:
    """Return the UUID of the NUMA node provider to which a PF belongs.

    For a PF of a node without CPUs this is the nearest node with CPUs. For a
    PF that belongs to no node this is the compute node's root provider.

    :param pf_index: index of the PF's provider.
    """
    above = host.parent_by_provider.get(pf_index, 0)
    while host.parent_by_provider.get(above, 0):
        above = host.parent_by_provider[above]
    return host.providers[above].uuid


class _ProviderAssignments:
    """Ways to assign the request groups of a query to providers of a host.

    :param state: used and free resources of the host.
    :param asked: request groups of the query.
    :param apart: suffixes of request groups that must be on different NUMA
        nodes. Placement does not check this, but nova-scheduler does.
    :param isolate: whether every group must have a provider of its own, as
        with ``group_policy=isolate``.
    """

    def __init__(self, state: State, asked: requests.Request,
                 apart: frozenset[str], isolate: bool) -> None:
        self._state, self._apart, self._isolate = state, apart, isolate
        #: Suffix of the group whose provider must be above that of another
        #: group, by suffix of the other group.
        self._above = {suffix: subtree[0] for subtree in asked.same_subtree
                       for suffix in subtree[1:]}
        self._groups = {group.suffix: group for group in sorted(
            asked.groups, key=lambda group: group.suffix in self._above)}
        self._places = {suffix: self._list_suitable_providers(group)
                        for suffix, group in self._groups.items()}

    def yield_provider_assignments(self) -> Iterator[dict[str, int]]:
        """Yield each way to assign a resource provider to every request group.

        Each way is a mapping from the suffix of a request group to the index
        of its provider.
        """
        return self._yield_choices(tuple(self._groups), {})

    def _yield_choices(self, suffixes: Sequence[str],
                       chosen: Mapping[str, int]) -> Iterator[dict[str, int]]:
        if not suffixes:
            yield dict(chosen)
            return
        suffix, *rest = suffixes
        above = chosen.get(self._above.get(suffix, ''))
        for place in self._places[suffix]:
            if above is None or above in self._yield_provider_and_ancestors(
                    place):
                others = [other for other, taken in chosen.items()
                          if taken == place]
                if not others or self._can_serve_another_group(
                        suffix, place, others):
                    yield from self._yield_choices(
                        rest, {**chosen, suffix: place})

    def _list_suitable_providers(self, group: requests.Group) -> list[int]:
        """Return the indices of the providers that can serve a request group.

        Other groups of the request are not considered.
        """
        host, state = self._state.host, self._state
        return [place for place, provider in enumerate(host.providers)
                if group.required <= provider.traits and all(
                    name in provider.inventories and amount <= min(
                        state.get_free_amount((place, name)),
                        state.get_inventory_record((place, name))['max_unit'])
                    for name, amount in group.resources.items())]

    def _can_serve_another_group(self, suffix: str, index: int,
                                 suffixes: Sequence[str]) -> bool:
        """Return whether a provider can serve one more request group.

        :param suffix: suffix of the request group to add.
        :param index: index of the provider.
        :param suffixes: suffixes of the groups that the provider already
            serves.
        """
        if self._isolate or (suffix in self._apart
                             and not self._apart.isdisjoint(suffixes)):
            return False
        groups = [self._groups[one] for one in (suffix, *suffixes)]
        return all(
            sum(group.resources.get(name, 0) for group in groups)
            <= self._state.get_free_amount((index, name))
            for name in self._groups[suffix].resources)

    def _yield_provider_and_ancestors(self, index: int) -> Iterator[int]:
        """Yield the indices of a provider and its ancestors, up to the root.
        """
        found: int | None = index
        while found is not None:
            yield found
            found = self._state.host.parent_by_provider.get(found)
