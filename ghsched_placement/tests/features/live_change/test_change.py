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

"""Other values for a guest, and what Placement then holds."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.live_change import change
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.providers import names
from ghsched_placement.tests import base

ROOT = '3a0e6a0c-7e0a-4b0f-9e59-8d1c2a6a2f11'
BEFORE = {'hw:numa_nodes': '2', 'ghsched:mem_bw_min': '20',
          'ghsched:mem_bw_max.1': '50', 'ghsched:monitor': 'true'}

_values = {
    'mem_bw_min': st.integers(0, 100).map(str),
    'mem_bw_max': st.integers(1, 100).map(str),
    'mem_bw_hardlimit': st.sampled_from(('true', 'false')),
    'mem_bw_priority': st.integers(0, 7).map(str),
}

#: Extra specs of ours that are each good by itself.
specs = st.lists(st.sampled_from(sorted(_values)).flatmap(
    lambda name: st.tuples(
        st.sampled_from(('', '.0', '.1')).map(
            lambda node: f'ghsched:{name}{node}'),
        _values[name])), max_size=6).map(dict)

amounts = st.dictionaries(
    st.sampled_from(('VCPU', 'MEMORY_MB', 'CUSTOM_VF',
                     *sorted(names.OUR_CLASSES))),
    st.integers(1, 4096), min_size=1)
answers = st.fixed_dictionaries({
    'allocations': st.dictionaries(
        st.uuids().map(str), st.fixed_dictionaries({
            'generation': st.integers(0, 9), 'resources': amounts}),
        min_size=1, max_size=4),
    'project_id': st.just('project'), 'user_id': st.just('user'),
    'consumer_generation': st.integers(0, 9)})


class NameTest(base.TestCase):

    def test_a_key_may_be_named_in_short(self):
        for name in ('mem_bw_max.0', 'mem-bw-max.0', 'ghsched:mem_bw_max.0'):
            self.assertEqual('ghsched:mem_bw_max.0',
                             change.get_changeable_extra_spec(name))

    def test_changes_that_need_a_resize_are_refused_by_name(self):
        for name in ('vfs', 'ghsched:monitor', 'hw:numa_nodes', ''):
            error = self.assertRaises(policies.PolicyError,
                                      change.get_changeable_extra_spec, name)
            self.assertIn('resize', error.reason)
            self.assertTrue(error.key.startswith('ghsched:'))


class DecideTest(base.TestCase):

    def refused(self, wish, specs=None, nodes=2):
        return self.assertRaises(policies.PolicyError,
                                 change.make_policy_change,
                                 BEFORE if specs is None else specs, wish,
                                 nodes)

    def test_only_what_was_named_changes(self):
        decided = change.make_policy_change(BEFORE,
                                            {'ghsched:mem_bw_min.1': ' 30 '},
                                            2)
        self.assertEqual({**BEFORE, 'ghsched:mem_bw_min.1': '30'},
                         decided.extra_specs)
        self.assertEqual([20, 30],
                         [node.minimum for node in decided.after.nodes])
        self.assertEqual(decided.before.monitor, decided.after.monitor)

    def test_a_key_that_is_taken_away(self):
        decided = change.make_policy_change(BEFORE,
                                            {'ghsched:mem_bw_max.1': None},
                                            2)
        self.assertEqual([100, 100],
                         [node.maximum for node in decided.after.nodes])

    def test_contradictions_are_refused_with_the_key(self):
        self.assertEqual('ghsched:mem_bw_min.1', self.refused(
            {'ghsched:mem_bw_min.1': '60'}).key)
        self.assertEqual('ghsched:mem_bw_max.2', self.refused(
            {'ghsched:mem_bw_max.2': '60'}).key)
        self.assertEqual('ghsched:mem_bw_max', self.refused(
            {'ghsched:mem_bw_max': '0'}).key)

    def test_no_group_is_made_or_given_up(self):
        self.assertIn('has no control group', self.refused(
            {'ghsched:mem_bw_max': '60'}, {}).reason)
        self.assertIn('without a use', self.refused(
            {name: None for name in BEFORE if 'mem_bw' in name}).reason)

    def test_a_guest_without_numa_nodes(self):
        self.assertIn('guest NUMA topology', self.refused(
            {'ghsched:mem_bw_max': '60'}, {}, 0).reason)

    @given(before=specs, wish=specs)
    def test_it_is_the_flavor_with_these_keys_or_refused(self, before, wish):
        try:
            decided = change.make_policy_change(before, wish, 2)
        except policies.PolicyError:
            return
        self.assertEqual({**before, **wish}, decided.extra_specs)
        self.assertEqual(
            policies.parse_policy(decided.extra_specs, 2) or GuestPolicy(),
            decided.after)
        self.assertEqual(decided.after, change.make_policy_change(
            decided.extra_specs, wish, 2).after)


class SharesTest(base.TestCase):

    def test_each_host_node_has_its_own(self):
        policy = GuestPolicy(nodes=(NodePolicy(minimum=10, maximum=70),
                                    NodePolicy(maximum=80)))
        node3, node1 = (names.make_numa_provider_uuid(ROOT, node)
                        for node in (3, 1))
        for accounting, shares in (('min', (10, 0)), ('max', (70, 80))):
            self.assertEqual(
                {(node3, names.MEM_BW_PCT): shares[0],
                 (node1, names.MEM_BW_PCT): shares[1]},
                change.compute_allocation_amounts(policy, accounting, (3, 1),
                                                  ROOT,
                                                  [names.MEM_BW_PCT]))

    def test_the_larger_of_each(self):
        self.assertEqual(
            {'a': 5, 'b': 3, 'c': 1}, change.merge_by_larger_amount(
                {'a': 5, 'b': 2}, {'a': 1, 'b': 3, 'c': 1}))

    def test_a_share_of_a_node_that_the_guest_is_not_on(self):
        self.assertEqual({'b'}, change.find_unlisted_providers(
            {('a', 'BW'): 1, ('b', 'BW'): 1}, ['a']))


class ReallocateTest(base.TestCase):

    @given(answer=answers, data=st.data())
    def test_all_else_stays(self, answer, data):
        classes = data.draw(st.sets(
            st.sampled_from(sorted(names.NODE_CLASSES)), min_size=1))
        wanted = data.draw(st.dictionaries(st.tuples(
            st.one_of(st.sampled_from(sorted(answer['allocations'])),
                      st.uuids().map(str)),
            st.sampled_from(sorted(classes))), st.integers(0, 100)))
        before = copy.deepcopy(answer)
        body = change.make_changed_allocation_body(answer, wanted)
        self.assertEqual(before, answer)
        held = change.select_allocation_amounts(answer['allocations'], classes)
        expected = {**held, **wanted}
        expected = {key: share for key, share in expected.items() if share}
        if body is None:
            self.assertEqual(expected, held)
            return
        self.assertEqual(expected,
                         change.select_allocation_amounts(body['allocations'],
                                                          classes))
        self.assertEqual(self.others(answer, classes),
                         self.others(body, classes))
        self.assertTrue(all(one['resources'] for one
                            in body['allocations'].values()))
        for name in ('project_id', 'user_id', 'consumer_generation'):
            self.assertEqual(answer[name], body[name])
        self.assertIsNone(change.make_changed_allocation_body({**body},
                                                              wanted))

    def others(self, answer, classes):
        found = {(provider, name): amount
                 for provider, one in answer['allocations'].items()
                 for name, amount in one['resources'].items()
                 if name not in classes}
        return found
