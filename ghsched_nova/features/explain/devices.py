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

"""NUMA nodes of passthrough devices in the XML of a dry run (pure).

The VFs of a guest get example addresses on a domain that has no more than
matters here, and the code of nova-compute places them.
"""

from collections.abc import Iterator
from collections.abc import Sequence

from lxml import etree

from ghsched_nova.features.planner.hostfile import HostFile
from ghsched_nova.guest import device_cells
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import document
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor import topology
from ghsched_placement.providers import cpuless_nodes

#: Number of PCI functions of a bus that can be addresses of example VFs.
_FUNCTIONS = 0x1f * 8

EXAMPLES = '<!-- device NUMA; the host addresses of VFs are examples -->'
OWN_NODES = (
    '<!-- device NUMA: with libvirt 11.8 and QEMU 9.0 or later, the devices\n'
    '     of host nodes without CPUs have guest nodes of their own -->')
UNKNOWN = ('<!-- device NUMA: each passthrough device of the guest (ports, '
           'pci_passthrough:alias),\n     which the flavor does not name, is '
           'put behind an expander bus of its guest node -->')


def render_device_numa_xml(
    host: HostFile,
    policy: GuestPolicy,
    guest: topology.GuestShape,
    host_nodes: Sequence[int],
) -> tuple[str, ...]:
    """Return the XML that would show a guest the NUMA nodes of its devices.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :raises DeviceNumaError: if nova-compute would refuse the guest, because
        the flavor requires this XML and it cannot be made.
    """
    if policy.device_numa == device_numa.NONE:
        return ()
    devices = list(_yield_likely_vfs(host, policy, host_nodes))
    if not devices:
        return (UNKNOWN,)
    nearest = host.nearest_nodes_with_cpus
    added = (device_cells.select_host_nodes(devices, host_nodes, nearest)
             if host.compute.device_cells else ())
    decision = device_numa.assign_devices(
        devices, (*host_nodes, *added), policy.device_numa,
        {node: {near: host.distances[node][near]}
         for node, near in nearest.items()}, True)
    xml = _make_domain_xml(guest, devices)
    placed = (device_numa.render_numa_element(xml, decision.guest_node_of)
              if host.has_all_memorytune_attributes else
              device_numa.render_expander_buses(device_cells.render_cells(
                  xml, (*host_nodes, *added), len(added),
                  decision.guest_node_of, host.distances),
                  decision.guest_node_of))
    before = {_render_element(one) for one in _iterate_elements(xml)}
    can_have_own = not (added or host.has_all_memorytune_attributes) and any(
        device.host_node in nearest for device in devices)
    head = (EXAMPLES, OWN_NODES) if can_have_own else (EXAMPLES,)
    return (*head, *(text for one in _iterate_elements(placed)
                     if (text := _render_element(one)) not in before))


def _yield_likely_vfs(
        host: HostFile, policy: GuestPolicy,
        host_nodes: Sequence[int]) -> Iterator[device_numa.Device]:
    """Yield the VFs that a guest is likely to get, the nearest ones first.

    :param host_nodes: host NUMA node of each guest NUMA node.
    """
    left = {pf.address: pf.vfs for pf in host.pfs}
    numbers: dict[str, int] = {}
    for need in policy.vfs:
        near = (host_nodes[need.guest_node]
                if need.guest_node < len(host_nodes) else None)
        nearest = host.nearest_nodes_with_cpus
        pfs = sorted((pf for pf in host.pfs if pf.alias == need.alias),
                     key=lambda pf: (cpuless_nodes.get_device_node(
                         pf.node, nearest, policy.device_numa,
                         host.compute.device_cells) != near, pf.address))
        count = need.count
        for pf in pfs:
            taken = min(count, left[pf.address])
            left[pf.address] -= taken
            count -= taken
            bus = pf.address.rpartition(':')[0]
            for _one in range(taken):
                number = numbers[bus] = numbers.get(bus, 7) + 1
                yield device_numa.Device(
                    f'{bus}:{number % _FUNCTIONS // 8:02x}.{number % 8}',
                    pf.node)


def _make_domain_xml(guest: topology.GuestShape,
                     devices: Sequence[device_numa.Device]) -> str:
    """Return the domain XML of an example guest with NUMA nodes and devices.
    """
    root = etree.Element('domain', type='kvm')
    kind = etree.SubElement(etree.SubElement(root, 'os'), 'type',
                            arch='x86_64', machine='q35')
    kind.text = 'hvm'
    etree.SubElement(etree.SubElement(root, 'features'), 'acpi')
    numa = etree.SubElement(etree.SubElement(root, 'cpu'), 'numa')
    for number in range(len(guest.cells)):
        etree.SubElement(numa, 'cell', id=str(number))
    parent = etree.SubElement(root, 'devices')
    for device in devices:
        domain, bus, rest = device.address.split(':')
        slot, _, function = rest.partition('.')
        hostdev = etree.SubElement(parent, 'hostdev', mode='subsystem',
                                   type='pci', managed='yes')
        etree.SubElement(
            etree.SubElement(hostdev, 'source'), 'address',
            domain=f'0x{domain}', bus=f'0x{bus}', slot=f'0x{slot}',
            function=f'0x{function}')
    return document.render_document(root)


def _iterate_elements(xml: str) -> list[etree._Element]:
    root = document.parse_element(xml)
    return [*root.iterfind('cpu/numa/cell'), *root.iterfind('devices/*')]


def _render_element(element: etree._Element) -> str:
    etree.indent(element)
    return etree.tostring(element, encoding='unicode').strip()
