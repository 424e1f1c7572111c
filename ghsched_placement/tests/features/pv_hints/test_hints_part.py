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

"""Part of a policy with hints about vCPUs."""

import ddt

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features.pv_hints import hints_part
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

FLAVOR = {'ghsched:pv_hints': 'dedicated', 'hw:cpu_policy': 'dedicated',
          'hw:emulator_threads_policy': 'isolate'}


@ddt.ddt
class HintsPartTest(base.TestCase):

    def part(self, **more):
        return policy.parse_policy(
            {**FLAVOR, **more}, 0).get_part(hints_part.HintsPart)

    def test_flavor_without_hints_needs_no_capability(self):
        for value in ('none', None):
            specs = {'ghsched:pv_hints': value} if value else {
                'ghsched:monitor': 'true'}
            part = policy.parse_policy(specs, 0).get_part(
                hints_part.HintsPart)
            self.assertFalse(part.is_dedicated)
            self.assertEqual(frozenset(), part.get_needed_capabilities())

    def test_hints_need_a_host_whose_kvm_has_them(self):
        self.assertTrue(self.part().is_dedicated)
        self.assertEqual({'PV_HINTS'}, self.part().get_needed_capabilities())

    @ddt.data(
        ({'hw:cpu_policy': 'shared'}, 'set hw:cpu_policy=dedicated'),
        ({'hw:cpu_policy': 'mixed'}, 'set hw:cpu_policy=dedicated'),
        ({'hw:emulator_threads_policy': ''},
         'set hw:emulator_threads_policy=share or isolate'),
        ({'ghsched:vcpu_scheduler': 'deadline',
          'ghsched:vcpu_runtime_us': '500',
          'ghsched:vcpu_period_us': '1000'}, 'vcpu_scheduler=deadline.*stall'),
        ({'hide_hypervisor_id': 'true'}, 'with hide_hypervisor_id, which'),
        ({'hw:hide_hypervisor_id': '1'}, 'with hw:hide_hypervisor_id, which'),
    )
    @ddt.unpack
    def test_hints_that_would_be_untrue_or_unseen_are_refused(self, more,
                                                              text):
        self.assertRaisesRegex(PolicyError, f'^ghsched:pv_hints: .*{text}',
                               self.part, **more)

    @base.needs_features('real_time')
    def test_hints_go_with_other_classes_and_a_visible_hypervisor(self):
        for more in ({'ghsched:vcpu_scheduler': 'fifo'},
                     {'hide_hypervisor_id': 'false'}):
            self.assertTrue(self.part(**more).is_dedicated)

    def test_emulator_on_shared_cpus_is_a_warning(self):
        for emulator, count in (('share', 1), ('isolate', 0)):
            specs = {**FLAVOR, 'hw:emulator_threads_policy': emulator}
            found = list(self.part(**specs).find_flavor_warnings(specs))
            self.assertEqual(count, len(found))
            for text in found:
                self.assertRegex(text, 'pv_hints=dedicated with .*share: hosts'
                                       r' without \[compute]cpu_shared_set')
        self.assertEqual([], list(hints_part.HintsPart().find_flavor_warnings(
            {'hw:emulator_threads_policy': 'share'})))
