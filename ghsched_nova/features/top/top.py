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


"""``ghsched-top``: show the memory bandwidth that guests of this host use.

It reads resctrl, and libvirt over a connection that cannot write. It needs
neither Nova nor its configuration.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import os
from pathlib import Path
import select
import shutil
import signal
import sys
import termios
import time
import tty
from typing import Any

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.features.top import top_history
from ghsched_nova.features.top import top_output
from ghsched_nova.features.top import top_screen
from ghsched_nova.features.top import top_source
from ghsched_nova.monitor import topology
from ghsched_placement.base import decimals
from ghsched_placement.base import exits
from ghsched_placement.features.history import usage_history

#: File with the bandwidth of the last hours in nova-compute's state_path.
HISTORY = 'ghsched-history.json'

#: Terminal codes: switch to the alternate screen and hide the cursor, and
#: switch back.
_BEGIN, _END = '\x1b[?1049h\x1b[?25l', '\x1b[?25h\x1b[?1049l'


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of ``ghsched-top``."""
    top = argparse.ArgumentParser(
        prog='ghsched-top',
        description='Memory bandwidth of guests: asked for, in force, and '
                    'used. On a terminal: ' + top_screen.HELPS[0] + '.')
    console.add_version_option(top)
    top_source.add_source_options(top)
    top.add_argument('-d', '--delay', type=_parse_delay, default=2.0,
                     metavar='SECONDS',
                     help='seconds between updates (default: %(default)s)')
    top.add_argument('-n', '--count', type=_parse_update_count, metavar='N',
                     help='exit after N updates')
    top.add_argument('-b', '--batch', action='store_true',
                     help='batch mode: print updates one below the other; '
                          'the default if stdout is not a terminal')
    top.add_argument('--json', action='store_true',
                     help='print each update as one line of JSON')
    top.add_argument('-o', '--order', choices=sorted(top_output.ORDERS),
                     default='used',
                     help='column to sort guests by (default: %(default)s)')
    top.add_argument('-r', '--reverse', action='store_true',
                     help='reverse the sort order')
    top.add_argument('-g', '--guest', default='', metavar='TEXT',
                     help='show only guests whose name, UUID or domain '
                          'contains TEXT')
    top.add_argument('--load', action='store_true',
                     help='show load and waiting of NUMA nodes and guests as '
                          'well; reads several files per vCPU')
    _add_past_bandwidth_options(top)
    return top


def _add_past_bandwidth_options(top: argparse.ArgumentParser) -> None:
    """Add the options for displaying past bandwidth to the parser.

    They name files that nova-compute writes.
    """
    top.add_argument('--service-levels', type=Path, metavar='FILE',
                     help='show for which percent of this month guests got '
                          'less than their guarantees, from '
                          'ghsched-service-levels.json in the state_path of '
                          'nova-compute')
    top.add_argument('--since', type=_parse_minutes, metavar='TIME',
                     help='print once which guests used the most bandwidth '
                          'in the last minutes or hours, e.g. 30m or 1h, '
                          'from the record of nova-compute')
    top.add_argument('--history', type=Path, metavar='FILE',
                     help='record for --since (default: ghsched-history.json '
                          'in the state_path of nova-compute)')


def _parse_delay(text: str) -> float:
    """Parse a command-line argument as seconds between two updates."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.05 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a number of seconds from 0.05 to 86400')
    return seconds


def _parse_minutes(text: str) -> int:
    """Parse a command-line argument as a number of minutes."""
    try:
        return top_history.parse_minutes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_update_count(text: str) -> int:
    """Parse a command-line argument as a positive number of updates."""
    number = decimals.parse_decimal(text)
    if number is None or not 0 < number < 10 ** 9:
        raise argparse.ArgumentTypeError(f'{text!r} is not a positive number')
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ghsched-top``, which shows the bandwidth that guests use.

    :returns: exit status.
    """
    arguments = make_parser().parse_args(argv)
    if arguments.since:
        return _print_largest_bandwidth_users(arguments)
    if not arguments.node_bandwidth:
        arguments.node_bandwidth = _read_node_bandwidth()
    source = dataclasses.replace(
        top_source.make_measurement_source(arguments),
        service_levels=arguments.service_levels)
    top = top_screen.Top(source, arguments.order, arguments.reverse,
                         arguments.json, arguments.guest, arguments.load)
    batch = arguments.batch or arguments.json or not (
        sys.stdin.isatty() and sys.stdout.isatty())
    try:
        _read_first_counters(top, source, arguments.delay)
        if batch:
            _print_updates(top, arguments.delay, arguments.count)
        else:
            _show_updates_until_quit(top, arguments.delay, arguments.count)
    except topology.MonitorUnavailable as error:
        print(f'ghsched-top: {error}', file=sys.stderr)
        return exits.COULD_NOT
    except BrokenPipeError:
        # Whoever read has seen enough.
        console.discard_output()
    except KeyboardInterrupt:
        pass
    return exits.DONE


def _read_node_bandwidth() -> dict[int, int]:
    """Read the bandwidth of NUMA nodes from ``[ghsched]node_bandwidth``.

    :returns: MB/s by NUMA node; empty if the configuration cannot be read.
    """
    from oslo_config import cfg

    from ghsched_nova import conf

    try:
        return conf.parse_node_values(configured.read_ghsched_options(),
                                      'node_bandwidth')
    except (cfg.Error, ValueError):
        return {}


def _get_state_path_or_default() -> Path:
    """Return nova-compute's ``[DEFAULT]state_path``.

    If the configuration cannot be read, Nova's default is returned.
    """
    from oslo_config import cfg

    try:
        return configured.read_state_path()
    except cfg.Error:
        return Path('/var/lib/nova')


def _print_largest_bandwidth_users(arguments: argparse.Namespace) -> int:
    """Print the guests that recently used the most bandwidth.

    The options select the last minutes or hours. The bandwidth is read from
    the record that nova-compute writes.

    :returns: exit status.
    """
    try:
        path = (arguments.history
                or _get_state_path_or_default() / HISTORY)
        history = usage_history.read_history(path)
    except OSError as error:
        print(f'ghsched-top: cannot read the record of nova-compute: {error}',
              file=sys.stderr)
        return exits.COULD_NOT
    now = time.time()
    uses = top_history.list_bandwidth_uses_since(
        history, arguments.since, now, arguments.guest)
    if arguments.reverse:
        uses.reverse()
    print(top_history.render_bandwidth_uses_as_json(
        uses, history, now, arguments.since) if arguments.json
        else top_history.render_bandwidth_uses(uses, history))
    return exits.DONE


def _read_first_counters(display: top_screen.Top,
                         source: top_source.HostReader,
                         delay: float) -> None:
    """Read the counters for the first time, and wait a short time.

    A rate can be computed only from two readings of the counters.

    :param delay: seconds between two updates.
    """
    counts_vcpus = display.update_measurements()
    if display.with_load:
        time.sleep(top_source.LOAD_PERIOD)
    elif (counts_vcpus or source.reader.get_monitored_host().monitor.unit
            == 'counter_bytes'):
        time.sleep(min(delay, 1.0))


def _iterate_updates(count: int | None) -> Iterator[bool]:
    """Yield once for each update of the display.

    The value is True for the last update and False for earlier ones.

    :param count: number of updates; None for no end.
    """
    done = 0
    while count is None or done < count:
        done += 1
        yield done == count


def _print_updates(
    display: top_screen.Top, delay: float, count: int | None
) -> None:
    """Print the current bandwidth of guests after each delay (batch mode).

    :param delay: seconds between two updates.
    :param count: number of updates; None for no end.
    """
    for last in _iterate_updates(count):
        display.update_measurements()
        print(
            display.render_last_measurement(),
            end='\n' if last or display.as_json else '\n\n',
            flush=True,
        )
        if not last:
            time.sleep(delay)


def _show_updates_until_quit(
    display: top_screen.Top, delay: float, count: int | None
) -> None:
    """Show the bandwidth of guests on the terminal until the user quits.

    :param delay: seconds between two updates.
    :param count: number of updates; None for no end.
    """
    with (
        _signal_wakeup_fd() as wakened,
        _terminal_without_echo(
            sys.stdin.fileno(), sys.stdout.fileno()
        ) as write,
    ):
        for last in _iterate_updates(count):
            problem = ''
            try:
                display.update_measurements()
            except topology.MonitorUnavailable as error:
                problem = str(error)  # it may be mounted again
            if not _show_bandwidth_until_next_update(
                display, problem, write, 0 if last else delay, wakened
            ):
                return
    # The other screen is gone, and the last frame with it.
    print(problem or display.render_last_measurement())


def _show_bandwidth_until_next_update(
    display: top_screen.Top,
    problem: str,
    write: Callable[[str], None],
    delay: float,
    wakeup_fd: int,
) -> bool:
    """Show the last measured bandwidth of guests until the next update is due.

    The display is redrawn at once if the user presses a key or resizes the
    terminal.

    :param problem: message shown in place of the bandwidth; empty for none.
    :param write: function that writes text to the terminal.
    :param delay: seconds until the next update.
    :param wakeup_fd: file descriptor that becomes readable after a signal.
    :returns: True when the update is due; False if the user quits.
    """
    end = time.monotonic() + delay
    colour = 'NO_COLOR' not in os.environ
    while True:
        columns, lines = shutil.get_terminal_size()
        write(display.render_terminal_output(columns, lines, colour, problem))
        ready, _write, _error = select.select(
            [sys.stdin, wakeup_fd], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return True
        if wakeup_fd in ready:
            os.read(wakeup_fd, 4096)
        if sys.stdin in ready:
            typed = os.read(sys.stdin.fileno(), 64).decode(errors='replace')
            # No key at all: the terminal is gone.
            if not typed or not all(
                map(display.handle_key, top_screen.parse_terminal_keys(typed))
            ):
                return False


@contextlib.contextmanager
def _signal_wakeup_fd() -> Iterator[int]:
    """Within this context, each signal makes a file descriptor readable.

    The context yields the file descriptor. A select() that waits for it ends
    when the process receives a signal.
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
def _terminal_without_echo(
    input_fd: int, output_fd: int
) -> Iterator[Callable[[str], None]]:
    """Within this context, the terminal does not echo typed keys.

    The context yields a function that writes text to the terminal.
    """
    before = termios.tcgetattr(input_fd)

    def begin() -> None:
        tty.setcbreak(input_fd)
        _write_all(output_fd, _BEGIN)

    def end() -> None:
        _write_all(output_fd, _END)
        termios.tcsetattr(input_fd, termios.TCSADRAIN, before)

    def stop(_number: int, _frame: Any) -> None:
        # The shell is to find its terminal as it was.
        end()
        os.kill(os.getpid(), signal.SIGSTOP)
        begin()

    handlers = {
        signal.SIGTERM: console.raise_keyboard_interrupt,
        signal.SIGTSTP: stop,
        # Without a handler of Python it would not wake select().
        signal.SIGWINCH: lambda _number, _frame: None,
    }
    former = {number: signal.signal(number, handler)
              for number, handler in handlers.items()}
    try:
        begin()
        yield lambda text: _write_all(output_fd, text)
    finally:
        end()
        for number, handler in former.items():
            signal.signal(number, handler)


def _write_all(fd: int, text: str) -> None:
    """Write a whole text to a file descriptor, in several writes if needed."""
    data = text.encode(errors='replace')
    while data:
        data = data[os.write(fd, data):]


if __name__ == '__main__':
    sys.exit(main())
