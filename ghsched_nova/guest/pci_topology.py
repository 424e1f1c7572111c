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


"""The PCI Express side of a libvirt domain XML.

What is there already (controllers, root ports, who sits on which), and where
new expander buses can go. Facts are from libvirt's source, read in 9.0.0 and
11.3.0: src/conf/domain_postparse.c (indexes), src/conf/domain_addr.c (which
bus takes what, automatic placement) and src/qemu/qemu_domain_address.c (which
device needs a PCI address).
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
from ghsched_placement import decimals

_ADDRESS = re.compile(
    r'([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])', re.IGNORECASE)

PORT = 'pcie-root-port'
EXPANDER = 'pcie-expander-bus'

#: PCI bus numbers of a segment; libvirt takes 1..254 for a busNr.
BUS_NUMBERS = 256
#: An expander bus has 32 slots; libvirt leaves them without hot-plug.
SLOTS = 32
FUNCTIONS = 8


class DeviceNumaError(ValueError):
    """A guest cannot see the NUMA nodes of its devices; says why."""


# -- the document -------------------------------------------------------------


def parse(xml: str, tag: str = 'domain') -> etree._Element:
    """The root element of a libvirt document.

    :raises DeviceNumaError: when it is none, or another one.
    """
    try:
        return document.parse(xml, tag)
    except document.NotThisDocument as error:
        raise DeviceNumaError(str(error)) from None


def devices_of(root: etree._Element) -> etree._Element:
    """The ``<devices>`` of a domain.

    :raises DeviceNumaError: when it has none.
    """
    devices = root.find('devices')
    if devices is None:
        raise DeviceNumaError('the domain has no <devices>')
    return devices


def number(element: etree._Element, name: str) -> int:
    """A number as libvirt reads it: with 0x hexadecimal, else decimal.

    :raises DeviceNumaError: when it is not one.
    """
    value = element.get(name, '0').strip()
    try:
        return int(value, 16 if value[:2].lower() == '0x' else 10)
    except ValueError:
        raise DeviceNumaError(
            f'<{element.tag}>: {name}={value!r} is not a number') from None


# -- machines and NUMA cells --------------------------------------------------


def machine(root: etree._Element) -> str:
    """``q35``, ``virt`` (of Arm), ``i440fx``, or what else the domain names.

    An x86 domain without a machine gets i440fx from libvirt.
    """
    kind = root.find('os/type')
    arch = '' if kind is None else kind.get('arch', '')
    name = '' if kind is None else kind.get('machine', '')
    if name == 'q35' or name.startswith('pc-q35'):
        return 'q35'
    if name == 'pc' or name.startswith('pc-i440fx'):
        return 'i440fx'
    if not name and arch in ('', 'x86_64', 'i686'):
        return 'i440fx'
    if name == 'virt' or name.startswith('virt-') or not name:
        return 'virt' if arch in ('aarch64', 'armv7l') else f'{arch} virt'
    return name


def cells(root: etree._Element) -> frozenset[int]:
    """Numbers of the guest's NUMA cells."""
    found = root.findall('cpu/numa/cell')
    return frozenset(
        number(cell, 'id') if cell.get('id') else place
        for place, cell in enumerate(found))


def has_acpi(root: etree._Element) -> bool:
    """Whether the guest gets ACPI tables; they tell it NUMA nodes."""
    return root.find('features/acpi') is not None


# -- passthrough devices ------------------------------------------------------


def host_address(value: str) -> str:
    """A PCI address in the one form that is used here: ``DDDD:BB:SS.F``.

    :raises DeviceNumaError: when it is not one.
    """
    match = _ADDRESS.fullmatch(value.strip())
    if match is None:
        raise DeviceNumaError(f'{value!r} is not a PCI address')
    domain, bus, slot, function = (int(part, 16) for part in match.groups())
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function}'


def is_passthrough(element: etree._Element) -> bool:
    """Whether it is a PCI device of the host: hostdev or SR-IOV interface."""
    if element.tag == 'hostdev':
        return (element.get('type') == 'pci'
                and element.get('mode') == 'subsystem')
    return element.tag == 'interface' and element.get('type') == 'hostdev'


def passthrough(root: etree._Element) -> dict[str, etree._Element]:
    """Passthrough devices by host address, in the order of the document.

    :raises DeviceNumaError: on an address that makes no sense or is there
        twice.
    """
    found: dict[str, etree._Element] = {}
    for element in devices_of(root):
        source = element.find('source/address')
        if not is_passthrough(element) or source is None:
            continue
        parts = [number(source, name)
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
    """PCI controllers of a domain, by the index they have or will have.

    :param controllers: element by index.
    :param expanders: guest NUMA node by index of an expander bus; None for
        one that names no node.
    :param behind: index of the expander bus by index of a root port on it.
    :param used: indexes of buses on which a device has an address.
    """

    controllers: dict[int, etree._Element]
    expanders: dict[int, int | None]
    behind: dict[int, int]
    used: frozenset[int]

    @property
    def normal_ports(self) -> list[int]:
        """Root ports that are not behind an expander bus, ascending."""
        return sorted(
            index for index, element in self.controllers.items()
            if element.get('model') == PORT and index not in self.behind)

    @property
    def free_normal_ports(self) -> list[int]:
        """Those of them without a device."""
        return [index for index in self.normal_ports
                if index not in self.used]

    @property
    def taken(self) -> set[int]:
        """Indexes that are not free; 0 is always the root's."""
        return {0, *self.controllers}


def read(devices: etree._Element) -> Topology:
    """What a domain has of PCI controllers.

    :raises DeviceNumaError: when two have one index.
    """
    controllers = _by_index(devices)
    expanders: dict[int, int | None] = {}
    behind: dict[int, int] = {}
    for index, element in controllers.items():
        if element.get('model') == EXPANDER:
            expanders[index] = decimals.decimal(
                element.findtext('target/node', ''))
    for index, element in controllers.items():
        bus = guest_bus(element)
        if bus in expanders:
            behind[index] = bus
    buses = map(guest_bus, devices)
    return Topology(controllers, expanders, behind,
                    frozenset(bus for bus in buses if bus is not None))


def guest_bus(element: etree._Element) -> int | None:
    """Index of the controller that a device sits on; None: not said."""
    address = element.find('address')
    if address is None or address.get('type') != 'pci':
        return None
    return number(address, 'bus')


def _by_index(devices: etree._Element) -> dict[int, etree._Element]:
    """As libvirt numbers them.

    Those without an index get the lowest unused one, in the order of the
    document (virDomainAssignControllerIndexes).
    """
    found: dict[int, etree._Element] = {}
    unnumbered = []
    for element in devices.findall("controller[@type='pci']"):
        if element.get('index') is None:
            unnumbered.append(element)
            continue
        index = number(element, 'index')
        if index in found:
            raise DeviceNumaError(f'two PCI controllers have index {index}')
        found[index] = element
    numbers = unused(found.keys())
    for element in unnumbered:
        found[next(numbers)] = element
    return found


def unused(taken: Set[int]) -> Iterator[int]:
    """Numbers from 0 on that are not taken."""
    return (index for index in itertools.count() if index not in taken)


# -- who needs a port ---------------------------------------------------------

#: Devices that libvirt puts on a root port (or, all conventional PCI ones of
#: a guest together, on one bridge behind a root port), whatever their model.
_ON_A_PORT = frozenset((
    'crypto', 'filesystem', 'interface', 'memballoon', 'panic', 'rng',
    'shmem', 'sound', 'video', 'vsock', 'watchdog'))
_HOSTDEVS = frozenset(('pci', 'mdev', 'scsi_host'))
_BUILT_IN = frozenset(('ide', 'sata', 'fdc', 'ccid', 'isa', 'xenbus'))
_PORT_TAKERS = frozenset((
    'pcie-to-pci-bridge', 'pcie-switch-upstream-port'))


def ports_needed(devices: etree._Element) -> int:
    """How many root ports libvirt may use for devices without an address.

    An upper bound: a device that may need a port counts, even where libvirt
    would find another place for it, as for the first video device of a q35
    guest. What libvirt adds on its own counts too: a balloon, a USB
    controller, and the controllers of SCSI disks and virtio channels.
    """
    return sum(map(_needs_port, devices)) + sum((
        devices.find('memballoon') is None,
        _lacks(devices, 'usb'),
        _lacks(devices, 'scsi') and _has_scsi(devices),
        _lacks(devices, 'virtio-serial') and _has_channel(devices)))


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
    # A second SATA or IDE controller is a card.
    return (element.get('type') not in _BUILT_IN
            or element.get('index', '0') != '0')


def _target_is(name: str, value: str, element: etree._Element) -> bool:
    target = element.find('target')
    return target is not None and target.get(name) == value


_BY_KIND: dict[str, Callable[[etree._Element], bool]] = {
    'controller': _controller_needs_port,
    'disk': functools.partial(_target_is, 'bus', 'virtio'),
    'hostdev': lambda element: element.get('type') in _HOSTDEVS,
    'input': lambda element: element.get('bus') == 'virtio',
    'memory': lambda element: element.get('model', '').startswith('virtio'),
    'serial': functools.partial(_target_is, 'type', 'pci-serial'),
}


def _lacks(devices: etree._Element, controller: str) -> bool:
    return devices.find(f"controller[@type='{controller}']") is None


def _has_scsi(devices: etree._Element) -> bool:
    return (devices.find("disk/target[@bus='scsi']") is not None
            or devices.find("hostdev[@type='scsi']") is not None)


def _has_channel(devices: etree._Element) -> bool:
    return any(_target_is('type', 'virtio', element)
               for element in devices if element.tag in ('channel', 'console'))


# -- where new expander buses go ----------------------------------------------


@dataclass(frozen=True)
class Slot:
    """A root port to be: its index, and its place on the expander bus."""

    index: int
    slot: int
    function: int
    multifunction: bool


@dataclass(frozen=True)
class Expander:
    """An expander bus to be.

    :param bus_nr: its first PCI bus number; each root port has one of the
        numbers after it.
    """

    node: int
    index: int
    bus_nr: int
    ports: tuple[Slot, ...]


def lay_out(ports_of: Sequence[tuple[int, int]], taken: Set[int],
            reserved: int) -> tuple[Expander, ...]:
    """Places for one expander bus per guest node.

    The bus numbers are the highest ones. libvirt's own default has room for
    one root port only.

    :param ports_of: guest node and number of root ports.
    :param taken: controller indexes that are not free. The lowest unused
        ones are used, because libvirt fills a gap with a controller.
    :param reserved: PCI bus numbers that the rest of the guest needs.
    :raises DeviceNumaError: when it does not fit.
    """
    wanted = sum(1 + ports for _node, ports in ports_of)
    bus_nr = BUS_NUMBERS - wanted
    if bus_nr < max(reserved, 1):
        raise DeviceNumaError(
            f'the guest needs {wanted} PCI bus numbers for the root ports of '
            f'its passthrough devices and {reserved} for its other devices; '
            f'there are {BUS_NUMBERS}')
    indexes = unused(taken)
    found = []
    for node, ports in ports_of:
        found.append(Expander(node, next(indexes), bus_nr,
                              tuple(_slots(indexes, ports))))
        bus_nr += 1 + ports
    return tuple(found)


def _slots(indexes: Iterable[int], ports: int) -> Iterator[Slot]:
    """One slot per port; eight ports per slot when there are too many."""
    many = ports > SLOTS
    for place, index in zip(range(ports), indexes, strict=False):
        slot, function = divmod(place, FUNCTIONS) if many else (place, 0)
        yield Slot(index, slot, function, many and function == 0)
