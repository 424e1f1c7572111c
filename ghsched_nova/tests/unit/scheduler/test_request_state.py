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

from unittest import mock

from ghsched_nova.scheduler import manager
from ghsched_nova.scheduler import request_state
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base


class ClaimedAmountsTest(base.TestCase):
    """Placement's answer after claims of its request."""

    def setUp(self):
        super().setUp()
        self.seen = request_state.RequestState()
        self.seen.summaries = {
            'node': {'resources': {'BW': {'capacity': 95, 'used': 5}}},
            'root': {}}

    def claim(self, claimed):
        self.seen.claims.claim_resources = mock.Mock(return_value=claimed)
        request_state.RecordingClient(None, self.seen).claim_resources(
            None, 'guest', {'allocations': {
                'root': {'resources': {'PCPU': 4}},
                'node': {'resources': {'BW': 30}},
                'unknown': {'resources': {'VF': 1}}}})

    def test_claims_are_counted_as_used(self):
        for used in (35, 65):
            self.claim(True)
            self.assertEqual(
                {'node': {'resources': {'BW': {'capacity': 95, 'used': used}}},
                 'root': {}}, self.seen.summaries)
        self.assertFalse(self.seen.lost)

    def test_refused_claim_takes_nothing_and_is_lost(self):
        self.claim(False)
        self.assertEqual(5, self.seen.summaries['node']['resources']['BW'][
            'used'])
        self.assertTrue(self.seen.lost)


class QuestionsTest(base.TestCase):
    """Questions to Placement about one request."""

    def test_no_question_is_asked_twice_in_a_request(self):
        seen, placement = request_state.RequestState(), mock.Mock()
        placement.get_allocation_candidates.return_value = {
            'provider_summaries': {}}
        core = manager.CoreSchedulerManager
        of_request = mock.Mock(_seen=seen, _placement=placement)
        for asked in (1, 2):
            seen.begin_request()
            for _time in range(3):
                core._list_free_providers(of_request, 'VF', frozenset())
                core._has_shared_group(of_request, policy.GuestPolicy())
                # For another search of the same request.
                seen.reset()
            self.assertEqual(
                (asked, asked),
                (placement.get_allocation_candidates.call_count,
                 placement.is_trait_in_use.call_count))
        core._list_free_providers(of_request, 'GPU', frozenset())
        self.assertEqual(3, placement.get_allocation_candidates.call_count)
