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

from ghsched_placement.tests import base

TOP = Path(__file__).parents[3]
with mock.patch('sys.path', [str(TOP / 'tools/bench'), *sys.path]):
    burst_bench = importlib.import_module('burst_bench')


def crowd(guests, **kind):
    found = burst_bench.Varied(burst_bench.Kind(0.0, varied=True, **kind),
                               random.Random(3))  # noqa: S311
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
