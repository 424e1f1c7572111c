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

"""Completeness of what features declare, and policies without a feature."""

from unittest import mock

import ddt

from ghsched_placement.features import declared
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import policy
from ghsched_placement.flavor import resources
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.tests import base

_INSTALLED = {'mem_bw_min', *(
    key.name for feature in declared.FEATURES
    for key in (*feature.keys, *feature.node_keys))}

#: A flavor that requests something of each feature.
FLAVOR = {name: value for name, value in {
    'hw:numa_nodes': '2', 'hw:cpu_policy': 'shared',
    'ghsched:mem_bw_min': '20', 'ghsched:mem_bw_burst': '5',
    'ghsched:mem_bw_burst.1': '0', 'ghsched:l3_ways': '3',
    'ghsched:vcpu_scheduler': 'fifo', 'ghsched:vcpu_runtime_us': '10',
    'ghsched:vcpu_period_us': '100', 'ghsched:guest_topology': 'host',
    'ghsched:affinity_group': 'web', 'ghsched:guest_channel': 'read',
    'ghsched:pv_hints': 'none', 'ghsched:cpu_cache': 'none'}.items()
    if name.startswith('hw:')
    or name.partition(':')[2].partition('.')[0] in _INSTALLED}


@ddt.ddt
class DeclaredTest(base.TestCase):

    @base.needs_features('bursts', 'l3_ways', 'real_time')
    def test_each_class_of_a_node_is_declared_once(self):
        found = [resource.name for feature in declared.FEATURES
                 for resource in feature.resources]
        self.assertEqual(sorted(names.NODE_CLASSES - {names.MEM_BW_PCT}),
                         sorted(found))

    def test_each_capability_that_a_key_requests_has_a_trait(self):
        self.assertEqual(set(), resources.KEY_OF_CAPABILITY.keys()
                         - names.CAPABILITY_TRAITS.keys())
        needed = policy.parse_policy(FLAVOR, 2, 4).get_needed_capabilities()
        self.assertEqual(set(), needed - resources.KEY_OF_CAPABILITY.keys())

    def test_each_key_of_a_guest_is_read_by_one_feature(self):
        found = [key.name for feature in declared.FEATURES
                 for key in feature.keys]
        self.assertEqual(len(set(found)), len(found))
        self.assertEqual([], [name for name in found
                              if key_names.BY_NAME[name].per_node])

    @base.needs_features('bursts', 'l3_ways', 'real_time', 'guest_topology',
                         'guest_channel')
    def test_amounts_and_capabilities_of_all_features(self):
        found = policy.parse_policy(FLAVOR, 2, 4)
        self.assertEqual({
            0: {'CUSTOM_MEM_BW_PCT': 20, 'CUSTOM_MEM_BW_BURST_PCT': 5,
                'CUSTOM_L3_WAYS': 3, 'CUSTOM_RT_CPU_PERMILLE': 200},
            1: {'CUSTOM_MEM_BW_PCT': 20, 'CUSTOM_L3_WAYS': 3,
                'CUSTOM_RT_CPU_PERMILLE': 200}},
            found.get_resources_by_node())
        self.assertEqual({'MEM_BW_MIN', 'L3_WAYS', 'VCPU_REALTIME',
                          'GUEST_TOPOLOGY', 'GUEST_CHANNEL'},
                         found.get_needed_capabilities())

    @ddt.data(*declared.FEATURES)
    def test_policy_without_a_feature_has_all_others(self, feature):
        whole = policy.parse_policy(FLAVOR, 2, 4)
        keys_left = {
            name: value for name, value in FLAVOR.items()
            if name.partition(':')[2].partition('.')[0] not in {
                key.name for key in feature.keys + feature.node_keys}}
        with mock.patch.object(declared, 'FEATURES', tuple(
                one for one in declared.FEATURES if one != feature)):
            found = policy.parse_policy(keys_left, 2, 4)
            # A guest must not be promised what nobody enforces.
            self.assertRaises(policy.PolicyError, policy.parse_policy,
                              FLAVOR, 2, 4)
        self.assertEqual(tuple(part for part in whole.parts
                               if type(part) is not feature.part),
                         found.parts)
        self.assertEqual([(node.minimum, node.maximum) for node
                          in whole.nodes],
                         [(node.minimum, node.maximum) for node
                          in found.nodes])

    def test_offer_is_empty_on_a_host_without_the_resource(self):
        host = HostDescription(nodes=(0,), control_groups=0,
                               capabilities=frozenset())
        for resource in resources.BESIDE_BANDWIDTH.values():
            if resource.offer is not None:
                amount, least = resource.offer(host, 0)
                self.assertEqual(0, amount, resource.name)
                self.assertLess(0, least, resource.name)
