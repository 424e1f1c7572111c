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


import errno
from pathlib import Path
import shutil
import tempfile

import testtools

from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import own
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.unit.resctrl import base

UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c11'
DESIRED = {'MB': {1: 60}, 'MBHDL': {1: 0}, 'MBPRI': {1: 5},
           'MBMIN': {1: 20}}


class GroupFiles(base.ModelFiles):
    """Also makes groups, and moves threads as the kernel does."""

    def __init__(self, model):
        super().__init__(model)
        self.moved, self.errors = [], {}

    def _fail(self, operation, path):
        number = self.errors.get(operation)
        if number:
            raise OSError(number, 'injected', str(path))

    def make_directory(self, path):
        self._fail('mkdir', path)
        path.mkdir()
        (path / 'tasks').write_text('')

    def remove_directory(self, path):
        self._fail('rmdir', path)
        shutil.rmtree(path)

    def write(self, path, text):
        if path.name == 'tasks':
            self._fail('tasks', path)
            self.moved.append(int(text))
            path.write_text(path.read_text() + text)
        else:
            super().write(path, text)


class OwnGroupTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        self.root, self.proc = top / 'resctrl', top / 'proc'
        (self.root / 'info').mkdir(parents=True)
        self.proc.mkdir()
        base.add_threads(self.proc, 100, {100: 'qemu-system-x86',
                                          101: 'CPU 0/KVM',
                                          102: 'CPU 1/KVM'})
        for tid in (100, 101, 102):
            (self.proc / '100' / 'task' / str(tid)).mkdir(parents=True,
                                                          exist_ok=True)
        self.pid_file = top / 'instance-00000001.pid'
        self.pid_file.write_text('100\n')
        self.files = GroupFiles(base.Model(base.openeuler(), range(2)))
        self.group = self.root / own.group_name(UUID)

    def enforce(self):
        return own.enforce(self.root, UUID, self.pid_file, {0, 1}, DESIRED,
                           {}, proc=self.proc, files=self.files,
                           lock_timeout=0.1)

    def remove(self):
        return own.remove(self.root, UUID, proc=self.proc, files=self.files,
                          lock_timeout=0.1)

    def refused(self):
        return self.assertRaises(apply.EnforcementError, self.enforce)

    def test_values_come_before_threads(self):
        applied = self.enforce()
        self.assertEqual(4, len(applied.writes))
        self.assertEqual((101, 102), applied.moved)
        self.assertEqual('101\n102\n', (self.group / 'tasks').read_text())

    def test_only_the_threads_of_vcpus_are_moved(self):
        self.enforce()
        self.assertEqual([101, 102], self.files.moved)

    def test_a_group_that_is_right_is_not_written(self):
        self.enforce()
        self.files.moved.clear()
        again = self.enforce()
        self.assertEqual(((), ()), (again.writes, again.moved))
        self.assertEqual([], self.files.moved)

    def test_a_thread_that_somebody_moved_away_comes_back(self):
        self.enforce()
        (self.group / 'tasks').write_text('101\n')
        self.assertEqual((102,), self.enforce().moved)

    def test_no_group_left_is_told_in_the_kernels_words(self):
        self.files.errors['mkdir'] = errno.ENOSPC
        self.files.status = 'Out of CLOSIDs'
        error = self.refused()
        self.assertIn('there is no control group left', str(error))
        self.assertIn('ENOSPC', str(error))
        self.assertIn('Out of CLOSIDs', str(error))

    def test_a_group_that_can_not_be_completed_is_removed(self):
        self.files.errors['tasks'] = errno.ESRCH
        self.refused()
        self.assertFalse(self.group.exists())

    def test_a_resctrl_that_vanishes_is_told_as_what_went_wrong_first(self):
        self.files.errors.update(tasks=errno.ENOENT, rmdir=errno.ENOENT)
        error = self.refused()
        self.assertIn('the write was refused', str(error))
        self.assertIn('ENOENT', str(error))

    def test_a_group_that_was_there_before_stays(self):
        self.enforce()
        (self.group / 'tasks').write_text('')
        self.files.errors['tasks'] = errno.ESRCH
        self.refused()
        self.assertTrue(self.group.exists())

    def test_a_guest_without_all_its_vcpus_is_refused(self):
        (self.proc / '102' / 'comm').write_text('worker\n')
        error = self.refused()
        self.assertIn('process 100', str(error))
        self.assertFalse(self.group.exists())

    def test_without_a_process_number_nothing_is_left(self):
        for text in ('', 'none'):
            self.pid_file.write_text(text)
            self.refused()
            self.assertFalse(self.group.exists())
        self.pid_file.unlink()
        self.refused()
        self.assertFalse(self.group.exists())

    def test_an_empty_group_is_removed(self):
        self.enforce()
        (self.group / 'tasks').write_text('')
        self.assertTrue(self.remove())
        self.assertFalse(self.group.exists())
        self.assertFalse(self.remove())

    def test_a_group_with_a_running_guest_is_not_removed(self):
        self.enforce()
        self.assertFalse(self.remove())
        self.assertTrue(self.group.exists())

    def test_a_group_that_the_kernel_keeps_is_told(self):
        self.enforce()
        (self.group / 'tasks').write_text('')
        self.files.errors['rmdir'] = errno.EBUSY
        error = self.assertRaises(apply.EnforcementError, self.remove)
        self.assertIn('EBUSY', str(error))

    def test_groups_of_others_are_not_ours(self):
        self.assertEqual(UUID, own.guest_of(own.group_name(UUID)))
        for name in ('info', 'mon_groups', 'qemu-1-a-vcpus_0', 'low_prio'):
            self.assertIsNone(own.guest_of(name))


class LibvirtReadsTestCase(testtools.TestCase):

    def reads(self, *lines):
        return schemata.libvirt_reads(
            schemata.parse(''.join(f'{line}:0=1\n' for line in lines)))

    def test_what_upstream_libvirt_knows(self):
        self.assertTrue(self.reads('MB', 'L3'))
        self.assertTrue(self.reads('MB', 'L3CODE', 'L3DATA', 'L2'))
        self.assertTrue(self.reads('MB', 'SMBA'))

    def test_lines_that_it_takes_for_others(self):
        for line in ('MBMIN', 'MBHDL', 'MBPRI', 'MB_HLIM', 'L3PRI', 'L3MAX'):
            self.assertFalse(self.reads('MB', 'L3', line))
