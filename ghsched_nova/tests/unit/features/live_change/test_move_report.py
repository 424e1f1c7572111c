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

from ghsched_nova.tests.fixtures import plans
from ghsched_placement.features.live_change import move_report
from ghsched_placement.flavor import policy as policies
from ghsched_placement.tests import base


class WishTest(base.TestCase):

    def test_guest_nodes_and_their_host_nodes(self):
        self.assertEqual({0: 2, 1: 0},
                         move_report.parse_node_pairs(['0=2', '1=0']))
        self.assertEqual({0: 2}, move_report.parse_move_request(
            {'move_nodes': {'0': 2}, 'dry_run': True}))

    def test_errors_are_named(self):
        for texts in (['0'], ['=1'], ['a=1'], ['0=-1'], ['0=1', '00=2']):
            self.assertRaises(policies.PolicyError,
                              move_report.parse_node_pairs, texts)
        for nodes in ({}, [], None, {'0': '1'}, {'0': True}):
            self.assertRaises(policies.PolicyError,
                              move_report.parse_move_request,
                              {'move_nodes': nodes, 'dry_run': True})

    @given(st.lists(st.text()))
    def test_any_text_is_read_or_refused(self, texts):
        try:
            self.assertEqual(len(texts),
                             len(move_report.parse_node_pairs(texts)))
        except policies.PolicyError:
            pass


class OutputTest(base.TestCase):

    def test_a_row_for_each_vcpu(self):
        shown = move_report.make_move_report(plans.MOVE, True)
        self.assertEqual([('0', '0', '1', '0', '4', '8'),
                          ('0', '0', '1', '1', '1-2', '3')],
                         list(move_report.list_vcpu_rows(shown)))
        self.assertEqual((True, True), (shown['changed'], shown['dry_run']))
        self.assertIn('could be done', move_report.summarize_move(shown))
        self.assertIn('was moved', move_report.summarize_move(
            move_report.make_move_report(plans.MOVE, False)))
        self.assertIn('already', move_report.summarize_move(
            {**shown, 'changed': False}))
