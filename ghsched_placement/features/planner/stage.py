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

"""Hosts in a Placement of the planner's own, and what it offers there."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from urllib import parse
import uuid

from ghsched_placement.features.planner import client
from ghsched_placement.features.planner.need import Need
from ghsched_placement.features.planner.private import PrivatePlacement
from ghsched_placement.features.planner.state import GuestPlacement
from ghsched_placement.features.planner.state import Slot
from ghsched_placement.features.planner.state import State
from ghsched_placement.query import candidates
from ghsched_placement.query import matching
from ghsched_placement.query import node_assignment
from ghsched_placement.query import vfs

#: Maximum number of steps to find the ways on one host.
_STEPS = 10 ** 6

_NAMESPACE = uuid.UUID('0f0b5d1c-8a3e-5b3a-9a52-3d2f7f5f9a60')


class Stage:
    """Hosts of a plan, loaded into the planner's private Placement.

    The private Placement is asked where guests fit on these hosts.

    :param placement: the private Placement.
    """

    def __init__(self, placement: PrivatePlacement) -> None:
        self._placement = placement
        self._states: Sequence[State] = ()
        #: Index of the host, and index of the provider on it, by the UUID of
        #: the provider in the private Placement.
        self._where: dict[str, tuple[int, int]] = {}

    def load_hosts(self, states: Sequence[State]) -> None:
        """Load hosts and their guests into the planner's private Placement.

        :param states: used and free resources of each host.
        :raises PlannerError: if Placement refuses the allocations.
        """
        self._states, self._where = states, {}
        providers = [one for number, state in enumerate(states)
                     for one in self._yield_providers(number, state)]
        self._placement.replace_providers(providers)
        self.write_new_allocations()

    def write_new_allocations(self) -> None:
        """Write the allocations of guests that Placement does not have yet.

        :raises PlannerError: if Placement refuses the allocations.
        """
        claims = _make_allocations_body(self._states)
        if claims:
            path = '/allocations'
            client.parse_response('POST', path, self._placement.post(
                path, json=claims, microversion=client.MICROVERSION))
        for state in self._states:
            state.claimed = dict(state.taken)

    def _yield_providers(self, number: int,
                         state: State) -> Iterator[dict[str, Any]]:
        here = {provider.uuid: _make_uuid(number, place) for place, provider
                in enumerate(state.host.providers)}
        for place, provider in enumerate(state.host.providers):
            self._where[here[provider.uuid]] = number, place
            yield {
                'uuid': here[provider.uuid], 'name': here[provider.uuid],
                'parent': here[provider.parent] if provider.parent else None,
                'inventories': {name: state.get_inventory_record((place, name))
                                for name in provider.inventories},
                'used': {name: provider.used.get(name, 0)
                         + state.claimed.get((place, name), 0)
                         for name in provider.inventories},
                'traits': sorted(provider.traits)}

    # -- what Placement offers ------------------------------------------------

    def list_placements(self, need: Need, locality: str,
                        sizes: vfs.Sizes) -> list[list[GuestPlacement]]:
        """Return the ways to place one more guest on each host.

        The result has one list for each host, in the order in which
        ``GhschedNUMATopologyFilter`` prefers the ways.

        :param need: resources that the guest needs.
        :param locality: how near the VFs must be to the guest's NUMA nodes.
        :param sizes: how the VFs are divided among PFs.
        """
        of_host: list[list[dict[str, Any]]] = [[] for _ in self._states]
        in_fallback = [need.adapt_to_host(state.host.root).is_fallback
                       for state in self._states]
        for variant in filter(None, (need, need.fallback)):
            answer = self._query_placement(
                variant.make_planner_query(locality, sizes))
            for candidate in answer['allocation_requests']:
                number, _ = self._where[next(iter(candidate['allocations']))]
                if in_fallback[number] == variant.is_fallback:
                    of_host[number].append(candidate)
        return [self._list_ways(number, found, need,
                                need.make_ranking_criteria(locality))
                for number, found in enumerate(of_host)]

    def _list_ways(self, number: int, found: list[dict[str, Any]], need: Need,
                   wanted: candidates.NodeRequestGroups
                   ) -> list[GuestPlacement]:
        candidates.map_vfs_to_pfs(found, wanted.vfs)
        state, guest = self._states[number], need.guest

        def has_capacity(guest_node: int, node: int) -> bool:
            return not state.host.cells or not guest.needs or not (
                state.find_shortages(node, guest.needs[guest_node],
                                     guest.page_size))
        placed, _ = node_assignment.assign_host_nodes(
            found, wanted, self._make_candidates_host(number), has_capacity,
            steps=matching.Steps(_STEPS))
        ways = (GuestPlacement(item.get_host_node_order(),
                               self._list_amounts(candidate), item.far)
                for item in placed for candidate in item.candidates)
        return list(dict.fromkeys(ways))

    def _list_amounts(self, candidate: Mapping[str, Any]
                      ) -> tuple[tuple[Slot, int], ...]:
        return tuple(sorted(
            ((self._where[provider][1], name), amount)
            for provider, entry in candidate['allocations'].items()
            for name, amount in entry['resources'].items()))

    def _make_candidates_host(self, number: int) -> candidates.Host:
        return self._states[number].host.make_ranking_input(
            lambda place: _make_uuid(number, place))

    def list_pfs_for_flavor(self, need: Need) -> dict[str, list[vfs.Pf]]:
        """Return the PFs with free VFs for guests of a flavor, by PCI alias.
        """
        found: dict[str, list[vfs.Pf]] = {}
        for wish, item in zip(need.policy.vfs, need.list_vf_devices({}),
                              strict=True):
            if wish.alias not in found:
                asked = item.resource_class, item.required
                answer = self._query_placement(vfs.make_pf_query(*asked))
                found[wish.alias] = vfs.parse_pfs(answer['provider_summaries'],
                                                  *asked)
        return found

    def _query_placement(self, query: Sequence[tuple[str, str]]) -> Any:
        self._placement.create_classes_and_traits(
            *_list_classes_and_traits(query))
        return client.get_json(self._placement, '/allocation_candidates?'
                               + parse.urlencode(query))


def _list_classes_and_traits(
        query: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return the resource classes and the traits in a Placement query."""
    classes, traits = [], []
    for key, value in query:
        words = [word for word in value.split(',') if word]
        if key.startswith('resources'):
            classes += [word.partition(':')[0] for word in words]
        elif key.startswith(('required', 'root_required')):
            traits += [word.lstrip('!') for word in words]
    return classes, traits


def _make_uuid(number: int, place: int) -> str:
    return str(uuid.uuid5(_NAMESPACE, f'{number}/{place}'))


def _make_allocations_body(states: Sequence[State]) -> dict[str, Any]:
    """Return the POST /allocations body for guests that are not yet written.

    Guests are merged into as few consumers as ``max_unit`` allows, because
    Placement needs milliseconds for each consumer.

    :param states: used and free resources of each host.
    """
    consumers: list[dict[str, dict[str, int]]] = []
    for number, state in enumerate(states):
        for slot, taken in state.taken.items():
            amount = taken - state.claimed.get(slot, 0)
            parts = _split_amount_into_allocations(
                amount, state.get_inventory_record(slot)) if amount else []
            consumers += [{} for _ in range(len(parts) - len(consumers))]
            for consumer, part in zip(consumers, parts, strict=False):
                consumer.setdefault(_make_uuid(number, slot[0]),
                                    {})[slot[1]] = part
    return {str(uuid.uuid4()): {
        'allocations': {provider: {'resources': resources}
                        for provider, resources in consumer.items()},
        'consumer_generation': None, 'project_id': 'ghsched',
        'user_id': 'ghsched'} for consumer in consumers}


def _split_amount_into_allocations(
        amount: int, record: Mapping[str, int | float]) -> list[int]:
    """Split an amount into parts that Placement accepts as allocations.

    :param amount: amount of a resource class.
    :param record: inventory record with ``max_unit`` and ``step_size``.
    """
    step = int(record['step_size'])
    most = max(step, int(record['max_unit']) // step * step)
    number = -(-amount // most)
    steps, rest = divmod(amount // step, number)
    return [step * (steps + (place < rest)) for place in range(number)]
