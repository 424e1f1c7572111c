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

"""Guests that ask to be measured where counters must be assigned."""

import dataclasses
from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.resctrl import counters
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

TOTAL, LOCAL = 'mbm_total_bytes', 'mbm_local_bytes'


class CountersTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.set_up('mpam')

    def set_up(self, dialect, guests=4):
        """Guests with groups of their own; the last asks to be measured."""
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        self.world = world.World(top, dialect, ('ghsched',) * guests)
        self.kernel = self.world.model
        self.ask(-1)

    def ask(self, *numbers):
        for number in numbers:
            self.world.guests[number] = dataclasses.replace(
                self.world.guests[number], monitor=True)

    def list_counted_guests(self, resource='L3'):
        """Guests with a counter of all traffic in each domain."""
        texts = [self.kernel.read(
            f'/{guest.group}/mbm_{resource}_assignments')
            for guest in self.world.guests]
        return [number for number, text in enumerate(texts)
                if '_' not in text.splitlines()[0].partition(':')[2]]

    def settle(self):
        report = self.world.reconcile()
        self.assertEqual((), report.problems)
        return report

    def settled(self):
        """Reconcile, check that nothing is left to do, and return the report.
        """
        report = self.settle()
        self.assertEqual([], self.world.files.operations)
        self.assertEqual((), self.world.preview().actions)
        return report

    def test_a_counter_goes_from_a_guest_that_did_not_ask(self):
        # Four counters in a domain: the root group and three guests.
        report = self.settle()
        self.assertEqual([1, 2, 3], self.list_counted_guests())
        self.assertEqual((), report.unmeasured)
        self.assertEqual(['release counters', 'assign counters'],
                         [one.kind for one in report.actions[-2:]])
        self.settled()

    def test_local_traffic_is_given_up_first(self):
        # 32 counters in a domain, two for each of 17 groups.
        self.set_up('amd', 15)
        self.kernel.mkdir('/mon_groups/another')
        self.settle()
        self.assertEqual([*range(15)], self.list_counted_guests())
        self.assertIn(f'{LOCAL}:0=_', self.kernel.read(
            f'/{self.world.guests[0].group}/mbm_L3_assignments'))
        self.settled()

    def test_a_guest_without_a_counter_is_reported_and_runs(self):
        self.ask(0, 1, 2)
        self.ask(3)
        report = self.settle()
        self.assertEqual([0, 1, 2], self.list_counted_guests())
        problem, = report.unmeasured
        self.assertEqual(self.world.guests[3].domain.uuid, problem.guest)
        self.assertIn('no counter of bandwidth is left in domain 5, 71',
                      problem.reason)
        self.assertEqual(report.unmeasured, self.settled().unmeasured)

    def test_counters_of_the_memory(self):
        self.set_up('nvidia-vera')
        self.settle()
        self.assertEqual([1, 2, 3], self.list_counted_guests('MB'))
        self.settled()

    def test_counters_of_others_stay(self):
        for name in world.OTHERS[:3]:
            self.kernel.mkdir(f'/{name}')
        report = self.settle()
        self.assertEqual([], self.list_counted_guests())
        self.assertEqual(1, len(report.unmeasured))
        for name in world.OTHERS[:3]:
            self.assertNotIn('_;', self.kernel.read(
                f'/{name}/mbm_L3_assignments').partition(':')[2])

    def test_nobody_looks_at_counters_that_nobody_asks_for(self):
        self.world.guests[-1] = dataclasses.replace(
            self.world.guests[-1], monitor=False)
        self.settle()
        self.assertEqual([0, 1, 2], self.list_counted_guests())

    def test_where_each_group_is_measured_nothing_is_assigned(self):
        self.set_up('intel')
        self.assertEqual((), self.settle().unmeasured)
        self.settled()

    def test_a_refusal_is_no_problem_of_the_guest(self):
        def refuse(what, _group, _text):
            if what == 'mbm_L3_assignments':
                raise OSError(28, 'refused')
        self.world.files.before = refuse
        self.assertEqual([], [problem.reason for problem
                              in self.world.reconcile().problems])


_GROUPS = st.lists(st.sampled_from('abcdefgh'), unique=True, min_size=1)


class LedgerTest(base.TestCase):

    @given(st.data(), _GROUPS, st.integers(0, 6))
    def test_no_more_is_given_than_there_is(self, data, groups, free):
        assigned = {(group, event): frozenset(data.draw(
            st.sets(st.sampled_from((0, 1)))))
            for group in groups for event in (TOTAL, LOCAL)}
        asking = data.draw(st.sets(st.sampled_from(groups)))
        guests = tuple(model.ResctrlGuest(
            model.Domain(group, number, group), frozenset({0}), 1,
            {'MB': {0: 10}}, 'ghsched', monitor=group in asking)
            for number, group in enumerate(groups))
        names = {guest.group: guest for guest in guests}
        found = model.Counters('file', {0: free, 1: free}, {
            (guest.group, event): assigned[guest.domain.uuid, event]
            for guest in guests for event in (TOTAL, LOCAL)})
        plan = counters.add_counter_assignments(
            model.Plan(), model.Actual(
                dict.fromkeys(names, model.Group()),
                {name: [guest] for name, guest in names.items()},
                counters=found))
        held = {pair: set(domains)
                for pair, domains in found.assigned.items()}
        left = {0: free, 1: free}
        for action in plan.actions:
            event, _, rest = action.line.strip().partition(':')
            for item in rest.split(';'):
                domain, state = int(item[0]), item[2:]
                left[domain] += 1 if state == '_' else -1
                change = held[action.group, event]
                (change.remove if state == '_' else change.add)(domain)
                self.assertGreaterEqual(left[domain], 0)
        for name, guest in names.items():
            if guest.monitor:
                self.assertLessEqual(found.assigned[name, TOTAL],
                                     held[name, TOTAL])
        told = {problem.group for problem in plan.unmeasured}
        self.assertEqual(told, {
            name for name, guest in names.items()
            if guest.monitor and held[name, TOTAL] != {0, 1}})
