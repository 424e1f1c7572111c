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


"""Allocation candidates of described hosts, without Placement (pure).

The queries of the planner and of the dry run are answered as Placement would
answer them. Tests compare the answers with those of Placement.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
import itertools
from typing import Any

from ghsched_placement.features.planner import hosts
from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.planner.state import GuestPlacement
from ghsched_placement.fit import guest_demand
from ghsched_placement.query import candidates
from ghsched_placement.query import matching
from ghsched_placement.query import node_assignment
from ghsched_placement.query import vfs

#: A scheduler sees no more than 1000 for all hosts; there are more only with
#: very many NUMA nodes or PFs.
_MOST_OFFERS = 10000

#: Maximum number of steps to find the ways on one host.
_STEPS = 10 ** 6

#: First character of the suffix of a group for a resource class of the
#: unnumbered request group.
_UNNUMBERED = ':'


class Offers:
    """Ways to place guests on hosts, as Placement would offer them."""

    def __init__(self) -> None:
        self._states: Sequence[FilledHost] = ()

    def set_hosts(self, states: Sequence[FilledHost]) -> None:
        """Set the hosts whose ways are listed.

        :param states: used and free resources of each host.
        """
        self._states = states

    def list_placements(self, need: FlavorNeed, locality: str,
                        sizes: vfs.Sizes) -> list[list[GuestPlacement]]:
        """Return the ways to place one more guest on each host.

        The result has one list for each host, in the order in which
        ``GhschedNUMATopologyFilter`` prefers the ways.

        :param need: resources that the guest needs.
        :param locality: how near the VFs must be to the guest's NUMA nodes.
        :param sizes: how the VFs are divided among PFs.
        """
        return [_list_guest_placements(
            state, need.adapt_to_host(state.host.root), locality, sizes)
            for state in self._states]

    def list_pfs_for_flavor(self, need: FlavorNeed) -> dict[str, list[vfs.Pf]]:
        """Return the PFs with free VFs for guests of a flavor, by PCI alias.
        """
        found: dict[str, list[vfs.Pf]] = {}
        for state in self._states:
            for alias, pfs in list_pfs_by_alias(state, need).items():
                found.setdefault(alias, []).extend(pfs)
        return found


def list_host_placements(
        state: FilledHost, need: FlavorNeed, locality: str, sizes: vfs.Sizes,
        has_capacity: candidates.HasCapacity
) -> list[candidates.NodeAssignment]:
    """Return the ways to place a guest on a host, in the scheduler's order.

    Resources of the root provider, which belong to no NUMA node, are not
    checked.

    :param state: used and free resources of the host.
    :param need: resources that the guest needs.
    :param locality: how near the VFs must be to the guest's NUMA nodes.
    :param sizes: how the VFs are divided among PFs.
    :param has_capacity: function that returns whether a host NUMA node has
        enough free CPUs and memory for a guest NUMA node.
    """
    return _list_assignments(state, need, _make_query(
        need, locality, sizes, with_flavor=False), locality, has_capacity)


def _list_guest_placements(state: FilledHost, need: FlavorNeed, locality: str,
                           sizes: vfs.Sizes) -> list[GuestPlacement]:
    guest = need.guest

    def has_capacity(guest_node: int, node: int) -> bool:
        return not guest.needs or state.has_room(
            node, guest.needs[guest_node], guest.page_size)
    places = {provider.uuid: place
              for place, provider in enumerate(state.host.providers)}
    ways = (GuestPlacement(way.get_host_node_order(), tuple(sorted(
        ((places[provider], name), amount)
        for provider, entry in candidate['allocations'].items()
        for name, amount in entry['resources'].items())), way.far)
        for way in _list_assignments(
            state, need, _make_query(need, locality, sizes, with_flavor=True),
            locality, has_capacity) for candidate in way.candidates)
    return list(dict.fromkeys(ways))


def _list_assignments(state: FilledHost, need: FlavorNeed, asked: '_Query',
                      locality: str,
                      has_capacity: candidates.HasCapacity
                      ) -> list[candidates.NodeAssignment]:
    host, wanted = state.host, need.make_ranking_criteria(locality)
    if not asked.root_required <= host.root.traits or (
            asked.root_forbidden & host.root.traits):
        return []
    found = _ProviderAssignments(state, asked,
                                 frozenset(wanted.suffixes.values()))
    answer = [_make_candidate(host, asked, places) for places
              in itertools.islice(found.yield_provider_assignments(),
                                  _MOST_OFFERS)]
    candidates.map_vfs_to_pfs(answer, wanted.vfs)
    ways, _refusal = node_assignment.assign_host_nodes(
        answer, wanted, dataclasses.replace(
            host.make_ranking_input(lambda place: host.providers[place].uuid),
            needed=state.find_needed_nodes(need)),
        has_capacity, steps=matching.Steps(_STEPS))
    return list(ways)


def _make_candidate(host: hosts.PlannedHost, asked: '_Query',
                    places: Mapping[str, int]) -> dict[str, Any]:
    """Return an allocation candidate in the form of Placement's answer.

    :param places: index of the provider by suffix of the request group.
    """
    allocations: dict[str, Any] = {}
    for suffix, place in places.items():
        for name, amount in asked.groups[suffix].resources.items():
            taken = allocations.setdefault(
                host.providers[place].uuid, {'resources': {}})['resources']
            taken[name] = taken.get(name, 0) + amount
    return {'allocations': allocations, 'mappings': {
        suffix: [host.providers[place].uuid]
        for suffix, place in places.items()
        if not suffix.startswith(_UNNUMBERED)}}


# -- the query ----------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """Request group; its resources are taken from one provider.

    :param resources: amounts by resource class.
    :param required: traits that the provider must have.
    :param forbidden: traits that the provider must not have.
    """

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Query:
    """Query for allocation candidates.

    :param groups: request groups by suffix. Each resource class of the
        unnumbered group is a group, whose suffix begins with a colon.
    :param root_required: traits that the compute node must have.
    :param root_forbidden: traits that the compute node must not have.
    :param unnumbered: traits of the unnumbered group, which all its providers
        together must have, or must not have.
    :param above: suffix of the group whose provider must be above that of
        another group, by suffix of the other group.
    :param isolate: whether every group must have a provider of its own, as
        with ``group_policy=isolate``.
    """

    groups: Mapping[str, _Group]
    root_required: frozenset[str]
    root_forbidden: frozenset[str]
    unnumbered: _Group
    above: Mapping[str, str]
    isolate: bool


def _make_query(need: FlavorNeed, locality: str, sizes: vfs.Sizes,
                with_flavor: bool) -> _Query:
    """Return the planner's query for a guest.

    :param with_flavor: whether the query has the traits and resources that
        Nova requests for the flavor, too.
    """
    ours = need.make_ghsched_query_part(locality, sizes)
    groups = {group.suffix: _Group(group.resources, group.required)
              for group in ours.groups}
    asked = dict(need.make_planner_query(locality, sizes))
    root, unnumbered = _Group({}, ours.root_required), _Group({})
    if with_flavor:
        root = _parse_group('', asked.get('root_required', ''))
        suffixes = {name.removeprefix('resources') for name in asked
                    if name.startswith('resources')}
        for suffix in suffixes - groups.keys():
            group = _parse_group(asked.get(f'resources{suffix}', ''),
                                 asked.get(f'required{suffix}', ''))
            if suffix:
                groups[suffix] = group
                continue
            unnumbered = group
            groups |= {f'{_UNNUMBERED}{name}': _Group({name: amount})
                       for name, amount in group.resources.items()}
    above = {suffix: subtree[0] for subtree in ours.same_subtree
             for suffix in subtree[1:]}
    return _Query(groups, root.required, root.forbidden, unnumbered, above,
                  asked.get('group_policy') == 'isolate')


def _parse_group(resources: str, traits: str) -> _Group:
    """Return the request group of a query's ``resources`` and ``required``."""
    return _Group(guest_demand.parse_amounts(resources),
                  *guest_demand.parse_traits(traits))


# -- hosts --------------------------------------------------------------------


def list_pfs_by_alias(state: FilledHost, need: FlavorNeed
                      ) -> dict[str, list[vfs.Pf]]:
    """Return the PFs of a host whose VFs a flavor can get, by PCI alias."""
    host = state.host
    return {alias: [
        vfs.Pf(host.root.uuid, _get_node_provider_of_pf(host, place),
               state.get_free_amount((place, need.aliases[alias])))
        for place in host.node_by_device_provider
        if state.get_free_amount((place, need.aliases[alias]))]
        for alias in {one.alias for one in need.policy.vfs}}


def _get_node_provider_of_pf(host: hosts.PlannedHost, pf_index: int) -> str:
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
    :param asked: the query.
    :param apart: suffixes of request groups that must be on different NUMA
        nodes. Placement does not check this, but nova-scheduler does.
    """

    def __init__(self, state: FilledHost, asked: _Query,
                 apart: frozenset[str]) -> None:
        self._state, self._asked, self._apart = state, asked, apart
        self._groups = dict(sorted(
            asked.groups.items(), key=lambda item: item[0] in asked.above))
        self._places = {suffix: self._list_suitable_providers(group)
                        for suffix, group in self._groups.items()}

    def yield_provider_assignments(self) -> Iterator[dict[str, int]]:
        """Yield each way to assign a resource provider to every request group.

        Each way is a mapping from the suffix of a request group to the index
        of its provider.
        """
        unnumbered = [suffix for suffix in self._groups
                      if suffix.startswith(_UNNUMBERED)]
        # A full host would otherwise be searched in all combinations.
        if not all(self._places.values()) or not any(map(
                self._has_unnumbered_traits,
                self._yield_choices(unnumbered, {}))):
            return iter(())
        return filter(self._has_unnumbered_traits,
                      self._yield_choices(tuple(self._groups), {}))

    def _has_unnumbered_traits(self, chosen: Mapping[str, int]) -> bool:
        """Return whether providers have the traits of the unnumbered group."""
        wanted = self._asked.unnumbered
        traits = frozenset[str]().union(*(
            self._state.host.providers[place].traits
            for suffix, place in chosen.items()
            if suffix.startswith(_UNNUMBERED)))
        return wanted.required <= traits and not wanted.forbidden & traits

    def _yield_choices(self, suffixes: Sequence[str],
                       chosen: Mapping[str, int]) -> Iterator[dict[str, int]]:
        if not suffixes:
            yield dict(chosen)
            return
        suffix, *rest = suffixes
        above = chosen.get(self._asked.above.get(suffix, ''))
        for place in self._places[suffix]:
            if above is None or above in self._yield_provider_and_ancestors(
                    place):
                others = [other for other, taken in chosen.items()
                          if taken == place]
                if not others or self._can_serve_another_group(
                        suffix, place, others):
                    yield from self._yield_choices(
                        rest, {**chosen, suffix: place})

    def _list_suitable_providers(self, group: _Group) -> list[int]:
        """Return the indices of the providers that can serve a request group.

        Other groups of the request are not considered.
        """
        return [place for place, provider
                in enumerate(self._state.host.providers)
                if group.required <= provider.traits
                and not group.forbidden & provider.traits
                and all(self._can_allocate(place, name, amount)
                        for name, amount in group.resources.items())]

    def _can_allocate(self, index: int, name: str, amount: int) -> bool:
        """Return whether a provider can serve one allocation of an amount.

        :param index: index of the provider.
        :param name: resource class.
        """
        if name not in self._state.host.providers[index].inventories:
            return False
        record = self._state.get_inventory_record((index, name))
        return (amount <= self._state.get_free_amount((index, name))
                and record.get('min_unit', 1) <= amount <= record['max_unit']
                and amount % int(record.get('step_size', 1)) == 0)

    def _can_serve_another_group(self, suffix: str, index: int,
                                 suffixes: Sequence[str]) -> bool:
        """Return whether a provider can serve one more request group.

        :param suffix: suffix of the request group to add.
        :param index: index of the provider.
        :param suffixes: suffixes of the groups that the provider already
            serves.
        """
        numbered = [one for one in suffixes
                    if not one.startswith(_UNNUMBERED)]
        if not suffix.startswith(_UNNUMBERED) and numbered and (
                self._asked.isolate or (
                    suffix in self._apart
                    and not self._apart.isdisjoint(numbered))):
            return False
        groups = [self._groups[one] for one in (suffix, *suffixes)]
        return all(
            sum(group.resources.get(name, 0) for group in groups) <= min(
                self._state.get_free_amount((index, name)),
                self._state.get_inventory_record((index, name))['max_unit'])
            for name in self._groups[suffix].resources)

    def _yield_provider_and_ancestors(self, index: int) -> Iterator[int]:
        """Yield the indices of a provider and its ancestors, up to the root.
        """
        found: int | None = index
        while found is not None:
            yield found
            found = self._state.host.parent_by_provider.get(found)
