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


"""ghsched-top on directory trees. All figures are simulated."""

import contextlib
from dataclasses import replace
import io
import json
import os
import pty
import re
import signal
import termios
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.top import top
from ghsched_nova.features.top import top_output
from ghsched_nova.features.top import top_screen
from ghsched_nova.features.top import top_source
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import view
from ghsched_nova.tests.fixtures import top_case
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.features.service_level import service_level
from ghsched_placement.tests import base

QEMU = top_case.QEMU
OWN = f'ghsched-{trees.UUID}'


def as_lines(*args, **kwargs):
    """The text of what is shown."""
    page = top_output.make_top_page(*args, **kwargs)
    return [line.text for line in page.render_page_lines()]


class BatchTest(top_case.TopTestCase):

    def setUp(self):
        super().setUp()
        self.tree = self.host('openeuler66')
        self.tree.group(QEMU, tid=100)
        self.tree.group(OWN, tid=101, cpu=0)
        self.tree.group('low_prio_machine')
        self.tree.model.write(
            f'/{QEMU}/schemata', 'MB:1=50\n')
        self.tree.model.write(f'/{QEMU}/schemata', 'MBMIN:1=20\n')
        self.tree.run(1.0, busy=0.0)
        self.tree.run(1.0)

    def test_table(self):
        status, text, _errors = self.run_top(self.tree, '-b', '-n', '1')
        self.assertEqual(0, status)
        rows = [line.split() for line in text.splitlines()]
        # Node 0: 4 GB/s of the other guest. Node 1: half of 4 GB/s.
        self.assertIn(['0', '4000.0', '2.0', '0.0', '4000.0', '0.0', '0'],
                      rows)
        self.assertIn(['1', '2000.0', '1.0', '0.0', '2000.0', '0.0', '0'],
                      rows)
        self.assertIn(['instance-00000001', '1', '2000.0', '1.0', '-', '20',
                       '-', '50', '102400', '-', 'yes', '-', '3'], rows)
        self.assertIn(['(low_prio_machine)', '0', '0.0', '0.0',
                       *['-'] * 9], rows)

    def test_top_with_service_levels_shows_short_time_of_guests(self):
        path = self.tree.top / 'levels.json'
        path.write_text(service_level.FORMAT.render({
            service_level.LevelKey(trees.UUID, 0): service_level.Level(
                seconds=3600.0, short={'node_full': 30.0, 'unknown': 6.0,
                                       'own_cap': 900.0})}))
        _status, text, _errors = self.run_top(
            self.tree, '-b', '-n', '1', '--service-levels', str(path))
        titles, *rows = (
            line for line in text.splitlines()
            if line.startswith(('GUEST ', trees.UUID, 'instance-', '(low')))
        end = titles.index('SHORT %') + len('SHORT %')
        # The name is not longer than 18 columns in a cloud.
        self.assertLessEqual(end - len(trees.UUID) + 18, 80)
        # One percent: what only the cap has cost does not count.
        self.assertEqual(
            {trees.UUID: '1.00', 'instance-00000001': '-',
             '(low_prio_machine)': '-'},
            {row.split()[0]: row[:end].split()[-1] for row in rows})
        _status, text, _errors = self.run_top(
            self.tree, '--json', '-n', '1', '--service-levels', str(path))
        found = {guest['name']: [
            (node['short_seconds'], node['measured_seconds'])
            for node in guest['nodes']]
            for guest in json.loads(text)['guests']}
        self.assertIn((36.0, 3600.0), found[trees.UUID])
        self.assertIn((None, None), found['instance-00000001'])

    def test_cache_occupancy_of_guests(self):
        tree = self.host('intel')
        tree.group(QEMU, tid=100)
        tree.run(1.0)
        for cache, filled in (('00', 3_500_000), ('01', 0)):
            path = tree.root / QEMU / f'mon_data/mon_L3_{cache}'
            (path / 'llc_occupancy').write_text(f'{filled}\n')
        _status, text, _errors = self.run_top(
            tree, '-b', '-n', '1', '--cache-occupancy')
        titles, row = (next(line for line in text.splitlines()
                            if line.startswith(word))
                       for word in ('GUEST ', 'instance-00000001'))
        end = titles.index('L3 MB') + len('L3 MB')
        self.assertLess(end, 80)
        self.assertEqual('3.5', row[:end].split()[-1])
        _status, text, _errors = self.run_top(
            tree, '--json', '-n', '1', '--cache-occupancy')
        (guest,) = json.loads(text)['guests']
        self.assertEqual(3_500_000, guest['nodes'][0]['cached_bytes'])
        # It is another file to read, and not asked for.
        _status, text, _errors = self.run_top(tree, '-b', '-n', '1')
        self.assertNotIn('L3 MB', text)

    def test_load_and_waiting(self):
        _status, text, _errors = self.run_top(self.tree, '-b', '-n', '1',
                                              '--load')
        self.assertIn('IO QUEUE  BOTTLENECK', text)
        titles = next(line for line in text.splitlines()
                      if line.startswith('GUEST '))
        self.assertLess(titles.index('WAIT %') + len('WAIT %'), 80)
        _status, text, _errors = self.run_top(self.tree, '--json', '-n', '1',
                                              '--load')
        self.assertEqual([0, 1, 2], [node['node'] for node
                                     in json.loads(text)['load']['nodes']])
        # It is more to read, and not asked for.
        _status, text, _errors = self.run_top(self.tree, '--json', '-n', '1')
        self.assertIsNone(json.loads(text)['load'])

    def test_frames(self):
        _status, text, _errors = self.run_top(self.tree, '-b', '-n', '3')
        self.assertEqual(3, len(re.findall('^ghsched-top ', text, re.M)))
        self.assertEqual(2, len(re.findall('^\n(?=ghsched-top )', text,
                                           re.M)))

    def test_json(self):
        _status, text, _errors = self.run_top(self.tree, '--json', '-n', '2')
        first, second = map(json.loads, text.splitlines())
        self.assertEqual(first['guests'], second['guests'])
        self.assertEqual(
            ('openEuler 24.03 (OLK-6.6) MPAM', 'rate_mb', None,
             {'bytes_per_second': 6e9, 'state': 'ok'}),
            tuple(first[key] for key in ('dialect', 'unit', 'problem',
                                         'used')))
        guest = next(one for one in first['guests']
                     if one['domain_id'] == 7)
        self.assertEqual(
            ('instance-00000001', None, [QEMU]),
            (guest['name'], guest['uuid'], guest['groups']))
        self.assertEqual(
            {'nodes': [1], 'asked': None,
             'effective': {'min': 20, 'max': 50, 'hardlimit': True,
                           'priority': 3,
                           'bytes_per_second': trees.CAPACITY // 2},
             'used': {'bytes_per_second': 2e9, 'state': 'ok'},
             'cached_bytes': None, 'short_seconds': None,
             'measured_seconds': None},
            guest['nodes'][1])
        self.assertEqual(['low_prio_machine'],
                         [one['group'] for one in first['others']])

    def test_counters_are_primed(self):
        tree = self.host('intel')
        tree.group(QEMU)
        tree.sync()
        _status, text, _errors = self.run_top(tree, '--json', '-n', '1')
        self.assertEqual('ok', json.loads(text)['used']['state'])

    def test_unassigned_is_shown(self):
        tree = self.host('nvidia')
        tree.group(QEMU)
        tree.sync()
        _status, text, _errors = self.run_top(tree, '-b', '-n', '1')
        self.assertRegex(text, 'instance-00000001 .* unassigned +-')

    def test_no_monitor(self):
        status, text, errors = self.run_top(self.host('mpam71'), '-b')
        self.assertEqual((2, ''), (status, text))
        self.assertTrue(errors.startswith('ghsched-top: this host reports '))

    def test_wrong_options(self):
        for options in (['-d', '0'], ['-d', 'x'], ['-n', '0'],
                        ['--node-bandwidth', '0'], ['-o', 'x']):
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertRaises(SystemExit, top.main, options)

    def test_node_bandwidth(self):
        self.assertEqual({0: 5, 12: 70},
                         top_source.parse_node_bandwidth('0:5, 12:70'))
        _status, text, _errors = self.run_top(
            self.tree, '-b', '-n', '1', '--node-bandwidth', '0:8000')
        self.assertRegex(text, r'(?m)^0 +4000\.0  50\.0 ')


class TerminalTest(base.TestCase):
    """Terminal and signal handlers while a screen is shown."""

    NUMBERS = (signal.SIGTERM, signal.SIGTSTP, signal.SIGWINCH)

    def setUp(self):
        super().setUp()
        for fd in (fds := pty.openpty()):
            self.addCleanup(os.close, fd)
        self.terminal = fds[1]

    def read_state(self):
        return (termios.tcgetattr(self.terminal),
                [signal.getsignal(number) for number in self.NUMBERS])

    def test_terminal_and_handlers_are_restored_after_an_error(self):
        before = self.read_state()
        with (contextlib.suppress(ValueError),
              top._terminal_without_echo(self.terminal, self.terminal)):
            meanwhile = self.read_state()
            raise ValueError
        self.assertEqual(before, self.read_state())
        for one, former in zip(meanwhile[1], before[1], strict=True):
            self.assertNotEqual(former, one)
        self.assertFalse(meanwhile[0][3] & termios.ECHO)


class ScreenTest(base.TestCase):

    @given(st.text(), st.integers(0, 20), st.integers(0, 20))
    def test_clipped_text_fits(self, text, first, columns):
        text = top_output.replace_unprintable(text)
        shown = top_output.clip_text_to_columns(text, first, columns)
        self.assertLessEqual(top_output.measure_text_width(shown), columns)
        if text.isascii():
            self.assertEqual(text[first:first + columns], shown)

    def test_wide_letters_take_two_columns(self):
        self.assertEqual(
            'a\u4e2d', top_output.clip_text_to_columns('a\u4e2d\u6587', 0, 4))
        self.assertEqual(
            '\u6587', top_output.clip_text_to_columns('a\u4e2d\u6587', 2, 4))
        rows = top_output.align_table_columns(
            ('N', 'X'), [['\u4e2d\u6587', '1'], ['abcd', '2']], 1
        )
        self.assertEqual(
            {7}, {top_output.measure_text_width(row) for row in rows})

    def test_line_of_keys_is_one_that_fits(self):
        shown = top_screen.Top(None)
        for columns in range(6, 200):
            last = shown.render_terminal_output(columns, 10).splitlines()[-1]
            last = last.removesuffix('\x1b[K\x1b[J')
            self.assertIn(last, top_screen.HELPS)
            self.assertLessEqual(len(last), columns)
        self.assertIn('effective', shown.render_terminal_output(80, 10))

    def test_only_an_alarm_is_red(self):
        lines = [top_output.TableLine('a'), top_output.TableLine('b', True)]
        self.assertEqual('\x1b[Ha\x1b[K\n\x1b[31mb\x1b[0m\x1b[K\x1b[J',
                         top_screen.render_screen(lines, colour=True))
        self.assertNotIn('\x1b[31m', top_screen.render_screen(lines))

    @given(st.lists(st.sampled_from(
        ['a', '/', '\r', '\x1b[A', '\x1bOB', '\x1b[5~', '\x1b'])))
    def test_each_key_of_a_terminal_is_found(self, typed):
        known = {'\x1b[A': 'up', '\x1bOB': 'down', '\x1b[5~': 'page up'}
        expected = [known.get(one, one) for one in typed]
        self.assertEqual(
            expected, top_screen.parse_terminal_keys(''.join(typed)))
        self.assertEqual([], top_screen.parse_terminal_keys('\x1b[200~'))

    def test_one_write_per_frame(self):
        with mock.patch.object(os, 'write',
                               side_effect=lambda _fd, data: len(data)
                               ) as write:
            top._write_all(1, top_screen.render_screen(
                [top_output.TableLine('a')] * 2))
        self.assertEqual(1, write.call_count)

    def test_names_do_no_harm_to_the_terminal(self):
        self.assertEqual(
            'a?[2J??', top_output.replace_unprintable('a\x1b[2J\x07\n'))


class TotalsTest(base.TestCase):

    def lines(self, *capacities):
        """The table of nodes that use 3, 4, ... MB/s."""
        nodes = tuple(view.NodeUsage(
            (number,), _mb(3 + number), _mb(1), _mb(2), _mb(number),
            capacity, 30) for number, capacity in enumerate(capacities))
        shown = top_source.TopSnapshot(
            'x', 'rate_mb', nodes, (), (),
            rates.sum_bandwidths(node.used for node in nodes))
        return [line.split() for line in
                as_lines(shown, 'now')[3:-2]]

    def test_the_last_row_is_of_all_nodes(self):
        self.assertEqual('all 7.0 35.0 2.0 4.0 1.0 -'.split(),
                         self.lines(10 ** 7, 10 ** 7)[-1])

    def test_no_share_where_the_bandwidth_of_a_node_is_not_known(self):
        self.assertEqual('-', self.lines(10 ** 7, None)[-1][2])

    def test_one_node_is_all(self):
        self.assertEqual([['0', '3.0', '30.0', '1.0', '2.0', '0.0', '30']],
                         self.lines(10 ** 7))


def _mb(rate):
    return rates.Figure(rates.RateState.OK, rate * 1e6)


class OrderTest(base.TestCase):

    def usage(self, name, rate, minimum, maximum):
        guest = trees.guest(name, name, minimum=minimum, maximum=maximum)
        figure = (rates.NOTHING if rate is None
                  else rates.Figure(rates.RateState.OK, rate))
        held = effective_limits.EffectiveLimits(minimum, maximum, True)
        return view.GuestUsage(guest, (), (view.GuestNodeBandwidth(
            (len(name),), guest.policy.policy.nodes[0], held, figure),),
            figure)

    def test_orders(self):
        guests = [self.usage('ccc', 1.0, 50, 60),
                  self.usage('a', None, 10, 90),
                  self.usage('bb', 2.0, 20, 80)]
        for order, names in (
                ('used', 'bb ccc a'), ('name', 'a bb ccc'),
                ('node', 'a bb ccc'), ('min', 'ccc bb a'),
                ('max', 'a bb ccc'), ('effective', 'a bb ccc')):
            self.assertEqual(names.split(), [
                one.guest.name for one
                in top_output.sort_guests(guests, order)], order)
            self.assertEqual(names.split()[::-1], [
                one.guest.name for one
                in top_output.sort_guests(guests, order, True)], order)

    def test_a_policy_that_can_not_be_read_is_reported(self):
        guest = view.MonitoredGuest('a\x1b', problem='no number')
        shown = top_source.TopSnapshot('x', 'rate_mb', (), (view.GuestUsage(
            guest, (), (), rates.NOTHING),), (), rates.ZERO)
        self.assertIn('a?: no number', as_lines(shown, 'now'))

    def test_less_than_was_promised_is_an_alarm(self):
        usage = self.usage('a', 1.0, 30, 60)
        row, = usage.nodes
        for minimum, maximum, alarm in (
                (30, 60, False), (28, 58, False), (27, 60, True),
                (30, 57, True), (40, 100, False), (None, None, False)):
            held = effective_limits.EffectiveLimits(minimum, maximum, True)
            shown = top_source.TopSnapshot('x', 'rate_mb', (), (replace(
                usage, nodes=(replace(row, effective=held),)),), (),
                rates.ZERO)
            *_above, line = top_output.make_top_page(
                shown, 'now').render_page_lines()
            self.assertEqual(alarm, line.alarm, held)

    def test_servers_are_known_by_their_names_and_found(self):
        guest = view.MonitoredGuest('instance-1', 'some-uuid', server='web')
        shown = top_source.TopSnapshot('x', 'rate_mb', (), (view.GuestUsage(
            guest, (), (), rates.NOTHING),), (), rates.ZERO)
        for match, found in (('', True), ('eb', True), ('some', True),
                             ('instance', True), ('db', False)):
            text = '\n'.join(as_lines(shown, 'now', name_filter=match))
            self.assertEqual(found, 'web   ' in text, match)

    def test_part_of_a_page_is_that_of_the_whole(self):
        shown = top_source.TopSnapshot('x', 'rate_mb', (), tuple(
            self.usage(f'a{number:03}', 1.0, 1, 100)
            for number in range(50)), (), rates.ZERO)
        page = top_output.make_top_page(shown, 'now')
        whole = page.render_page_lines()
        self.assertEqual(len(page), len(whole))
        for first, count in ((0, 3), (0, 10), (4, 20), (30, 99)):
            self.assertEqual(whole[first:first + count],
                             page.render_page_lines(first, count))

    def test_keys(self):
        shown = top_screen.Top(None)
        for key, order in (('n', 'name'), ('e', 'effective'), ('u', 'used')):
            self.assertTrue(shown.handle_key(key))
            self.assertEqual(order, shown.order)
        self.assertTrue(shown.handle_key('r') and shown.reverse)
        self.assertTrue(shown.handle_key('j') and shown.skip == 1)
        self.assertTrue(shown.handle_key('k') and shown.handle_key('up'))
        self.assertEqual(0, shown.skip)
        self.assertTrue(shown.handle_key('right') and shown.shift == 8)
        for key in '/webq\x7f\n':
            self.assertTrue(shown.handle_key(key))
        self.assertEqual('web', shown.match)
        self.assertTrue(shown.handle_key('\x1b') and not shown.match)
        self.assertFalse(shown.handle_key('q'))
