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

"""Claims of an instance of Nova on this host.

A claim gets the devices that Placement gave, and for ghsched:numa=auto the
guest NUMA topologies that it may take. It is compared with the allocation
before the guest starts or arrives.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

from ghsched_nova.guest import device_numa
from ghsched_nova.host import allocation_check
from ghsched_nova.host import engine
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_nova.virt import refusal
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import cpuless_nodes


def parse_policy(instance: Any) -> policies.GuestPolicy | None:
    """Parse the bandwidth policy of an instance's flavor.

    Returns None if the flavor has no policy.

    :raises PolicyError: if the flavor is invalid. nova-api or nova-scheduler
        refuses such a flavor unless the host is forced.
    """
    return policies.parse_policy(instance.flavor.extra_specs,
                                 len(numa.list_host_nodes(
                                     instance.numa_topology)),
                                 instance.flavor.vcpus)


def get_destination_topology(instance: Any) -> Any:
    """Return the NUMA topology that a migrating guest claimed on this host.

    Returns None for an instance without a migration context.
    """
    context = instance.migration_context
    return context.new_numa_topology if context else None


def list_device_nodes(instance: Any) -> list[device_numa.Device]:
    """Return the NUMA node of each device that an instance has claimed."""
    return [device_numa.Device(device.address, device.numa_node)
            for device in instance.get_pci_devices()]


def list_required_device_nodes(instance: Any) -> list[int]:
    """Return the host NUMA nodes on which an instance's devices must be.

    The result is empty unless the instance's flavor requires devices on the
    guest's nodes (``device_numa=required``).
    """
    policy = parse_policy(instance)
    if policy is None or policy.device_numa != device_numa.REQUIRED:
        return []
    return sorted(numa.list_host_nodes(instance.numa_topology))


def list_devices_by_request(instance: Any) -> list[allocation_check.Devices]:
    """Return how each PCI request of an instance was satisfied.

    :returns: for each request the number of requested devices, the resource
        providers that Placement allocated, and the devices that nova-compute
        claimed.
    """
    claimed: dict[str, list[str | None]] = {}
    for device in instance.pci_devices or ():
        claimed.setdefault(device.request_id, []).append(
            device.extra_info.get('rp_uuid'))
    requests = instance.pci_requests
    return [
        allocation_check.Devices(
            f'alias {request.alias_name}' if request.alias_name else
            f'port {request.requester_id}', request.count,
            _list_allocated_providers(request),
            claimed.get(request.request_id, ()))
        for request in (requests.requests if requests else ())
    ]


def _list_allocated_providers(request: Any) -> list[str]:
    """Return the resource providers of a PCI request's allocated devices.

    Placement has allocated the devices.
    """
    text = request.spec[0].get('rp_uuids') if request.spec else None
    return text.split(',') if text else []


def describe_missing_devices(instance: Any) -> tuple[str, ...]:
    """Describe each PCI request for which an instance claimed too little."""
    return allocation_check.describe_missing_devices(
        list_devices_by_request(instance))


# -- comparison with the allocation -------------------------------------------


def check_claims(host: engine.HostEngine, libvirt_host: Any, instance: Any,
                 allocations: Any) -> None:
    """Refuse a guest whose claim differs from its allocation.

    :param libvirt_host: nova.virt.libvirt.host.Host of the driver.
    :param allocations: allocation of the guest in Placement.
    :raises nova.exception.ComputeResourcesUnavailable: if they differ. Nova
        then tries the next host.
    """
    check_allocated_nodes(
        host, libvirt_host, instance, instance.numa_topology, allocations,
        pci_requests.list_claimed_vf_nodes(instance))
    if policies.has_ghsched_keys(instance.flavor.extra_specs):
        with refusal.refusing_guest(instance, allocation_check.ClaimMismatch):
            allocation_check.check_devices(
                list_devices_by_request(instance), allocations or {})


def check_allocated_nodes(
        host: engine.HostEngine, libvirt_host: Any, instance: Any,
        topology: Any, allocations: Any,
        vfs: Sequence[tuple[int, int | None]] = ()) -> None:
    """Refuse a guest whose claim and allocation name different NUMA nodes.

    The claim is nova-compute's, the allocation is Placement's.

    :param libvirt_host: nova.virt.libvirt.host.Host of the driver.
    :param topology: NUMA topology that the instance has claimed.
    :param allocations: allocation of the guest in Placement.
    :param vfs: guest and host NUMA node of each VF.
    :raises nova.exception.ComputeResourcesUnavailable: if they differ. Nova
        then tries the next host.
    """
    with refusal.refusing_guest(instance, policies.PolicyError,
                                allocation_check.ClaimMismatch):
        policy = parse_policy(instance)
        if policy is None:
            return
        cells = numa.list_host_nodes(topology)
        nearest = host.find_nearest_nodes() if vfs else {}
        vfs = [(guest_node, cpuless_nodes.get_device_node(
            node, nearest, policy.device_numa,
            host.domain_xml.libvirt.shows_device_cells))
            for guest_node, node in vfs]
        allocation_check.check_allocation(
            policy, shared.config().ghsched.bandwidth_accounting, cells,
            allocations or {}, libvirt_host.get_node_uuid(), vfs,
            host.can_join_shared_group(policy, cells))


# -- contexts of claims -------------------------------------------------------


@contextlib.contextmanager
def claiming_instance(instance: Any) -> Iterator[None]:
    """Within this context, nova-compute's claim of a new instance is steered.

    It claims the host NUMA nodes and the passthrough devices that
    nova-scheduler has allocated for the instance.
    """
    with (pci_requests.claiming_allocated_pfs(instance),
          numa.choosing_cpus(instance.flavor),
          numa.claiming_best_topology(_list_possible_topologies(
              instance.flavor, instance.image_meta, instance, False))):
        yield


@contextlib.contextmanager
def claiming_move(instance: Any, flavor: Any, image: Any,
                  is_live: bool) -> Iterator[None]:
    """Within this context, nova-compute's claim of a move is steered.

    It claims the passthrough devices that nova-scheduler has allocated for
    the instance, with the guest NUMA topology that nova-scheduler has chosen.

    :param flavor: new flavor of the instance.
    :param image: ImageMeta; None for a server without an image.
    :param is_live: whether the guest keeps running.
    """
    with (pci_requests.claiming_move(instance), numa.choosing_cpus(flavor),
          numa.claiming_best_topology(_list_possible_topologies(
              flavor, image, instance, is_live))):
        yield


def _list_possible_topologies(flavor: Any, image: Any, instance: Any,
                              is_live: bool) -> Sequence[Any] | None:
    """Return the guest NUMA topologies that a flavor allows, the best first.

    Returns None if the flavor allows only one.

    :param is_live: whether the guest keeps running.
    """
    specs = flavor.extra_specs if 'extra_specs' in flavor else {}
    if not auto_nodes.is_node_count_undecided(specs):
        return None
    # nova-api gives a new server with CPUs of its own a topology of one node.
    had = (len(numa.list_host_nodes(instance.numa_topology))
           if instance.launched_at else 0)
    return [
        numa.make_guest_topology(
            numa.copy_flavor_with_numa_count(flavor, count), image)
        for count in auto_nodes.list_server_node_counts(
            specs, flavor.vcpus, flavor.memory_mb, had, is_live)
    ]
