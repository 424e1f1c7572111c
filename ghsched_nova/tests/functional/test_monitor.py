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


"""The load of a real thread, seen through the emulated resctrl.

All figures are simulated.
"""

import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile
import time


from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import topology
from ghsched_nova.lab.emulator import traffic
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import view
from ghsched_nova.tests.fixtures import mount
from ghsched_placement.tests import base

GROUP = 'qemu-7-instance-00000001-vcpus_0'
_BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print('ready', flush=True)
while True:
    pass
"""


class BusyGuestTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.cpus = sorted(os.sched_getaffinity(0))
        if len(self.cpus) < 2:
            self.skipTest('two CPUs are needed for two NUMA nodes')

    def read(self, dialect, share):
        """Return the figures of a guest whose thread is busy on node 1."""
        first, *rest = self.cpus
        machine = machines.build(
            dialect, f'0={first};1=' + ','.join(map(str, rest)))
        root = Path(self.useFixture(mount.ResctrlFixture(machine)).path)
        group = root / GROUP
        group.mkdir()
        if share < 100:
            (group / 'schemata').write_text(f'MB:1={share}\n')
        process = subprocess.Popen(
            [sys.executable, '-S', '-c', _BUSY, str(rest[0])],
            stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdout.readline()
        (group / 'tasks').write_text(f'{process.pid}\n')
        source = reader.Reader(root, self.sysfs(machine))
        source.measure_group_bandwidth()
        before = _cpu_seconds(process.pid), time.monotonic()
        time.sleep(1.0)
        shown = view.make_bandwidth_snapshot(
            source.measure_group_bandwidth(), ())
        busy = (_cpu_seconds(process.pid) - before[0]) / (
            time.monotonic() - before[1])
        return shown, busy

    def sysfs(self, machine):
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        topology.write_sysfs(machine, top)
        return top

    def check(self, dialect, share=100, part=1.0):
        shown, busy = self.read(dialect, share)
        guest, = shown.guests
        used = {row.nodes: row.used.rate for row in guest.nodes}
        self.assertEqual(0, used[0,])
        # Another source: the kernel's own account of the thread's time.
        expected = busy * part * traffic.FULL_RATE
        self.assertTrue(
            abs(used[1,] - expected) <= 0.15 * part * traffic.FULL_RATE,
            f'{used[1,]:.3g} bytes/s are seen, {expected:.3g} are expected')
        by_node = {node.nodes: node for node in shown.nodes}
        self.assertEqual(used[1,], by_node[1,].guests.rate)

    def test_counter(self):
        self.check('intel')

    def test_counter_that_is_assigned(self):
        self.check('mpam')

    def test_rate(self):
        self.check('openeuler66')

    def test_capped(self):
        self.check('intel', share=50, part=0.5)


def _cpu_seconds(pid):
    with open(f'/proc/{pid}/stat') as stream:
        fields = stream.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')
