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


"""Guest NUMA nodes of devices that Nova has not claimed, from sysfs."""

from pathlib import Path
import types

import fixtures

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import pci_topology
from ghsched_nova.host import domain_xml
from ghsched_nova.host import host_facts
from ghsched_nova.tests.fixtures import guest_nodes
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.tests import base

DEVICE = ("<hostdev mode='subsystem' type='pci'><source>"
          "<address domain='0x0000' bus='0x{bus}' slot='0x00' "
          "function='0x0'/></source></hostdev>")
XML = ("<domain><os><type machine='q35'>hvm</type></os>"
       "<features><acpi/></features><cpu><numa><cell id='0'/><cell id='1'/>"
       '</numa></cpu><devices>' + DEVICE.format(bus='81')
       + DEVICE.format(bus='82') + '</devices></domain>')


class AcceleratorTest(base.TestCase):
    """Host nodes 0 and 1 back the guest; 0000:82:00.0 is of Cyborg."""

    def place_devices(self, mode, node):
        sysfs = self.useFixture(fixtures.TempDir()).path
        device = Path(sysfs, 'bus/pci/devices/0000:82:00.0')
        device.mkdir(parents=True)
        (device / 'numa_node').write_text(f'{node}\n')
        facts = host_facts.HostFacts(types.SimpleNamespace(
            sysfs_path=sysfs, resctrl_path=sysfs, device_numa_nearest=False,
            device_numa_spare_ports=0))
        xml = domain_xml.DomainXml(facts).add_device_numa_nodes(
            XML, GuestPolicy(device_numa=mode),
            [device_numa.Device('0000:81:00.0', 0)], [0, 1])
        return guest_nodes.read_guest_nodes(xml)

    def test_guest_sees_the_node_that_sysfs_has(self):
        self.assertEqual({'0000:81:00.0': 0, '0000:82:00.0': 1},
                         self.place_devices('required', 1))

    def test_unknown_node_is_refused_if_required(self):
        self.assertRaises(pci_topology.DeviceNumaError,
                          self.place_devices, 'required', -1)
        self.assertEqual({'0000:81:00.0': 0, '0000:82:00.0': None},
                         self.place_devices('preferred', -1))


class DeviceCellTest(AcceleratorTest):
    """0000:82:00.0 belongs to host node 2, which has no CPUs."""

    def place_devices(self, mode, node, *, initiators=True, element=False):
        sysfs = self.useFixture(fixtures.TempDir()).path
        device = Path(sysfs, 'bus/pci/devices/0000:82:00.0')
        device.mkdir(parents=True)
        (device / 'numa_node').write_text(f'{node}\n')
        for number, (cpus, row) in enumerate((
                ('0-3', '10 20 40'), ('4-7', '20 10 30'), ('', '40 30 10'))):
            path = Path(sysfs, f'devices/system/node/node{number}')
            path.mkdir(parents=True)
            (path / 'cpulist').write_text(f'{cpus}\n')
            (path / 'distance').write_text(f'{row}\n')
        facts = host_facts.HostFacts(types.SimpleNamespace(
            sysfs_path=sysfs, resctrl_path=sysfs, device_numa_nearest=False,
            device_numa_spare_ports=0))
        renderer = domain_xml.DomainXml(facts)
        renderer.libvirt = domain_xml.LibvirtFeatures(
            initiators=initiators, numa_element=element)
        return guest_nodes.read_guest_nodes(renderer.add_device_numa_nodes(
            XML, GuestPolicy(device_numa=mode),
            [device_numa.Device('0000:81:00.0', 0)], [0, 1]))

    def test_device_has_a_node_of_its_own_where_libvirt_can(self):
        for mode in ('preferred', 'required'):
            self.assertEqual(2, self.place_devices(mode, 2)['0000:82:00.0'])

    def test_device_is_on_the_nearest_node_elsewhere(self):
        for libvirt in ({'initiators': False}, {'element': True}):
            self.assertEqual(1, self.place_devices(
                'preferred', 2, **libvirt)['0000:82:00.0'])
            error = self.assertRaises(
                pci_topology.DeviceNumaError, self.place_devices, 'required',
                2, **libvirt)
            self.assertIn('it is on host node 2', str(error))
