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

"""Part of a policy about the L3 caches of CPUs."""

import ddt

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features.cpu_cache import cache_part
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base


@ddt.ddt
class CachePartTest(base.TestCase):

    def part(self, value, cpu_policy='dedicated'):
        return policy.parse_policy(
            {'ghsched:cpu_cache': value, 'hw:cpu_policy': cpu_policy},
            0).get_part(cache_part.CachePart)

    def test_only_require_needs_a_host_that_reports_its_caches(self):
        for value, capabilities in (('none', set()), ('prefer', set()),
                                    ('require', {'CPU_CACHE'})):
            self.assertEqual(capabilities,
                             self.part(value).get_needed_capabilities())

    @ddt.data('shared', '')
    def test_vcpus_without_cpus_of_their_own_are_refused(self, cpu_policy):
        for value in ('prefer', 'require'):
            self.assertRaisesRegex(
                PolicyError, '^ghsched:cpu_cache: .*set hw:cpu_policy',
                self.part, value, cpu_policy)
        self.assertEqual('', self.part('none', cpu_policy).wish)

    def test_mixed_guests_have_dedicated_cpus_too(self):
        self.assertEqual('prefer', self.part('prefer', 'mixed').wish)
