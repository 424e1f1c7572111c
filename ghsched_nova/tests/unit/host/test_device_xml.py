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
from lxml import etree

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import pci_hole
from ghsched_nova.guest import pci_topology
from ghsched_nova.host import device_xml
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
        xml = device_xml.DeviceXml(facts).add_device_numa_nodes(
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


class PciHoleTest(base.TestCase):
    """Address space for the windows of devices."""

    #: An NVIDIA H100 as the kernel shows it: windows of 16 MiB, 128 GiB and
    #: 32 MiB.
    WINDOWS = (
        '0x0000200042000000 0x0000200042ffffff 0x000000000014220c\n'
        '0x0000000000000000 0x0000000000000000 0x0000000000000000\n'
        '0x0000202000000000 0x0000203fffffffff 0x000000000014220c\n'
        '0x0000000000000000 0x0000000000000000 0x0000000000000000\n'
        '0x0000200040000000 0x0000200041ffffff 0x000000000014220c\n'
        '0x0000000000000000 0x0000000000000000 0x0000000000000000\n'
        '0x0000300000000000 0x00003fffffffffff 0x000000000014220c\n')

    def render(self, machine="machine='q35'", **windows):
        sysfs = self.useFixture(fixtures.TempDir()).path
        for bus, text in windows.items():
            device = Path(sysfs, f'bus/pci/devices/0000:{bus[1:]}:00.0')
            device.mkdir(parents=True)
            (device / 'resource').write_text(text)
        facts = host_facts.HostFacts(types.SimpleNamespace(
            sysfs_path=sysfs, resctrl_path=sysfs, device_numa_nearest=False,
            device_numa_spare_ports=0))
        return etree.fromstring(device_xml.DeviceXml(
            facts).add_device_numa_nodes(
                XML.replace("machine='q35'", machine),
                GuestPolicy(device_numa='required'),
                [device_numa.Device('0000:81:00.0', 0),
                 device_numa.Device('0000:82:00.0', 1)], [0, 1])).findtext(
                     'devices/controller[@index="0"]/pcihole64')

    def test_hole_holds_the_windows_of_all_devices(self):
        # Each is in a window of 256 GiB.
        self.assertEqual(str(512 << 20), self.render(
            b81=self.WINDOWS, b82=self.WINDOWS))
        self.assertEqual(str(256 << 20), self.render(b81=self.WINDOWS))

    def test_three_gpus_fit_in_an_address_space_of_40_bits(self):
        # QEMU refuses a hole of a whole TiB: "phys-bits too low (40)".
        gpu = (1 << 37) + (48 << 20)
        self.assertEqual(3 << 38, pci_hole.compute_hole_size([gpu] * 3))

    def test_default_hole_is_kept_where_it_suffices(self):
        self.assertIsNone(self.render())
        self.assertIsNone(self.render(b81='x', b82=self.WINDOWS.replace(
            '0x0000203f', '0x00002020')))
        self.assertIsNone(self.render(
            "arch='aarch64' machine='virt'", b81=self.WINDOWS))


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
        renderer = device_xml.DeviceXml(facts, domain_xml.LibvirtFeatures(
            initiators=initiators, numa_element=element))
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
