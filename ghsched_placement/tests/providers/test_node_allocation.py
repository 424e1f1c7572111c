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

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.flavor import policy
from ghsched_placement.providers import names
from ghsched_placement.providers import node_allocation
from ghsched_placement.tests import base

HOST = '7c0a6f1e-5c2c-4a52-9d0f-0a4f4b2f6f10'


def parsed(nodes=1, **keys):
    specs = {f'ghsched:{key.replace("__", ".")}': str(value)
             for key, value in keys.items()}
    return policy.parse_policy(specs, nodes)


def ways(guest, guest_nodes, nodes, found, accounting='min'):
    return list(node_allocation.yield_possible_host_nodes(guest, accounting,
                                                          guest_nodes,
                                                          range(nodes),
                                                          found))


class HeldTest(base.TestCase):

    def test_an_allocation_is_read_by_host_node(self):
        allocations = {
            HOST: {'resources': {names.RESCTRL_GROUP: 1, 'PCPU': 4}},
            names.make_numa_provider_uuid(HOST, 1): {
                'resources': {names.MEM_BW_PCT: 30}},
            'pf-a': {'resources': {'CUSTOM_PCI_1': 2}},
            'pf-b': {'resources': {'CUSTOM_PCI_2': 1}}}
        self.assertEqual(
            node_allocation.NodeAllocation({1: 30}, {3: 3}),
            node_allocation.parse_allocation_by_node(allocations, HOST,
                                                     range(4),
                                                     {'pf-a': 3, 'pf-b': 3,
                                                      'pf-c': 0}))

    def test_devices_of_unknown_nodes_are_left_out(self):
        self.assertEqual(node_allocation.NodeAllocation(),
                         node_allocation.parse_allocation_by_node(
            {'pf': {'resources': {'CUSTOM_PCI_1': 2}}}, HOST, range(2),
            {'pf': None}))


class OrdersTest(base.TestCase):

    def test_bandwidth_names_the_node(self):
        self.assertEqual([(1,)], ways(parsed(mem_bw_min=60), 1, 2,
                                      node_allocation.NodeAllocation({1: 60})))

    def test_another_share_names_none(self):
        self.assertEqual([], ways(parsed(mem_bw_min=60), 1, 2,
                                  node_allocation.NodeAllocation({1: 50})))

    def test_equal_shares_may_be_either_way_round(self):
        guest = parsed(2, mem_bw_min=30)
        self.assertEqual([(0, 2), (2, 0)],
                         ways(guest, 2, 3,
                              node_allocation.NodeAllocation({0: 30, 2: 30})))

    def test_a_node_that_is_not_counted_takes_none_that_is(self):
        guest = parsed(2, mem_bw_min__1=60)
        self.assertEqual([(1, 0), (2, 0)],
                         ways(guest, 2, 3,
                              node_allocation.NodeAllocation({0: 60})))

    def test_vfs_alone_name_the_node(self):
        guest = parsed(vfs='nic:2', vfs_locality='node')
        self.assertEqual([(2,)], ways(guest, 1, 4,
                                      node_allocation.NodeAllocation(
                                          devices={0: 1, 2: 2})))

    def test_far_vfs_prefer_their_node(self):
        guest = parsed(vfs='nic:2', vfs_locality='any')
        self.assertEqual((2,), ways(guest, 1, 4,
                                    node_allocation.NodeAllocation(
                                        devices={2: 2}))[0])

    def test_nodes_without_vfs_leave_those_with_devices_alone(self):
        guest = parsed(2, vfs__1='nic:1', vfs_locality='node')
        self.assertEqual([(0, 1), (2, 1)],
                         ways(guest, 2, 3,
                              node_allocation.NodeAllocation(devices={1: 1})))

    def test_the_cap_may_be_what_is_counted(self):
        guest = parsed(mem_bw_min=10, mem_bw_max=40)
        self.assertEqual(
            [(1,)], ways(guest, 1, 2, node_allocation.NodeAllocation({1: 40}),
                         'max'))

    @given(st.integers(1, 3).flatmap(lambda count: st.tuples(
        st.permutations(range(4)).map(lambda order: tuple(order[:count])),
        st.lists(st.integers(0, 3), min_size=count, max_size=count))))
    def test_where_the_guest_was_placed_is_always_among_them(self, case):
        order, shares = case
        guest = parsed(len(shares), monitor='true', **{
            f'mem_bw_min__{number}': share * 10
            for number, share in enumerate(shares)})
        found = node_allocation.NodeAllocation({
            node: share * 10 for node, share in zip(
                order, shares, strict=True) if share})
        all_ways = ways(guest, len(shares), 4, found)
        self.assertIn(order, all_ways)
        self.assertEqual(len(all_ways), len(set(all_ways)))
        for way, (node, share) in itertools.product(
                all_ways, found.bandwidth.items()):
            self.assertEqual(share, shares[way.index(node)] * 10)
