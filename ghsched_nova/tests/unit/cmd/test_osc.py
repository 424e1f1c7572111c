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

"""``openstack ghsched server set``, as python-openstackclient calls it."""

from unittest import mock


from ghsched_nova.cmd import osc
from ghsched_nova.cmd import server_move
from ghsched_nova.cmd import server_set
from ghsched_nova.tests.unit.cmd import test_server_move
from ghsched_nova.tests.unit.cmd import test_server_set
from ghsched_placement.osc import base as osc_base
from ghsched_placement.tests import base

UUID = test_server_set.UUID


class SetServerTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.app = mock.MagicMock()
        self.client = self.app.client_manager.ghsched
        self.client.find_server.return_value = {'id': UUID}
        self.client.set_bandwidth.return_value = server_set.document(
            test_server_set.plan(), False)
        self.command = osc.SetServer(self.app, None)

    def call(self, *arguments):
        parser = self.command.get_parser('openstack ghsched server set')
        return self.command.take_action(parser.parse_args(arguments))

    def test_nova_api_is_asked_for_what_the_options_say(self):
        header, rows = self.call('web', '--mem-bw-min', '20', '--unset',
                                 'mem_bw_max.1', '--dry-run')
        self.client.find_server.assert_called_once_with('web')
        self.client.set_bandwidth.assert_called_once_with(
            UUID, {'ghsched:mem_bw_min': '20', 'ghsched:mem_bw_max.1': None},
            True)
        self.assertEqual(len(header), len(rows[0]))

    def test_a_bad_value_is_refused_before_anybody_is_asked(self):
        for arguments in ((), ('--mem-bw-min', '300')):
            self.assertRaises(osc_base.Refused, self.call, 'web', *arguments)
        self.client.set_bandwidth.assert_not_called()


class MoveServerNodesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.app = mock.MagicMock()
        self.client = self.app.client_manager.ghsched
        self.client.find_server.return_value = {'id': UUID}
        self.client.move_nodes.return_value = server_move.document(
            test_server_move.PLAN, True)
        self.command = osc.MoveServerNodes(self.app, None)

    def call(self, *arguments):
        parser = self.command.get_parser('openstack ghsched server move-node')
        return self.command.take_action(parser.parse_args(arguments))

    def test_nova_api_is_asked_for_the_nodes_of_the_options(self):
        header, rows = self.call('web', '--node', '0=1', '--node', '1=0',
                                 '--dry-run')
        self.client.move_nodes.assert_called_once_with(
            UUID, {0: 1, 1: 0}, True)
        self.assertEqual(len(header), len(rows[0]))
        self.call('web', '--node', '0=1')
        self.client.move_nodes.assert_called_with(UUID, {0: 1}, False)

    def test_what_is_wrong_is_refused_before_anybody_is_asked(self):
        for node in ('1', '0=a'):
            self.assertRaises(osc_base.Refused, self.call,
                              'web', '--node', node)
        self.client.move_nodes.assert_not_called()
