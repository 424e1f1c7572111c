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


"""Boot guests with VFs on the virtual compute node, and look at them."""

from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from aio.lab import Lab
from aio.placement import Provider
from vnode import cli
from vnode import machine

#: Seconds for a guest that is emulated on an emulated host.
SLOW = 600

#: Nova's resource class of a VF.
VF = '_'.join(('CUSTOM_PCI', *machine.VF_ID)).upper()
_GUEST_VF = ':'.join(f'0x{one}' for one in machine.VF_ID)


@dataclass(frozen=True)
class Passed:
    """A device that a guest was given, as the domain's XML has it.

    :param host: its PCI address on the host.
    :param host_node: what the host's sysfs says of its NUMA node.
    :param guest_node: node of the expander bus that it is behind.
    :param buses: PCI bus numbers that are the expander bus's in the guest.
    """

    host: str
    host_node: int
    guest_node: int | None
    buses: range


class VirtualLab(Lab):
    """The running cloud, seen from the virtual compute node."""

    image_name = cli.IMAGE

    def wait(self, server: Any, *states: str, seconds: float = SLOW) -> Any:
        return super().wait(server, *states, seconds=seconds)

    def delete(self, *servers: Any, seconds: float = SLOW) -> None:
        super().delete(*servers, seconds=seconds)

    def console(self, server: Any, seconds: float = SLOW) -> list[str]:
        return super().console(server, seconds)

    def providers(self) -> list[Provider]:
        """The virtual node's tree, the root first."""
        every = self.every_provider()
        root, = (one for one in every if one.name == machine.NAME)
        mine, count = {root.uuid: root}, 0
        while len(mine) > count:
            count = len(mine)
            mine |= {one.uuid: one for one in every if one.parent in mine}
        return list(mine.values())

    def pf_providers(self, node: int) -> list[Provider]:
        """Providers of the PFs that are below a host NUMA node's."""
        parent = self.node_provider(node).uuid
        return [one for one in self.providers()
                if one.parent == parent and VF in self.inventory(one)]

    def on_host(self, *command: str) -> str:
        return cli.run(self.settings, list(command))

    def vcpu_threads(self, server: Any) -> dict[int, str]:
        pid = f'/run/libvirt/qemu/{self.domain_name(server)}.pid'
        text = self.on_host(
            'sh', '-c', f'cd /proc/$(cat {pid})/task && for t in *; do '
                        'echo "$t $(cat "$t/comm")"; done')
        threads = {int(number): name for number, _, name in (
            line.partition(' ') for line in text.splitlines())}
        return {thread: name for thread, name in threads.items()
                if name.startswith('CPU ')}

    def ran(self) -> dict[int, float]:
        """Seconds for which the machine has let each CPU of the node run."""
        pid = json.loads((self.settings.run / 'vnode.pid').read_text())['pid']
        found = {}
        for task in Path(f'/proc/{pid}/task').iterdir():
            name = (task / 'comm').read_text()
            if name.startswith('CPU '):
                running = (task / 'schedstat').read_text().split()[0]
                found[int(name[4:].partition('/')[0])] = int(running) / 1e9
        return found

    def memory(self, server: Any) -> dict[str, dict[int, int]]:
        """Pages of a guest by policy and host node, as numa_maps has them.

        Those of memory that has a policy, which QEMU's own has not.
        """
        pid = f'/run/libvirt/qemu/{self.domain_name(server)}.pid'
        found: dict[str, dict[int, int]] = {}
        for line in self.on_host(
                'sh', '-c', f'cat /proc/$(cat {pid})/numa_maps').splitlines():
            words = line.split()
            if words[1] == 'default':
                continue
            pages = found.setdefault(words[1], {})
            for word in words[2:]:
                node, _, count = word.partition('=')
                if node[0] == 'N' and node[1:].isdigit():
                    pages[int(node[1:])] = (pages.get(int(node[1:]), 0)
                                            + int(count))
        return found

    def host_devices(self) -> list[tuple[str, str, int]]:
        """PFs and VFs of the host: address, vendor:device, NUMA node."""
        text = self.on_host(
            'sh', '-c', 'cd /sys/bus/pci/devices && for d in */sriov_numvfs '
            '*/physfn; do d=${d%/*}; echo "$d $(cat $d/vendor):'
            '$(cat $d/device) $(cat $d/numa_node)"; done')
        return [(address, name.replace('0x', ''), int(node))
                for address, name, node in map(str.split, text.splitlines())
                if name.replace('0x', '') in map(
                    machine.pci_name, (machine.PF_ID, machine.VF_ID))]

    def passed(self, server: Any) -> list[Passed]:
        """The devices that a guest was given."""
        xml = self.domain_xml(server)
        nodes = {address: node
                 for address, _name, node in self.host_devices()}
        found = []
        for device in (*xml.findall("devices/hostdev[@type='pci']"),
                       *xml.findall("devices/interface[@type='hostdev']")):
            host = _address(device.find('source/address'))
            node, buses = _expander(xml, device)
            found.append(Passed(host, nodes[host], node, buses))
        return found

    def guest_vfs(self, server: Any, seconds: float = SLOW
                  ) -> dict[str, int]:
        """Return the NUMA node of each VF in the guest, by its address."""
        words = [line.split() for line in self.console(server, seconds)
                 if line.startswith('GUEST-PCI ') and _GUEST_VF in line]
        return {one[1]: int(one[3].removeprefix('numa_node='))
                for one in words}


def _address(element: ElementTree.Element | None) -> str:
    part = {name: int(value, 16) for name, value in (
        element.attrib if element is not None else {}).items()
        if name != 'type'}
    return '{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'.format(**part)


def _bus(element: ElementTree.Element) -> int:
    found = element.find('address')
    return int(found.get('bus', '0'), 16) if found is not None else 0


def _expander(xml: ElementTree.Element, device: ElementTree.Element
              ) -> tuple[int | None, range]:
    """The node and the bus numbers of the expander bus above a device."""
    controllers = {int(one.get('index', '-1')): one for one in xml.findall(
        "devices/controller[@type='pci']")}
    index = _bus(device)
    while index:
        one = controllers[index]
        if one.get('model') == 'pcie-expander-bus':
            first = _bus_number(one)
            later = [_bus_number(other) for other in controllers.values()
                     if _bus_number(other) > first]
            return (int(one.findtext('target/node', '-1')),
                    range(first, min(later, default=256)))
        index = _bus(one)
    return None, range(0)


def _bus_number(controller: ElementTree.Element) -> int:
    target = controller.find('target')
    return int(target.get('busNr', '-1')) if target is not None else -1
