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

"""Every seam into Nova that is no documented extension point.

Each function here names the code of Nova that it relies on, and
:data:`RELIED_ON` lists the signatures; a unit test compares them with the
Nova that is installed, so that a change there fails a test here and not a
guest there.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import copy
from dataclasses import dataclass
import datetime
import functools
import itertools
import random
import socket
import sys
import threading
import time
import types
from typing import Any
from typing import TypeAlias

from keystoneauth1 import exceptions as ksa_exceptions
from nova.compute import api as compute_api
from nova.compute import resource_tracker
from nova.compute import rpcapi as compute_rpcapi
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.conductor import api as conductor_api
import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db
from nova.db.main import models as main_models
from nova import exception
from nova.limit import placement as placement_limits
from nova.limit import utils as limit_utils
from nova import objects
from nova.objects import flavor as flavor_object
from nova.objects import numa as numa_object
from nova.objects import request_spec
from nova.pci import request as pci_request
from nova.pci import whitelist
from nova import policy as nova_policy
from nova import rpc
from nova.scheduler.client import report
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from nova import service
from nova.virt import hardware
from openstack import exceptions as sdk_exceptions
from oslo_concurrency import lockutils
from oslo_limit import exception as limit_exceptions
from oslo_log import log as logging
from oslo_serialization import jsonutils
from oslo_utils import timeutils
import sqlalchemy as sa

from ghsched_nova import conf
from ghsched_placement import names
from ghsched_placement import node_move
from ghsched_placement import node_room
from ghsched_placement import policy as policies

LOG = logging.getLogger(__name__)

#: What a live migration is, from the first status to the last, until it ends.
_LIVE_MIGRATING = ('accepted', 'queued', 'preparing', 'running')

#: How often a conflict is tried again, and what Placement calls one that is
#: not about the consumer, of which somebody else has made something else.
_CONFLICTS = 5
_OF_PROVIDER = 'Inventory and/or allocations changed'

#: So many times what waits for a host that has gone.
_TIME_OUTS = 2

#: What of an instance a migration context changes, and that.
_OF_MIGRATION = ('migration_context', 'numa_topology', 'pci_requests',
                 'pci_devices', 'resources')

#: What an evacuation is until the guest is on its new host.
_EVACUATING = ('accepted', 'pre-migrating')

#: VIR_DOMAIN_JOB_BOUNDED and VIR_DOMAIN_JOB_UNBOUNDED of libvirt, which only
#: nova-compute has.
_JOBS = (1, 2)

#: VIR_DOMAIN_PAUSED with the reasons VIR_DOMAIN_PAUSED_MIGRATION, _POSTCOPY
#: and _POSTCOPY_FAILED.
_PAUSED_BY_MIGRATION = ((3, 2), (3, 12), (3, 13))

#: Attribute of a wrapper around a function of Nova's: qualified names of
#: the functions of ours around it.
_OURS = '_ghsched_wrapped'

#: Marks an instance that keeps its flavor.
_KEEPS = '_ghsched_keeps_flavor'

#: Methods of ``nova.compute.api.API`` that schedule a guest again.
MOVES = ('evacuate', 'live_migrate', 'rebuild', 'resize', 'unshelve')

#: Where nova-compute listens on the message bus.
COMPUTE_TOPIC: str = compute_rpcapi.RPC_TOPIC

#: Nova has no type hints for these.
InstanceNUMATopology: TypeAlias = Any
NUMATopology: TypeAlias = Any
RequestSpec: TypeAlias = Any

#: Dotted name -> parameters, for what we override or call.
RELIED_ON: dict[str, tuple[str, ...]] = {
    'nova.policy.init': (
        'policy_file', 'rules', 'default_rule', 'use_conf',
        'suppress_deprecation_warnings'),
    'nova.policy.authorize': (
        'context', 'action', 'target', 'do_raise', 'exc'),
    'nova.virt.libvirt.driver.LibvirtDriver._get_guest_xml': (
        'self', 'context', 'instance', 'network_info', 'disk_info',
        'image_meta', 'rescue', 'block_device_info', 'mdevs', 'accel_info',
        'share_info', 'old_guest'),
    'nova.virt.libvirt.driver.LibvirtDriver._create_guest': (
        'self', 'context', 'xml', 'instance', 'power_on', 'pause',
        'post_xml_callback'),
    'nova.virt.libvirt.driver.LibvirtDriver.'
    '_needs_suspend_resume_for_snapshot': (
        'self', 'live_snapshot', 'current_power_state'),
    'nova.virt.libvirt.driver.LibvirtDriver._attach_pci_devices': (
        'self', 'guest', 'pci_devs'),
    'nova.virt.libvirt.driver.LibvirtDriver.'
    '_attach_direct_passthrough_ports': (
        'self', 'context', 'instance', 'guest', 'network_info'),
    'nova.virt.libvirt.driver.LibvirtDriver._soft_reboot': (
        'self', 'instance'),
    'nova.virt.libvirt.driver.LibvirtDriver._resume_guest_after_snapshot': (
        'self', 'context', 'live_snapshot', 'original_power_state',
        'instance', 'guest'),
    'nova.virt.libvirt.host.Host.get_guest': ('self', 'instance'),
    'nova.virt.libvirt.host.Host._get_connection': ('self',),
    'nova.virt.libvirt.host.Host._test_connection': ('conn',),
    'nova.virt.libvirt.host.Host._connection_closed': (
        'self', 'conn', 'args', 'kwargs'),
    'nova.virt.libvirt.guest.Guest.launch': ('self', 'pause'),
    'nova.virt.libvirt.driver.LibvirtDriver._get_pci_passthrough_devices': (
        'self',),
    'nova.virt.libvirt.driver.LibvirtDriver._get_host_numa_topology': (
        'self',),
    'nova.virt.libvirt.driver.LibvirtDriver._live_migration_operation': (
        'self', 'context', 'instance', 'dest', 'block_migration',
        'migrate_data', 'guest', 'device_names'),
    'nova.virt.hardware.numa_fit_instance_to_host': (
        'host_topology', 'instance_topology', 'provider_mapping', 'limits',
        'pci_requests', 'pci_stats'),
    'nova.scheduler.filters.numa_topology_filter.NUMATopologyFilter.'
    '_satisfies_cpu_policy': (
        'self', 'host_state', 'extra_specs', 'image_props'),
    'nova.scheduler.host_manager.HostState.consume_from_request': (
        'self', 'spec_obj'),
    'nova.scheduler.host_manager.HostState.__init__': (
        'self', 'host', 'node', 'cell_uuid'),
    'nova.filters.BaseFilterHandler.get_filtered_objects': (
        'self', 'filters', 'objs', 'spec_obj', 'index'),
    'nova.filters.BaseFilter.filter_all': (
        'self', 'filter_obj_list', 'spec_obj'),
    'nova.scheduler.client.report.SchedulerReportClient.'
    'get_allocation_candidates': ('self', 'context', 'resources'),
    'nova.scheduler.client.report.SchedulerReportClient.claim_resources': (
        'self', 'context', 'consumer_uuid', 'alloc_request', 'project_id',
        'user_id', 'allocation_request_version', 'consumer_generation'),
    'nova.scheduler.client.report.SchedulerReportClient.'
    'get_allocs_for_consumer': ('self', 'context', 'consumer'),
    'nova.scheduler.client.report.SchedulerReportClient.'
    'remove_resources_from_instance_allocation': (
        'self', 'context', 'consumer_uuid', 'resources'),
    'nova.scheduler.utils.ResourceRequest.to_querystring': ('self',),
    'nova.scheduler.host_manager.HostManager._get_host_states': (
        'self', 'context', 'compute_nodes', 'services'),
    'nova.scheduler.manager.SchedulerManager._get_all_host_states': (
        'self', 'context', 'spec_obj', 'provider_summaries'),
    'nova.scheduler.manager.SchedulerManager._schedule': (
        'self', 'context', 'spec_obj', 'instance_uuids',
        'alloc_reqs_by_rp_uuid', 'provider_summaries',
        'allocation_request_version', 'return_alternates'),
    'nova.scheduler.utils.ResourceRequest.get_request_group': (
        'self', 'ident'),
    'nova.objects.service.Service._from_db_object': (
        'context', 'service', 'db_service'),
    'nova.objects.numa.NUMATopology.obj_from_db_obj': ('db_obj',),
    'nova.db.main.api.get_engine': ('use_slave', 'context'),
    'nova.context.scatter_gather_cells': (
        'context', 'cell_mappings', 'timeout', 'fn', 'args', 'kwargs'),
    'nova.scheduler.request_filter.process_reqspec': ('ctxt', 'request_spec'),
    'nova.service.Service.create': (
        'host', 'binary', 'topic', 'manager', 'report_interval',
        'periodic_enable', 'periodic_fuzzy_delay', 'periodic_interval_max',
        'topic_alt'),
    'nova.compute.provider_tree.ProviderTree.update_resources': (
        'self', 'name_or_uuid', 'resources'),
    'nova.pci.request.get_pci_requests_from_flavor': (
        'flavor', 'affinity_policy'),
    'nova.compute.api.API._confirm_resize_on_deleting': (
        'self', 'context', 'instance'),
    'nova.compute.api.API.evacuate': (
        'self', 'context', 'instance', 'host', 'on_shared_storage',
        'admin_password', 'force', 'target_state'),
    'nova.compute.api.API.live_migrate': (
        'self', 'context', 'instance', 'block_migration', 'disk_over_commit',
        'host_name', 'force', 'async_'),
    'nova.compute.api.API.rebuild': (
        'self', 'context', 'instance', 'image_href', 'admin_password',
        'files_to_inject', 'reimage_boot_volume', 'kwargs'),
    'nova.compute.api.API.resize': (
        'self', 'context', 'instance', 'flavor_id', 'clean_shutdown',
        'host_name', 'auto_disk_config'),
    'nova.compute.api.API.unshelve': (
        'self', 'context', 'instance', 'new_az', 'host'),
    'nova.compute.resource_tracker.ResourceTracker._move_claim': (
        'self', 'context', 'instance', 'new_flavor', 'nodename', 'migration',
        'allocations', 'move_type', 'image_meta', 'limits'),
    'nova.compute.resource_tracker.ResourceTracker.instance_claim': (
        'self', 'context', 'instance', 'nodename', 'allocations', 'limits'),
    'nova.compute.resource_tracker.ResourceTracker.live_migration_claim': (
        'self', 'context', 'instance', 'nodename', 'migration', 'limits',
        'allocs'),
    'nova.compute.resource_tracker.ResourceTracker.'
    '_update_usage_from_instances': (
        'self', 'context', 'instances', 'nodename'),
    'nova.compute.resource_tracker.ResourceTracker.'
    'delete_allocation_for_evacuated_instance': (
        'self', 'context', 'instance', 'node', 'node_type'),
    'nova.compute.resource_tracker.ResourceTracker._update_usage': (
        'self', 'usage', 'nodename', 'sign'),
    'nova.compute.utils.update_pci_request_with_placement_allocations': (
        'context', 'report_client', 'pci_requests', 'provider_mapping'),
    'nova.objects.request_spec.RequestSpec.'
    'generate_request_groups_from_pci_requests': ('self',),
    'nova.objects.request_spec.RequestSpec.get_request_group_mapping': (
        'self',),
    'nova.objects.request_spec.RequestGroup.to_queryparams': ('self',),
    'nova.pci.stats.PciDeviceStats._filter_pools': (
        'self', 'pools', 'request', 'numa_cells', 'rp_uuids'),
    'nova.pci.stats.PciDeviceStats._filter_pools_for_spec': (
        'self', 'pools', 'request'),
    'nova.pci.stats.PciDeviceStats._filter_pools_for_unrequested_pfs': (
        'self', 'pools', 'request'),
    'nova.pci.stats.PciDeviceStats._get_rp_uuids_for_request': (
        'self', 'provider_mapping', 'request'),
    'nova.pci.stats.PciDeviceStats.'
    '_filter_pools_based_on_placement_allocation': (
        'self', 'pools', 'request', 'rp_uuids'),
    'nova.rpc.get_client': (
        'target', 'version_cap', 'serializer', 'call_monitor_timeout'),
    'nova.rpc.ClientRouter.client': ('self', 'context'),
    'nova.virt.driver.load_compute_driver': ('virtapi', 'compute_driver'),
    'nova.config.parse_args': (
        'argv', 'default_config_files', 'configure_db', 'init_rpc', 'prog'),
    'nova.objects.instance.Instance.save': (
        'self', 'expected_vm_state', 'expected_task_state',
        'admin_state_reset'),
    'nova.limit.placement._get_deltas': ('request_spec', 'count'),
    'nova.limit.placement._get_deltas_by_flavor': (
        'flavor', 'is_bfv', 'count'),
    'nova.limit.placement._get_enforcer': ('context', 'project_id'),
    'nova.limit.utils.should_enforce': ('exc',),
    'nova.limit.utils.use_unified_limits': (),
    'nova.objects.instance_action.InstanceActionEvent.event_start': (
        'context', 'instance_uuid', 'event_name', 'want_result', 'host'),
    'nova.objects.instance_action.InstanceActionEvent.'
    'event_finish_with_failure': (
        'context', 'instance_uuid', 'event_name', 'exc_val', 'exc_tb',
        'want_result'),
    'nova.objects.instance.Instance.get_pci_devices': (
        'self', 'source', 'request_id'),
    'nova.objects.instance.Instance._save_flavor': ('self', 'context'),
    'nova.objects.request_spec.RequestSpec.save': ('self',),
    'nova.virt.driver.ComputeDriver.cleanup_host': ('self', 'host'),
    'nova.objects.flavor.Flavor.save_extra_specs': (
        'self', 'to_add', 'to_delete'),
    'nova.compute.manager.ComputeVirtAPI.__init__': ('self', 'compute'),
    'nova.compute.manager.ComputeManager._update_resource_tracker': (
        'self', 'context', 'instance'),
    'nova.compute.manager.ComputeManager._attach_interface': (
        'self', 'context', 'instance', 'network_id', 'port_id',
        'requested_ip', 'tag'),
    'nova.compute.manager.ComputeManager._reset_live_migration': (
        'self', 'context', 'instance'),
    'nova.compute.manager.ComputeManager.live_migration': (
        'self', 'context', 'dest', 'instance', 'block_migration', 'migration',
        'migrate_data'),
    'nova.compute.manager.ComputeManager._set_instance_info': (
        'instance', 'flavor'),
    'nova.compute.manager.ComputeManager._revert_allocation': (
        'self', 'context', 'instance', 'migration'),
    'nova.conductor.api.ComputeTaskAPI.rebuild_instance': (
        'self', 'context', 'instance', 'orig_image_ref', 'image_ref',
        'injected_files', 'new_pass', 'orig_sys_metadata', 'bdms', 'recreate',
        'on_shared_storage', 'preserve_ephemeral', 'host', 'request_spec',
        'reimage_boot_volume', 'target_state'),
    'nova.scheduler.client.report.SchedulerReportClient.'
    'get_allocations_for_consumer': ('self', 'context', 'consumer'),
    'nova.scheduler.client.report.SchedulerReportClient.'
    'delete_allocation_for_instance': (
        'self', 'context', 'uuid', 'consumer_type', 'force'),
    'nova.scheduler.client.report.SchedulerReportClient.move_allocations': (
        'self', 'context', 'source_consumer_uuid', 'target_consumer_uuid'),
    'nova.objects.instance.Instance.drop_migration_context': ('self',),
    'nova.objects.instance.Instance.mutated_migration_context': (
        'self', 'revert'),
    'nova.virt.libvirt.driver.LibvirtDriver.'
    'rollback_live_migration_at_destination': (
        'self', 'context', 'instance', 'network_info', 'block_device_info',
        'destroy_disks', 'migrate_data'),
    'nova.virt.libvirt.guest.Guest.get_job_info': ('self',),
    'nova.virt.libvirt.guest.Guest.get_all_disks': ('self',),
    'nova.virt.libvirt.guest.Guest.get_block_device': ('self', 'disk'),
    'nova.virt.libvirt.guest.BlockDevice.get_job_info': ('self',),
    'nova.virt.libvirt.guest.BlockDevice.abort_job': (
        'self', 'async_', 'pivot'),
    'nova.virt.libvirt.driver.LibvirtDriver.live_migration': (
        'self', 'context', 'instance', 'dest', 'post_method',
        'recover_method', 'block_migration', 'migrate_data'),
    'nova.compute.manager.ComputeManager._post_live_migration_update_host': (
        'self', 'ctxt', 'instance', 'dest', 'block_migration',
        'migrate_data', 'source_bdms'),
    'nova.compute.manager.ComputeManager.update_available_resource': (
        'self', 'context', 'startup'),
    'nova.compute.manager.ComputeManager._is_instance_storage_shared': (
        'self', 'context', 'instance', 'host'),
    'nova.objects.migration.Migration.get_by_id': ('context', 'migration_id'),
    'nova.objects.migration.MigrationList.get_by_filters': (
        'context', 'filters', 'sort_keys', 'sort_dirs', 'limit', 'marker'),
}

#: Nova's release (major number) that brought a parameter of
#: :data:`RELIED_ON`. We hand these on and use none of them.
SINCE: dict[tuple[str, str], int] = {
    ('nova.virt.libvirt.driver.LibvirtDriver._get_guest_xml',
     'old_guest'): 33,
    ('nova.service.Service.create', 'topic_alt'): 33,
    ('nova.config.parse_args', 'prog'): 33,
}

#: Releases of Nova that have a function; others have another one for it.
ONLY: dict[str, range] = {
    'nova.limit.placement._get_deltas': range(34, 100),
    'nova.virt.libvirt.host.Host._connection_closed': range(33, 100),
    'nova.limit.placement._get_deltas_by_flavor': range(31, 34),
}


def relied_on(release: int) -> dict[str, tuple[str, ...]]:
    """The part of :data:`RELIED_ON` that one release of Nova has.

    :param release: major number, 31 for OpenStack 2025.1.
    """
    return {name: tuple(one for one in parameters
                        if SINCE.get((name, one), 0) <= release)
            for name, parameters in RELIED_ON.items()
            if name not in ONLY or release in ONLY[name]}


def config() -> Any:
    """Nova's configuration with our section in it."""
    conf.register(nova.conf.CONF)
    return nova.conf.CONF


def dedicated_cpus() -> frozenset[int]:
    """[compute]cpu_dedicated_set; empty without one.

    ``nova.virt.hardware.get_cpu_dedicated_set() -> set | None``.
    """
    return frozenset(hardware.get_cpu_dedicated_set() or ())


def add_request_filter(
        function: Callable[[Any, RequestSpec], bool]) -> None:
    """Have the scheduler call a request pre-filter of ours.

    Nova has no entry point for pre-filters; it walks the list
    ``nova.scheduler.request_filter.ALL_REQUEST_FILTERS`` at each request
    (``process_reqspec``). Scheduler filters are imported while the host
    manager is built, before the first request.
    """
    if function not in request_filter.ALL_REQUEST_FILTERS:
        request_filter.ALL_REQUEST_FILTERS.append(function)


def extend_pci_requests(function: Callable[..., Any]) -> None:
    """Have a function of ours make the PCI requests of a flavor.

    nova-api (``nova.compute.api``), nova-compute
    (``nova.compute.resource_tracker``, for a move) and
    ``nova.scheduler.utils`` all look
    ``nova.pci.request.get_pci_requests_from_flavor`` up in its module when
    they call it.

    :param function: takes Nova's function, and then its arguments.
    """
    wrap(pci_request, 'get_pci_requests_from_flavor', function)


def watch_provider_mapping(
        function: Callable[[Any, Mapping[str, Sequence[str]]], None]) -> None:
    """Hear which providers Placement gave to a guest that is to be claimed.

    ``nova.compute.manager.ComputeManager`` and ``nova.conductor`` look
    ``nova.compute.utils.update_pci_request_with_placement_allocations`` up in
    its module right before each claim of a guest with such providers.

    :param function: takes the PCI requests of the instance, after Nova's
        function is done with them, and the providers by group suffix.
    """
    def watched(original: Callable[..., Any], context: Any,
                report_client: Any, pci_requests: Any,
                provider_mapping: Any) -> Any:
        result = original(context, report_client, pci_requests,
                          provider_mapping)
        function(pci_requests, provider_mapping)
        return result
    wrap(compute_utils, 'update_pci_request_with_placement_allocations',
         watched)


def around_claims(
        of_move: Callable[[Any], contextlib.AbstractContextManager[None]],
        of_new: Callable[[Any], contextlib.AbstractContextManager[None]]
) -> None:
    """Enter a context of ours around each claim of nova-compute.

    :param of_move: takes the instance; around the claim of a move, which
        makes the PCI requests of the instance again.
    :param of_new: takes the instance; around the claim of an instance that
        has no host, which uses the PCI requests that it has.
    """
    def claimed_move(original: Callable[..., Any], tracker: Any, context: Any,
                     instance: Any, *args: Any, **kwargs: Any) -> Any:
        with of_move(instance):
            return original(tracker, context, instance, *args, **kwargs)

    def claimed(original: Callable[..., Any], tracker: Any, context: Any,
                instance: Any, *args: Any, **kwargs: Any) -> Any:
        with of_new(instance):
            return original(tracker, context, instance, *args, **kwargs)
    wrap(resource_tracker.ResourceTracker, '_move_claim', claimed_move)
    wrap(resource_tracker.ResourceTracker, 'instance_claim', claimed)


def change_group_mapping(
        function: Callable[[RequestSpec, dict[str, list[str]]], None]) -> None:
    """Let a function of ours change the providers of a request's groups.

    ``HostState.consume_from_request`` reads them between two instances of one
    request (``RequestSpec.get_request_group_mapping``).

    :param function: takes the request and its providers by group suffix.
    """
    def changed(original: Callable[..., Any], spec: RequestSpec) -> Any:
        mapping = original(spec)
        if mapping:
            function(spec, mapping)
        return mapping
    wrap(objects.RequestSpec, 'get_request_group_mapping', changed)


def check_flavors(check: Callable[[Mapping[str, str], Collection[str]], None]
                  ) -> None:
    """Have the extra specs of a flavor checked before they are stored.

    nova-api hands validators one key at a time, without the rest of the
    flavor. ``nova.objects.flavor.Flavor.save`` knows all of them, and calls
    ``save_extra_specs`` with the whole of what is to be there.

    :param check: takes what is to be there, and the names of what is new or
        differs. What it raises reaches the caller of nova-api.
    """
    def save(original: Callable[..., Any], flavor: Any,
             to_add: Mapping[str, str] | None = None,
             to_delete: Any = None) -> Any:
        before = getattr(flavor, '_orig_extra_specs', {})
        added = {name for name, value in (to_add or {}).items()
                 if before.get(name) != value}
        if added:
            check(to_add or {}, added)
        return original(flavor, to_add, to_delete)

    wrap(flavor_object.Flavor, 'save_extra_specs', save)


@dataclass(frozen=True)
class Destination:
    """The host that a live migration claims on.

    :param uuid: of the compute node, and of its root provider.
    :param nodes: host NUMA nodes.
    :param node_of_pf: host NUMA node by UUID of a PF's provider.
    :param allocations: what Placement holds for the guest, by provider.
    """

    uuid: str
    nodes: tuple[int, ...]
    node_of_pf: Mapping[str, int | None]
    allocations: Mapping[str, Any]


def hold_live_claims(orders: Callable[[Any, Any, Destination],
                                      Iterator[tuple[int, ...]]]) -> None:
    """Give the claim of a live migration the limits that Nova has lost.

    Nova 31 to 33 (bug 2153425, fixed by f4709ec59f in 34) ask the
    destination without the limits of the scheduler. ``_move_claim`` raises
    before it changes anything when they do not fit, so each way is tried.

    :param orders: takes the compute driver, the instance and the
        destination; host NUMA node of each guest NUMA node, the ways to try.
    """
    def claimed(original: Callable[..., Any], tracker: Any, context: Any,
                instance: Any, nodename: str, migration: Any, limits: Any,
                allocs: Any) -> Any:
        claim = functools.partial(original, tracker, context, instance,
                                  nodename, migration, allocs=allocs)
        refused: Exception | None = None
        node = tracker.compute_nodes[nodename]
        if limits is None and instance.numa_topology:
            ways = orders(tracker.driver, instance,
                          _destination(tracker, node, allocs))
            most = config().ghsched.max_candidates_per_host
            for order in itertools.islice(ways, most):
                try:
                    return claim(limits=_limits_of(node, order))
                except exception.ComputeResourcesUnavailable as error:
                    refused = error
        if refused is not None:
            raise refused
        return claim(limits=limits)
    wrap(resource_tracker.ResourceTracker, 'live_migration_claim', claimed)


def _destination(tracker: Any, node: Any, allocs: Any) -> Destination:
    topology = (objects.NUMATopology.obj_from_db_obj(node.numa_topology)
                if node.numa_topology else None)
    pci = tracker.pci_tracker
    return Destination(
        node.uuid, tuple(host_cells(topology)),
        _nodes_of_pools(pci.stats.pools if pci else ()), allocs or {})


def _limits_of(node: Any, order: Sequence[int]) -> Any:
    """Limits that hold a claim to one host cell per guest cell.

    :param node: Nova's ComputeNode, for its ratios.
    """
    return {'numa_topology': _numa_limits(
        node, {*map(names.node_physnet, order), names.order_physnet(order)},
        tunneled=False)}


def _numa_limits(node: Any, physnets: set[str], tunneled: bool) -> Any:
    return objects.NUMATopologyLimits(
        cpu_allocation_ratio=node.cpu_allocation_ratio,
        ram_allocation_ratio=node.ram_allocation_ratio,
        network_metadata=objects.NetworkMetadata(
            physnets=physnets, tunneled=tunneled))


def before_moves(function: Callable[[Any, Any, str], None]) -> None:
    """Call a function of ours before nova-api moves a guest.

    ``nova.compute.api.API`` has a method for each kind of move, which reads
    the RequestSpec that the move is scheduled with.

    :param function: takes the context of the request, the instance, and which
        of :data:`MOVES` it is.
    """
    def moved(name: str, original: Callable[..., Any], api: Any, context: Any,
              instance: Any, *args: Any, **kwargs: Any) -> Any:
        function(context, instance, name)
        return original(api, context, instance, *args, **kwargs)
    moved.__qualname__ = f'{moved.__qualname__}.{function.__name__}'
    for name in MOVES:
        wrap(compute_api.API, name, functools.partial(moved, name))


def before_evacuations(function: Callable[[Any, Any], None]) -> None:
    """Call a function of ours when nova-api has a guest evacuated.

    Nova has checked that the host is down and made the record of the move by
    then, and asks nova-conductor for a new host next (``API.evacuate``).

    :param function: takes the context of the request and the instance.
    """
    def rebuilt(original: Callable[..., Any], api: Any, context: Any,
                instance: Any, *args: Any, recreate: bool = False,
                **kwargs: Any) -> Any:
        if recreate:
            function(context, instance)
        return original(api, context, instance, *args, recreate=recreate,
                        **kwargs)
    wrap(conductor_api.ComputeTaskAPI, 'rebuild_instance', rebuilt)


def extend_limits(
        function: Callable[..., dict[str, int]]) -> None:
    """Have a function of ours say what a request adds to a project's usage.

    ``nova.limit.placement.enforce_num_instances_and_resources``, which
    nova-api calls for a new server, a resize, a restore and an unshelving,
    looks ``_get_deltas`` up in its module. Nova 31 to 33 have
    ``_get_deltas_by_flavor``, which knows nothing of a request but its flavor.

    :param function: takes Nova's function, and then its arguments.
    """
    def by_flavor(original: Callable[..., Any], flavor: Any, is_bfv: bool,
                  count: int) -> dict[str, int]:
        return function(lambda _spec, number: original(flavor, is_bfv, number),
                        objects.RequestSpec(flavor=flavor), count)
    if hasattr(placement_limits, '_get_deltas'):
        wrap(placement_limits, '_get_deltas', function)
    else:
        wrap(placement_limits, '_get_deltas_by_flavor', by_flavor)


def enforce_limits(context: Any, project_id: str,
                   deltas: Mapping[str, int]) -> None:
    """Refuse more of some resources than a project may have.

    Nothing is refused where Nova does not use unified limits.

    :param deltas: what is added, by name of the limit.
    :raises OverQuota: of Nova, naming what is too much.
    """
    if not deltas or not limit_utils.use_unified_limits():
        return
    try:
        placement_limits._get_enforcer(context, project_id).enforce(
            project_id, dict(deltas))
    except limit_exceptions.ProjectOverLimit as error:
        if limit_utils.should_enforce(error):
            raise exception.OverQuota(str(error)) from error


def ignore_devices_left_behind() -> None:
    """Let a guest have the devices of its own requests alone.

    After an evacuation the devices on the dead host stay allocated to the
    guest in Nova's records until that host is back, and no request of the
    guest has made them. ``nova.objects.instance.Instance.get_pci_devices``
    then fails with a KeyError, and without a source it takes the devices of
    the other host for devices of this one.
    """
    def requested(original: Callable[..., Any], instance: Any,
                  source: int | None = None,
                  request_id: str | None = None) -> list[Any]:
        if not is_ours(instance):
            return list(original(instance, source=source,
                                 request_id=request_id))
        devices = original(instance, request_id=request_id)
        if not devices:
            return []
        sources = {request.request_id: request.source
                   for request in instance.pci_requests.requests}
        return [device for device in devices
                if device.request_id in sources
                and source in (None, sources[device.request_id])]
    wrap(objects.Instance, 'get_pci_devices', requested)


def keep_allocation_of_rebuilt() -> None:
    """Have a server that could not be rebuilt keep what it holds.

    ``ComputeManager.rebuild_instance`` takes each failure for that of an
    evacuation, whose destination gets back what was allocated there. A server
    that is rebuilt on its own host would hold nothing any more.
    """
    def given_back(original: Callable[..., Any], tracker: Any, context: Any,
                   instance: Any, node: str, node_type: str = 'source') -> Any:
        # One that is evacuated is on the other host until it has arrived.
        if (node_type == 'destination' and instance.host == tracker.host
                and is_ours(instance)):
            return
        original(tracker, context, instance, node, node_type)
    wrap(resource_tracker.ResourceTracker,
         'delete_allocation_for_evacuated_instance', given_back)


def give_back_again() -> None:
    """Retry the deletion of an allocation that conflicts with another change.

    Two changes at the same time on one provider, such as a boot and a report,
    are a conflict (409 with ``placement.concurrent_update``). Nova retries an
    allocation and a move of allocations, but no deletion, after which the
    server is in ``ERROR``.
    """
    def deleted(original: Callable[..., Any], client: Any, context: Any,
                uuid: str, *args: Any, **kwargs: Any) -> Any:
        for _again in range(_CONFLICTS):
            try:
                return original(client, context, uuid, *args, **kwargs)
            except exception.AllocationDeleteFailed as error:
                if _OF_PROVIDER not in str(error) or not _holds_ours(
                        client, context, uuid):
                    raise
                time.sleep(random.uniform(0.1, 0.5))  # noqa: S311 - no secret
        return original(client, context, uuid, *args, **kwargs)
    wrap(report.SchedulerReportClient, 'delete_allocation_for_instance',
         deleted)


def _holds_ours(client: Any, context: Any, consumer: str) -> bool:
    """Whether a consumer holds a resource class of ours in Placement."""
    held = client.get_allocs_for_consumer(context, consumer)
    return any(names.OUR_CLASSES & set(part['resources'])
               for part in held['allocations'].values())


def is_ours(instance: Any) -> bool:
    """Whether the flavor of a server has a key of ours, or will have one.

    A server that is resized has two flavors (``Instance.new_flavor``).
    """
    try:
        flavors = [getattr(instance, name, None)
                   for name in ('flavor', 'new_flavor', 'old_flavor')]
        return any(policies.wanted(flavor.extra_specs or {})
                   for flavor in flavors if flavor is not None)
    except exception.NovaException:     # one of them cannot be loaded
        return False


def for_ours(original: Callable[..., Any], changed: Callable[..., Any],
             number: int) -> Callable[..., Any]:
    """Return a method that is changed for servers of ours alone.

    :param number: of the argument that is the instance, unless it is given
        by its name.
    """
    @functools.wraps(original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        instance = (kwargs['instance'] if 'instance' in kwargs
                    else args[number])
        function = changed if is_ours(instance) else original
        return function(*args, **kwargs)
    return chosen


def add_failed_event(context: Any, uuid: str, name: str,
                     reason: str) -> None:
    """Add an event with a reason to the action that is going on.

    As ``nova.compute.utils.EventReporter``, which nova-conductor uses, does
    it; nova-api has started the action with the request id of the context. A
    server that is not in a cell yet has no actions.
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


def load_request_spec(context: Any, uuid: str) -> RequestSpec | None:
    """The request that a guest was last scheduled with, if it is known."""
    try:
        return objects.RequestSpec.get_by_instance_uuid(context, uuid)
    except exception.RequestSpecNotFound:
        return None


def wrap(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put a function of ours around one of Nova's, once.

    A function with the same qualified name is not put around it again;
    another one is.

    :param function: takes Nova's function, and then its arguments.
    """
    original = getattr(owner, name)
    named = getattr(function, 'func', function)     # of a partial
    ours = getattr(named, '__qualname__', str(named))
    known: frozenset[str] = getattr(original, _OURS, frozenset())
    if ours in known:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)
    setattr(wrapper, _OURS, known | {ours})
    setattr(owner, name, wrapper)


class _NamingGroup(request_spec.RequestGroup):
    """A request group that takes nothing of its provider.

    Placement has those since 1.36; Nova's query has an empty list of
    resources for one, which Placement refuses.
    """

    @classmethod
    def obj_name(cls) -> str:
        return 'RequestGroup'

    def to_queryparams(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in super().to_queryparams()
                if value]


def request_group(suffix: str, resources: Mapping[str, int],
                  required: Iterable[str]) -> Any:
    """A granular group of an allocation candidates query."""
    kind = request_spec.RequestGroup if resources else _NamingGroup
    return kind(requester_id=suffix, use_same_provider=True,
                resources=dict(resources), required_traits=set(required))


def pci_in_placement() -> bool:
    """Whether nova-scheduler asks Placement for devices."""
    return bool(nova.conf.CONF.filter_scheduler.pci_in_placement)


def pool_nodes(host_state: Any) -> dict[str, int | None]:
    """Host NUMA node of each PF that a host has free devices of.

    By UUID of the provider, as the PCI tracker tells it in the pools that
    the claim will take the devices from.
    """
    stats = host_state.pci_stats
    return _nodes_of_pools(stats.pools if stats else ())


def _nodes_of_pools(pools: Iterable[Any]) -> dict[str, int | None]:
    return {pool['rp_uuid']: pool.get('numa_node')
            for pool in pools if pool.get('rp_uuid')}


def sockets(topology: NUMATopology) -> dict[int, int | None]:
    """Socket of each host NUMA node."""
    return {cell.id: cell.socket if 'socket' in cell else None
            for cell in topology.cells}


def use_scheduler_manager(path: str) -> None:
    """Have nova-scheduler use a manager class of ours.

    ``nova.service.Service.create`` looks the class up in
    ``nova.service.SERVICE_MANAGERS`` by the name of the binary when it is
    given none, and ``nova.cmd.scheduler.main`` gives none.
    """
    service.SERVICE_MANAGERS['nova-scheduler'] = path


def provide_driver(module: types.ModuleType) -> None:
    """Make a module importable as ``nova.virt.ghsched`` in this process.

    ``nova.virt.driver.load_compute_driver`` imports
    ``nova.virt.<compute_driver>``. Python looks in ``sys.modules`` before it
    looks for a file.
    """
    sys.modules['nova.virt.ghsched'] = module


def watch_filters(host_manager: Any, start: Callable[[], None],
                  note: Callable[[str, int, int], None]) -> None:
    """Have each filter of nova-scheduler noted.

    ``nova.scheduler.host_manager.HostManager`` has a handler of its own, which
    asks a filter for its class's name and for ``filter_all``.

    :param start: called before the filters run for an instance.
    :param note: takes the name of a filter that ran, and how many hosts there
        were before and after.
    """
    handler = host_manager.filter_handler
    run = handler.get_filtered_objects

    def get_filtered_objects(filters: Iterable[Any], *args: Any,
                             **kwargs: Any) -> Any:
        start()
        return run([_watched(one, note) for one in filters], *args, **kwargs)

    handler.get_filtered_objects = get_filtered_objects


def _watched(original: Any, note: Callable[[str, int, int], None]) -> Any:
    def filter_all(hosts: Iterable[Any], spec: RequestSpec) -> Any:
        before = list(hosts)
        after = original.filter_all(before, spec)
        if after is None:       # "stop filtering"
            return None
        after = list(after)
        note(type(original).__name__, len(before), len(after))
        return after

    watched = copy.copy(original)
    watched.filter_all = filter_all
    return watched


def is_rebuild(spec: RequestSpec) -> bool:
    """Whether the host is given and nothing is claimed again."""
    return bool(scheduler_utils.request_is_rebuild(spec))


def is_forced(spec: RequestSpec) -> bool:
    """Whether the host is given, so that no filter runs.

    See ``nova.scheduler.host_manager.HostManager.get_filtered_hosts``.
    """
    return any(name in spec and getattr(spec, name)
               for name in ('force_hosts', 'force_nodes'))


def is_rebuilt_in_place(instance: Any) -> bool:
    """Whether a guest is made again on its own host, and not evacuated.

    While an evacuated instance is spawned it still names the host that it
    comes from (``nova.compute.manager.ComputeManager._do_rebuild_instance``).
    """
    return bool(instance.task_state == task_states.REBUILD_SPAWNING
                and instance.host == nova.conf.CONF.host)


def is_evacuated(instance: Any) -> bool:
    """Whether a guest is made again on this host because its own is lost."""
    return bool(instance.task_state == task_states.REBUILD_SPAWNING
                and instance.host != nova.conf.CONF.host)


@contextlib.contextmanager
def saved_as_it_is(instance: Any) -> Iterator[None]:
    """Have an instance saved without what it has on a host meanwhile.

    nova-compute shows the driver of a destination the instance as it would be
    there (``Instance.mutated_migration_context``). LibvirtDriver saves it when
    it cleans up, and with it the host NUMA nodes and devices of a guest that
    has not come; and the migration context itself, which the source may have
    dropped by then, so that the next rebuild would take it for its own.
    """
    save = instance.save

    def saved(*args: Any, **kwargs: Any) -> Any:
        instance.obj_reset_changes(_OF_MIGRATION, recursive=True)
        return save(*args, **kwargs)
    instance.save = saved
    try:
        yield
    finally:
        del instance.save


#: Errors of :func:`placement_client` where Placement or Keystone is down.
PLACEMENT_DOWN = (ksa_exceptions.ClientException,
                  sdk_exceptions.SDKException)


def placement_client() -> Any:
    """Return the client that nova-scheduler and nova-compute share.

    :raises: one of :data:`PLACEMENT_DOWN`.
    """
    return report.report_client_singleton()


class _WithoutAllocations:
    """A Placement client that takes a consumer for new."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @staticmethod
    def get(*_args: Any, **_kwargs: Any) -> Any:
        return types.SimpleNamespace(status_code=404)


def claim_resources(client: Any, context: Any, consumer: str,
                    request: Mapping[str, Any], *args: Any,
                    **kwargs: Any) -> frozenset[str]:
    """Return the providers that a claim adds to a guest; none if it failed.

    ``SchedulerReportClient.claim_resources`` first reads the allocation of
    the guest, because an evacuated guest has one. Placement refuses a claim
    that takes such a guest for new, so it is read after a refusal only.
    """
    wanted = frozenset(request['allocations'])
    try:
        claimed = report.SchedulerReportClient.claim_resources(
            _WithoutAllocations(client), context, consumer, request, *args,
            **kwargs)
    except exception.AllocationUpdateFailed:
        held = client.get_allocs_for_consumer(context, consumer)
        wanted -= frozenset(held['allocations'])
        claimed = client.claim_resources(context, consumer, request, *args,
                                         **kwargs)
    return wanted if claimed else frozenset()


def steer_fit() -> None:
    """Let limits say on which host cell each guest cell goes.

    ``nova.compute.claims`` and ``nova.scheduler.host_manager`` look
    ``nova.virt.hardware.numa_fit_instance_to_host`` up in its module. It
    takes host cells as they come when there are no more of them than guest
    cells, so it is given those that the limits name, in their order.
    """
    def steered(original: Callable[..., Any], host_topology: Any,
                instance_topology: Any, provider_mapping: Any,
                limits: Any = None, pci_requests: Any = None,
                pci_stats: Any = None) -> Any:
        order = limits_order(limits)
        if order is not None and host_topology and instance_topology:
            host_topology = _in_order(host_topology, order)
            limits = _without_order(limits)
        fitted = original(host_topology, instance_topology, provider_mapping,
                          limits=limits, pci_requests=pci_requests,
                          pci_stats=pci_stats)
        # With the first order failing Nova tries the others.
        follows = order is None or tuple(host_cells(fitted)) == order
        return fitted if follows else None
    wrap(hardware, 'numa_fit_instance_to_host', steered)


def chosen_order(state: Any) -> tuple[int, ...] | None:
    """Host node of each guest node where our filter has chosen them."""
    return limits_order((state.limits or {}).get('numa_topology'))


def limits_order(limits: Any) -> tuple[int, ...] | None:
    """Host node of each guest node in limits of ours."""
    for physnet in physnets(limits):
        order = names.order_of(physnet)
        if order is not None:
            return order
    return None


def physnets(known: Any) -> frozenset[str]:
    """The physical networks that limits name, or that a host cell has."""
    if not known or 'network_metadata' not in known:
        return frozenset()
    metadata = known.network_metadata
    return frozenset(metadata.physnets if 'physnets' in metadata else ())


def _in_order(topology: NUMATopology, order: Sequence[int]) -> NUMATopology:
    cells = {cell.id: cell for cell in topology.cells}
    return objects.NUMATopology(
        cells=[cells[node] for node in order if node in cells])


def _without_order(limits: Any) -> Any:
    limits = limits.obj_clone()
    limits.network_metadata.physnets = {
        physnet for physnet in limits.network_metadata.physnets
        if names.order_of(physnet) is None}
    return limits


def numa_limits(host_state: Any, spec: RequestSpec,
                nodes: Sequence[int], in_order: bool) -> Any:
    """Limits that hold the claim on some host cells.

    The claim (``nova.virt.hardware.numa_fit_instance_to_host``, called by
    ``nova.compute.claims``) takes a set of host cells that together have
    every physical network named in the limits. That is how a choice of
    Placement's reaches it, beside the guest's real networks.

    :param nodes: host NUMA nodes.
    :param in_order: whether there is one for each guest node; see
        :func:`steer_fit`.
    """
    wanted = set(map(names.node_physnet, nodes))
    if in_order:
        wanted.add(names.order_physnet(nodes))
    tunneled = False
    metadata = (spec.network_metadata
                if 'network_metadata' in spec else None)
    if metadata is not None:
        wanted |= set(metadata.physnets)
        tunneled = metadata.tunneled
    return _numa_limits(host_state, wanted, tunneled)


def fit(host_state: Any, spec: RequestSpec, limits: Any, mappings: Any,
        requests: Sequence[Any]) -> InstanceNUMATopology | None:
    """What the claim on the host will choose under ``limits``.

    ``numa_fit_instance_to_host`` fills in the topology that it is given, so
    it gets a copy.

    :param requests: PCI requests.
    """
    return hardware.numa_fit_instance_to_host(
        host_state.numa_topology, spec.numa_topology.obj_clone(),
        limits=limits, pci_requests=requests,
        pci_stats=host_state.pci_stats, provider_mapping=mappings)


def as_claimed(requests: Sequence[Any], mappings: Any) -> list[Any]:
    """Copies of PCI requests, as the claim for a candidate will have them.

    Of a port with a guaranteed bandwidth Placement chose the PF. Nova reads
    its interface out of the name of the provider, and the claim takes a VF of
    that PF (``nova.compute.manager``, before each claim).

    :raises nova.exception.NovaException: when the provider or its name is
        not what Nova expects.
    """
    copies = [request.obj_clone() for request in requests]
    compute_utils.update_pci_request_with_placement_allocations(
        nova_context.get_admin_context(), placement_client(), copies,
        mappings)
    return copies


def matching_pools(host_state: Any, request: Any,
                   mappings: Any = None) -> list[Any]:
    """The pools of a host that have devices of the kind of a PCI request.

    :param mappings: of the candidate that will be claimed: where it names
        pools for the request, no others.
    """
    stats = host_state.pci_stats
    pools = stats.pools if stats else []
    for matching in ('_filter_pools_for_spec',
                     '_filter_pools_for_unrequested_pfs'):
        pools = getattr(stats, matching)(pools, request) if pools else []
    return list(stats._filter_pools_based_on_placement_allocation(
        pools, request, stats._get_rp_uuids_for_request(mappings, request))
        if mappings and pools else pools)


def free_devices(host_state: Any, request: Any) -> dict[int | None, int]:
    """How many devices of a PCI request are free, by host NUMA node.

    The key is None for devices whose node the host does not tell.
    """
    found: dict[int | None, int] = {}
    for pool in matching_pools(host_state, request):
        node = pool.get('numa_node')
        found[node] = found.get(node, 0) + pool['count']
    return found


def offers_physnets(topology: NUMATopology, of_node: Callable[[int], str]
                    ) -> bool:
    """Whether each host cell offers the physical network made for it.

    :param of_node: name of the network by host NUMA node.
    """
    return all(of_node(cell.id) in physnets(cell) for cell in topology.cells)


def wrap_attach_interface(virtapi: Any, wrap: Callable[..., Any]) -> None:
    """Have a function of ours around the attachment of a port.

    Whatever a driver raises, ``_attach_interface`` of nova-compute's manager
    answers with an exception of its own, which gives no reason.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :param wrap: takes Nova's method and returns another.
    """
    _wrap_manager(virtapi, '_attach_interface', wrap)


def wrap_reset_live_migration(virtapi: Any, wrap: Callable[..., Any]) -> None:
    """Have a function of ours around the end of a live migration at a start.

    ``_reset_live_migration`` of nova-compute's manager aborts what was under
    way when the service ended, and leaves the server to its host, even if the
    guest runs on the other by now.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :param wrap: takes Nova's method and returns another.
    """
    _wrap_manager(virtapi, '_reset_live_migration',
                  lambda method: for_ours(method, wrap(method), 1))


def wrap_live_migration(virtapi: Any, wrap: Callable[..., Any]) -> None:
    """Have a function of ours around what begins a live migration.

    nova-conductor casts it to the source (``live_migration`` of nova-compute's
    manager), with a record of the migration that may be old when it is read.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :param wrap: takes Nova's method and returns another.
    """
    _wrap_manager(virtapi, 'live_migration',
                  lambda method: for_ours(method, wrap(method), 2))


def wrap_revert_allocation(virtapi: Any, wrap: Callable[..., Any]) -> None:
    """Have a function of ours around what gives a migration's part back.

    ``_revert_allocation`` of nova-compute's manager is the first step of
    rolling a live migration back. What it raises ends that, and if the
    migration was aborted while it was prepared, nobody hears of it.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :param wrap: takes Nova's method and returns another.
    """
    _wrap_manager(virtapi, '_revert_allocation',
                  lambda method: for_ours(method, wrap(method), 1))


def is_live(migration: Any) -> bool:
    """Whether a migration is a live one."""
    return bool(migration.migration_type
                == objects.fields.MigrationType.LIVE_MIGRATION)


def _wrap_manager(virtapi: Any, name: str, wrap: Callable[..., Any]) -> None:
    """Replace a method of nova-compute's manager, if that is not done yet."""
    manager: Any = getattr(virtapi, '_compute', None)
    method = getattr(manager, name, None)
    if method is not None and not hasattr(method, _OURS):
        wrapped = wrap(method)
        setattr(wrapped, _OURS, True)
        setattr(manager, name, wrapped)


def let_flavors_be_kept(virtapi: Any) -> None:
    """Let a guest whose resize has failed on its new host keep its flavor.

    It is on that host then, with the NUMA topology and the allocation of the
    new flavor, and its RequestSpec has that too. nova-compute's manager gives
    it the old one (``_finish_resize``), with which it may never start again.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    """
    def keeping(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def given(instance: Any, flavor: Any) -> None:
            if instance.__dict__.pop(_KEEPS, False):
                LOG.warning('ghsched: the server is on its new host and keeps '
                            'its new flavor, which it was claimed with',
                            instance=instance)
                return
            original(instance, flavor)
        return given
    _wrap_manager(virtapi, '_set_instance_info', keeping)


def keep_flavor(instance: Any) -> None:
    """Say that what nova-compute does next is to give it its old flavor."""
    if is_ours(instance) and instance.new_flavor is not None and (
            instance.flavor.flavorid == instance.new_flavor.flavorid
            != instance.old_flavor.flavorid):
        instance.__dict__[_KEEPS] = True


def live_migrations_under_way(context: Any, instance: Any) -> list[Any]:
    """The live migrations that have not ended, as their records say.

    The one that has got furthest is the first: a nova-conductor that ended
    while it prepared another one has left that behind.
    """
    return sorted(
        _migrations(context, instance,
                    objects.fields.MigrationType.LIVE_MIGRATION,
                    _LIVE_MIGRATING),
        key=lambda one: _LIVE_MIGRATING.index(one.status), reverse=True)


def is_being_scheduled(migration: Any) -> bool:
    """Whether nova-conductor may be at work on a live migration.

    It asks the destination, which asks the source. Where that has gone, it
    hears so after a time-out, and gives back what it has allocated for the
    server on the destination (``LiveMigrationTask``).
    """
    since = timeutils.normalize_time(migration.created_at)
    return migration.status == 'accepted' and not timeutils.is_older_than(
        since, _TIME_OUTS * nova.conf.CONF.rpc_response_timeout)


def has_ended(context: Any, migration: Any) -> bool:
    """Whether a live migration has ended since it was sent to this host."""
    return objects.Migration.get_by_id(
        context, migration.id).status not in _LIVE_MIGRATING


def is_evacuated_here(context: Any, instance: Any) -> bool:
    """Whether a guest lives on this host, or may be made here now."""
    now = objects.Instance.get_by_uuid(context, instance.uuid)
    return now.host == nova.conf.CONF.host or bool(_migrations(
        context, now, objects.fields.MigrationType.EVACUATION, _EVACUATING))


def _migrations(context: Any, instance: Any, kind: str,
                statuses: Sequence[str]) -> list[Any]:
    return list(objects.MigrationList.get_by_filters(context, {
        'instance_uuid': instance.uuid, 'status': list(statuses),
        'migration_type': kind}))


def is_copied(guest: Any) -> bool:
    """Whether libvirt copies a guest, or does something else of that length.

    :param guest: ``nova.virt.libvirt.guest.Guest``.
    :raises Exception: libvirt cannot say.
    """
    return guest.get_job_info().type in _JOBS


def is_paused_by_migration(guest: Any) -> bool:
    """Whether libvirt has paused a guest to copy it, and left it so.

    A libvirtd that is restarted while the destination starts the guest does
    not know whether it has (``qemuProcessRecoverMigrationOut`` of libvirt).

    :param guest: ``nova.virt.libvirt.guest.Guest``.
    """
    return tuple(guest._domain.state()) in _PAUSED_BY_MIGRATION


def end_disk_copies(guest: Any) -> None:
    """End the copies of disks that were made for a live migration.

    libvirt begins with them, and a libvirtd that is restarted meanwhile
    aborts the migration, but not always them: "domain has active block job"
    is its answer to the next one.

    :param guest: ``nova.virt.libvirt.guest.Guest``.
    :raises Exception: libvirt does not.
    """
    for disk in guest.get_all_disks():
        device = guest.get_block_device(disk.target_dev)
        if device.get_job_info():
            device.abort_job()


def take_back_live_migration(context: Any, instance: Any,
                             migration: Any) -> None:
    """Do in the records what nova-compute does when a guest was not copied.

    The other host counts what it has claimed for a migration until that has
    ended, and gives it back with its next report.

    :param migration: a live migration from the host of the instance.
    :raises Exception: whatever Nova raises.
    """
    migration.status = 'error'
    migration.save()
    instance.drop_migration_context()
    client = placement_client()
    if client.get_allocations_for_consumer(context, migration.uuid):
        client.move_allocations(context, migration.uuid, instance.uuid)


def finish_live_migration(virtapi: Any, context: Any, instance: Any,
                          migration: Any) -> None:
    """Do what nova-compute does after a guest was copied.

    What it knew of the migration is lost, so that this is cautious: no disk
    is removed but with the directory of a guest that is not on shared storage,
    and no volume is disconnected, because the records of them are those of
    the destination already.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :param migration: a live migration from this host.
    :raises Exception: whatever Nova raises; the server is the destination's
        then as well (``_post_live_migration_update_host``).
    """
    manager: Any = virtapi._compute
    # It is a start, and the tracker of resources knows no device yet.
    manager.update_available_resource(context, startup=True)
    manager._post_live_migration_update_host(
        context, instance, migration.dest_compute,
        migrate_data=objects.LibvirtLiveMigrateData(
            migration=migration, is_shared_block_storage=True,
            is_shared_instance_path=manager._is_instance_storage_shared(
                context, instance, host=migration.dest_compute)),
        source_bdms=objects.BlockDeviceMappingList(objects=[]))


#: Fields of a guest node that Nova's fit looks at, beside its CPUs.
_OF_FIT = ('memory', 'pagesize', 'cpu_policy', 'cpu_thread_policy',
           'cpu_topology')


def has_room(host_state: Any, spec: RequestSpec, guest_node: int,
             node: int) -> bool:
    """Whether CPUs and memory of a host node suffice for a guest node."""
    topology = spec.numa_topology.obj_clone()
    topology.cells = topology.cells[guest_node:guest_node + 1]
    if guest_node:
        # Nova reserves the CPU of isolated emulator threads for the first.
        topology.emulator_threads_policy = None
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=host_state.cpu_allocation_ratio,
        ram_allocation_ratio=host_state.ram_allocation_ratio)
    return bool(hardware.numa_fit_instance_to_host(
        _in_order(host_state.numa_topology, [node]), topology, {},
        limits=limits))


def kinds_of_cells(spec: RequestSpec) -> tuple[int, ...]:
    """Return, by guest node, the first guest node with the same needs."""
    topology, first = spec.numa_topology, dict[Any, int]()
    # Nova reserves the CPU of isolated emulator threads for the first.
    isolates = bool(topology and 'emulator_threads_policy' in topology
                    and topology.emulator_threads_policy)
    return tuple(first.setdefault((
        isolates and not number,
        len(cell.cpuset), len(cell.pcpuset), *(
            str(getattr(cell, name)) if name in cell else None
            for name in _OF_FIT)), number)
        for number, cell in enumerate(topology.cells if topology else ()))


def device_tags() -> Callable[[Mapping[str, Any]], Mapping[str, str] | None]:
    """How ``[pci]device_spec`` tags a device that libvirt reports.

    ``nova.pci.whitelist.Whitelist`` is what the PCI tracker filters with.
    """
    specs = whitelist.Whitelist(nova.conf.CONF.pci.device_spec).specs

    def tags(device: Mapping[str, Any]) -> Mapping[str, str] | None:
        for spec in specs:
            if spec.match(device):
                return dict(spec.get_tags())
        return None
    return tags


def add_physnet(cell: Any, physnet: str) -> None:
    """Have a host cell offer one more physical network.

    A set-of-strings field of a versioned object notices assignment only.
    """
    cell.network_metadata.physnets = (
        set(cell.network_metadata.physnets) | {physnet})


def host_cells(topology: InstanceNUMATopology | None) -> Sequence[int]:
    """Host NUMA node of each guest NUMA node of a claimed instance.

    After the claim ``InstanceNUMACell.id`` is the host's cell number.
    """
    if topology is None:
        return ()
    return [cell.id for cell in topology.cells]


def guest_cells(topology: InstanceNUMATopology | None
                ) -> tuple[node_move.GuestCell, ...]:
    """The NUMA nodes of a claimed instance."""
    return tuple(node_move.GuestCell(
        cell.id, frozenset(cell.cpuset), dict(cell.cpu_pinning or {}),
        frozenset(cell.cpuset_reserved or ()), cell.memory, cell.pagesize,
        cell.cpu_thread_policy or 'prefer')
        for cell in (topology.cells if topology else ()))


def host_rooms(node: Any) -> dict[int, node_move.HostCell]:
    """What the NUMA nodes of a host have, by number.

    :param node: Nova's ComputeNode; its topology has what guests take.
    """
    topology: Any = (objects.NUMATopology.obj_from_db_obj(node.numa_topology)
                     if node.numa_topology else None)
    return {cell.id: node_move.HostCell(
        frozenset(cell.free_pcpus), _cores(cell), frozenset(cell.cpuset),
        max(0, cell.avail_memory),
        {pages.size_kb: max(0, pages.total - pages.used - pages.reserved)
         for pages in cell.mempages})
        for cell in (topology.cells if topology else ())}


def node_rooms(virtapi: Any, nodename: str) -> list[node_room.NodeRoom]:
    """Return CPUs and memory by NUMA node as nova-compute accounts for them.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :returns: empty before nova-compute has reported its first time, and on a
        host that reports no NUMA nodes.
    """
    node: Any = virtapi._compute.rt.compute_nodes.get(nodename)
    text = node and node.numa_topology
    topology: Any = text and objects.NUMATopology.obj_from_db_obj(text)
    return [node_room.NodeRoom(
        node=cell.id, cpus=len(cell.cpuset), vcpus_used=cell.cpu_usage,
        cpu_ratio=node.cpu_allocation_ratio, dedicated=len(cell.pcpuset),
        dedicated_used=len(cell.pinned_cpus), memory=cell.memory,
        memory_used=cell.memory_usage, ram_ratio=node.ram_allocation_ratio,
        pages=tuple(node_room.Pages(
            pages.size_kb, pages.total, pages.used, pages.reserved)
            for pages in sorted(cell.mempages,
                                key=lambda pages: pages.size_kb)),
        socket=cell.socket if 'socket' in cell else None)
        for cell in (topology.cells if topology else ())]


def _cores(cell: Any) -> tuple[frozenset[int], ...]:
    """Dedicated CPUs by core; Nova names no siblings without SMT."""
    cores = [frozenset(core & cell.pcpuset) for core in cell.siblings]
    alone = cell.pcpuset.difference(*cores)
    return (*filter(None, cores), *(frozenset((cpu,)) for cpu in alone))


# -- a guest on other NUMA nodes of its host ----------------------------------


#: What guests that are being moved have beside what is on record, by the name
#: of the compute node and the UUID of the guest.
_MOVING: dict[tuple[str, str], Any] = {}


def count_moves() -> None:
    """Have nova-compute count both places of a guest that is being moved.

    With each report it counts from the records of its guests once more.
    """
    def counted(original: Callable[..., Any], tracker: Any, context: Any,
                instances: Any, nodename: str) -> Any:
        found = original(tracker, context, instances, nodename)
        for (node, uuid), topology in tuple(_MOVING.items()):
            try:
                if node == nodename:
                    tracker._update_usage(_usage(topology), nodename)
            except exception.NovaException as error:
                LOG.warning('the new place of server %s is not counted: %s',
                            uuid, error)
        return found
    wrap(resource_tracker.ResourceTracker, '_update_usage_from_instances',
         counted)


def _usage(topology: Any) -> dict[str, Any]:
    """As ``ResourceTracker._update_usage`` takes it."""
    return {'memory_mb': 0, 'numa_topology': topology}


@contextlib.contextmanager
def claim_cells(virtapi: Any, instance: Any,
                after: Sequence[node_move.GuestCell]
                ) -> Iterator[Callable[[], None]]:
    """Count other NUMA nodes for a guest, beside its own, for a while.

    Gives a function that writes them into the guest's record, from when on it
    is counted there alone, unless its task state has changed.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :param after: the NUMA nodes of the guest as they are to be.
    :raises NovaException: when somebody else has a CPU, or the memory.
    """
    tracker: Any = virtapi._compute.rt
    before, node = instance.numa_topology, instance.node
    wanted = _placed(before, after)
    gained, key = _gained(before, wanted), (node, instance.uuid)

    def commit() -> None:
        with _tracker_lock():
            instance.numa_topology = wanted
            # Whoever deletes the guest has read the record of before.
            instance.save(expected_task_state=[instance.task_state])
            del _MOVING[key]
            for topology, sign in ((gained, -1), (before, -1), (wanted, 1)):
                tracker._update_usage(_usage(topology), node, sign)

    with _tracker_lock():
        _check_memory(tracker.compute_nodes[node], gained)
        tracker._update_usage(_usage(gained), node)
        _MOVING[key] = gained
    try:
        yield commit
    finally:
        with _tracker_lock():
            if _MOVING.pop(key, None) is not None:
                # Else it is what a report in between did not count.
                with contextlib.suppress(exception.NovaException):
                    tracker._update_usage(_usage(gained), node, -1)


def _tracker_lock() -> Any:
    """That of the methods of ``ResourceTracker``."""
    return lockutils.lock(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE,
                          'nova-', fair=True)


def _placed(topology: Any, cells: Sequence[node_move.GuestCell]) -> Any:
    """Nova's record of a guest on other host cells and CPUs."""
    wanted = topology.obj_clone()
    for cell, place in zip(wanted.cells, cells, strict=True):
        cell.id = place.host_node
        if cell.cpu_pinning:
            cell.cpu_pinning = dict(place.pins)
        if cell.cpuset_reserved:
            cell.cpuset_reserved = set(place.reserved)
    return wanted


def _gained(before: Any, wanted: Any) -> Any:
    """The cells that move, without CPUs that the guest has already."""
    gained = wanted.obj_clone()
    had = frozenset().union(*(cell.taken for cell in guest_cells(before)))
    gained.cells = [new for old, new in zip(before.cells, gained.cells,
                                            strict=True) if old.id != new.id]
    for cell in gained.cells:
        if cell.cpu_pinning:
            cell.cpu_pinning = {vcpu: cpu for vcpu, cpu
                                in cell.cpu_pinning.items()
                                if cpu not in had}
        if cell.cpuset_reserved:
            cell.cpuset_reserved = set(cell.cpuset_reserved) - had
    return gained


def _check_memory(node: Any, gained: Any) -> None:
    rooms = host_rooms(node)
    for cell in guest_cells(gained):
        room = rooms[cell.host_node]
        free = (room.memory_free * 1024 if cell.page_size is None else
                room.pages_free.get(cell.page_size, 0) * cell.page_size)
        if free < cell.memory * 1024:
            raise exception.ComputeResourcesUnavailable(
                reason=f'host NUMA node {cell.host_node} has {free // 1024} '
                       f'MiB free, {cell.memory} MiB are to be moved there')


def add_endpoint(virtapi: Any, endpoint: Any) -> None:
    """Let nova-compute answer calls that are not Nova's own.

    ``nova.service.Service`` makes one server of its manager and of the
    manager's ``additional_endpoints``, once ``init_host`` is through.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    :param endpoint: with a ``target`` that has a namespace of its own.
    """
    manager: Any = getattr(virtapi, '_compute', None)
    if manager is not None:
        manager.additional_endpoints.append(endpoint)


def around_launch(host: Any, function: Callable[..., Any]) -> None:
    """Have a function of ours start the domains that are defined already.

    ``LibvirtDriver._soft_reboot`` and ``_resume_guest_after_snapshot`` start
    them with ``launch()`` of the guest that ``get_guest()`` gave, and let
    them run at once.

    :param host: nova.virt.libvirt.host.Host of the driver.
    :param function: takes Nova's ``launch`` of a guest, the guest, the
        instance, and whether it is to stay paused.
    """
    def get_guest(instance: Any) -> Any:
        guest = type(host).get_guest(host, instance)
        guest.launch = functools.partial(function, guest.launch, guest,
                                         instance)
        return guest
    host.get_guest = get_guest


def let_libvirt_call_back(host: Any) -> None:
    """Let libvirt say that it has gone to who has just asked whether it has.

    ``Host._get_connection`` asks with ``_wrapped_conn_lock`` held, and libvirt
    calls ``Host._connection_closed``, which takes it, from that very thread.
    Where nova-compute has threads and no eventlet (since Nova 33), that waits
    for itself, and all others for it, until nova-compute is restarted.

    :param host: nova.virt.libvirt.host.Host of the driver.
    """
    if hasattr(host, '_wrapped_conn_lock'):
        host._wrapped_conn_lock = threading.RLock()
    else:
        LOG.warning('ghsched: cannot apply the repair '
                    'libvirtd-restart-deadlock of Nova: its Host has no '
                    '_wrapped_conn_lock')


def report_resources(virtapi: Any, context: Any, instance: Any) -> None:
    """Let Placement know now what nova-compute reports with each period.

    ``_update_resource_tracker`` of nova-compute's manager is what it calls
    when a guest has changed its state. It does nothing for a guest that is
    not claimed on this host yet.

    :param virtapi: of the driver; names its manager (``ComputeVirtAPI``).
    """
    manager: Any = getattr(virtapi, '_compute', None)
    if manager is not None:
        manager._update_resource_tracker(context, instance)


def rpc_client(context: Any, target: Any) -> Any:
    """A client on the message bus of the cell that a context is of.

    As the RPC APIs of ``nova.compute.rpcapi`` make theirs.
    """
    router = rpc.ClientRouter(rpc.get_client(
        target, serializer=rpc.JsonPayloadSerializer()))
    return router.client(context)


#: Seconds to wait for a TCP connection to one host of the message bus, and
#: the port of RabbitMQ where a transport_url names none.
_BUS_TIMEOUT_S = 2.0
_BUS_PORT = 5672


def bus_answers(context: Any) -> bool:
    """Whether any host of a cell's message bus accepts a TCP connection.

    A process that makes its first call waits for the connection of its reply
    queue without a limit, whatever limit the call has
    (``oslo_messaging._drivers.amqpdriver.AMQPDriverBase._get_reply_q``).

    :param context: of the cell, see ``nova.context.target_cell``.
    :returns: true also where the hosts of the bus are not known.
    """
    transport: Any = getattr(context, 'mq_connection', None) or rpc.TRANSPORT
    url = getattr(getattr(transport, '_driver', None), '_url', None)
    hosts = [(one.hostname, one.port or _BUS_PORT)
             for one in (url.hosts if url is not None else ())
             if one.hostname]
    return not hosts or any(map(_accepts, hosts))


def _accepts(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, _BUS_TIMEOUT_S):
            return True
    except OSError:
        return False


def long_calls() -> dict[str, int]:
    """How Nova calls what takes long, see ``nova.compute.rpcapi``.

    The host is known to be alive as long as it sends a sign of life.
    """
    return {'timeout': config().long_rpc_timeout,
            'call_monitor_timeout': config().rpc_response_timeout}


def notify(event: str, payload: dict[str, Any]) -> None:
    """Send a notification as nova-compute sends its versioned ones.

    To the topics of ``[notifications]versioned_notifications_topics``; with
    ``notification_format=unversioned`` nobody is notified.
    """
    rpc.get_versioned_notifier(f'nova-compute:{config().host}').info(
        nova_context.get_admin_context(), event, payload)


def instance_lock(uuid: str) -> Any:
    """The lock of ``nova.compute.manager.ComputeManager`` for one guest.

    Its methods put ``nova.utils.synchronized(instance.uuid)`` around their
    work; the lock is one of the process.
    """
    return lockutils.lock(uuid, 'nova-')


# -- what compute hosts report, for the index of nova-scheduler ---------------

#: What the index reads of a compute node.
_REPORTED = ('uuid', 'host', 'updated_at', 'numa_topology', 'pci_stats',
             'stats', 'cpu_allocation_ratio', 'ram_allocation_ratio')

#: Rows that are asked for at a time.
_AT_A_TIME = 500


def in_cells(context: Any, cells: Sequence[Any],
             function: Callable[[Any], Any]) -> list[Any]:
    """What a function gives for each cell; None for one that fails.

    As ``HostManager._get_computes_for_cells`` asks them.
    """
    found = nova_context.scatter_gather_cells(
        context, cells, nova_context.CELL_TIMEOUT, function)
    return [None if nova_context.is_cell_failure_sentinel(answer) else answer
            for answer in found.values()]


def changed_compute_nodes(context: Any, since: Any) -> list[Any]:
    """UUID, ``updated_at`` and ``deleted`` of compute nodes of a cell.

    ``nova.objects.ComputeNodeList`` has no query for what has changed.

    :param since: what has not changed for longer is left out; None for all.
    """
    node = main_models.ComputeNode
    query = sa.select(node.uuid, node.updated_at, node.deleted)
    if since is None:
        query = query.where(node.deleted == 0)
    else:
        query = query.where(sa.or_(
            node.updated_at >= since, node.deleted_at >= since,
            sa.and_(node.updated_at.is_(None), node.deleted == 0)))
    return _rows_of(context, query)


def database_time(context: Any) -> datetime.datetime:
    """Return the time of the database of a cell, in UTC without a zone."""
    with main_db.get_engine(context=context).connect() as connection:
        clock = {'mysql': sa.func.utc_timestamp(6),
                 'postgresql': sa.func.timezone('UTC', sa.func.now())}.get(
                     connection.dialect.name, sa.func.current_timestamp())
        found = connection.execute(sa.select(
            sa.type_coerce(clock, sa.DateTime()))).scalar_one()
    return datetime.datetime.fromisoformat(str(found))


def compute_node_reports(context: Any,
                         uuids: Sequence[str]) -> list[Mapping[str, Any]]:
    """The columns of compute nodes of a cell that the index reads."""
    node = main_models.ComputeNode
    columns = [getattr(node, name) for name in _REPORTED]
    found: list[Mapping[str, Any]] = []
    for first in range(0, len(uuids), _AT_A_TIME):
        query = sa.select(*columns).where(
            node.deleted == 0,
            node.uuid.in_(uuids[first:first + _AT_A_TIME]))
        found.extend(row._mapping for row in _rows_of(context, query))
    return found


def unavailable_hosts(context: Any) -> set[str]:
    """Hosts of a cell whose nova-compute is disabled or down.

    As ``nova.servicegroup.drivers.db`` has it.
    """
    service = main_models.Service
    heard = sa.func.coalesce(service.last_seen_up, service.updated_at,
                             service.created_at)
    oldest = timeutils.utcnow() - datetime.timedelta(
        seconds=nova.conf.CONF.service_down_time)
    query = sa.select(service.host).where(
        service.deleted == 0, service.binary == 'nova-compute',
        sa.or_(service.disabled == sa.true(),
               service.forced_down == sa.true(), heard < oldest))
    return {row.host for row in _rows_of(context, query)}


def _rows_of(context: Any, query: Any) -> list[Any]:
    """Rows of the database of the cell that a context is of."""
    with main_db.get_engine(context=context).connect() as connection:
        return list(connection.execute(query))


class _HostTopology(numa_object.NUMATopology):
    """Topology of a host, parsed when its nodes are asked for.

    Most hosts are weighed by what needs no nodes, and then not taken.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self._read = read

    @classmethod
    def obj_name(cls) -> str:
        return 'NUMATopology'

    def obj_attr_is_set(self, attrname: str) -> bool:
        """All are: they are loaded when one gets them."""
        return attrname in self.fields

    def obj_load_attr(self, attrname: str) -> None:
        setattr(self, attrname, getattr(self._read(), attrname))
        self.obj_reset_changes([attrname])

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._read(), memo)


def cache_host_topologies(size: int) -> None:
    """Parse the NUMA topology of a host if need be, once for each change.

    ``nova.scheduler.host_manager.HostState`` parses it with each request.
    Who takes of a topology makes a new one
    (``nova.virt.hardware.numa_usage_from_instance_numa``).
    """
    @functools.lru_cache(maxsize=size)
    def parse(document: str) -> Any:
        return objects.NUMATopology.obj_from_primitive(
            jsonutils.loads(document))
    wrap(objects.NUMATopology, 'obj_from_db_obj',
         lambda _original, document: _HostTopology(
             functools.partial(parse, document)))


def host_states(manager: Any, context: Any, uuids: Sequence[str],
                spec: RequestSpec) -> list[Any]:
    """States of some hosts, with the services of these hosts alone.

    ``HostManager.get_host_states_by_uuids`` reads the services of all hosts.

    :param manager: ``nova.scheduler.host_manager.HostManager``.
    """
    wanted = only_cell(spec)
    cells = [cell for cell in manager.enabled_cells
             if wanted in (None, cell.uuid)]

    def look(in_cell: Any) -> Any:
        nodes = objects.ComputeNodeList.get_all_by_uuids(in_cell, uuids)
        hosts = {node.host for node in nodes}
        services = objects.ServiceList(objects=_services(in_cell, hosts))
        return in_cell.cell_uuid, list(nodes), list(services)
    nodes: dict[str, list[Any]] = {}
    services: dict[str, Any] = {}
    for answer in in_cells(context, cells, look):
        if answer is not None:
            cell, of_cell, its_services = answer
            nodes[cell] = of_cell
            services.update((one.host, one) for one in its_services)
    return list(manager._get_host_states(context, nodes, services))


def _services(context: Any, hosts: Iterable[str]) -> list[Any]:
    """nova-compute of some hosts of a cell, by one query."""
    service = main_models.Service
    query = sa.select(*service.__table__.c).where(
        service.deleted == 0, service.binary == 'nova-compute',
        service.host.in_(sorted(hosts)))
    return [objects.Service._from_db_object(
        context, objects.Service(context), dict(row._mapping))
        for row in _rows_of(context, query)]


def only_cell(spec: RequestSpec) -> str | None:
    """The cell that a request is bound to, as ``HostManager`` has it."""
    wanted = (spec.requested_destination
              if 'requested_destination' in spec else None)
    if (wanted and 'cell' in wanted and wanted.cell
            and not wanted.allow_cross_cell_move):
        return str(wanted.cell.uuid)
    return None


def aggregates_of(resources: Any) -> tuple[list[set[str]], set[str]]:
    """Aggregates that a host has to be in, and must not be in.

    :param resources: ``nova.scheduler.utils.ResourceRequest``, whose
        unnumbered group has what availability zone, project and isolation of
        aggregates ask for.
    """
    group = resources.get_request_group(None)
    return ([set(one) for one in group.aggregates],
            set(group.forbidden_aggregates))


#: Held while rules are added to Nova's.
_registering = threading.Lock()


def authorize(context: Any, rules: Iterable[Any], rule: str,
              target: Mapping[str, Any]) -> None:
    """Ask nova-api's policy whether a user may do something of ours.

    Nova has no way to add a rule, so its enforcer gets them (nova/policy.py).

    :param rules: ours, with what holds where the policy file names none.
    :param target: attributes of what it is done to.
    :raises Forbidden: of Nova, when it is not allowed.
    """
    nova_policy.init()
    enforcer = nova_policy._ENFORCER
    with _registering:
        missing = {one.name: copy.deepcopy(one) for one in rules
                   if one.name not in enforcer.registered_rules}
        if missing:
            # Other threads walk through these with each of their requests
            # (load_rules() of oslo_policy/policy.py).
            enforcer.registered_rules = {**enforcer.registered_rules,
                                         **missing}
    nova_policy.authorize(context, rule, target)
