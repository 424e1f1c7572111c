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

"""Guest NUMA nodes for devices on host nodes without CPUs."""

from lxml import etree

from ghsched_nova.guest import cells
from ghsched_nova.guest import device_cells
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import libvirt_probes
from ghsched_nova.guest import pci_topology
from ghsched_nova.tests.fixtures import guest_nodes
from ghsched_placement.tests import base

PORT = ('<interface type="hostdev"><source><address type="pci" '
        'domain="0x0000" bus="0xe1" slot="0x00" function="0x0"/></source>'
        '</interface>')
DEVICE = ('<hostdev mode="subsystem" type="pci"><source><address '
          'domain="0x0000" bus="0x{}" slot="0x00" function="0x0"/></source>'
          '</hostdev>')
XML = ('<domain><memory>2048</memory><vcpu>2</vcpu><os><type machine="q35">'
       'hvm</type></os><features><acpi/></features><cpu><numa>'
       '<cell id="0" cpus="0" memory="1024" unit="KiB"/>'
       '<cell id="1" cpus="1" memory="1024" unit="KiB"/>'
       '<interconnects/></numa></cpu><devices>'
       + DEVICE.format('81') + DEVICE.format('c1') + PORT
       + '</devices></domain>')
#: Node 4 is near node 0, node 6 near node 1.
DISTANCES = {4: {0: 40, 1: 60, 4: 10, 6: 80}, 6: {0: 60, 1: 40, 4: 80, 6: 10}}
NODES = {'0000:81:00.0': 1, '0000:c1:00.0': 2, '0000:e1:00.0': 3}


def render(xml=XML, distances=DISTANCES):
    return device_numa.render_expander_buses(device_cells.render_cells(
        xml, [0, 1, 4, 6], 2, NODES, distances), NODES)


class DeviceCellsTest(base.TestCase):

    def test_host_nodes_of_devices_are_selected(self):
        def select(*nodes, host_nodes=(0, 1), without_cpus=(4, 6)):
            return device_cells.select_host_nodes(
                [device_numa.Device('0000:81:00.0', node) for node in nodes],
                host_nodes, without_cpus)

        self.assertEqual((4, 6), select(6, 4, 1, None, -1, 6, 2))
        self.assertEqual((), select(1, 4, host_nodes=()))
        self.assertEqual((6,), select(4, 6, host_nodes=(0, 4)))

    def test_cells_have_no_cpus_and_true_distances(self):
        root = etree.fromstring(render())
        numa = root.find('cpu/numa')
        self.assertEqual(['cell'] * 4 + ['interconnects'],
                         [one.tag for one in numa])
        rows = [(dict(cell.attrib), [
            (one.get('id'), one.get('value')) for one in cell.iter('sibling')])
            for cell in numa.findall('cell')[2:]]
        self.assertEqual([
            ({'id': '2', 'memory': '0', 'unit': 'KiB'},
             [('0', '40'), ('1', '60'), ('2', '10'), ('3', '80')]),
            ({'id': '3', 'memory': '0', 'unit': 'KiB'},
             [('0', '60'), ('1', '40'), ('2', '80'), ('3', '10')])], rows)

    def test_unknown_distances_are_left_out(self):
        for known in ({}, {4: {0: 40, 1: 60}, 6: {}}):
            self.assertNotIn('sibling', render(distances=known))

    def test_only_devices_of_added_nodes_are_initiators(self):
        found = render()
        self.assertEqual(NODES, guest_nodes.read_guest_nodes(found))
        self.assertEqual(
            [None, '2', '3'],
            [None if acpi is None else acpi.get('nodeset') for acpi in (
                device.find('acpi') for device in
                pci_topology.map_passthrough_devices(
                    etree.fromstring(found)).values())])

    def test_second_rendering_changes_nothing(self):
        found = render()
        self.assertEqual(found, render(found))
        self.assertNotIn('memory="0"', device_cells.render_cells(
            found, [0, 1], 0, {}, {}))
        self.assertEqual(XML, device_cells.render_cells(
            XML, [0, 1], 0, {'0000:81:00.0': 1}, {}))

    def test_index_of_a_port_is_kept(self):
        xml = XML.replace('</source></interface>',
                          '</source><acpi index="7"/></interface>')
        self.assertIn('<acpi index="7" nodeset="3"/>', render(xml))

    def test_other_nodes_than_expected_are_refused(self):
        for xml in (XML.replace('id="1"', 'id="5"'),
                    XML.replace('<cell id="1" cpus="1" memory="1024" '
                                'unit="KiB"/>', ''),
                    XML.replace('numa>', 'other>')):
            self.assertRaises(pci_topology.DeviceNumaError, render, xml)

    def test_cells_of_the_guest_are_those_with_cpus(self):
        root = etree.fromstring(render())
        self.assertEqual([0, 1],
                         [cell.node for cell in cells.parse_cells(root)])

    def test_probe_tells_a_libvirt_that_keeps_the_initiator(self):
        probe = libvirt_probes.DEVICE_INITIATOR
        self.assertTrue(probe.is_kept(probe.xml))
        for dropped in ('', '<acpi/>', '<acpi nodeset="0"/>'):
            self.assertFalse(probe.is_kept(
                probe.xml.replace('<acpi nodeset="1"/>', dropped)))
