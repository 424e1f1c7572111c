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
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
import testtools

from ghsched_nova.cmd import top
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import top_output
from ghsched_nova.monitor import top_source
from ghsched_nova.monitor import view
from ghsched_nova.tests.unit.monitor import trees

QEMU = 'qemu-7-instance-00000001-vcpus_0-1'
OWN = f'ghsched-{trees.UUID}'


class _Case(testtools.TestCase):

    def host(self, dialect):
        host = trees.Host(dialect)
        self.addCleanup(host.remove)
        return host

    def paths(self, host):
        return ['--resctrl', str(host.root), '--sysfs',
                str(host.top / 'sysfs'), '--no-libvirt']

    def run_top(self, host, *options):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(errors):
            status = top.main([*self.paths(host), '-d', '0.05', *options])
        return status, output.getvalue(), errors.getvalue()


class BatchTestCase(_Case):

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
        self.assertIn(['instance-00000001', '1', '-', '-', '-', '-', '20',
                       '50', '102400', 'yes', '3', '2000.0', '1.0'], rows)
        self.assertIn(['(low_prio_machine)', '0', *['-'] * 9, '0.0', '0.0'],
                      rows)

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
             'used': {'bytes_per_second': 2e9, 'state': 'ok'}},
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
        self.assertRegex(text, 'instance-00000001 .* unassigned  +-')

    def test_no_monitor(self):
        status, text, errors = self.run_top(self.host('mpam71'), '-b')
        self.assertEqual((2, ''), (status, text))
        self.assertTrue(errors.startswith('ghsched-top: this host reports '))

    def test_reader_that_has_seen_enough(self):
        script = ('import sys; from ghsched_nova.cmd import top; '
                  'sys.exit(top.main())')
        with subprocess.Popen(
                [sys.executable, '-c', script, *self.paths(self.tree), '-b',
                 '-d', '0.05'], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE) as process:
            process.stdout.readline()
            process.stdout.close()
            self.assertEqual(b'', process.stderr.read())
        self.assertEqual(0, process.returncode)

    def test_wrong_options(self):
        for options in (['-d', '0'], ['-d', 'x'], ['-n', '0'],
                        ['--node-bandwidth', '0'], ['-o', 'x']):
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertRaises(SystemExit, top.main, options)

    def test_node_bandwidth(self):
        self.assertEqual({0: 5, 12: 70},
                         top_source.node_bandwidth('0:5, 12:70'))
        _status, text, _errors = self.run_top(
            self.tree, '-b', '-n', '1', '--node-bandwidth', '0:8000')
        self.assertRegex(text, r'(?m)^0 +4000\.0  50\.0 ')


class TerminalTestCase(_Case):

    def setUp(self):
        super().setUp()
        self.tree = self.host('openeuler66')
        self.tree.group(QEMU, tid=100)
        self.tree.sync()

    def start(self, *options):
        keys, terminal = pty.openpty()
        self.addCleanup(os.close, keys)
        script = ('import sys; from ghsched_nova.cmd import top; '
                  'sys.exit(top.main())')
        process = subprocess.Popen(
            [sys.executable, '-c', script, *self.paths(self.tree), *options],
            stdin=terminal, stdout=terminal, stderr=subprocess.PIPE,
            env=dict(os.environ, COLUMNS='100', LINES='20'))
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        os.close(terminal)
        return keys, process

    def until(self, keys, expected):
        """What is shown up to some text."""
        shown, end = '', time.monotonic() + 30
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
        self.assertEqual(0, process.wait(10))

    def test_count_and_signal(self):
        keys, process = self.start('-n', '2', '-d', '0.05')
        self.until(keys, '\x1b[?1049l')
        self.assertEqual(0, process.wait(10))
        keys, process = self.start('-d', '60')
        self.until(keys, 'q quit')
        process.terminate()
        self.until(keys, '\x1b[?1049l')
        self.assertEqual(0, process.wait(10))

    def test_resctrl_that_is_gone_for_a_while(self):
        keys, _process = self.start('-d', '0.1')
        self.until(keys, 'instance-00000001')
        info = self.tree.root / 'info'
        info.rename(self.tree.root / 'x')
        self.until(keys, 'is resctrl mounted?')
        (self.tree.root / 'x').rename(info)
        self.until(keys, 'instance-00000001')


class ScreenTestCase(testtools.TestCase):

    @given(st.text(alphabet='abc\n', max_size=200), st.integers(1, 30),
           st.integers(1, 30), st.integers(0, 30))
    def test_fits_and_clears_no_more_than_what_is_behind(
            self, text, columns, lines, skip):
        shown = top.screen(text, columns, lines, skip)
        self.assertTrue(shown.startswith('\x1b[H'))
        self.assertTrue(shown.endswith('\x1b[K\x1b[J'))
        rows = shown[3:-3].split('\n')
        self.assertLessEqual(len(rows), lines)
        for row in rows:
            self.assertLessEqual(len(row.removesuffix('\x1b[K')), columns)

    def test_one_write_per_frame(self):
        with mock.patch.object(os, 'write',
                               side_effect=lambda _fd, data: len(data)
                               ) as write:
            top._write(1, top.screen('a\nb', 80, 24))
        self.assertEqual(1, write.call_count)

    def test_names_do_no_harm_to_the_terminal(self):
        self.assertEqual('a?[2J??', top_output.printable('a\x1b[2J\x07\n'))


class TotalsTestCase(testtools.TestCase):

    def lines(self, *capacities):
        """The table of nodes that use 3, 4, ... MB/s."""
        nodes = tuple(view.NodeUsage(
            (number,), _mb(3 + number), _mb(1), _mb(2), _mb(number),
            capacity, 30) for number, capacity in enumerate(capacities))
        shown = view.Snapshot('x', 'rate_mb', nodes, (), (), rates.total(
            node.used for node in nodes))
        return [line.split() for line in
                top_output.as_lines(shown, 'now')[3:-2]]

    def test_the_last_row_is_of_all_nodes(self):
        self.assertEqual('all 7.0 35.0 2.0 4.0 1.0 -'.split(),
                         self.lines(10 ** 7, 10 ** 7)[-1])

    def test_no_share_where_the_bandwidth_of_a_node_is_not_known(self):
        self.assertEqual('-', self.lines(10 ** 7, None)[-1][2])

    def test_one_node_is_all(self):
        self.assertEqual([['0', '3.0', '30.0', '1.0', '2.0', '0.0', '30']],
                         self.lines(10 ** 7))


def _mb(rate):
    return rates.Figure(rates.State.OK, rate * 1e6)


class OrderTestCase(testtools.TestCase):

    def usage(self, name, rate, minimum, maximum):
        guest = trees.guest(name, name, minimum=minimum, maximum=maximum)
        figure = (rates.NOTHING if rate is None
                  else rates.Figure(rates.State.OK, rate))
        held = view.Effective(minimum, maximum, None, True, None)
        return view.GuestUsage(guest, (), (view.GuestNode(
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
                in top_output.ordered(guests, order)], order)
            self.assertEqual(names.split()[::-1], [
                one.guest.name for one
                in top_output.ordered(guests, order, True)], order)

    def test_a_policy_that_can_not_be_read_is_told(self):
        guest = view.Guest('a\x1b', problem='no number')
        shown = view.Snapshot('x', 'rate_mb', (), (view.GuestUsage(
            guest, (), (), rates.NOTHING),), (), rates.ZERO)
        self.assertIn('a?: no number', top_output.as_lines(shown, 'now'))

    def test_keys(self):
        shown = top.Top(None)
        for key, order in (('n', 'name'), ('e', 'effective'), ('u', 'used')):
            self.assertTrue(shown.key(key))
            self.assertEqual(order, shown.order)
        self.assertTrue(shown.key('r') and shown.reverse)
        self.assertTrue(shown.key('j') and shown.skip == 1)
        self.assertTrue(shown.key('k') and shown.key('k'))
        self.assertEqual(0, shown.skip)
        self.assertFalse(shown.key('q'))
