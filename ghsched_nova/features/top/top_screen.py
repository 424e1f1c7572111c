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

"""Screen of ghsched-top and the actions of its keys (pure)."""

from collections.abc import Sequence
import dataclasses
import re
import time

from ghsched_nova.features.top import top_output
from ghsched_nova.features.top import top_source
from ghsched_nova.features.top import vcpu_rates
from ghsched_placement.features.load import load

#: Cursor home, and erase to the end of the line and of the screen: the screen
#: is overwritten, not cleared, so that it does not flicker.
_HOME, _END_OF_LINE, _END_OF_SCREEN = '\x1b[H', '\x1b[K', '\x1b[J'
_RED, _PLAIN = '\x1b[31m', '\x1b[0m'

_ORDERS = {'u': 'used', 'n': 'name', 'd': 'node', 'i': 'min', 'a': 'max',
           'e': 'effective'}
_UP, _DOWN, _LEFT, _RIGHT = 'up', 'down', 'left', 'right'
_PAGE_UP, _PAGE_DOWN, _TOP, _BOTTOM = 'page up', 'page down', 'top', 'bottom'
_ESCAPE = '\x1b'
#: Escape sequences of keys (terminfo(5), xterm).
_SEQUENCES = {'[A': _UP, '[B': _DOWN, '[C': _RIGHT, '[D': _LEFT, 'OA': _UP,
              'OB': _DOWN, 'OC': _RIGHT, 'OD': _LEFT, '[5~': _PAGE_UP,
              '[6~': _PAGE_DOWN, '[H': _TOP, '[F': _BOTTOM, '[1~': _TOP,
              '[4~': _BOTTOM, 'OH': _TOP, 'OF': _BOTTOM}
_SEQUENCE = re.compile(r'\x1b(\[[0-9;]*[A-Za-z~]|O[A-Za-z])?|[^\x1b]', re.S)
_MOVES = {'j': _DOWN, 'k': _UP, 'h': _LEFT, 'l': _RIGHT, ' ': _PAGE_DOWN,
          'g': _TOP, 'G': _BOTTOM}
#: Columns by which one step scrolls to the side.
_SIDE = 8
#: Help line, longest first; the first one that fits is shown.
HELPS = (
    'q quit  / filter  r reverse  arrows scroll  order: u used n name d node '
    'i min a max e effective',
    'q quit  / filter  r reverse  order: u used n name d node i min a max '
    'e effective',
    'q quit  / filter  r reverse  arrows scroll  order: u n d i a e',
    'q quit  / filter  r reverse  order: u n d i a e', 'q quit')


class Top:
    """State of ghsched-top: measurements, sort order, filter and scrolling.

    :param source: source of the figures.
    :param order: a key of top_output.ORDERS.
    :param as_json: whether a frame is a line of JSON.
    :param match: text that names of shown guests contain.
    :param with_load: whether load and wait time are measured and shown.
    """

    def __init__(self, source: top_source.HostReader, order: str = 'used',
                 reverse: bool = False, as_json: bool = False,
                 match: str = '', with_load: bool = False) -> None:
        self._source = source
        self.order = order
        self.reverse = reverse
        self.as_json = as_json
        self.match = match
        self.with_load = with_load
        self.skip = self.shift = 0
        self._room = 1
        self._asking: str | None = None
        self._snapshot: top_source.TopSnapshot | None = None
        self._load: load.HostLoad | None = None
        self._when = 0.0
        self._vcpus = vcpu_rates.VcpuMeter()

    def update_measurements(self) -> bool:
        """Measure the host's bandwidth and load again, and keep the results.

        :returns: whether the next measurement has rates of vCPUs.
        :raises MonitorUnavailable: if the host reports no bandwidth.
        """
        snapshot = self._source.measure_bandwidth()
        guests = [usage.guest for usage in snapshot.guests]
        counters = self._source.read_vcpu_counters()
        self._snapshot = dataclasses.replace(
            snapshot, guest_rates=self._vcpus.measure_rates(guests, counters))
        if self.with_load:
            self._load = self._source.measure_load(guests, snapshot)
        self._when = time.time()
        return any(counters.values())

    def render_last_measurement(self) -> str:
        """Return the last measured bandwidth and load as text or JSON.

        The result does not end with a newline.
        """
        if self._snapshot is None:
            return ''
        if self.as_json:
            return top_output.format_host_as_json(
                self._snapshot, self._when, self._source.libvirt_error,
                self._load)
        return '\n'.join(
            line.text for line in self._page().render_page_lines())

    def render_terminal_output(
        self, columns: int, lines: int, colour: bool = False, problem: str = ''
    ) -> str:
        """Return the output that shows the last measurement in a terminal.

        The output contains terminal codes.

        :param columns: width of the terminal.
        :param lines: height of the terminal.
        :param problem: message shown in place of the measurement.
        """
        self._room = max(1, lines - 1)
        if problem or self._snapshot is None:
            rows = [top_output.TableLine(problem)]
        else:
            page = self._page()
            self.skip = max(0, min(self.skip, len(page) - self._room))
            rows = page.render_page_lines(self.skip, self._room)
        rows = [line._replace(text=top_output.clip_text_to_columns(
            line.text, self.shift, columns)) for line in rows[:lines - 1]]
        last = f'/{self._asking}'
        if self._asking is None:
            last = next((one for one in HELPS if len(one) <= columns),
                        HELPS[-1])
        return render_screen([*rows, top_output.TableLine(
            top_output.clip_text_to_columns(last, 0, columns))], colour)

    def _page(self) -> top_output.Page:
        if self._snapshot is None:
            raise ValueError('nothing has been read')
        return top_output.make_top_page(
            self._snapshot,
            time.strftime('%H:%M:%S', time.localtime(self._when)),
            self._source.libvirt_error, self.order, self.reverse, self.match,
            self.with_load, self._load)

    def handle_key(self, key: str) -> bool:
        """Carry out the ghsched-top command of a pressed key.

        :returns: False to quit.
        """
        if self._asking is not None:
            self._edit_guest_filter(key)
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

    def _edit_guest_filter(self, key: str) -> None:
        """Apply a pressed key to the guest filter that the user is typing.

        Enter sets the filter, and Escape leaves it unchanged. Only guests
        whose names contain the filter are shown.
        """
        typed = self._asking or ''
        if key in ('\r', '\n'):
            self.match, self._asking, self.skip = typed, None, 0
        elif key == _ESCAPE:
            self._asking = None
        elif key in ('\x7f', '\b'):
            self._asking = typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self._asking = typed + key


def parse_terminal_keys(text: str) -> list[str]:
    """Return the keys that were pressed, from a terminal's input.

    Unknown escape sequences are left out.
    """
    found = []
    for match in _SEQUENCE.finditer(text):
        if match[1] is None:
            found.append(match[0])
        elif match[1] in _SEQUENCES:
            found.append(_SEQUENCES[match[1]])
    return found


def render_screen(lines: Sequence[top_output.TableLine],
                  colour: bool = False) -> str:
    """Return the terminal output that shows lines in place of the old ones.

    :param lines: the new lines.
    :param colour: whether to use colours.
    """
    return _HOME + '\n'.join(
        (f'{_RED}{line.text}{_PLAIN}' if colour and line.alarm
         else line.text) + _END_OF_LINE for line in lines) + _END_OF_SCREEN
