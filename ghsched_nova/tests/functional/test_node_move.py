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

"""A move between host NUMA nodes, with Nova's records and real Placement."""

from ghsched_nova.cmd import server_move
from ghsched_nova.live import errors
from ghsched_nova.live import records
from ghsched_nova.tests.functional import nova_base


class CheckMoveTest(nova_base.GhschedTestCase):

    def check(self, server, nodes):
        with records.in_cell(server['id']) as context:
            return server_move.check(context, server['id'], nodes)

    def test_it_is_found_out_and_nothing_changes(self):
        self.start_host()
        server = self.boot(self.flavor(mem_bw_min=30, mem_bw_max=60))
        node, = self.host_nodes(server)
        held = self.bandwidth(server['id'])
        shown = server_move.document(self.check(server, {0: 1 - node}))
        found, = shown['nodes']
        self.assertEqual((node, 1 - node), (
            found['before']['host_node'], found['after']['host_node']))
        pins = self.instance(server).numa_topology.cells[0].cpu_pinning
        self.assertEqual({str(vcpu): [cpu] for vcpu, cpu in pins.items()},
                         found['before']['cpus'])
        self.assertEqual([], [
            cpu for cpu in found['after']['cpus'].values()
            if cpu in found['before']['cpus'].values()])
        self.assertEqual([node], self.host_nodes(server))
        self.assertEqual(held, self.bandwidth(server['id']))
        self.reserve(**{f'n{1 - node}': 80})
        error = self.assertRaises(errors.Refused, self.check, server,
                                  {0: 1 - node})
        self.assertIn('20 % of its memory bandwidth left', str(error))

    def test_guests_of_each_kind_are_found_as_nova_has_them(self):
        self.flags(cpu_shared_set='0-1,4-5', cpu_dedicated_set='2-3,6-7',
                   group='compute')
        self.start_host()
        for policy, extra in (
                ('shared', {}), ('mixed', {'hw:cpu_dedicated_mask': '1'}),
                ('dedicated', {'hw:cpu_thread_policy': 'prefer'})):
            server = self.boot(self.flavor(policy=policy, extra=extra))
            node, = self.host_nodes(server)
            plan = self.check(server, {0: 1 - node})
            self.assertEqual({0: (node, 1 - node)}, plan.request.move.moved)
            self._delete_server(server)
        server = self.boot(self.flavor(nodes=2, policy='shared'))
        first, second = self.host_nodes(server)
        self.assertEqual(
            {0: (first, second), 1: (second, first)},
            self.check(server, {0: second, 1: first}).request.move.moved)
        error = self.assertRaises(errors.Refused, self.check, server,
                                  {0: second})
        self.assertIn('two NUMA nodes of the guest', str(error))
