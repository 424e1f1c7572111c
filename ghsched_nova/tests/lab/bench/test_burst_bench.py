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

"""The guests of the simulation of bursts."""

import importlib
from pathlib import Path
import random
import statistics
import sys
from unittest import mock

import fixtures

from ghsched_placement.tests import base

TOP = Path(__file__).parents[4]
with mock.patch('sys.path', [str(TOP / 'tools/bench'), *sys.path]):
    burst_bench = importlib.import_module('burst_bench')
    burst_crowds = importlib.import_module('burst_crowds')


def crowd(guests, **kind):
    found = burst_crowds.crowd_of(burst_crowds.Kind(
        0.0, varied=True, **kind), random.Random(3))  # noqa: S311
    found.grow(guests)
    return found


def most(duty, peak):
    """95th percentile of what a guest wants: half its peak to all of it."""
    return peak * (1 - 0.5 * 0.05 / duty) if duty > 0.05 else 0.0


class VariedTest(base.TestCase):

    def test_as_many_use_little_as_in_the_trace(self):
        sorts = crowd(20000, correlation=0.0).sorts
        self.assertAlmostEqual(0.6, statistics.mean(
            0.75 * duty * peak < 0.2 for duty, peak in sorts), delta=0.03)
        self.assertAlmostEqual(0.4, statistics.mean(
            most(duty, peak) < 0.5 for duty, peak in sorts), delta=0.03)

    def test_guests_are_as_busy_as_their_sort(self):
        guests = crowd(4, correlation=0.0)
        guests.sorts = [(0.1, 1.0), (0.5, 0.4), (1.0, 0.8), (0.0, 1.0)]
        rows = [guests.minute(0) for _ in range(30000)]
        for (duty, peak), wants in zip(
                guests.sorts, zip(*rows, strict=True), strict=True):
            self.assertAlmostEqual(duty, statistics.mean(
                want > 0 for want in wants), delta=0.05)
            self.assertLessEqual(max(wants), peak)

    def test_who_follow_the_crowd_are_busy_together(self):
        guests = crowd(2, correlation=1.0)
        guests.sorts = [(0.3, 1.0), (0.3, 1.0)]
        for _ in range(200):
            guests.minute(0)
        rows = [guests.minute(0) for _ in range(200)]
        self.assertEqual({True}, {one == other for one, other in rows})


class ReplicasTest(base.TestCase):

    def replicas(self, **kind):
        found = burst_crowds.crowd_of(burst_crowds.Kind(
            0.3, **kind), random.Random(5))  # noqa: S311
        found.grow(12)
        return found

    def test_replicas_of_a_service_do_the_same_soon_after(self):
        found = self.replicas(services=2)
        self.assertEqual({'0', '1'}, set(found.projects))
        rows = list(zip(*(found.minute(number) for number in range(3000)),
                        strict=True))
        for project in '01':
            first, *others = (row for row, owner in zip(
                rows, found.projects, strict=True) if owner == project)
            self.assertGreater(max(first), 0)
            for other in others:
                self.assertTrue(any(
                    first[20:-20] == other[20 + lag:len(other) - 20 + lag]
                    for lag in range(-10, 11)))

    def test_most_guests_are_busy_in_the_event_of_a_day(self):
        found = self.replicas(event=True)
        most = [sum(want >= .7 for want in found.minute(number))
                for number in range(3 * burst_crowds.DAY)]
        for day in range(3):
            self.assertGreaterEqual(max(
                most[day * burst_crowds.DAY:][:burst_crowds.DAY]), 5)

    def test_files_are_replayed(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / 'a').write_text('0\n50\n100\n100\n')
        found = self.replicas(services=1, traces=(folder / 'a',))
        wants = {tuple(found.minute(number)) for number in range(60)}
        self.assertEqual({0.0, .5, 1.0}, {want for row in wants
                                          for want in row})
        (folder / 'b').write_text('7')
        self.assertRaises(ValueError, burst_crowds.loaded, folder / 'b')


class RunTest(base.TestCase):

    def test_replicas_of_one_service_fill_what_is_kept_alone(self):
        kind = burst_crowds.Kind(0.3, services=1)
        self.useFixture(fixtures.MonkeyPatch('burst_bench._FILLING', 3))
        found = burst_bench.run(kind, burst_bench.burst.Limits(window=6),
                                1, 1)
        self.assertEqual((burst_bench.POOL // burst_bench.PEAK, 0, 0), (
            found.guests, found.short, found.hard_short))
