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

"""The passthrough devices of a guest, in its XML and as it sees them."""

from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

#: What the guest of these tests prints of a device that is there when it
#: boots, that comes, and that goes.
_THERE = 'GUEST-PCI'
_ADDED = 'GUEST-PCI-ADDED'
_REMOVED = 'GUEST-PCI-REMOVED'
#: Printed after the devices that were there.
READY = 'GUEST-READY'

#: Devices of <hostdev>, and of Neutron's ports.
_HOSTDEVS = ("./devices/hostdev[@type='pci']",
             "./devices/interface[@type='hostdev']")


@dataclass(frozen=True)
class Passed:
    """Passthrough device in the XML of a guest's libvirt domain.

    :param host: PCI address of the device on the host.
    :param guest_node: guest NUMA node of the PCI host bridge that the device
        is behind; None if the bridge has no node.
    """

    host: str
    guest_node: int | None


@dataclass(frozen=True)
class Seen:
    """PCI device as a guest has printed it on its console.

    :param ids: vendor and device, ``8086:10ca``.
    :param node: ``numa_node`` of the device; -1 if the guest knows none.
    """

    address: str
    ids: str
    node: int


def parse_passthrough_devices(xml: ElementTree.Element) -> list[Passed]:
    """Parse the passthrough devices in a libvirt domain's XML."""
    return [Passed(_host_address(device), _find_guest_node(xml, device))
            for path in _HOSTDEVS for device in xml.findall(path)]


def parse_memory_node(xml: ElementTree.Element, guest_node: int) -> int | None:
    """Return the host NUMA node to which a guest node's memory is bound.

    :param xml: XML of the libvirt domain.
    """
    memnode = xml.find(f'./numatune/memnode[@cellid="{guest_node}"]')
    return None if memnode is None else int(memnode.get('nodeset', ''))


def _host_address(device: ElementTree.Element) -> str:
    address = device.find('./source/address')
    given = {} if address is None else address.attrib
    part = {name: int(given.get(name, '0'), 16)
            for name in ('domain', 'bus', 'slot', 'function')}
    return '{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'.format(**part)


def _find_guest_node(
        xml: ElementTree.Element, device: ElementTree.Element) -> int | None:
    """Return the guest NUMA node of a device, from its PCI host bridge."""
    controllers = {one.get('index'): one for one in xml.findall(
        "./devices/controller[@type='pci']")}
    own = device.find('./numa')
    if own is not None:  # openEuler's libvirt
        return int(own.get('node', '-1'))
    one = device
    while (address := one.find('./address')) is not None:
        one = controllers[str(int(address.get('bus', '0'), 16))]
        node = one.findtext('./target/node')
        if node is not None:
            return int(node)
    return None


def shows_all_boot_devices(console: str) -> bool:
    """Whether a guest's console shows all PCI devices found at boot."""
    return READY in map(str.strip, get_complete_lines(console))


def parse_reported_devices(console: str) -> list[Seen]:
    """Parse the PCI devices that a guest has printed on its console."""
    found: dict[str, Seen] = {}
    for words in _parse_device_reports(get_complete_lines(console)):
        kind, address, *rest = words
        found.pop(address, None)
        if kind != _REMOVED:
            ids, node = rest
            found[address] = Seen(
                address, ids.replace('0x', ''),
                int(node.removeprefix('numa_node=')))
    return list(found.values())


def get_complete_lines(console: str) -> list[str]:
    """Return the complete lines of a console: all but the last one."""
    return console.split('\n')[:-1]


def _parse_device_reports(lines: Iterable[str]) -> Iterable[list[str]]:
    """Yield the words of each console line that reports a device.

    An emulated serial port that is short of time may send a part of an earlier
    line once more, just before the next one.
    """
    length = {_THERE: 4, _ADDED: 4, _REMOVED: 2}
    for line in lines:
        words = line[max(0, line.rfind(_THERE)):].split()
        if words and length.get(words[0]) == len(words):
            yield words
