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


"""Reconcile on emulated kernels: drift, leaks, faults, and properties."""

import errno
import functools
from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.base import bounds
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import guest_processes
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import plan
from ghsched_nova.resctrl import reconcile
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

OLD = 'qemu-9-instance-000000ff-vcpus_0-1'


class ReconcileTestCase(base.TestCase):

    DIALECT = 'openeuler66'
    MAKERS = ('ghsched', 'libvirt', 'libvirt-process')

    def setUp(self):
        super().setUp()
        self.world = self.new_world(self.DIALECT)

    def new_world(self, dialect):
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        return world.World(top, dialect, self.MAKERS)

    def settled(self):
        report = self.world.reconcile()
        self.assertEqual((), report.problems)
        self.assertEqual([], self.world.wrong())
        return report

    def assert_nothing_to_do(self, **more):
        report = self.world.reconcile(**more)
        self.assertEqual(((), ()), (report.actions, report.problems))
        self.assertEqual([], self.world.files.operations)

    def kinds(self, report):
        return [(action.kind, action.group) for action in report.actions]


class DriftTest(ReconcileTestCase):

    def setUp(self):
        super().setUp()
        self.settled()
        self.groups = [guest.group for guest in self.world.guests]

    def test_unchanged_is_not_written(self):
        self.assert_nothing_to_do()

    def test_looking_writes_nothing(self):
        self.world.model.rmdir('/' + self.groups[0])
        self.world.files.operations.clear()
        report = self.world.preview()
        self.assertEqual('make group', report.actions[0].kind)
        self.assertEqual([], self.world.files.operations)

    def test_values_come_before_threads(self):
        self.world.model.rmdir('/' + self.groups[0])
        self.assertEqual(
            # A new group holds a hard limit already.
            ['make group'] + ['write line'] * 3 + ['move threads'],
            [kind for kind, _group in self.kinds(self.settled())])

    def test_a_group_that_an_operator_removed_is_made_again(self):
        for group in self.groups:
            self.world.model.rmdir('/' + group)
            self.assertIn(('make group', group), self.kinds(self.settled()))
            self.assert_nothing_to_do()

    def test_a_value_that_somebody_changed_is_put_right(self):
        self.world.model.write(f'/{self.groups[1]}/schemata', 'MBPRI:1=7\n')
        action, = self.settled().actions
        self.assertEqual(('write line', self.groups[1], 'MBPRI:1=5\n'),
                         (action.kind, action.group, action.line))
        self.assertIn('MBPRI of domain 1 is', action.reason)

    def test_a_thread_that_escaped_comes_back(self):
        self.world.model.write('/tasks', '1002\n')
        action, = self.settled().actions
        self.assertEqual((1002,), action.threads)
        self.assertIn('vCPUs 1', action.reason)

    def test_a_vcpu_that_was_plugged_in_is_added(self):
        self.world.guests[1] = model.ResctrlGuest(
            self.world.guests[1].domain, frozenset(range(4)), 3,
            self.world.guests[1].desired, 'libvirt')
        self.world.model.rmdir('/' + self.groups[1])
        self.world.thread(2000, 2010, 'CPU 3/KVM')
        self.settled()
        self.assertEqual({2001, 2002, 2010},
                         self.world.tasks(self.world.guests[1].group))

    def test_a_whole_process_is_kept_together(self):
        group = self.groups[2]
        self.assertEqual('qemu-3-instance-00000002', group)
        self.assertEqual({3000, 3001, 3002, 3003}, self.world.tasks(group))
        self.world.model.write('/tasks', '3003\n')
        self.assertIn('1 other threads', self.settled().actions[0].reason)

    def test_other_threads_stay_out_unless_they_are_asked_for(self):
        self.assertEqual({1001, 1002}, self.world.tasks(self.groups[0]))
        self.world.thread(2, 77, 'vhost-1000', guest_processes.KERNEL_THREAD)
        report = self.world.reconcile(all_threads=True)
        self.assertEqual((), report.problems)
        self.assertEqual({1000, 1001, 1002, 1003, 77},
                         self.world.tasks(self.groups[0]))
        self.assert_nothing_to_do(all_threads=True)

    def test_a_process_that_only_has_the_name_of_a_helper_stays_out(self):
        for tid, name, flags in ((7001, 'vhost-1000', 0x400000),
                                 (7002, 'a) S 2 0 0 0 -1 2097152', 0)):
            self.world.thread(7000, tid, name, flags)
        (self.world.proc / '7002' / 'comm').write_text('vhost-1000\n')
        self.world.reconcile(all_threads=True)
        self.assertEqual({1000, 1001, 1002, 1003},
                         self.world.tasks(self.groups[0]))

    def test_vcpus_of_somebody_else_are_reported(self):
        self.world.thread(7000, 7001, 'CPU 0/KVM')
        self.world.model.write(f'/{self.groups[0]}/tasks', '7001\n')
        problem, = self.world.reconcile().problems
        self.assertIn('another guest are in it: 7001', str(problem))

    def test_vcpus_of_two_guests_are_distinguished(self):
        self.world.model.write(f'/{self.groups[0]}/tasks', '2001\n')
        self.settled()
        self.assertNotIn(2001, self.world.tasks(self.groups[0]))

    def test_without_libvirts_file_the_threads_in_the_group_are_the_guests(
            self):
        (self.world.run / 'instance-00000001.pid').unlink()
        self.assert_nothing_to_do()
        self.world.model.rmdir('/' + self.groups[1])
        problem, = self.world.reconcile().problems
        self.assertIn('no thread of a vCPU', problem.reason)
        self.assertNotIn(self.groups[1], self.world.groups())


class LeakTest(ReconcileTestCase):

    def setUp(self):
        super().setUp()
        self.settled()

    def test_a_group_that_libvirt_left_is_removed(self):
        self.world.model.mkdir('/' + OLD)
        action, = self.settled().actions
        self.assertEqual(('remove group', OLD), (action.kind, action.group))
        self.assertNotIn(OLD, self.world.groups())

    def test_one_of_a_number_that_was_given_again_is_removed(self):
        old = 'qemu-2-instance-000000ff-vcpus_0-1'
        self.world.model.mkdir('/' + old)
        self.settled()
        self.assertNotIn(old, self.world.groups())

    def test_one_of_a_guest_that_runs_under_another_number_is_removed(self):
        old = 'qemu-7-instance-00000001-vcpus_0-1'
        self.world.model.mkdir('/' + old)
        self.settled()
        self.assertNotIn(old, self.world.groups())

    def test_one_with_threads_stays(self):
        self.world.model.mkdir('/' + OLD)
        self.world.thread(8000, 8000, 'anything')
        self.world.model.write(f'/{OLD}/tasks', '8000\n')
        self.assert_nothing_to_do()

    def test_one_of_a_guest_that_starts_stays(self):
        self.world.model.mkdir('/' + OLD)
        self.world.thread(8000, 8000, 'qemu')
        (self.world.run / 'instance-000000ff.pid').write_text('8000')
        self.assert_nothing_to_do()

    def test_one_that_came_after_the_domains_were_listed_stays(self):
        wanted = self.world.wanted()
        self.world.model.mkdir('/' + OLD)
        report = reconcile.reconcile_groups(self.world.place, wanted,
                                            self.world.files)
        self.assertEqual((), report.actions)

    def test_the_groups_of_guests_that_died_are_removed(self):
        for number in range(3):
            self.world.end(number)
        report = self.world.reconcile(without=(0, 1, 2))
        self.assertEqual(
            {('remove group', guest.group) for guest in self.world.guests},
            set(self.kinds(report)))
        self.assertEqual([], self.world.groups())

    def test_our_group_stays_while_a_guest_is_in_it(self):
        self.assertEqual((), self.world.reconcile(without=(0,)).actions)

    def test_others_are_not_touched_and_counted(self):
        for name in world.OTHERS:
            self.world.model.mkdir('/' + name)
            self.world.model.write(f'/{name}/schemata', 'MB:0=7\n')
        before = self.world.foreign()
        report = self.settled()
        self.assertEqual(tuple(sorted(world.OTHERS)), report.foreign)
        self.assertEqual(before, self.world.foreign())

    def test_the_group_of_a_domain_without_a_policy_is_foreign(self):
        self.world.model.mkdir('/' + OLD)
        wanted = self.world.wanted()
        domain = model.Domain(world.UUID.format(99), 9, 'instance-000000ff')
        report = reconcile.reconcile_groups(
            self.world.place, model.Wanted(
                wanted.guests, (*wanted.domains, domain), wanted.removable,
                wanted.others), self.world.files)
        self.assertEqual(((), (OLD,)), (report.actions, report.foreign))


class KernelWorkTest(ReconcileTestCase):
    """A kernel that binds its own work to a group (AMD)."""

    DIALECT = 'amd-gmb'
    BIND = 'global_assign_ctrl_assign_mon_per_cpu:group='

    def test_bound_group_is_not_removed_as_a_leak(self):
        self.settled()
        other = OLD.replace('-9-', '-8-')
        for name in (OLD, other):
            self.world.model.mkdir(f'/{name}')
        self.world.model.write('/info/kernel_mode', f'{self.BIND}{OLD}//\n')
        plan = self.world.preview()
        self.assertEqual((('remove group', other),), tuple(self.kinds(plan)))
        self.assertEqual(plan.actions, self.settled().actions)
        self.assertIn(f'[{self.BIND}{OLD}//]',
                      self.world.model.read('/info/kernel_mode'))
        self.world.model.write('/info/kernel_mode', 'inherit_ctrl_and_mon\n')
        self.assertEqual([('remove group', OLD)], self.kinds(self.settled()))


class FaultTest(ReconcileTestCase):
    """After each: nothing left, and nobody silently without a policy."""

    def fail(self, number, what, text='', group='', times=99):
        left = [times]

        def before(operation, name, data):
            if (operation == what and text in data and group in name
                    and left[0]):
                left[0] -= 1
                raise OSError(number, 'injected')

        self.world.files.before = before

    def repaired(self):
        self.world.files.before = lambda *operation: None
        self.settled()

    def test_enospc_leaves_the_others_with_their_policy(self):
        self.fail(errno.ENOSPC, 'mkdir', group='ghsched-')
        problem, = self.world.reconcile().problems
        self.assertIn('no control group left', problem.reason)
        self.assertIn('ENOSPC', problem.reason)
        self.assertEqual(self.world.guests[0].domain.uuid, problem.guest)
        self.assertEqual([self.world.guests[0].group], self.world.wrong())
        self.assertNotIn(self.world.guests[0].group, self.world.groups())
        self.repaired()

    def test_a_group_that_was_left_makes_room(self):
        for number in range(self.world.host.num_closids - 1):
            self.world.model.mkdir(f'/qemu-{number + 50}-x-vcpus_0')
        self.assertRaises(kernel.ResctrlError, self.world.model.mkdir, '/x')
        self.settled()

    def test_einval_on_the_way_leaves_no_half_made_group(self):
        self.fail(errno.EINVAL, 'schemata', 'MBPRI')
        report = self.world.reconcile()
        self.assertEqual(3, len(report.problems))
        for problem in report.problems:
            self.assertIn('MBPRI:', problem.reason)
            self.assertIn('EINVAL', problem.reason)
        self.assertEqual([], self.world.groups())
        self.assertEqual(3, [action.reason for action in report.actions]
                         .count('it could not be completed'))
        self.repaired()

    def test_einval_of_a_group_that_was_there_keeps_it(self):
        self.settled()
        group = self.world.guests[1].group
        self.world.model.write(f'/{group}/schemata', 'MBMIN:1=90\n')
        self.fail(errno.EINVAL, 'schemata')
        problem, = self.world.reconcile().problems
        self.assertIn('MBMIN:1=11', problem.reason)
        # It stands beside the reason; Nova cuts off what is too long.
        self.assertNotIn(group, problem.reason)
        self.assertIn(group, self.world.groups())
        self.repaired()

    def test_a_thread_that_has_just_died_stops_nobody(self):
        self.fail(errno.ESRCH, 'tasks', '3003')
        report = self.world.reconcile()
        # It is still to be seen here, so that is told.
        self.assertIn('still needed', report.problems[0].reason)
        self.assertEqual([], self.world.wrong())

    def test_a_guest_that_has_just_died_leaves_no_group(self):
        self.fail(errno.ESRCH, 'tasks', '100')
        problem, = self.world.reconcile().problems
        self.assertIn('have ended meanwhile', problem.reason)
        self.assertNotIn(self.world.guests[0].group, self.world.groups())
        self.repaired()

    def test_a_guest_that_died_before_is_not_given_a_group(self):
        self.world.end(0)
        problem, = self.world.reconcile().problems
        self.assertIn('is not there', problem.reason)
        self.assertNotIn(self.world.guests[0].group, self.world.groups())

    def test_a_write_that_the_kernel_drops_is_reported(self):
        self.settled()
        group = self.world.guests[0].group
        self.world.model.write(f'/{group}/schemata', 'MBMIN:0=90\n')
        write = type(self.world.files).write

        class Deaf(type(self.world.files)):
            def write(this, path, text):
                if 'MBMIN' not in text:
                    write(this, path, text)

        self.world.files.__class__ = Deaf
        problem, = self.world.reconcile().problems
        self.assertIn('still needed: MBMIN of domain 0', problem.reason)

    def test_a_kill_at_any_moment_is_completed_by_the_next_run(self):
        total = len(self.settled_operations())
        self.assertGreater(total, 15)
        for moment in range(total):
            self.world = self.new_world(self.DIALECT)
            self.world.model.mkdir('/' + OLD)
            self.world.files.kill_at(moment)
            self.assertRaises(KeyboardInterrupt, self.world.reconcile)
            self.repaired()
            self.assertEqual({guest.group for guest in self.world.guests},
                             set(self.world.groups()))
            self.assert_nothing_to_do()

    def settled_operations(self):
        self.world.model.mkdir('/' + OLD)
        self.settled()
        return self.world.files.operations

    def test_a_kill_before_the_guest_ended_leaves_no_group(self):
        self.world.files.before = self._kill_at_first_write
        self.assertRaises(KeyboardInterrupt, self.world.reconcile)
        self.world.files.before = lambda *operation: None
        for number in range(3):
            self.world.end(number)
        self.world.reconcile(without=(0, 1, 2))
        self.assertEqual([], self.world.groups())

    @staticmethod
    def _kill_at_first_write(what, *_rest):
        if what == 'schemata':
            raise KeyboardInterrupt

    def test_unmounted_and_mounted_again(self):
        self.settled()
        (self.world.root / 'info').rmdir()
        error = self.assertRaises(fs.GroupError,
                                  self.world.reconcile)
        self.assertIn('still mounted', error.reason)
        # A new mount has no group.
        (self.world.root / 'info').mkdir()
        for group in self.world.groups():
            self.world.model.rmdir('/' + group)
        self.assertEqual(3, [kind for kind, _group in
                             self.kinds(self.settled())].count('make group'))

    def test_a_garbled_schemata_is_not_written(self):
        self.settled()
        read = self.world.files.read

        def garbled(path):
            return 'MB 0=1\n' if path.name == 'schemata' else read(path)

        self.world.files.read = garbled
        report = self.world.reconcile()
        self.assertEqual(3, len(report.problems))
        self.assertIn('no colon', report.problems[0].reason)
        self.assertEqual([], self.world.files.operations)


class EveryDialectTest(ReconcileTestCase):
    """Reconciliation from nothing; from any other state see :mod:`fuzz`."""

    def test_from_nothing(self):
        for dialect in machines.DIALECTS:
            self.world = self.new_world(dialect)
            self.settled()
            self.assert_nothing_to_do()


@functools.cache
def _names():
    letters = st.characters(codec='utf-8', exclude_characters='/\0')
    return st.text(letters, min_size=1, max_size=90)


class NamesTest(base.TestCase):

    def guest(self, name, maker='libvirt', number=7):
        return model.ResctrlGuest(model.Domain(world.UUID.format(1), number,
                                               name),
                                  frozenset({0, 1, 2, 5}), 4, {}, maker)

    def test_as_libvirt_makes_them(self):
        self.assertEqual('qemu-7-instance-0001-vcpus_0-2,5',
                         self.guest('instance-0001').group)
        self.assertEqual('qemu-7-a-b.c', self.guest(
            '-.a--_b.-c', 'libvirt-process').group)
        for name, made in (('web-1-', 'qemu-7-web-1'),
                           ('web-\xfc-1', 'qemu-7-web-1')):
            self.assertEqual(made, self.guest(name, 'libvirt-process').group)
        long = self.guest('x' * 100).group.removesuffix('-vcpus_0-2,5')
        self.assertEqual(64, len(long))

    @given(_names(), st.sampled_from(['libvirt', 'libvirt-process',
                                      'ghsched']))
    def test_a_guest_finds_its_group_and_nobody_takes_it(self, name, maker):
        guest = self.guest(name, maker)
        self.assertEqual(guest.group, model.find_guest_group(
            guest, ['other', guest.group]))
        self.assertTrue(naming.parse_group_name(guest.group).is_managed)
        wanted = model.Wanted((), (guest.domain,), frozenset({guest.group}))
        made = plan.make_plan(
            model.Actual({guest.group: model.Group()}), wanted)
        self.assertEqual((), made.actions)

    def test_invalid_desired_states_are_refused(self):
        good = self.guest('x')
        bounds.check(model.Wanted((good,), (good.domain,)))
        for bad in (self.guest('../x'), self.guest('x', number=-1),
                    self.guest('x', 'me'),
                    model.ResctrlGuest(good.domain, frozenset(), 0, {},
                                       'libvirt'),
                    model.ResctrlGuest(good.domain, good.vcpus, 1,
                                       {'MB:0=1\nMB': {0: 1}}, 'libvirt'),
                    model.ResctrlGuest(good.domain, good.vcpus, 1,
                                       {'MB': {0: -1}}, 'libvirt'),
                    model.ResctrlGuest(model.Domain('../..', 1, 'x'),
                                       good.vcpus, 1,
                                       {}, 'ghsched')):
            self.assertRaises(ValueError, bounds.check,
                              model.Wanted((bad,)))
