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

import statistics

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.bench import stats
from ghsched_placement.tests import base

SAMPLES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


class QuantilesTest(base.TestCase):

    @given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=50))
    def test_quartiles_are_those_of_the_standard_library(self, samples):
        expected = statistics.quantiles(samples, n=4, method='inclusive')
        for share, value in zip((0.25, 0.5, 0.75), expected, strict=True):
            self.assertAlmostEqual(
                value, stats.quantile(samples, share), places=3)

    @given(SAMPLES)
    def test_median_is_that_of_the_standard_library(self, samples):
        self.assertAlmostEqual(statistics.median(samples),
                               stats.quantile(samples, 0.5), places=3)

    def test_percentiles_that_n_allows(self):
        def percents(n):
            return [p for p, _value in stats.distribution(
                range(n)).percentiles]
        self.assertEqual([], percents(9))
        self.assertEqual([90.0], percents(10))
        self.assertEqual([90.0, 95.0], percents(20))
        self.assertEqual([90.0, 95.0, 99.0], percents(100))
        self.assertEqual([90.0, 95.0, 99.0, 99.9], percents(1000))

    def test_no_samples(self):
        self.assertRaises(ValueError, stats.distribution, [])

    def test_one_sample_has_no_deviation(self):
        self.assertIsNone(stats.distribution([3.0]).deviation)


class LoadTest(base.TestCase):

    @given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
    def test_balance_is_a_share(self, loads):
        self.assertTrue(1 / len(loads) - 1e-9 <= stats.balance(loads)
                        <= 1 + 1e-9)

    def test_all_on_one_of_four(self):
        self.assertEqual(0.25, stats.balance([80, 0, 0, 0]))

    def test_no_load_is_balanced(self):
        self.assertEqual(1.0, stats.balance([0, 0]))

    def test_spread_is_of_all_there_is(self):
        self.assertEqual(10.0, stats.spread([70, 90]))

    def test_below_is_strict(self):
        self.assertEqual(1, stats.below([99, 100, 101], 100))

    def test_gain_is_a_negative_overhead(self):
        self.assertEqual(-0.5, stats.overhead(10, 15))
