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
import fcntl
import os
from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import strategies as st
import testtools

from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import plan
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.unit.resctrl import base

GROUP = 'qemu-3-instance-00000001-vcpus_0-1'
DESIRED = {'MB': {1: 60}, 'MBHDL': {1: 0}, 'MBPRI': {1: 5},
           'MBMIN': {1: 20}}
WRITES = ('MB:1=60\n', 'MBHDL:1=0\n', 'MBPRI:1=5\n', 'MBMIN:1=20\n')


class _Base(testtools.TestCase):

    def setUp(self):
        super().setUp()
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        self.root, self.proc = top / 'resctrl', top / 'proc'
        (self.root / 'info').mkdir(parents=True)
        self.group = self.root / GROUP
        self.group.mkdir()
        (self.group / 'tasks').write_text('101\n102\n')
        self.proc.mkdir()
        base.add_threads(self.proc, 100, {101: 'CPU 0/KVM', 102: 'CPU 1/KVM'})
        self.host = base.openeuler()
        self.model = base.Model(self.host, range(2))
        self.files = base.ModelFiles(self.model)

    def _call(self, function, *args, desired=DESIRED, **kwargs):
        kwargs = {'proc': self.proc, 'files': self.files,
                  'lock_timeout': 0.1} | kwargs
        return function(self.root, 3, {0, 1}, desired, *args, **kwargs)

    def enforce(self, *args, **kwargs):
        return self._call(apply.enforce, *args, **kwargs)

    def verify(self, *args, **kwargs):
        return self._call(apply.verify, *args, **kwargs)

    def refused(self, *args, **kwargs):
        return self.assertRaises(apply.EnforcementError, self.enforce, *args,
                                 **kwargs)


class EnforceTestCase(_Base):

    def test_what_differs_is_written_line_by_line(self):
        applied = self.enforce()
        self.assertEqual((GROUP, WRITES), (applied.group, applied.writes))
        self.assertEqual(WRITES, tuple(self.files.writes))
        self.assertEqual({0: 100, 1: 60}, applied.schemata.values('MB'))

    def test_unchanged_is_not_written(self):
        self.enforce()
        self.files.writes.clear()
        self.assertEqual((), self.enforce().writes)
        self.assertEqual([], self.files.writes)

    def test_other_domains_are_put_right(self):
        self.model.held['MB'][0] = 3
        others = plan.other_domains(self.host)
        self.assertEqual('MB:0=100;1=60\n', self.enforce(others).writes[0])
        self.assertEqual((), self.verify(others))

    def test_a_refused_line_is_named_with_the_kernels_words(self):
        self.files.refuse = {'MBPRI': (
            errno.EINVAL, 'MBPRI value 9 out of range [0,7]')}
        exc = self.refused()
        self.assertEqual(
            (str(self.group / 'schemata'), 'MBPRI:1=5', errno.EINVAL,
             'MBPRI value 9 out of range [0,7]'),
            (exc.path, exc.line, exc.errno, exc.status))
        for part in (GROUP, 'MBPRI:1=5', 'EINVAL', 'out of range [0,7]'):
            self.assertIn(part, str(exc))
        self.assertEqual(list(WRITES[:3]), self.files.writes)

    def test_last_status_ok_is_no_news(self):
        self.files.refuse = {'MB': (errno.ENODEV, 'ok')}
        self.assertEqual('', self.refused().status)

    def test_a_write_that_did_not_take_is_found(self):
        self.files.deaf = True
        self.assertIn('MB of domain 1 is 0000100, wanted is 60',
                      self.refused().reason)

    def test_a_line_the_group_has_not_is_found_before_any_write(self):
        del self.model.held['MBHDL']
        self.assertIn('no MBHDL of domain 1', self.refused().reason)
        self.assertEqual([], self.files.writes)

    def test_threads_of_another_guest(self):
        (self.group / 'tasks').write_text('101\n')
        exc = self.refused()
        self.assertIn('vCPUs 1 are not in it', exc.reason)
        self.assertEqual(str(self.group / 'tasks'), exc.path)
        self.assertEqual([], self.files.writes)

    def test_no_group(self):
        shutil.rmtree(self.group)
        self.assertIn('no control group of domain 3', self.refused().reason)

    def test_resctrl_is_not_mounted(self):
        (self.root / 'info').rmdir()
        self.assertIn('still mounted', self.refused().reason)
        shutil.rmtree(self.root)
        self.assertEqual(errno.ENOENT, self.refused().errno)

    def test_garbled_schemata(self):
        self.model.text = lambda: 'MB 0=1\n'
        self.assertIn('no colon', self.refused().reason)

    def test_the_lock_is_waited_for_and_given_back(self):
        holder = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX)
            exc = self.refused()
            self.assertIn('held the lock for 0.1 seconds', str(exc))
            self.assertEqual([], self.files.writes)
        finally:
            os.close(holder)
        self.enforce()
        self.enforce()


class ForgottenGroupTestCase(_Base):
    """libvirt forgot a group of the same domain id, and it is still there."""

    def setUp(self):
        super().setUp()
        self.old = self.root / GROUP.replace('instance', 'old-instance')
        shutil.copytree(self.group, self.old)

    def test_the_group_with_the_threads_is_the_guests(self):
        (self.old / 'tasks').write_text('')
        self.assertEqual(GROUP, self.enforce().group)

    def test_none_is_taken_when_neither_or_both_have_threads(self):
        exc = self.assertRaises(apply.EnforcementError, self.enforce)
        self.assertIn('2 of the control groups', str(exc))
        for group in (self.old, self.group):
            (group / 'tasks').write_text('')
        exc = self.assertRaises(apply.EnforcementError, self.enforce)
        self.assertIn('0 of the control groups', str(exc))
        self.assertEqual([], self.files.writes)


class VerifyTestCase(_Base):

    def test_differences_are_told_and_nothing_is_written(self):
        self.assertEqual(
            ['MB of domain 1 is 0000100, wanted is 60',
             'MBHDL of domain 1 is 0000001, wanted is 0',
             'MBPRI of domain 1 is 0000003, wanted is 5',
             'MBMIN of domain 1 is 0000000, wanted is 20'],
            [str(difference) for difference in self.verify()])
        self.assertEqual([], self.files.writes)

    def test_a_missing_domain_is_a_difference(self):
        wrong, = self.verify(desired={'MB': {9: 1}})
        self.assertIsNone(wrong.found)
        self.assertIn('is missing', str(wrong))

    def test_nothing_to_tell(self):
        self.enforce()
        self.assertEqual((), self.verify())


class FilesTestCase(_Base):

    def test_a_file_is_written_in_place(self):
        file = self.group / 'schemata'
        file.write_text('')
        apply.Files().write(file, 'MB:0=10\n')
        self.assertEqual('MB:0=10\n', file.read_text())

    def test_a_file_that_has_gone_is_not_made(self):
        file = self.group / 'schemata'
        self.assertRaises(FileNotFoundError, apply.Files().write, file, 'x')
        self.assertFalse(file.exists())

    def test_directories_alone_are_listed(self):
        (self.root / 'schemata').write_text('')
        self.assertEqual(['info', GROUP],
                         apply.Files().directories(self.root))


class ErrorTestCase(testtools.TestCase):

    @given(st.tuples(st.text(), st.text(), st.text(), st.integers(0, 140),
                     st.text()))
    def test_it_can_be_made_again_from_its_arguments(self, args):
        # oslo.privsep sends the class and the arguments alone.
        first = apply.EnforcementError(*args)
        again = apply.EnforcementError(*first.args)
        self.assertEqual((str(first), vars(first)), (str(again), vars(again)))


class ModelTestCase(testtools.TestCase):

    def test_the_model_reads_like_a_kernel(self):
        text = base.Model(base.openeuler(), range(2)).text()
        self.assertEqual({0: 3, 1: 3}, schemata.parse(text).values('MBPRI'))
