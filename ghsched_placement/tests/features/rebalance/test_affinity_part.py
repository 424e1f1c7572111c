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

from ghsched_placement.features.rebalance.affinity_part import AffinityPart
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base


class AffinityGroupTest(base.TestCase):

    def test_a_group_needs_no_numa_topology_and_no_control_group(self):
        found = policy.parse_policy({'ghsched:affinity_group': 'web-1.a'}, 0)
        self.assertEqual('web-1.a', found.get_part(AffinityPart).group)
        self.assertFalse(found.needs_control_group)
        self.assertEqual(frozenset(), found.get_needed_capabilities())

    def test_a_guest_without_the_key_has_no_group(self):
        found = policy.parse_policy({'ghsched:monitor': 'true'}, 0)
        self.assertEqual('', found.get_part(AffinityPart).group)
