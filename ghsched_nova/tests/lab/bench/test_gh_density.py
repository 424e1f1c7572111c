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

"""Conclusions of ``gh-density``; test_bench_redis runs it."""

from ghsched_nova.lab.bench import container_plan
from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import guest_containers
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import report
from ghsched_nova.lab.bench.scenarios import gh_density
from ghsched_placement.tests import base


def climbed(**latency):
    return density.Climb({}, density.judge(
        [density.Point(int(n[1:]), (p99,)) for n, p99 in latency.items()],
        1.1))


class CompareArmsTest(base.TestCase):

    def compare(self, **found):
        return [(one.name, one.text, one.value)
                for one in gh_density.compare_arms(found)]

    def test_ratio_of_densities_that_are_known(self):
        self.assertEqual(
            [('classes over none', '2.00 x as many containers: 2 over 1; '
              'p99 at N = 1: 0.50 x', 2.0)],
            self.compare(none=climbed(n1=4.0, n2=9.0),
                         classes=climbed(n1=2.0, n2=2.1, n3=5.0)))

    def test_density_of_an_arm_that_never_fails_is_a_least_one(self):
        (_name, text, value), = self.compare(
            none=climbed(n1=1.0, n2=9.0), keys=climbed(n1=1.0, n2=1.0))
        self.assertIn('at least 2.00 x as many containers: at least 2 over '
                      '1;', text)
        self.assertEqual(2.0, value)

    def test_first_arm_that_never_fails_gives_no_ratio(self):
        (_name, text, value), = self.compare(
            none=climbed(n1=1.0, n2=1.0), keys=climbed(n1=1.0, n2=9.0))
        self.assertIn('no ratio, as no N of none fails', text)
        self.assertIsNone(value)
        self.assertEqual([], gh_density.compare_arms({}))


class DescribeTest(base.TestCase):

    def test_place_of_the_observed_container_and_when_cpus_are_shared(self):
        observed, places = gh_density.describe_plan(
            container_plan.GuestSize(160, 1, 2))
        self.assertIn('server on vCPU 0, interrupts on vCPU 1', observed.text)
        self.assertEqual(160, places.value)
        self.assertIn('from N = 161 on', places.text)

    def test_containers_and_servers_are_named(self):
        facts = guest_containers.GuestFacts(
            (), 'python3', frozenset({0}), False, '', ())
        for engine, text in (
                ('docker', 'containers of docker with redis-server'),
                ('cgroup', 'control groups (no engine of containers) with a '
                           'stand-in for redis, which the guest does not '
                           'have')):
            self.assertEqual(text, gh_density.describe_guests(
                'bind', [(engine, facts)] * 2).text)

    def test_curve_has_a_column_for_each_arm(self):
        def series(arm, n, p99):
            return Series('p99 latency', 'ms', 'lower', (p99,),
                          (('arm', arm), ('N', n)))
        _heading, table = report.arms([
            series('none', '1', 2.0), series('none', '10', 3.0),
            series('keys', '1', 4.0), series('keys', '2', 4.4),
            Series('throughput', '', 'higher', (1.0,), (('arm', 'none'),
                                                        ('N', '1')))])
        self.assertEqual(('N', 'none', 'keys'), table.head)
        self.assertEqual((('1', '2 (1.00)', '4 (1.00)'),
                          ('2', '', '4.4 (1.10)'), ('10', '3 (1.50)', '')),
                         table.rows)
        self.assertEqual([], report.arms([]))
