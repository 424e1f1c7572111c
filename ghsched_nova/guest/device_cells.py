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

"""Guest NUMA nodes for devices on host nodes without CPUs (pure).

A guest's kernel takes a NUMA node without CPUs and memory for offline, and
shows -1 for the devices behind its expander bus. With ``<acpi nodeset='N'/>``
in a device (libvirt 11.8, ``acpi-generic-initiator`` of QEMU 9.0) the firmware
tables name the device as an initiator of the node, so that the node is online
(tried with Linux 6.1 and 7.2 on q35 and aarch64 virt).

Older versions of libvirt silently drop the attribute
(:mod:`ghsched_nova.guest.libvirt_probes`).
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from lxml import etree

from ghsched_nova.guest import cells
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import document
from ghsched_nova.guest import pci_topology as pci
from ghsched_nova.guest.pci_topology import DeviceNumaError

_ACPI = 'acpi'
_NODESET = 'nodeset'
#: Distance of a NUMA node to itself (ACPI SLIT).
_LOCAL = 10


def select_host_nodes(devices: Sequence[device_numa.Device],
                      host_nodes: Sequence[int],
                      without_cpus: Collection[int]) -> tuple[int, ...]:
    """Return the host nodes without CPUs that a guest's devices belong to.

    The guest gets a NUMA node without CPUs for each of them.

    :param host_nodes: host node of each guest node with CPUs. A guest without
        NUMA nodes gets none.
    :param without_cpus: host nodes without CPUs.
    """
    found = {device.host_node for device in devices
             if device.host_node is not None} & set(without_cpus)
    return tuple(sorted(found - set(host_nodes))) if host_nodes else ()


def render_cells(xml: str, host_nodes: Sequence[int], count: int,
                 guest_node_of: Mapping[str, int | None],
                 distances: Mapping[int, Mapping[int, int]]) -> str:
    """Return a domain XML with guest NUMA nodes that have devices only.

    :param host_nodes: host node of each guest node; those of the nodes to add
        come last.
    :param count: number of guest nodes to add.
    :param guest_node_of: guest node by host PCI address of a device.
    :param distances: NUMA distances between host nodes (ACPI SLIT).
    :raises DeviceNumaError: if the guest has other NUMA nodes.
    """
    root = pci.parse_document(xml)
    changed = _strip_cells(root)
    first = len(host_nodes) - count
    if count:
        numa = root.find('cpu/numa')
        if numa is None or pci.list_cell_numbers(root) != set(range(first)):
            raise DeviceNumaError(
                f'the guest does not have the NUMA nodes 0 to {first - 1}')
        for number in range(first, len(host_nodes)):
            document.insert_children(
                numa, [_make_cell(number, host_nodes, distances)], number)
    present = pci.map_passthrough_devices(root)
    for address, node in guest_node_of.items():
        if node is not None and node >= first:
            device = present[pci.normalize_address(address)]
            _get_acpi(device).set(_NODESET, str(node))
    return document.render_document(root) if changed or count else xml


def _make_cell(number: int, host_nodes: Sequence[int],
               distances: Mapping[int, Mapping[int, int]]) -> etree._Element:
    """Return a guest NUMA node without CPUs and memory.

    :param number: number of the guest node.
    :param host_nodes: host node of each guest node.
    """
    cell = etree.Element('cell', id=str(number), memory='0', unit='KiB')
    row = distances.get(host_nodes[number], {})
    if all(node in row for node in host_nodes):
        siblings = etree.SubElement(cell, 'distances')
        for other, node in enumerate(host_nodes):
            etree.SubElement(siblings, 'sibling', id=str(other), value=str(
                _LOCAL if other == number else row[node]))
    return cell


def _get_acpi(device: etree._Element) -> etree._Element:
    found = device.find(_ACPI)
    if found is None:
        found = etree.Element(_ACPI)
        document.insert_children(device, [found], len(device))
    return found


def _strip_cells(root: etree._Element) -> bool:
    """Remove the nodes and attributes that this module has added."""
    added = [*filter(cells.is_device_cell, root.findall('cpu/numa/cell'))]
    for cell in added:
        document.remove_element(cell)
    for device in pci.map_passthrough_devices(root).values():
        acpi = device.find(_ACPI)
        if acpi is not None and _NODESET in acpi.attrib:
            del acpi.attrib[_NODESET]
    return bool(added)
