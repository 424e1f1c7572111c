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

"""Host files with NUMA nodes that have no CPUs, in explain."""

import types

from ghsched_nova.features.explain import devices
from ghsched_nova.guest import pci_topology
from ghsched_nova.tests.fixtures import cpuless_hosts
from ghsched_placement.flavor.policy import parse_policy


class HostFileTest(cpuless_hosts.HostFileTestCase):

    def test_explain_shows_the_node_of_its_own(self):
        policy = parse_policy({'ghsched:vfs': 'nic:2',
                               'ghsched:device_numa': 'required'}, 1)
        guest = types.SimpleNamespace(cells=(None,))
        self.assertRaises(pci_topology.DeviceNumaError,
                          devices.render_device_numa_xml, self.host, policy,
                          guest, (1,))
        found = ''.join(devices.render_device_numa_xml(
            self.load(cpuless_hosts.HOST + 'nova: {device_cells: true}'),
            policy, guest, (1,)))
        self.assertNotIn(devices.OWN_NODES, found)
        for text in ('<node>1</node>', '<acpi nodeset="1"/>',
                     '<sibling id="0" value="30"/>'):
            self.assertIn(text, found)

    def test_explain_names_the_node_that_newer_libvirts_can_show(self):
        policy = parse_policy({'ghsched:vfs': 'nic:2',
                               'ghsched:device_numa': 'preferred'}, 1)
        guest = types.SimpleNamespace(cells=(None,))

        def explain(host):
            return devices.render_device_numa_xml(host, policy, guest, (1,))

        self.assertNotIn(devices.OWN_NODES, explain(self.load(
            cpuless_hosts.HOST + cpuless_hosts.EXTENDED)))
        self.assertIn(devices.OWN_NODES, explain(self.host))
        self.assertIn('<node>0</node>', ''.join(explain(self.host)))
