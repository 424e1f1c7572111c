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

"""The command of the client that names the servers which slow another."""

from unittest import mock

from ghsched_nova.tests.fixtures.plans import UUID
from ghsched_placement.features.blame import blame
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.blame import server_blame
from ghsched_placement.tests import base


class BlameServerTest(base.TestCase):

    def test_report_of_nova_api_is_a_table_and_a_sentence(self):
        app = mock.MagicMock()
        client = app.client_manager.ghsched
        client.find_server.return_value = {'id': UUID}
        client.post_server_action.return_value = blame_report.make_report(
            UUID, 'host_a', (0,), blame.BlameEvidence(
                blame.BlameVerdict(blame.VerdictKind.NOBODY), (
                    blame.Suspect('x', 1.0),)), {}, True)
        command = server_blame.BlameServer(app, None)
        parser = command.get_parser('openstack ghsched server blame')
        with self.assertLogs(command.log, 'WARNING') as log:
            header, rows = command.take_action(
                parser.parse_args(['web', '--prove']))
        client.post_server_action.assert_called_once_with(
            UUID, {'blame': True, 'prove': True})
        self.assertEqual(len(header), len(rows[0]))
        self.assertIn('No guest disturbs', log.output[0])
