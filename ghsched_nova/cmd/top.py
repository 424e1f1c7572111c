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
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from typing import Any
from typing import NoReturn

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.monitor import top_output
from ghsched_nova.monitor import top_source
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_placement import exits
from ghsched_placement import load

#: Home, and what is left of a line and of the screen cleared behind the text:
#: nothing is blank for a moment, so nothing flickers.
_HOME, _END_OF_LINE, _END_OF_SCREEN = '\x1b[H', '\x1b[K', '\x1b[J'
#: The other screen, without a cursor; and back.
_BEGIN, _END = '\x1b[?1049h\x1b[?25l', '\x1b[?25h\x1b[?1049l'

_RED, _PLAIN = '\x1b[31m', '\x1b[0m'

_ORDERS = {'u': 'used', 'n': 'name', 'd': 'node', 'i': 'min', 'a': 'max',
           'e': 'effective'}
_UP, _DOWN, _LEFT, _RIGHT = 'up', 'down', 'left', 'right'
_PAGE_UP, _PAGE_DOWN, _TOP, _BOTTOM = 'page up', 'page down', 'top', 'bottom'
_ESCAPE = '\x1b'
#: As terminals send them (terminfo(5), xterm).
_SEQUENCES = {'[A': _UP, '[B': _DOWN, '[C': _RIGHT, '[D': _LEFT, 'OA': _UP,
              'OB': _DOWN, 'OC': _RIGHT, 'OD': _LEFT, '[5~': _PAGE_UP,
              '[6~': _PAGE_DOWN, '[H': _TOP, '[F': _BOTTOM, '[1~': _TOP,
              '[4~': _BOTTOM, 'OH': _TOP, 'OF': _BOTTOM}
_SEQUENCE = re.compile(r'\x1b(\[[0-9;]*[A-Za-z~]|O[A-Za-z])?|[^\x1b]', re.S)
_MOVES = {'j': _DOWN, 'k': _UP, 'h': _LEFT, 'l': _RIGHT, ' ': _PAGE_DOWN,
          'g': _TOP, 'G': _BOTTOM}
#: Columns of one step to the side.
_SIDE = 8
_HELP = ('q quit  / filter  r reverse  arrows scroll  order: u used n name '
         'd node i min a max e effective')


class Top:
    """What is shown, and how.

    :param source: of the figures.
    :param order: a key of top_output.ORDERS.
    :param as_json: whether a frame is a line of JSON.
    :param match: only guests in whose names it is.
    :param loaded: whether load and waiting are measured and shown.
    """

    def __init__(self, source: top_source.Source, order: str = 'used',
                 reverse: bool = False, as_json: bool = False,
                 match: str = '', loaded: bool = False) -> None:
        self._source = source
        self.order = order
        self.reverse = reverse
        self.as_json = as_json
        self.match = match
        self.loaded = loaded
        self.skip = self.shift = 0
        self._room = 1
        self._asking: str | None = None
        self._snapshot: view.Snapshot | None = None
        self._load: load.Load | None = None
        self._when = 0.0

    def read(self) -> None:
        """Take the figures of the next frame.

        :raises MonitorUnavailable: when the host reports no bandwidth.
        """
        self._snapshot = self._source.snapshot()
        if self.loaded:
            self._load = self._source.load(
                [usage.guest for usage in self._snapshot.guests],
                self._snapshot)
        self._when = time.time()

    def text(self) -> str:
        """The frame, without a newline at its end."""
        if self._snapshot is None:
            return ''
        if self.as_json:
            return top_output.as_json(self._snapshot, self._when,
                                      self._source.problem, self._load)
        return '\n'.join(line.text for line in self._page().lines())

    def screen(self, columns: int, lines: int, colour: bool = False,
               problem: str = '') -> str:
        """A frame for a terminal, to be written at once.

        :param problem: shown in place of the figures.
        """
        self._room = max(1, lines - 1)
        if problem or self._snapshot is None:
            rows = [top_output.Line(problem)]
        else:
            page = self._page()
            self.skip = max(0, min(self.skip, len(page) - self._room))
            rows = page.lines(self.skip, self._room)
        rows = [line._replace(text=top_output.clip(
            line.text, self.shift, columns)) for line in rows[:lines - 1]]
        last = _HELP if self._asking is None else f'/{self._asking}'
        return screen([*rows, top_output.Line(
            top_output.clip(last, 0, columns))], colour)

    def _page(self) -> top_output.Page:
        if self._snapshot is None:
            raise ValueError('nothing has been read')
        return top_output.page(
            self._snapshot,
            time.strftime('%H:%M:%S', time.localtime(self._when)),
            self._source.problem, self.order, self.reverse, self.match,
            self.loaded, self._load)

    def key(self, key: str) -> bool:
        """Do as a key says; False for the one that ends it."""
        if self._asking is not None:
            self._ask(key)
            return True
        if key == '/':
            self._asking = ''
        elif key in _ORDERS:
            self.order = _ORDERS[key]
        elif key == 'r':
            self.reverse = not self.reverse
        elif key == _ESCAPE:
            self.match = ''
        else:
            self._move(_MOVES.get(key, key))
        return key != 'q'

    def _move(self, where: str) -> None:
        steps = {_UP: -1, _DOWN: 1, _PAGE_UP: -self._room,
                 _PAGE_DOWN: self._room, _TOP: -self.skip, _BOTTOM: 10 ** 9}
        self.skip = max(0, self.skip + steps.get(where, 0))
        side = {_LEFT: -_SIDE, _RIGHT: _SIDE}.get(where, 0)
        self.shift = max(0, self.shift + side)

    def _ask(self, key: str) -> None:
        """A key while the text to look for is typed."""
        typed = self._asking or ''
        if key in ('\r', '\n'):
            self.match, self._asking, self.skip = typed, None, 0
        elif key == _ESCAPE:
            self._asking = None
        elif key in ('\x7f', '\b'):
            self._asking = typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self._asking = typed + key


def keys(text: str) -> list[str]:
    """What a terminal has sent, key by key; unknown ones are left out."""
    found = []
    for match in _SEQUENCE.finditer(text):
        if match[1] is None:
            found.append(match[0])
        elif match[1] in _SEQUENCES:
            found.append(_SEQUENCES[match[1]])
    return found


def screen(lines: Sequence[top_output.Line], colour: bool = False) -> str:
    """Lines that fit a terminal, as it is to be written."""
    return _HOME + '\n'.join(
        (f'{_RED}{line.text}{_PLAIN}' if colour and line.alarm
         else line.text) + _END_OF_LINE for line in lines) + _END_OF_SCREEN


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog='ghsched-top',
        description='Memory bandwidth of guests: asked for, in force, and '
                    'used. On a terminal: ' + _HELP + '.')
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
    top.add_argument('-g', '--guest', default='', metavar='TEXT',
                     help='only guests in whose name, UUID or domain it is')
    top.add_argument('--load', action='store_true',
                     help='show load and waiting of NUMA nodes and guests, '
                          'too; it takes some files of each vCPU to be read')
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
    if not arguments.node_bandwidth:
        arguments.node_bandwidth = configured.node_bandwidth()
    source = top_source.source(arguments)
    top = Top(source, arguments.order, arguments.reverse, arguments.json,
              arguments.guest, arguments.load)
    batch = arguments.batch or arguments.json or not (
        sys.stdin.isatty() and sys.stdout.isatty())
    try:
        _prime(top, source, arguments.delay)
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


def _prime(top: Top, source: top_source.Source, delay: float) -> None:
    """Counters have no rate the first time, so wait for the second."""
    if top.loaded:
        top.read()
        time.sleep(top_source.LOAD_PERIOD)
    elif source.reader.host().monitor.unit == 'counter_bytes':
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
    # The other screen is gone, and the last frame with it.
    print(problem or top.text())


def _show(top: Top, problem: str, write: Callable[[str], None],
          delay: float, wakened: int) -> bool:
    """Show a frame until the next one; whether to go on.

    A key, or another size of the terminal, changes how it is shown at once.
    The figures stay those of the full time between two readings.

    :param wakened: can be read after a signal.
    """
    end = time.monotonic() + delay
    colour = 'NO_COLOR' not in os.environ
    while True:
        columns, lines = shutil.get_terminal_size()
        write(top.screen(columns, lines, colour, problem))
        ready, _write, _error = select.select(
            [sys.stdin, wakened], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return True
        if wakened in ready:
            os.read(wakened, 4096)
        if sys.stdin in ready:
            typed = os.read(sys.stdin.fileno(), 64).decode(errors='replace')
            # No key at all: the terminal is gone.
            if not typed or not all(map(top.key, keys(typed))):
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

    def begin() -> None:
        tty.setcbreak(keys)
        _write(output, _BEGIN)

    def end() -> None:
        _write(output, _END)
        termios.tcsetattr(keys, termios.TCSADRAIN, before)

    def stop(_number: int, _frame: Any) -> None:
        # The shell is to find its terminal as it was.
        end()
        os.kill(os.getpid(), signal.SIGSTOP)
        begin()

    handlers = {signal.SIGTERM: _end, signal.SIGTSTP: stop,
                # Without a handler of Python it would not wake select().
                signal.SIGWINCH: lambda _number, _frame: None}
    former = {number: signal.signal(number, handler)
              for number, handler in handlers.items()}
    try:
        begin()
        yield lambda text: _write(output, text)
    finally:
        end()
        for number, handler in former.items():
            signal.signal(number, handler)


def _write(output: int, text: str) -> None:
    data = text.encode(errors='replace')
    while data:
        data = data[os.write(output, data):]


def _end(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == '__main__':
    sys.exit(main())
