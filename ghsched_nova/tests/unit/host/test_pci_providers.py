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


from ghsched_nova.host import pci_providers
from ghsched_placement.tests import base


def device(address, kind='type-VF', node=0, parent='0000:81:00.0'):
    found = {'address': address, 'dev_type': kind, 'numa_node': node}
    if kind in ('type-VF', 'vdpa'):
        found['parent_addr'] = parent
    return found


class WantedNodesTest(base.TestCase):

    def wanted(self, *devices, tags=None):
        return pci_providers.map_provider_nodes(
            devices, lambda _device: {} if tags is None else tags, 'host')

    def test_vfs_are_inventory_of_their_pf(self):
        self.assertEqual({'host_0000:81:00.0': 1}, self.wanted(
            device('0000:81:10.0', node=1), device('0000:81:10.1', node=1)))

    def test_a_whole_device_has_its_own(self):
        self.assertEqual({'host_0000:3B:00.0': 0}, self.wanted(
            device('0000:3b:00.0', 'type-PCI')))

    def test_devices_of_a_physical_network_are_not_in_placement(self):
        self.assertEqual({}, self.wanted(
            device('0000:81:10.0'), tags={'physical_network': 'net'}))

    def test_devices_that_are_not_listed_are_passed_over(self):
        self.assertEqual({}, pci_providers.map_provider_nodes(
            [device('0000:81:10.0')], lambda _device: None, 'host'))

    def test_device_without_a_node_is_on_the_only_node(self):
        for nodes, seen in (([3], [3, 3, 1]), ([0, 3], [None, -1, 1]),
                            ([], [None, -1, 1])):
            devices = [device('0000:81:10.0', node=None),
                       device('0000:82:00.0', 'type-PF', node=-1),
                       device('0000:83:00.0', 'type-PF', node=1)]
            pci_providers.assign_to_only_node(devices, nodes)
            self.assertEqual(seen, [one['numa_node'] for one in devices])

    def test_no_node_is_made_up_for_a_device_without_one(self):
        self.assertEqual({}, self.wanted(
            device('0000:81:10.0', node=None),
            device('0000:82:00.0', 'type-PF', node=-1)))
