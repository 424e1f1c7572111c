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

"""Flavors that leave the number of guest NUMA nodes to the scheduler."""

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import policy
from ghsched_placement.flavor import topology
from ghsched_placement.tests import base

AUTO = {'ghsched:numa': 'auto'}


class CountsTest(base.TestCase):

    @given(st.integers(1, 64), st.integers(1, 4096), st.integers(1, 16))
    def test_counts_are_those_that_nova_can_split(self, vcpus, memory, most):
        specs = {**AUTO, 'ghsched:numa_max': str(most)}
        counts = auto_nodes.list_node_counts(specs, vcpus, memory)
        for count in range(1, 17):
            fixed = auto_nodes.copy_with_node_count(specs, count)
            if count in counts:
                self.assertEqual(
                    count,
                    len(topology.split_guest(vcpus, memory, fixed).cells))
            elif count <= min(most, vcpus):
                self.assertRaises(topology.TopologyError, topology.split_guest,
                                  vcpus, memory, fixed)

    def test_default_is_one_node_or_two(self):
        self.assertEqual((1, 2), auto_nodes.list_node_counts(AUTO, 4, 512))
        self.assertEqual((1,), auto_nodes.list_node_counts(AUTO, 3, 512))

    def test_server_that_runs_or_asks_for_it_keeps_its_number(self):
        keeping = {**AUTO, 'ghsched:numa_keep': 'true'}
        for expected, specs, current, is_fixed in (
                ((1, 2), AUTO, 2, False), ((2,), AUTO, 2, True),
                ((2,), keeping, 2, False), ((1, 2), keeping, 0, True)):
            self.assertEqual(expected, auto_nodes.list_server_node_counts(
                specs, 4, 512, current, is_fixed))


class VfsTest(base.TestCase):

    @given(st.integers(1, 256), st.integers(1, 16))
    def test_parts_add_up_to_the_vfs_of_each_node_for_each_count(
            self, total, most):
        parts = auto_nodes.divide_vfs(total, most)
        for count in range(1, most + 1):
            found = [0] * count
            for first, size in parts:
                found[auto_nodes.find_node_of_vf(first, total, count)] += size
            found_policy = policy.parse_policy(
                {'ghsched:vfs': f'nic:{total}'}, count)
            wanted = found_policy.vfs
            self.assertEqual({one.guest_node: one.count for one in wanted}, {
                node: size for node, size in enumerate(found) if size})

    def test_parts_are_as_few_as_the_counts_allow(self):
        self.assertEqual([(0, 4)], auto_nodes.divide_vfs(4, 1))
        self.assertEqual([(0, 3), (3, 2)], auto_nodes.divide_vfs(5, 2))
        self.assertEqual([(0, 10), (10, 4), (14, 6), (20, 7), (27, 3),
                          (30, 10)], auto_nodes.divide_vfs(40, 4))


class CheckTest(base.TestCase):

    def assert_refused(self, regex, specs):
        with self.assertRaisesRegex(policy.PolicyError, regex):
            policy.check_flavor(specs, specs)

    def test_auto_takes_the_place_of_a_number(self):
        for more in ({}, {'ghsched:mem_bw_min': '20'},
                     {'ghsched:vfs': 'nic:1'},
                     {'ghsched:numa_max': '4', 'ghsched:numa_keep': 'true'}):
            found = policy.check_flavor({**AUTO, **more}, {**AUTO, **more})
            self.assertTrue(found.auto_nodes)
            self.assertIn('NUMA_AUTO', found.get_needed_capabilities())

    def test_keys_that_contradict_auto_are_refused(self):
        for more in ('hw:numa_nodes', 'hw:numa_cpus.0', 'hw:numa_mem.1',
                     'ghsched:mem_bw_min.0'):
            self.assert_refused(more, {**AUTO, more: '1'})
        self.assert_refused('ghsched:vfs.0: with',
                            {**AUTO, 'ghsched:vfs.0': 'nic:1'})

    def test_keys_without_auto_are_refused(self):
        for name, value in (('numa_max', '2'), ('numa_keep', 'true')):
            self.assert_refused(f'ghsched:{name}: needs ghsched:numa=auto',
                                {f'ghsched:{name}': value})

    def test_bad_values_are_refused(self):
        for specs in ({'ghsched:numa': '2'}, {**AUTO, 'ghsched:numa_max': '0'},
                      {**AUTO, 'ghsched:numa_max': '17'},
                      {**AUTO, 'ghsched:numa_max': 'x'}):
            self.assert_refused('ghsched:numa', specs)
