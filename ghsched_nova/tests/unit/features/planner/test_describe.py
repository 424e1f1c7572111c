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

"""NUMA nodes and L3 caches of hosts, as ``ghsched-host describe`` prints them.

The topologies are facts of machines; how many guests fit is counted by hand.
"""

import contextlib
import io
from pathlib import Path
from unittest import mock

import ddt
import fixtures
import yaml

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import host
from ghsched_nova.features.cpu_cache import cpu_cache
from ghsched_nova.features.planner import describe
from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_placement.base import cpulist
from ghsched_placement.fit import room
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.tests import base

#: Machines: cores of a NUMA node, threads of a core, cores that share an L3 (0
#: if the kernel names no L3), and how many guests of 8 dedicated CPUs of one
#: L3 the empty node holds, counted by hand. The Kunpeng 920 is hwloc's
#: 128arm-2pa2n8cluster4co; the others are as their makers publish them (EPYC
#: 7742 with four NUMA nodes a socket, 9755 and 9754 with one), not read from
#: a machine. An Ampere Altra has no L3 below its system level cache.
MACHINES = (
    ('EPYC 7742', 16, 2, 4, 4), ('EPYC 9754', 128, 2, 8, 32),
    ('EPYC 9755', 128, 2, 8, 32), ('Kunpeng 920', 32, 1, 32, 4),
    ('Grace', 72, 1, 72, 9), ('Ampere Altra', 80, 1, 0, None),
)

REST = {'name': 'h', 'resctrl': {
    'dialect': 'amd-qos', 'num_closids': 4, 'min_bandwidth': 1,
    'bandwidth_gran': 1}}


def write_node(root, cores, threads, shared, pages=7):
    node = root / 'devices/system/node/node0'
    (node / 'hugepages/hugepages-1048576kB').mkdir(parents=True)
    (node / 'hugepages/hugepages-1048576kB/nr_hugepages').write_text(
        f'{pages}\n')
    (node / 'cpulist').write_text(f'0-{cores * threads - 1}\n')
    (node / 'distance').write_text('10\n')
    (node / 'meminfo').write_text('Node 0 MemTotal:       16777216 kB\n')
    for core in range(cores):
        first = core // shared * shared if shared else 0
        of_cache = {cpu + cores * thread for thread in range(threads)
                    for cpu in range(first, first + shared)}
        for thread in range(threads if shared else 0):
            cache = (root / f'devices/system/cpu/cpu{core + cores * thread}'
                     / 'cache/index3')
            cache.mkdir(parents=True)
            (cache / 'id').write_text(f'{first // shared}\n')
            (cache / 'shared_cpu_list').write_text(
                cpulist.render_cpu_list(of_cache) + '\n')


@ddt.ddt
class MachineTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)

    def load(self, nodes):
        path = self.root / 'host.yaml'
        path.write_text(yaml.safe_dump({**REST, 'nodes': nodes}))
        return hostfile.load_host_file(str(path))

    @ddt.data(*MACHINES)
    @ddt.unpack
    def test_described_host_holds_as_many_guests_as_the_machine(
            self, _name, cores, threads, shared, guests):
        write_node(self.root, cores, threads, shared)
        capabilities = cpu_cache.CpuCaches(self.root).describe_host(
            HostDescription(nodes=(0,), control_groups=0)).capabilities
        self.assertEqual({'CPU_CACHE'} if guests else set(), capabilities)
        nodes = [*describe.read_node_descriptions(self.root)]
        self.assertEqual(cores // shared if shared and shared < cores else 0,
                         len(nodes[0].get('caches', ())))
        if not guests:
            return    # require goes to other hosts
        for node in nodes:
            del node['domains']
        of_node, = planner_hosts.make_planner_host(self.load(
            [{**node, 'domains': [0], 'bandwidth_mb': 1000}
             for node in nodes]), 'h').cells
        self.assertEqual(guests, room.count_guest_nodes(
            of_node, GuestNode(pinned=8, cpu_cache='require'), None))

    def test_output_is_a_section_of_a_host_file(self):
        write_node(self.root, 4, 2, 2)
        section = mock.Mock(sysfs_path=str(self.root))
        out = io.StringIO()
        with (mock.patch.object(configured, 'read_ghsched_options',
                                return_value=section),
              contextlib.redirect_stdout(out)):
            self.assertEqual(0, host.main(['describe']))
        nodes = yaml.safe_load(out.getvalue())['nodes']
        self.assertEqual([{
            'id': 0, 'cpus': '0-7', 'memory_mb': 16384, 'distances': [10],
            'domains': [0, 1], 'caches': ['0-1,4-5', '2-3,6-7'],
            'pages': {'1048576': 7}}], nodes)
        found, = self.load(
            [{**nodes[0], 'bandwidth_mb': 1000}]).nodes
        self.assertEqual((frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})),
                         found.caches)
        self.assertEqual({1048576: 7}, found.pages)
