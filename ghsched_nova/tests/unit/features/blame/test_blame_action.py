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


"""The part of the server action that tells who disturbs a server."""

import inspect
from types import SimpleNamespace
from unittest import mock

from nova import context as nova_context

from ghsched_nova.api import policies
from ghsched_nova.api import server_filter
from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.blame import blame_action
from ghsched_nova.features.blame import blame_rpc
from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import rpcapi
from ghsched_nova.tests.fixtures import plans
from ghsched_nova.tests.fixtures import server_actions
from ghsched_placement.features.blame import blame
from ghsched_placement.features.blame import blame_report
from ghsched_placement.tests import base

REPORT = blame_report.make_report(
    's', 'host_a', (0,), blame.BlameEvidence(
        blame.BlameVerdict(blame.VerdictKind.GUEST, suspect='x'),
        (blame.Suspect('x', 0.5, untried='/sys/fs/resctrl/ghsched-x: busy'),)),
    {'s': blame_report.GuestName('web', 'project'),
     'x': blame_report.GuestName('noisy', 'other')}, True)


class BlameActionTest(server_actions.ServerActionTestCase):

    def setUp(self):
        super().setUp()
        for name, value in (('open_cell_context', None),
                            ('get_visible_server', self.server)):
            self.enterContext(mock.patch(
                f'ghsched_nova.features.live_change.records.{name}',
                **({'return_value': value} if value else {})))
        self.get_report = self.enterContext(mock.patch.object(
            blame_action, 'get_blame_report', return_value=REPORT))

    def ask(self, action, role='admin'):
        context = nova_context.RequestContext(
            'user', 'project', roles=[role], is_admin=role == 'admin')
        return server_filter.handle_server_action(context, plans.UUID, action)

    def allow(self, *rules):
        super().allow(dict.fromkeys(rules, 'role:member'))

    def test_report_for_an_admin_names_guests_of_all_projects(self):
        for prove in (True, False):
            found = self.ask({'blame': True, 'prove': prove})
            self.assertEqual((200, REPORT), (found.status_int, found.json))
            self.assertEqual((plans.UUID, prove),
                             self.get_report.call_args[0][1:])

    def test_report_for_a_user_with_a_rule_names_no_other_project(self):
        self.assertEqual(403, self.ask({'blame': True}, 'member').status_int)
        self.get_report.assert_not_called()
        self.allow(policies.BLAME)
        found = self.ask({'blame': True}, 'member')
        self.assertEqual(200, found.status_int)
        for word in ('noisy', 'host_a', 'resctrl', '"x"'):
            self.assertNotIn(word, found.text)

    def test_proof_needs_a_rule_of_its_own(self):
        for rules, codes in (((policies.BLAME,), (200, 403)),
                             ((policies.BLAME_PROVE,), (403, 403)),
                             ((policies.BLAME, policies.BLAME_PROVE),
                              (200, 200))):
            self.allow(*rules)
            self.assertEqual(codes, tuple(
                self.ask({'blame': True, 'prove': prove},
                         'member').status_int for prove in (False, True)))

    def test_locked_server_is_proven_for_admins_alone(self):
        self.server.locked = True
        prove = {'blame': True, 'prove': True}
        self.assertEqual(200, self.ask(prove).status_int)
        self.get_report.reset_mock()
        self.allow(policies.BLAME, policies.BLAME_PROVE)
        self.assertEqual(409, self.ask(prove, 'member').status_int)
        self.get_report.assert_not_called()
        self.assertEqual(200, self.ask({'blame': True}, 'member').status_int)

    def test_malformed_question_is_refused(self):
        self.assertEqual(400, self.ask({'blame': 'yes'}).status_int)

    def test_refusal_of_the_host_is_passed_on(self):
        self.get_report.side_effect = errors.Refused('host host_a: no')
        found = self.ask({'blame': True})
        self.assertEqual(409, found.status_int)
        self.assertIn('host_a: no', found.text)


class CallTest(base.TestCase):

    def test_host_is_called_as_its_endpoint_expects(self):
        guest = SimpleNamespace(running=True, name='web')
        with mock.patch.object(
                records, 'NovaRecords') as nova, mock.patch.object(
                rpcapi, 'HostClient') as client:
            nova.return_value.read_guest.return_value = guest
            client.return_value.get_report.return_value = {'server': {}}
            self.assertEqual({'server': {'name': 'web'}},
                             blame_action.get_blame_report(None, 's', True))
        called = client.return_value.get_report.call_args
        self.assertEqual((guest, 'blame'), called.args)
        endpoint = blame_rpc.BlameEndpoint
        inspect.signature(getattr(endpoint, called.args[1])).bind(
            None, None, instance_uuid='u', **called.kwargs)
        self.assertEqual((messages.NAMESPACE, messages.VERSION), (
            endpoint.target.namespace, endpoint.target.version))
