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

"""The filter of nova-api for live changes."""

import json
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from nova import conf
from nova import context as nova_context
from nova import policy
from oslo_policy import policy as oslo_policy
import webob

from ghsched_nova.api import server_set
from ghsched_nova.live import errors
from ghsched_nova.live import records
from ghsched_nova.live import servers
from ghsched_nova.tests.fixtures import plans
from ghsched_placement import errors as placement_errors
from ghsched_placement.tests import base

UUID = plans.UUID


class FilterTest(base.TestCase):

    def setUp(self):
        super().setUp()
        conf.CONF([], project='nova', default_config_files=[])
        self.addCleanup(conf.CONF.reset)
        policy.reset()
        self.addCleanup(policy.reset)
        self.in_cell = self.enterContext(mock.patch(
            'ghsched_nova.live.records.in_cell'))
        self.as_action = self.enterContext(mock.patch(
            'ghsched_nova.live.records.as_action'))
        self.change = mock.Mock(return_value=plans.plan())
        self.enterContext(mock.patch.object(
            servers, 'live_change',
            return_value=mock.Mock(run=self.change)))
        self.context = nova_context.RequestContext(
            'user', 'project', roles=['admin'])

    def ask(self, body, path=f'/servers/{UUID}/action', method='POST',
            headers=()):
        """The answer; Nova's own is 202 and the body that it got."""
        def nova(environ, start):
            return webob.Response(
                status=202, body=webob.Request(environ).body)(environ, start)

        request = webob.Request.blank(
            path, method=method, headers=headers,
            body=body if isinstance(body, bytes)
            else json.dumps(body).encode())
        request.environ['nova.context'] = self.context
        return request.get_response(server_set.filter_factory({})(nova))

    def set(self, specs, **more):
        return self.ask({'ghsched': {'extra_specs': specs, **more}})

    def test_an_admin_changes_a_server_and_it_is_an_action_of_it(self):
        found = self.set({'ghsched:mem_bw_min': '20',
                          'ghsched:mem_bw_max.1': None})
        self.assertEqual((200, True), (found.status_int,
                                       found.json['changed']))
        self.change.assert_called_once_with(
            {'ghsched:mem_bw_min': '20', 'ghsched:mem_bw_max.1': None},
            False)
        self.in_cell.assert_called_once_with(UUID, self.context)
        self.as_action.assert_called_once()

    def test_the_answer_has_the_microversion_that_was_asked_for(self):
        body = {'ghsched': {'extra_specs': {'ghsched:mem_bw_min': '20'}}}
        legacy = 'X-OpenStack-Nova-API-Version'
        for headers, expected in (
                ({'OpenStack-API-Version': 'volume 3.1, compute 2.86'},
                 ('compute 2.86', '2.86')),
                ({legacy: '2.86'}, ('compute 2.86', '2.86')),
                ({'OpenStack-API-Version': 'compute latest'}, (None, None)),
                ({}, (None, None))):
            found = self.ask(body, headers=headers).headers
            self.assertEqual(expected, (found.get('OpenStack-API-Version'),
                                        found.get(legacy)))

    def test_a_dry_run_is_no_action(self):
        self.assertTrue(self.set({'ghsched:mem_bw_min': '20'},
                                 dry_run=True).json['dry_run'])
        self.as_action.assert_not_called()

    def move(self, **more):
        with mock.patch.object(
                servers, 'node_mover',
                return_value=mock.Mock(
                    check=mock.Mock(return_value=plans.MOVE),
                    run=mock.Mock(return_value=plans.MOVE))
        ) as mover:
            found = self.ask({'ghsched': {'move_nodes': {'0': 1}, **more}})
        self.assertEqual((200, True), (found.status_int,
                                       found.json['changed']))
        return mover.return_value

    def test_a_move_is_looked_into_and_is_no_action(self):
        mover = self.move(dry_run=True)
        mover.check.assert_called_once_with({0: 1})
        mover.run.assert_not_called()
        self.as_action.assert_not_called()

    def test_a_move_is_an_action(self):
        mover = self.move()
        mover.run.assert_called_once_with({0: 1})
        self.as_action.assert_called_once()
        self.assertEqual(records.MOVE_EVENT, self.as_action.call_args[0][2])

    def test_who_is_no_admin_is_refused_by_policy(self):
        self.context = nova_context.RequestContext(
            'user', 'project', roles=['member'], is_admin=False)
        found = self.set({'ghsched:mem_bw_min': '20'})
        self.assertEqual(403, found.status_int)
        self.assertIn(server_set.RULE, found.json['ghsched']['message'])
        self.change.assert_not_called()

    def test_a_rule_of_the_cloud_lets_others_do_it(self):
        policy.init()
        policy.set_rules(oslo_policy.Rules.from_dict(
            {server_set.RULE: 'role:member'}), overwrite=False)
        self.context = nova_context.RequestContext(
            'user', 'project', roles=['member'], is_admin=False)
        self.assertEqual(
            200, self.set({'ghsched:mem_bw_min': '20'}).status_int)

    def test_without_keystonecontext_nobody_may(self):
        self.context = None
        found = self.set({'ghsched:mem_bw_min': '20'})
        self.assertEqual(403, found.status_int)
        self.assertIn('keystonecontext', found.json['ghsched']['message'])

    def test_how_it_ends_is_the_status(self):
        for status, error in (
                (404, errors.Gone('no server')),
                (409, errors.Refused('full')),
                (500, errors.LeftOver('full', ['reboot it'])),
                (400, placement_errors.PolicyError('ghsched:x', 'bad'))):
            self.change.side_effect = error
            found = self.set({'ghsched:mem_bw_min': '20'})
            self.assertEqual(status, found.status_int)
            self.assertIn(str(error), found.json['ghsched']['message'])

    def test_values_are_checked_before_the_server_is_looked_for(self):
        for specs in ({'ghsched:mem_bw_min': '300'}, {'ghsched:vfs': None},
                      {}, [], None, {'ghsched:mem_bw_min': 20}, 'x'):
            self.assertEqual(400, self.set(specs).status_int)
        self.in_cell.assert_not_called()

    def test_whatever_else_comes_goes_on_to_nova_whole(self):
        for body in ({'reboot': {'type': 'HARD'}}, b'{', b'[1]', b'',
                     b'\xff'):
            found = self.ask(body)
            self.assertEqual(202, found.status_int)
            self.assertEqual(body if isinstance(body, bytes)
                             else json.dumps(body).encode(), found.body)
        ours = {'ghsched': {'extra_specs': {'ghsched:mem_bw_min': '20'}}}
        for path, method in (('/servers', 'POST'),
                             (f'/servers/{UUID}/action', 'PUT'),
                             (f'/servers/{UUID}/actions', 'POST'),
                             (f'/images/{UUID}/action', 'POST')):
            self.assertEqual(202, self.ask(ours, path, method).status_int)
        self.assertEqual(200, self.ask(
            ours, f'/project/servers/{UUID}/action').status_int)


class BodyTest(base.TestCase):

    @given(st.binary())
    def test_any_body_is_read(self, body):
        server_set.action_of(body)

    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
    def test_a_request_is_read_or_refused(self, asked):
        try:
            specs, dry_run = server_set.wish_of(asked)
        except placement_errors.PolicyError:
            return
        self.assertTrue(specs)
        self.assertIsInstance(dry_run, bool)
