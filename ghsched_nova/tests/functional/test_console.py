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

"""Commands end without a traceback, whoever ends them."""

import contextlib
import io
import subprocess
import sys
from unittest import mock


from ghsched_nova.cmd import console
from ghsched_placement.tests import base

#: A command.
DO = ('import sys; from ghsched_nova.cmd import console; '
      'sys.exit(console.run_command("cmd", lambda: {}))')
#: One that writes more than a pipe takes at once.
LONG = DO.format('print("x" * 300000) or 5')
#: One that fails after its first line.
FAILS = DO.format('print("begun") or open("/absent/file")')
#: One that cannot fail, as it writes nothing.
SILENT = DO.format('print(end="") or 5')


class CarryOutTest(base.TestCase):

    def carry_out(self, work):
        with contextlib.redirect_stderr(io.StringIO()) as told:
            return console.run_command('cmd', work), told.getvalue()

    def fails(self, error):
        def work():
            raise error
        return self.carry_out(work)

    def test_status_is_that_of_the_work(self):
        self.assertEqual((5, ''), self.carry_out(lambda: 5))

    def test_an_interrupt_is_no_traceback(self):
        self.assertEqual((2, 'cmd: interrupted\n'),
                         self.fails(KeyboardInterrupt()))

    def test_a_file_that_can_not_be_used_is_named(self):
        self.assertEqual((2, 'cmd: /a: full\n'),
                         self.fails(OSError(28, 'full', '/a')))

    def test_an_error_of_the_work_is_none_of_the_output(self):
        for error, told in ((ConnectionRefusedError(111, 'refused'),
                             'refused'),
                            (BrokenPipeError(32, 'broken'), 'broken'),
                            (TimeoutError('timed out'), 'timed out'),
                            (TimeoutError(), 'TimeoutError()')):
            with mock.patch.object(console, 'discard_output') as dropped:
                self.assertEqual((2, f'cmd: {told}\n'), self.fails(error))
            dropped.assert_not_called()

    def test_writes_before_an_error_stay(self):
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', FAILS],
            capture_output=True, text=True, check=False)
        self.assertEqual(
            (2, 'begun\n', 'cmd: /absent/file: No such file or directory\n'),
            (done.returncode, done.stdout, done.stderr))

    def test_there_need_be_no_output(self):
        done = subprocess.run(
            ['sh', '-c', 'exec "$@" >&-', 'sh', sys.executable,
             '-W', 'ignore', '-c', SILENT],
            capture_output=True, text=True, check=False)
        self.assertEqual((5, ''), (done.returncode, done.stderr))

    def run_long(self, **streams):
        with subprocess.Popen([sys.executable, '-W', 'ignore', '-c', LONG],
                              stderr=subprocess.PIPE, text=True,
                              **streams) as process:
            if process.stdout:
                process.stdout.read(1)
                process.stdout.close()
            told = process.stderr.read()
            return process.wait(), told

    def test_a_reader_that_has_seen_enough(self):
        self.assertEqual((0, ''), self.run_long(stdout=subprocess.PIPE))

    def test_output_that_does_not_fit(self):
        with open('/dev/full', 'w', encoding='utf-8') as full:
            self.assertEqual(
                (2, 'cmd: output: No space left on device\n'),
                self.run_long(stdout=full))
