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


"""Guests that are measured and not held, on emulated kernels."""

import dataclasses
import errno
from pathlib import Path
import shutil
import tempfile


from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

MONITOR = naming.render_monitor_path(world.UUID.format(0))


class MeasuredWorld(world.World):
    """A host with a guest that is only measured, and one that is held."""

    def __init__(self, top: Path, dialect='openeuler510'):
        super().__init__(top, dialect, ('ghsched', 'ghsched'))
        self.guests[0] = dataclasses.replace(self.guests[0], desired={},
                                             monitor=True)

    def measured(self):
        """Threads by monitoring group of the default group."""
        names = self.files.directories(self.root / naming.MONITORS)
        return {naming.MONITORS + name: self.tasks(naming.MONITORS + name)
                for name in names}

    def wanted(self, without=(), **more):
        wanted = super().wanted(without, **more)
        return dataclasses.replace(
            wanted, removable=wanted.removable | set(self.measured()))


class MeasuredTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.world = self.new_world()

    def new_world(self, *dialect):
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        return MeasuredWorld(top, *dialect)

    def settled(self, **more):
        report = self.world.reconcile(**more)
        self.assertEqual(((), ()), (report.problems, report.foreign))
        return [(action.kind, action.group) for action in report.actions]

    def move_to(self, group, *threads):
        for thread in threads:
            self.world.model.write(f'/{group}/tasks', f'{thread}\n')

    def test_it_has_a_monitoring_group_and_no_control_group(self):
        self.assertEqual([('make group', MONITOR), ('move threads', MONITOR)],
                         [step for step in self.settled()
                          if step[1] == MONITOR])
        self.assertEqual({MONITOR: {1001, 1002}}, self.world.measured())
        self.assertEqual([naming.render_own_group_name(world.UUID.format(1))],
                         self.world.groups())
        self.assertEqual([], self.settled())
        self.assertEqual([], self.world.files.operations)

    def test_on_every_kernel_with_monitors(self):
        for dialect in machines.DIALECTS:
            self.world = self.new_world(dialect)
            if self.world.host.monitored:
                self.settled()
                self.assertEqual({MONITOR: {1001, 1002}},
                                 self.world.measured(), dialect)

    def test_the_group_that_libvirt_made_is_kept_and_made_again_as_ours(self):
        libvirts = 'mon_groups/qemu-1-instance-00000000-vcpus_0-1'
        self.world.model.mkdir(f'/{libvirts}')
        for tid in (1001, 1002):
            self.world.model.write(f'/{libvirts}/tasks', f'{tid}\n')
        self.assertEqual([], [
            action for action in self.world.reconcile().actions
            if action.guest == self.world.guests[0].domain.uuid])
        self.assertEqual({libvirts: {1001, 1002}}, self.world.measured())
        # As after a mount, or by somebody.
        self.world.model.rmdir(f'/{libvirts}')
        self.assertEqual((), self.world.reconcile().problems)
        self.assertEqual({MONITOR: {1001, 1002}}, self.world.measured())

    def test_all_of_its_threads_where_that_is_wanted(self):
        self.settled(all_threads=True)
        self.assertEqual({1000, 1001, 1002, 1003},
                         self.world.measured()[MONITOR])

    def test_a_thread_that_escaped_is_put_back(self):
        self.settled()
        self.world.model.write('/tasks', '1002\n')
        self.assertEqual([('move threads', MONITOR)], self.settled())
        self.assertEqual({1001, 1002}, self.world.measured()[MONITOR])

    def test_one_in_another_control_group_is_pulled_back(self):
        self.world.model.mkdir('/pqos')
        for _without_and_with_its_group in range(2):
            self.move_to('pqos', 1001, 1002, 1003)
            report = self.world.reconcile()
            self.assertEqual(((), ('pqos',)),
                             (report.problems, report.foreign))
            self.assertEqual({1001, 1002}, self.world.measured()[MONITOR])
            self.assertEqual({1003}, self.world.tasks('pqos'))
            self.assertEqual((), self.world.reconcile().actions)
            self.assertEqual([], self.world.files.operations)

    def test_one_in_the_group_of_a_guest_that_is_held_is_pulled_back(self):
        self.settled()
        held = self.world.guests[1].group
        self.move_to(held, 1002)
        self.assertEqual([('move threads', MONITOR)], self.settled())
        self.assertEqual({2001, 2002}, self.world.tasks(held))

    def test_on_every_kernel_one_is_pulled_back(self):
        for dialect in machines.DIALECTS:
            self.world = self.new_world(dialect)
            if self.world.host.monitored:
                self.world.model.mkdir('/pqos')
                self.move_to('pqos', 1001, 1002)
                self.assertEqual((), self.world.reconcile().problems, dialect)
                self.assertEqual({MONITOR: {1001, 1002}},
                                 self.world.measured(), dialect)

    def test_its_former_control_group_is_given_back(self):
        group = naming.render_own_group_name(world.UUID.format(0))
        self.world.model.mkdir('/' + group)
        self.move_to(group, 1001, 1002)
        self.assertEqual(
            [('make group', MONITOR), ('move threads', MONITOR),
             ('remove group', group)],
            [step for step in self.settled() if step[1] in (MONITOR, group)])
        self.assertEqual({MONITOR: {1001, 1002}}, self.world.measured())
        self.assertEqual([], self.settled())
        self.assertEqual([], self.world.files.operations)

    def test_the_control_group_of_an_unknown_policy_stays(self):
        self.world.model.mkdir(
            '/' + naming.render_own_group_name(world.UUID.format(0))
        )
        wanted = self.world.wanted()
        self.assertEqual((), drift_of(self.world, dataclasses.replace(
            wanted, guests=())).actions)

    def test_one_that_can_not_be_pulled_back_leaves_nothing_behind(self):
        def before(what, name, _text):
            if (what, name) == ('tasks', self.world.root.name):
                raise OSError(errno.EINVAL, 'no')

        self.world.model.mkdir('/pqos')
        self.move_to('pqos', 1001, 1002)
        self.world.files.before = before
        problem, = self.world.reconcile().problems
        self.assertIn(f'{self.world.root}/tasks: the write was refused',
                      problem.reason)
        self.assertEqual({}, self.world.measured())
        self.assertEqual({1001, 1002}, self.world.tasks('pqos'))

    def test_it_goes_with_the_guest(self):
        self.settled()
        self.world.end(0)
        self.assertEqual([('remove group', MONITOR)],
                         self.settled(without=(0,)))
        self.assertEqual({}, self.world.measured())

    def test_it_stays_while_the_guest_may_only_be_starting(self):
        self.settled()
        self.assertEqual([], self.settled(without=(0,)))
        wanted = dataclasses.replace(self.world.wanted(without=(0,)),
                                     removable=frozenset())
        self.world.end(0)
        self.assertEqual((), drift_of(self.world, wanted).actions)

    def test_it_goes_when_the_guest_is_held_by_another_group(self):
        self.settled()
        self.world.guests[0] = dataclasses.replace(
            self.world.guests[0], desired=self.world.guests[1].desired)
        self.assertIn(('remove group', MONITOR), self.settled())
        self.assertEqual({}, self.world.measured())
        self.assertEqual({1001, 1002}, self.world.tasks(
            naming.render_own_group_name(world.UUID.format(0))))
        self.assertEqual([], self.settled())

    def test_those_of_others_are_left_alone(self):
        for name in ('qemu-9-x-vcpus_0', 'ghsched-by-hand', 'pqos'):
            self.world.model.mkdir(f'/{naming.MONITORS}{name}')
        self.settled()
        self.world.end(0)
        self.settled(without=(0,))
        self.assertEqual(3, len(self.world.measured()))

    def test_without_a_monitoring_group_left_nothing_is_left_behind(self):
        def before(what, name, _text):
            if what == 'mkdir' and name == naming.render_own_group_name(
                    world.UUID.format(0)):
                raise OSError(errno.ENOSPC, 'Out of RMIDs')

        self.world.files.before = before
        problem, = self.world.reconcile().problems
        self.assertEqual((world.UUID.format(0), MONITOR),
                         (problem.guest, problem.group))
        self.assertIn('there is no monitoring group left', problem.reason)
        self.assertEqual({}, self.world.measured())

    def test_one_that_can_not_be_filled_is_taken_back(self):
        def before(what, _name, text):
            if what == 'tasks' and text == '1002\n':
                raise OSError(errno.EINVAL, 'no')

        self.world.files.before = before
        problem, = self.world.reconcile().problems
        self.assertEqual(world.UUID.format(0), problem.guest)
        self.assertEqual({}, self.world.measured())

    def test_a_guest_without_threads_has_a_problem(self):
        self.world.end(0)
        problem, = self.world.reconcile().problems
        self.assertIn('no thread of a vCPU', problem.reason)
        self.assertEqual({}, self.world.measured())

    def test_monitors_of_shared_groups_leave_it_its_own(self):
        self.world.guests[1] = dataclasses.replace(
            self.world.guests[1], shared='ghsched-shared-0123456789abcdef')
        for monitors, count in ((1, 0), (2, 1)):
            self.settled(monitors=monitors, monitors_per_group=9)
            self.assertEqual(count, len(self.world.files.directories(
                self.world.root / self.world.guests[1].group
                / 'mon_groups')))

    def test_actions_for_a_guest_follow_its_policy(self):
        for group, measures_only in (
            (MONITOR, False),
            ('ghsched-' + world.UUID.format(0), False),
            (naming.render_monitor_path(world.UUID.format(0), naming.DEFAULT),
             True),
        ):
            self.assertEqual(measures_only, model.Action(
                'make group', group, 'why').is_for_monitoring)


def drift_of(host, wanted):
    return world.reconcile.preview_reconciliation(
        host.place, wanted, host.files)
