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

from osc_lib import exceptions
import testtools

from ghsched_nova.cmd import osc
from ghsched_nova.cmd import server_set
from ghsched_nova.live import errors
from ghsched_nova.tests.unit.cmd import test_server_set

UUID = test_server_set.UUID


class SetServerTest(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.app = mock.MagicMock()
        self.find = self.app.client_manager.ghsched.find_server
        self.find.return_value = {'id': UUID}
        self.command = osc.SetServer(self.app, None)
        self.work = self.enterContext(mock.patch.object(
            server_set, 'carry_out', return_value=test_server_set.plan()))

    def call(self, *arguments):
        parser = self.command.get_parser('openstack ghsched server set')
        return self.command.take_action(parser.parse_args(arguments))

    def asked(self):
        return self.work.call_args.args[0]

    def test_the_server_may_be_named(self):
        header, rows = self.call('web', '--mem-bw-min', '20')
        self.assertEqual(UUID, self.asked().server)
        self.assertEqual(len(header), len(rows[0]))
        self.assertEqual({'ghsched:mem_bw_min': '20'},
                         server_set.wish(self.asked()))

    def test_a_uuid_needs_nobody(self):
        self.call(UUID, '--mem-bw-min', '20', '--dry-run')
        self.find.assert_not_called()
        self.assertTrue(self.asked().dry_run)

    def test_a_refusal_is_an_error_of_the_client(self):
        for error in (errors.Refused('full'), server_set.NotHere('full'),
                      errors.LeftOver('full', ['reboot it'])):
            self.work.side_effect = error
            self.assertIn('full', str(self.assertRaises(
                exceptions.CommandError, self.call, UUID)))
