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


"""Groups that contend on an emulated host, read as on a real one.

All figures are simulated: they follow from the load and the schemata by the
contention model.
"""

import os
from pathlib import Path
import re
import shutil
import tempfile
import time


from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import topology
from ghsched_nova.monitor import reader
from ghsched_nova.tests.fixtures import mount
from ghsched_placement.tests import base

LOAD = {'capacity_mb': 100000,
        'groups': {'noisy': {'0': 400000}, 'victim': {'0': 20000}}}


class NoisyNeighbourTest(base.TestCase):

    def mount(self, dialect):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest('two CPUs are needed for two NUMA nodes')
        machine = machines.build(dialect, f'0={cpus[0]};1={cpus[1]}')
        self.resctrl = self.useFixture(mount.ResctrlFixture(machine))
        self.root = Path(self.resctrl.path)
        for group in LOAD['groups']:
            (self.root / group).mkdir()
        sysfs = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, sysfs)
        topology.write_sysfs(machine, sysfs)
        self.reader = reader.Reader(self.root, sysfs)

    def rates(self):
        """GB/s of the victim and of the noisy group on node 0."""
        self.reader.measure_group_bandwidth()
        time.sleep(0.2)         # a counter needs two readings
        found = {usage.group.path: usage.used[0,].rate / 1e9
                 for usage in self.reader.measure_group_bandwidth().groups}
        return found['victim'], found['noisy']

    def write(self, group, text):
        """Write to the schemata; node 0 has the first domain."""
        file = self.root / group / 'schemata'
        domain = re.search('MB:([0-9]+)=', file.read_text())[1]
        file.write_text(text.format(domain=domain))

    def between(self, low, figure, high):
        self.assertLess(low, figure)
        self.assertLess(figure, high)

    def check(self, dialect, group, text):
        self.mount(dialect)
        with self.resctrl.load(LOAD):
            victim, noisy = self.rates()
            self.between(4, victim, 5.5)
            self.between(80, noisy, 110)
            self.write(group, text)
            victim, noisy = self.rates()
            self.between(17, victim, 23)
            self.between(30, noisy, 90)
        self.assertEqual((0, 0), self.rates())

    def test_guarantee_where_rates_are_shown(self):
        self.check('openeuler66', 'victim', 'MBMIN:0=20\n')

    def test_priority_where_rates_are_shown(self):
        self.check('openeuler66', 'victim', 'MBPRI:0=7\n')

    def test_cap_of_the_other_where_bytes_are_counted(self):
        self.check('intel', 'noisy', 'MB:0=50\n')

    def test_cap_of_the_other_where_counters_are_assigned(self):
        self.check('mpam', 'noisy', 'MB:{domain}=50\n')
