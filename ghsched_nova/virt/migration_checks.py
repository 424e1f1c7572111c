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

"""Checks of live migrations, and their XML, on either host.

Nova detaches passthrough ports before libvirt copies the guest, and attaches
them on the destination afterwards, when the live migration can no longer be
rolled back. Under ``ghsched:device_numa=required`` both hosts therefore check
before the copy that each port will get its place.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
from typing import Any

from nova import exception
from nova import objects
from oslo_log import log as logging

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.host import arrival_check
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import engine
from ghsched_nova.host import migration_xml
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared
from ghsched_nova.virt import attach
from ghsched_nova.virt import instance_claims
from ghsched_nova.virt import refusal

LOG = logging.getLogger(__name__)

# -- the guest ----------------------------------------------------------------


def check_destination_nodes(host: engine.HostEngine, libvirt_host: Any,
                            instance: Any, allocations: Any) -> None:
    """Refuse a live migration whose claim and allocation differ here.

    :param libvirt_host: nova.virt.libvirt.host.Host of the driver.
    :param allocations: allocation of the guest in Placement.
    :raises nova.exception.MigrationPreCheckError: with the reason.
    """
    topology = instance_claims.get_destination_topology(instance)
    if topology is None:
        return
    try:
        instance_claims.check_allocated_nodes(host, libvirt_host, instance,
                                              topology, allocations)
    except exception.ComputeResourcesUnavailable as error:
        raise exception.MigrationPreCheckError(reason=str(error)) from error


def check_arriving_guest(host: engine.HostEngine,
                         hooks: compute_hooks.ComputeHookCaller,
                         instance: Any) -> None:
    """Refuse a live migration if this host cannot enforce the policy.

    The policy is the bandwidth policy of the arriving guest.

    :raises nova.exception.MigrationPreCheckError: with the reason.
    """
    try:
        policy = instance_claims.parse_policy(instance)
        topology = instance_claims.get_destination_topology(instance)
        if policy is not None and topology is not None:
            arrival_check.check_arrival(host, policy,
                                        numa.list_host_nodes(topology))
            hooks.check_arrival(
                policy, topology.emulator_threads_policy
                if 'emulator_threads_policy' in topology else None,
                bool(shared.config().compute.cpu_shared_set))
    except refusal.CANNOT_ENFORCE as error:
        LOG.warning('ghsched: refusing a live migration because this host '
                    'cannot enforce the bandwidth policy of the guest: '
                    '%s',
                    error, instance=instance)
        raise exception.MigrationPreCheckError(
            reason=f'ghsched: {error}') from error


def check_domain_numbers(host: engine.HostEngine, instance: Any) -> None:
    """Refuse a live migration if resctrl domains and NUMA nodes differ.

    The number of each resctrl domain must be that of its NUMA node. The
    source writes the destination's NUMA nodes into ``<memorytune>`` of the
    guest's XML, because it does not know the resctrl domains of the
    destination. A guest without bandwidth limits has no such element.

    :raises nova.exception.MigrationPreCheckError: with the reason.
    """
    try:
        policy = instance_claims.parse_policy(instance)
        if policy is not None and any(
                node.requests_bandwidth for node in policy.nodes):
            migration_xml.check_domain_numbering(
                host.read_resctrl_host())
    except refusal.CANNOT_ENFORCE as error:
        raise exception.MigrationPreCheckError(
            reason=f'ghsched: {error}') from error


def renumber_guest(host: engine.HostEngine, instance: Any, guest: Any,
                   xml: str, migrate_data: Any) -> Any:
    """Return a guest whose XML has the destination's NUMA nodes.

    :param guest: Guest of nova.virt.libvirt.guest, which is returned if
        the domain has no policy.
    :param xml: live XML of the domain.
    :raises nova.exception.MigrationPreCheckError: if the domain cannot
        get these NUMA nodes. Nova rolls the live migration back.
    """
    try:
        if metadata.read_policy(xml) is None:
            return guest
        renumbered = migration_xml.MigratingGuest(
            guest, host.domain_xml,
            migration_xml.list_destination_nodes(migrate_data))
        renumbered.render(xml)
    except (*refusal.CANNOT_ENFORCE, migration_xml.NotRenumbered) as error:
        LOG.error('ghsched: refusing a live migration because the '
                  'bandwidth policy of the guest cannot be written for '
                  'the NUMA nodes of the destination: %s', error,
                  instance=instance)
        raise exception.MigrationPreCheckError(
            reason='ghsched: the bandwidth policy of the guest cannot be '
            'written for the NUMA nodes of the destination; hard reboot '
            'the server and try again') from error
    return renumbered


@contextlib.contextmanager
def continuing_after_copy(instance: Any) -> Iterator[None]:
    """Within this context, log errors of this source host's cleanup.

    The guest already runs on the destination of the live migration. After
    an exception on the source, Nova would neither release the devices of
    the source nor allocate those of the destination. If the fix
    ``live-migrated-devices`` is not applied to the server, errors are
    raised as in Nova.
    """
    try:
        yield
    except Exception as error:
        if not fixes.is_fix_applied_to('live-migrated-devices', instance):
            raise
        LOG.exception('ghsched: cannot clean up this source host after a '
                      'live migration, completing the live migration '
                      'because the guest has been copied; check the '
                      "guest's ports and volumes on this host: %s", error,
                      instance=instance)


# -- passthrough ports --------------------------------------------------------


@dataclass(frozen=True)
class MovingPort:
    """Passthrough port in a live migration.

    :param source: PCI address of its device on the source.
    :param dest: PCI address of its device on the destination.
    """

    source: str
    dest: str


def list_moving_ports(migrate_data: Any) -> list[MovingPort]:
    """Return the passthrough ports that Nova attaches after a live migration.

    :param migrate_data: Nova's LiveMigrateData, with the destination's devices
        in the profiles of its VIFs.
    """
    vifs = migrate_data.vifs if 'vifs' in migrate_data else None
    return [MovingPort(vif.source_vif['profile']['pci_slot'],
                       vif.profile['pci_slot'])
            for vif in vifs or ()
            if 'source_vif' in vif and vif.source_vif
            and vif.source_vif['vnic_type'] in attach.PASSTHROUGH
            and 'pci_slot' in (vif.source_vif['profile'] or {})
            and 'pci_slot' in vif.profile]


def read_device_nodes(context: Any, host: str) -> dict[str, int | None]:
    """Return the NUMA node of each device of a host by PCI address.

    The devices are read from Nova's database. None is a device whose node the
    host does not know.

    :param host: name of the compute host.
    """
    return {device.address: device.numa_node
            for node in objects.ComputeNodeList.get_all_by_host(context, host)
            for device in objects.PciDeviceList.get_by_compute_node(
                context, node.id)}


def assign_ports(ports: Iterable[MovingPort],
                 node_of: Mapping[str, int | None],
                 host_nodes: Sequence[int]) -> Mapping[str, int | None]:
    """Assign the device of each port to a guest NUMA node.

    :param node_of: NUMA node of the destination's devices by PCI address.
    :param host_nodes: the destination's host NUMA node of each guest node.
    :returns: guest NUMA node by PCI address on the destination.
    :raises DeviceNumaError: with each device that is on none of these nodes.
    """
    return device_numa.assign_devices(
        [device_numa.Device(port.dest, node_of.get(port.dest))
         for port in ports], host_nodes,
        device_numa.REQUIRED).guest_node_of


def check_free_pci_ports(guest_xml: str, ports: Sequence[MovingPort],
                         guest_node_of: Mapping[str, int | None]) -> None:
    """Refuse a live migration if a guest NUMA node has too few PCI ports.

    Each device of a passthrough port needs a free PCI port behind the expander
    bus of its guest node. The PCI ports of the devices on the source count as
    free, because Nova detaches these devices before the copy.

    :param guest_xml: live XML on the source.
    :param guest_node_of: guest NUMA node by PCI address on the destination.
    :raises DeviceNumaError: naming the guest NUMA node.
    """
    root = pci_topology.parse_document(guest_xml)
    present = pci_topology.map_passthrough_devices(root)
    for port in ports:
        device = present.get(pci_topology.normalize_address(port.source))
        if device is not None:
            document.remove_element(device)
    topology = pci_topology.read_pci_controllers(
        pci_topology.get_devices(root))
    free = [topology.expanders[bus] for index, bus in topology.bus_of.items()
            if index not in topology.used]
    needed = list(guest_node_of.values())
    for node in sorted({node for node in needed if node is not None}):
        if needed.count(node) > free.count(node):
            raise pci_topology.DeviceNumaError(
                f'{needed.count(node)} passthrough ports would be on guest '
                f'NUMA node {node}, and {free.count(node)} PCI ports are free '
                'behind its expander bus')


def check_arriving_ports(instance: Any, migrate_data: Any,
                         devices: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a live migration if a port's device is on another NUMA node.

    Each device that this host has claimed for a port must be on a host
    NUMA node of the guest, if the flavor has
    ``ghsched:device_numa=required``.

    :param devices: PCI devices of this host, as reported to Nova.
    :raises nova.exception.MigrationPreCheckError: with the reason.
    """
    policy = instance_claims.parse_policy(instance)
    topology = instance_claims.get_destination_topology(instance)
    if (policy is not None and topology is not None
            and policy.device_numa == device_numa.REQUIRED):
        with _refusing_ports(instance):
            assign_ports(list_moving_ports(migrate_data), {
                device['address']: device.get('numa_node')
                for device in devices}, numa.list_host_nodes(topology))


def check_leaving_ports(host: engine.HostEngine, context: Any, instance: Any,
                        dest: str, xml: str, migrate_data: Any) -> None:
    """Refuse a live migration if a device has no PCI port on its node.

    The PCI buses of the guest's NUMA nodes must have enough free PCI ports
    for the devices of its passthrough ports. This is checked on the
    source, because only the source knows the PCI ports of the guest. It
    applies to ``ghsched:device_numa=required`` only.

    :param xml: live XML of the domain.
    :raises nova.exception.MigrationPreCheckError: with the reason. Nova
        rolls the live migration back.
    """
    ports = list_moving_ports(migrate_data)
    domain = metadata.read_policy(xml) if ports else None
    if (domain is None or domain.policy.device_numa != device_numa.REQUIRED
            or host.domain_xml.libvirt.numa_element):
        return
    with _refusing_ports(instance):
        check_free_pci_ports(xml, ports, assign_ports(
            ports, read_device_nodes(context, dest),
            migration_xml.list_destination_nodes(migrate_data)))


@contextlib.contextmanager
def _refusing_ports(instance: Any) -> Iterator[None]:
    """Within this context, a misplaced passthrough port refuses a migration.

    :raises nova.exception.MigrationPreCheckError: with the reason.
    """
    try:
        yield
    except pci_topology.DeviceNumaError as error:
        LOG.warning('ghsched: refusing a live migration because the guest '
                    'would not see the NUMA node of a passthrough port at the '
                    'destination: %s', error, instance=instance)
        raise exception.MigrationPreCheckError(
            reason=f'ghsched:device_numa=required: {error}') from error
