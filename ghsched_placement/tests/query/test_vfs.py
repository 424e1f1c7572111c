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


from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.flavor import policy
from ghsched_placement.query import vfs
from ghsched_placement.tests import base

VFS = 'CUSTOM_VF', frozenset({'CUSTOM_A'})


class ReadTest(base.TestCase):

    def summary(self, capacity=8, used=3, traits=('CUSTOM_A', 'CUSTOM_B'),
                resource_class='CUSTOM_VF'):
        return {'resources': {resource_class: {'capacity': capacity,
                                               'used': used}},
                'traits': list(traits), 'root_provider_uuid': 'root',
                'parent_provider_uuid': 'node0'}

    def test_remaining_amounts_and_their_nodes(self):
        self.assertEqual([vfs.Pf('root', 'node0', 5)],
                         vfs.parse_pfs({'pf': self.summary()}, *VFS))

    def test_other_devices_are_left_out(self):
        self.assertEqual([], vfs.parse_pfs({
            'gpu': self.summary(resource_class='CUSTOM_GPU'),
            'other': self.summary(traits=('CUSTOM_B',))}, *VFS))

    def test_the_question_names_class_and_traits(self):
        self.assertEqual([('resources_vf', 'CUSTOM_VF:1'),
                          ('required_vf', 'CUSTOM_A')],
                         vfs.make_pf_query(*VFS))


class SplitsTest(base.TestCase):

    def test_places_are_nodes_or_hosts(self):
        pfs = [vfs.Pf('a', 'a0', 3), vfs.Pf('a', 'a1', 4),
               vfs.Pf('a', 'a0', 5)]
        self.assertEqual({'a0': [5, 3], 'a1': [4]},
                         vfs.group_free_vfs(pfs, 'node'))
        self.assertEqual({'a': [5, 4, 3]}, vfs.group_free_vfs(pfs, 'any'))

    def test_the_fewest_pfs_come_first(self):
        self.assertEqual(
            [(5, 3), (4, 2, 2)],
            self.sizes(8, [4, 2, 2], [5, 3], [3, 3]))

    def test_one_pf_needs_no_split(self):
        self.assertEqual([], self.sizes(8, [9, 9], [8]))

    def test_ways_grow_with_the_number_of_groups(self):
        pfs = {'nic': [vfs.Pf('a', 'a0', 1)] * 4 + [vfs.Pf('b', 'b0', 1)] * 2,
               'fast': [vfs.Pf('a', 'a0', 1)] * 2}
        self.assertEqual(4 ** 3 * 2,
                         vfs.count_pf_combinations({'nic': 3, 'fast': 1}, pfs))
        self.assertEqual(0, vfs.count_pf_combinations({'other': 1}, pfs))

    def test_no_more_than_asked_for(self):
        pools = [[8, 4], [7, 5], [6, 6]]
        self.assertEqual(2, len(self.sizes(12, *pools, most=2)))

    def test_each_guest_node_is_shared_as_its_node_needs_it(self):
        pfs = [vfs.Pf('a', 'a0', 2), vfs.Pf('a', 'a0', 2),
               vfs.Pf('a', 'a1', 3), vfs.Pf('a', 'a1', 1)]
        needs = [policy.Vfs(0, 'nic', 4), policy.Vfs(1, 'nic', 4)]
        self.assertEqual(
            [{(0, 'nic'): (2, 2), (1, 'nic'): (3, 1)},
             {(0, 'nic'): (3, 1), (1, 'nic'): (2, 2)}],
            vfs.list_vf_divisions(needs, {'nic': pfs}, 'node', 9))

    def test_guest_nodes_take_of_the_same_pfs_one_after_the_other(self):
        pfs = [vfs.Pf('a', 'a0', 4), vfs.Pf('a', 'a1', 2)]
        needs = [policy.Vfs(0, 'nic', 3), policy.Vfs(1, 'nic', 3)]
        self.assertEqual([{(0, 'nic'): (3,), (1, 'nic'): (2, 1)}],
                         vfs.list_vf_divisions(needs, {'nic': pfs}, 'any', 9))

    @given(st.lists(st.tuples(st.sampled_from('ab'), st.sampled_from('01'),
                              st.integers(0, 9)), max_size=6),
           st.lists(st.integers(1, 12), min_size=1, max_size=2),
           st.sampled_from(['node', 'any']))
    def test_a_way_has_all_vfs_and_some_host_has_room_for_it(
            self, hosts, counts, locality):
        pfs = [vfs.Pf(root, root + node, free) for root, node, free in hosts]
        needs = [policy.Vfs(node, 'nic', count)
                 for node, count in enumerate(counts)]
        for way in vfs.list_vf_divisions(needs, {'nic': pfs}, locality, 99):
            self.assertEqual(counts, [sum(way[need.guest_node, 'nic'])
                                      for need in needs])
            most = max(sum(pf.free for pf in pfs if pf.root == root)
                       for root in 'ab')
            self.assertLessEqual(sum(counts), most)

    def sizes(self, count, *pools, most=9):
        pfs = [vfs.Pf(str(root), 'node', free)
               for root, pool in enumerate(pools) for free in pool]
        pfs = [vfs.Pf(pf.root, pf.root + pf.parent, pf.free) for pf in pfs]
        return [way[0, 'nic'] for way in vfs.list_vf_divisions(
            [policy.Vfs(0, 'nic', count)], {'nic': pfs}, 'node', most)]


class TriesTest(base.TestCase):

    PFS = {'nic': [vfs.Pf('a', 'a0', 5), vfs.Pf('a', 'a0', 3)]}

    def tries(self, pfs=None, **how):
        wanted = policy.GuestPolicy(vfs=(policy.Vfs(0, 'nic', 8),), **how)
        return list(vfs.yield_vf_requests(wanted, lambda: pfs or self.PFS))

    def test_the_nearest_come_first_and_one_pf_before_several(self):
        shared = {(0, 'nic'): (5, 3)}
        self.assertEqual(
            [('node', {}), ('node', shared), ('socket', {}),
             ('socket', shared), ('any', {}), ('any', shared)],
            self.tries(vfs_locality='any'))

    def test_nothing_is_farther_than_the_policy_allows(self):
        self.assertEqual(['node', 'node'], [
            locality for locality, _ in self.tries(vfs_locality='node')])

    def test_pfs_are_asked_for_only_when_one_pf_was_not_enough(self):
        found = vfs.yield_vf_requests(policy.GuestPolicy(vfs=(
            policy.Vfs(0, 'nic', 8),)), lambda: self.fail('asked'))
        self.assertEqual(('node', {}), next(found))

    def test_queries_too_long_for_placement_are_reported_and_left_out(
            self):
        many = {'nic': [vfs.Pf('a', 'a0', 1)] * 8}
        told = []
        wanted = policy.GuestPolicy(vfs=(policy.Vfs(0, 'nic', 8),),
                                    vfs_locality='node')
        self.assertEqual([('node', {})], list(vfs.yield_vf_requests(
            wanted, lambda: many, told.append)))
        self.assertEqual([{(0, 'nic'): (1,) * 8}], told)
