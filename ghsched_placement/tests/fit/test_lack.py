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


from ghsched_placement.fit import lack
from ghsched_placement.tests import base


class FiltersTest(base.TestCase):

    def find(self, *filtered, hosts=3, ours=()):
        return str(*lack.explain_filtered_hosts(
            [lack.FilterResult(*one) for one in filtered], hosts,
            {'Ours': ours}))

    def test_each_that_removed_hosts_is_named_with_the_count(self):
        self.assertEqual(
            "of 3 hosts with room in Placement, nova-scheduler's "
            'ComputeFilter removed 2, NUMATopologyFilter removed 1; '
            'nova-compute of these hosts is down or disabled: see openstack '
            'compute service list',
            self.find(('AllHosts', 3, 3), ('ComputeFilter', 3, 1),
                      ('NUMATopologyFilter', 1, 0)))

    def test_the_reason_of_a_filter_of_ours_and_its_detail(self):
        text = self.find(('Ours', 1, 0), ours=[lack.Lack(
            None, 'CPUs', reason='no CPUs', detail='on node 0')])
        self.assertIn('of 1 host with room in', text)
        self.assertIn('Ours removed 1: no CPUs; on node 0', text)

    def test_a_lost_race_is_none_of_the_filters(self):
        # The others may be of the same request.
        self.assertIn('other guests took the last hosts at the same time',
                      self.find(('Ours', 3, 1)))

    def test_hosts_that_no_filter_saw(self):
        self.assertIn('room on 3 hosts, which the request excludes',
                      self.find())


class GatheredTest(base.TestCase):

    def test_lines_of_hosts_refused_for_one_reason_are_one(self):
        gathered = lack.GroupedReasons()
        for host in ('a', 'b', 'c'):
            gathered.add_reason(host, lack.Lack(None, 'x', reason='too full'))
        gathered.add_reason('d', lack.Lack(None, 'x', reason='no topology'))
        self.assertEqual(
            ['f refused on 3 hosts (a, b, c): too full',
             'f refused on 1 host (d): no topology'],
            gathered.format_log_lines('f'))

    def test_lines_of_a_thousand_hosts_are_short(self):
        gathered = lack.GroupedReasons()
        for number in range(1000):
            gathered.add_reason(f'host{number}',
                                lack.Lack(None, 'x', reason='too full'))
        (line,) = gathered.format_log_lines('f')
        self.assertIn('1000 hosts', line)
        self.assertIn('and 995 more', line)
        self.assertLess(len(line), 160)
