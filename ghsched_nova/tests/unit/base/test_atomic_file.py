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
import json
import os
from pathlib import Path
import stat
import tempfile
import threading
from unittest import mock

from ghsched_nova.base import atomic_file
from ghsched_placement.tests import base


class ReplaceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = Path(self.enterContext(
            tempfile.TemporaryDirectory()))
        self.path = self.directory / 'state.json'

    def test_replace_writes_the_file_with_the_usual_mode(self):
        atomic_file.write_file(self.path, 'text')
        self.assertEqual('text', self.path.read_text())
        mask = os.umask(0)
        os.umask(mask)
        self.assertEqual(0o666 & ~mask,
                         stat.S_IMODE(self.path.stat().st_mode))

    def test_new_state_file_is_for_its_owner_and_its_group_only(self):
        mask = os.umask(0)
        self.addCleanup(os.umask, mask)
        atomic_file.write_state_file(self.path, 'text')
        self.assertEqual(0o640, stat.S_IMODE(self.path.stat().st_mode))
        self.path.chmod(0o644)
        atomic_file.write_state_file(self.path, 'after')
        self.assertEqual(0o644, stat.S_IMODE(self.path.stat().st_mode))

    def test_new_state_file_belongs_to_the_group_of_its_readers(self):
        group = mock.Mock(gr_gid=os.getgid())
        with (mock.patch.object(atomic_file.grp, 'getgrnam',
                                return_value=group) as find,
              mock.patch.object(atomic_file.os, 'chown') as chown):
            atomic_file.write_state_file(self.path, 'text')
            atomic_file.write_state_file(self.path, 'after')
            chown.side_effect = PermissionError
            atomic_file.write_state_file(self.directory / 'other', 'text')
        find.assert_called_with('ghsched-resctrl')
        self.assertEqual(mock.call(self.path, -1, os.getgid(),
                                   follow_symlinks=False),
                         chown.mock_calls[0])
        self.assertEqual(2, chown.call_count)

    def test_content_is_not_open_to_others_before_it_has_its_mode(self):
        self.path.write_text('before')
        self.path.chmod(0o600)
        seen = []
        chmod = os.fchmod
        with mock.patch.object(
                atomic_file.os, 'fchmod', lambda file, mode: (
                    seen.append(stat.S_IMODE(os.fstat(file).st_mode)),
                    chmod(file, mode))):
            atomic_file.write_file(self.path, 'after')
        self.assertEqual([0o600], seen)

    def test_replaced_temporary_file_harms_no_other_file(self):
        """The owner of the directory swaps the name for a link to a file."""
        victim = self.directory / 'victim'
        victim.write_text('precious')
        victim.chmod(0o600)
        for name in ('fchmod', 'fchown', 'fsync'):
            self.path.write_text('before')
            self.path.chmod(0o666)
            real = getattr(os, name)

            def swap(*arguments, real=real):
                for path in self.directory.glob('.ghsched-*'):
                    path.unlink()
                    path.symlink_to(victim)
                return real(*arguments)

            with mock.patch.object(atomic_file.os, name, swap):
                error = self.assertRaises(OSError, atomic_file.write_file,
                                          self.path, 'after')
            self.assertEqual(errno.ESTALE, error.errno)
            self.assertEqual('before', self.path.read_text())
            self.assertFalse(self.path.is_symlink())
            self.assertEqual(0o600, stat.S_IMODE(victim.stat().st_mode))
        self.assertEqual('precious', victim.read_text())

    def test_replaced_directory_gets_no_file(self):
        """The parent is renamed, and a link to another directory is there."""
        own, other = self.directory / 'own', self.directory / 'other'
        own.mkdir()
        other.mkdir()
        real = os.fsync

        def swap(descriptor):
            if own.is_dir() and not own.is_symlink():
                own.rename(self.directory / 'moved')
                own.symlink_to(other)
            real(descriptor)

        with mock.patch.object(atomic_file.os, 'fsync', swap):
            atomic_file.write_file(own / 'state.json', 'text')
        self.assertEqual([], list(other.iterdir()))

    def test_temporary_files_of_killed_writers_are_removed_at_start(self):
        old, new, named = (self.directory / name for name in (
            '.ghsched-0123456789abcdef', '.ghsched-0123456789abcde0',
            '.ghsched-own'))
        for path in (old, new, named):
            path.write_text('x')
        for path in (old, named):
            os.utime(path, (1, 1))
        atomic_file.write_file(self.path, 'text')
        self.assertEqual({new, named, self.path},
                         set(self.directory.iterdir()))

    def test_directory_that_cannot_be_read_keeps_what_is_there(self):
        atomic_file.remove_leftover_files(self.directory / 'nowhere')

    def test_replace_keeps_the_mode_of_the_file(self):
        self.path.write_text('before')
        self.path.chmod(0o640)
        atomic_file.write_file(self.path, 'after')
        self.assertEqual(0o640, stat.S_IMODE(self.path.stat().st_mode))

    def test_replace_link_leaves_the_file_behind_it(self):
        victim = self.directory / 'victim'
        victim.write_text('precious')
        self.path.symlink_to(victim)
        (self.directory / 'state.new').symlink_to(victim)
        atomic_file.write_file(self.path, 'text')
        self.assertEqual('precious', victim.read_text())
        self.assertFalse(self.path.is_symlink())

    def test_replace_is_on_the_disk_before_and_after_it_has_the_name(self):
        calls = mock.Mock()
        with (mock.patch.object(atomic_file.os, 'fsync', calls.fsync),
              mock.patch.object(atomic_file.os, 'replace', calls.replace)):
            atomic_file.write_file(self.path, 'text')
        self.assertEqual(['fsync', 'replace', 'fsync'],
                         [call[0] for call in calls.mock_calls])

    def test_replace_on_a_full_disk_leaves_what_was_there(self):
        atomic_file.write_file(self.path, 'before')
        with mock.patch.object(atomic_file.os, 'fsync', side_effect=OSError(
                errno.ENOSPC, 'full')):
            self.assertRaises(OSError, atomic_file.write_file, self.path, 'x')
        self.assertEqual('before', self.path.read_text())
        self.assertEqual([self.path], list(self.directory.iterdir()))

    def test_replace_by_two_writers_is_never_read_in_part(self):
        """Native threads: a reader has one of the texts, or none."""
        self.problems, self.ended = [], threading.Event()
        reader = threading.Thread(target=self._read)
        writers = [threading.Thread(target=self._write, args=(kind,))
                   for kind in (0, 1)]
        for thread in (reader, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        self.ended.set()
        reader.join()
        self.assertEqual([], self.problems)
        self.assertEqual([self.path], list(self.directory.iterdir()))

    def _write(self, kind):
        try:
            for number in range(200):
                atomic_file.write_file(self.path, json.dumps(
                    {'kind': kind, 'fill': [number] * 5000 * (kind + 1)}))
        except OSError as error:
            self.problems.append(error)

    def _read(self):
        while not self.ended.is_set():
            try:
                json.loads(self.path.read_text())
            except FileNotFoundError:
                continue
            except ValueError as error:
                self.problems.append(error)
