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

"""Placement is asked for no class that it does not know."""

from unittest import mock

from ghsched_nova.scheduler import request_state
from ghsched_nova.scheduler import resource_classes
from ghsched_placement.providers import names
from ghsched_placement.providers import placement_client
from ghsched_placement.tests import base

QUERY = [('resources', 'VCPU:1'),
         ('resources_a', f'{names.MEM_BW_PCT}:5,{names.MEM_BW_BURST_PCT}:2')]


class Placement:
    """Placement with some classes, or that answers with an error."""

    def __init__(self, *classes, code=404):
        self.classes, self.code, self.asked = classes, code, []

    def get(self, url, version=None):
        self.asked.append(url)
        known = url.rpartition('/')[2] in self.classes
        return mock.Mock(status_code=200 if known else self.code,
                         json=lambda: {'errors': [{'detail': 'no'}]})


class UnknownClassTest(base.TestCase):

    def find(self, placement, known):
        return resource_classes.find_unknown_class(
            placement_client.PlacementClient(placement), QUERY, known)

    def test_class_that_no_host_offered_is_named(self):
        known = set()
        self.assertEqual(names.MEM_BW_BURST_PCT,
                         self.find(Placement(names.MEM_BW_PCT), known))

    def test_known_classes_are_asked_for_once(self):
        known, placement = set(), Placement(names.MEM_BW_PCT,
                                            names.MEM_BW_BURST_PCT)
        self.assertEqual('', self.find(placement, known))
        self.assertEqual('', self.find(placement, known))
        self.assertEqual(2, len(placement.asked))
        # Classes of Nova are none of ghsched's.
        self.assertEqual([], [url for url in placement.asked if 'VCPU' in url])

    def test_placement_that_fails_hides_no_candidate(self):
        self.assertEqual('', self.find(Placement(code=503), set()))

    def test_scheduler_asks_for_no_candidates_with_an_unknown_class(self):
        client = Placement(names.MEM_BW_PCT)
        client.get_allocation_candidates = mock.Mock()
        recording = request_state.RecordingClient(
            client, request_state.RequestState())
        resources = mock.Mock(to_querystring=lambda: '&'.join(
            '='.join(pair) for pair in QUERY))
        self.assertEqual(([], {}, None), recording.get_allocation_candidates(
            None, resources))
        client.get_allocation_candidates.assert_not_called()
