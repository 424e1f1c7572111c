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

"""A guest with VFs after its host has died, and when that comes back."""

from nova import context as nova_context
from nova import objects

from ghsched_nova.tests.functional import test_vfs


class EvacuatedTest(test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        # What is on node 0 of one host is on node 1 of the other.
        self.start((0, 4), (1, 4), name='host_a', nodes=2, sockets=1)
        self.server = self.boot(self.flavor(
            nodes=2, vfs='nic:4', device_numa='required', mem_bw_min=20))
        self.start((1, 4), (0, 4), name='host_b', nodes=2, sockets=1)
        self.stop_host('host_a')
        self._evacuate_server(self.server)

    def assert_placed(self):
        """The guest runs with the VFs that it has on host_b."""
        self.assertEqual({0: [0, 0], 1: [1, 1]}, self.vf_nodes(self.server))
        own = {device.address for device in self.devices('host_b')}
        self.assertEqual(4, len(own))
        self.assertEqual(sorted(own),
                         self.xml_addresses(self.server, 'host_b'))

    def devices(self, host):
        node = objects.ComputeNode.get_by_host_and_nodename(
            nova_context.get_admin_context(), host, host)
        return [device for device in objects.PciDeviceList.
                get_by_instance_uuid(nova_context.get_admin_context(),
                                     self.server['id'])
                if device.compute_node_id == node.id]

    def test_it_is_started_rebooted_and_rebuilt(self):
        self._start_server(self.server)
        self.assert_placed()
        self._reboot_server(self.server, hard=True)
        self.assert_placed()
        self._rebuild_server(self.server,
                             '155d900f-4e14-4e4c-a73d-069cbf4541e6')
        self.assert_placed()
        self.assert_old_host_gives_everything_back()

    def assert_old_host_gives_everything_back(self):
        self.assertEqual(4, len(self.devices('host_a')))
        self.restart_compute_service('host_a')
        self._run_periodics()
        self.assertEqual([], self.devices('host_a'))
        self.assertEqual(
            {'host_b_0000:81:00.0': 2, 'host_b_0000:82:00.0': 2},
            self.allocated(self.server))
        self.assert_placed()
        connection = self.computes['host_a'].driver._host.get_connection()
        self.assertEqual([], connection.listAllDomains(3))
