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

"""Commands of the client that change or move a server."""

from unittest import mock

from ghsched_nova.tests.fixtures import plans
from ghsched_nova.tests.fixtures.plans import UUID
from ghsched_placement.features.live_change import change_report
from ghsched_placement.features.live_change import move_report
from ghsched_placement.features.live_change import server_change
from ghsched_placement.osc import base as osc_base
from ghsched_placement.tests import base


class ActionTestCase(base.TestCase):
    """A command that asks the API of Nova for an action on a server."""

    def make(self, command, report, name):
        self.app = mock.MagicMock()
        self.client = self.app.client_manager.ghsched
        self.client.find_server.return_value = {'id': UUID}
        self.client.post_server_action.return_value = report
        self.command, self.name = command(self.app, None), name

    def call(self, *arguments):
        parser = self.command.get_parser(self.name)
        return self.command.take_action(parser.parse_args(arguments))


class SetServerTest(ActionTestCase):

    def setUp(self):
        super().setUp()
        self.make(server_change.SetServer,
                  change_report.make_change_report(plans.plan(), False),
                  'openstack ghsched server set')

    def test_nova_api_is_asked_for_what_the_options_say(self):
        header, rows = self.call('web', '--mem-bw-min', '20', '--unset',
                                 'mem_bw_max.1', '--dry-run')
        self.client.find_server.assert_called_once_with('web')
        self.client.post_server_action.assert_called_once_with(
            UUID, {'extra_specs': {'ghsched:mem_bw_min': '20',
                                   'ghsched:mem_bw_max.1': None},
                   'dry_run': True}, mock.ANY)
        self.assertEqual(len(header), len(rows[0]))

    def test_a_bad_value_is_refused_before_anybody_is_asked(self):
        for arguments in ((), ('--mem-bw-min', '300')):
            self.assertRaises(osc_base.CommandRefused, self.call, 'web',
                              *arguments)
        self.client.post_server_action.assert_not_called()


class MoveServerNodesTest(ActionTestCase):

    def setUp(self):
        super().setUp()
        self.make(server_change.MoveServerNodes,
                  move_report.make_move_report(plans.MOVE, True),
                  'openstack ghsched server move-node')

    def test_nova_api_is_asked_for_the_nodes_of_the_options(self):
        header, rows = self.call('web', '--node', '0=1', '--node', '1=0',
                                 '--dry-run')
        self.client.post_server_action.assert_called_once_with(
            UUID, {'move_nodes': {'0': 1, '1': 0}, 'dry_run': True})
        self.assertEqual(len(header), len(rows[0]))
        self.call('web', '--node', '0=1')
        self.client.post_server_action.assert_called_with(
            UUID, {'move_nodes': {'0': 1}, 'dry_run': False})

    def test_invalid_input_is_refused_before_any_request(self):
        for node in ('1', '0=a'):
            error = self.assertRaises(osc_base.CommandRefused, self.call,
                                      'web', '--node', node)
            self.assertIn(f"--node: '{node}' is not of the form GUEST=HOST",
                          str(error))
        self.client.post_server_action.assert_not_called()
