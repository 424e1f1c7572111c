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
from nova import context as nova_context
from nova import exception
import webob

from ghsched_nova.api import policies
from ghsched_nova.api import server_filter
from ghsched_nova.base import action_errors as errors
from ghsched_nova.features import declared_api
from ghsched_nova.features.live_change import nova_seams
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import server_set
from ghsched_nova.features.live_change import servers
from ghsched_nova.tests.fixtures import plans
from ghsched_nova.tests.fixtures import server_actions
from ghsched_placement.base import errors as placement_errors
from ghsched_placement.tests import base

UUID = plans.UUID


class FilterTestCase(server_actions.ServerActionTestCase):

    def setUp(self):
        super().setUp()
        self.in_cell = self.enterContext(mock.patch(
            'ghsched_nova.features.live_change.records.open_cell_context'))
        self.as_action = self.enterContext(mock.patch(
            'ghsched_nova.features.live_change.records.record_action'))
        self.change = mock.Mock(return_value=plans.plan())
        self.enterContext(mock.patch.object(
            servers, 'make_policy_changer',
            return_value=mock.Mock(change_policy=self.change)))
        self.known_to = self.enterContext(mock.patch(
            'ghsched_nova.features.live_change.records.get_visible_server',
            return_value=self.server))
        # It would change Nova for the tests that come after.
        self.enterContext(mock.patch(
            'ghsched_nova.api.nova_changes.apply_patches'))
        self.context = nova_context.RequestContext(
            'user', 'project', roles=['admin'])

    def become(self, *roles, project='project', user='user'):
        self.context = nova_context.RequestContext(
            user, project, roles=list(roles), is_admin='admin' in roles)

    def allow(self, **checks):
        super().allow({getattr(policies, name): check
                       for name, check in checks.items()})

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
        return request.get_response(server_filter.filter_factory({})(nova))


class ReportTest(FilterTestCase):
    """GET /ghsched and what is below it."""

    def get_report(self, path='/ghsched/figures', method='GET', **answer):
        report = mock.Mock(**answer or {'return_value': {'figures': [1]}})
        with mock.patch.object(declared_api, 'REPORTS', {'figures': report}):
            return self.ask(b'', path, method)

    def test_report_of_a_feature_is_asked_for_by_its_name(self):
        for path in ('/ghsched/figures', '/project/ghsched/figures/'):
            found = self.get_report(path)
            self.assertEqual((200, [1]), (found.status_int,
                                          found.json['figures']))
        self.assertEqual(403, self.get_report(
            side_effect=exception.Forbidden).status_int)
        self.context = None
        self.assertEqual(403, self.get_report().status_int)

    def test_every_user_learns_which_requests_there_are(self):
        self.become('reader')
        for path in ('/ghsched', '/ghsched/', f'/{"a1" * 16}/ghsched'):
            found = self.ask(b'', path, 'GET')
            self.assertEqual(200, found.status_int)
            self.assertEqual({'version', 'reports', 'actions'}, {*found.json})
            # Other features have reports and actions as well.
            self.assertLessEqual({'extra_specs', 'move_nodes'},
                                 {*found.json['actions']})
        self.context = None
        self.assertEqual(403, self.ask(b'', '/ghsched', 'GET').status_int)

    def test_other_requests_than_for_reports_go_on_to_nova(self):
        for path, method in (('/ghsched/figures', 'POST'),
                             ('/ghsched/figures/1', 'GET'),
                             ('/ghsched/others', 'GET'),
                             ('/ghsched', 'PUT'),
                             ('/servers/ghsched', 'GET'),
                             ('/os-keypairs/ghsched', 'GET'),
                             ('/servers/ghsched/figures', 'PUT')):
            self.assertEqual(202, self.get_report(path, method).status_int)


class FilterTest(FilterTestCase):
    """The server action."""

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
        self.assertEqual(plans.plan().guest.host,
                         found.json['server']['host'])

    def test_action_of_a_feature_is_found_by_its_key(self):
        run = mock.Mock(return_value={'server': {'host': 'a'}})
        with mock.patch.object(declared_api, 'SERVER_ACTIONS', {'x': run}):
            found = self.ask({'ghsched': {'x': 1}})
        self.assertEqual((200, 'a'), (found.status_int,
                                      found.json['server']['host']))
        run.assert_called_once_with(self.context, UUID, {'x': 1})
        self.change.assert_not_called()

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

    def test_flag_that_is_malformed_or_misspelt_makes_no_change(self):
        specs = {'extra_specs': {'ghsched:mem_bw_min': '20'}}
        move = {'move_nodes': {'0': 1}}
        with mock.patch.object(servers, 'move_server') as mover:
            for asked in ({**specs, 'dry_run': 'true'}, {**move, **specs},
                          {**specs, 'dry_run': 1}, {**move, 'dryrun': True},
                          {**move, 'dry_run': None}, {**specs, 'x' * 999: 1}):
                found = self.ask({'ghsched': asked})
                self.assertEqual(400, found.status_int, asked)
                self.assertLess(len(found.body), 200)
        self.change.assert_not_called()
        mover.assert_not_called()

    def move(self, **more):
        with mock.patch.object(
                servers, 'make_node_mover',
                return_value=mock.Mock(
                    plan_move=mock.Mock(return_value=plans.MOVE),
                    move_guest=mock.Mock(return_value=plans.MOVE))
        ) as mover:
            found = self.ask({'ghsched': {'move_nodes': {'0': 1}, **more}})
        self.assertEqual((200, True), (found.status_int,
                                       found.json['changed']))
        return mover.return_value

    def test_a_move_is_looked_into_and_is_no_action(self):
        mover = self.move(dry_run=True)
        mover.plan_move.assert_called_once_with({0: 1})
        mover.move_guest.assert_not_called()
        self.as_action.assert_not_called()

    def test_a_move_is_an_action(self):
        mover = self.move()
        mover.move_guest.assert_called_once_with({0: 1})
        self.as_action.assert_called_once()
        self.assertEqual(records.MOVE_EVENT, self.as_action.call_args[0][2])

    def status_of(self, kind):
        """Return the HTTP status of a user's change, dry run or move."""
        asked = {'SET': {'extra_specs': {'ghsched:mem_bw_min': '20'}},
                 'DRY_RUN': {'extra_specs': {'ghsched:mem_bw_min': '20'},
                             'dry_run': True},
                 'MOVE': {'move_nodes': {'0': 1}},
                 'MOVE DRY_RUN': {'move_nodes': {'0': 1}, 'dry_run': True}}
        with mock.patch.object(servers, 'move_server',
                               return_value=plans.MOVE):
            return self.ask({'ghsched': asked[kind]}).status_int

    def test_user_without_a_rule_is_refused_whatever_is_asked(self):
        for roles in (['member'], ['manager', 'member'], ['reader'], []):
            self.become(*roles, user='owner')
            for kind in ('SET', 'DRY_RUN', 'MOVE', 'MOVE DRY_RUN'):
                self.assertEqual(403, self.status_of(kind))
        found = self.set({'ghsched:mem_bw_min': '20'})
        self.assertIn(policies.SET, found.json['ghsched']['message'])
        self.change.assert_not_called()

    def test_rules_are_asked_about_the_project_and_user_of_the_server(self):
        for check, user, expected in (
                ('role:manager and project_id:%(project_id)s',
                 ('manager', 'project', 'x'), 200),
                ('role:manager and project_id:%(project_id)s',
                 ('manager', 'other', 'x'), 403),
                ('role:manager and project_id:%(project_id)s',
                 ('member', 'project', 'x'), 403),
                ('user_id:%(user_id)s', ('member', 'project', 'owner'), 200),
                ('user_id:%(user_id)s', ('member', 'project', 'x'), 403),
                ('rule:project_member_or_admin',
                 ('member', 'project', 'x'), 200),
                ('rule:project_member_or_admin',
                 ('member', 'other', 'x'), 403)):
            self.allow(SET=check)
            role, project, name = user
            self.become(role, project=project, user=name)
            self.assertEqual(expected, self.status_of('SET'),
                             f'{check} {user}')

    def test_rule_of_a_kind_allows_that_kind_alone(self):
        kinds = ('SET', 'DRY_RUN', 'MOVE', 'MOVE DRY_RUN')
        for allowed, expected in (
                ({'SET': '@'}, (200, 200, 200, 200)),
                ({'SET': '@', 'MOVE': '!'}, (200, 200, 403, 403)),
                ({'SET': '@', 'DRY_RUN': '!'}, (200, 403, 200, 403)),
                ({'DRY_RUN': 'role:member'}, (403, 200, 403, 403)),
                ({'MOVE': 'role:member'}, (403, 403, 200, 403))):
            self.allow(**allowed)
            self.become('member')
            self.assertEqual(expected, tuple(map(self.status_of, kinds)))

    def test_rules_are_documented(self):
        for rule in policies.list_rules():
            self.assertTrue(rule.description)
            self.assertEqual(['project'], rule.scope_types)
            self.assertEqual('GET' if rule.name == policies.LIST_REFUSALS
                             else 'POST', rule.operations[0]['method'])

    def test_locked_server_is_changed_by_admins_alone(self):
        self.server.locked = True
        self.assertEqual(200, self.status_of('SET'))
        self.allow(SET='@')
        self.become('member')
        for kind in ('SET', 'DRY_RUN', 'MOVE', 'MOVE DRY_RUN'):
            self.assertEqual(409, self.status_of(kind))
        self.assertEqual('the server is locked', self.set(
            {'ghsched:mem_bw_min': '20'}).json['ghsched']['message'])

    def test_server_that_a_user_may_not_know_of_is_not_found(self):
        self.known_to.side_effect = errors.GuestGone('it is on host7')
        self.allow(SET='@')
        self.become('member')
        found = self.set({'ghsched:mem_bw_min': '20'})
        self.assertEqual(404, found.status_int)
        self.assertNotIn('host7', found.text)

    def test_user_who_is_no_admin_learns_no_host(self):
        self.allow(SET='@')
        self.become('member')
        found = self.set({'ghsched:mem_bw_min': '20'})
        self.assertIsNone(found.json['server']['host'])
        secret = 'nova-compute on host7 (192.0.2.7), NUMA node 1: full'
        for status, error in (
                (404, errors.GuestGone(secret)), (409, errors.Refused(secret)),
                (409, errors.HostRollbackFailed(secret)),
                (500, errors.RollbackIncomplete(secret, [secret]))):
            self.change.side_effect = error
            found = self.set({'ghsched:mem_bw_min': '20'})
            self.assertEqual(status, found.status_int)
            for word in ('host7', '192.0.2.7', 'node'):
                self.assertNotIn(word, found.text)
        self.assertIn(self.context.request_id, found.text)
        self.change.side_effect = errors.RefusedByState('it is stopped')
        self.assertIn('it is stopped', self.set(
            {'ghsched:mem_bw_min': '20'}).text)

    def test_share_that_is_raised_is_held_against_the_limits(self):
        self.server.flavor.extra_specs['ghsched:mem_bw_min'] = '10'
        with mock.patch.object(
                nova_seams, 'enforce_limits',
                side_effect=exception.OverQuota('too much')) as enforced:
            found = self.set({'ghsched:mem_bw_min': '30'})
        self.assertEqual(403, found.status_int)
        self.change.assert_not_called()
        enforced.assert_called_once_with(
            self.context, 'project', {'class:CUSTOM_MEM_BW_PCT': 20})

    def test_without_keystonecontext_nobody_may(self):
        self.context = None
        found = self.set({'ghsched:mem_bw_min': '20'})
        self.assertEqual(403, found.status_int)
        self.assertIn('keystonecontext', found.json['ghsched']['message'])

    def test_how_it_ends_is_the_status(self):
        for status, error in (
                (404, errors.GuestGone('no server')),
                (409, errors.Refused('full')),
                (500, errors.RollbackIncomplete('full', ['reboot it'])),
                (400, placement_errors.PolicyError('ghsched:x', 'bad'))):
            self.change.side_effect = error
            found = self.set({'ghsched:mem_bw_min': '20'})
            self.assertEqual(status, found.status_int)
            self.assertIn(str(error), found.json['ghsched']['message'])

    def test_values_that_make_no_sense_are_refused(self):
        for specs in ({'ghsched:mem_bw_min': '300'}, {'ghsched:vfs': None},
                      {}, [], None, {'ghsched:mem_bw_min': 20}, 'x'):
            self.assertEqual(400, self.set(specs).status_int)
        self.in_cell.assert_not_called()

    def test_user_without_a_rule_does_not_learn_what_makes_sense(self):
        self.become('member')
        for asked in ({'extra_specs': {'ghsched:mem_bw_min': '300'}}, [], {},
                      {'move_nodes': 7}):
            self.assertEqual(403, self.ask({'ghsched': asked}).status_int)

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
        server_filter.parse_ghsched_action(body)

    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
    def test_a_request_is_read_or_refused(self, asked):
        try:
            specs = server_set.parse_extra_specs({'extra_specs': asked})
        except placement_errors.PolicyError:
            return
        self.assertTrue(specs)
