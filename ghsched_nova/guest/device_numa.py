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


"""Guest NUMA nodes of passthrough devices, in the domain XML (pure).

Nova passes a device through without a guest address. libvirt then puts it
behind a root port of the first PCI host bridge, and the guest's
``/sys/bus/pci/devices/*/numa_node`` shows -1. :func:`assign_devices` assigns
devices to guest nodes. Two functions write the assignment into the XML:

* :func:`render_expander_buses`, for any libvirt: one ``pcie-expander-bus`` per
  guest node (libvirt, "Domain XML format", controllers). QEMU reports the node
  of such a host bridge in ACPI, and the devices behind it inherit the node.
* :func:`render_numa_element`, for a libvirt with openEuler's
  ``<numa node='N'/>`` in a ``<hostdev>``; others silently drop the element
  (:mod:`ghsched_nova.guest.libvirt_probes`).

Functions take and return XML text. They change only the elements concerned; if
one raises, nothing was changed.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import itertools

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import pci_topology as pci
from ghsched_nova.guest.pci_topology import DeviceNumaError
from ghsched_placement.flavor import keys

REQUIRED = keys.REQUIRED
PREFERRED = keys.PREFERRED
NONE = keys.NONE
MODES = (REQUIRED, PREFERRED, NONE)

#: Machine types with PCI Express, ACPI and hot-plug behind an expander bus.
#: The pci-expander-bus of i440fx does not support hot-plug.
MACHINES = ('q35', 'virt')

_NUMA = 'numa'


# -- the decision -------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """Passthrough device of a guest.

    :param address: PCI address on the host.
    :param host_node: host NUMA node; None or -1 if the host does not know it.
    """

    address: str
    host_node: int | None


@dataclass(frozen=True)
class DeviceProblem:
    """Reason why a device is not on the guest NUMA node of its host node.

    The device then has no guest node, or the nearest one.

    :param address: PCI address of the device on the host.
    """

    address: str
    reason: str

    def __str__(self) -> str:
        return f'{self.address}: {self.reason}'


@dataclass(frozen=True)
class DeviceAssignment:
    """Assignment of passthrough devices to guest NUMA nodes.

    :param guest_node_of: guest node by PCI address on the host; None for a
        device without a guest node.
    :param problems: reasons, for the log, why devices have no guest node or
        only the nearest one.
    """

    guest_node_of: Mapping[str, int | None]
    problems: tuple[DeviceProblem, ...] = ()


def _check_device_numa_mode(mode: str) -> None:
    """Refuse an invalid value of the extra spec ``ghsched:device_numa``."""
    if mode not in MODES:
        raise DeviceNumaError('device_numa must be one of '
                              f'{", ".join(MODES)}, not {mode!r}')


def assign_devices(
        devices: Sequence[Device], host_nodes: Sequence[int], mode: str,
        distances: Mapping[int, Mapping[int, int]] | None = None,
        nearest: bool = False) -> DeviceAssignment:
    """Assign each passthrough device to a guest NUMA node.

    The device gets the lowest guest node whose memory is on the device's host
    node, or none if there is no such node.

    :param host_nodes: host node of each guest node.
    :param mode: ``required``, ``preferred``, or ``none`` to assign no device.
    :param distances: NUMA distances between host nodes (ACPI SLIT).
    :param nearest: with ``preferred``, assign a device on a host node without
        memory of the guest to the nearest guest node.
    :returns: guest node of each device, and the problems to log.
    :raises DeviceNumaError: with ``required``, if a device has no guest node;
        the message lists each device and its host node.
    """
    _check_device_numa_mode(mode)
    if mode == NONE:
        return DeviceAssignment({})
    nodes: dict[str, int | None] = {}
    problems = []
    for device in devices:
        address = pci.normalize_address(device.address)
        node, reason = _find_guest_node(device.host_node, host_nodes)
        if node is None and mode == PREFERRED and nearest:
            node = _find_nearest_node(device.host_node, host_nodes,
                                      distances or {})
            if node is not None:
                reason += f'; the guest sees it on node {node}, the nearest'
        nodes[address] = node
        if reason:
            problems.append(DeviceProblem(address, reason))
    if problems and mode == REQUIRED:
        raise DeviceNumaError(
            'the guest must see the NUMA node of its devices; '
            + '; '.join(map(str, problems)))
    return DeviceAssignment(nodes, tuple(problems))


def _find_guest_node(host_node: int | None,
                     host_nodes: Sequence[int]) -> tuple[int | None, str]:
    """Find the guest NUMA node whose memory is on a host NUMA node.

    :param host_node: the host node; None if it is unknown.
    :param host_nodes: host node of each guest node.
    :returns: the guest node and an empty text, or None and the reason why no
        guest node matches.
    """
    if not host_nodes:
        return None, 'the guest has no NUMA nodes (hw:numa_nodes)'
    if host_node is None or host_node < 0:
        return None, 'the host does not know its NUMA node (node -1)'
    if host_node not in host_nodes:
        backed = ', '.join(map(str, sorted(set(host_nodes))))
        return None, (f'it is on host node {host_node}, the guest on host '
                      f'node(s) {backed}')
    return list(host_nodes).index(host_node), ''


def _find_nearest_node(
    host_node: int | None,
    host_nodes: Sequence[int],
    distances: Mapping[int, Mapping[int, int]],
) -> int | None:
    if host_node is None or host_node < 0:
        return None
    row = distances.get(host_node, {})
    known = [(row[node], guest) for guest, node in enumerate(host_nodes)
             if node in row]
    return min(known)[1] if known else None


# -- expander buses -----------------------------------------------------------


def render_expander_buses(xml: str, guest_node_of: Mapping[str, int | None],
                          spare_ports: int = 0) -> str:
    """Return a domain XML with devices on PCI buses of their guest NUMA node.

    Such a bus is an expander bus: a PCI bus that belongs to a NUMA node. Every
    device gets a root port of its own behind the bus.

    libvirt places a device without an address on the free port with the lowest
    index, on any bus. Spare ports are therefore added only if the first host
    bridge has enough free ports with lower indexes for all such devices.

    A domain without root ports of its own (Nova's ``num_pcie_ports=0``) gets
    as many as its other devices may need and one more for hot-plug.

    :param guest_node_of: guest node by host PCI address; other devices are
        left unchanged.
    :param spare_ports: number of spare ports, for hot-plug, to add behind the
        expander bus of *each* guest node.
    :raises DeviceNumaError: if the machine type does not support it, if a
        device is not in the domain or has an address, or if the PCI bus
        numbers do not suffice.
    """
    root = pci.parse_document(xml)
    changed = _strip_expanders(root)
    wanted = _group_by_node(root, guest_node_of)
    if not wanted and not spare_ports:
        return document.render_document(root) if changed else xml
    _refuse_unsupported_machine(root)
    devices = pci.get_devices(root)
    room = _measure_free_ports(devices, wanted)
    if not room.keeps_spare_ports_free:
        spare_ports = 0
    nodes = pci.list_cell_numbers(root) if spare_ports else wanted
    layout = pci.place_expanders(
        [(node, len(wanted.get(node, ())) + spare_ports)
         for node in sorted(nodes)],
        room.taken, room.bus_count)
    _add_controllers(devices, room.new_ports, layout)
    _assign_ports(wanted, layout)
    return document.render_document(root)


def _group_by_node(root: etree._Element,
                   guest_node_of: Mapping[str, int | None]
                   ) -> dict[int, list[etree._Element]]:
    """Return the passthrough devices of each guest NUMA node.

    The devices are in the order of the domain XML.

    :param guest_node_of: guest node by host PCI address.
    """
    found: dict[int, list[etree._Element]] = {}
    for address, node, device in _list_devices_with_node(root, guest_node_of):
        if device.find('address') is not None:
            raise DeviceNumaError(
                f'the PCI device {address} has a guest address already')
        found.setdefault(node, []).append(device)
    return found


def _list_devices_with_node(root: etree._Element,
                            guest_node_of: Mapping[str, int | None]
                            ) -> list[tuple[str, int, etree._Element]]:
    """Return the devices of a domain that have a guest NUMA node.

    :param guest_node_of: guest node by host PCI address.
    :returns: address, guest node and XML element of each device.
    """
    wanted = {pci.normalize_address(address): node
              for address, node in guest_node_of.items() if node is not None}
    present = pci.map_passthrough_devices(root)
    cells = pci.list_cell_numbers(root)
    for address, node in wanted.items():
        if address not in present:
            raise DeviceNumaError(f'the domain has no PCI device {address}')
        if node not in cells:
            raise DeviceNumaError(
                f'the guest has no NUMA node {node} for the PCI device '
                f'{address}')
    return [(address, wanted[address], device)
            for address, device in present.items() if address in wanted]


def _refuse_unsupported_machine(root: etree._Element) -> None:
    kind = pci.get_machine_type(root)
    if kind not in MACHINES:
        raise DeviceNumaError(
            f'machine type {kind} cannot show a guest the NUMA nodes of its '
            'devices; use q35 or, on Arm, virt (image property '
            'hw_machine_type)')
    if not pci.has_acpi(root):
        raise DeviceNumaError('the guest has no ACPI, which shows guests the '
                              'NUMA nodes of its devices')
    if not pci.list_cell_numbers(root):
        raise DeviceNumaError('the guest has no NUMA nodes (hw:numa_nodes)')


@dataclass(frozen=True)
class _Ports:
    """PCI controllers and root ports of a domain outside its expander buses.

    An expander bus is a PCI bus that belongs to a guest NUMA node.

    :param taken: indexes of all controllers, including ``new_ports``.
    :param free_ports: indexes of the root ports of the first host bridge that
        have no device.
    :param new_ports: indexes of the root ports to add to the domain XML.
    :param needed: number of devices for which libvirt will choose a port.
    """

    taken: frozenset[int]
    free_ports: tuple[int, ...]
    new_ports: tuple[int, ...]
    needed: int

    @property
    def keeps_spare_ports_free(self) -> bool:
        """Whether libvirt puts no device on spare ports of expander buses.

        libvirt puts a device without an address on the free port with the
        lowest index. So enough other free ports must have lower indexes than
        the spare ports.
        """
        first = next(pci.iterate_unused_numbers(self.taken))
        below = [index for index in self.free_ports if index < first]
        return len(below) >= self.needed

    @property
    def bus_count(self) -> int:
        """Number of PCI buses that a guest's first host bridge needs.

        One for each controller, plus one for each root port or bridge that
        libvirt may still add.
        """
        return len(self.taken) + 1 + max(
            0, self.needed - len(self.free_ports))


def _measure_free_ports(devices: etree._Element,
                        wanted: Mapping[int,
                                        Sequence[etree._Element]]) -> _Ports:
    topology = pci.read_pci_controllers(devices)
    needed = pci.count_needed_ports(devices) - sum(map(len, wanted.values()))
    new: tuple[int, ...] = ()
    if not topology.ports_outside_expanders:
        new = tuple(itertools.islice(
            pci.iterate_unused_numbers(topology.used_indexes), needed + 1))
    return _Ports(frozenset(topology.used_indexes.union(new)),
                  (*topology.free_ports_outside_expanders, *new), new, needed)


def _assign_ports(devices_by_node: Mapping[int, Sequence[etree._Element]],
                  layout: Sequence[pci.Expander]) -> None:
    """Write the address of a root port of its node's bus into each device.

    :param devices_by_node: devices by guest NUMA node; changed in place.
    :param layout: bus and root ports of each guest NUMA node.
    """
    for expander in layout:
        for device, port in zip(devices_by_node.get(expander.node, ()),
                                expander.ports, strict=False):
            _append_element(device, _get_device_address(port.index))


def _add_controllers(devices: etree._Element, normal: Sequence[int],
                     layout: Sequence[pci.Expander]) -> None:
    new = [_make_controller(index, pci.PORT) for index in normal]
    for expander in layout:
        bus = _make_controller(expander.index, pci.EXPANDER)
        target = etree.SubElement(bus, 'target', busNr=str(expander.bus_nr))
        etree.SubElement(target, 'node').text = str(expander.node)
        new.append(bus)
        for slot in expander.ports:
            port = _make_controller(slot.index, pci.PORT)
            port.append(_make_address(expander.index, slot))
            new.append(port)
    last = [place for place, child in enumerate(devices, start=1)
            if child.tag == 'controller' and child.get('type') == 'pci']
    document.insert_children(devices, new, last[-1] if last else len(devices))


def _make_controller(index: int, model: str) -> etree._Element:
    return etree.Element('controller', type='pci', index=str(index),
                         model=model)


def _make_address(bus: int, slot: pci.Slot) -> etree._Element:
    address = etree.Element('address', type='pci', domain='0x0000',
                            bus=f'0x{bus:02x}', slot=f'0x{slot.slot:02x}',
                            function=f'0x{slot.function:x}')
    if slot.multifunction:
        address.set('multifunction', 'on')
    return address


def _get_device_address(port: int) -> etree._Element:
    return _make_address(port, pci.Slot(port, 0, 0, False))


def _append_element(device: etree._Element, child: etree._Element) -> None:
    document.insert_children(device, [child], len(device))


# -- openEuler's element ------------------------------------------------------


def render_numa_element(xml: str, guest_node_of: Mapping[str, int | None]
                        ) -> str:
    """Return a domain XML that names the guest NUMA node of each device.

    The node is the element ``<numa node='N'/>`` of the device, which not every
    libvirt supports.

    :param guest_node_of: guest node by host PCI address; devices without a
        node, or not listed, are left unchanged.
    :raises DeviceNumaError: if a device is not in the domain, or the guest has
        no such node.
    """
    root = pci.parse_document(xml)
    changed = _strip_numa_elements(root)
    devices = _list_devices_with_node(root, guest_node_of)
    for _address, node, device in devices:
        _append_element(device, etree.Element(_NUMA, node=str(node)))
    return document.render_document(root) if changed or devices else xml


# -- a guest that runs --------------------------------------------------------


def find_free_address(xml: str, guest_node: int) -> str | None:
    """Return a free PCI address for a device to hot-plug on a guest NUMA node.

    :param xml: XML of the running domain.
    :returns: ``<address>`` of a free root port behind the expander bus of the
        node; None if no port is free.
    """
    topology = pci.read_pci_controllers(
        pci.get_devices(pci.parse_document(xml)))
    free = [index for index, bus in topology.bus_of.items()
            if topology.expanders[bus] == guest_node
            and index not in topology.used]
    if not free:
        return None
    return etree.tostring(_get_device_address(min(free)), encoding='unicode')


def find_free_address_without_node(xml: str) -> str | None:
    """Return a free PCI address for hot-plug outside all guest NUMA nodes.

    libvirt would put a device without an address on the free port with the
    lowest index. That port may be behind an expander bus, a PCI bus of a guest
    NUMA node, so that the guest would see a wrong node.

    :param xml: XML of the running domain.
    :returns: ``<address>`` of a free port of the first host bridge; None if no
        port behind an expander bus is free, so that libvirt may choose.
    :raises DeviceNumaError: if only ports of a guest node are free.
    """
    topology = pci.read_pci_controllers(
        pci.get_devices(pci.parse_document(xml)))
    if all(index in topology.used for index in topology.bus_of):
        return None
    if not topology.free_ports_outside_expanders:
        raise DeviceNumaError('the only free ports of the guest are behind '
                              'the expander bus of a guest NUMA node')
    first = topology.free_ports_outside_expanders[0]
    return etree.tostring(_get_device_address(first),
                          encoding='unicode')


def set_device_address(device_xml: str, address: str) -> str:
    """Add a guest PCI address to a passthrough device's XML.

    :param device_xml: ``<hostdev>`` or ``<interface>``.
    :raises DeviceNumaError: if the XML is not a passthrough device, or has an
        address already.
    """
    device = _parse_device(device_xml)
    if device.find('address') is not None:
        raise DeviceNumaError('the device has a guest address already')
    _append_element(device, document.parse_element(address))
    return document.render_document(device)


def set_device_node(device_xml: str, guest_node: int) -> str:
    """Add a guest NUMA node to a passthrough device's XML.

    :param device_xml: ``<hostdev>`` or ``<interface>``.
    :raises DeviceNumaError: if the XML is not a passthrough device.
    """
    device = _parse_device(device_xml)
    for old in device.findall(_NUMA):
        document.remove_element(old)
    _append_element(device, etree.Element(_NUMA, node=str(guest_node)))
    return document.render_document(device)


def _parse_device(xml: str) -> etree._Element:
    tag = 'interface' if xml.lstrip().startswith('<interface') else 'hostdev'
    device = pci.parse_document(xml, tag)
    if not pci.is_passthrough(device):
        raise DeviceNumaError(f'the <{tag}> is not a PCI device of the host')
    return device


# -- reading, and taking back -------------------------------------------------


def list_passthrough_addresses(xml: str) -> tuple[str, ...]:
    """Return the host PCI addresses of a domain's passthrough devices.

    macvtap ports are not included: the guest gets a virtio device for them.
    """
    return tuple(pci.map_passthrough_devices(pci.parse_document(xml)))


def _strip_expanders(root: etree._Element) -> int:
    # Nova adds no expander bus, so each one was added by ghsched.
    devices = pci.get_devices(root)
    topology = pci.read_pci_controllers(devices)
    for element in list(devices):
        if pci.read_bus_index(element) in topology.bus_of:
            document.remove_element(element.find('address'))
    ours = {*topology.expanders, *topology.bus_of}
    for index in ours:
        document.remove_element(topology.controllers[index])
    return len(ours)


def _strip_numa_elements(root: etree._Element) -> int:
    found = [element.find(_NUMA) for element in pci.get_devices(root)
             if pci.is_passthrough(element)
             and element.find(_NUMA) is not None]
    for element in found:
        document.remove_element(element)
    return len(found)
