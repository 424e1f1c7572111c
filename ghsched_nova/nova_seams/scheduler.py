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

"""Seams of nova-scheduler: requests, candidates, claims and filters."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import copy
import types
from typing import Any

from nova.compute import utils as compute_utils
import nova.conf
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import fields
from nova.objects import request_spec
from nova.scheduler.client import report
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from nova.virt import hardware

from ghsched_nova.base import wrappers
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import pci
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams.shared import InstanceNUMATopology
from ghsched_nova.nova_seams.shared import NUMATopology
from ghsched_nova.nova_seams.shared import RequestSpec
from ghsched_placement.providers import names

seam = registry.make_seam_decorator(registry.SCHEDULER)

#: Status of Placement's answer to a claim that succeeded.
_CLAIMED = 204

_POOLS = ('Lists the pools of devices that a claim chooses from; Nova has '
          'public functions only for whether a request fits.')


@seam('nova.scheduler.request_filter.ALL_REQUEST_FILTERS',
      replaced='The request filter (the list gets one function); Nova has no '
               'option for request filters.')
@seam('nova.scheduler.request_filter.process_reqspec',
      ('ctxt', 'request_spec'))
def add_request_filter(
        function: Callable[[Any, RequestSpec], bool]) -> None:
    """Add a filter to nova-scheduler's request filters.

    A request filter changes a request before Placement is asked. Nova has no
    entry point for request filters, but walks the list
    ``nova.scheduler.request_filter.ALL_REQUEST_FILTERS`` at each request
    (``process_reqspec``). Scheduler filters are imported while the host
    manager is built, before the first request.
    """
    if function not in request_filter.ALL_REQUEST_FILTERS:
        request_filter.ALL_REQUEST_FILTERS.append(function)
        registry.record_addition(
            'nova.scheduler.request_filter.ALL_REQUEST_FILTERS', function)


@seam('nova.scheduler.host_manager.HostManager.host_state_cls',
      ('self', 'host', 'node', 'cell', 'kwargs'))
def set_host_state_class(
        manager: Any, make_host_state: Callable[[str, str, str], Any]) -> None:
    """Set the class that nova-scheduler's host manager uses for host states.

    ``HostManager`` calls ``host_state_cls`` for each host of a request.

    :param manager: ``nova.scheduler.host_manager.HostManager``.
    :param make_host_state: takes host, node and UUID of the cell.
    """
    def host_state_cls(host: str, node: str, cell: str,
                       **_kwargs: Any) -> Any:
        return make_host_state(host, node, cell)

    manager.host_state_cls = host_state_cls


class _SpecWithProviders(request_spec.RequestSpec):
    """Copy of a request whose request groups have other resource providers.

    :param mapping: UUIDs of the resource providers by suffix of the request
        group, returned in place of those of the request.
    """

    # pylint: disable=super-init-not-called
    def __init__(self, spec: RequestSpec,
                 mapping: dict[str, list[str]]) -> None:
        self.__dict__.update(spec.__dict__)
        self._mapping = mapping

    @classmethod
    def obj_name(cls) -> str:
        return 'RequestSpec'

    def get_request_group_mapping(self) -> dict[str, list[str]]:
        return self._mapping


@seam('nova.objects.request_spec.RequestSpec.get_request_group_mapping',
      ('self',))
def get_request_group_providers(spec: RequestSpec) -> dict[str, list[str]]:
    """Return the resource providers chosen for each request group.

    :returns: UUIDs of providers by suffix of the request group.
    """
    return spec.get_request_group_mapping() or {}


def copy_with_request_group_providers(
        spec: RequestSpec, mapping: dict[str, list[str]]) -> RequestSpec:
    """Return a copy of a request with other providers for its request groups.

    :param mapping: resource providers by suffix of the request group.
    """
    return _SpecWithProviders(spec, mapping)


@seam('nova.scheduler.host_manager.HostManager.enabled_filters')
@seam('nova.filters.BaseFilterHandler.get_filtered_objects',
      ('self', 'filters', 'objs', 'spec_obj', 'index'))
@seam('nova.filters.BaseFilter.filter_all',
      ('self', 'filter_obj_list', 'spec_obj'))
@seam('nova.scheduler.manager.SchedulerManager._get_all_host_states',
      ('self', 'context', 'spec_obj', 'provider_summaries'),
      overridden='Keeps the providers of Placement\'s answer, which Nova '
                 'passes to no filter.')
@seam('nova.scheduler.client.report.SchedulerReportClient.'
      'get_allocation_candidates', ('self', 'context', 'resources'))
def make_counting_filters(
        filters: Iterable[Any],
        record_filter: Callable[[str, int, int], None]) -> list[Any]:
    """Return copies of scheduler filters that record how many hosts pass.

    Nova reads a filter's class name and calls its ``filter_all``.

    :param record_filter: function that is called after each filter that ran;
        takes the name of the filter, and the number of hosts before and after
        the filter.
    """
    return [_make_counting_filter(one, record_filter) for one in filters]


@seam('nova.manager.Manager.additional_endpoints')
def add_rpc_endpoint(manager: Any, endpoint: Any) -> None:
    """Add an RPC endpoint to those that the manager of a Nova service offers.
    """
    manager.additional_endpoints.append(endpoint)


def _make_counting_filter(
        original: Any, record_filter: Callable[[str, int, int], None]) -> Any:
    def filter_all(hosts: Iterable[Any], spec: RequestSpec) -> Any:
        before = list(hosts)
        after = original.filter_all(before, spec)
        if after is None:       # "stop filtering"
            return None
        after = list(after)
        record_filter(type(original).__name__, len(before), len(after))
        return after

    watched = copy.copy(original)
    watched.filter_all = filter_all
    return watched


def is_rebuild(spec: RequestSpec) -> bool:
    """Return whether a scheduling request is for a rebuild.

    A rebuilt server keeps its host.
    """
    return bool(scheduler_utils.request_is_rebuild(spec))


def is_for_one_server(spec: RequestSpec) -> bool:
    """Return whether no other server is placed by the same request."""
    return 'num_instances' in spec and spec.num_instances == 1


def is_host_forced(spec: RequestSpec) -> bool:
    """Return whether a scheduling request forces a host.

    Nova runs no filter for such a request
    (``nova.scheduler.host_manager.HostManager.get_filtered_hosts``).
    """
    return any(name in spec and getattr(spec, name)
               for name in ('force_hosts', 'force_nodes'))


@seam('nova.objects.request_spec.RequestGroup.to_queryparams', ('self',))
class _GroupWithoutResources(request_spec.RequestGroup):
    """Request group that names a resource provider but asks for no resources.

    Placement accepts such groups since microversion 1.36. Nova's query would
    contain an empty list of resources, which Placement refuses.
    """

    @classmethod
    def obj_name(cls) -> str:
        return 'RequestGroup'

    def to_queryparams(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in super().to_queryparams()
                if value]


def make_request_group(suffix: str, resources: Mapping[str, int],
                       required: Iterable[str]) -> Any:
    """Return a granular request group for an allocation candidates query.

    :param suffix: name of the group in the query.
    :param resources: amounts by resource class.
    :param required: required traits.
    """
    kind = request_spec.RequestGroup if resources else _GroupWithoutResources
    return kind(requester_id=suffix, use_same_provider=True,
                resources=dict(resources), required_traits=set(required))


def get_node_sockets(topology: NUMATopology) -> dict[int, int | None]:
    """Return the CPU socket of each NUMA node of a host."""
    return {cell.id: cell.socket if 'socket' in cell else None
            for cell in topology.cells}


class _ClientWithoutAllocations(wrappers.ObjectWrapper):
    """Placement client that answers each GET as if it found nothing (404).

    With it Nova's claim assumes that a consumer has no allocation yet.
    """

    @staticmethod
    def get(*_args: Any, **_kwargs: Any) -> Any:
        return types.SimpleNamespace(status_code=404)


@seam('nova.scheduler.client.report.SchedulerReportClient.claim_resources',
      ('self', 'context', 'consumer_uuid', 'alloc_request', 'project_id',
       'user_id', 'allocation_request_version', 'consumer_generation'))
@seam('nova.scheduler.client.report.SchedulerReportClient.'
      'get_allocs_for_consumer', ('self', 'context', 'consumer'))
def claim_resources(client: Any, context: Any, consumer: str,
                    request: Mapping[str, Any], *args: Any,
                    **kwargs: Any) -> frozenset[str]:
    """Claim a guest's resources in Placement.

    Nova's ``SchedulerReportClient.claim_resources`` first reads the allocation
    of the guest, because an evacuated guest has one. For a guest with a
    resource class of ghsched, the first claim assumes that the guest has none,
    which saves a request. The allocation is read only if Placement refuses
    this claim. Other guests are claimed as Nova does.

    :returns: UUIDs of the resource providers on which the guest has gained
        resources; empty if the claim failed.
    """
    wanted = frozenset(request['allocations'])
    if not has_ghsched_class(request):
        claimed = client.claim_resources(context, consumer, request, *args,
                                         **kwargs)
        return wanted if claimed else frozenset()
    try:
        claimed = report.SchedulerReportClient.claim_resources(
            _ClientWithoutAllocations(client), context, consumer, request,
            *args, **kwargs)
    except exception.AllocationUpdateFailed:
        held = client.get_allocs_for_consumer(context, consumer)
        wanted -= frozenset(held['allocations'])
        claimed = client.claim_resources(context, consumer, request, *args,
                                         **kwargs)
    return wanted if claimed else frozenset()


def has_ghsched_class(request: Mapping[str, Any]) -> bool:
    """Return whether an allocation candidate has a resource class of ghsched.
    """
    return any(names.OUR_CLASSES.intersection(allocation['resources'])
               for allocation in request['allocations'].values())


@seam('nova.scheduler.client.report.SchedulerReportClient.post',
      ('self', 'url', 'data', 'version', 'global_request_id'))
@seam('nova.scheduler.client.report.SchedulerReportClient.'
      'delete_allocation_for_instance',
      ('self', 'context', 'uuid', 'consumer_type', 'force'))
@seam('nova.scheduler.client.report.safe_connect', ('f',))
def claim_all_or_none(client: Any, context: Any,
                      requests: Mapping[str, Mapping[str, Any]],
                      project_id: str, user_id: str,
                      allocation_request_version: str,
                      **_consumer_generation: Any) -> bool:
    """Claim the resources of several new guests by one request to Placement.

    After any other answer than success, the allocations of the guests are
    deleted: Placement may have stored them all the same, if the answer is that
    of a proxy or that to a repetition of the request.

    :param requests: allocation candidate of each guest, by its UUID.
    :returns: whether the guests have their resources; if not, none has any.
    :raises nova.exception.NovaException: if it is unknown whether the guests
        have their resources.
    """
    answer = report.safe_connect(report.SchedulerReportClient.post)(
        client, '/allocations', {
            consumer: {**request, 'project_id': project_id,
                       'user_id': user_id, 'consumer_generation': None}
            for consumer, request in requests.items()},
        version=allocation_request_version,
        global_request_id=context.global_id)
    if answer is not None and answer.status_code == _CLAIMED:
        return True
    for consumer in requests:
        if client.delete_allocation_for_instance(context, consumer,
                                                 force=True) is None:
            raise exception.PlacementAPIConnectFailure
    return False


def get_chosen_nodes(state: Any) -> tuple[int, ...] | None:
    """Return the host NUMA node that ghsched chose for each guest NUMA node.

    Returns None if ghsched's filter chose none.
    """
    limits = state.limits or {}
    return numa.parse_chosen_host_nodes(limits.get('numa_topology'))


def make_numa_limits(host_state: Any, spec: RequestSpec, nodes: Sequence[int],
                     in_order: bool) -> Any:
    """Return limits that restrict a guest's claim to some host NUMA nodes.

    The claim (``nova.virt.hardware.numa_fit_instance_to_host``, called by
    ``nova.compute.claims``) takes host nodes that together have every physical
    network named in the limits. The limits therefore name a pseudo network of
    each chosen node, besides the guest's real networks.

    :param nodes: host NUMA nodes.
    :param in_order: whether there is one host node for each guest node, in the
        order of the guest nodes.
    """
    wanted = set(map(names.make_node_physnet, nodes))
    if in_order:
        wanted.add(names.make_host_nodes_physnet(nodes))
    tunneled = False
    metadata = (spec.network_metadata
                if 'network_metadata' in spec else None)
    if metadata is not None:
        wanted |= set(metadata.physnets)
        tunneled = metadata.tunneled
    return numa.make_limits(host_state, wanted, tunneled)


def fit_guest_topology(host_state: Any, spec: RequestSpec, limits: Any,
                       mappings: Any,
                       requests: Sequence[Any]) -> InstanceNUMATopology | None:
    """Return the guest NUMA topology that a claim on a host would choose.

    ``numa_fit_instance_to_host`` fills in the topology that it is given, so it
    gets a copy.

    :param limits: NUMA limits of the claim.
    :param mappings: resource providers of each request group.
    :param requests: PCI requests.
    :returns: the fitted topology; None if the guest does not fit.
    """
    with numa.choosing_cpus(spec.flavor):
        return hardware.numa_fit_instance_to_host(
            host_state.numa_topology, spec.numa_topology.obj_clone(),
            limits=limits, pci_requests=requests,
            pci_stats=host_state.pci_stats, provider_mapping=mappings)


def has_node_capacity(host_state: Any, spec: RequestSpec, guest_node: int,
                      host_node: int) -> bool:
    """Return whether a guest NUMA node fits on a host NUMA node.

    Only CPUs and memory are compared.
    """
    topology = numa.copy_with_one_guest_node(spec.numa_topology, guest_node)
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=host_state.cpu_allocation_ratio,
        ram_allocation_ratio=host_state.ram_allocation_ratio)
    host = numa.copy_with_nodes_in_order(host_state.numa_topology, [host_node])
    with numa.choosing_cpus(spec.flavor):
        return bool(hardware.numa_fit_instance_to_host(host, topology, {},
                                                       limits=limits))


def offers_pseudo_networks(topology: NUMATopology,
                           make_name: Callable[[int], str]) -> bool:
    """Return whether each NUMA node of a host offers ghsched's pseudo network.

    A pseudo network is a physical network without hardware, which names the
    node in a claim's limits.

    :param make_name: function that returns the name of a host NUMA node's
        pseudo network.
    """
    return all(make_name(cell.id) in numa.get_physnets(cell)
               for cell in topology.cells)


@seam('nova.pci.stats.PciDeviceStats.pools')
@seam('nova.scheduler.host_manager.HostState.pci_stats')
@seam('nova.scheduler.host_manager.HostState.limits')
@seam('nova.scheduler.host_manager.HostState.allocation_candidates')
@seam('nova.scheduler.host_manager.HostState.numa_topology')
def map_pfs_to_nodes(host_state: Any) -> dict[str, int | None]:
    """Return the host NUMA node of each PF that has free devices.

    :param host_state: Nova's host state, with the PCI pools of the host.
    :returns: host NUMA node by UUID of the PF's resource provider; None for a
        PF without a NUMA node.
    """
    stats = host_state.pci_stats
    return pci.map_pools_to_nodes(stats.pools if stats else ())


@seam('nova.compute.utils.update_pci_request_with_placement_allocations',
      ('context', 'report_client', 'pci_requests', 'provider_mapping'))
def copy_requests_for_claim(requests: Sequence[Any],
                            mappings: Any) -> list[Any]:
    """Return copies of PCI requests, changed as nova-compute does for a claim.

    For a port with guaranteed bandwidth, Placement chose the PF. Nova reads
    the PF's interface from the name of the provider, and the claim takes a VF
    of that PF (``nova.compute.manager``, before each claim).

    :param mappings: resource providers of each request group.
    :raises nova.exception.NovaException: if the provider or its name is not as
        Nova expects.
    """
    copies = [request.obj_clone() for request in requests]
    compute_utils.update_pci_request_with_placement_allocations(
        nova_context.get_admin_context(), shared.get_placement_client(),
        copies, mappings)
    return copies


@seam('nova.pci.stats.PciDeviceStats._filter_pools_for_spec',
      ('self', 'pools', 'request'), called=_POOLS)
@seam('nova.pci.stats.PciDeviceStats._filter_pools_for_unrequested_pfs',
      ('self', 'pools', 'request'), called=_POOLS)
@seam('nova.pci.stats.PciDeviceStats._get_rp_uuids_for_request',
      ('self', 'provider_mapping', 'request'), called=_POOLS)
@seam('nova.pci.stats.PciDeviceStats.'
      '_filter_pools_based_on_placement_allocation',
      ('self', 'pools', 'request', 'rp_uuids'), called=_POOLS)
def list_matching_pools(host_state: Any,
                        request: Any,
                        mappings: Any = None) -> list[Any]:
    """Return the PCI pools of a host that match a PCI request.

    A PCI pool is Nova's record of equal free devices on a host.

    :param mappings: resource providers of the candidate to claim; if they name
        pools for the request, only these are returned.
    """
    stats = host_state.pci_stats
    pools = stats.pools if stats else []
    for matching in ('_filter_pools_for_spec',
                     '_filter_pools_for_unrequested_pfs'):
        pools = getattr(stats, matching)(pools, request) if pools else []
    return list(stats._filter_pools_based_on_placement_allocation(
        pools, request, stats._get_rp_uuids_for_request(mappings, request))
        if mappings and pools else pools)


@seam('nova.objects.numa.NUMATopology.has_threads')
def satisfies_cpu_thread_policy(topology: NUMATopology,
                                spec: RequestSpec) -> bool:
    """Return whether a host suits the CPU thread policy of a request.

    It does not if the policy requires hardware threads and the host has none.
    Nova refuses such a host, too, but names no reason.
    """
    guest: InstanceNUMATopology = spec.numa_topology
    return bool(topology.has_threads) or not any(
        cell.cpu_thread_policy == fields.CPUThreadAllocationPolicy.REQUIRE
        for cell in (guest.cells if guest else ()))


def count_free_devices(host_state: Any, request: Any) -> dict[int | None, int]:
    """Return the number of free devices for a PCI request by host NUMA node.

    The key is None for devices whose NUMA node the host does not report.
    """
    found: dict[int | None, int] = {}
    for pool in list_matching_pools(host_state, request):
        node = pool.get('numa_node')
        found[node] = found.get(node, 0) + pool['count']
    return found


@seam('nova.objects.instance_action.InstanceActionEvent.event_start',
      ('context', 'instance_uuid', 'event_name', 'want_result', 'host'))
@seam('nova.objects.instance_action.InstanceActionEvent.'
      'event_finish_with_failure',
      ('context', 'instance_uuid', 'event_name', 'exc_val', 'exc_tb',
       'want_result'))
def add_failed_action_event(context: Any, uuid: str, name: str,
                            reason: str) -> None:
    """Add a failed event with a reason to a server's current instance action.

    nova-conductor's ``nova.compute.utils.EventReporter`` does the same.
    nova-api has started the action with the request ID of the context. A
    server that is not in a cell yet has no actions.

    :param name: name of the event.
    """
    cell = objects.InstanceMapping.get_by_instance_uuid(
        context, uuid).cell_mapping
    if cell is None:
        return
    with nova_context.target_cell(context, cell) as of_cell:
        event = objects.InstanceActionEvent
        event.event_start(of_cell, uuid, name, want_result=False,
                          host=nova.conf.CONF.host)
        event.event_finish_with_failure(of_cell, uuid, name, exc_val=reason,
                                        exc_tb='', want_result=False)
