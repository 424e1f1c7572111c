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

import fixtures
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception
from nova.scheduler.client import report

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes import placement_retries
from ghsched_nova.nova_seams import registry
from ghsched_placement.providers import names
from ghsched_placement.tests import base


class GiveBackAgainTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MockPatch('time.sleep'))
        # Of a class of its own, so that no other is changed for good.
        self.client = type('Client', (), {
            'delete_allocation_for_instance': lambda *args: self.answer(),
            'get_allocs_for_consumer': lambda *args: {'allocations': {
                'provider': {'resources': self.held}}}})
        self.held = {names.MEM_BW_PCT: 1}
        self.useFixture(fixtures.MockPatchObject(
            report, 'SchedulerReportClient', self.client))
        patches.apply_patches(placement_retries.__name__, registry.API)
        self.answer = mock.Mock()

    def failed(self, text):
        return exception.AllocationDeleteFailed(consumer_uuid='1', error=text)

    def test_a_conflict_on_a_provider_is_tried_again(self):
        conflict = self.failed(
            'Inventory and/or allocations changed while attempting to '
            'allocate: "code": "placement.concurrent_update"')
        self.answer.side_effect = (conflict, conflict, True)
        self.assertIs(
            True, self.client().delete_allocation_for_instance(None, None))

    def test_but_not_for_ever(self):
        conflict = self.failed('Inventory and/or allocations changed')
        self.answer.side_effect = [conflict] * 6
        self.assertRaises(exception.AllocationDeleteFailed,
                          self.client().delete_allocation_for_instance,
                          None, None)

    def test_conflict_of_a_server_without_our_classes_is_not_retried(self):
        self.held = {'VCPU': 1}
        self.answer.side_effect = [
            self.failed('Inventory and/or allocations changed')]
        self.assertRaises(exception.AllocationDeleteFailed,
                          self.client().delete_allocation_for_instance,
                          None, None)

    def test_all_else_is_not(self):
        self.answer.side_effect = [self.failed('consumer generation conflict')]
        self.assertRaises(exception.AllocationDeleteFailed,
                          self.client().delete_allocation_for_instance,
                          None, None)

    def test_error_of_the_deletion_is_raised_if_placement_cannot_be_read(self):
        for error in (
                exception.ConsumerAllocationRetrievalFailed(
                    consumer_uuid='1', error='503'),
                ksa_exceptions.ConnectFailure()):
            for readable in (0, 5):
                self.answer.side_effect = [self.failed(
                    'Inventory and/or allocations changed')] * (readable + 1)
                self.client.get_allocs_for_consumer = mock.Mock(
                    side_effect=[{'allocations': {
                        'provider': {'resources': self.held}}}] * readable
                    + [error])
                self.assertRaises(
                    exception.AllocationDeleteFailed,
                    self.client().delete_allocation_for_instance, None, None)
