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

"""Scheduling of threads of a guest whose XML is malformed."""

from ghsched_nova.features.real_time import host_scheduling
from ghsched_nova.tests.fixtures import malformed_guests
from ghsched_placement.tests import base


class UnreadableGuestTest(base.TestCase):

    def test_thread_of_unknown_class_is_logged_with_its_guest(self):
        with self.assertLogs(host_scheduling.LOG, 'WARNING') as log:
            host_scheduling.list_guest_thread_scheduling(
                malformed_guests.list_guests(1))
        self.assertIn('uuid1', log.output[0])

    def test_start_with_a_malformed_class_is_refused(self):
        part = host_scheduling.ThreadScheduler(None)
        self.assertRaises(ValueError, part.reconcile_guest,
                          malformed_guests.running(1, malformed_guests.BAD[1]))
