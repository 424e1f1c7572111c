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

"""Checks the places of a guest's passthrough ports before a live migration.

Nova detaches these ports before libvirt copies the guest, and attaches them on
the destination afterwards, when the live migration can no longer be rolled
back. Under ``ghsched:device_numa=required`` both hosts therefore check before
the copy that each port will get its place.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nova import objects

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import document
from ghsched_nova.guest import pci_topology
from ghsched_nova.virt import attach


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

    The devices are read from Nova's database.
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
