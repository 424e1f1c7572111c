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


"""Guests that share a control group, on emulated kernels."""

from collections import Counter
import dataclasses
import errno
from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.base import bounds
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: A group of a policy that no guest has any more.
OLD = 'ghsched-shared-0123456789abcdef'


class SharingWorld(world.World):
    """A host whose guests share; nobody has a group of its own."""

    def __init__(self, top: Path, dialect='openeuler66', guests=3):
        super().__init__(top, dialect, ())
        self.policies: list[tuple[GuestPolicy, int]] = []
        for _ in range(guests):
            self.share()

    def share(self, node=0, monitor=False, **changes):
        """Add a guest that shares a group; return the group's name.

        :param changes: of the policy of its only node.
        """
        policy = self.policy()
        policy = dataclasses.replace(policy, nodes=tuple(
            dataclasses.replace(one, **changes) for one in policy.nodes))
        number = len(self.guests)
        self.policies.append((policy, node))
        self.add(number, 'ghsched')
        self.guests[number] = dataclasses.replace(
            self.guests[number], monitor=monitor,
            shared=naming.render_shared_name(policy.nodes, [node]))
        return self.guests[number].group

    def wanted(self, without=(), **more):
        counts = Counter(guest.shared
                         for number, guest in enumerate(self.guests)
                         if number not in without)
        for number, guest in enumerate(self.guests):
            policy, node = self.policies[number]
            held = resolve.multiply_policy_by_guests(self.host, policy,
                                                     counts[guest.shared] or 1)
            self.guests[number] = dataclasses.replace(
                guest,
                desired=resolve.make_desired_lines(
                    self.host,
                    resolve.resolve_settings(self.host, held, [node])),
            )
        for name in ('monitors', 'monitors_per_group'):
            more.setdefault(name, self.host.plan_facts[name])
        return super().wanted(without, **more)

    def read_value(self, group, line='MB', domain=0):
        return self.schemata(group).values(line)[domain]

    def monitors(self, group):
        """Guests' threads by number, in the monitoring groups of a group."""
        names = self.files.directories(self.root / group / 'mon_groups')
        return {self.number(name): self.tasks(f'{group}/mon_groups/{name}')
                for name in names}

    def number(self, name):
        return next(number for number, guest in enumerate(self.guests)
                    if naming.render_own_group_name(guest.domain.uuid) == name)


class SharingTestCase(base.TestCase):

    def new_world(self, dialect='openeuler66', guests=3):
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        return SharingWorld(top, dialect, guests)

    def settled(self, **more):
        report = self.world.reconcile(**more)
        self.assertEqual((), report.problems)
        self.assertEqual([], self.world.wrong(more.get('without', ())))
        return report

    def assert_nothing_to_do(self, **more):
        report = self.world.reconcile(**more)
        self.assertEqual(((), ()), (report.actions, report.problems))
        self.assertEqual([], self.world.files.operations)


class SharingTest(SharingTestCase):

    def setUp(self):
        super().setUp()
        self.world = self.new_world()
        self.group = self.world.guests[0].group

    def test_equal_guests_have_one_group_with_what_all_of_them_have(self):
        self.settled()
        self.assertEqual([self.group], self.world.groups())
        self.assertEqual(100, self.world.read_value(self.group))     # 3 x 41
        self.assertEqual(33, self.world.read_value(self.group, 'MBMIN'))
        self.assertEqual({1001, 1002, 2001, 2002, 3001, 3002},
                         self.world.tasks(self.group))
        self.assert_nothing_to_do()

    def test_who_leaves_takes_its_share_along(self):
        self.settled()
        self.world.end(1)
        self.settled(without=(1,))
        self.assertEqual(
            (82, 22), (self.world.read_value(self.group),
                       self.world.read_value(self.group, 'MBMIN')))
        self.assert_nothing_to_do(without=(1,))

    def test_the_last_one_takes_the_group_along(self):
        self.settled()
        for number in range(3):
            self.world.end(number)
        report = self.settled(without=(0, 1, 2))
        self.assertIn('no guest shares it', report.actions[0].reason)
        self.assertEqual([], self.world.groups())

    def test_another_policy_or_another_node_is_another_group(self):
        other = self.world.share(maximum=40)
        far = self.world.share(node=1)
        self.settled()
        self.assertEqual({self.group, other, far}, set(self.world.groups()))

    def test_a_group_that_nobody_shares_is_removed(self):
        self.world.model.mkdir('/' + OLD)
        self.settled()
        self.assertEqual([self.group], self.world.groups())

    def test_it_stays_while_a_guest_is_in_it(self):
        self.settled()
        report = self.world.reconcile(without=(0, 1, 2))
        self.assertEqual((), report.actions)
        self.assertEqual((), report.foreign)

    def test_a_guest_that_is_only_starting_holds_nobody_up(self):
        self.world.end(1)
        problem, = self.world.reconcile().problems
        self.assertEqual(self.world.guests[1].domain.uuid, problem.guest)
        self.assertEqual({1001, 1002, 3001, 3002},
                         self.world.tasks(self.group))

    def test_a_value_that_somebody_changed_is_put_right_once(self):
        self.settled()
        self.world.model.write(f'/{self.group}/schemata', 'MBMIN:0=5\n')
        action, = self.settled().actions
        self.assertEqual('MBMIN:0=33\n', action.line)

    def test_threads_of_a_guest_from_elsewhere_are_reported_to_each(self):
        self.world.thread(9000, 9001, 'CPU 0/KVM')
        self.settled()
        self.world.model.write(f'/{self.group}/tasks', '9001\n')
        problems = self.world.reconcile().problems
        self.assertEqual(3, len({one.guest for one in problems}))
        self.assertIn('9001', problems[0].reason)

    def test_a_kill_at_any_moment_is_completed_by_the_next_run(self):
        self.settled()
        total = len(self.world.files.operations)
        for moment in range(total):
            self.world = self.new_world()
            self.world.files.kill_at(moment)
            self.assertRaises(KeyboardInterrupt, self.world.reconcile)
            self.world.files.before = lambda *operation: None
            self.settled()
            self.assertEqual([self.group], self.world.groups())
            self.assert_nothing_to_do()


class MonitorTest(SharingTestCase):

    def setUp(self):
        super().setUp()
        self.world = self.new_world()
        self.group = self.world.guests[0].group

    def test_each_guest_is_measured(self):
        self.settled(monitors=9, monitors_per_group=9)
        self.assertEqual({0: {1001, 1002}, 1: {2001, 2002}, 2: {3001, 3002}},
                         self.world.monitors(self.group))
        self.assert_nothing_to_do(monitors=9, monitors_per_group=9)

    def test_who_asked_for_it_is_measured_first(self):
        self.world.share(monitor=True)
        self.settled(monitors=2, monitors_per_group=9)
        self.assertEqual({0, 3}, set(self.world.monitors(self.group)))
        self.assert_nothing_to_do(monitors=2, monitors_per_group=9)

    def test_a_group_has_no_more_than_it_can(self):
        self.settled(monitors=9, monitors_per_group=1)
        self.assertEqual({0}, set(self.world.monitors(self.group)))

    def test_who_left_makes_room(self):
        limits = {'monitors': 1, 'monitors_per_group': 1}
        self.settled(**limits)
        self.world.end(0)
        self.settled(without=(0,), **limits)
        self.assertEqual({1}, set(self.world.monitors(self.group)))

    def test_a_thread_that_escaped_is_measured_again(self):
        limits = {'monitors': 9, 'monitors_per_group': 9}
        self.settled(**limits)
        self.world.model.write('/tasks', '2002\n')
        self.settled(**limits)
        self.assertEqual({2001, 2002}, self.world.monitors(self.group)[1])

    def test_monitors_of_others_leave_one_for_each_control_group(self):
        """All groups on x86, of whatever kind, take ids of one supply."""
        self.world = self.new_world('intel')
        host, model = self.world.host, self.world.model
        model.mkdir('/pqos')
        for number in range(host.plan_facts['monitors'] - 1):
            model.mkdir(f'/{"pqos/" * (number % 2)}mon_groups/{number}')
        self.settled()
        group = self.world.guests[0].group
        self.assertEqual(1, len(self.world.monitors(group)))
        self.assert_nothing_to_do()
        while len(self.world.groups()) < host.num_closids - 1:
            model.mkdir(f'/more-{len(self.world.groups())}')
        self.assert_nothing_to_do()

    def test_no_monitor_left_is_no_problem(self):
        def before(what, name, _text):
            if what == 'mkdir' and name != self.group:
                raise OSError(errno.ENOSPC, 'Out of RMIDs')

        self.world.files.before = before
        self.settled(monitors=9, monitors_per_group=9)

    def test_with_what_the_hosts_have(self):
        for dialect in machines.DIALECTS:
            self.world = self.new_world(dialect, guests=5)
            self.settled()
            count = len(self.world.monitors(self.world.guests[0].group))
            facts = self.world.host.plan_facts
            self.assertEqual(
                min(5, facts['monitors'], facts['monitors_per_group']), count,
                dialect)
            # Each control group that may come has its monitor left.
            while len(self.world.groups()) < self.world.host.num_closids - 1:
                self.world.model.mkdir(f'/more{len(self.world.groups())}')
            self.assert_nothing_to_do()


class FaultTest(SharingTestCase):

    def setUp(self):
        super().setUp()
        self.world = self.new_world()
        self.group = self.world.guests[0].group

    def fail(self, number, what, text=''):
        def before(operation, _name, data):
            if operation == what and text in data:
                raise OSError(number, 'injected')

        self.world.files.before = before

    def test_no_room_for_the_group_is_reported_to_each(self):
        self.fail(errno.ENOSPC, 'mkdir')
        problems = self.world.reconcile().problems
        self.assertEqual([guest.domain.uuid for guest in self.world.guests],
                         [problem.guest for problem in problems])
        self.assertIn('no control group left', problems[0].reason)
        self.assertEqual([], self.world.groups())

    def test_a_value_that_is_refused_leaves_no_group(self):
        self.fail(errno.EINVAL, 'schemata', 'MBPRI')
        self.assertEqual(3, len(self.world.reconcile().problems))
        self.assertEqual([], self.world.groups())

    def test_one_that_dies_does_not_take_the_others_along(self):
        self.fail(errno.ESRCH, 'tasks', '100')
        uuid = self.world.guests[0].domain.uuid
        self.assertEqual({uuid}, {problem.guest for problem
                                  in self.world.reconcile().problems})
        self.assertEqual({2001, 2002, 3001, 3002},
                         self.world.tasks(self.group))

    def test_one_that_can_not_be_moved_does_not_either(self):
        self.fail(errno.EPERM, 'tasks', '3002')
        self.assertEqual(
            {self.world.guests[2].domain.uuid},
            {problem.guest for problem in self.world.reconcile().problems})
        self.assertIn(self.group, self.world.groups())
        self.assertLessEqual({1001, 1002, 2001, 2002},
                             self.world.tasks(self.group))


class EveryDialectTest(SharingTestCase):
    """Whoever comes and goes, the groups hold what their guests have."""

    def test_from_anything(self):
        for dialect in spaces.choose(machines.DIALECTS):
            self.check_dialect(dialect)

    def check_dialect(self, dialect):
        @settings(max_examples=8, deadline=None, database=None,
                  suppress_health_check=list(HealthCheck))
        @given(st.data())
        def check(data):
            without = data.draw(st.sets(st.sampled_from(range(6))))
            self.disturb(data)
            planned = self.world.preview(without=without)
            report = self.world.reconcile(without=without)
            # Nothing reports the guests that are left out.
            self.assertEqual([], [problem for problem in report.problems
                                  if 'of another guest' not in problem.reason])
            self.assertEqual([], self.world.wrong(without))
            self.assertEqual(planned.actions,
                             report.actions[:len(planned.actions)])
            self.assertEqual((), self.world.reconcile(without=without).actions)

        self.world = self.new_world(dialect, guests=0)
        for maximum in (41, 41, 41, 30, 30):
            self.world.share(maximum=maximum)
        self.world.share(node=1, maximum=41)
        check()

    def disturb(self, data):
        names = sorted({guest.group for guest in self.world.guests} | {OLD})
        for name in names:
            there = name in self.world.groups()
            if data.draw(st.booleans()):
                continue
            if there:
                self.world.model.rmdir('/' + name)
            elif len(self.world.groups()) < self.world.host.num_closids - 1:
                self.world.model.mkdir('/' + name)
        for tid in data.draw(st.lists(st.sampled_from(
                sorted(self.world.threads.alive)), max_size=6)):
            group = data.draw(st.sampled_from(['', *(
                '/' + name for name in self.world.groups())]))
            self.world.model.write(f'{group}/tasks', f'{tid}\n')

    def test_together_they_are_held_to_what_each_is_or_more(self):
        for dialect in machines.DIALECTS:
            self.world = self.new_world(dialect, guests=1)
            host, (policy, node) = self.world.host, self.world.policies[0]
            one, = resolve.resolve_settings(host, policy, [node])[:1]
            (two,) = resolve.resolve_settings(
                host, resolve.multiply_policy_by_guests(
                    host, policy, 2), [node]
            )[:1]
            (many,) = resolve.resolve_settings(
                host, resolve.multiply_policy_by_guests(
                    host, policy, 99), [node]
            )[:1]
            if host.dialect.per_core:
                self.assertEqual([one.maximum] * 2,
                                 [two.maximum, many.maximum])
                continue
            self.assertGreaterEqual(two.maximum_percent, 82)
            self.assertLess(two.maximum, many.maximum)
            self.assertEqual(host.no_cap, many.maximum)
            if one.minimum is not None:
                self.assertGreaterEqual(two.minimum, 22)
                self.assertEqual(100, many.minimum)


class NameTest(base.TestCase):

    def test_it_says_that_a_group_is_shared(self):
        name = naming.render_shared_name(GuestPolicy().nodes, [])
        self.assertTrue(naming.parse_group_name(name).is_shared)
        self.assertIsNone(naming.parse_group_name(name).uuid)
        for other in ('ghsched-shared-', name + '0', 'ghsched-shared',
                      naming.render_own_group_name(world.UUID.format(1))):
            self.assertFalse(naming.parse_group_name(other).is_shared)

    def test_guest_nodes_may_be_the_other_way_round(self):
        node = world.NodePolicy
        first, second = node(minimum=10), node(minimum=20)
        self.assertEqual(naming.render_shared_name([first, second], [0, 1]),
                         naming.render_shared_name([second, first], [1, 0]))
        self.assertNotEqual(naming.render_shared_name([first, second], [0, 1]),
                            naming.render_shared_name([first, second], [1, 0]))

    def test_invalid_shared_groups_do_not_reach_root(self):
        domain = model.Domain(world.UUID.format(1), 1, 'g')
        for name in ('pqos', '../x', 'ghsched-' + domain.uuid):
            guest = model.ResctrlGuest(domain, frozenset({0}), 1, {},
                                       'ghsched',
                                       shared=name)
            self.assertRaises(ValueError, bounds.check,
                              model.Wanted((guest,)))
