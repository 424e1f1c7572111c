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

"""Objects that nova-api shares among its native threads."""

from unittest import mock

from nova import context
from nova import exception
from nova import policy as nova_policy
from oslo_policy import policy

from ghsched_nova.api import policies
from ghsched_nova.nova_seams import shared
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

TARGET = {'project_id': 'p', 'user_id': 'u'}


class EnforcerStressTest(base.TestCase):
    """Nova's enforcer, to which the first request of ours adds rules."""

    def setUp(self):
        super().setUp()
        shared.config()([], project='nova', default_config_files=[],
                        default_config_dirs=[])
        self.addCleanup(nova_policy.reset)
        # As long as there are many rules to add, other requests go on.
        self.rules = [*policies.list_rules(), *(
            policy.RuleDefault(f'os_compute_api:ghsched:{number}', '@')
            for number in range(1000))]
        self.enterContext(mock.patch.object(
            policies, 'list_rules', return_value=self.rules))
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

    def test_rules_under_native_threads_are_added_once_and_hold(self):
        for _round in range(5):
            nova_policy.reset()
            nova_policy.init(suppress_deprecation_warnings=True)
            self.assertEqual([], threads.stress(
                [self.ask] * 2 + [self.ask_nova] * 4, 20, fine=False))
            self.assertLessEqual(
                {rule.name for rule in self.rules},
                set(nova_policy._ENFORCER.registered_rules))

    def test_rules_added_while_a_request_reads_them_leave_it_alone(self):
        nova_policy.reset()
        nova_policy.init(suppress_deprecation_warnings=True)
        reading = iter(nova_policy._ENFORCER.registered_rules.values())
        next(reading)
        policies.authorize(self.admin, policies.SET, TARGET)
        self.assertTrue(list(reading))
