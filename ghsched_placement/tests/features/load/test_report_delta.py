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

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.load import load
from ghsched_placement.features.load import report_delta
from ghsched_placement.tests import base


def measure(when, busy=0.5, **values):
    return load.HostLoad(when, 60., (load.HostNodeLoad(
        0, cpus=4, vcpus=2, memory=8, cpu_load=busy, bottlenecks=(),
        **values),))


class LoadReportTest(base.TestCase):

    def choose(self, *measured, max_age=1200):
        """Return the times of the records that a host reports."""
        last, found = None, []
        for one in measured:
            last = report_delta.choose_load_report(last, one, max_age)
            found.append(last.time)
        return found

    def test_load_after_a_small_change_is_repeated(self):
        self.assertEqual([0, 0, 0], self.choose(
            measure(0), measure(60, 0.54), measure(120, 0.46)))

    def test_load_after_small_changes_that_add_up_is_reported(self):
        self.assertEqual([0, 0, 120], self.choose(
            measure(0), measure(60, 0.54), measure(120, 0.58)))

    def test_load_with_any_other_change_is_reported(self):
        for values in ({'io_wait': 1.}, {'bottlenecks': ('cpu_load',)},
                       {'vcpus': 3}, {'cpu_load': None}, {'node': 1},
                       {'cpus': 3}, {'memory': 9}, {'memory_wait': 0.}):
            changed = dataclasses.replace(measure(60), nodes=(
                dataclasses.replace(measure(60).nodes[0], **values),))
            self.assertEqual([0, 60], self.choose(measure(0), changed),
                             values)
        self.assertEqual([0, 60], self.choose(
            measure(0), dataclasses.replace(measure(60), nodes=())))

    def test_load_with_a_slightly_longer_queue_is_repeated(self):
        self.assertEqual([0, 0, 120], self.choose(
            measure(0, io_wait=2.), measure(60, io_wait=2.4),
            measure(120, io_wait=2.6)))

    def test_unchanged_load_is_renewed_within_its_maximum_age(self):
        for interval, max_age, renewed in (
                (60, 180, 120), (60, 130, 120), (60, 120, 60), (60, 90, 60),
                (120, 180, 120), (10, 180, 90), (300, 180, 300)):
            times = self.choose(*map(measure, range(0, 1801, interval)),
                                max_age=max_age)
            self.assertEqual(set(range(0, 1801, renewed)), set(times),
                             (interval, max_age))

    def test_load_of_a_clock_that_was_set_back_is_reported(self):
        self.assertEqual([100, 40], self.choose(measure(100), measure(40)))

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
    def test_reported_load_is_near_the_measured_load(self, busy):
        last = None
        for number, one in enumerate(busy):
            last = report_delta.choose_load_report(
                last, measure(60. * number, one), 900)
            self.assertAlmostEqual(last.nodes[0].cpu_load, one, delta=0.05)
