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


import os
from pathlib import Path
import subprocess
import sys
import tempfile

from lxml import etree

from ghsched_nova.features.load import load_files
from ghsched_nova.features.load import load_meter
from ghsched_nova.features.load import load_rates
from ghsched_nova.features.load import load_reader
from ghsched_nova.guest import cells
from ghsched_placement.features.load import bottleneck
from ghsched_placement.tests import base

#: Names its thread as QEMU names that of a vCPU, and is busy.
_BUSY = '''
import threading, ctypes, time
def run():
    ctypes.CDLL(None).prctl(15, b"CPU 0/TCG", 0, 0, 0)
    print("ready", flush=True)
    while True: pass
threading.Thread(target=run, daemon=True).start()
input()
'''

TWO_CELLS = '''
<domain><memory unit='KiB'>3145728</memory><vcpu>3</vcpu>
 <cpu><numa><cell id='0' cpus='0-1' memory='2' unit='GiB'/>
  <cell id='1' cpus='2' memory='1048576' unit='KiB'/></numa></cpu>
 <numatune><memory mode='strict' nodeset='1,3'/>
  <memnode cellid='0' mode='strict' nodeset='3'/>
  <memnode cellid='1' mode='strict' nodeset='1'/></numatune></domain>'''


class DomainCellsTest(base.TestCase):

    def test_each_has_its_vcpus_memory_and_host_node(self):
        self.assertEqual(
            (cells.Cell(0, frozenset({0, 1}), 2 * 1024 ** 2, (3,)),
             cells.Cell(1, frozenset({2}), 1024 ** 2, (1,))),
            cells.parse_cells(etree.fromstring(TWO_CELLS)))

    def test_one_without_a_topology_is_all_in_one(self):
        found, = cells.parse_cells(etree.fromstring(
            '<domain><memory unit="KiB">512</memory><vcpu>2</vcpu></domain>'))
        self.assertEqual(cells.Cell(0, frozenset({0, 1}), 512, ()), found)
        self.assertIsNone(found.host_node)


class ReaderTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def _sysfs(self):
        """Two nodes, one with this machine's CPUs, and a disk on each."""
        cpus = max(os.sched_getaffinity(0))
        for node, listed in ((0, f'0-{cpus}'), (1, '4000-4001')):
            path = self.top / f'devices/system/node/node{node}'
            path.mkdir(parents=True)
            (path / 'cpulist').write_text(listed + '\n')
            (path / 'meminfo').write_text(
                f'Node {node} MemTotal: 2048 kB\n'
                f'Node {node} MemFree: 1024 kB\n')
        for name, node in (('vda', '1'), ('vdb', '-1')):
            function = self.top / f'devices/pci0/{name}-function'
            (function / 'virtio0').mkdir(parents=True)
            (function / 'numa_node').write_text(node + '\n')
            (self.top / 'block' / name).mkdir(parents=True)
            (self.top / 'block' / name / 'device').symlink_to(
                function / 'virtio0')
        return self.top

    def test_this_machine_can_be_read(self):
        found = load_reader.LoadReader().read_load_sample(())
        self.assertTrue(found.cpus)

    def test_a_disk_is_where_its_pci_function_is(self):
        self.assertEqual({'vda': 1},
                         dict(load_reader._list_disk_nodes(self._sysfs())))

    def test_nothing_that_is_missing_is_an_error(self):
        nowhere = self.top / 'nowhere'
        reader = load_reader.LoadReader(load_reader.Paths(
            nowhere, nowhere, nowhere, nowhere))
        found = reader.read_load_sample(
            [load_reader.RunningGuest('a', 1, 'a', ())])
        self.assertEqual({}, found.nodes)
        self.assertEqual({}, found.guests[0].threads)

    def _process(self):
        busy = subprocess.Popen([sys.executable, '-c', _BUSY],
                                stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE)
        self.addCleanup(busy.communicate, b'\n')
        busy.stdout.readline()
        run = self.top / 'run'
        run.mkdir()
        (run / 'guest.pid').write_text(f'{busy.pid}\n')
        return run

    def test_a_vcpu_that_is_busy_is_seen(self):
        run = self._process()
        reader = load_reader.LoadReader(
            load_reader.Paths(sysfs=self._sysfs(), run=run))
        known = load_reader.RunningGuest('a', 1, 'guest', (
            cells.Cell(0, frozenset({0}), 1024, (0,)),))
        before = reader.read_load_sample([known])
        found = load_rates.compute_load(
            before, reader.read_load_sample([known]), 0.0)
        # The kernel counts a thread in nanoseconds, and a CPU in ticks.
        while not (found.nodes and found.nodes[0].cpu_load
                   and found.guests[0].cpu_load):
            found = load_rates.compute_load(
                before, reader.read_load_sample([known]), 0.0)
        self.assertGreater(found.guests[0].cpu_load, 0)
        self.assertGreater(found.nodes[0].cpu_load, 0)
        self.assertIsNone(found.nodes[1].cpu_load)
        self.assertEqual((2, 1), (found.nodes[1].memory,
                                  found.nodes[1].memory_free))


class MeterTest(base.TestCase):

    class _Reader:
        def __init__(self):
            self.current_time = 0.0
            self.busy = 0

        def read_load_sample(self, _guests):
            return load_rates.LoadSample(
                self.current_time,
                {0: load_rates.NodeCounters(frozenset({0}))},
                {0: load_files.CpuTicks(self.busy,
                                        int(self.current_time * 100))})

    def setUp(self):
        super().setUp()
        self.reader = self._Reader()
        self.meter = load_meter.LoadMeter(
            self.reader, bottleneck.make_bottleneck_limits({}), period=30)

    def _after(self, seconds, share):
        self.reader.current_time += seconds
        self.reader.busy += int(seconds * 100 * share)
        return self.meter.measure_host_load(())

    def test_nothing_is_known_after_one_sample(self):
        self.assertEqual((), self.meter.measure_host_load(()))
        self.assertIsNone(self.meter.load)

    def test_a_change_is_reported_once(self):
        self._after(0, 0)
        self.assertEqual([True], [change.begins
                                  for change in self._after(60, 1.0)])
        self.assertEqual((), self._after(60, 1.0))
        self.assertEqual([False], [change.begins
                                   for change in self._after(60, 0.1)])

    def test_who_asks_too_early_gets_the_one_before(self):
        self._after(0, 0)
        self._after(60, 0.5)
        before = self.meter.load
        self._after(10, 1.0)
        self.assertIs(before, self.meter.load)
        self._after(30, 1.0)
        self.assertEqual(40.0, self.meter.load.period)
