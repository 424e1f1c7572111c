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


"""Files that a command is to write after a long run."""

from pathlib import Path

import fixtures

from ghsched_nova.cmd import console
from ghsched_placement.tests import base


class CheckWritableTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.useFixture(fixtures.TempDir()).path)

    def test_files_that_can_be_written_are_left_as_they_are(self):
        old = self.top / 'old'
        old.write_text('x')
        console.check_writable(old)
        console.check_writable(self.top / 'new')
        console.check_writable(Path('/dev/stdout'))
        self.assertEqual([old], list(self.top.iterdir()))
        self.assertEqual('x', old.read_text())

    def test_error_names_the_file_of_the_user(self):
        self.patch(console.os, 'access', lambda *_: False)
        for path, kind in ((self.top / 'absent' / 'out', FileNotFoundError),
                           (self.top, IsADirectoryError),
                           (self.top / 'out', PermissionError)):
            error = self.assertRaises(kind, console.check_writable, path)
            self.assertEqual(str(path), error.filename)
