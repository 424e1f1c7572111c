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

"""Tests of vCPU classes in flavors."""

from ghsched_placement.features.flavor_check import flavor_errors
from ghsched_placement.flavor import policy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

CLASSES = 'ghsched:vcpu_classes'
VCPUS = 8


def parse(specs, nodes=2, vcpus=VCPUS):
    return policy.parse_policy(specs, nodes, vcpus)


def split(vcpus, nodes):
    """The vCPUs of each guest node, as Nova splits them."""
    each = vcpus // nodes
    return [set(range(node * each, (node + 1) * each))
            for node in range(nodes)]


class ParseTest(base.TestCase):

    def test_class_limits_only_guest_nodes_with_its_vcpus(self):
        found = parse({CLASSES: 'latency:0-3,batch:6-7',
                       'ghsched:mem_bw_min.latency': '30',
                       'ghsched:mem_bw_max.batch': '40',
                       'ghsched:mem_bw_min': '10'})
        none = NodePolicy()
        self.assertEqual(
            [('latency', {0, 1, 2, 3}, (NodePolicy(30), none)),
             ('batch', {6, 7}, (none, NodePolicy(maximum=40))),
             ('default', {4, 5}, (none, NodePolicy(10)))],
            [(one.name, one.vcpus, one.nodes) for one in found.classes])
        self.assertEqual((NodePolicy(30), NodePolicy(10)), found.nodes)
        # With bandwidth_accounting=max.
        self.assertEqual({0: 100, 1: 100}, found.get_bandwidth_by_node('max'))

    def test_cap_of_a_guest_node_is_that_of_its_classes(self):
        for more, caps in (
                ({}, {0: 60, 1: 70}),
                # Its other vCPUs are not capped.
                ({CLASSES: 'a:0-3,b:4-6'}, {0: 60, 1: 100})):
            found = parse({CLASSES: 'a:0-3,b:4-7',
                           'ghsched:mem_bw_max.a': '60',
                           'ghsched:mem_bw_max.b': '70', **more})
            self.assertEqual(caps, found.get_bandwidth_by_node('max'))

    def test_capabilities_are_those_of_all_classes(self):
        found = parse({CLASSES: 'latency:0-3,batch:6-7',
                       'ghsched:mem_bw_min.latency': '30',
                       'ghsched:mem_bw_max.batch': '40',
                       'ghsched:mem_bw_min': '10'})
        self.assertEqual({'MEM_BW_MIN', 'MEM_BW_MAX', 'MEM_BW_HARDLIMIT'},
                         found.get_needed_capabilities())

    def test_class_without_keys_has_no_control_group(self):
        found = parse({CLASSES: 'latency:0,batch:1-2',
                       'ghsched:mem_bw_priority.latency': '7'})
        self.assertEqual(['latency', 'batch', 'default'],
                         [one.name for one in found.classes])
        self.assertEqual(['latency'], [one.name for one in found.groups])
        self.assertFalse(found.can_share_group)
        self.assertTrue(found.needs_control_group)
        self.assertEqual({'MEM_BW_PRIORITY'}, found.get_needed_capabilities())

    def test_classes_without_any_bandwidth_key_need_no_control_group(self):
        found = parse({CLASSES: 'latency:0-3'})
        self.assertEqual(((), ()), (found.nodes, found.groups))

    def test_guest_that_is_only_measured_is_measured_whole(self):
        got = parse({CLASSES: 'latency:0-3', 'ghsched:monitor': 'true'})
        ((one, held),) = got.split_by_class()
        self.assertEqual(('', None, ()), (one.name, one.vcpus, one.nodes))
        self.assertTrue(held.monitor)

    def test_vcpus_of_a_class_may_be_a_list(self):
        found = parse({CLASSES: ' a : 0,2-3 , b: 5', 'ghsched:mem_bw_min.a':
                       '5'})
        self.assertEqual([('a', {0, 2, 3}), ('b', {5}), ('default',
                                                         {1, 4, 6, 7})],
                         [(one.name, one.vcpus) for one in found.classes])

    def test_guest_reads_its_classes(self):
        found = parse({
            CLASSES: 'latency:0-3', 'ghsched:mem_bw_min.latency': '30'
        }, 1).describe_bandwidth_for_guest()
        values = {'mem_bw_min': 30, 'mem_bw_max': 100,
                  'mem_bw_hardlimit': True, 'mem_bw_priority': None}
        self.assertEqual(
            [{'name': 'latency', 'vcpus': '0-3', 'nodes': [values]},
             {'name': 'default', 'vcpus': '4-7', 'nodes': []}],
            found['classes'])


class RefusalTest(base.TestCase):

    @base.needs_features('bursts', 'l3_ways')
    def test_contradictions_name_key_and_reason(self):
        bandwidth = {'ghsched:mem_bw_min.a': '10'}
        for value, more, key, reason in (
                ('a:0-3,b:3', bandwidth, CLASSES,
                 'vCPU 3 is in the classes a and b'),
                ('a:0-8', bandwidth, CLASSES,
                 r'a has vCPU 8, and the guest has 8 \(counted from 0\)'),
                ('b:0', bandwidth, 'ghsched:mem_bw_min.a',
                 'ghsched:vcpu_classes has no class a, it has b'),
                ('a:0-7', {'ghsched:mem_bw_min': '1'}, CLASSES,
                 'names every vCPU'),
                ('a:0', {'ghsched:mem_bw_min.a': '60',
                         'ghsched:mem_bw_min': '41'}, 'ghsched:mem_bw_min',
                 'add up to 101 % on guest NUMA node 0; the limit is 100 %'),
                ('a:0', {'ghsched:mem_bw_min.default': '1'},
                 'ghsched:mem_bw_min.default',
                 'set ghsched:mem_bw_min without a class'),
                ('a:0', {**bandwidth, 'ghsched:mem_bw_max.a': '9'},
                 'ghsched:mem_bw_min.a',
                 '10 is more than ghsched:mem_bw_max.a, which is 9'),
                ('a:0', {'ghsched:l3_ways': '2'}, 'ghsched:l3_ways',
                 'cannot be combined with ghsched:vcpu_classes'),
                ('a:0', {'ghsched:mem_bw_burst': '2'}, 'ghsched:mem_bw_burst',
                 'cannot be combined with ghsched:vcpu_classes'),
                ('a:0', {'ghsched:numa': 'auto'}, 'ghsched:numa',
                 'cannot be combined with ghsched:vcpu_classes'),
                ('default:0', {}, CLASSES, 'are not named'),
                ('a:0,a:1', {}, CLASSES, 'the class a is named twice'),
                ('A:0', {}, CLASSES, 'lower-case'),
                ('a:', {}, CLASSES, 'the class a has no vCPU'),
                ('a:0-', {}, CLASSES, "'0-' in the CPU list"),
                ('0-3', {}, CLASSES, "'0-3' is not NAME:VCPUS"),
                ('', {}, CLASSES, "'' is not NAME:VCPUS"),
                ('a:0,b:1,c:2,d:3,e:4', {}, CLASSES,
                 '5 classes are named, and at most 4')):
            specs = {CLASSES: value, **more}
            error = self.assertRaises(policy.PolicyError, parse, specs)
            self.assertEqual(key, error.key, specs)
            self.assertRegex(error.reason, reason)

    def test_bandwidth_of_a_class_needs_the_class(self):
        error = self.assertRaises(policy.PolicyError, parse,
                                  {'ghsched:mem_bw_min.a': '10'})
        self.assertEqual('ghsched:mem_bw_min.a: ghsched:vcpu_classes has no '
                         'class a', str(error))

    def test_classes_need_guest_numa_nodes(self):
        error = self.assertRaises(policy.PolicyError, parse,
                                  {CLASSES: 'a:0'}, 0)
        self.assertRegex(str(error), 'needs a guest NUMA topology')

    def test_api_knows_the_number_of_vcpus(self):
        specs = {CLASSES: 'a:4', 'hw:numa_nodes': '1'}
        policy.check_flavor(specs, specs, 5)
        self.assertRaises(policy.PolicyError, policy.check_flavor, specs,
                          specs, 4)

    def test_all_errors_have_those_of_vcpus(self):
        specs = {CLASSES: 'a:0,b:8', 'ghsched:mem_bw_min.a': '5',
                 'ghsched:mem_bw_max.b': '9', 'ghsched:mem_bw_min.b': '10'}
        self.assertEqual([], [
            error.key for error in flavor_errors.find_all_flavor_errors(
                {**specs, 'ghsched:mem_bw_max.b': '20'}, 2)])
        self.assertEqual(CLASSES, flavor_errors.find_all_flavor_errors(
            specs, 2, VCPUS)[0].key)

    def test_uneven_split_is_refused_as_nova_refuses_it(self):
        error = self.assertRaises(policy.PolicyError, parse,
                                  {CLASSES: 'a:0'}, 3)
        self.assertRegex(str(error), 'cannot be split evenly')
