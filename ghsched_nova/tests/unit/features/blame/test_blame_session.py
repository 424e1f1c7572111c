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


"""Investigations of simulated hosts, and proofs that are killed."""

import contextlib
import dataclasses
import random
from unittest import mock

from ghsched_nova.features.blame import blame_probe
from ghsched_nova.features.blame import blame_session
from ghsched_nova.tests.fixtures import blame_cases
from ghsched_nova.tests.fixtures import blame_hosts
from ghsched_placement.features.blame import blame
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

SEED = '1'


class Probe:
    """A server that a guest slows down to a half, and its calls."""

    def __init__(self, culprit='bully', undone=()):
        self.culprit, self.undone = culprit, undone
        self.now, self.capped, self.calls = 0.0, '', []
        self.limit = None
        self.fails_at = None

    def get_time(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        if self.capped in self.undone:
            self.capped = ''
        if self.fails_at is not None and self.now >= self.fails_at:
            raise KeyboardInterrupt

    def measure(self):
        slow = self.capped != self.culprit
        return blame.BlameSample(
            self.now, 1.0, {'me': 50.0 if slow else 100.0, 'bully': 300.0,
                            'decoy': 200.0}, 0.9, 1.0, cpu_wait=0.0)

    def get_limits(self, uuid):
        return uuid == self.capped

    def cap(self, uuid):
        assert not self.capped, 'two at once'
        if uuid == self.limit:
            raise blame_session.NotCapped('it may not')
        self.calls.append(uuid)
        self.capped = uuid

    def restore_limits(self):
        self.capped = ''


class SessionTest(base.TestCase):

    def run_session(self, probe, prove=True):
        return blame_session.Session('me', (), probe).collect_evidence(prove)

    def test_culprit_is_proven_and_released(self):
        probe = Probe()
        found = self.run_session(probe)
        self.assertEqual(
            (blame.VerdictKind.GUEST, 'bully', True),
            (found.verdict.kind, found.verdict.suspect,
             found.verdict.proven))
        self.assertEqual('', probe.capped)
        self.assertLess(probe.now, 60)

    def test_nobody_is_capped_without_prove(self):
        probe = Probe()
        found = self.run_session(probe, prove=False)
        self.assertEqual((blame.VerdictKind.GUEST, False),
                         (found.verdict.kind, found.verdict.proven))
        self.assertEqual([], probe.calls)

    def test_nobody_is_capped_for_a_server_that_waits_for_cpus(self):
        probe = Probe()
        probe.measure = lambda: blame.BlameSample(
            probe.now, 1.0, {'me': 1.0, 'bully': 9.0}, 0.9, 1.0,
            cpu_wait=0.5)
        found = self.run_session(probe)
        self.assertEqual((blame.VerdictKind.NOT_MEMORY,
                          blame.NonMemoryCause.CPU_WAIT),
                         (found.verdict.kind, found.verdict.cause))
        self.assertEqual([], probe.calls)

    def test_trial_of_which_some_figures_are_no_instructions_is_dropped(self):
        probe = Probe()
        measure = probe.measure
        # The counters are lost while the suspect is capped.
        probe.measure = lambda: dataclasses.replace(
            measure(), work=None if probe.calls else 1.0)
        found = self.run_session(probe)
        self.assertNotEqual([], found.tried['bully'])
        self.assertNotIn(1.0, [trial.before for trial
                               in found.tried['bully']])

    def test_guest_that_cannot_be_capped_has_the_reason(self):
        probe = Probe()
        probe.limit = 'bully'
        found = self.run_session(probe)
        self.assertEqual('it may not', found.suspects[0].untried)
        self.assertNotEqual('bully', found.verdict.suspect)

    def test_cap_that_is_undone_early_is_no_trial(self):
        probe = Probe(undone=('bully',))
        found = self.run_session(probe)
        self.assertIn('undone', found.suspects[0].untried)
        self.assertEqual(blame_session.FAILURES, probe.calls.count('bully'))
        self.assertNotIn('bully', found.tried)

    def test_trial_while_another_guest_rests_does_not_count(self):
        probe = Probe(culprit='decoy')
        measure = probe.measure

        def rest_while_bully_is_capped():
            sample = measure()
            if probe.capped != 'bully':
                return sample
            return dataclasses.replace(sample, rates={
                **sample.rates, 'me': 100.0, 'decoy': 20.0})

        probe.measure = rest_while_bully_is_capped
        found = self.run_session(probe)
        self.assertIn('bully', probe.calls)
        self.assertNotIn('bully', found.tried)

    def test_trials_are_short_once_a_load_has_changed_in_one(self):
        probe, waited = Probe(), []
        wait, measure = probe.wait, probe.measure
        probe.wait = lambda seconds: (waited.append(seconds), wait(seconds))
        # The server rests after the first cap.
        probe.measure = lambda: dataclasses.replace(
            measure(), **({'busy': 0.0} if probe.calls and not probe.capped
                          and probe.now < 15 else {}))
        found = self.run_session(probe)
        self.assertEqual('bully', found.verdict.suspect)
        self.assertEqual(blame_session.SHORT_WINDOW_S, waited[-1])

    def test_interrupted_proof_releases_the_suspect(self):
        for moment in (12.0, 10.1, 14.3):
            probe = Probe()
            probe.fails_at = moment
            self.assertRaises(KeyboardInterrupt, self.run_session, probe)
            self.assertEqual('', probe.capped)

    def test_proof_that_never_gets_clear_ends_in_time(self):
        probe = Probe()
        chance = random.Random(1)  # noqa: S311
        probe.measure = lambda: blame.BlameSample(
            probe.now, 1.0, {'me': chance.uniform(80.0, 120.0),
                             'bully': 300.0}, 0.9, 1.0)
        self.assertNotEqual(blame.VerdictKind.GUEST,
                            self.run_session(probe).verdict.kind)
        self.assertLessEqual(probe.now, blame_session.BUDGET_S)


class StagedTest(base.TestCase):
    """A part of tools/judge/blame, which has the goal for 200 cases."""

    def test_culprits_of_staged_cases_are_found(self):
        count = blame_cases.Count()
        for number in range(32):
            case = blame_cases.make_case(SEED, number)
            count.add(case, *blame_cases.run_case(case, SEED))
        self.assertGreaterEqual(count.precision, 0.9, count)
        self.assertGreaterEqual(count.recall, 0.9, count)
        self.assertLessEqual(count.longest, 60)

    def test_staged_case_on_emulated_host_leaves_groups_as_before(self):
        case = blame_cases.make_case(SEED, 5)
        found, _seconds, as_before = blame_hosts.run_case(case, SEED)
        self.assertTrue(as_before)
        names = {one.uuid: one.name for one in case.tenants}
        self.assertEqual(case.culprit, names.get(found.verdict.suspect))

    def test_culprits_are_found_by_instructions(self):
        count = blame_cases.Count()
        for number in spaces.choose(range(12)):
            case = blame_cases.make_case(SEED, number)
            found, seconds, as_before = blame_hosts.run_case(
                case, SEED, counted=True)
            self.assertTrue(as_before)
            self.assertEqual(
                [False] * len(found.samples),
                [sample.work is None for sample in found.samples])
            for one in found.suspects:
                if one.uuid != blame.HOST:
                    self.assertAlmostEqual(one.share, one.miss_share,
                                           delta=0.06)
            count.add(case, found, seconds)
        self.assertEqual((0, 0), (count.wrong, count.missed), count)

    def test_host_that_cannot_count_is_asked_once_and_waits_as_long(self):
        for answer, reason in (
                (blame_probe.Counts(), blame.UncountedReason.NO_COUNTERS),
                (blame_probe.Counts({'cpu_ns': 1e9}),
                 blame.UncountedReason.NO_COUNTERS),
                (PermissionError('refused'), blame.UncountedReason.REFUSED),
                (OSError('too many open files'),
                 blame.UncountedReason.FAILED)):
            count = mock.Mock(side_effect=[answer])
            case = blame_cases.make_case(SEED, 5)
            with contextlib.ExitStack() as stack:
                host = blame_hosts.open_host(case, SEED, stack)
                probe = host.probe(case.victim, count_events=count)
                probe.measure()
                begin = host.now
                probe.wait(1.5)
                probe.wait(1.5)
                self.assertAlmostEqual(3.0, host.now - begin)
                self.assertIsNone(probe.measure().work)
                self.assertIs(reason, probe.uncounted)
            count.assert_called_once_with(1500, False)

    def test_wait_lasts_no_longer_where_events_are_counted(self):
        for events in ({}, {'instructions': 0.0}, {'instructions': 9.0}):
            case = blame_cases.make_case(SEED, 5)
            with contextlib.ExitStack() as stack:
                host = blame_hosts.open_host(case, SEED, stack)

                def count(milliseconds, _others, host=host, events=events):
                    host.sleep(milliseconds / 1000)
                    return blame_probe.Counts(events)

                probe = host.probe(case.victim, count_events=count)
                begin = host.now
                probe.wait(1.5)
                self.assertAlmostEqual(1.5, host.now - begin)
                # A server that rests is counted again.
                self.assertEqual('instructions' in events,
                                 probe.count_events is not None)

    def test_nothing_is_counted_while_a_cap_settles(self):
        count = mock.Mock()
        case = blame_cases.make_case(SEED, 5)
        with contextlib.ExitStack() as stack:
            host = blame_hosts.open_host(case, SEED, stack)
            probe = host.probe(case.victim, count_events=count)
            begin = host.now
            probe.wait(blame_session.SETTLE_S)
            self.assertAlmostEqual(blame_session.SETTLE_S, host.now - begin)
        count.assert_not_called()
        # All that is measured is counted.
        for seconds in (blame_session.SAMPLE_S, blame_session.WINDOW_S,
                        blame_session.SHORT_WINDOW_S):
            self.assertGreaterEqual(seconds, blame_probe.LEAST_COUNTED_S)

    def test_only_the_speed_is_counted_from_the_first_cap_on(self):
        count = mock.Mock(return_value=blame_probe.Counts(
            {'instructions': 9.0}, {'x': 30.0}))
        case = blame_cases.make_case(SEED, 5)
        with contextlib.ExitStack() as stack:
            host = blame_hosts.open_host(case, SEED, stack)
            probe = host.probe(case.victim, count_events=count)
            probe.measure()
            probe.wait(1.5)
            self.assertAlmostEqual(20.0, probe.measure().misses_by_guest['x'])
            probe.cap(next(one.uuid for one in case.tenants
                           if one.name == case.culprit))
            probe.wait(1.5)
            probe.restore_limits()
        self.assertEqual([False, True], [
            call.args[1] for call in count.call_args_list])

    def test_event_rates_are_of_what_was_counted(self):
        self.assertEqual({}, blame_probe.compute_event_rates({}))
        self.assertEqual({}, blame_probe.compute_event_rates(
            {'cpu_ns': 1e9}))
        self.assertEqual(
            {'work': 1e9, 'per_cycle': 0.5, 'misses': 3.0,
             'stalled_cycles': 0.25},
            blame_probe.compute_event_rates(
                {'cpu_ns': 2e9, 'instructions': 2e9, 'cycles': 4e9,
                 'cache_misses': 6e6, 'stalled_cycles': 1e9}))

    def test_killed_proofs_are_undone_by_the_next_reconciliation(self):
        changed, hit = blame_hosts.run_killed(SEED, 60, each=15)
        self.assertEqual(0, changed)
        self.assertGreater(hit, 15)     # the test would show nothing else

    def test_proof_without_release_leaves_a_group_changed(self):
        """Whether the test of killed proofs could fail at all."""
        case = blame_cases.make_case(SEED, 5)
        with contextlib.ExitStack() as stack:
            host = blame_hosts.open_host(case, SEED, stack)
            before = host.show()
            probe = host.probe(case.victim)
            culprit = next(one for one in case.tenants
                           if one.name == 'culprit')
            probe.cap(culprit.uuid)
            self.assertNotEqual(before, host.show())
            probe.restore_limits()
            self.assertEqual(before, host.show())
