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

"""Free capacity of hosts."""


from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.fit import capacity
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds


class HostsTest(base.TestCase):

    def test_each_provider_finds_its_place(self):
        found, = capacity.build_hosts([
            clouds.pf('0000:81:00.0', 1, used=3), clouds.node(1, used=30),
            clouds.pf('0000:01:00.0', None), clouds.root(groups_used=1),
            clouds.node(0, reserved=10)])
        self.assertEqual([0, 1], [node.number for node in found.nodes])
        self.assertEqual([90, 70], [node.bandwidth.free
                                    for node in found.nodes])
        self.assertEqual(('0000:81:00.0', 5), (
            found.nodes[1].pfs[0].address,
            found.nodes[1].count_free_vfs(clouds.VF)))
        self.assertEqual(['0000:01:00.0'],
                         [pf.address for pf in found.elsewhere])
        self.assertEqual(30, found.groups.free)
        self.assertIn('MEM_BW_MIN', found.capabilities)

    def test_hosts_of_others_are_none(self):
        self.assertEqual((), capacity.build_hosts([
            clouds.root(traits=(), groups=0, MEMORY_MB=1024)]))

    def test_a_host_without_numa_nodes_is_one(self):
        found, = capacity.build_hosts([clouds.root(
            groups=0, traits={names.CAPABILITY_TRAITS['DEVICE_NUMA']})])
        self.assertEqual((None, (), None), (
            found.groups, found.nodes, capacity.compute_fragmentation(found)))

    def test_a_tree_without_its_root_is_passed_over(self):
        self.assertEqual((), capacity.build_hosts([clouds.node(0)]))

    def test_a_node_of_another_host_has_no_number(self):
        moved = clouds.node(0, name='b')
        found = capacity.parse_numa_node_number(clouds.root_uuid('a'),
                                                moved.uuid,
                                                'a_NUMA0')
        self.assertIsNone(found)

    @given(st.text(max_size=20))
    def test_no_name_is_too_strange(self, name):
        self.assertIsNone(capacity.parse_numa_node_number(
            clouds.root_uuid('a'), clouds.node_uuid('a', 0), name))

    def test_largest_guarantee_needs_a_control_group(self):
        host = clouds.host(clouds.node(0, used=30))
        self.assertEqual(70, host.get_largest_guarantee(host.nodes[0]))
        full = clouds.host(clouds.node(0, used=30), groups=2, groups_used=2)
        self.assertEqual(0, full.get_largest_guarantee(full.nodes[0]))

    def test_nobody_is_guaranteed_more_than_a_node(self):
        host = clouds.host(clouds.node(0, used=30, ratio=2.0))
        node = host.nodes[0]
        self.assertEqual((170, 100), (node.bandwidth.free,
                                      host.get_largest_guarantee(node)))


class FragmentationTest(base.TestCase):

    def test_whole_nodes_are_not_fragmented(self):
        for used, percent in (((0, 0), 0), ((100, 0), 0), ((50, 0), 33),
                              ((50, 50), 100), ((100, 100), None)):
            host = clouds.host(*(clouds.node(number, used=share)
                                 for number, share in enumerate(used)))
            self.assertEqual(percent, capacity.compute_fragmentation(host),
                             used)

    @given(st.lists(st.integers(0, 100), min_size=1, max_size=8))
    def test_is_a_percentage(self, used):
        host = clouds.host(*(clouds.node(number, used=share)
                             for number, share in enumerate(used)))
        found = capacity.compute_fragmentation(host)
        self.assertTrue(found is None or 0 <= found <= 100)
