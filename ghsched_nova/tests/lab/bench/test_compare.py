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

import math

import ddt
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.lab.bench import compare
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import record
from ghsched_nova.tests.fixtures import results
from ghsched_placement.tests import base

POSITIVE = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=12)
#: With ties.
LEVELS = st.lists(st.integers(0, 4), min_size=5, max_size=12)


def series(*values, better='lower', metric='latency'):
    return record.Series(metric, 'us', better, tuple(map(float, values)))


def report(*results):
    return record.Report(results)


def compared(first, second, **kinds):
    found, = compare.with_verdicts([compare.compare(
        series(*first, **kinds), series(*second, **kinds))])
    return found


class VerdictsTest(base.TestCase):

    def test_neither_is_better(self):
        found = compared(range(100, 110), range(200, 210), better='neither')
        self.assertEqual('95.7% more', found.verdict)

    def test_three_runs_show_nothing(self):
        found = compared([1, 2, 3], [100, 200, 300])
        self.assertEqual('n = 3 and 3 are too few to show a difference',
                         found.verdict)
        self.assertEqual(100.0, found.ratio)

    def test_five_runs_may(self):
        self.assertFalse(compare.too_few(5, 5))
        # The test could tell these, but 4 are too few for the interval.
        for few in ((4, 4), (4, 20), (20, 4)):
            self.assertTrue(compare.too_few(*few))
        found = compared([1, 2, 3, 4], [101, 102, 103, 104])
        self.assertIn('too few', found.verdict)
        self.assertEqual((None, None, None), (found.p, found.low, found.high))

    def test_median_of_zero_has_no_ratio(self):
        found = compared([0] * 9, range(1, 10))
        self.assertEqual((None, None), (found.ratio, found.low))
        self.assertEqual('no difference shown', found.verdict)

    @settings(max_examples=20)      # each draws 20000 samples again
    @given(POSITIVE, POSITIVE)
    def test_any_samples(self, first, second):
        found = compared(first, second)
        self.assertTrue(found.verdict)
        if found.low is not None:
            self.assertLessEqual(found.low, found.high)
        if found.p is not None:
            self.assertTrue(0 <= found.p <= 1)

    def test_same_input_same_output(self):
        args = range(100, 110), range(104, 114)
        self.assertEqual(compared(*args), compared(*args))

    def test_many_comparisons_need_more(self):
        one = compare.compare(series(1, 2, 3, 4, 5),
                              series(3.5, 5.5, 6, 7, 8))
        alone, = compare.with_verdicts([one])
        among = compare.with_verdicts([one] * 6)[0]
        self.assertNotEqual('no difference shown', alone.verdict)
        self.assertEqual('no difference shown', among.verdict)

    def test_too_few_for_so_many_comparisons(self):
        one = compare.compare(series(1, 2, 3, 4, 5),
                              series(10, 20, 30, 40, 50))
        self.assertEqual(['900.0% more: worse'] * 6, [
            found.verdict for found in compare.with_verdicts([one] * 6)])
        self.assertEqual(
            {'n = 5 and 5 are too few for 7 comparisons: take 6 or more'},
            {found.verdict for found in compare.with_verdicts([one] * 7)})

    def test_comparisons_for_which_so_many_runs_are_enough(self):
        # As in the manual.
        for tests, number in ((6, 5), (23, 6), (85, 7), (321, 8), (1215, 9)):
            self.assertEqual(
                (number, number + 1),
                (compare.enough(tests), compare.enough(tests + 1)))

    @given(st.integers(1, 10000))
    def test_the_number_of_samples_of_enough_is_not_too_few(self, tests):
        number = compare.enough(tests)
        self.assertFalse(compare.too_few(number, number, tests))
        self.assertTrue(compare.too_few(number - 1, number - 1, tests))


class PValueTest(base.TestCase):

    def test_one_tie(self):
        # 2 of the 252 ways to deal them lie as far apart, as without a tie.
        self.assertAlmostEqual(2 / 252, compare.p_value(
            [1, 2, 3, 3, 4], [5, 6, 7, 8, 9]))

    @settings(max_examples=50)
    @given(LEVELS, LEVELS)
    def test_is_never_below_the_least_there_can_be(self, first, second):
        found = compare.p_value(first, second)
        if found is not None:
            self.assertGreaterEqual(
                found, compare.least_p(len(first), len(second)))


class HolmTest(base.TestCase):

    def test_known_values(self):
        self.assertEqual([0.03, 0.06, 0.06],
                         [round(p, 9) for p in compare.holm(
                             [0.01, 0.03, 0.04])])

    @given(st.lists(st.floats(0, 1), max_size=20))
    def test_order_is_kept_and_nothing_gets_smaller(self, values):
        found = compare.holm(values)
        for before, after in zip(values, found, strict=True):
            self.assertTrue(before <= after <= 1 or math.isclose(
                before, after))
        order = sorted(range(len(values)), key=values.__getitem__)
        self.assertEqual(sorted(found), [found[place] for place in order])


@ddt.ddt
class PairsTest(base.TestCase):

    ONE = results.result(series(*range(10)))

    def pairs(self, other, *allowed):
        return compare.pairs(report(self.ONE), report(other),
                             ('host', 'guest'), allowed)

    @ddt.data(('cpus', {'cpus': 48}), ('kernel', {'kernel': '5.10'}),
              ('cpu-model', {'cpu_model': 'Other'}),
              ('mitigations', {'mitigations': (('meltdown', 'PTI'),)}),
              ('mitigations', {'mitigations': ()}))
    @ddt.unpack
    def test_unlike_pair_is_refused_unless_allowed(self, aspect, changes):
        other = results.result(series(*range(10)), **changes)
        error = self.assertRaises(errors.BenchError, self.pairs, other)
        self.assertIn(f'--allow {aspect}', str(error))
        pair, = self.pairs(other, aspect)
        self.assertEqual({aspect}, {d.aspect for d in pair.differences})

    def test_parameters_must_be_the_same(self):
        other = results.result(series(1.0), parameters=(
            ('runs', 9), ('mbw-size', 64)))
        error = self.assertRaises(errors.BenchError, self.pairs, other)
        self.assertIn('mbw-size', str(error))
        self.assertNotIn('runs', str(error))

    def test_nothing_in_common(self):
        for other in (results.result(scenario='other'),
                      results.result(status='skipped')):
            self.assertRaises(errors.BenchError, self.pairs, other)

    def test_metric_of_one_side_only(self):
        pair, = self.pairs(results.result(series(1.0, metric='other')))
        self.assertEqual((), pair.comparisons)
        self.assertEqual(('latency', 'other'), pair.alone)

    def test_checks_of_a_scenario_are_not_compared(self):
        one, other = (results.result(
            series(*range(8)), series(*more, metric='requests served'),
            scenario='redis-density') for more in (range(8), range(9, 17)))
        pair, = compare.pairs(report(one), report(other), ('a', 'b'))
        self.assertEqual(['latency'],
                         [found.title for found in pair.comparisons])
        self.assertEqual((), pair.alone)
