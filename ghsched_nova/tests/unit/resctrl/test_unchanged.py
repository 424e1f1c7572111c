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

"""Surveys after changes read what these concern, and find what is there."""

import collections
import contextlib
from pathlib import Path
import tempfile
from unittest import mock

from ghsched_nova.base import qemu
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import guest_processes
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import survey
from ghsched_nova.resctrl import tasks
from ghsched_nova.resctrl import unchanged
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

#: A group that libvirt left behind.
LEFT = 'qemu-91-instance-000000ff-vcpus_0-1'


class Reads:
    """Within this context, what each survey of a reconciliation reads.

    :ivar surveys: number of accesses by function, for each survey.
    """

    FUNCTIONS = ((world.Files, 'read'), (world.Files, 'directories'),
                 (qemu, 'find_qemu_process'),
                 (qemu, 'read_proc_file'),
                 (guest_processes, 'read_vhost_threads'),
                 (guest_processes, 'list_running_domains'),
                 (tasks, 'read_thread_name'))

    def __init__(self):
        self.surveys = []
        self._counting = False
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        for owner, name in self.FUNCTIONS:
            self._replace(owner, name, self._count)
        self._replace(survey, 'read_actual_state', self._begin)
        return self

    def __exit__(self, *error):
        self._stack.close()

    def _replace(self, owner, name, wrap):
        original = getattr(owner, name)

        def replacement(*args, **kwargs):
            with wrap(name):
                return original(*args, **kwargs)
        self._stack.enter_context(
            mock.patch.object(owner, name, replacement))

    @contextlib.contextmanager
    def _begin(self, _name):
        self.surveys.append(collections.Counter())
        self._counting = True
        yield
        self._counting = False

    @contextlib.contextmanager
    def _count(self, name):
        if self._counting:
            self.surveys[-1][name] += 1
        yield


class ReadTest(base.TestCase):
    """The second survey of a repair reads as much with 5 as with 50 guests."""

    def read_counts(self, guests, disturb, **more):
        with tempfile.TemporaryDirectory(dir=world.memory()) as top:
            host = world.World(
                Path(top), machines.build('openeuler66', emulated.NODES,
                                          closids=guests + 9),
                ('ghsched',) * guests)
            host.compares_surveys = False
            host.reconcile(**more)
            disturb(host)
            with Reads() as reads:
                report = host.reconcile(**more)
            self.assertNotEqual((), report.actions)
            self.assertEqual(((), []), (report.problems, host.wrong()))
        return reads.surveys

    def assert_second_survey_is_small(self, disturb, **more):
        few, many = (self.read_counts(guests, disturb, **more)
                     for guests in (5, 50))
        self.assertEqual(2, len(many))
        self.assertGreater(many[0].total(), 5 * few[0].total())
        self.assertEqual(few[1], many[1])
        self.assertNotEqual(0, many[1].total())

    @staticmethod
    def change_one_line(host):
        host.model.write(f'/{host.guests[3].group}/schemata', 'MBPRI:1=7\n')

    def test_survey_after_one_changed_line_reads_one_group(self):
        self.assert_second_survey_is_small(self.change_one_line)

    def test_survey_with_all_threads_after_one_line_lists_no_process(self):
        self.assert_second_survey_is_small(self.change_one_line,
                                           all_threads=True)

    def test_survey_after_a_moved_thread_reads_both_groups(self):
        self.assert_second_survey_is_small(lambda host: host.model.write(
            f'/{host.guests[0].group}/tasks', '2001\n'))

    def test_survey_after_a_removed_group_reads_no_guest(self):
        self.assert_second_survey_is_small(
            lambda host: host.model.mkdir('/' + LEFT))


class UnclearTest(base.TestCase):
    """The proof of a repair looks again at what was unclear before it."""

    def test_guest_without_pid_file_is_found_when_a_stray_thread_left(self):
        with tempfile.TemporaryDirectory(dir=world.memory()) as top:
            host = world.World(
                Path(top), machines.build('openeuler66', emulated.NODES),
                ('ghsched',) * 2)
            host.reconcile()
            first, second = host.guests
            (host.run / f'{second.domain.name}.pid').unlink()
            host.model.write(f'/{second.group}/tasks', '1001\n')
            report = host.reconcile()
        self.assertNotEqual((), report.actions)
        self.assertEqual((), report.problems)


class UnchangedTest(base.TestCase):

    ACTUAL = model.Actual(
        {'a': model.Group(frozenset({1, 2})), 'b': model.Group(
            frozenset({3}), devices=frozenset({17})), 'c': model.Group()},
        threads={}, monitors_of_others={'': 1, 'a': 2, 'b': 3},
        counters=model.Counters('file', {0: 1}, {
            ('a/mon_groups/x', 'event'): frozenset({0}),
            ('b', 'event'): frozenset({1})}))

    def unchanged(self, *actions):
        found = unchanged.select_unchanged_state(self.ACTUAL, actions)
        return (''.join(sorted(found.groups)), found.monitors_of_others,
                sorted(group for group, _event in found.counters.assigned))

    def test_group_in_whose_monitoring_group_is_written_is_changed(self):
        self.assertEqual(
            ('bc', {'b': 3}, ['b']), self.unchanged(model.Action(
                'assign counters', 'a/mon_groups/x', 'test', line='x')))

    def test_group_that_moved_threads_and_devices_leave_is_changed(self):
        for action, left in (
                (model.Action('move threads', 'c', 'test', threads=(2,)),
                 'b'),
                (model.Action('move devices', 'c', 'test', devices=(17,)),
                 'a')):
            self.assertEqual(left, self.unchanged(action)[0])
