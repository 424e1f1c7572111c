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
import math
import random

from ghsched_placement.features.blame import blame
from ghsched_placement.features.blame import blame_trials
from ghsched_placement.tests import base

SERVER = 'server'


def sample(number=0, server=10.0, load=0.8, busy=1.0, **rates):
    return blame.BlameSample(60.0 * number, 1.0, {SERVER: server, **rates},
                             load,
                             busy)


def trial(change, before=100.0):
    return blame_trials.Trial(before, before * (1 + change), before)


class OtherCauseTest(base.TestCase):

    def find(self, **fields):
        return blame.find_non_memory_cause(SERVER, [blame.BlameSample(
            1.0, 1.0, {SERVER: 96.0}, **{'busy': 0.9, **fields})] * 3)

    def test_cause_of_waiting_server_is_what_it_waits_for(self):
        for fields, cause in (
                ({'cap': 100.0}, blame.NonMemoryCause.OWN_CAP),
                ({'cpu_wait': 0.1}, blame.NonMemoryCause.CPU_WAIT),
                ({'stalled': 0.05}, blame.NonMemoryCause.RECLAIM),
                ({'io_wait': 0.2}, blame.NonMemoryCause.IO),
                ({'reported_memory': 0.2}, blame.NonMemoryCause.OWN_MEMORY),
                ({'reported_steal': 0.1}, blame.NonMemoryCause.CPU_WAIT),
                ({'busy': 0.01}, blame.NonMemoryCause.IDLE)):
            self.assertEqual(cause, (self.find(**fields) or [None])[0],
                             fields)

    def test_cause_of_server_below_the_limits_is_none(self):
        self.assertIsNone(self.find(cap=110.0, cpu_wait=0.09, stalled=0.04,
                                    io_wait=0.19))
        self.assertIsNone(self.find(busy=None))

    def test_server_that_lies_is_believed_less_than_the_host(self):
        self.assertIsNone(self.find(cpu_wait=0.0, reported_steal=1.0))
        # Tasks wait longer for a vCPU if another guest slows down the memory.
        self.assertIsNone(self.find(reported_cpu=1.0))

    def test_cause_is_the_usual_one_and_not_that_of_one_sample(self):
        samples = [sample(), sample(), blame.BlameSample(
            1.0, 1.0, {SERVER: 10.0}, busy=1.0, cpu_wait=0.9)]
        self.assertEqual(blame.NonMemoryCause.CPU_WAIT,
                         blame.find_non_memory_cause(SERVER, samples)[0])
        samples += [blame.BlameSample(1.0, 1.0, {SERVER: 10.0}, busy=1.0,
                                      cpu_wait=0.0)] * 2
        self.assertIsNone(blame.find_non_memory_cause(SERVER, samples))


class FigureTest(base.TestCase):

    def test_figure_is_bandwidth_in_a_second_of_cpu_time(self):
        self.assertEqual(20.0, sample(busy=0.5).compute_speed(SERVER))
        self.assertEqual(10.0, sample(busy=None).compute_speed(SERVER))
        self.assertIsNone(sample(busy=0.01).compute_speed(SERVER))
        self.assertIsNone(sample().compute_speed('other'))

    def test_figure_with_instructions_is_their_number(self):
        self.assertEqual(7.0, blame.BlameSample(
            1.0, 1.0, {SERVER: 3.0}, work=7.0).compute_speed(SERVER))

    def test_instructions_are_not_compared_with_bandwidth(self):
        record = [sample(number, server=10.0 - number, a=50.0 + number)
                  for number in range(8)]
        now = [dataclasses.replace(sample(a=50.0 - number), work=9.0 - number)
               for number in range(8)]
        for known, points in ((now, 8), (now[:3], 11)):
            found, = blame.rank_suspects(SERVER, record, known)
            self.assertEqual(points, found.points)
        # By the instructions alone it helps the server.
        found, = blame.rank_suspects(SERVER, record, now)
        self.assertAlmostEqual(1.0, found.correlation)


class MissesTest(base.TestCase):

    def test_misses_are_shares_of_all_other_guests(self):
        seconds = [dataclasses.replace(
            sample(number, server=9.0, a=50.0, b=50.0),
            misses_by_guest={'a': 30.0 * number, 'unmonitored': 10.0 * number})
            for number in range(1, 4)]
        found = {one.uuid: one.miss_share for one
                 in blame.rank_suspects(SERVER, (), seconds)}
        self.assertAlmostEqual(0.75, found['a'])
        self.assertIsNone(found['b'])

    def test_host_that_counts_no_misses_has_no_shares(self):
        self.assertEqual({}, blame.compute_miss_shares([sample(a=50.0)]))
        self.assertEqual({}, blame.compute_miss_shares([
            dataclasses.replace(sample(a=50.0),
                                misses_by_guest={'a': 0.0})]))


class SuspectTest(base.TestCase):

    def test_guest_that_rests_has_the_share_of_the_last_minutes(self):
        found = blame.rank_suspects(
            SERVER, [sample(a=90.0, b=10.0)], [sample(a=0.0, b=10.0)])
        self.assertEqual([('a', 0.9), ('b', 0.1)],
                         [(one.uuid, one.share) for one in found])

    def test_correlation_of_a_guest_that_takes_what_the_server_lacks(self):
        record = [sample(number, server=10.0 - number, a=50.0 + number,
                         b=20.0) for number in range(8)]
        found = {one.uuid: one for one in blame.rank_suspects(
            SERVER, record, [sample(a=50.0, b=20.0)])}
        self.assertLess(found['a'].correlation, -0.9)
        self.assertEqual(9, found['a'].points)
        self.assertGreater(found['a'].strength, 0.8)
        self.assertEqual((None, 0.0),
                         (found['b'].correlation, found['b'].strength))

    def test_candidates_are_large_guests_and_never_the_host(self):
        suspects = blame.rank_suspects(SERVER, (), [sample(
            **{blame.HOST: 500.0, 'tiny': 5.0},
            **{f'guest-{number}': 100.0 - number for number in range(6)})])
        found = blame.choose_guests_to_cap(suspects)
        self.assertEqual(['guest-0', 'guest-1', 'guest-2', 'guest-3'],
                         list(found))
        self.assertEqual(suspects[1].score, found['guest-0'])


class VerdictTest(base.TestCase):

    def judge(self, *samples):
        return blame.judge_by_measurements(
            SERVER, blame.rank_suspects(SERVER, (), samples), samples)

    def test_verdict_on_a_quiet_node_is_nobody(self):
        self.assertEqual(blame.VerdictKind.NOBODY,
                         self.judge(sample(a=40.0, load=0.4)).kind)

    def test_verdict_among_many_small_guests_is_nobody(self):
        self.assertEqual(blame.VerdictKind.NOBODY, self.judge(sample(
            **{f'guest-{number}': 9.0 for number in range(20)})).kind)

    def test_verdict_without_figures_is_unknown(self):
        self.assertEqual(blame.VerdictKind.UNKNOWN, self.judge().kind)

    def test_verdict_on_what_no_guest_moves_is_the_host(self):
        self.assertEqual(blame.VerdictKind.HOST, self.judge(
            sample(a=10.0, **{blame.HOST: 70.0})).kind)

    def test_trials_overrule_the_figures(self):
        before = self.judge(sample(a=40.0, b=20.0))
        proven = [trial(0.3), trial(0.31), trial(0.29), trial(0.3)]
        without = [trial(0.001), trial(-0.001), trial(0.0)]
        found = blame.judge_by_trials(before, {'a': without, 'b': proven})
        self.assertEqual((blame.VerdictKind.GUEST, 'b', True),
                         (found.kind, found.suspect, found.proven))
        found = blame.judge_by_trials(before, {'a': without})
        self.assertEqual((blame.VerdictKind.NOBODY, '', True),
                         (found.kind, found.suspect, found.proven))

    def test_unclear_trials_prove_nothing(self):
        before = self.judge(sample(a=40.0))
        found = blame.judge_by_trials(
            before, {'a': [trial(0.3), trial(-0.2), trial(0.2)]})
        self.assertEqual((blame.VerdictKind.NOBODY, False),
                         (found.kind, found.proven))
        self.assertEqual(before, blame.judge_by_trials(before, {}))


class TrialTest(base.TestCase):

    def test_interval_of_a_steady_effect_is_clear(self):
        found = blame_trials.measure_effect(
            [trial(0.20), trial(0.22), trial(0.18), trial(0.21)])
        self.assertTrue(found.is_proven)
        self.assertTrue(0.1 < found.low < 0.2 < found.high < 0.35, found)

    def test_small_or_unsteady_effect_is_not_proven(self):
        for changes in ((0.02, 0.021, 0.019, 0.02), (0.9, 0.1, 0.02, -0.2),
                        (0.3,), (0.6, 0.1)):
            self.assertFalse(blame_trials.measure_effect(
                list(map(trial, changes))).is_proven, changes)

    def test_effect_that_may_be_below_the_smallest_is_not_proven(self):
        found = blame_trials.measure_effect(
            [trial(0.06), trial(0.062), trial(0.058)])
        self.assertTrue(found.mean > blame_trials.LEAST_EFFECT
                        and found.low > 0, found)
        self.assertLess(found.likely_low, blame_trials.LEAST_EFFECT)
        self.assertFalse(found.is_proven)
        self.assertTrue(blame_trials.measure_effect(
            [trial(0.09)] * 4).is_proven)

    def test_small_effect_by_luck_is_rarely_proven_while_trials_go_on(self):
        chance = random.Random(4)  # noqa: S311
        proven = sum(self.prove_unsteady(chance, 0.04) for _run in range(100))
        self.assertLess(proven, 15)
        proven = sum(self.prove_unsteady(chance, 0.12) for _run in range(100))
        self.assertGreater(proven, 90)

    def prove_unsteady(self, chance, effect):
        done = []
        for _number in range(12):
            done.append(blame_trials.Trial(*(
                100.0 * more * math.exp(chance.gauss(0, 0.03))
                for more in (1, 1 + effect, 1))))
            if blame_trials.measure_effect(done).is_proven:
                return True
            if blame_trials.is_suspect_cleared(done):
                return False
        return False

    def test_two_equal_trials_of_a_steady_server_are_proof(self):
        self.assertTrue(blame_trials.measure_effect(
            [trial(0.3), trial(0.28)]).is_proven)

    def test_two_equal_trials_of_an_unsteady_server_are_no_proof(self):
        done = [trial(0.3), trial(0.28)]
        other = [blame_trials.Trial(100.0, 100.0, after)
                 for after in (80.0, 125.0)]
        drifts = blame_trials.list_drifts({'a': done, 'b': other})
        self.assertEqual(4, len(drifts))
        self.assertFalse(blame_trials.measure_effect(done, drifts).is_proven)

    def test_growing_cache_with_less_bandwidth_is_an_effect(self):
        def fetched(change):
            return blame_trials.Trial(100.0, 100.0 * (1 - change), 100.0,
                                      cached=0.5)
        found = blame_trials.measure_effect(
            [fetched(0.3), fetched(0.31), fetched(0.29)])
        self.assertTrue(found.by_cache and found.is_proven, found)
        found = blame_trials.measure_effect(
            [trial(-0.3), trial(-0.31), trial(-0.29)])
        self.assertFalse(found.by_cache or found.is_proven)

    def test_next_suspect_after_cleared_ones_is_another(self):
        cleared = [0.0, 0.001, -0.001]
        self.assertTrue(blame_trials.is_suspect_cleared(
            list(map(trial, cleared))))
        self.assertEqual('b', self.choose(a=cleared, b=[-0.1]))
        self.assertIsNone(self.choose({'a': 1.0}, a=cleared))

    def test_next_suspect_while_the_worst_rests_is_none(self):
        scores = {'a': 1.0, 'b': 0.1}
        self.assertIsNone(self.choose(scores, resting='a', a=[0.2]))
        self.assertIsNone(self.choose(resting='a', a=[0.2], b=[0.0]))
        self.assertEqual('b', self.choose(scores, resting='a', a=[0.0]))
        self.assertEqual('b', self.choose(scores, resting='a'))

    def choose(self, scores=None, resting='', **changes):
        return blame_trials.choose_next_guest(
            scores or {'a': 1.0, 'b': 1.0}, {
                uuid: list(map(trial, values))
                for uuid, values in changes.items()}, resting)
