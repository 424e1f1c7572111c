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

"""Files are written whole, or not at all."""

import errno
import os
from pathlib import Path
import stat
import tempfile
from unittest import mock

import fixtures

from ghsched_nova.cmd import files
from ghsched_placement.tests import base

#: Of nobody, where the tests are run by root.
NOBODY = 65534


class FilesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.useFixture(fixtures.TempDir()).path)
        self.path = self.top / 'out'

    def there(self):
        return {path.name: path.read_text() for path in self.top.iterdir()}

    def mode(self):
        return stat.S_IMODE(self.path.stat().st_mode)

    def without_privileges(self):
        """Permissions count for root too, until the test ends."""
        if os.geteuid() == 0:
            self.addCleanup(os.seteuid, 0)
            self.top.parent.chmod(0o755)
            os.seteuid(NOBODY)

    def can_not_rename(self, number):
        return mock.patch.object(os, 'replace',
                                 side_effect=OSError(number, 'x'))

    def test_a_check_makes_and_changes_nothing(self):
        files.check_writable(self.path)
        self.assertEqual({}, self.there())
        self.path.write_text('old')
        files.check_writable(self.path)
        self.assertEqual({'out': 'old'}, self.there())

    def test_the_error_names_what_the_user_named(self):
        absent = self.top / 'absent' / 'out'
        for work in (
            files.check_writable,
            lambda path: files.replace_file_content(path, ''),
        ):
            error = self.assertRaises(FileNotFoundError, work, absent)
            self.assertEqual(str(absent), error.filename)
            self.assertRaises(IsADirectoryError, work, self.top)

    def test_a_file_is_replaced(self):
        for text in ('one', 'two'):
            files.replace_file_content(self.path, text)
            self.assertEqual({'out': text}, self.there())

    def test_previous_content_stays_when_writing_fails(self):
        self.path.write_text('old')
        with self.can_not_rename(errno.ENOSPC):
            self.assertRaises(
                OSError, files.replace_file_content, self.path, 'new'
            )
        self.assertEqual({'out': 'old'}, self.there())

    def test_a_link_is_followed(self):
        link = self.top / 'link'
        link.symlink_to(self.path)
        for text in ('one', 'two'):
            files.check_writable(link)
            files.replace_file_content(link, text)
            self.assertTrue(link.is_symlink())
            self.assertFalse(self.path.is_symlink())
            self.assertEqual({'link': text, 'out': text}, self.there())

    def test_a_loop_of_links_is_an_error(self):
        self.path.symlink_to(self.path)
        for work in (
            files.check_writable,
            lambda path: files.replace_file_content(path, ''),
        ):
            self.assertEqual(errno.ELOOP,
                             self.assertRaises(OSError, work, self.path).errno)

    def test_a_device_stays_one(self):
        files.check_writable(Path(os.devnull))
        files.replace_file_content(Path(os.devnull), 'text')
        self.assertTrue(Path(os.devnull).is_char_device())

    def test_a_pipe_takes_what_comes(self):
        reading, writing = os.pipe()
        with open(reading, encoding='utf-8') as reader:
            with open(writing, 'wb'):
                for text in ('one', 'two'):
                    path = Path(f'/dev/fd/{writing}')
                    files.check_writable(path)
                    files.replace_file_content(path, text)
            self.assertEqual('onetwo', reader.read())

    def test_the_reader_of_a_pipe_does_not_see_the_check(self):
        os.mkfifo(self.path, 0o600)
        files.check_writable(self.path)     # nor is it waited for
        reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        with open(reader, encoding='utf-8') as opened:
            files.replace_file_content(self.path, 'text')
            self.assertEqual('text', opened.read())
        self.assertTrue(self.path.is_fifo())

    def test_a_pipe_of_somebody_else_is_refused(self):
        os.mkfifo(self.path)
        self.path.chmod(0o444)
        self.top.chmod(0o755)
        self.without_privileges()
        error = self.assertRaises(PermissionError, files.check_writable,
                                  self.path)
        self.assertEqual(str(self.path), error.filename)

    def test_a_file_that_is_given_open_is_written_itself(self):
        named = tempfile.NamedTemporaryFile('r', dir=self.top)
        without_name = tempfile.TemporaryFile('r', dir=self.top)
        with named, without_name:
            for opened in (named, without_name):
                path = Path(f'/dev/fd/{opened.fileno()}')
                files.check_writable(path)
                files.replace_file_content(path, 'text')
                self.assertEqual('text', opened.read())
            self.assertEqual({Path(named.name).name: 'text'}, self.there())

    def test_a_file_keeps_its_mode_and_owner(self):
        self.path.write_text('old')
        group = NOBODY if os.geteuid() == 0 else -1
        os.chown(self.path, group, group)
        before = self.path.stat()
        for mode in (0o600, 0o664):
            self.path.chmod(mode)
            files.replace_file_content(self.path, f'{mode}')
            self.assertEqual(mode, self.mode())
            self.assertEqual({'out': f'{mode}'}, self.there())
        after = self.path.stat()
        self.assertEqual((before.st_uid, before.st_gid),
                         (after.st_uid, after.st_gid))

    def test_a_new_file_has_the_usual_mode(self):
        self.addCleanup(os.umask, os.umask(0o027))
        files.replace_file_content(self.path, 'text')
        self.assertEqual(0o640, self.mode())

    def test_a_file_whose_name_is_fixed_is_written_in_place(self):
        self.path.write_text('old')
        before = self.path.stat().st_ino
        for number in (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS):
            with self.can_not_rename(number):
                files.check_writable(self.path)
                files.replace_file_content(self.path, f'{number}')
            self.assertEqual({'out': f'{number}'}, self.there())
            self.assertEqual(before, self.path.stat().st_ino)

    def test_a_name_that_can_not_be_given_is_an_error(self):
        with self.can_not_rename(errno.EACCES):
            self.assertRaises(
                PermissionError, files.replace_file_content, self.path, 'new')
        self.assertEqual({}, self.there())

    def in_a_fixed_directory(self, mode):
        self.path.write_text('old')
        self.path.chmod(mode)
        self.top.chmod(0o555)
        self.addCleanup(self.top.chmod, 0o755)
        self.without_privileges()

    def test_a_file_in_a_directory_that_is_not_writable(self):
        self.in_a_fixed_directory(0o666)
        files.check_writable(self.path)
        files.replace_file_content(self.path, 'new')
        self.assertEqual({'out': 'new'}, self.there())
        absent = self.top / 'absent'
        self.assertRaises(PermissionError, files.check_writable, absent)

    def test_a_file_that_is_not_writable_is_refused(self):
        self.in_a_fixed_directory(0o444)
        for work in (files.check_writable,
                     lambda path: files.replace_file_content(path, 'new')):
            self.assertRaises(PermissionError, work, self.path)
        self.assertEqual({'out': 'old'}, self.there())
