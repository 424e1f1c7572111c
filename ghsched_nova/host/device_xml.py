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

"""Renders the guest NUMA nodes of passthrough devices into a domain's XML.

Applies :mod:`ghsched_nova.guest.device_numa` to the host. Uses no Nova object.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import logging

from ghsched_nova.guest import device_cells
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import pci_hole
from ghsched_nova.guest import pci_topology
from ghsched_nova.host.domain_xml import LibvirtFeatures
from ghsched_nova.host.host_facts import HostFacts
from ghsched_placement.flavor.policy import GuestPolicy

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceXml:
    """Renderer of the NUMA nodes of devices into the XML of domains.

    :param libvirt: features of the host's libvirt.
    """

    facts: HostFacts
    libvirt: LibvirtFeatures = LibvirtFeatures()

    def add_device_numa_nodes(self, xml: str, policy: GuestPolicy,
                              devices: Sequence[device_numa.Device],
                              host_nodes: Sequence[int]) -> str:
        """Return a domain XML that shows a guest its devices' NUMA nodes.

        The flavor key ``ghsched:device_numa`` controls this. With the value
        ``preferred``, the XML is returned unchanged if one of the devices
        cannot be assigned to a guest NUMA node.

        :param devices: the guest's claimed passthrough devices. The NUMA node
            of any other device, e.g. of Cyborg, is read from sysfs.
        :param host_nodes: host NUMA node of each guest NUMA node.
        :raises DeviceNumaError: with the value ``required``, if a device
            cannot be assigned to a guest NUMA node.
        """
        if policy.device_numa == device_numa.NONE:
            return xml
        try:
            return self._place_devices(xml, policy, devices, host_nodes)
        except pci_topology.DeviceNumaError as error:
            if policy.device_numa == device_numa.REQUIRED:
                raise
            LOG.warning('ghsched: cannot assign passthrough devices to guest '
                        'NUMA nodes; starting the guest without NUMA affinity '
                        'of its devices: %s', error)
            return xml

    def _place_devices(self, xml: str, policy: GuestPolicy,
                       claimed: Sequence[device_numa.Device],
                       host_nodes: Sequence[int]) -> str:
        """Write the guest NUMA nodes of devices into a domain XML."""
        distances = self.facts.read_distances()
        devices = self._list_devices(xml, claimed)
        added = self._select_device_cells(devices, host_nodes,
                                          distances.nearest)
        backing = (*host_nodes, *added)
        decision = device_numa.assign_devices(
            devices, backing, policy.device_numa, distances.to_devices,
            bool(distances.to_devices))
        for problem in decision.problems:
            LOG.warning("ghsched: no guest NUMA node matches the host "
                        "NUMA node of a passthrough device; the guest "
                        "will not see the device's real NUMA node: %s",
                        problem)
        if self.libvirt.numa_element:
            return device_numa.render_numa_element(
                xml, decision.guest_node_of)
        placed = device_numa.render_expander_buses(
            device_cells.render_cells(
                xml, backing, len(added), decision.guest_node_of,
                distances.every),
            decision.guest_node_of,
            self.facts.section.device_numa_spare_ports)
        return pci_hole.render_hole(placed, pci_hole.compute_hole_size(
            map(self.facts.read_device_windows, decision.guest_node_of)))

    def _select_device_cells(self, devices: Sequence[device_numa.Device],
                             host_nodes: Sequence[int],
                             nearest: Mapping[int, int]) -> tuple[int, ...]:
        """Return the host nodes for which a guest gets nodes without CPUs.

        The result is empty if libvirt cannot show guests such nodes.

        :param host_nodes: host NUMA node of each guest NUMA node.
        :param nearest: nearest node with CPUs, by host node without CPUs.
        """
        if not self.libvirt.shows_device_cells:
            return ()
        return device_cells.select_host_nodes(devices, host_nodes, nearest)

    def _list_devices(self, xml: str, claimed: Sequence[device_numa.Device]
                      ) -> list[device_numa.Device]:
        """Return the passthrough devices of a domain XML, claimed ones first.

        Claimed devices are those that Nova assigned to the guest. The host
        NUMA node of all other devices is read from sysfs.
        """
        there = device_numa.list_passthrough_addresses(xml)
        known = {device.address for device in claimed}
        return [*(device for device in claimed if device.address in there),
                *(device_numa.Device(address,
                                     self.facts.read_device_node(address))
                  for address in there if address not in known)]
