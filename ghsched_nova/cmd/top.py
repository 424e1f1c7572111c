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


"""``ghsched-top``: who uses the memory bandwidth of this host.

It reads resctrl, and libvirt over a connection that cannot write. It needs
neither Nova nor its configuration.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from typing import Any
from typing import NoReturn

from ghsched_nova.cmd import console
from ghsched_nova.monitor import top_output
from ghsched_nova.monitor import top_source
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_placement import exits

#: Home, and what is left of a line and of the screen cleared behind the text:
#: nothing is blank for a moment, so nothing flickers.
_HOME, _END_OF_LINE, _END_OF_SCREEN = '\x1b[H', '\x1b[K', '\x1b[J'
#: The other screen, without a cursor; and back.
_BEGIN, _END = '\x1b[?1049h\x1b[?25l', '\x1b[?25h\x1b[?1049l'

_KEYS = {'u': 'used', 'n': 'name', 'd': 'node', 'i': 'min', 'a': 'max',
         'e': 'effective'}
_HELP = ('order: u used, n name, d node, i min, a max, e effective, '
         'r reverse; j k scroll; q quit')


class Top:
    """What is shown, and how.

    :param source: of the figures.
    :param order: a key of top_output.ORDERS.
    :param as_json: whether a frame is a line of JSON.
    """

    def __init__(self, source: top_source.Source, order: str = 'used',
                 reverse: bool = False, as_json: bool = False) -> None:
        self._source = source
        self.order = order
        self.reverse = reverse
        self.as_json = as_json
        self.skip = 0
        self._snapshot: view.Snapshot | None = None
        self._when = 0.0

    def read(self) -> None:
        """Take the figures of the next frame.

        :raises MonitorUnavailable: when the host reports no bandwidth.
        """
        self._snapshot = self._source.snapshot()
        self._when = time.time()

    def text(self) -> str:
        """The frame, without a newline at its end."""
        if self._snapshot is None:
            return ''
        if self.as_json:
            return top_output.as_json(self._snapshot, self._when,
                                      self._source.problem)
        return '\n'.join(top_output.as_lines(
            self._snapshot,
            time.strftime('%H:%M:%S', time.localtime(self._when)),
            self._source.problem, self.order, self.reverse))

    def key(self, key: str) -> bool:
        """Do as a key says; False for the one that ends it."""
        if key in _KEYS:
            self.order = _KEYS[key]
        elif key == 'r':
            self.reverse = not self.reverse
        elif key in 'jk':
            self.skip = max(0, self.skip + (1 if key == 'j' else -1))
        return key != 'q'


def screen(text: str, columns: int, lines: int, skip: int = 0) -> str:
    """A frame for a terminal, to be written at once.

    :param skip: lines that are scrolled over.
    """
    rows = [*text.split('\n')[skip:][:lines - 1], _HELP]
    return _HOME + '\n'.join(
        row[:columns] + _END_OF_LINE for row in rows) + _END_OF_SCREEN


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog='ghsched-top',
        description='Memory bandwidth of guests: asked for, in force, and '
                    'used. ' + _HELP.capitalize() + '.')
    console.add_version(top)
    top_source.add_options(top)
    top.add_argument('-d', '--delay', type=_seconds, default=2.0,
                     metavar='SECONDS',
                     help='between two frames (%(default)s)')
    top.add_argument('-n', '--count', type=_count, metavar='N',
                     help='end after so many frames')
    top.add_argument('-b', '--batch', action='store_true',
                     help='print frames one after the other; so it is where '
                          'the output is no terminal')
    top.add_argument('--json', action='store_true',
                     help='print each frame as a line of JSON')
    top.add_argument('-o', '--order', choices=sorted(top_output.ORDERS),
                     default='used', help='of the guests (%(default)s)')
    top.add_argument('-r', '--reverse', action='store_true',
                     help='the other way round')
    return top


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.05 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no number of seconds from 0.05 to 86400')
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10 ** 9):
        raise argparse.ArgumentTypeError(f'{text!r} is no count')
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Console script; its result is the exit status."""
    arguments = parser().parse_args(argv)
    source = top_source.source(arguments)
    top = Top(source, arguments.order, arguments.reverse, arguments.json)
    batch = arguments.batch or arguments.json or not (
        sys.stdin.isatty() and sys.stdout.isatty())
    try:
        _prime(source, arguments.delay)
        if batch:
            _batch(top, arguments.delay, arguments.count)
        else:
            _interactive(top, arguments.delay, arguments.count)
    except topology.MonitorUnavailable as error:
        print(f'ghsched-top: {error}', file=sys.stderr)
        return exits.COULD_NOT
    except BrokenPipeError:
        # Whoever read has seen enough.
        console.drop_output()
    except KeyboardInterrupt:
        pass
    return exits.DONE


def _prime(source: top_source.Source, delay: float) -> None:
    """Counters have no rate the first time, so wait for the second."""
    if source.reader.host().monitor.unit == 'counter_bytes':
        source.reader.usage()
        time.sleep(min(delay, 1.0))


def _rounds(count: int | None) -> Iterator[bool]:
    """For each round whether it is the last one."""
    done = 0
    while count is None or done < count:
        done += 1
        yield done == count


def _batch(top: Top, delay: float, count: int | None) -> None:
    for last in _rounds(count):
        top.read()
        print(top.text(), end='\n' if last or top.as_json else '\n\n',
              flush=True)
        if not last:
            time.sleep(delay)


def _interactive(top: Top, delay: float, count: int | None) -> None:
    with (_wakened() as wakened,
          _terminal(sys.stdin.fileno(), sys.stdout.fileno()) as write):
        for last in _rounds(count):
            problem = ''
            try:
                top.read()
            except topology.MonitorUnavailable as error:
                problem = str(error)    # it may be mounted again
            if not _show(top, problem, write, 0 if last else delay,
                         wakened):
                return


def _show(top: Top, problem: str, write: Callable[[str], None],
          delay: float, wakened: int) -> bool:
    """Show a frame until the next one; whether to go on.

    A key changes how it is shown at once. The figures stay those of the full
    time between two readings.

    :param wakened: can be read after a signal.
    """
    end = time.monotonic() + delay
    while True:
        columns, lines = shutil.get_terminal_size()
        write(screen(problem or top.text(), columns, lines, top.skip))
        ready, _write, _error = select.select(
            [sys.stdin, wakened], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return True
        keys = os.read(sys.stdin.fileno(), 64).decode(errors='replace')
        # No key at all: the terminal is gone.
        if not keys or not all(map(top.key, keys)):
            return False


@contextlib.contextmanager
def _wakened() -> Iterator[int]:
    """A file that can be read once a signal has come.

    One that comes just before select() does not end it: Python's own handler
    would run when select() has waited to its end.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def _terminal(keys: int, output: int) -> Iterator[Callable[[str], None]]:
    """A terminal without echo, as it was before when all is over."""
    before = termios.tcgetattr(keys)
    handler = signal.signal(signal.SIGTERM, _end)
    try:
        tty.setcbreak(keys)
        _write(output, _BEGIN)
        yield lambda text: _write(output, text)
    finally:
        _write(output, _END)
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)


def _write(output: int, text: str) -> None:
    data = text.encode(errors='replace')
    while data:
        data = data[os.write(output, data):]


def _end(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == '__main__':
    sys.exit(main())
