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

"""Published results, recomputed from the raw figures beside them.

Each test names a claim of a published measurement and holds our arithmetic
against it. Where the claim is wrong, the test says what is right.
"""

import pathlib

import ddt

from ghsched_nova.lab.bench import compare
from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import document
from ghsched_nova.lab.bench.parsers import cyclictest
from ghsched_nova.lab.bench.parsers import unixbench
from ghsched_nova.lab.bench import record
from ghsched_nova.lab.bench import report
from ghsched_nova.lab.bench.scenarios import mixed_load
from ghsched_nova.lab.bench.scenarios import rt_latency
from ghsched_nova.lab.bench.scenarios import virt_overhead
from ghsched_nova.tests.fixtures import results
from ghsched_nova.tests.fixtures.results import reference
from ghsched_placement.tests import base


@ddt.ddt
class SchedulingPoliciesTest(base.TestCase):
    """20 runs each of cyclictest in a real-time guest, maxima in us."""

    SETTINGS = {'rr': ('rr', False), 'rr-mlock': ('rr', True),
                'fifo': ('fifo', False), 'fifo-mlock': ('fifo', True)}

    def series(self, name):
        threads = cyclictest.parse(reference(f'cyclictest-{name}.txt'))
        self.assertEqual(20, len(threads))
        return rt_latency.latencies(
            threads, rt_latency.conditions(*self.SETTINGS[name]), 0)[0]

    @ddt.data(('rr', 89), ('rr-mlock', 87), ('fifo', 101.5),
              ('fifo-mlock', 116.5))
    @ddt.unpack
    def test_median_of_maxima(self, name, median):
        found, = rt_latency.findings([self.series(name)], (100,))
        self.assertEqual(median, found.value)


@ddt.ddt
class VirtualisationOverheadTest(base.TestCase):

    def unixbench(self, side):
        run, = unixbench.parse(reference(f'unixbench-{side}.txt'))
        return run

    def results(self):
        return [record.Report((results.result(
            *virt_overhead.unixbench_series([self.unixbench(side)], 0),
            *virt_overhead.mbw_series(reference(f'mbw-{side}.txt'), 1),
            cpus=self.unixbench(side).cpus, mitigations=()),))
            for side in ('host', 'guest')]

    def test_unlike_machines_are_compared_when_that_is_wanted(self):
        pair, = compare.pairs(*self.results(), ('host', 'guest'),
                              ('cpus', 'mitigations'))
        self.assertEqual(['cpus', 'mitigations'],
                         [found.aspect for found in pair.differences])
        verdicts = {one.title: one.verdict for one in pair.comparisons}
        self.assertIn('too few', verdicts[
            'System Call Overhead, tool UnixBench, copies 1'])
        self.assertEqual('19.4% less: worse',
                         verdicts['memory copy MEMCPY, tool mbw'])
        # A copy by blocks stays in the cache, and so loses nothing. The
        # difference is real, and too small to matter.
        self.assertEqual('0.3% more: better',
                         verdicts['memory copy MCBLOCK, tool mbw'])


class MixedLoadTest(base.TestCase):

    def test_tasks_that_did_not_compete_show_no_priority(self):
        # 86.4 + 22.7 % is more than a CPU; by weight it were 88761 : 15.
        found = mixed_load.priority_ratio((-20, 86.4), (19, 22.7))
        self.assertIn('109.1 %', found.text)
        self.assertIn('they did not compete', found.text)
        self.assertIn('5917 is expected', found.text)


class DensityTest(base.TestCase):
    """p99 below 1.10 times that of one container alone."""

    def test_28_containers_are_a_failing_point(self):
        # "has degraded by more than 10 %": 28 is not the density.
        found = density.judge([density.Point(1, (1.0,)),
                               density.Point(28, (1.11,))], 1.1)
        self.assertEqual((1, 28), (found.last_passing, found.first_failing))
        self.assertIn('the 26 between were not measured', found.text)


class ExampleOfTheManualTest(base.TestCase):
    """Example results of the manual, compared with their samples and its text.
    """

    MANUAL = pathlib.Path(__file__).parents[4] / 'doc' / 'source' / 'planning'

    def setUp(self):
        super().setUp()
        if not self.MANUAL.is_dir():
            self.skipTest('the manual is not part of an installed package')
        self.report = record.from_json(
            (self.MANUAL / 'redis-density-example.json').read_text())

    def test_text(self):
        blocks = report.document(self.report)
        shown = (self.MANUAL / 'redis-density-example.inc').read_text()
        pictures = [line for line in shown.splitlines()
                    if line.startswith(('.. image:: ', '   :alt: '))]
        for line in pictures:
            shown = shown.replace(f'{line}\n', '')
        self.assertEqual(document.render(blocks, 'rst').split(),
                         shown.split())
        for line in pictures[::2]:
            self.assertTrue((self.MANUAL / line.split()[-1]).is_file())

    def test_description_of_it(self):
        series = {one.title: one for one in
                  self.report.results[0].measured.series}
        p99 = [series[f'p99 latency, N {n}'].samples for n in range(1, 5)]
        self.assertEqual(3, sum(one > max(p99[1]) for one in p99[0]))
        for more in p99[2:]:
            self.assertGreater(min(more), max(p99[0]))
        verdicts = [one.verdict for one in compare.with_verdicts([
            compare.compare(series['p99 latency, N 1'],
                            series[f'p99 latency, N {n}'])
            for n in (2, 3, 4)])]
        self.assertEqual('no difference shown', verdicts[0])
        self.assertIn('worse', verdicts[1])
        self.assertIn('worse', verdicts[2])
