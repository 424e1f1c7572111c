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

"""Policy rules of nova-api: their enforcer is shared by native threads."""

import inspect
import re

from nova import context
from nova import exception
from nova import policy as nova_policy

from ghsched_nova.api import policies
from ghsched_nova.nova_seams import shared
from ghsched_placement.features.blame import server_blame
from ghsched_placement.features.live_change import server_change
from ghsched_placement.features.refusals import refusals
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

TARGET = {'project_id': 'p', 'user_id': 'u'}


class HelpTest(base.TestCase):
    """Rules of nova-api in the help of "openstack ghsched"."""

    def test_help_of_a_command_names_each_rule_that_it_needs(self):
        texts = [inspect.getdoc(command) for command in (
            server_change.SetServer, server_change.MoveServerNodes,
            server_blame.BlameServer, refusals.ListRefusals)]
        for rule in policies.list_rules():
            self.assertTrue(any(
                re.search(rf'{rule.name}(?![\w-])', text)
                for text in texts), rule.name)


class EnforcerStressTest(base.TestCase):
    """First requests of ours beside requests of Nova."""

    def setUp(self):
        super().setUp()
        shared.config()([], project='nova', default_config_files=[],
                        default_config_dirs=[])
        self.addCleanup(nova_policy.reset)
        self.addCleanup(policies.get_shared_policy_enforcer.cache_clear)
        self.admin = context.RequestContext(
            'a', 'x', is_admin=True, roles=['admin'])
        self.member = context.RequestContext(
            'm', 'p', roles=['member', 'reader'])

    def ask(self, chance):
        rule = chance.choice([policies.SET, policies.DRY_RUN, policies.MOVE])
        policies.authorize(self.admin, rule, TARGET)
        try:
            policies.authorize(self.member, rule, TARGET)
        except exception.PolicyNotAuthorized:
            return
        raise AssertionError(f'{rule} is allowed to members')

    def ask_nova(self, _chance):
        nova_policy.authorize(self.member, 'os_compute_api:servers:show',
                              TARGET)

    def test_first_requests_under_native_threads_are_all_judged(self):
        for _round in range(5):
            policies.get_shared_policy_enforcer.cache_clear()
            self.assertEqual([], threads.stress(
                [self.ask] * 2 + [self.ask_nova] * 4, 20, fine=False))

    def test_enforcer_of_nova_gets_no_rule_of_ours(self):
        nova_policy.reset()
        nova_policy.init(suppress_deprecation_warnings=True)
        before = set(nova_policy.get_rules())
        policies.authorize(self.admin, policies.SET, TARGET)
        self.assertEqual(before, set(nova_policy.get_rules()))

    def test_enforcer_for_programs_knows_our_rules_and_those_of_nova(self):
        known = policies.get_enforcer().registered_rules
        self.assertIn(policies.MOVE, known)
        self.assertIn('os_compute_api:servers:show', known)
