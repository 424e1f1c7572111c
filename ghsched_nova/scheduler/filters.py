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

"""The NUMA topology filter that keeps Placement and the claim in agreement.

Put it last in ``[filter_scheduler]enabled_filters``, in place of Nova's
NUMATopologyFilter::

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = \
ghsched_nova.scheduler.filters.GhschedNUMATopologyFilter
    enabled_filters = ...,PciPassthroughFilter,GhschedNUMATopologyFilter
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

from nova.scheduler.filters import numa_topology_filter
from oslo_log import log as logging

from ghsched_nova import compat
from ghsched_nova.scheduler import candidates
from ghsched_nova.scheduler.candidates import Placed
from ghsched_nova.scheduler.host_view import HostStateView
from ghsched_nova.scheduler.refusals import Gathered
from ghsched_nova.scheduler.refusals import Refusal
from ghsched_nova.scheduler import request_filter
from ghsched_placement import names
from ghsched_placement import request
from ghsched_placement import tree

LOG = logging.getLogger(__name__)

# nova-scheduler imports this module while it builds its host manager, before
# the first request.
request_filter.register()

NO_TOPOLOGY = Refusal('the host has not reported a NUMA topology')
CPU_POLICY = Refusal('the host has no hardware threads, which the CPU thread '
                     'policy of the flavor requires')
TAKEN = Refusal('other guests of the same request took the memory bandwidth')


class GhschedNUMATopologyFilter(numa_topology_filter.NUMATopologyFilter):
    """Keep one allocation candidate that the claim on the host will follow.

    Guests whose bandwidth is not counted get Nova's own NUMATopologyFilter.
    For the others each candidate of Placement's names the host NUMA node of
    each guest NUMA node; the first that Nova's own fit can use is kept, and
    its nodes go to the claim in the limits.
    """

    def filter_all(self, filter_obj_list: Any,
                   spec_obj: compat.RequestSpec) -> Iterator[Any]:
        suffixes = self._suffixes(spec_obj)
        if not suffixes or compat.is_rebuild(spec_obj):
            yield from super().filter_all(filter_obj_list, spec_obj)
            return
        refused = Gathered()
        for host_state in filter_obj_list:
            view = HostStateView(host_state)
            refusal = self._keep_one(view, spec_obj, suffixes)
            if refusal is None:
                found_a_host(spec_obj)
                yield view
            else:
                refused.add(host_state.host, refusal)
        _log_once(spec_obj, refused.lines(spec_obj.flavor.name))

    @staticmethod
    def _suffixes(spec: compat.RequestSpec) -> Mapping[int, str]:
        policy = request_filter.policy_of(spec)
        if policy is None:
            return {}
        section = compat.config().ghsched
        return request.build(policy,
                             section.bandwidth_accounting).bandwidth_suffix

    def _keep_one(self, view: HostStateView, spec: compat.RequestSpec,
                  suffixes: Mapping[int, str]) -> Refusal | None:
        """Choose a candidate and note its limits; else say why not."""
        if not view.numa_topology:
            return NO_TOPOLOGY
        if not self._satisfies_cpu_policy(view, spec.flavor.extra_specs,
                                          spec.image.properties):
            return CPU_POLICY
        nodes = {names.numa_provider_uuid(view.uuid, cell.id): cell.id
                 for cell in view.numa_topology.cells}
        placed, refusal = candidates.place(view.allocation_candidates,
                                           suffixes, nodes)
        if refusal is not None:
            return refusal
        return self._keep_first_fit(view, spec, suffixes, placed)

    def _keep_first_fit(self, view: HostStateView, spec: compat.RequestSpec,
                        suffixes: Mapping[int, str],
                        placed: Sequence[Placed]) -> Refusal | None:
        """Try each set of host nodes once.

        The limits hold the claim on a set of nodes; which guest node goes to
        which of them is Nova's choice, whatever candidate is tried.
        """
        limit = compat.config().ghsched.max_candidates_per_host
        refusal: Refusal | None = None
        free = _Free()
        sets = candidates.by_nodes(placed, suffixes)
        for items in itertools.islice(sets, limit):
            if view.claimed:
                items = [item for item in items if free.holds(item.candidate)]
                if not items:
                    refusal = refusal or TAKEN
                    continue
            kept = _fit(view, spec, items)
            if isinstance(kept, Placed):
                view.allocation_candidates = [kept.candidate]
                return None
            refusal = refusal or kept
        return refusal


def _fit(view: HostStateView, spec: compat.RequestSpec,
         items: Sequence[Placed]) -> Placed | Refusal:
    """The candidate that the claim will follow, of those on one set of nodes.

    :param items: candidates that differ only in which guest node goes where.
    """
    wanted = sorted(items[0].nodes.values())
    limits = compat.numa_limits(view, spec, map(names.node_physnet, wanted))
    fitted = compat.fit(view, spec, limits, items[0].candidate['mappings'])
    nodes = ', '.join(map(str, wanted))
    if fitted is None:
        return Refusal(
            f'host NUMA node {nodes} has the memory bandwidth, but not the '
            'CPUs, memory, networks or devices that the guest needs with it')
    taken = compat.host_cells(fitted)
    if compat.wrong_pins(fitted, view.numa_topology):
        return Refusal(
            f'Nova can not pin the guest to host NUMA node {nodes} (its fit '
            'mixes up CPUs of two nodes)')
    for item in items:
        if all(taken[guest] == node for guest, node in item.nodes.items()):
            view.limits['numa_topology'] = limits
            return item
    return Refusal(
        'Nova would put the guest NUMA nodes on host NUMA nodes '
        f'{", ".join(map(str, taken))}, but their memory bandwidth is left '
        'elsewhere')


class _Free:
    """What is left on NUMA providers after the earlier claims of a request.

    All instances of a multi-create share one answer of Placement's, made
    before the first of them was claimed. Each provider is asked for once.
    """

    def __init__(self) -> None:
        self._free: dict[str, int] = {}

    def holds(self, candidate: Mapping[str, Any]) -> bool:
        """Whether the bandwidth of a candidate is still there."""
        for provider, allocation in candidate['allocations'].items():
            share = allocation['resources'].get(names.MEM_BW_PCT)
            if share is None:
                continue
            if provider not in self._free:
                self._free[provider] = self._ask(provider)
            if share > self._free[provider]:
                return False
        return True

    @staticmethod
    def _ask(provider: str) -> int:
        """Nothing is left when Placement can not be asked.

        Nova's scheduler cleans up after a host that was refused, but not
        after an error.
        """
        client = compat.placement_client()
        url = f'/resource_providers/{provider}'
        try:
            record = client.get(url + '/inventories').json()['inventories'][
                names.MEM_BW_PCT]
            used = client.get(url + '/usages').json()['usages']
        except Exception as error:
            LOG.warning('ghsched: what is left on the provider %(uuid)s can '
                        'not be asked: %(error)r',
                        {'uuid': provider, 'error': error})
            return 0
        return tree.free(record, used.get(names.MEM_BW_PCT, 0))


def found_a_host(spec: compat.RequestSpec) -> None:
    """Note on a request that some host could have taken it."""
    spec.__dict__['_ghsched_found'] = True


def had_a_host(spec: compat.RequestSpec) -> bool:
    """Whether it was not for want of a host that a request failed."""
    return bool(spec.__dict__.get('_ghsched_found'))


def _log_once(spec: compat.RequestSpec, lines: Sequence[str]) -> None:
    """Log each reason once per request, however many instances it has."""
    told: set[str] = spec.__dict__.setdefault('_ghsched_told', set())
    for line in lines:
        if line not in told:
            told.add(line)
            LOG.info(line)
