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
from unittest import mock

from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.flavor_check import flavor_errors
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy
from ghsched_placement.providers import names
from ghsched_placement.query import requested_classes
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import sample_flavors


def _texts(key):
    if key.kind == 'bool':
        return st.sampled_from(['true', 'False', '1', '0', 'yes', 'Off'])
    if key.kind == 'enum':
        return st.sampled_from(key.choices)
    if key.kind == 'name':
        return st.from_regex(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,62}',
                             fullmatch=True)
    if key.kind == 'vcpus':
        return st.sampled_from(['0', '^0', '1-2', '^0, ^1'])
    if key.kind == 'devices':
        return st.dictionaries(
            st.sampled_from(['nic', 'a b', 'gpu-1', 'x']),
            st.integers(1, 9999), min_size=1).map(
            lambda counts: ' , '.join(f'{alias}:{count}' for alias, count
                                      in counts.items()))
    return st.integers(key.minimum, key.maximum).map(str)


@st.composite
def flavors(draw):
    """Extra specs with good values, and the number of guest nodes."""
    nodes = draw(st.integers(1, 4))
    specs = {}
    for key in key_names.KEYS:
        if key == keys.VCPU_CLASSES or key.name not in sample_flavors.SAMPLES:
            continue
        spellings = [key.extra_spec]
        if key.per_node:
            spellings += map(key.get_node_extra_spec, range(nodes))
        for spelling in draw(st.sets(st.sampled_from(spellings))):
            specs[spelling] = draw(_texts(key))
    return specs, nodes


def parsed(specs, nodes):
    """A policy that must be there."""
    result = policy.parse_policy(specs, nodes)
    assert result is not None
    return result


class RefusalTestCase(base.TestCase):

    def refused(self, specs, nodes, key, reason):
        with self.assertRaises(policy.PolicyError) as raised:
            policy.parse_policy(specs, nodes)
        self.assertEqual(key, raised.exception.key)
        self.assertRegex(raised.exception.reason, reason)
        self.assertEqual(f'{key}: {raised.exception.reason}',
                         str(raised.exception))


class AffinityGroupTest(RefusalTestCase):

    def test_a_name_is_short_and_plain(self):
        for name in ('', ' ', '-web', 'a b', 'web\n1', 'w' * 64, 'ä'):
            self.refused({'ghsched:affinity_group': name}, 1,
                         'ghsched:affinity_group', 'is not a name of 1 to 63')


class ParseTest(base.TestCase):

    def test_a_flavor_without_our_keys_has_no_policy(self):
        specs = {'hw:numa_nodes': '2', 'ghsched': 'x', 'x:ghsched:a': 'y'}
        self.assertFalse(policy.has_ghsched_keys(specs))
        self.assertIsNone(policy.parse_policy(specs, 2))

    def test_one_key_holds_for_every_guest_node(self):
        node = policy.NodePolicy(minimum=60)
        self.assertEqual(policy.GuestPolicy((node, node)),
                         policy.parse_policy({'ghsched:mem_bw_min': '60'}, 2))

    @given(flavors())
    def test_good_values_parse_or_contradict_each_other(self, flavor):
        specs, nodes = flavor
        try:
            result = policy.parse_policy(specs, nodes)
        except policy.PolicyError as error:
            self.assertIn(error.key, specs)
            self.assertRegex(error.reason, 'is more than|cannot be combined|'
                                           'every guest NUMA node has|needs')
            return
        if result is None:
            self.assertEqual({}, specs)
            return
        self.assertIn(len(result.nodes), (0, nodes))
        for number, node in enumerate(result.nodes):
            for key, default, value in (
                    (keys.MEM_BW_MIN, '0', node.minimum),
                    (keys.MEM_BW_MAX, '100', node.maximum)):
                general = specs.get(key.extra_spec, default)
                self.assertEqual(specs.get(key.get_node_extra_spec(number),
                                           general),
                                 str(value))
            self.assertLessEqual(node.minimum, node.maximum)

    @given(st.dictionaries(
        st.text(max_size=12).map('ghsched:'.__add__)
        | st.sampled_from([key.extra_spec for key in key_names.KEYS]),
        st.text(max_size=6) | st.integers(-3, 120).map(str), max_size=4),
        st.integers(0, 3))
    def test_any_text_is_a_policy_or_a_refusal_of_a_key(self, specs, nodes):
        try:
            policy.parse_policy(specs, nodes)
        except policy.PolicyError as error:
            self.assertIn(error.key, specs)
            self.assertTrue(error.reason)


class RefusalTest(RefusalTestCase):

    def test_unknown_keys(self):
        for key in ('ghsched:mem', 'ghsched:', 'ghsched:.0'):
            self.refused({key: '1'}, 1, key, 'unknown key; known are '
                                             'ghsched:mem_bw_min, ')
        for key, nearest in (('mem_bw', 'mem_bw_m'), ('Monitor', 'monitor'),
                             ('mem_bw_min:0', 'mem_bw_min'),
                             ('mem_bw_mim.3', r'mem_bw_min\.3')):
            self.refused({f'ghsched:{key}': '1'}, 1, f'ghsched:{key}',
                         f'do you mean ghsched:{nearest}')

    def test_one_letter_wrong_is_near_and_other_namespaces_are_not(self):
        for key in key_names.KEYS:
            name = key.extra_spec
            for place in range(len(name)):
                for wrong in (name[:place] + name[place + 1:],
                              name[:place] + '_' + name[place + 1:],
                              name.upper()):
                    self.assertIsNotNone(key_names.guess_extra_spec(wrong),
                                         wrong)
        for other in ('hw:numa_nodes', 'hw:mem_page_size', 'quota:vif_min',
                      'resources:CUSTOM_MEM_BW_PCT', 'monitor', 'sched:x',
                      'trait:CUSTOM_GHSCHED_MEM_BW_MIN'):
            self.assertIsNone(key_names.guess_extra_spec(other), other)

    def test_key_with_any_separator_is_refused_with_the_right_one(self):
        for key in key_names.KEYS:
            for node in ('', '.1') if key.per_node else ('',):
                for start in ('ghsched.', 'ghsched_', 'ghsched-', 'ghsched ',
                              'GHSCHED.', ' ghsched:', 'ghsched: ',
                              'ghsched::'):
                    wrong = f'{start}{key.name}{node}'
                    errors = list(key_names.find_misspelt_keys([wrong]))
                    if wrong.startswith('ghsched:'):
                        self.refused({wrong: '1'}, 2, wrong, 'do you mean '
                                     + re.escape(key.extra_spec + node))
                    else:
                        self.assertEqual(
                            [f'{wrong}: do you mean {key.extra_spec}{node}?'],
                            list(map(str, errors)))

    def test_a_class_of_ghsched_by_hand_is_refused_with_the_key_to_use(self):
        for name in names.OUR_CLASSES:
            for group in ('', '1', '_ghsched'):
                extra_spec = f'resources{group}:{name}'
                self.assertRaisesRegex(
                    policy.PolicyError,
                    f'^{extra_spec}: .* use (ghsched:|keys of )',
                    policy.check_flavor, {extra_spec: '1'}, [extra_spec])
                self.assertEqual(
                    [extra_spec], [error.key for error in (
                        flavor_errors.find_all_flavor_errors(
                            {extra_spec: '1'}, 1))])
        for other in ('resources:VCPU', 'resources:CUSTOM_MEM_BW',
                      'trait:CUSTOM_MEM_BW_PCT', 'resources'):
            policy.check_flavor({other: '1'}, [other])

    def test_a_class_of_a_feature_that_is_not_installed_is_refused(self):
        with mock.patch.object(requested_classes, '_USE', {}):
            self.assertRaisesRegex(
                policy.PolicyError, 'sets no limit', policy.check_flavor,
                {'resources:CUSTOM_L3_WAYS': '1'},
                ['resources:CUSTOM_L3_WAYS'])

    def test_key_without_namespace_is_refused_or_doubted(self):
        for key in key_names.KEYS:
            for node in ('', '.0') if key.per_node else ('',):
                name = key.name + node
                texts = [str(error)
                         for error in key_names.find_misspelt_keys([name])]
                texts += flavor_errors.find_doubtful_keys([name])
                self.assertEqual(1, len(texts), name)
                self.assertIn(key.extra_spec + node, texts[0])
        # No other software has a property of these names.
        self.assertEqual(1, len(list(
            key_names.find_misspelt_keys(['mem_bw_max']))))
        self.assertEqual([], list(key_names.find_misspelt_keys(['monitor'])))

    def test_word_of_the_namespace_alone_is_doubted(self):
        for name in ('ghsched', 'ghsched-hosts', 'Ghsched'):
            self.assertEqual([], list(key_names.find_misspelt_keys([name])))
            self.assertEqual([f'{name} is no key of ghsched, whose keys have '
                              'the form ghsched:NAME'],
                             list(flavor_errors.find_doubtful_keys([name])))
        self.assertEqual([], list(flavor_errors.find_doubtful_keys(
            ['ghsched:mem_bw_min', 'hw:numa_nodes', 'ghschedule', 'x'])))

    def test_values(self):
        for key, text, reason in (
                ('ghsched:mem_bw_min', '-1', '-1 is less than 0'),
                ('ghsched:mem_bw_min', '101', '101 is greater than 100'),
                ('ghsched:mem_bw_max.0', '0', '0 is less than 1'),
                ('ghsched:mem_bw_priority', '8', '8 is greater than 7'),
                ('ghsched:mem_bw_max', '', "'' is not a whole number"),
                ('ghsched:mem_bw_max', '60%', "'60%' is not a whole number"),
                ('ghsched:mem_bw_max', '6.5', 'not a whole number'),
                ('ghsched:mem_bw_max', '1_0', 'not a whole number'),
                ('ghsched:mem_bw_max', '٣', 'not a whole number'),
                ('ghsched:mem_bw_max', '9' * 5000,
                 'the number of 5000 digits is greater than 100'),
                ('ghsched:mem_bw_max', '-' + '9' * 10,
                 'the number of 10 digits is less than 1'),
                ('ghsched:monitor', 'maybe', "'maybe' is neither true nor"),
                ('ghsched:monitor', '', "'' is neither true nor false")):
            self.refused({key: text}, 1, key, reason)

    def test_nodes_that_the_guest_has_not(self):
        self.refused({'ghsched:mem_bw_min.2': '5'}, 2,
                     'ghsched:mem_bw_min.2',
                     'has no NUMA node 2, it has 2 .counted from 0.')

    def test_nodes_that_are_no_numbers(self):
        for node in ('', 'A', '-1', '00', '1.0', '0 ', '٣', '10000', '0\n'):
            key = f'ghsched:mem_bw_min.{node}'
            self.refused({key: '5'}, 4, key, 'the number of a guest NUMA')
        self.refused({'ghsched:l3_ways.a': '5'}, 4, 'ghsched:l3_ways.a',
                     'must be the number of a guest NUMA node$')

    def test_a_monitor_of_one_node(self):
        self.refused({'ghsched:monitor.0': 'true'}, 2, 'ghsched:monitor.0',
                     'takes no guest NUMA node')

    @base.needs_features('bursts')
    def test_a_guarantee_and_a_burst_above_the_cap(self):
        self.refused({'ghsched:mem_bw_min': '30', 'ghsched:mem_bw_max': '50',
                      'ghsched:mem_bw_burst.1': '21'},
                     2, 'ghsched:mem_bw_burst',
                     'more than ghsched:mem_bw_max, which is 50 for guest '
                     'NUMA node 1')


class TopologyOfTheFlavorTest(RefusalTestCase):

    def test_keys_of_guest_nodes_need_it(self):
        for extra_spec in ('ghsched:mem_bw_max', 'ghsched:mem_bw_min.0',
                           'ghsched:vfs'):
            with self.assertRaisesRegex(
                    policy.PolicyError, f'^{extra_spec}: .*hw:numa_nodes'):
                policy.refuse_unfixed_node_count({'hw:cpu_policy': 'dedicated',
                                                  extra_spec: '1'})

    @given(flavors())
    def test_with_it_nothing_is_refused(self, flavor):
        specs, nodes = flavor
        policy.refuse_unfixed_node_count(
            {**specs, 'hw:numa_nodes': str(nodes)})

    def test_others_need_none(self):
        policy.refuse_unfixed_node_count({
            'ghsched:monitor': 'true', 'mem_bw_min': '1',
            'other:mem_bw_min': '1', 'ghsched:x': '1'})


class CheckTest(base.TestCase):

    def test_refuses_a_key_or_value_as_parse_does(self):
        for key, value in (('ghsched:mem_bw_min', '101'),
                           ('ghsched:mem_bw_min.X', '1'),
                           ('ghsched:nothing', '1')):
            with self.assertRaises(policy.PolicyError) as raised:
                policy.check_extra_spec(key, value)
            self.assertEqual(key, raised.exception.key)


class CheckFlavorTest(base.TestCase):

    @given(flavors())
    def test_refuses_what_parse_does(self, flavor):
        specs, nodes = flavor
        # Both together are refused by check_flavor alone.
        assume('ghsched:numa' not in specs)
        specs = {**specs, 'hw:numa_nodes': str(nodes)}
        refused = flavor_errors.find_all_flavor_errors(specs, nodes)
        try:
            policy.check_flavor(specs, specs)
            self.assertEqual((), refused)
        except policy.PolicyError as error:
            self.assertIn(str(error), map(str, refused))

    def test_keys_of_others_pass_next_to_wrong_keys(self):
        policy.check_flavor({'ghsched:mem_bw_min': '101', 'hw:cpu_policy':
                             'shared'}, {'hw:cpu_policy'})

    def test_a_number_of_nodes_that_no_guest_can_have(self):
        for nodes in ('129', '999999999999', '9' * 5000):
            specs = {'ghsched:mem_bw_min': '5', 'hw:numa_nodes': nodes}
            for check in (lambda specs: policy.check_flavor(specs, specs),
                          policy.refuse_unfixed_node_count,
                          policy.get_guest_node_count):
                with self.assertRaisesRegex(
                        policy.PolicyError, '^hw:numa_nodes: .* at most 128'):
                    check(specs)

    def test_that_number_is_left_to_nova_where_nothing_of_ours_is(self):
        specs = {'hw:numa_nodes': '129'}
        policy.refuse_unfixed_node_count(specs)
        policy.check_flavor(specs, specs)

    def test_a_number_that_nova_refuses(self):
        for nodes in ('', 'two', '-1', '1.5', '\u0663'):
            policy.check_flavor({'ghsched:mem_bw_min.7': '5',
                                 'hw:numa_nodes': nodes}, {'hw:numa_nodes'})


class DemandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.policy = policy.GuestPolicy((
            policy.NodePolicy(60, 80), policy.NodePolicy(0, 30)))

    def test_the_guarantee_counts_unless_the_cap_is_to(self):
        self.assertEqual({0: 60}, self.policy.get_bandwidth_by_node())
        self.assertEqual({0: 80, 1: 30},
                         self.policy.get_bandwidth_by_node('max'))

    def test_nothing_is_counted_for_a_monitor(self):
        for accounting in ('min', 'max'):
            self.assertEqual(
                {},
                policy.GuestPolicy((), True).get_bandwidth_by_node(accounting))


class CapabilitiesTest(base.TestCase):

    def needs(self, *nodes, monitor=False):
        return set(policy.GuestPolicy(nodes,
                                      monitor).get_needed_capabilities())

    def test_defaults_of_the_host_need_no_action(self):
        self.assertEqual(set(), self.needs(policy.NodePolicy()))
        self.assertEqual(set(), self.needs(
            policy.NodePolicy(hardlimit=False)))

    def test_every_knob_needs_its_own(self):
        self.assertEqual({'MEM_BW_MIN'}, self.needs(policy.NodePolicy(1)))
        self.assertEqual({'MEM_BW_MAX', 'MEM_BW_HARDLIMIT'},
                         self.needs(policy.NodePolicy(maximum=99)))
        self.assertEqual({'MEM_BW_MAX', 'MEM_BW_SOFTLIMIT'},
                         self.needs(policy.NodePolicy(maximum=99,
                                                      hardlimit=False)))
        self.assertEqual({'MEM_BW_PRIORITY'},
                         self.needs(policy.NodePolicy(priority=0)))
        self.assertEqual({'MEM_BW_MONITOR'}, self.needs(monitor=True))

    def test_one_node_is_enough(self):
        self.assertEqual({'MEM_BW_MIN'}, self.needs(
            policy.NodePolicy(), policy.NodePolicy(5)))

    @given(flavors())
    def test_every_need_has_a_trait(self, flavor):
        try:
            result = policy.parse_policy(*flavor)
        except policy.PolicyError:
            return
        if result is not None:
            self.assertLessEqual(result.get_needed_capabilities(),
                                 names.CAPABILITY_TRAITS.keys())


class VfsTest(base.TestCase):

    def vfs(self, nodes, **specs):
        return [(vf.guest_node, vf.alias, vf.count) for vf in parsed(
            {'ghsched:' + name.replace('__', '.'): value
             for name, value in specs.items()}, nodes).vfs]

    def refused(self, nodes, **specs):
        error = self.assertRaises(policy.PolicyError, self.vfs, nodes, **specs)
        return error

    def assertRaises(self, kind, function, *args, **kwargs):
        with super().assertRaises(kind) as caught:
            function(*args, **kwargs)
        return caught.exception

    def test_a_node_may_get_none(self):
        self.assertEqual([(0, 'nic', 1)], self.vfs(2, vfs='nic:1'))

    def test_a_node_with_a_key_of_its_own_has_no_part_in_the_others(self):
        self.assertEqual(
            [(0, 'nic', 3), (1, 'fast', 1), (2, 'nic', 3)],
            self.vfs(3, vfs='nic:6', vfs__1='fast:1'))

    def test_two_aliases_keep_their_order(self):
        self.assertEqual([(0, 'b', 1), (0, 'a', 2)],
                         self.vfs(1, vfs=' b:1, a : 2 '))

    def test_a_key_for_nobody_is_refused(self):
        error = self.refused(1, vfs='nic:1', vfs__0='nic:2')
        self.assertEqual('ghsched:vfs', error.key)

    def test_bad_values_are_refused_with_the_part_that_is_wrong(self):
        for text in ('nic', 'nic:', ':1', 'nic:0', 'nic:-1', 'nic:1:2', '',
                     'nic:1,', 'nic:x', 'nic:10000', 'nic:1,nic:2'):
            error = self.refused(1, vfs=text)
            self.assertEqual('ghsched:vfs', error.key)

    def test_a_guest_without_nodes_has_none_to_put_them_on(self):
        self.assertIn('hw:numa_nodes', self.refused(0, vfs='nic:1').reason)

    def test_vfs_alone_control_nothing(self):
        result = parsed({'ghsched:vfs': 'nic:1'}, 1)
        self.assertFalse(result.needs_control_group)
        self.assertEqual(frozenset(), result.get_needed_capabilities())

    @given(st.integers(1, 16), st.integers(1, 9999))
    def test_none_is_lost_and_no_node_gets_two_more(self, nodes, count):
        counts = dict.fromkeys(range(nodes), 0)
        for node, _alias, part in self.vfs(nodes, vfs=f'nic:{count}'):
            counts[node] = part
        self.assertEqual(count, sum(counts.values()))
        self.assertLessEqual(max(counts.values()) - min(counts.values()), 1)


class ProblemsTest(base.TestCase):

    def problems(self, nodes, **specs):
        return [str(error) for error in flavor_errors.find_all_flavor_errors(
            {'ghsched:' + key.replace('__', '.'): value
             for key, value in specs.items()}, nodes)]

    def test_each_key_that_makes_no_sense(self):
        found = self.problems(1, mem_bw_min='much', mem_bw_max='101',
                              monitor='1', mem_bw_min__3='1', x='y')
        self.assertEqual(
            ['ghsched:mem_bw_max', 'ghsched:mem_bw_min',
             'ghsched:mem_bw_min.3', 'ghsched:x'],
            [text.partition(':')[0] + ':' + text.split(':')[1]
             for text in found])

    def test_names_that_are_nearly_ours(self):
        found = flavor_errors.find_all_flavor_errors(
            {'Ghsched:mem_bw_min': '1', 'hw:numa_nodes': 1,
             'gsched:vfs.0': 'nic:1'}, 1)
        self.assertEqual(
            ['Ghsched:mem_bw_min: do you mean ghsched:mem_bw_min?',
             'gsched:vfs.0: do you mean ghsched:vfs.0?'],
            [str(error) for error in found])

    def test_each_contradiction(self):
        found = self.problems(
            2, mem_bw_max='50', mem_bw_min__0='60', mem_bw_min__1='70',
            device_numa='required', vfs_locality='any')
        self.assertEqual(3, len(found), found)

    @given(flavors(), st.integers(0, 4))
    def test_there_are_some_if_and_only_if_it_is_refused(self, flavor,
                                                         fewer):
        specs, nodes = flavor
        nodes = max(0, nodes - fewer)
        found = flavor_errors.find_all_flavor_errors(specs, nodes)
        try:
            policy.parse_policy(specs, nodes)
        except policy.PolicyError as error:
            self.assertIn(str(error), map(str, found))
        else:
            self.assertEqual((), found)
