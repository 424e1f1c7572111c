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

    def part(self, value, cpu_policy='dedicated', nodes=0, **specs):
        return policy.parse_policy(
            {'ghsched:cpu_cache': value, 'hw:cpu_policy': cpu_policy,
             **({'hw:numa_nodes': str(nodes)} if nodes else {}),
             **{f'ghsched:{name}': one for name, one in specs.items()}},
            nodes, 2).get_part(cache_part.CachePart)

    def test_only_require_needs_a_host_that_reports_its_caches(self):
        for value, capabilities in (('none', set()), ('prefer', set()),
                                    ('require', {'CPU_CACHE'})):
            self.assertEqual(capabilities,
                             self.part(value).get_needed_capabilities())

    @ddt.data('shared', '')
    def test_shared_vcpus_without_host_nodes_are_refused(self, cpu_policy):
        for value in ('prefer', 'require'):
            self.assertRaisesRegex(
                PolicyError, '^ghsched:cpu_cache: .*hw:cpu_policy.*'
                             'hw:numa_nodes', self.part, value, cpu_policy)
            self.assertEqual(cache_part.CachePart(value, is_shared=True),
                             self.part(value, cpu_policy, 1))
        self.assertEqual('', self.part('none', cpu_policy).wish)

    @base.needs_features('real_time')
    def test_shared_vcpus_with_reserved_time_are_refused(self):
        times = {'vcpu_runtime_us': '20000', 'vcpu_period_us': '100000'}
        for scheduler in ('fifo', 'rr', 'deadline'):
            self.assertRaisesRegex(
                PolicyError, '^ghsched:cpu_cache: .*ghsched:vcpu_scheduler',
                self.part, 'prefer', 'shared', 1, vcpu_scheduler=scheduler,
                **times)
        self.assertTrue(self.part('prefer', 'shared', 1,
                                  vcpu_scheduler='batch').is_shared)

    def test_mixed_guests_have_dedicated_cpus_too(self):
        self.assertEqual(cache_part.CachePart('prefer'),
                         self.part('prefer', 'mixed'))
