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

import os
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from ghsched_nova.cmd import files


class FilesTest(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.useFixture(fixtures.TempDir()).path)
        self.path = self.top / 'out'

    def there(self):
        return {path.name: path.read_text() for path in self.top.iterdir()}

    def test_a_check_makes_and_changes_nothing(self):
        files.check_writable(self.path)
        self.assertEqual({}, self.there())
        self.path.write_text('old')
        files.check_writable(self.path)
        self.assertEqual({'out': 'old'}, self.there())

    def test_the_error_names_what_the_user_named(self):
        absent = self.top / 'absent' / 'out'
        for work in (files.check_writable, lambda path: files.save(path, '')):
            error = self.assertRaises(FileNotFoundError, work, absent)
            self.assertEqual(str(absent), error.filename)
            self.assertRaises(IsADirectoryError, work, self.top)

    def test_a_file_is_replaced(self):
        for text in ('one', 'two'):
            files.save(self.path, text)
            self.assertEqual({'out': text}, self.there())

    def test_what_was_there_stays_when_writing_fails(self):
        self.path.write_text('old')
        with mock.patch.object(Path, 'replace', side_effect=OSError(28, 'x')):
            self.assertRaises(OSError, files.save, self.path, 'new')
        self.assertEqual({'out': 'old'}, self.there())

    def test_a_link_is_followed(self):
        link = self.top / 'link'
        link.symlink_to(self.path)
        files.save(link, 'text')
        self.assertTrue(link.is_symlink())
        self.assertEqual('text', self.path.read_text())

    def test_a_device_stays_one(self):
        files.check_writable(Path(os.devnull))
        files.save(Path(os.devnull), 'text')
        self.assertTrue(Path(os.devnull).is_char_device())
