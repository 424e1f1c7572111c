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

from ghsched_nova.live import server_move
from ghsched_nova.tests.fixtures import plans
from ghsched_placement import policy as policies
from ghsched_placement.tests import base


class WishTest(base.TestCase):

    def test_guest_nodes_and_their_host_nodes(self):
        self.assertEqual({0: 2, 1: 0}, server_move.wish(['0=2', '1=0']))
        self.assertEqual({0: 2}, server_move.read(
            {'move_nodes': {'0': 2}, 'dry_run': True}))

    def test_what_is_wrong_is_named(self):
        for texts in (['0'], ['=1'], ['a=1'], ['0=-1'], ['0=1', '00=2']):
            self.assertRaises(policies.PolicyError, server_move.wish, texts)
        for nodes in ({}, [], None, {'0': '1'}, {'0': True}):
            self.assertRaises(policies.PolicyError, server_move.read,
                              {'move_nodes': nodes, 'dry_run': True})

    @given(st.lists(st.text()))
    def test_any_text_is_read_or_refused(self, texts):
        try:
            self.assertEqual(len(texts), len(server_move.wish(texts)))
        except policies.PolicyError:
            pass


class OutputTest(base.TestCase):

    def test_a_row_for_each_vcpu(self):
        shown = server_move.document(plans.MOVE, True)
        self.assertEqual([('0', '0', '1', '0', '4', '8'),
                          ('0', '0', '1', '1', '1-2', '3')],
                         list(server_move.rows(shown)))
        self.assertEqual((True, True), (shown['changed'], shown['dry_run']))
        self.assertIn('could be done', server_move.summary(shown))
        self.assertIn('was moved', server_move.summary(
            server_move.document(plans.MOVE, False)))
        self.assertIn('already', server_move.summary(
            {**shown, 'changed': False}))
