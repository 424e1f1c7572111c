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

import random

from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.bursts import burst
from ghsched_placement.tests import base

WINDOW = 24
LIMITS = burst.BurstLimits(window=WINDOW, correlation=0.0, safety=1.0)

shares = st.lists(st.builds(
    burst.GuestBurst, st.integers(1, 100), st.floats(0, 150)), max_size=8)

measurements = st.builds(
    burst.BurstUse, st.floats(1, 300), st.floats(0, 1), st.floats(0, .25),
    st.floats(0, 1), st.floats(1, 60))


def seen(rows, promised=10, pool=80, per_hour=60):
    """Hours in which equal guests used such parts of what they have."""
    hours = ()
    for number, row in enumerate(rows):
        hours = burst.add_period_to_burst_hours(
            hours, burst.make_hour_from_period(
                number // per_hour,
                [burst.GuestBurst(promised, promised * part) for part in row],
                pool, False), WINDOW)
    return hours


def coins(guests, duty, common, periods, seed=1):
    """Guests that are idle or busy, some of the time all alike."""
    dice = random.Random(seed)  # noqa: S311
    for _ in range(periods):
        together = dice.random() < duty
        yield [together if dice.random() < common else dice.random() < duty
               for _ in range(guests)]


class BetaTest(base.TestCase):

    @given(st.floats(.01, 200), st.floats(1e-6, 1 - 1e-6))
    def test_where_there_is_a_closed_form(self, shape, value):
        self.assertAlmostEqual(value ** shape, burst._compute_incomplete_beta(
            shape, 1, value), places=9)
        self.assertAlmostEqual(1 - (1 - value) ** shape,
                               burst._compute_incomplete_beta(
            1, shape, value), places=9)

    @given(st.floats(.01, 100), st.floats(.01, 100), st.floats(.01, .99))
    def test_both_sides_make_one(self, a, b, value):
        self.assertAlmostEqual(1, burst._compute_incomplete_beta(a, b, value)
                               + burst._compute_incomplete_beta(b, a,
                                                                1 - value),
                               places=9)

    def test_a_guest_that_is_idle_or_busy_has_two_points(self):
        for duty in (.05, .2, .7):
            self.assertAlmostEqual(duty, burst._compute_beta_tail(
                duty, duty * (1 - duty), .5))


class PeriodTest(base.TestCase):

    @given(shares, st.floats(0, 100), st.booleans())
    def test_no_guest_uses_more_of_its_burst_than_all(self, some, pool, full):
        found = burst.make_hour_from_period(7, some, pool, full)
        self.assertEqual(int(bool(some)), found.periods)
        self.assertTrue(0 <= found.mean <= 1 and 0 <= found.own <= 1 + 1e-9)
        self.assertLessEqual(found.square, found.own + 1e-9)
        self.assertLessEqual(found.guests, len(some) + 1e-9)
        self.assertLessEqual(found.short, found.over)

    def test_it_is_short_when_the_node_is_full_and_some_have_less(self):
        some = [burst.GuestBurst(30, 30.0), burst.GuestBurst(30, 10.0)]
        for pool, full, expected in ((40, True, (1, 1)), (40, False, (1, 0)),
                                     (41, True, (0, 0))):
            found = burst.make_hour_from_period(0, some, pool, full)
            self.assertEqual(expected, (found.over, found.short))


class AllowedTest(base.TestCase):

    def test_guests_that_are_always_busy_are_promised_nothing_twice(self):
        self.assertEqual(80, burst.compute_burst_limit(
            seen([[1] * 8] * 60 * WINDOW), 80, LIMITS))

    def test_steady_guests_count_as_what_they_use(self):
        allowed = burst.compute_burst_limit(seen([[.5] * 8] * 60 * WINDOW), 80,
                                            LIMITS)
        self.assertEqual(120, allowed)

    def test_few_say_little_of_many(self):
        self.assertEqual(80, burst.compute_burst_limit(
            seen([[0, 0]] * 60 * WINDOW), 80, LIMITS))

    def test_who_are_busy_together_are_promised_less(self):
        apart, together = (burst.compute_burst_limit(
            seen(coins(8, .2, common, 60 * WINDOW)), 80, LIMITS)
            for common in (0, .6))
        self.assertLess(together, apart)

    def test_guests_that_fill_it_are_short_no_more_often_than_allowed(self):
        for duty in (.05, .1, .2, .3):
            guests = burst.compute_burst_limit(seen(
                coins(16, duty, 0, 60 * WINDOW)), 80, LIMITS) // 10
            short = [10 * sum(row) > 80 for row
                     in coins(guests, duty, 0, 40000, seed=2)]
            self.assertLessEqual(sum(short) / len(short), .01, duty)

    @given(measurements, st.integers(1, 100),
           st.floats(1, 4), st.floats(50, 99.9))
    def test_more_caution_never_allows_more(self, found, pool, safety, most):
        assume(found.variance <= found.mean * (1 - found.mean))
        for limits, bolder in (
                (burst.BurstLimits(safety=safety),
                 burst.BurstLimits(safety=1)),
                (burst.BurstLimits(percentile=99.9), burst.BurstLimits(
                    percentile=most))):
            chances = [burst.estimate_shortage_probability(found, promised,
                                                           pool, one)
                       for one in (limits, bolder)
                       for promised in (pool, pool + 1, 2 * pool)]
            self.assertTrue(all(0 <= one <= 1 for one in chances))
            self.assertEqual(0, chances[0])

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 300)),
                    min_size=1).map(sorted), st.integers(1, 4))
    def test_the_least_of_each_hour_of_a_window(self, periods, window):
        lowest = ()
        for hour, allowed in periods:
            lowest = burst.add_limit_to_hourly_minima(lowest, hour, allowed,
                                                      window)
        last = periods[-1][0]
        self.assertEqual(
            {hour: min(allowed for of, allowed in periods if of == hour)
             for hour, _ in periods if hour > last - window}, dict(lowest))
        self.assertEqual(sorted(lowest), list(lowest))

    @given(st.integers(0, 300), st.integers(0, 300))
    def test_less_at_once_and_more_only_when_clearly_more(self, before, now):
        found = burst.smooth_burst_offer(before, now)
        self.assertIn(found, (before, now))
        self.assertLessEqual(found, now)
        self.assertEqual(found, burst.smooth_burst_offer(found, now))
