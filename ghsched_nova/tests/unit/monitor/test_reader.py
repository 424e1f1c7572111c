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


"""The reader against every emulated kernel, and on captured trees.

All figures are simulated.
"""

import fcntl
import functools
import itertools
import os
from pathlib import Path
import shutil
import tempfile
import threading
from unittest import mock


from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import traffic
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_nova.resctrl import fs
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

State = rates.RateState
QEMU = 'qemu-7-instance-00000001-vcpus_0-1'


class ReaderTestCase(base.TestCase):

    def host(self, dialect, nodes=trees.NODES, speed=trees.SPEED):
        host = trees.Host(dialect, nodes, speed)
        self.addCleanup(host.remove)
        return host


class DialectsTest(ReaderTestCase):

    #: These have a counter for the root group alone.
    FEW = {'nvidia'}

    def busy(self, dialect):
        host = self.host(dialect)
        if dialect in self.FEW:
            host.model.write('/mbm_L3_assignments', 'mbm_total_bytes:*=_\n')
        host.group(QEMU, tid=100)
        host.sync()
        host.reader.measure_group_bandwidth()
        host.run(2.0, busy=0.5)
        return host

    def test_a_busy_guest_is_seen_on_its_node(self):
        for dialect in sorted(set(machines.DIALECTS) - {'mpam71'}):
            host = self.busy(dialect)
            guest = trees.guest(maximum=50)
            shown = host.snapshot(guest)
            row, = [node for one in shown.guests for node in one.nodes
                    if 1 in node.nodes]
            self.assertEqual((State.OK, (1,)), (row.used.state, row.nodes),
                             dialect)
            share = (traffic.FULL_RATE if shown.unit == 'counter_bytes'
                     else traffic.FULL_RATE // 1e6 * 1e6)
            self.assertAlmostEqual(share / 2, row.used.rate, delta=2e6)
            by_node = {node.nodes: node for node in shown.nodes}
            self.assertEqual(row.used, by_node[1,].guests)
            self.assertEqual(0, by_node[0,].guests.rate)
            self.assertEqual(row.used.rate, shown.used.rate)
            self.assertEqual(50, row.asked.maximum)
            self.assertEqual(100, row.effective.maximum)
            self.assertEqual(trees.CAPACITY, by_node[1,].capacity)

    def test_a_counter_needs_two_readings_and_a_rate_does_not(self):
        for dialect in sorted(set(machines.DIALECTS) - {'mpam71'}):
            host = self.host(dialect)
            usage = host.reader.measure_group_bandwidth()
            expected = (State.OK if usage.host.monitor.unit == 'rate_mb'
                        else State.FIRST)
            self.assertEqual({expected}, {
                figure.state for one in usage.groups
                for figure in one.used.values()}, dialect)

    def test_no_monitor(self):
        host = self.host('mpam71')
        error = self.assertRaises(topology.MonitorUnavailable,
                                  host.reader.measure_group_bandwidth)
        self.assertIn('reports no memory bandwidth', str(error))

    def test_several_domains_of_a_node_are_summed(self):
        host = self.host('amd')
        host.group(QEMU, tid=100, cpu=4)
        host.threads.cpus[101], host.threads.spent[101] = 7, 0.0
        host.model.write(f'/{QEMU}/tasks', '101\n')
        host.sync()
        host.reader.measure_group_bandwidth()
        host.run(1.0)
        group = host.reader.measure_group_bandwidth().groups[1]
        self.assertAlmostEqual(2 * traffic.FULL_RATE, group.used[1,].rate,
                               delta=1e3)
        places = topology.find_monitor_files(
            host.root, host.reader.get_monitored_host())
        self.assertEqual(2, len([one for one in places if one.nodes == (1,)]))

    def test_nodes_below_one_cache_are_distinguished(self):
        host = self.busy('intel-snc-cdp')
        used = host.reader.measure_group_bandwidth().groups[1].used
        self.assertEqual({(0,), (1,)}, set(used))
        self.assertEqual(0, used[0,].rate)
        self.assertAlmostEqual(traffic.FULL_RATE / 2, used[1,].rate,
                               delta=1e3)

    def test_older_kernels_have_one_figure_of_both(self):
        host = self.busy('intel-snc-cdp')
        for path in host.root.glob('**/mon_sub_L3_*'):
            shutil.rmtree(path)
        used = host.reader.read_monitor_files()
        self.assertEqual({(0, 1)}, {place.nodes for place in used.files})

    def test_ids_with_leading_zeros(self):
        host = self.host('openeuler66', ';'.join(
            f'{node}={node}' for node in range(12)))
        names = {
            place.domain: place.path
            for place in topology.find_monitor_files(
                host.root, host.reader.get_monitored_host()
            )
        }
        for node in (8, 9):
            self.assertEqual(f'mon_data/mon_MB_0{node}/mbm_total_bytes',
                             names[str(node)])
        self.assertEqual(
            12, len(host.reader.measure_group_bandwidth().groups[0].used))


class StatesTest(ReaderTestCase):

    def setUp(self):
        super().setUp()
        self.host = self.host('amd')
        self.host.group(QEMU, tid=100)
        self.host.sync()
        self.host.reader.measure_group_bandwidth()

    def figure(self):
        self.host.run()
        return self.host.reader.measure_group_bandwidth().groups[1].used[1,]

    def domains(self):
        return [path.parent.name for path in sorted(
            (self.host.root / QEMU).glob('mon_data/*/mbm_total_bytes'))]

    def test_unassigned(self):
        self.host.model.write(f'/{QEMU}/mbm_L3_assignments',
                              'mbm_total_bytes:*=_\n')
        self.assertEqual(rates.Figure(State.UNASSIGNED, None), self.figure())

    def test_counter_assigned_again_restarts(self):
        self.test_unassigned()
        self.host.model.write(f'/{QEMU}/mbm_L3_assignments',
                              'mbm_total_bytes:*=e\n')
        self.assertEqual(State.FIRST, self.figure().state)
        self.assertAlmostEqual(traffic.FULL_RATE, self.figure().rate,
                               delta=1e3)

    def test_words_and_errors(self):
        self.host.run()
        path = sorted((self.host.root / QEMU).glob(
            'mon_data/*/mbm_total_bytes'))[-1]
        for text, state in (('Unavailable\n', State.UNAVAILABLE),
                            ('Error\n', State.ERROR), ('', State.ERROR),
                            ('-1\n', State.ERROR)):
            path.write_text(text)
            figure = (
                self.host.reader.measure_group_bandwidth().groups[1].used[1,])
            self.assertEqual(state, figure.state)
        path.unlink()
        figure = self.host.reader.measure_group_bandwidth().groups[1].used[1,]
        self.assertEqual(State.MISSING, figure.state)
        path.mkdir()        # EISDIR
        figure = self.host.reader.measure_group_bandwidth().groups[1].used[1,]
        self.assertEqual(State.ERROR, figure.state)

    def test_amd_domain_in_which_nothing_ran_is_zero(self):
        host = ReaderTestCase.host(self, 'amd')
        host.group(QEMU, tid=100)
        host.sync()
        (host.root / 'info/L3_MON/mbm_assign_mode').write_text('[default]\n')
        files = sorted((host.root / QEMU).glob('mon_data/*/mbm_total_bytes'))

        def measure(*texts):
            for path, text in zip(files, texts, strict=False):
                path.write_text(text)
            host.threads.seconds += 10
            return host.reader.measure_group_bandwidth().groups[1].used[0,]

        self.assertEqual(State.FIRST, measure('5\n', 'Unavailable\n').state)
        self.assertEqual((State.OK, 10.0),
                         measure('105\n', 'Unavailable\n'))
        # It was counted once: now the kernel does not know.
        self.assertEqual(State.FIRST, measure('205\n', '7\n').state)
        self.assertEqual((State.UNAVAILABLE, 10.0),
                         measure('305\n', 'Unavailable\n'))

    def test_group_made_again_gives_no_rate(self):
        self.host.run()
        self.host.reader.measure_group_bandwidth()
        old = self.host.root / QEMU
        os.rename(old, self.host.top / 'old')       # keeps its inode
        shutil.copytree(self.host.top / 'old', old)
        for path in old.glob('mon_data/*/mbm_total_bytes'):
            path.write_text('99999999999\n')
        self.host.threads.seconds += 1
        figure = self.host.reader.measure_group_bandwidth().groups[1].used[1,]
        self.assertEqual(rates.Figure(State.FIRST, None), figure)

    def test_group_that_is_gone_is_left_out(self):
        shutil.rmtree(self.host.root / QEMU / 'mon_data')
        self.assertEqual(
            [''],
            [
                one.group.path
                for one in self.host.reader.measure_group_bandwidth().groups])

    def test_mounted_again(self):
        mount = self.host.root
        os.rename(mount / 'info', mount / 'x')
        error = self.assertRaises(topology.MonitorUnavailable,
                                  self.host.reader.measure_group_bandwidth)
        self.assertIn('mount -t resctrl', str(error))
        os.rename(mount / 'x', mount / 'info')
        self.assertEqual(State.FIRST, self.figure().state)
        self.assertEqual(State.OK, self.figure().state)

    def test_facts_are_read_again_and_rates_go_on(self):
        self.host.run()
        before = self.host.reader.get_monitored_host()
        path = (self.host.top / 'sysfs/devices/system/node/node1/access1'
                / 'initiators/read_bandwidth')
        path.write_text('1000\n')
        self.assertIs(before, self.host.reader.get_monitored_host())
        self.host.threads.seconds += reader.FRESH
        self.host.reader.measure_group_bandwidth()
        self.assertEqual(1000 * 2 ** 20,
                         self.host.reader.get_monitored_host().capacity[1])
        self.assertEqual(State.OK, self.figure().state)

    def test_nothing_is_written(self):
        with mock.patch.object(os, 'open', wraps=os.open) as opened:
            self.host.reader.measure_group_bandwidth()
        self.assertNotEqual([], opened.call_args_list)
        for call in opened.call_args_list:
            # A directory is opened to wait for its lock.
            self.assertEqual(
                os.O_RDONLY | os.O_CLOEXEC,
                call[0][1] & ~(os.O_DIRECTORY | os.O_NOFOLLOW))


class CapturedTest(base.TestCase):

    UNREPORTED = {'arm-mainline-7.1', 'broken-empty', 'nvidia-ambiguous',
                  'nvidia-grace-l3', 'kunpeng920-openeuler22.03-mbpbm'}

    def test_each_machine_is_read_or_refused_with_a_reason(self):
        for name in captured.all_machines():
            top = captured.MACHINES / name
            one = reader.Reader(top / 'resctrl', top / 'sysfs')
            try:
                usage = one.measure_group_bandwidth()
            except topology.MonitorUnavailable as error:
                self.assertIn(name, self.UNREPORTED)
                self.assertIn('reports no', str(error))
                continue
            self.assertNotIn(name, self.UNREPORTED)
            self.assertEqual(1, len(usage.groups))
            view.make_bandwidth_snapshot(usage, [])

    def test_units(self):
        for name, unit, rate in (
                ('kunpeng920-openeuler22.03', 'rate_mb', 1048e6),
                ('kunpeng950-openeuler24.03', 'rate_mb', 32806e6),
                ('nvidia-vera', 'counter_bytes', None),
                ('amd-epyc', 'counter_bytes', None)):
            top = captured.MACHINES / name
            usage = reader.Reader(
                top / 'resctrl', top / 'sysfs'
            ).measure_group_bandwidth()
            self.assertEqual(unit, usage.host.monitor.unit)
            self.assertEqual(rate, usage.groups[0].used[0,].rate)

    def test_processor_that_measures_and_can_not_cap(self):
        top = captured.MACHINES / 'intel-no-mba'
        host = topology.read_monitored_host(top / 'resctrl', top / 'sysfs')
        self.assertEqual((None, 'counter_bytes', {}),
                         (host.dialect, host.monitor.unit, host.control))

    def test_reported_bandwidth_goes_first(self):
        top = captured.MACHINES / 'amd-epyc'
        host = topology.read_monitored_host(
            top / 'resctrl', top / 'sysfs', {0: 1000})
        self.assertEqual(10**9, host.capacity[0])
        self.assertNotEqual(10 ** 9, host.capacity[1])

    def test_no_mount(self):
        with tempfile.TemporaryDirectory() as top:
            self.assertRaises(
                topology.MonitorUnavailable, topology.read_monitored_host,
                Path(top), Path(top))


class WriterTest(ReaderTestCase):
    """Reads on Linux 7.3, where a read of a group empties last_cmd_status."""

    def test_round_begins_when_the_writer_has_read_the_status(self):
        host = self.host('mpam')
        root = host.reader._resctrl
        self.patch(fs, 'wait_for_writer', functools.partial(
            fs.wait_for_writer, patience=base.GIVE_UP_S))
        host.reader.get_monitored_host()
        opened = []
        content = reader._read_content
        writing = os.open(root, os.O_RDONLY)
        self.addCleanup(os.close, writing)
        fcntl.flock(writing, fcntl.LOCK_EX)
        self.enterContext(mock.patch.object(
            reader, '_read_content',
            lambda path, longest: opened.append(path)
            or content(path, longest)))
        thread = threading.Thread(target=host.reader.read_monitor_files)
        thread.start()
        thread.join(0.2)
        self.assertEqual([], opened)
        fcntl.flock(writing, fcntl.LOCK_UN)
        thread.join(base.GIVE_UP_S)
        self.assertNotEqual([], opened)


class ThreadsTest(ReaderTestCase):
    """Requests for the diagnostics of guests, each in a thread."""

    def test_reader_under_native_threads_has_a_rate_for_each_round(self):
        host = self.host('intel')
        host.group(QEMU, tid=100)
        host.sync()
        shared = reader.Reader(host.root, host.top / 'sysfs',
                               clock=itertools.count().__next__)
        shared.measure_group_bandwidth()

        def step(_chance):
            states = {
                figure.state
                for group in shared.measure_group_bandwidth().groups
                for figure in group.used.values()}
            assert states == {State.OK}, states
        self.assertEqual([], threads.stress([step] * 6, 6))
