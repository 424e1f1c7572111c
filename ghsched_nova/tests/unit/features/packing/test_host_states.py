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

"""NUMA nodes and devices of hosts from Nova's host states."""

from nova import objects

from ghsched_nova.features.packing import host_states
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.packing.numa_nodes import NodeAmount
from ghsched_placement.tests import base

cell, host, pool, spec = (states.cell, states.host, states.pool, states.spec)


class FloatingGuestsTest(base.TestCase):
    """Guests without a NUMA topology."""

    def free(self, state):
        return [node.shared.free
                for node in host_states.list_host_nodes(state, {}, None)]

    def test_each_node_has_a_part_of_their_cpus(self):
        cells = [cell(0), cell(1)]
        self.assertEqual([4, 4], self.free(host(cells)))
        self.assertEqual([2, 2], self.free(host(cells, vcpus_used=3)))

    def test_nodes_with_dedicated_cpus_have_none(self):
        cells = [cell(number, cpus=8, shared=4, dedicated=4)
                 for number in range(2)]
        self.assertEqual(self.free(host(cells)),
                         self.free(host(cells, vcpus_used=3)))


class MemoryAndDevicesTest(base.TestCase):
    """Nova's own keys keep their meaning."""

    def memory(self, page_size, **used):
        pages = [objects.NUMAPagesTopology(
            size_kb=size, total=total, used=used.get(f'of_{size}', 0))
            for size, total in ((4, 65536), (2048, 256), (1048576, 2))]
        state = host([cell(0, pages=pages,
                           memory_usage=used.get('memory', 0))])
        node, = host_states.list_host_nodes(state, {}, page_size)
        return node.memory

    def test_pages_of_the_size_asked_for(self):
        self.assertEqual(NodeAmount(512, 312), self.memory(2048, of_2048=100))
        self.assertEqual(NodeAmount(2048, 1024),
                         self.memory(1048576, of_1048576=1))

    def test_large_pages_are_those_with_most_left(self):
        self.assertEqual(NodeAmount(2048, 2048), self.memory('large'))
        self.assertEqual(NodeAmount(512, 512),
                         self.memory('large', of_1048576=2))

    def test_small_pages_are_what_is_not_huge(self):
        for page_size in (None, 'small', 'any'):
            self.assertEqual(NodeAmount(256, 156), self.memory(
                page_size, memory=300, of_2048=100))

    def test_a_size_that_the_host_has_not(self):
        self.assertEqual(NodeAmount(0, 0), self.memory(16384))

    def test_a_preferred_device_may_be_anywhere(self):
        for policy, anywhere in (('preferred', True), ('socket', True),
                                 ('required', False), ('legacy', False)):
            need, = host_states.list_device_needs(
                host(), spec(vfs=2, numa_policy=policy), {})
            self.assertEqual((2, anywhere), (need.count, need.anywhere))

    def test_devices_of_another_kind_are_not_taken(self):
        state = host(pools=[pool(0), pool(0, product_id='other')])
        need, = host_states.list_device_needs(
            state, spec(vfs=2), host_states.get_pci_pools(state))
        self.assertEqual(frozenset('0'), need.pools)
