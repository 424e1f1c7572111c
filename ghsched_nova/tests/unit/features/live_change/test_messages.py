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

"""A policy on its way to a host and back."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.live_change import messages
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.tests import base

nodes = st.lists(st.tuples(
    st.builds(NodePolicy, l3_ways=st.integers(0, 64),
              burst=st.integers(0, 100),
              minimum=st.integers(0, 100),
              maximum=st.integers(1, 100), hardlimit=st.booleans(),
              priority=st.none() | st.integers(0, 7)),
    st.integers(0, 63)), max_size=4)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(('host_node', 'min', 'max', 'hardlimit', 'priority',
                         'x')), inner, max_size=6), max_leaves=12)


class MessagesTest(base.TestCase):

    @given(pairs=nodes)
    def test_it_comes_back_as_it_went(self, pairs):
        policy = GuestPolicy(tuple(node for node, _host in pairs))
        hosts = tuple(host for _node, host in pairs)
        wire = json.loads(json.dumps(messages.pack_policy(policy, hosts)))
        self.assertEqual((policy, hosts), messages.unpack_policy(wire))

    @given(thing=st.lists(_json, max_size=3))
    def test_anything_else_is_refused_as_such(self, thing):
        try:
            policy, hosts = messages.unpack_policy(thing)
        except messages.MessageError:
            return
        self.assertEqual(len(policy.nodes), len(hosts))

    def test_numbers_that_no_flavor_can_have_are_refused(self):
        packed, = messages.pack_policy(
            GuestPolicy((NodePolicy(priority=3),)), [0])
        for key, number in (('min', 101), ('max', 0), ('max', 101),
                            ('priority', 8), ('host_node', -1)):
            error = self.assertRaises(messages.MessageError,
                                      messages.unpack_policy,
                                      [{**packed, key: number}])
            self.assertIn('a number is not in', str(error), (key, number))

    def test_classes_come_back_as_they_went(self):
        policy = parse_policy({
            'ghsched:vcpu_classes': 'a:0,b:2', 'ghsched:mem_bw_min.a': '30',
            'ghsched:mem_bw_max': '40'}, 2, 4)
        packed = json.loads(json.dumps(messages.pack_policy(policy, (0, 1))))
        found, _hosts = messages.unpack_policy(packed)
        self.assertEqual(policy, found)
        for change in ({'name': 'c'}, {'vcpus': '9'}, {'vcpus': 'x'},
                       {'min': 101}, {'name': 7}, {'vcpus': 7}):
            strange = [packed[0], {**packed[1], 'classes': [
                {**packed[1]['classes'][0], **change},
                *packed[1]['classes'][1:]]}]
            self.assertRaises(messages.MessageError, messages.unpack_policy,
                              strange)

    def test_fields_of_a_later_release_are_ignored(self):
        packed, = messages.pack_policy(GuestPolicy((NodePolicy(),)), [0])
        self.assertEqual((GuestPolicy((NodePolicy(),)), (0,)),
                         messages.unpack_policy([{**packed, 'new': 1}]))
