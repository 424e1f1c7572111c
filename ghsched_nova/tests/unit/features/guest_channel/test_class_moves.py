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

"""Tests of moves of vCPUs between the classes of a guest."""

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.guest_channel import class_moves
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

VCPUS, NODES = 8, (frozenset(range(4)), frozenset(range(4, 8)))
WISHES = st.dictionaries(
    st.sampled_from(['a', 'b', 'c', 'default']),
    st.frozensets(st.integers(0, VCPUS), max_size=5), max_size=3)


def parse(classes='a:0-1,b:4', **more):
    return policy.parse_policy(
        {'ghsched:vcpu_classes': classes, 'ghsched:mem_bw_min.a': '20',
         'ghsched:mem_bw_max': '60'}, 2, VCPUS).classes


def move(wanted, classes=None):
    return class_moves.move_vcpus(classes or parse(), wanted, NODES)


def members(classes):
    return {one.name: set(one.current) for one in classes}


class MoveTest(base.TestCase):

    def test_others_keep_their_vcpus_and_the_rest_is_default(self):
        once = move({'a': frozenset({1, 2})})
        self.assertEqual({'a': {1, 2}, 'b': {4}, 'default': {0, 3, 5, 6, 7}},
                         members(once))
        twice = move({'b': frozenset({5})}, once)
        self.assertEqual({'a': {1, 2}, 'b': {5}, 'default': {0, 3, 4, 6, 7}},
                         members(twice))
        back = move({'a': frozenset({0, 1}), 'b': frozenset({4})}, twice)
        self.assertEqual(parse(), back)

    def test_refusals_have_a_reason(self):
        for wanted, reason in (
                ({'c': {0}}, 'c is no class of this server'),
                ({'default': {0}}, 'the class default cannot be listed'),
                ({'a': {8}}, 'this server has no vCPU 8'),
                ({'a': {0}, 'b': {0}}, 'vCPU 0 is in two classes'),
                ({'a': {4, 5}}, 'the class a has no vCPU on NUMA node 1'),
                ({'a': set()}, 'the class a would have no vCPU'),
                ({'b': {4, 5, 6, 7}, 'a': {0, 1, 2, 3}}, '')):
            wanted = {name: frozenset(one) for name, one in wanted.items()}
            if reason:
                error = self.assertRaises(class_moves.NotMovedError, move,
                                          wanted)
                self.assertIn(reason, str(error))
            else:
                self.assertEqual(set(), members(move(wanted))['default'])

    def test_vcpus_are_in_a_class_where_the_flavor_names_all(self):
        error = self.assertRaises(
            class_moves.NotMovedError, move, {'a': frozenset({0})},
            policy.parse_policy({'ghsched:vcpu_classes': 'a:0-3,b:4-7',
                                 'ghsched:mem_bw_min.a': '20'}, 2,
                                VCPUS).classes)
        self.assertIn('vCPU 1-3 would be in no class', str(error))

    def test_requests_are_parsed_within_the_vcpus_of_the_guest(self):
        self.assertEqual({'a': {0, 1, 2, 5}}, class_moves.parse_vcpu_request(
            {'a': ' 0-2, 5,,'}, 8))
        for asked, reason in (
                ({}, 'no class is named'), ({'a': '0-8'}, 'no vCPU 8'),
                ({'a': '99999'}, 'no vCPU 99999'), ({'a': '^1'}, 'no range'),
                ({'a': '1e5'}, 'no range'), ({'a': '-1'}, 'no range')):
            error = self.assertRaises(class_moves.NotMovedError,
                                      class_moves.parse_vcpu_request, asked, 8)
            self.assertIn(reason, str(error))

    def test_server_without_classes_moves_nothing(self):
        error = self.assertRaises(
            class_moves.NotMovedError, class_moves.move_vcpus, (),
            {'a': frozenset({0})}, NODES)
        self.assertIn('has no vCPU classes', str(error))

    @given(st.lists(WISHES, max_size=4))
    def test_guarantees_of_a_node_are_never_more_than_allocated(self, wishes):
        """Each vCPU is in one class, which has limits on its node."""
        classes = parse()
        for wanted in wishes:
            try:
                classes = move(wanted, classes)
            except class_moves.NotMovedError:
                continue
            found = members(classes)
            for vcpu in range(VCPUS):
                owner, = [name for name, mine in found.items()
                          if vcpu in mine]
                started = {one.name: one.vcpus for one in parse()}[owner]
                self.assertTrue(any({vcpu, mate} <= mine for mine in NODES
                                    for mate in started))
            self.assertEqual([one.nodes for one in parse()],
                             [one.nodes for one in classes])
