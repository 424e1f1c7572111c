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


import collections
import itertools
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.bursts import burst
from ghsched_placement.features.bursts import burst_projects
from ghsched_placement.tests import base

WINDOW = 24
POOL = 60
LIMITS = burst.BurstLimits(window=WINDOW)

shares = st.lists(st.builds(
    burst.GuestBurst, st.integers(1, 60), st.floats(0, 90),
    st.sampled_from(['', 'a', 'b', 'c', 'd'])), max_size=8)
periods = st.lists(st.tuples(st.integers(0, 3), shares), min_size=1,
                   max_size=12)


def measured(rows, per_hour=1, window=WINDOW):
    """Uses after periods in which guests had such shares."""
    uses = burst_projects.BurstUseByProject()
    for number, row in enumerate(rows):
        uses = burst_projects.add_period_by_project(uses, number // per_hour,
                                                    row, window)
    return uses


def steady(hours=WINDOW, **parts):
    """Uses of projects with one guest of 20 %, each at a steady part."""
    return measured([[burst.GuestBurst(20, 20 * part, project)
                      for project, part in parts.items()]] * hours)


class Service:
    """Replicas of one service: idle, or busy all at once, for long times."""

    def __init__(self, dice, duty):
        self.dice, self.duty = dice, duty
        self.level, self.left = 0.0, 0

    def step(self):
        """Part of its burst that each replica uses in one period."""
        if not self.left:
            self.left = min(288, math.ceil(6 * self.dice.paretovariate(1.3)))
            self.level = (self.dice.uniform(.5, 1)
                          if self.dice.random() < self.duty else 0.0)
        self.left -= 1
        return self.level


def short(services, limits, seed, filling=8, days=4, per_hour=4):
    """Part of the periods in which guests that filled a node are short.

    Guests of 6 % each come in random order as soon as they are admitted.
    """
    dice = random.Random(seed)  # noqa: S311
    loads = [Service(dice, .15) for _ in range(services)]
    order = [number % services for number in range(30)]
    dice.shuffle(order)
    hours, lowest, uses = (), (), burst_projects.BurstUseByProject()
    guests, lacking = POOL // 6, 0
    for number in range((filling + days) * 24 * per_hour):
        hour, levels = number // per_hour, [load.step() for load in loads]
        row = [burst.GuestBurst(6, 6 * levels[owner], str(owner))
               for owner in order[:guests]]
        if hour < filling * 24:
            uses = burst_projects.add_period_by_project(uses, hour, row,
                                                        WINDOW)
            hours = burst.add_period_to_burst_hours(
                hours, burst.make_hour_from_period(hour, row, POOL, False),
                WINDOW)
            if number % per_hour == per_hour - 1:
                allowed = min(
                    burst.compute_burst_limit(hours, POOL, limits),
                    burst_projects.compute_limit_by_project_use(uses, POOL,
                                                                limits))
                lowest = burst.add_limit_to_hourly_minima(
                    lowest, hour, allowed, WINDOW)
                guests = max(guests, min(least for _, least in lowest) // 6)
        else:
            lacking += sum(share.used for share in row) > POOL
    return lacking / (days * 24 * per_hour)


class AdvanceTest(base.TestCase):

    @given(periods)
    def test_sums_weighted_periods_of_all_projects(self, steps):
        uses, hour = burst_projects.BurstUseByProject(), 0
        seen = []
        for later, row in steps:
            hour += later
            uses = burst_projects.add_period_by_project(uses, hour, row,
                                                        WINDOW)
            seen.append((hour, row))
        weights = [math.exp((when - hour) / WINDOW) for when, _ in seen]
        self.assertAlmostEqual(sum(weights), uses.periods)
        last = collections.Counter()
        for share in seen[-1][1]:
            last[share.project] += share.promised
        for use in uses.projects:
            for name, figure in (('promised_sum', lambda one: one.promised),
                                 ('used_sum', lambda one: min(
                                     one.promised, one.used))):
                self.assertAlmostEqual(sum(
                    weight * figure(share) for weight, (_, row)
                    in zip(weights, seen, strict=True)
                    for share in row if share.project == use.project),
                    getattr(use, name))
            self.assertEqual(last[use.project], use.promised)
        self.assertEqual(sum(last.values()), uses.total_promised)
        self.assertEqual(max(last.values(), default=0), uses.largest_promised)

    def test_project_without_guests_is_forgotten(self):
        uses = steady(a=.5, b=.5)
        for hour in itertools.count(WINDOW):
            uses = burst_projects.add_period_by_project(
                uses, hour, [burst.GuestBurst(20, 10.0, 'a')], WINDOW)
            if hour == 2 * WINDOW:
                self.assertEqual([20, 0], [use.promised
                                           for use in uses.projects])
            if len(uses.projects) == 1:
                break
        self.assertEqual('a', uses.projects[0].project)

    def test_number_and_names_of_projects_are_bounded(self):
        uses = burst_projects.BurstUseByProject()
        for hour in range(2):
            uses = burst_projects.add_period_by_project(uses, hour, [
                burst.GuestBurst(5, 1.0, f'{hour}-{number}' + 'x' * 999)
                for number in range(burst_projects.MAX_PROJECTS)], WINDOW)
        self.assertEqual(burst_projects.MAX_PROJECTS, len(uses.projects))
        self.assertEqual({5}, {use.promised for use in uses.projects})
        self.assertLess(max(len(use.project) for use in uses.projects), 99)


class AllowedTest(base.TestCase):

    @given(periods, st.integers(0, 100), st.floats(1, 5))
    def test_allowed_is_between_pool_and_ratio(self, steps, pool, ratio):
        uses, hour = burst_projects.BurstUseByProject(), 0
        for later, row in steps:
            hour += later
            uses = burst_projects.add_period_by_project(uses, hour, row, 2)
        found = burst_projects.compute_limit_by_project_use(
            uses, pool, burst.BurstLimits(window=2, ratio=ratio))
        self.assertTrue(pool <= found <= math.floor(pool * ratio))

    def test_guests_with_nothing_in_common_have_no_limit_by_project(self):
        self.assertEqual(3 * POOL,
                         burst_projects.compute_limit_by_project_use(
                             steady(a=1), POOL,
                             burst.BurstLimits(correlation=0)))

    def test_projects_measured_for_less_than_a_window_promise_nothing(self):
        for hours, more in ((WINDOW - 2, False), (WINDOW, True)):
            self.assertEqual(
                more, burst_projects.compute_limit_by_project_use(steady(
                    hours, a=0, b=0), POOL, LIMITS) > POOL)

    def test_project_that_has_just_come_counts_as_busy(self):
        idle = [burst.GuestBurst(20, 0.0, project) for project in 'abcd']
        old = measured([idle] * WINDOW)
        new = burst_projects.add_period_by_project(old, WINDOW, [
            *idle[:3], burst.GuestBurst(20, 0.0, 'new')], WINDOW)
        self.assertLess(
            burst_projects.compute_limit_by_project_use(new, POOL, LIMITS),
            burst_projects.compute_limit_by_project_use(
                old, POOL, LIMITS))

    def test_of_three_projects_two_are_busy_at_once(self):
        # 40 of 60 in use where the pool is 60: half as much again.
        self.assertEqual(90, burst_projects.compute_limit_by_project_use(
            steady(a=0, b=0, c=0), POOL, LIMITS))

    @given(st.lists(st.sampled_from([0.0, .1, .3, .6]), min_size=2,
                    max_size=8), st.sampled_from([.05, .2]))
    def test_busier_projects_are_never_promised_more(self, parts, more):
        names = 'abcdefgh'
        calm, busy = (
            burst_projects.compute_limit_by_project_use(steady(**dict(zip(
                names, found, strict=False))), POOL, LIMITS) for found in (
                parts, [part + more for part in parts]))
        self.assertLessEqual(busy, calm)

    def test_unsteady_projects_are_promised_less(self):
        def row(number):
            return [burst.GuestBurst(20, 20.0 * (number % 5 == place), name)
                    for place, name in enumerate('ab')]
        unsteady = measured([row(number) for number in range(WINDOW)])
        self.assertLess(
            burst_projects.compute_limit_by_project_use(unsteady, POOL,
                                                        LIMITS),
            burst_projects.compute_limit_by_project_use(steady(a=.2, b=.2),
                                                        POOL, LIMITS))

    def test_replicas_of_few_services_are_short_as_seldom_as_promised(self):
        for services in (1, 2, 3, 6):
            found = [short(services, burst.BurstLimits(), seed)
                     for seed in range(6)]
            self.assertLessEqual(sum(found) / len(found), .01, services)
            self.assertLessEqual(max(found), .05, services)

    def test_replicas_are_short_without_the_limit_by_project(self):
        unlimited = burst.BurstLimits(correlation=0)
        self.assertGreater(max(short(1, unlimited, seed)
                               for seed in range(4)), .05)
