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


"""PCI Express topology of a libvirt domain XML.

The module finds the existing controllers, root ports and devices, and computes
where new expander buses can be added. Facts are from libvirt's source, read in
9.0.0 and 11.3.0: src/conf/domain_postparse.c (indexes), src/conf/domain_addr.c
(devices of each bus, automatic placement) and src/qemu/qemu_domain_address.c
(devices that need a PCI address).
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from collections.abc import Set
from dataclasses import dataclass
import functools
import itertools
import re

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement.base import decimals

_ADDRESS = re.compile(
    r'([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])', re.IGNORECASE)

PORT = 'pcie-root-port'
EXPANDER = 'pcie-expander-bus'

#: PCI bus numbers of a segment; libvirt accepts 1..254 as busNr.
BUS_NUMBERS = 256
#: Slots of an expander bus; libvirt allows no hot-plug into them.
SLOTS = 32
FUNCTIONS = 8


class DeviceNumaError(ValueError):
    """Reason why a guest cannot see the NUMA nodes of its devices."""


# -- the document -------------------------------------------------------------


def parse_document(xml: str, tag: str = 'domain') -> etree._Element:
    """Parse a libvirt XML document and return its root element.

    :raises DeviceNumaError: if the text is not XML or has another root
        element.
    """
    return document.parse_document(xml, tag, DeviceNumaError)


def get_devices(root: etree._Element) -> etree._Element:
    """Return the ``<devices>`` element of a domain.

    :raises DeviceNumaError: if the domain has none.
    """
    devices = root.find('devices')
    if devices is None:
        raise DeviceNumaError('the domain has no <devices>')
    return devices


def parse_number(element: etree._Element, name: str) -> int:
    """Return an XML element's numeric attribute; 0x marks hexadecimal.

    :param name: name of the attribute.
    :raises DeviceNumaError: if the attribute is not a number.
    """
    value = element.get(name, '0').strip()
    try:
        return int(value, 16 if value[:2].lower() == '0x' else 10)
    except ValueError:
        raise DeviceNumaError(
            f'<{element.tag}>: {name}={value!r} is not a number') from None


# -- machines and NUMA cells --------------------------------------------------


def get_machine_type(root: etree._Element) -> str:
    """Return a domain's machine type: ``q35``, ``virt``, ``i440fx`` or other.

    libvirt uses i440fx for an x86 domain without a machine type.
    """
    kind = root.find('os/type')
    arch = document.read_arch(root)
    name = '' if kind is None else kind.get('machine', '')
    if name == 'q35' or name.startswith('pc-q35'):
        return 'q35'
    if name == 'pc' or name.startswith('pc-i440fx'):
        return 'i440fx'
    if not name and arch in {'', *document.X86}:
        return 'i440fx'
    if name == 'virt' or name.startswith('virt-') or not name:
        return 'virt' if arch in ('aarch64', 'armv7l') else f'{arch} virt'
    return name


def list_cell_numbers(root: etree._Element) -> frozenset[int]:
    """Return the numbers of a domain's guest NUMA nodes."""
    found = root.findall('cpu/numa/cell')
    return frozenset(
        parse_number(cell, 'id') if cell.get('id') else place
        for place, cell in enumerate(found))


def has_acpi(root: etree._Element) -> bool:
    """Whether a guest has ACPI tables, which describe its NUMA nodes."""
    return root.find('features/acpi') is not None


# -- passthrough devices ------------------------------------------------------


def normalize_address(value: str) -> str:
    """Return a PCI address in the canonical form ``DDDD:BB:SS.F``.

    :raises DeviceNumaError: if the text is not a PCI address.
    """
    match = _ADDRESS.fullmatch(value.strip())
    if match is None:
        raise DeviceNumaError(f'{value!r} is not a PCI address')
    domain, bus, slot, function = (int(part, 16) for part in match.groups())
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function}'


def is_passthrough(element: etree._Element) -> bool:
    """Whether an element is a PCI hostdev or an SR-IOV interface."""
    if element.tag == 'hostdev':
        return (element.get('type') == 'pci'
                and element.get('mode') == 'subsystem')
    return element.tag == 'interface' and element.get('type') == 'hostdev'


def map_passthrough_devices(root: etree._Element) -> dict[str, etree._Element]:
    """Return a domain's passthrough devices by host PCI address.

    :raises DeviceNumaError: if an address is malformed or occurs twice.
    """
    found: dict[str, etree._Element] = {}
    for element in get_devices(root):
        source = element.find('source/address')
        if not is_passthrough(element) or source is None:
            continue
        parts = [parse_number(source, name)
                 for name in ('domain', 'bus', 'slot', 'function')]
        address = '{:04x}:{:02x}:{:02x}.{:x}'.format(*parts)
        if address in found:
            raise DeviceNumaError(
                f'the domain has the PCI device {address} twice')
        found[address] = element
    return found


# -- controllers --------------------------------------------------------------


@dataclass(frozen=True)
class Topology:
    """PCI controllers of a domain, with the indexes that libvirt gives them.

    :param controllers: XML element by index of the controller.
    :param expanders: guest NUMA node by index of the expander bus; None for a
        bus without a node.
    :param bus_of: index of its expander bus, by index of a root port.
    :param used: indexes of the controllers that have a device.
    """

    controllers: dict[int, etree._Element]
    expanders: dict[int, int | None]
    bus_of: dict[int, int]
    used: frozenset[int]

    @property
    def ports_outside_expanders(self) -> list[int]:
        """Indexes of the PCI root ports outside all expander buses, ascending.
        """
        return sorted(
            index for index, element in self.controllers.items()
            if element.get('model') == PORT and index not in self.bus_of)

    @property
    def free_ports_outside_expanders(self) -> list[int]:
        """Indexes of the free PCI root ports outside all expander buses."""
        return [index for index in self.ports_outside_expanders
                if index not in self.used]

    @property
    def used_indexes(self) -> set[int]:
        """PCI controller indexes in use, including 0 for the root bus."""
        return {0, *self.controllers}


def read_pci_controllers(devices: etree._Element) -> Topology:
    """Return the PCI controllers of a domain.

    :param devices: ``<devices>`` element.
    :raises DeviceNumaError: if two controllers have the same index.
    """
    controllers = _index_controllers(devices)
    expanders: dict[int, int | None] = {}
    bus_of: dict[int, int] = {}
    for index, element in controllers.items():
        if element.get('model') == EXPANDER:
            expanders[index] = decimals.parse_decimal(
                element.findtext('target/node', ''))
    for index, element in controllers.items():
        bus = read_bus_index(element)
        if bus in expanders:
            bus_of[index] = bus
    buses = map(read_bus_index, devices)
    return Topology(controllers, expanders, bus_of,
                    frozenset(bus for bus in buses if bus is not None))


def read_bus_index(element: etree._Element) -> int | None:
    """Return the index of the PCI controller to which a device belongs.

    Returns None if the index is unknown.
    """
    address = element.find('address')
    if address is None or address.get('type') != 'pci':
        return None
    return parse_number(address, 'bus')


def _index_controllers(
    devices: etree._Element,
) -> dict[int, etree._Element]:
    """Return a domain's PCI controllers by index, numbered as in libvirt.

    A controller without an index gets the lowest unused one, in the order of
    the document (virDomainAssignControllerIndexes).
    """
    found: dict[int, etree._Element] = {}
    unnumbered = []
    for element in devices.findall("controller[@type='pci']"):
        if element.get('index') is None:
            unnumbered.append(element)
            continue
        index = parse_number(element, 'index')
        if index in found:
            raise DeviceNumaError(f'two PCI controllers have index {index}')
        found[index] = element
    numbers = iterate_unused_numbers(found.keys())
    for element in unnumbered:
        found[next(numbers)] = element
    return found


def iterate_unused_numbers(taken: Set[int]) -> Iterator[int]:
    """Yield the unused numbers in ascending order from 0.

    :param taken: the numbers in use.
    """
    return (index for index in itertools.count() if index not in taken)


# -- who needs a port ---------------------------------------------------------

#: Devices of any model that libvirt puts on a root port (all conventional PCI
#: devices of a guest share one bridge behind a root port).
_ON_A_PORT = frozenset((
    'crypto', 'filesystem', 'interface', 'memballoon', 'panic', 'rng',
    'shmem', 'sound', 'video', 'vsock', 'watchdog'))
_HOSTDEVS = frozenset(('pci', 'mdev', 'scsi_host'))
_BUILT_IN = frozenset(('ide', 'sata', 'fdc', 'ccid', 'isa', 'xenbus'))
_PORT_TAKERS = frozenset((
    'pcie-to-pci-bridge', 'pcie-switch-upstream-port'))


def count_needed_ports(devices: etree._Element) -> int:
    """Return how many PCI root ports libvirt may need for further devices.

    These are the devices without an address, and devices that libvirt adds
    itself: a balloon, a USB controller, and the controllers of SCSI disks and
    virtio channels. A device that may need a port counts even if libvirt finds
    another place for it, as for the first video device of a q35 guest.
    """
    return sum(map(_needs_port, devices)) + sum((
        devices.find('memballoon') is None,
        _lacks_controller(devices, 'usb'),
        _lacks_controller(devices, 'scsi') and _has_scsi(devices),
        _lacks_controller(devices, 'virtio-serial') and _has_channel(devices)))


def _needs_port(element: etree._Element) -> bool:
    if not isinstance(element.tag, str) or 'none' in (
            element.get('model'), element.get('type')):
        return False
    if element.find('address') is not None:
        return False
    if element.tag in _ON_A_PORT:
        model = element.find('model')
        return model is None or model.get('type') != 'none'
    needs = _BY_KIND.get(element.tag)
    return needs is not None and needs(element)


def _controller_needs_port(element: etree._Element) -> bool:
    if element.get('type') == 'pci':
        return element.get('model') in _PORT_TAKERS
    # A second SATA or IDE controller is not built in, but a PCI card.
    return (element.get('type') not in _BUILT_IN
            or element.get('index', '0') != '0')


def _has_target(name: str, value: str, element: etree._Element) -> bool:
    target = element.find('target')
    return target is not None and target.get(name) == value


_BY_KIND: dict[str, Callable[[etree._Element], bool]] = {
    'controller': _controller_needs_port,
    'disk': functools.partial(_has_target, 'bus', 'virtio'),
    'hostdev': lambda element: element.get('type') in _HOSTDEVS,
    'input': lambda element: element.get('bus') == 'virtio',
    'memory': lambda element: element.get('model', '').startswith('virtio'),
    'serial': functools.partial(_has_target, 'type', 'pci-serial'),
}


def _lacks_controller(devices: etree._Element, controller: str) -> bool:
    return devices.find(f"controller[@type='{controller}']") is None


def _has_scsi(devices: etree._Element) -> bool:
    return (devices.find("disk/target[@bus='scsi']") is not None
            or devices.find("hostdev[@type='scsi']") is not None)


def _has_channel(devices: etree._Element) -> bool:
    return any(_has_target('type', 'virtio', element)
               for element in devices if element.tag in ('channel', 'console'))


# -- where new expander buses go ----------------------------------------------


@dataclass(frozen=True)
class Slot:
    """Controller index of a root port, and its PCI address on the bus."""

    index: int
    slot: int
    function: int
    multifunction: bool


@dataclass(frozen=True)
class Expander:
    """Expander bus to add: a PCI bus of a guest NUMA node.

    :param node: number of the guest NUMA node.
    :param index: controller index of the bus.
    :param bus_nr: PCI bus number of the bus. The following numbers are those
        of its root ports.
    :param ports: root ports of the bus.
    """

    node: int
    index: int
    bus_nr: int
    ports: tuple[Slot, ...]


def place_expanders(port_counts: Sequence[tuple[int, int]], taken: Set[int],
                    reserved: int) -> tuple[Expander, ...]:
    """Choose an index and a bus number for each guest node's expander bus.

    An expander bus is a PCI bus that belongs to a NUMA node. The highest bus
    numbers are used, because libvirt's default leaves room for one root port
    only.

    :param port_counts: guest node and number of root ports.
    :param taken: controller indexes in use. The lowest unused ones are chosen,
        because libvirt fills a gap with a controller.
    :param reserved: PCI bus numbers that the rest of the guest needs.
    :raises DeviceNumaError: if the bus numbers do not suffice.
    """
    wanted = sum(1 + ports for _node, ports in port_counts)
    bus_nr = BUS_NUMBERS - wanted
    if bus_nr < max(reserved, 1):
        raise DeviceNumaError(
            f'the guest needs {wanted} PCI bus numbers for the root ports of '
            f'its passthrough devices and {reserved} for its other devices; '
            f'there are {BUS_NUMBERS}')
    indexes = iterate_unused_numbers(taken)
    found = []
    for node, ports in port_counts:
        found.append(Expander(node, next(indexes), bus_nr,
                              tuple(_yield_new_root_ports(indexes, ports))))
        bus_nr += 1 + ports
    return tuple(found)


def _yield_new_root_ports(indexes: Iterable[int],
                          ports: int) -> Iterator[Slot]:
    """Yield the PCI root ports to add for one bus.

    There is one port per slot, or eight per slot if necessary.

    :param indexes: unused controller indexes.
    :param ports: number of root ports.
    """
    many = ports > SLOTS
    for place, index in zip(range(ports), indexes, strict=False):
        slot, function = divmod(place, FUNCTIONS) if many else (place, 0)
        yield Slot(index, slot, function, many and function == 0)
