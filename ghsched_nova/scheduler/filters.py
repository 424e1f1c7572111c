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

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from nova import exception
from nova.scheduler.filters import numa_topology_filter
from oslo_log import log as logging

from ghsched_nova.features import declared_filter
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_nova.scheduler import best_nodes
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.scheduler import host_view
from ghsched_nova.scheduler.host_view import HostStateView
from ghsched_nova.scheduler import near
from ghsched_nova.scheduler import needed_nodes
from ghsched_nova.scheduler.node_fit_cache import NodeFitCache
from ghsched_nova.scheduler import off
from ghsched_nova.scheduler import request_filter
from ghsched_nova.scheduler import unread_reports
from ghsched_placement.fit.lack import GroupedReasons
from ghsched_placement.fit.lack import Lack
from ghsched_placement.flavor import keys
from ghsched_placement.providers import names
from ghsched_placement.query import candidates
from ghsched_placement.query.candidates import NodeAssignment
from ghsched_placement.query.candidates import NodeRequestGroups
from ghsched_placement.query import node_assignment
from ghsched_placement.query import request

LOG = logging.getLogger(__name__)

# nova-scheduler imports this module while it builds its host manager, before
# the first request.
shared.config()
fixes.require_known_fixes()
if not off.is_off():
    request_filter.register_request_filter()
    numa.patch_numa_fit()
fixes.apply_fixes(registry.SCHEDULER)

NO_TOPOLOGY = Lack(None, 'NUMA topology', reason='the host has not reported a '
                   'NUMA topology')
CPU_POLICY = Lack(None, 'hardware threads', reason='the host has no hardware '
                  'threads, which the CPU thread policy of the flavor '
                  'requires')
TAKEN = Lack(None, 'memory bandwidth, VFs or control groups', reason='other '
             'guests of the same request took the memory bandwidth, the VFs '
             'or the control groups')
NO_ROOM = Lack(None, 'CPUs, memory, networks or devices', reason='no NUMA '
               'node has the CPUs, memory, networks or other devices that '
               'the guest needs')
FAR = 'would not have its devices near'
NOT_STEERED = Lack(None, 'driver', reason='its nova-compute does not use the '
                   'driver of ghsched, so the claim cannot be restricted to '
                   'NUMA nodes')


#: Reason if something in a host's report raises an error: it costs this host
#: the request, and not the other hosts.
UNREADABLE = Lack(None, 'report', reason='its report cannot be read',
                  cure='the log of nova-scheduler has the error; is the '
                  'nova-compute of the host of another release, or broken '
                  'into?')


class GhschedNUMATopologyFilter(numa_topology_filter.NUMATopologyFilter):
    """Filter that chooses one allocation candidate for each host that fits.

    A candidate of Placement names the host NUMA node of each guest NUMA node
    and the PF of each VF. For each host the filter keeps the first candidate
    on whose nodes Nova's own fit can place the guest. The NUMA limits of the
    host state make nova-compute claim these nodes.

    Nova's own NUMATopologyFilter is used for guests whose bandwidth is not
    allocated in Placement, that have no VFs of ``ghsched:vfs``, and that do
    not ask for ``ghsched:device_numa``.

    With ``ghsched:device_numa`` the other devices of the guest (SR-IOV ports,
    PCI aliases) must be on its NUMA nodes. With the value ``preferred``, hosts
    without such devices are accepted if no other host fits.
    """

    def __new__(cls) -> Any:
        """Return Nova's filter if ghsched is off with this Nova."""
        if off.is_off():
            return off.RefusingFilter()
        return super().__new__(cls)

    def filter_all(self, filter_obj_list: Any,
                   spec_obj: shared.RequestSpec) -> Iterator[Any]:
        if scheduler.is_rebuild(spec_obj):
            yield from super().filter_all(filter_obj_list, spec_obj)
            return
        hosts = list(filter_obj_list)
        required, may_be_far = self._get_candidate_requirements(spec_obj)
        if not required.near or not may_be_far:
            yield from self._filter_hosts(hosts, spec_obj, required)
            return
        found = False
        for host_state in self._filter_hosts(hosts, spec_obj, required, FAR):
            found = True
            yield host_state
        if not found:
            yield from self._filter_hosts(
                hosts, spec_obj, dataclasses.replace(required, near=False))

    def _filter_hosts(self, hosts: Sequence[Any], spec: shared.RequestSpec,
                      required: NodeRequestGroups,
                      verb: str = 'refused') -> Iterator[Any]:
        """Yield the hosts that fit a request.

        Each host is yielded with the one allocation candidate that was chosen
        for it.

        :param required: properties that the allocation candidate must have.
        :param verb: verb of the log lines about refused hosts, such as
            ``refused``.
        """
        is_steered = required.suffixes or required.near
        kept = spec if is_steered else _copy_request_with_topology(spec)
        refused = GroupedReasons()
        if not (is_steered or numa.chooses_cpus(spec)):
            for host_state in super().filter_all(
                    _yield_open_hosts(hosts, spec, refused), spec):
                yield best_nodes.limit_to_best_nodes(functools.reduce(
                    lambda state, limit: limit(state, kept),
                    declared_filter.HOST_LIMITS, host_state), kept,
                    _compute_node_costs)
            _log_refusals_once(spec, refused, verb)
            return
        for host_state in hosts:
            if isinstance(host_state, HostStateView) and (
                    not host_state.consumed
                    and host_state.near == required.near):
                # Nothing has changed since an earlier instance.
                yield host_state
                continue
            view = HostStateView(host_state)
            refusal = self._try_host(view, spec, required)
            if refusal is None:
                view.near = required.near
                yield view if is_steered else best_nodes.limit_to_best_nodes(
                    view, kept, _compute_node_costs)
            else:
                refused.add_reason(host_state.host, refusal)
        _log_refusals_once(spec, refused, verb)

    def _try_host(self, view: HostStateView, spec: shared.RequestSpec,
                  required: NodeRequestGroups) -> Lack | None:
        """Choose a host's allocation candidate, if its report can be read.

        :returns: None if a candidate was chosen, otherwise the reason.
        """
        if view.claimed:
            view.allocation_candidates = list(
                _yield_free_candidates(view, spec))
            if not view.allocation_candidates:
                return TAKEN
        try:
            refusal = self._choose_candidate(view, spec, required)
            if refusal and refusal.resource == NO_ROOM.resource:
                return (host_nodes.find_page_shortage(view, spec.numa_topology)
                        or host_nodes.find_cache_shortage(view, spec)
                        or refusal)
        except Exception as error:
            unread_reports.WARNINGS.warn_once(view.host, error)
            return UNREADABLE
        return refusal

    def host_passes(self, host_state: Any,
                    spec_obj: shared.RequestSpec) -> bool:
        """Return whether a host passes Nova's filter.

        A host whose report raises an error does not pass. Nova's filter would
        refuse the request.
        """
        try:
            return bool(super().host_passes(host_state, spec_obj))
        except Exception as error:
            unread_reports.WARNINGS.warn_once(host_state.host, error)
            return False

    @staticmethod
    def _get_candidate_requirements(
            spec: shared.RequestSpec) -> tuple[NodeRequestGroups, bool]:
        """Return what an allocation candidate must offer to a request.

        :returns: the required properties, and whether the request also accepts
            devices that are not on the guest's NUMA nodes.
        """
        policy = request_filter.parse_policy(spec)
        if policy is None:
            return NodeRequestGroups({}), False
        section = shared.config().ghsched
        option = request_filter.get_vf_query_option(spec, policy)
        requests = spec.pci_requests and spec.pci_requests.requests
        required = NodeRequestGroups(
            request.list_node_suffixes(policy, section.bandwidth_accounting,
                                       option.joins),
            host_view.list_vf_requests(spec), option.locality,
            guest_nodes=len(spec.numa_topology or ()),
            device_numa=policy.device_numa,
            near=bool(spec.numa_topology
                      and policy.device_numa != keys.NONE
                      and near.list_requests_without_vf_policy(requests)))
        return required, policy.device_numa == keys.PREFERRED

    def _choose_candidate(self, view: HostStateView, spec: shared.RequestSpec,
                          required: NodeRequestGroups) -> Lack | None:
        """Choose a host's allocation candidate for a request.

        The host's NUMA limits are set to the NUMA nodes of the candidate, so
        that nova-compute claims the guest on these nodes.

        :param view: state of the host.
        :param required: properties that the allocation candidate must have.
        :returns: None if a candidate was chosen, otherwise the reason why none
            fits.
        """
        if not view.numa_topology:
            return NO_TOPOLOGY
        if required.near and not scheduler.offers_pseudo_networks(
                view.numa_topology, names.make_node_physnet):
            return NOT_STEERED
        if not scheduler.satisfies_cpu_thread_policy(view.numa_topology, spec):
            return CPU_POLICY
        candidates.map_vfs_to_pfs(view.allocation_candidates, required.vfs)
        room = NodeFitCache(view, spec)
        host = _describe_host(view, spec)
        search = _CandidateSearch(view, spec, required)
        # Nova's fit is asked about the best way only, as long as it agrees.
        for has_capacity, most in ((room.may_have_room, 1),
                                   (room.has_capacity,
                                    node_assignment.MOST_TRIED)):
            placed, refusal = node_assignment.assign_host_nodes(
                view.allocation_candidates, required, host, has_capacity,
                _make_placement_cost_function(view, spec))
            if refusal is candidates.UNKNOWN_DEVICES and view.claimed:
                return TAKEN    # the host state forgets PFs without a free VF
            if refusal is not None:
                return refusal
            if search.keep_first_fitting_candidate(placed, most):
                return None
        return search.refusal


class _CandidateSearch:
    """Search for the first of a host's allocation candidates that fits.

    Of candidates with equal nodes and devices, only one is tried.

    :param view: state of the host; its candidates are replaced.
    :ivar refusal: reason why the first candidate that was tried does not fit.
    """

    def __init__(self, view: HostStateView, spec: shared.RequestSpec,
                 required: NodeRequestGroups) -> None:
        self._view, self._spec, self._required = view, spec, required
        # A preference of Nova's affinity policy is content with any PF.
        self._strict = pci_requests.has_strict_vf_affinity(spec.pci_requests)
        self._node_of = (scheduler.map_pfs_to_nodes(view) if self._strict
                         else {})
        self._tried: set[Any] = set()
        self.refusal: Lack | None = None

    def keep_first_fitting_candidate(
            self, placed: Iterable[NodeAssignment], most: int) -> bool:
        """Remove a host's allocation candidates except the first that fits.

        :param placed: assignments to host NUMA nodes, each with its allocation
            candidates; the best first.
        :param most: number of candidates that are tried.
        :returns: whether a candidate fits.
        """
        for way in placed:
            key = (way.get_host_node_order(), way.others, frozenset(
                self._node_of[pf] for pf in way.pfs if self._strict))
            if key in self._tried:
                continue
            self._tried.add(key)
            kept = _check_candidate_fits(self._view, self._spec, way,
                                         self._required.near)
            if isinstance(kept, NodeAssignment):
                self._view.allocation_candidates = [kept.candidate]
                return True
            self.refusal = self.refusal or kept
            if len(self._tried) >= most:
                break
        return False


def _describe_host(view: HostStateView, spec: shared.RequestSpec
                   ) -> candidates.HostProviders:
    networks = {cell.id: numa.get_physnets(cell)
                for cell in view.numa_topology.cells}
    nearest = {node: number for number, physnets in networks.items()
               for physnet in physnets
               if (node := names.parse_cpuless_node_physnet(physnet))
               is not None}
    shows_device_cells = any(names.DEVICE_CELLS_PHYSNET in physnets
                             for physnets in networks.values())
    return candidates.HostProviders(
        node_of_numa={names.make_numa_provider_uuid(view.uuid,
                                                    cell.id): cell.id
                      for cell in view.numa_topology.cells},
        node_of_pf=scheduler.map_pfs_to_nodes(view),
        socket_of=scheduler.get_node_sockets(view.numa_topology),
        nearest=nearest, shows_device_cells=shows_device_cells,
        compute_busy=functools.partial(_compute_node_costs, view),
        needed=needed_nodes.find_needed_nodes(
            view, spec, functools.partial(needed_nodes.get_offered_amounts,
                                          spec), nearest, shows_device_cells))


def _compute_node_costs(view: HostStateView
                        ) -> dict[int, candidates.NodeCost]:
    """Return the rank of each NUMA node of a host for new guests.

    The lowest cost comes first. The costs are those of the first feature that
    has any, such as the load of the nodes; empty if no feature has.
    """
    return next(filter(None, (cost.rank_nodes(view) for cost
                              in declared_filter.NODE_COSTS)), {})


def _make_placement_cost_function(view: HostStateView, spec: shared.RequestSpec
                                  ) -> candidates.Cost | None:
    """Return a function of the cost of placements on a host.

    :returns: None if no placement is preferred.
    """
    return next((cost for one in declared_filter.NODE_COSTS if (
        cost := one.make_placement_cost(view, spec)) is not None), None)


def _copy_request_with_topology(spec: shared.RequestSpec
                                ) -> shared.RequestSpec:
    """Return a copy of a request whose guest has a NUMA topology.

    Nova changes the topology of the original when it subtracts the guest from
    a host. A request without a NUMA topology is returned itself.
    """
    if 'numa_topology' not in spec or not spec.numa_topology:
        return spec
    copy = spec.obj_clone()
    request_filter.set_provider_summaries(
        copy, request_filter.get_provider_summaries(spec))
    return copy


def _yield_open_hosts(hosts: Iterable[Any], spec: shared.RequestSpec,
                      refused: GroupedReasons) -> Iterator[Any]:
    """Yield the states of hosts that may have room for the next instance.

    Nova's filter writes the NUMA limits of an instance into the host state. If
    an earlier instance of the same multi-create request has limits there, a
    copy of the host state is yielded. Hosts whose resources earlier instances
    have taken are left out.

    :param refused: the reason of each host that is left out is added here.
    """
    may_be_taken = (request_filter.has_ghsched_extra_specs(spec)
                    and not scheduler.is_for_one_server(spec))
    for host in hosts:
        state = HostStateView(host) if isinstance(host,
                                                  HostStateView) else host
        if not may_be_taken or any(_yield_free_candidates(state, spec)):
            yield state
        else:
            refused.add_reason(host.host, TAKEN)


def _check_candidate_fits(view: HostStateView, spec: shared.RequestSpec,
                          placed: NodeAssignment,
                          near_devices: bool) -> NodeAssignment | Lack:
    """Check whether a guest fits on the NUMA nodes of an allocation candidate.

    If it does, the NUMA limits of the host state are set to these nodes.

    :param view: state of the candidate's host.
    :param placed: assignment of the guest to host NUMA nodes, with the
        allocation candidate.
    :param near_devices: whether the devices that nova-compute claims must be
        on the guest's NUMA nodes.
    :returns: the assignment, or the reason why the guest does not fit.
    """
    wanted = placed.get_host_node_order()
    mappings = placed.candidate['mappings']
    limits = scheduler.make_numa_limits(view, spec, wanted, bool(wanted))
    requests = spec.pci_requests.requests if spec.pci_requests else []
    if near_devices:
        try:
            requests = near.require_near_devices(
                scheduler.copy_requests_for_claim(requests, mappings))
        except exception.NovaException as error:
            return Lack(None, 'devices', reason='the devices cannot be on '
                        'the NUMA nodes of the guest', detail=str(error))
    fitted = scheduler.fit_guest_topology(view, spec, limits, mappings,
                                          requests)
    if fitted is None:
        return _make_shortage_reason(
            wanted, near_devices and near.describe_device_shortage(
                requests, functools.partial(scheduler.count_free_devices,
                                            view)))
    # The claim may have devices far, but not from these nodes.
    view.limits['numa_topology'] = scheduler.make_numa_limits(
        view, spec, numa.list_host_nodes(fitted), in_order=True)
    return placed


def _make_shortage_reason(nodes: Sequence[int],
                          missing_devices: str | bool) -> Lack:
    """Return the reason why a guest does not fit on a candidate's NUMA nodes.

    :param nodes: host NUMA nodes of an allocation candidate; may be empty.
    :param missing_devices: description of the devices that are not free on
        these nodes; empty if none is missing.
    """
    lack = candidates.make_node_capacity_reason(nodes) if nodes else NO_ROOM
    if not missing_devices:
        return lack
    return dataclasses.replace(lack, detail='; '.join(filter(None, (
        lack.detail,
        f'of the devices to be on the same node, {missing_devices}'))))


def _yield_free_candidates(state: Any, spec: shared.RequestSpec
                           ) -> Iterator[Mapping[str, Any]]:
    """Yield the allocation candidates of a host that are still free.

    Earlier instances of the request may have taken the resources of others.
    """
    for candidate in state.allocation_candidates:
        free = ((allocation['resources'],
                 needed_nodes.get_offered_amounts(spec, provider))
                for provider, allocation in candidate['allocations'].items())
        if all(amount <= left.get(name, amount) for resources, left in free
               for name, amount in resources.items()):
            yield candidate


def _log_refusals_once(spec: shared.RequestSpec, refused: GroupedReasons,
                       verb: str) -> None:
    """Log each reason why hosts were refused, once per request.

    If nova-scheduler may search several times for the request, the reasons are
    only stored in the request. The scheduler manager logs them after the last
    search.

    :param refused: reasons, each with the hosts that were refused for it.
    :param verb: verb of the log lines, such as ``refused``.
    """
    lines = refused.format_log_lines(spec.flavor.name, verb)
    refusals = request_filter.get_refusals(spec)
    if refusals is not None:
        refusals.update(zip(
            lines, refused.list_reasons_by_frequency(), strict=True))
        return
    known: set[str] = spec.__dict__.setdefault('_ghsched_logged', set())
    for line in lines:
        if line not in known:
            known.add(line)
            LOG.info('ghsched: hosts refused or ranked lower: flavor %s', line)
