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
import threading

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.resctrl import fs
from ghsched_placement.tests import base


class FilesTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.root = Path(tempfile.mkdtemp()) / 'resctrl'
        self.addCleanup(shutil.rmtree, self.root.parent)
        (self.root / 'info').mkdir(parents=True)
        self.group = self.root / 'g'
        self.group.mkdir()
        self.files = fs.Files()


class LockTest(FilesTestCase):

    def locked(self):
        with fs.resctrl_lock(self.files, self.root, 0.1):
            return True

    def refused(self):
        return self.assertRaises(fs.GroupError, self.locked)

    def test_resctrl_is_not_mounted(self):
        (self.root / 'info').rmdir()
        self.assertIn('still mounted', self.refused().reason)
        shutil.rmtree(self.root)
        self.assertEqual(errno.ENOENT, self.refused().errno)
        self.root.mkdir()       # for the clean-up

    def test_the_lock_is_waited_for_and_given_back(self):
        holder = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX)
            self.assertIn('held the lock for 0.1 seconds',
                          str(self.refused()))
        finally:
            os.close(holder)
        self.assertTrue(self.locked())
        self.assertTrue(self.locked())


class WaitForWriterTest(FilesTestCase):

    def take_lock(self, kind=fcntl.LOCK_EX):
        holder = os.open(self.root, os.O_RDONLY)
        self.addCleanup(os.close, holder)
        fcntl.flock(holder, kind)
        return holder

    def test_reader_waits_until_the_writer_is_done(self):
        holder = self.take_lock()
        done = threading.Event()

        def read():
            fs.wait_for_writer(self.root, base.GIVE_UP_S)
            done.set()

        reader = threading.Thread(target=read)
        reader.start()
        self.assertFalse(done.wait(0.3))
        fcntl.flock(holder, fcntl.LOCK_UN)
        self.assertTrue(done.wait(base.GIVE_UP_S))
        reader.join()

    def test_reader_goes_on_next_to_a_writer_that_does_not_end(self):
        self.take_lock()
        fs.wait_for_writer(self.root, 0.1)

    def test_reader_keeps_no_lock(self):
        fs.wait_for_writer(self.root, 0.1)
        self.take_lock(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_reader_without_access_to_the_lock_goes_on(self):
        fs.wait_for_writer(self.root / 'absent', 0.1)


class WriteTest(FilesTestCase):

    def refused(self, status):
        (self.root / 'info' / 'last_cmd_status').write_text(f'{status}\n')
        return self.assertRaises(
            fs.GroupError, fs.write_line, self.files, self.root,
            self.group / 'schemata', 'MBPRI:1=5\n')

    def test_a_refused_line_is_named_with_the_kernels_words(self):
        exc = self.refused('MBPRI value 9 out of range [0,7]')
        self.assertEqual(
            (str(self.group / 'schemata'), 'MBPRI:1=5', errno.ENOENT,
             'MBPRI value 9 out of range [0,7]'),
            (exc.path, exc.line, exc.errno, exc.status))
        for part in ('g/schemata', 'MBPRI:1=5', 'ENOENT',
                     'out of range [0,7]'):
            self.assertIn(part, str(exc))

    def test_last_status_ok_is_no_news(self):
        self.assertEqual('', self.refused('ok').status)


class FilesTest(FilesTestCase):

    def test_a_file_is_written_in_place(self):
        file = self.group / 'schemata'
        file.write_text('')
        fs.Files().write(file, 'MB:0=10\n')
        self.assertEqual('MB:0=10\n', file.read_text())

    def test_a_file_that_has_gone_is_not_made(self):
        file = self.group / 'schemata'
        self.assertRaises(FileNotFoundError, fs.Files().write, file, 'x')
        self.assertFalse(file.exists())

    def test_directories_alone_are_listed(self):
        (self.root / 'schemata').write_text('')
        self.assertEqual(['g', 'info'],
                         fs.Files().directories(self.root))


class ErrorTest(base.TestCase):

    @given(st.tuples(st.text(), st.text(), st.text(), st.integers(0, 140),
                     st.text()))
    def test_it_can_be_made_again_from_its_arguments(self, args):
        # oslo.privsep sends the class and the arguments alone.
        first = fs.GroupError(*args)
        again = fs.GroupError(*first.args)
        self.assertEqual((str(first), vars(first)), (str(again), vars(again)))
