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


import re

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.flavor.policy import PolicyError
from ghsched_placement.providers import names
from ghsched_placement.query import combinations
from ghsched_placement.query import request
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import sample_flavors


class BuildTest(base.TestCase):

    def test_each_guest_node_asks_for_its_guarantee_on_one_host_node(self):
        policy = parse_policy({'ghsched:mem_bw_min.0': '30',
                               'ghsched:mem_bw_min.1': '70'}, 2)
        wanted = request.build_request(policy, 'min')
        self.assertEqual(
            [{names.MEM_BW_PCT: 30}, {names.MEM_BW_PCT: 70}],
            [dict(group.resources) for group in wanted.groups])

    def test_a_guest_takes_one_control_group_whatever_its_nodes(self):
        policy = parse_policy({'ghsched:mem_bw_max': '50'}, 4)
        wanted = request.build_request(policy, 'min')
        self.assertEqual(((), {names.RESCTRL_GROUP: 1}),
                         (wanted.groups, wanted.resources))

    def test_counting_caps_asks_for_the_cap(self):
        policy = parse_policy({'ghsched:mem_bw_min': '10',
                               'ghsched:mem_bw_max': '50'}, 1)
        self.assertEqual(
            {names.MEM_BW_PCT: 50},
            dict(request.build_request(policy, 'max').groups[0].resources))

    def test_a_guest_that_is_only_measured_takes_nothing(self):
        wanted = request.build_request(GuestPolicy(monitor=True), 'min')
        self.assertEqual((), wanted.groups)
        self.assertEqual({'CUSTOM_GHSCHED_MEM_BW_MONITOR'},
                         set(wanted.root_required))

    def test_a_soft_cap_needs_a_host_that_can_lend_bandwidth(self):
        policy = GuestPolicy((NodePolicy(maximum=50, hardlimit=False),))
        self.assertEqual(
            {'CUSTOM_GHSCHED_MEM_BW_MAX',
             'CUSTOM_GHSCHED_MEM_BW_SOFTLIMIT'},
            set(request.build_request(policy, 'min').root_required))

    def test_no_cap_needs_no_kind_of_cap(self):
        policy = GuestPolicy((NodePolicy(hardlimit=True),))
        self.assertEqual(frozenset(),
                         request.build_request(policy, 'min').root_required)

    @given(st.lists(st.integers(0, 100), min_size=1, max_size=16))
    def test_suffixes_are_distinct_and_fit_placements_rule(self, shares):
        policy = GuestPolicy(tuple(NodePolicy(minimum=share)
                                   for share in shares))
        groups = request.build_request(policy, 'min').groups
        suffixes = [group.suffix for group in groups]
        self.assertEqual(len(suffixes), len(set(suffixes)))
        for suffix in suffixes:
            self.assertTrue(re.fullmatch(r'[a-zA-Z0-9_-]{1,64}', suffix))

    @base.needs_features('l3_ways')
    def test_ways_of_an_l3_come_from_the_node_of_the_bandwidth(self):
        policy = GuestPolicy((NodePolicy(minimum=20, l3_ways=3),
                              NodePolicy(l3_ways=2), NodePolicy()))
        found = request.build_request(policy, 'min')
        self.assertEqual(
            {names.make_bandwidth_suffix(0): {names.MEM_BW_PCT: 20,
                                              names.L3_WAYS: 3},
             names.make_bandwidth_suffix(1): {names.L3_WAYS: 2}},
            {group.suffix: group.resources for group in found.groups})
        self.assertIn('CUSTOM_GHSCHED_L3_WAYS', found.root_required)

    @base.needs_features('bursts')
    def test_bursts_are_asked_for_where_guarantees_are_counted(self):
        policy = GuestPolicy((NodePolicy(minimum=20, burst=30),
                              NodePolicy(burst=5)))
        found = request.build_request(policy, 'min')
        self.assertEqual(
            [{names.MEM_BW_PCT: 20, names.MEM_BW_BURST_PCT: 30},
             {names.MEM_BW_BURST_PCT: 5}],
            [group.resources for group in found.groups])
        self.assertIn('CUSTOM_GHSCHED_MEM_BW_MIN', found.root_required)
        capped = request.build_request(policy, 'max')
        self.assertEqual([{names.MEM_BW_PCT: 100}] * 2,
                         [group.resources for group in capped.groups])
        self.assertEqual({0: names.make_bandwidth_suffix(0),
                          1: names.make_bandwidth_suffix(1)},
                         request.list_node_suffixes(policy, 'min'))


class IsolationTest(base.TestCase):

    def test_isolation_is_asked_for_host_nodes_of_one_guest_only(self):
        two = parse_policy({'ghsched:mem_bw_min': '30'}, 2)
        one = parse_policy({'ghsched:mem_bw_min.0': '30'}, 2)
        device = request.PciRequest(0, 'id', 'CUSTOM_VF', (1,))
        for policy, devices, joining, expected in (
                (two, (), False, True), (one, (), False, False),
                (two, (device,), False, False),
                (one, (), True, False)):
            wanted = request.build_request(policy, 'min', devices, 'node',
                                           joining)
            self.assertEqual(expected, wanted.is_isolated)


class SizeTest(base.TestCase):
    """Flavors for which Placement would work for minutes."""

    #: Extra specs of a kind of flavor, and the most guest nodes with them.
    #: With VFs: 7^7 < 10^6 < 8^8, and twice as many groups for both.
    KINDS = (
        *((sample_flavors.SAMPLES[key], 8)
          for key in sample_flavors.KEY_OF_CLASS.values()),
        ({'ghsched:mem_bw_max': '50'}, 16), ({'ghsched:monitor': 'true'}, 16),
        ({'ghsched:vfs': 'nic:2', 'ghsched:vfs_locality': 'node'}, 7),
        ({'ghsched:vfs': 'nic:2', 'ghsched:vfs_locality': 'any'}, 16),
        ({'ghsched:vfs': 'nic:2', 'ghsched:vfs_locality': 'any',
          'ghsched:mem_bw_min': '5'}, 7),
        ({'ghsched:vfs': 'nic:2', 'ghsched:vfs_locality': 'node',
          'ghsched:mem_bw_min': '5'}, 4),
        ({'ghsched:vfs': 'nic:1,other:1', 'ghsched:vfs_locality': 'node'}, 4),
    )

    def test_each_kind_of_flavor_is_refused_beyond_its_number_of_nodes(self):
        for specs, most in self.KINDS:
            accepted = []
            for nodes in range(1, 17):
                vfs = {f'ghsched:vfs.{node}': specs['ghsched:vfs']
                       for node in range(nodes) if 'ghsched:vfs' in specs}
                policy = parse_policy({
                    **{name: value for name, value in specs.items()
                       if name != 'ghsched:vfs'}, **vfs,
                    'hw:numa_nodes': str(nodes)}, nodes, nodes)
                try:
                    combinations.check_combination_count(policy)
                    accepted.append(nodes)
                except PolicyError as error:
                    self.assertEqual('hw:numa_nodes', error.key)
                    self.assertIn('combinations', str(error))
            self.assertEqual(list(range(1, most + 1)), accepted, specs)

    def test_few_counted_nodes_of_a_large_guest_are_accepted(self):
        for specs in ({'ghsched:mem_bw_min.15': '5'},
                      {'ghsched:mem_bw_min.0': '5', 'ghsched:vfs.0': 'nic:2'}):
            combinations.check_combination_count(parse_policy(specs, 16))

    def test_vfs_of_unlike_aliases_are_counted_by_alias(self):
        policy = parse_policy({'ghsched:vfs.0': 'a:1', 'ghsched:vfs.1': 'a:1',
                               'ghsched:vfs.2': 'b:1', 'ghsched:vfs.3': 'b:1',
                               'ghsched:vfs_locality': 'node'}, 4)
        self.assertEqual(4 * 9, combinations.count_provider_combinations(
            policy, 'min', 8, {'a': 2, 'b': 3, 'c': 9}))
        self.patch(combinations, 'MAX_COMBINATIONS', 16)
        combinations.check_combination_count(policy)
        self.patch(combinations, 'MAX_COMBINATIONS', 15)
        self.assertRaises(PolicyError, combinations.check_combination_count,
                          policy)

    def test_caps_are_counted_where_accounting_says_so(self):
        policy = parse_policy({'ghsched:mem_bw_max': '50'}, 9)
        combinations.check_combination_count(policy, 'min')
        self.assertRaises(
            PolicyError, combinations.check_combination_count, policy, 'max')


class JoiningTest(base.TestCase):
    """A guest that is to share a control group that is there."""

    POLICY = GuestPolicy((NodePolicy(minimum=20), NodePolicy(maximum=50)))

    def shares(self, node):
        return names.make_share_trait(self.POLICY.fingerprint, node)

    def test_it_takes_no_unit_and_names_each_host_node(self):
        wanted = request.build_request(self.POLICY, 'min', joining=True)
        groups = {group.suffix: group for group in wanted.groups}
        self.assertEqual(['ghsched_bw0', 'ghsched_node1'], sorted(groups))
        self.assertEqual({self.shares(0)}, groups['ghsched_bw0'].required)
        self.assertEqual({self.shares(1), names.NUMA_NODE_TRAIT},
                         groups['ghsched_node1'].required)
        self.assertEqual((('ghsched_node1',),), wanted.same_subtree)
        self.assertEqual({0: 'ghsched_bw0', 1: 'ghsched_node1'},
                         request.list_node_suffixes(self.POLICY, 'min', True))

    def test_its_vfs_are_where_the_group_is(self):
        devices = [request.PciRequest(node, f'id{node}', 'CUSTOM_VF', (2,))
                   for node in (0, 1)]
        for locality, subtrees in (
                ('node', (('ghsched_bw0', 'id0-0'),
                          ('ghsched_node1', 'id1-0'))),
                ('any', (('ghsched_node1',),))):
            self.assertEqual(subtrees, request.build_request(
                self.POLICY, 'min', devices, locality, True).same_subtree)

    def test_only_equal_policies_have_one_fingerprint(self):
        other = GuestPolicy(tuple(reversed(self.POLICY.nodes)), monitor=True)
        same = GuestPolicy(self.POLICY.nodes, monitor=True)
        self.assertEqual(self.POLICY.fingerprint, same.fingerprint)
        self.assertNotEqual(self.POLICY.fingerprint, other.fingerprint)


class DevicesTest(base.TestCase):

    def build(self, locality='node', sizes=(20,), **specs):
        policy = parse_policy({'ghsched:vfs': 'nic:40', **specs}, 2)
        devices = [
            request.PciRequest(vf.guest_node, f'id{vf.guest_node}',
                               'CUSTOM_VF',
                               sizes, frozenset({'CUSTOM_PF'}))
            for vf in policy.vfs]
        return request.build_request(policy, 'min', devices, locality)

    def test_vfs_of_a_node_are_one_group_below_its_host_node(self):
        wanted = self.build(**{'ghsched:mem_bw_min': '30'})
        groups = {group.suffix: group for group in wanted.groups}
        self.assertEqual({'CUSTOM_VF': 20}, dict(groups['id1-0'].resources))
        self.assertEqual({'CUSTOM_PF'}, set(groups['id1-0'].required))
        self.assertEqual((('ghsched_bw0', 'id0-0'),
                          ('ghsched_bw1', 'id1-0')), wanted.same_subtree)

    def test_no_group_names_the_node_that_the_vfs_tell(self):
        for locality in request.LOCALITIES:
            wanted = self.build(locality=locality)
            self.assertEqual(['id0-0', 'id1-0'],
                             [group.suffix for group in wanted.groups])
            self.assertEqual((), wanted.same_subtree)

    def test_pfs_of_one_guest_node_are_below_a_node_that_is_named(self):
        wanted = self.build(sizes=(15, 5))
        groups = {group.suffix: group for group in wanted.groups}
        self.assertEqual({}, dict(groups['ghsched_node0'].resources))
        self.assertEqual({names.NUMA_NODE_TRAIT},
                         set(groups['ghsched_node0'].required))
        self.assertEqual((('ghsched_node0', 'id0-0', 'id0-15'),
                          ('ghsched_node1', 'id1-0', 'id1-15')),
                         wanted.same_subtree)

    def test_bandwidth_is_what_placement_varies_most(self):
        # Nova sorts the query, and the VFs have UUIDs for a name.
        self.assertLess('f' * 8, names.make_bandwidth_suffix(0))
        wanted = self.build(**{'ghsched:mem_bw_min': '30'})
        self.assertEqual([], [
            group for group in wanted.groups
            if group.required and names.MEM_BW_PCT in group.resources])

    def test_vfs_need_a_host_with_our_driver(self):
        self.assertEqual({'CUSTOM_GHSCHED_DEVICE_NUMA'},
                         set(self.build().root_required))

    def test_vfs_of_several_pfs_have_the_numbers_that_nova_counts(self):
        wanted = self.build(sizes=(15, 5))
        self.assertEqual(
            [('id0-0', 15), ('id0-15', 5), ('id1-0', 15), ('id1-15', 5)],
            [(group.suffix, group.resources['CUSTOM_VF'])
             for group in wanted.groups if 'CUSTOM_VF' in group.resources])

    def test_farther_vfs_are_in_no_subtree(self):
        for locality in ('socket', 'any'):
            wanted = self.build(locality=locality, sizes=(15, 5),
                                **{'ghsched:mem_bw_min.0': '30'})
            self.assertEqual((), wanted.same_subtree)

    def test_only_guest_nodes_with_something_of_ours_are_named(self):
        policy = parse_policy({'ghsched:vfs.1': 'nic:1',
                               'ghsched:mem_bw_min.2': '5'}, 4)
        self.assertEqual({1: 'ghsched_node1', 2: 'ghsched_bw2'},
                         request.list_node_suffixes(policy, 'min'))
