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


from ghsched_placement.flavor import topology
from ghsched_placement.tests import base


def split(vcpus=4, memory_mb=1024, **specs):
    return topology.split_guest(vcpus, memory_mb, {
        f'hw:{key}'.replace('__', '.'): value
        for key, value in specs.items()})


class SplitTest(base.TestCase):

    def test_no_topology_unless_asked_for(self):
        guest = split()
        self.assertEqual(((), 0, 4), (guest.cells, guest.pcpus, guest.shared))

    def test_evenly(self):
        self.assertEqual(
            (topology.CellShape(frozenset({0, 1}), 512),
             topology.CellShape(frozenset({2, 3}), 512)),
            split(numa_nodes='2').cells)

    def test_as_listed(self):
        guest = split(numa_nodes='2', numa_cpus__0='0-2', numa_mem__0='256',
                      numa_cpus__1='3', numa_mem__1='768')
        self.assertEqual((topology.CellShape(frozenset({0, 1, 2}), 256),
                          topology.CellShape(frozenset({3}), 768)),
                         guest.cells)

    def test_pinning_and_large_pages_make_one_node(self):
        for specs in ({'cpu_policy': 'dedicated'}, {'mem_page_size': 'large'},
                      {'cpu_policy': 'mixed', 'cpu_dedicated_mask': '0'}):
            self.assertEqual(1, len(split(**specs).cells))

    def test_dedicated_and_mixed_cpus(self):
        for specs, counts in (
                ({'cpu_policy': 'dedicated'}, (4, 0)),
                ({'cpu_policy': 'dedicated',
                  'emulator_threads_policy': 'isolate'}, (5, 0)),
                ({'cpu_policy': 'mixed', 'cpu_dedicated_mask': '^0'},
                 (3, 1))):
            guest = split(**specs)
            self.assertEqual(counts, (guest.pcpus, guest.shared))


class RefusalTest(base.TestCase):

    def check(self, *cases):
        for specs, reason in cases:
            with self.assertRaises(topology.TopologyError) as raised:
                split(**specs)
            self.assertIn(reason, str(raised.exception))

    def test_a_topology_names_the_key_and_the_reason(self):
        two = {'numa_nodes': '2', 'numa_mem__0': '512', 'numa_mem__1': '512'}
        self.check(
            ({'numa_nodes': '0'}, "hw:numa_nodes: '0' is not a number"),
            ({'numa_nodes': '3'}, '4 vCPUs cannot be split evenly'),
            ({'numa_nodes': '2', 'memory_mb': 7}, '7 MB of RAM cannot'),
            (two, 'set both for every N from 0 to 1'),
            ({**two, 'numa_cpus__0': '0-1', 'numa_cpus__1': '1-3'},
             'hw:numa_cpus.1: vCPU 1 is on another node'),
            ({**two, 'numa_cpus__0': '0-1', 'numa_cpus__1': '9'},
             'hw:numa_cpus.1: vCPU 9 is on another node or beyond'),
            ({**two, 'numa_cpus__0': '0', 'numa_cpus__1': '3'},
             'vCPU 1-2 is on no guest NUMA node'),
            ({**two, 'numa_cpus__0': 'a', 'numa_cpus__1': '3'},
             "hw:numa_cpus.0: 'a'"),
            ({**two, 'numa_cpus__0': '0-1', 'numa_cpus__1': '2-3',
              'numa_mem__1': '1'}, '513 MB in all, but the guest has'),
            ({**two, 'numa_cpus__0': '0-1', 'numa_cpus__1': '2-3',
              'numa_mem__1': 'x'}, "hw:numa_mem.1: 'x' is not a number"),
            ({'numa_nodes': '02'}, "'02' is not a number"))

    def test_a_cpu_policy_names_the_key_and_the_reason(self):
        self.check(
            ({'cpu_policy': 'x'}, "hw:cpu_policy: 'x' is not one of"),
            ({'cpu_policy': 'mixed'}, 'mixed needs hw:cpu_dedicated_mask'),
            ({'cpu_policy': 'mixed', 'cpu_realtime_mask': '^0'},
             'mixed needs hw:cpu_dedicated_mask, or hw:cpu_realtime'),
            ({'cpu_policy': 'mixed', 'cpu_dedicated_mask': '0-3'},
             'must name some of the 4 vCPUs'),
            ({'cpu_realtime': 'yes'}, 'hw:cpu_realtime'),
            ({'emulator_threads_policy': 'x'}, "'x' is not one of share"),
            ({'cpu_dedicated_mask': '0'}, 'needs hw:cpu_policy=mixed'),
            ({'cpu_thread_policy': 'isolate'}, 'needs hw:cpu_policy='),
            ({'emulator_threads_policy': 'isolate'}, 'isolate needs'))

    def test_pages_name_the_key_and_the_reason(self):
        self.check(
            ({'mem_page_size': 'foo'}, "'foo' is not one of small, large"),
            ({'mem_page_size': '1GB', 'memory_mb': 4608},
             '4608 MB of RAM on guest NUMA node 0 are not a multiple of '
             '1048576 KiB'),
            ({'mem_page_size': '1GB', 'numa_nodes': '2',
              'memory_mb': 5120}, '2560 MB of RAM on guest NUMA node 0'),
            ({'locked_memory': 'yes'}, 'needs hw:mem_page_size'))
