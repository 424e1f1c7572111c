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

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.tests import base
from tempest_plugin.services import devices

_XML = """
<domain>
  <numatune>
    <memnode cellid="0" mode="strict" nodeset="3"/>
    <memnode cellid="1" mode="strict" nodeset="2"/>
  </numatune>
  <devices>
    <controller type="pci" index="0" model="pcie-root"/>
    <controller type="pci" index="1" model="pcie-root-port">
      <address type="pci" domain="0" bus="0x00" slot="1" function="0"/>
    </controller>
    <controller type="pci" index="2" model="pcie-expander-bus">
      <target busNr="252"><node>1</node></target>
      <address type="pci" domain="0" bus="0x00" slot="2" function="0"/>
    </controller>
    <controller type="pci" index="10" model="pcie-root-port">
      <address type="pci" domain="0" bus="0x02" slot="0" function="0"/>
    </controller>
    <controller type="usb" index="1"/>
    <hostdev mode="subsystem" type="pci">
      <source>
        <address domain="0x0000" bus="0x41" slot="0x10" function="0x2"/>
      </source>
      <address type="pci" domain="0" bus="0x0a" slot="0" function="0"/>
    </hostdev>
    <interface type="hostdev">
      <source>
        <address type="pci" domain="0x0001" bus="0x81" slot="0x1f"
                 function="0x0"/>
      </source>
      <address type="pci" domain="0" bus="0x01" slot="0" function="0"/>
    </interface>
    <hostdev mode="subsystem" type="pci">
      <source>
        <address domain="0x0000" bus="0x41" slot="0x10" function="0x4"/>
      </source>
      <numa node="1"/>
      <address type="pci" domain="0" bus="0x01" slot="0" function="0"/>
    </hostdev>
    <interface type="bridge"/>
  </devices>
</domain>
"""

_node = st.integers(-1, 7)
_address = st.builds('0000:{:02x}:{:02x}.{:x}'.format, st.integers(0, 255),
                     st.integers(0, 31), st.integers(0, 7))


class PassedTest(base.TestCase):

    def test_devices_have_the_node_of_their_host_bridge(self):
        self.assertEqual([
            devices.Passed('0000:41:10.2', 1),
            devices.Passed('0000:41:10.4', 1),
            devices.Passed('0001:81:1f.0', None),
        ], devices.parse_passthrough_devices(ElementTree.fromstring(_XML)))

    def test_host_node_behind_a_guest_node(self):
        xml = ElementTree.fromstring(_XML)
        self.assertEqual([3, 2, None], [
            devices.parse_memory_node(xml, node) for node in (0, 1, 2)])


class SeenTest(base.TestCase):

    def test_devices_come_and_go(self):
        console = ('Linux\r\n'
                   'GUEST-PCI 0000:01:00.0 0x8086:0x10ca numa_node=-1\r\n'
                   'GUEST-PCI 0000:02:00.0 0x8086:0x10ca numa_node=0\r\n'
                   'GUEST-READY\r\n'
                   'GUEST-PCI-ADDED 0000:03:00.0 0x8086:0x10ca '
                   'numa_node=1\r\n'
                   'GUEST-PCI-REMOVED 0000:02:00.0\r\n')
        self.assertTrue(devices.shows_all_boot_devices(console))
        self.assertEqual([
            devices.Seen('0000:01:00.0', '8086:10ca', -1),
            devices.Seen('0000:03:00.0', '8086:10ca', 1),
        ], devices.parse_reported_devices(console))

    @given(st.dictionaries(_address, _node, max_size=5), st.integers(0, 300))
    def test_a_line_that_is_still_written_does_not_count(self, nodes, size):
        whole = ''.join(
            f'GUEST-PCI {address} 0x1af4:0x1042 numa_node={node}\n'
            for address, node in nodes.items())
        for one in devices.parse_reported_devices(whole[:size]):
            self.assertEqual(nodes[one.address], one.node)
        self.assertEqual(
            nodes,
            {
                one.address: one.node
                for one in devices.parse_reported_devices(whole)})

    def test_a_part_of_an_earlier_line_before_a_report(self):
        """An emulated serial port of a busy machine sends such lines."""
        self.assertEqual(
            [devices.Seen('0000:ff:00.0', '8086:10ca', 1)],
            devices.parse_reported_devices(
                'GUEST-READY\nGUEST-PCI 0000:00:1f.3 0x8086:0x2930 '
                'numa_node=-GUEST-PCI-ADDED 0000:ff:00.0 '
                '0x8086:0x10ca numa_node=1\n'),
        )

    def test_not_ready_before_the_line_is_whole(self):
        self.assertFalse(devices.shows_all_boot_devices('GUEST-READY'))
        self.assertTrue(devices.shows_all_boot_devices('GUEST-READY\n'))
