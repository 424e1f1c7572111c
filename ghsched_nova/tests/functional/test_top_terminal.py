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

"""ghsched-top as a process on a terminal. All figures are simulated."""

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte

from ghsched_nova.tests.fixtures import top_case
from ghsched_placement.tests import base

TOP = (sys.executable, '-c',
       'import sys; from ghsched_nova.features.top import top; '
       'sys.exit(top.main())')


class TerminalTest(top_case.TopTestCase):

    def setUp(self):
        super().setUp()
        self.tree = self.host('openeuler66')
        self.tree.group(top_case.QEMU, tid=100)
        self.tree.sync()

    def start(self, *options):
        keys, terminal = pty.openpty()
        self.addCleanup(os.close, keys)
        process = subprocess.Popen(
            [*TOP, *self.paths(self.tree), *options],
            stdin=terminal, stdout=terminal, stderr=subprocess.PIPE,
            env=dict(os.environ, COLUMNS='100', LINES='20'))
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        os.close(terminal)
        return keys, process

    def until(self, keys, expected):
        """Return the output up to some text."""
        shown, end = '', time.monotonic() + base.GIVE_UP_S
        while expected not in shown and time.monotonic() < end:
            if select.select([keys], [], [], 0.1)[0]:
                shown += os.read(keys, 65536).decode()
        self.assertIn(expected, shown)
        return shown

    def test_keys_and_the_terminal_as_it_was(self):
        keys, process = self.start('-d', '60')
        shown = self.until(keys, 'q quit')
        self.assertTrue(shown.startswith('\x1b[?1049h\x1b[?25l\x1b[H'))
        self.assertNotIn('\x1b[2J', shown)
        os.write(keys, b'n')    # shown again at once
        self.assertIn('instance-00000001', self.until(keys, 'q quit'))
        os.write(keys, b'q')
        self.assertTrue(self.until(keys, '\x1b[?1049l').endswith(
            '\x1b[?25h\x1b[?1049l'))
        self.assertEqual(0, process.wait(base.GIVE_UP_S))

    def test_count_and_signal(self):
        keys, process = self.start('-n', '2', '-d', '0.05')
        self.until(keys, '\x1b[?1049l')
        self.assertEqual(0, process.wait(base.GIVE_UP_S))
        keys, process = self.start('-d', '60')
        self.until(keys, 'q quit')
        process.terminate()
        self.until(keys, '\x1b[?1049l')
        self.assertEqual(0, process.wait(base.GIVE_UP_S))

    def test_resctrl_that_is_gone_for_a_while(self):
        keys, _process = self.start('-d', '0.1')
        self.until(keys, 'instance-00000001')
        info = self.tree.root / 'info'
        info.rename(self.tree.root / 'x')
        self.until(keys, 'is resctrl mounted?')
        (self.tree.root / 'x').rename(info)
        self.until(keys, 'instance-00000001')

    def test_reader_that_has_seen_enough(self):
        with subprocess.Popen(
                [*TOP, *self.paths(self.tree), '-b',
                 '-d', '0.05'], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE) as process:
            process.stdout.readline()
            process.stdout.close()
            self.assertEqual(b'', process.stderr.read())
        self.assertEqual(0, process.returncode)


class RealTerminalTest(top_case.TopTestCase):
    """Screen of ghsched-top in pyte, a terminal emulator."""

    GUESTS = 40

    def setUp(self):
        super().setUp()
        self.tree = self.host('openeuler66')
        names = [f'\u4e2d\u6587\u670d\u52a1\u5668-{number:02}'
                 for number in range(self.GUESTS)]
        for number, name in enumerate(names):
            path = self.tree.root / f'qemu-{number + 1}-{name}-vcpus_0-1'
            shutil.copytree(self.tree.root, path, ignore=lambda *_: [
                'info', *(one.name for one in self.tree.root.iterdir()
                          if one.name.startswith('qemu-'))])

    def start(self, columns, lines, *options):
        self.terminal = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.terminal)
        self.keys, slave = pty.openpty()
        self.addCleanup(os.close, self.keys)
        self.resize(columns, lines)
        self.process = subprocess.Popen(
            [*TOP, *self.paths(self.tree), *options],
            stdin=slave, stdout=slave, stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in os.environ.items()
                 if name not in ('COLUMNS', 'LINES')})
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        os.close(slave)

    def resize(self, columns, lines):
        fcntl.ioctl(self.keys, termios.TIOCSWINSZ,
                    struct.pack('HHHH', lines, columns, 0, 0))
        self.terminal.resize(lines, columns)

    def until(self, condition, raw=b''):
        end = time.monotonic() + base.GIVE_UP_S
        while not condition() and time.monotonic() < end:
            if select.select([self.keys], [], [], 0.1)[0]:
                data = os.read(self.keys, 65536)
                raw += data
                self.stream.feed(data)
        self.assertTrue(condition(), '\n'.join(self.terminal.display))
        return raw

    def row(self, number):
        return self.terminal.display[number].rstrip()

    def shows(self, text):
        return any(text in row.replace('\u3000', '')
                   for row in self.terminal.display)

    def test_used_bandwidth_is_seen_on_the_smallest_terminal(self):
        for columns, lines in ((80, 24), (200, 50)):
            self.start(columns, lines, '-d', '60', '-o', 'name')
            self.until(lambda: self.shows('q quit'))
            self.until(lambda: self.shows('USED MB/s'))
            titles = next(row for row in self.terminal.display
                          if row.startswith('GUEST'))
            self.assertIn('USED MB/s', titles)
            self.assertIn('MIN', titles)
            # Wide letters do not wrap: the help is still the last row.
            self.assertIn('q quit', self.row(lines - 1))
            os.write(self.keys, b'q')
            self.assertEqual(0, self.process.wait(base.GIVE_UP_S))

    def test_scrolling_has_an_end_and_a_filter_finds(self):
        self.start(80, 24, '-d', '60', '-o', 'name')
        self.until(lambda: self.shows('q quit'))
        os.write(self.keys, b'G' + b'j' * 9)
        self.until(lambda: self.shows('-39'))
        self.until(lambda: self.row(22) != '')
        os.write(self.keys, b'/-17\r')
        self.until(lambda: self.shows('only names with: -17'))
        # The screen is read in parts.
        self.until(lambda: not self.shows('-39'))

    def test_another_size_is_used_at_once(self):
        self.start(80, 24, '-d', '60')
        self.until(lambda: self.shows('q quit'))
        self.resize(120, 40)
        os.kill(self.process.pid, signal.SIGWINCH)
        self.until(lambda: 'q quit' in self.row(39))

    def test_stopped_leaves_the_terminal_as_it_was(self):
        self.start(80, 24, '-d', '60')
        self.until(lambda: self.shows('q quit'))
        os.kill(self.process.pid, signal.SIGTSTP)
        _pid, status = os.waitpid(self.process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status))
        self.assertTrue(os.read(self.keys, 65536).endswith(
            b'\x1b[?25h\x1b[?1049l'))
        os.kill(self.process.pid, signal.SIGCONT)
        raw = b''
        while b'q quit' not in raw.partition(b'\x1b[?1049h')[2]:
            raw += os.read(self.keys, 65536)
        os.write(self.keys, b'q')
        self.assertEqual(0, self.process.wait(base.GIVE_UP_S))

    def test_the_last_frame_stays(self):
        self.start(200, 50, '-n', '1')
        raw = b''
        while b'\x1b[?1049l' not in raw or b'GUEST' not in (
                raw.partition(b'\x1b[?1049l')[2]):
            raw += os.read(self.keys, 65536)
