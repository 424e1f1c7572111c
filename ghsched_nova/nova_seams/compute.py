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

"""Seams of nova-compute: its driver, its manager and its instances."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from nova.compute import task_states
import nova.conf
from nova import objects
from nova.pci import whitelist
from nova import utils
from nova.virt import hardware
from oslo_concurrency import lockutils

from ghsched_nova.base import wrappers
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_placement.fit import node_capacity

seam = registry.make_seam_decorator(registry.COMPUTE)

_Result = TypeVar('_Result')


def get_dedicated_cpus() -> frozenset[int]:
    """Return the host CPUs of ``[compute]cpu_dedicated_set``.

    The result is empty if the option is not set. Nova's function is
    ``nova.virt.hardware.get_cpu_dedicated_set() -> set | None``.
    """
    return frozenset(hardware.get_cpu_dedicated_set() or ())


@seam('nova.utils.tpool_wrap', ('target', 'autowrap'), may_be_missing=True)
def call_in_native_thread(function: Callable[[], _Result]) -> _Result:
    """Call a function in a native thread, where libvirt calls are direct.

    With eventlet, Nova hands each call of a libvirt object to a native thread,
    which costs more than reading a UUID; calls in a native thread are not
    handed on. Without eventlet, or if Nova has no such function, the function
    is called in the current thread.

    :returns: the result of the function.
    """
    wrap = getattr(utils, 'tpool_wrap', None)
    result: _Result = (wrap(function) if wrap else function)()
    return result


@seam('nova.virt.libvirt.host.Host.get_guest', ('self', 'instance'),
      replaced='Gives such objects (of the one host object of the driver).')
@seam('nova.virt.libvirt.guest.Guest.launch', ('self', 'pause'),
      replaced='A soft reboot starts a guest once its policy holds (of one '
               'object); Nova starts it inside a wait.')
def wrap_launch_of_existing_domains(host: Any,
                                    function: Callable[..., Any]) -> None:
    """Wrap each start of an existing libvirt domain by a function.

    ``LibvirtDriver._soft_reboot`` and ``_resume_guest_after_snapshot`` call
    ``launch()`` of the guest that ``get_guest()`` returned, and the guest's
    CPUs run at once. The function can start the guest paused instead.

    :param host: nova.virt.libvirt.host.Host of the driver.
    :param function: takes Nova's ``launch`` of a guest, the guest, the
        instance, and whether the guest is to stay paused.
    """
    def get_guest(original: Callable[..., Any], instance: Any) -> Any:
        guest = original(instance)

        def launch(start: Callable[..., Any], *args: Any,
                   **kwargs: Any) -> None:
            function(start, guest, instance, *args, **kwargs)

        registry.replace_function('nova.virt.libvirt.guest.Guest.launch',
                                  launch, guest)
        return guest

    registry.replace_function('nova.virt.libvirt.host.Host.get_guest',
                              get_guest, host)


#: Allocations of Placement, as Nova read them last, by consumer UUID:
#: ``{provider: {'resources': {class: amount}}}``. By name of the compute node.
_TREE_ALLOCATIONS: dict[str, Mapping[str, Mapping[str, Any]]] = {}


class AllocationKeepingClient(wrappers.ObjectWrapper):
    """Nova's report client, which keeps the allocations of a host it read.

    Nova's resource tracker reads them right before it calls the driver's
    ``update_provider_tree``, and passes them only for a reshape. ghsched takes
    them by :func:`take_tree_allocations` instead of asking Placement again.

    :param wrapped: nova.scheduler.client.report.SchedulerReportClient.
    """

    @seam('nova.scheduler.client.report.SchedulerReportClient.'
          'get_allocations_for_provider_tree', ('self', 'context', 'nodename'))
    def get_allocations_for_provider_tree(self, context: Any,
                                          nodename: str) -> Any:
        found = self._wrapped.get_allocations_for_provider_tree(context,
                                                                nodename)
        _TREE_ALLOCATIONS[nodename] = {consumer: one['allocations']
                                       for consumer, one in found.items()}
        return found


def take_tree_allocations(
        nodename: str) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the allocations of a host that Nova read last, and forget them.

    :param nodename: name of the compute node.
    :returns: ``{provider: {'resources': {class: amount}}}`` by consumer UUID;
        None if Nova has not read them since the last call.
    """
    return _TREE_ALLOCATIONS.pop(nodename, None)


@seam('nova.compute.manager.ComputeVirtAPI._compute',
      called='The only way from the driver to its manager.')
@seam('nova.compute.resource_tracker.ResourceTracker.update_usage',
      ('self', 'context', 'instance', 'nodename'))
def report_host_resources(virtapi: Any, context: Any, instance: Any) -> None:
    """Report the resources of this compute host to Placement now.

    nova-compute does so whenever a guest has changed its state. Nothing is
    reported for a guest that is not claimed on this host yet.

    :param virtapi: ``ComputeVirtAPI`` of the driver, which has nova-compute's
        manager.
    :param instance: the guest whose state has changed.
    """
    manager: Any = getattr(virtapi, '_compute', None)
    if manager is not None and instance.host == manager.host:
        manager.rt.update_usage(context, instance, instance.node)


@seam('nova.utils.synchronized')
def lock_instance(uuid: str) -> Any:
    """Lock an instance against other threads of nova-compute.

    Methods of nova-compute hold the lock, ``nova.utils.synchronized(uuid)``,
    while they change the instance.

    :returns: context manager that holds the lock.
    """
    return lockutils.lock(uuid, 'nova-')


@seam('nova.compute.task_states.REBUILD_SPAWNING')
def is_rebuilt_in_place(instance: Any) -> bool:
    """Return whether an instance is being rebuilt on its host.

    An evacuation is also a rebuild, but the record of an evacuated instance
    names its old host until the instance runs on the new host
    (``nova.compute.manager.ComputeManager._do_rebuild_instance``).
    """
    return bool(instance.task_state == task_states.REBUILD_SPAWNING
                and instance.host == nova.conf.CONF.host)


def is_being_evacuated_here(instance: Any) -> bool:
    """Return whether an instance is being evacuated to this host."""
    return bool(instance.task_state == task_states.REBUILD_SPAWNING
                and instance.host != nova.conf.CONF.host)


@seam('nova.pci.whitelist.Whitelist.specs')
def make_tag_lookup(
) -> Callable[[Mapping[str, Any]], Mapping[str, str] | None]:
    """Return a function that looks up the tags of a PCI device.

    The tags are those of ``[pci]device_spec``. The function takes a device as
    libvirt reports it. Nova's PCI tracker uses the same
    ``nova.pci.whitelist.Whitelist``.
    """
    specs = whitelist.Whitelist(nova.conf.CONF.pci.device_spec).specs

    def tags(device: Mapping[str, Any]) -> Mapping[str, str] | None:
        for spec in specs:
            if spec.match(device):
                return dict(spec.get_tags())
        return None
    return tags


def add_physnet(cell: Any, physnet: str) -> None:
    """Add a physical network to those that a host NUMA node offers.

    The set is assigned as a whole, because a field of a versioned object
    notices only an assignment.

    :param cell: Nova's NUMACell of the host NUMA node.
    """
    cell.network_metadata.physnets = (
        set(cell.network_metadata.physnets) | {physnet})


@seam('nova.compute.manager.ComputeManager.rt')
@seam('nova.compute.resource_tracker.ResourceTracker.compute_nodes')
def list_node_capacities(virtapi: Any,
                         nodename: str) -> list[node_capacity.NodeCapacity]:
    """Return used and free CPUs and memory of each NUMA node of a host.

    The values are those of nova-compute's resource tracker.

    :param virtapi: ``ComputeVirtAPI`` of the driver, which has nova-compute's
        manager.
    :returns: the values by node; empty before nova-compute's first report, and
        for a host that reports no NUMA nodes.
    """
    node: Any = virtapi._compute.rt.compute_nodes.get(nodename)
    text = node and node.numa_topology
    topology: Any = text and objects.NUMATopology.obj_from_db_obj(text)
    return numa.list_node_capacities(topology, node) if topology else []


@seam('nova.compute.utils.update_pci_request_with_placement_allocations',
      ('context', 'report_client', 'pci_requests', 'provider_mapping'),
      replaced='Notes the providers of a guest for its claim; Nova hands them '
               'to this function, and not to the claim.')
def call_before_claims(
        function: Callable[[Any, Mapping[str, Sequence[str]]], None]) -> None:
    """Make Nova call a function before it claims resources for a guest.

    ``nova.compute.manager.ComputeManager`` and ``nova.conductor`` look
    ``nova.compute.utils.update_pci_request_with_placement_allocations`` up in
    its module right before each such claim.

    :param function: called after Nova's function; takes the PCI requests of
        the instance, and the resource providers by suffix of the request
        group.
    """
    def watched(original: Callable[..., Any], context: Any,
                report_client: Any, pci_requests: Any,
                provider_mapping: Any) -> Any:
        result = original(context, report_client, pci_requests,
                          provider_mapping)
        function(pci_requests, provider_mapping)
        return result

    registry.replace_function(
        'nova.compute.utils.'
        'update_pci_request_with_placement_allocations', watched)
