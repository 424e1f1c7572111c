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

import dataclasses
from pathlib import Path

from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_placement.tests import base

HOSTS = Path(__file__).parents[5] / 'etc' / 'ghsched' / 'hosts'


class PlannedTest(base.TestCase):

    def host(self, **compute):
        file = hostfile.load_host_file(str(HOSTS / 'kunpeng920.yaml'))
        return planner_hosts.make_planner_host(dataclasses.replace(
            file, compute=hostfile.Compute(**compute)), 'h')

    def amounts(self, host):
        return {name: (record['total'], record['allocation_ratio'])
                for name, record in host.root.inventories.items()}

    def test_reports_of_nova_itself(self):
        found = self.amounts(self.host(
            dedicated=frozenset(range(100)), cpu_ratio=2.0, disk_gb=50))
        self.assertEqual({
            'VCPU': (220, 2.0), 'PCPU': (100, 1.0), 'DISK_GB': (50, 1.0),
            'MEMORY_MB': (4 * 131072, 1.0), 'CUSTOM_RESCTRL_GROUP': (31, 1.0),
        }, found)

    def test_cpus_of_each_node(self):
        host = self.host(dedicated=frozenset(range(100)), cpu_ratio=2.0)
        self.assertEqual(
            [(0, 0, 80), (60, 120, 20), (80, 160, 0), (80, 160, 0)],
            [(cell.cpus, cell.vcpus, cell.dedicated) for cell in host.cells])

    def test_disks_that_are_not_reported_are_never_short(self):
        self.assertGreater(self.amounts(self.host())['DISK_GB'][0], 10 ** 6)

    def test_pfs_are_below_their_nodes(self):
        host = self.host()
        (place,) = host.node_by_device_provider
        self.assertEqual(0, host.node_by_device_provider[place])
        self.assertEqual('h_0000:81:00.0', host.providers[place].name)

    def test_nova_owns_the_compute_node(self):
        self.assertIn('OWNER_NOVA', self.host().root.traits)
