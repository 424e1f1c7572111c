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

"""Latency by use: curves between their points, and beside what is published.
"""

import itertools
import json
from pathlib import Path
import random

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.planner import hostfile
from ghsched_nova.lab.contention import leave_one_out
from ghsched_nova.lab.contention import ranges
from ghsched_placement.features.density import curve
from ghsched_placement.features.density import queueing
from ghsched_placement.features.density import shipped
from ghsched_placement.tests import base

HOSTS = Path(__file__).parents[5] / 'etc' / 'ghsched' / 'hosts'
#: Figures of Mess-simulator (memory_curve) and Mess-Results of
#: github.com/bsc-mem, and of Intel Memory Latency Checker, up to the highest
#: bandwidth: GB/s and ns by part of writes.
PUBLISHED = json.loads(
    (Path(__file__).parent / 'mess.json').read_text(encoding='utf-8'))


class ShippedTest(base.TestCase):

    def test_each_names_its_source_and_is_held_to_it(self):
        self.assertEqual(set(PUBLISHED),
                         {path.stem for path in shipped.DIRECTORY.iterdir()})
        for name, known in PUBLISHED.items():
            found = shipped.load_shipped_curve(name)
            self.assertEqual('published', found.basis)
            self.assertRegex(found.source, 'Mess|Memory Latency Checker')
            for writes, points in known['published'].items():
                for bandwidth, latency in points:
                    with self.subTest(name, writes=writes, at=bandwidth):
                        mine = known['idle_ns'] * found.get_latency(
                            bandwidth / known['peak_gb'], float(writes))
                        self.assertLess(abs(mine / latency - 1), 0.05)

    def test_figures_of_the_review(self):
        for name, writes, expected in (
                ('mess-graviton3', 0.0, (1.02, 1.08, 1.18, 1.36)),
                ('mess-graviton3', 0.2, (1.05, 1.14, 1.36, 1.79)),
                ('mess-skylake', 0.22, (1.08, 1.18, 1.29, 1.83))):
            found = shipped.load_shipped_curve(name)
            for utilisation, latency in zip((0.1, 0.3, 0.5, 0.7), expected,
                                            strict=True):
                self.assertLess(abs(found.get_latency(utilisation, writes)
                                    / latency - 1), 0.05)


@st.composite
def curves(draw):
    lines = []
    for writes in draw(st.sets(st.sampled_from([0, 0.2, 0.5, 1]),
                               min_size=1)):
        places = sorted(draw(st.sets(st.integers(1, 100), min_size=1)))
        heights = sorted(draw(st.lists(st.floats(1, 9), min_size=len(places),
                                       max_size=len(places))))
        lines.append({'writes': writes, 'latency': [[0, 1], *(
            [place / 100, height] for place, height
            in zip(places, heights, strict=True))]})
    return curve.LatencyCurve.from_mapping(
        {'basis': 'assumed', 'source': 'a test', 'points': lines})


class LatencyTest(base.TestCase):

    @given(curves(), st.floats(0, 1))
    def test_more_use_never_makes_it_shorter(self, found, writes):
        latencies = [
            found.get_latency(part / 20, writes) for part in range(21)]
        self.assertAlmostEqual(1.0, latencies[0])
        for low, high in itertools.pairwise(latencies):
            self.assertLessEqual(low, high + 1e-9)

    @given(curves(), st.floats(0, 1))
    def test_the_queue_waits_as_long_as_the_curve_says(self, found, busy):
        same = queueing.get_equivalent_queue_utilisation(busy, found)
        self.assertAlmostEqual(found.get_latency(busy), 1 / (1 - same), 6)

    def test_without_a_curve_it_is_the_queue(self):
        self.assertEqual(0.4,
                         queueing.get_equivalent_queue_utilisation(0.4, None))
        self.assertEqual(
            queueing.BUSIEST,
            queueing.get_equivalent_queue_utilisation(1.0, None))

    def test_between_parts_of_writes(self):
        found = shipped.load_shipped_curve('mess-graviton3')
        low, middle, high = (found.get_latency(0.7, writes)
                             for writes in (0.0, 0.1, 0.2))
        self.assertAlmostEqual((low + high) / 2, middle)
        self.assertEqual(
            found.get_latency(0.7, 0.42), found.get_latency(0.7, 0.9))


class DeliverableTest(base.TestCase):

    def test_deliverable_is_where_each_line_ends(self):
        found = shipped.load_shipped_curve('mess-graviton3')
        self.assertEqual([0.889, 0.828, 0.785, 0.785],
                         [found.get_max_utilisation(writes)
                          for writes in (0.0, 0.2, 0.42, 0.9)])
        self.assertAlmostEqual((0.889 + 0.828) / 2,
                               found.get_max_utilisation(0.1))
        skylake = shipped.load_shipped_curve('mess-skylake')
        self.assertEqual(0.785, skylake.get_max_utilisation(0.0))


class LeaveOneOutTest(base.TestCase):
    """Measured machines that others predict; no figure is the model's."""

    def test_prediction_is_the_median_of_the_other_machines(self):
        def line(*heights):
            return curve.LatencyCurve.from_mapping({
                'basis': 'measured', 'source': 'a test', 'points': [
                    {'writes': 0, 'latency': [[0, 1], *heights]}]})
        found = leave_one_out.predict_latency_from_other_machines({
            'a': line([0.25, 3]), 'b': line([1, 2]), 'c': line([1, 4]),
            'd': line([0.05, 9])}, 0)
        self.assertEqual([0.1, 0.2], [one.utilisation for one in found['a']])
        one = found['a'][0]
        self.assertAlmostEqual(1.8, one.measured)
        self.assertAlmostEqual((1.1 + 1.3) / 2, one.predicted)
        self.assertAlmostEqual((1.1, 1.3), (one.low, one.high))
        self.assertFalse(one.is_in_range_of_others)
        self.assertAlmostEqual(1.2 / 1.8 - 1, one.error)
        self.assertTrue(found['c'][0].is_in_range_of_others)
        self.assertEqual((), found['d'])

    def test_six_machines_are_predicted_within_ten_percent(self):
        found = leave_one_out.predict_latency_from_other_machines({
            path.stem: shipped.load_shipped_curve(path.stem)
            for path in shipped.DIRECTORY.iterdir()})
        near = {name for name, ones in found.items()
                if all(abs(one.error) <= 0.10 for one in ones)}
        self.assertLessEqual({
            'mess-a64fx', 'mess-graviton3', 'mess-skylake',
            'mess-xeon-8460y', 'mess-xeon-8480'}, near)
        self.assertGreaterEqual(len(near), 6, near)
        for name in near:
            self.assertGreaterEqual(len(found[name]), 5)

    def test_a_steep_machine_is_covered_at_low_use(self):
        # 1.09 at 6.8 % of the bandwidth, which no Mess curve has.
        steep = shipped.load_shipped_curve('mlc-xeon-4110')
        self.assertLess(abs(steep.get_latency(0.068, 0) / 1.09 - 1), 0.01)
        self.assertLess(
            max(
                shipped.load_shipped_curve(path.stem).get_latency(0.068)
                for path in shipped.DIRECTORY.iterdir()
                if path.stem.startswith('mess')), 1.07)


class RefusalTest(base.TestCase):

    def refused(self, **changed):
        good = {'basis': 'measured', 'source': 'here', 'points': [
            {'writes': 0, 'latency': [[0, 1], [1, 2]]}]}
        curve.LatencyCurve.from_mapping(good)
        with self.assertRaises(curve.CurveError) as caught:
            curve.LatencyCurve.from_mapping(good | changed)
        return str(caught.exception)

    def test_invalid_curves(self):
        self.assertIn('basis', self.refused(basis='dreamt'))
        self.assertIn('source', self.refused(source=' '))
        self.assertIn('points', self.refused(points=[]))
        for latency, reason in (
                ([[0, 1]], 'two pairs'), ([[0, 2], [1, 3]], 'begin with'),
                ([[0, 1], [2, 3]], 'ascend'), ([[0, 1], [1, 0.5]], 'ascend'),
                ([[0, 1], [1]], 'not a pair'),
                ([[0, 1], ['x', 2]], 'not a number')):
            self.assertIn(reason, self.refused(points=[
                {'writes': 0, 'latency': latency}]))
        self.assertIn('twice', self.refused(points=[
            {'writes': 0, 'latency': [[0, 1], [1, 2]]}] * 2))


class RangesTest(base.TestCase):

    def test_a_draw_is_in_its_ranges_and_says_the_same_again(self):
        machine = hostfile.load_host_file(
            str(HOSTS / 'kunpeng920.yaml')).contention
        choices = [None, shipped.load_shipped_curve('mess-skylake')]
        one, again = (
            ranges.draw_random_machine(
                machine, random.Random(3), choices)  # noqa: S311
            for _time in range(2))
        self.assertNotEqual(machine['capacity_mb'], one['capacity_mb'])
        for name, (low, high) in ranges.RANGES.items():
            self.assertTrue(low <= one[name] <= high)
        self.assertIn(one.curve, choices)
        self.assertEqual(one, again)
        found = ranges.predict_random_densities(
            machine, choices, 1, baselines=['static'])
        self.assertIn(found.fraction_at_goal, (0.0, 1.0))
        self.assertLessEqual(found.densities[0], found.by_latency[0])

    def test_nearest_rank(self):
        self.assertEqual([1, 2, 3], [ranges.get_percentile([1, 2, 3], percent)
                                     for percent in (5, 50, 95)])
