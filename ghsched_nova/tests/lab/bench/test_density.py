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

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import errors
from ghsched_placement.tests import base

P99 = st.floats(0.01, 100)
RAMPS = st.dictionaries(st.integers(2, 100), P99, max_size=8).flatmap(
    lambda more: P99.map(lambda first: {1: first, **more}))


def points(ramp):
    return [density.Point(n, (p99,)) for n, p99 in ramp.items()]


class JudgeTest(base.TestCase):

    @given(RAMPS, st.floats(1, 3))
    def test_every_n_up_to_the_density_passes(self, ramp, limit):
        found = density.judge(points(ramp), limit)
        for n in ramp:
            if 1 < n <= found.last_passing:
                self.assertFalse(density.fails(ramp[n], ramp[1], limit))
        if found.first_failing is None:
            self.assertEqual(max(ramp), found.last_passing)
        else:
            self.assertTrue(density.fails(
                ramp[found.first_failing], ramp[1], limit))
            self.assertEqual([], [n for n in ramp if found.last_passing < n
                                  < found.first_failing])

    def test_one_alone_passes_whatever_the_limit_is(self):
        found = density.judge(points({1: 1.0, 2: 1.0}), 1.0)
        self.assertEqual((1, 2), (found.last_passing, found.first_failing))

    def test_baseline_is_needed(self):
        self.assertRaises(errors.BenchError, density.judge,
                          points({2: 1.0}), 1.1)
        self.assertRaises(errors.BenchError, density.judge,
                          points({1: 0.0}), 1.1)

    def test_noise(self):
        self.assertEqual(0.5, density.noise(
            density.Point(1, (1.0, 1.2, 0.7))))

    def test_ramp(self):
        self.assertEqual((1, 2, 3), density.counts(3, 1))
        self.assertEqual((1, 4, 8), density.counts(11, 4))
        self.assertEqual((1,), density.counts(1, 4))


class ClimbTest(base.TestCase):

    def climb(self, latency, up_to, room, limit=1.1, go_on=False, step=1):
        """A cloud with room for so many, and a latency by N."""
        self.grown = []

        def grow(count):
            if count > room:
                raise density.FullError('no valid host')
            self.grown.append(count)
        return density.climb(
            density.counts(up_to, step), grow, lambda n: latency[n - 1],
            lambda taken: (taken,), limit, go_on)

    @given(st.lists(P99, min_size=1, max_size=12), st.data())
    def test_it_ends_at_the_limit_at_the_room_or_at_the_last_step(
            self, latency, data):
        up_to = data.draw(st.integers(1, len(latency)))
        step = data.draw(st.integers(1, 4))
        room = data.draw(st.integers(1, 14))
        go_on = data.draw(st.booleans())
        found = self.climb(latency, up_to, room, go_on=go_on, step=step)
        steps = density.counts(up_to, step)
        failing = [n for n in steps if n > 1 and density.fails(
            latency[n - 1], latency[0], 1.1)]
        wanted = [n for n in steps if n <= room and (
            go_on or not failing or n <= failing[0])]
        self.assertEqual(wanted, list(found.taken))
        self.assertEqual(wanted, self.grown)
        self.assertEqual(density.judge(points(
            {n: latency[n - 1] for n in wanted}), 1.1), found.judged)
        self.assertEqual(bool(found.full),
                         any(n > room for n in steps) and (
                             go_on or found.judged.first_failing is None))

    def test_its_end_is_reported(self):
        found = self.climb([1.0, 1.0, 1.0], 3, 2)
        self.assertIn('at least 2; there is no place for one more: no valid '
                      'host', found.text)
        self.assertNotIn('place', self.climb([1.0, 2.0], 2, 2).text)

    def test_without_room_for_one_there_is_no_density(self):
        error = self.assertRaises(errors.BenchError, self.climb, [1.0], 1, 0)
        self.assertIn('no valid host', str(error))

    @given(st.lists(P99, min_size=2, max_size=40), st.integers(1, 9))
    def test_refined_ramp_ends_next_to_the_density(self, latency, step):
        found = density.climb(
            density.counts(len(latency), step), lambda _count: None,
            lambda n: latency[n - 1], lambda taken: (taken,), 1.1,
            refine=True)
        self.assertEqual(sorted(found.taken), list(found.taken))
        judged = found.judged
        if judged.first_failing is None:
            self.assertEqual(list(density.counts(len(latency), step)),
                             list(found.taken))
        else:
            self.assertEqual(judged.last_passing + 1, judged.first_failing)

    def test_refined_ramp_of_a_rising_latency_halves_the_gap(self):
        found = density.climb(
            density.counts(40, 10), lambda _count: None,
            lambda n: 1.0 if n < 28 else 2.0, lambda taken: (taken,), 1.1,
            refine=True)
        self.assertEqual([1, 10, 20, 25, 27, 28, 30], list(found.taken))
        self.assertEqual((27, 28), (found.judged.last_passing,
                                    found.judged.first_failing))
