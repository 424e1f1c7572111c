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

from pathlib import Path

import fixtures

from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import topology
from ghsched_placement.tests import base

MEMINFO = """\
Node 0 MemTotal:        7170264 kB
Node 0 MemFree:         6000001 kB
Node 0 HugePages_Total:     3
"""


class TopologyTest(base.TestCase):
    def setUp(self):
        super().setUp()
        self.machine = machines.build('openeuler66', '0=0-1;1=2-3')

    def test_memory_is_split_in_whole_pages(self):
        text = topology.split_memory([MEMINFO], 2, 1)
        self.assertIn('Node 1 MemTotal:        3585132 kB\n', text)
        self.assertIn('Node 1 MemFree:         3000000 kB\n', text)
        self.assertIn('Node 1 HugePages_Total:', text)

    def test_nodes(self):
        files = topology.node_files(
            self.machine, [MEMINFO], {'hugepages-2048kB': 3}
        )
        for path, text in (
            ('online', '0-1'), ('node0/distance', '10 21'),
            ('node1/distance', '21 10'), ('node1/cpulist', '2-3'),
            ('node1/cpumap', 'c'),
            ('node0/hugepages/hugepages-2048kB/nr_hugepages', '2'),
            ('node1/hugepages/hugepages-2048kB/nr_hugepages', '1'),
        ):
            self.assertEqual(f'{text}\n', files[path])

    def test_pages_of_one_gigabyte_are_shown_as_asked_for(self):
        target = Path(self.useFixture(fixtures.TempDir()).path)
        topology.write_nodes(self.machine, str(target), 5)
        shown = [(target / f'node{node}/hugepages/hugepages-1048576kB'
                  / 'free_hugepages').read_text() for node in (0, 1)]
        self.assertEqual(['3\n', '2\n'], shown)

    def test_cpu(self):
        files = topology.cpu_files(self.machine, 3)
        for path, text in (
            ('topology/physical_package_id', '1'), ('topology/core_id', '1'),
            ('topology/core_siblings_list', '2-3'),
            ('topology/thread_siblings_list', '3'),
            ('cache/index3/id', '122'),
            ('cache/index3/shared_cpu_list', '2-3'),
            ('cache/index3/shared_cpu_map', 'c'),
        ):
            self.assertEqual(f'{text}\n', files[path])
