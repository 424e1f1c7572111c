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

"""Devices and real-time vCPUs of a guest, as the host tells it of them."""

from collections import Counter

from lxml import etree

from ghsched_nova.guest import pci_topology


def describe_domain_for_guest(root: etree._Element) -> dict[str, object]:
    """Return the facts of a domain that its guest receives by the channel.

    :param root: running domain.
    :returns: under ``devices`` the number of passthrough devices (``devices``)
        by guest NUMA node (``node``, None for devices on no node), and under
        ``realtime`` vCPUs with their scheduler and priority. Keys without
        entries are left out.
    :raises DeviceNumaError: if the PCI devices of the domain are malformed.
    """
    counts = _count_devices_by_node(root)
    found: dict[str, list[dict[str, object]]] = {
        'devices': [{'node': node, 'devices': counts[node]} for node in sorted(
            counts, key=lambda node: -1 if node is None else node)],
        'realtime': [
            {'vcpus': element.get('vcpus'),
             'scheduler': element.get('scheduler'),
             'priority': element.get('priority')}
            for element in root.iterfind('cputune/vcpusched')]}
    return {key: entries for key, entries in found.items() if entries}


def _count_devices_by_node(root: etree._Element) -> Counter[int | None]:
    """Count the passthrough devices of a domain by guest NUMA node.

    The node is that of the expander bus, or openEuler's ``<numa node>``.
    """
    topology = pci_topology.read_pci_controllers(
        pci_topology.get_devices(root))
    counts: Counter[int | None] = Counter()
    for element in pci_topology.map_passthrough_devices(root).values():
        bus = pci_topology.read_bus_index(element)
        numa = element.find('numa')
        counts[topology.expanders.get(topology.bus_of.get(bus or 0, bus or 0))
               if numa is None else pci_topology.parse_number(
                   numa, 'node')] += 1
    return counts
