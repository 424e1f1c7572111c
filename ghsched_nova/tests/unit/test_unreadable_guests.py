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

"""A guest whose XML is malformed costs no other guest anything."""

import ddt

from ghsched_nova.features.interrupts import interrupts
from ghsched_nova.features.load import load_use
from ghsched_nova.features.real_time import host_scheduling
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import uncounted_guests
from ghsched_nova.tests.fixtures.malformed_guests import BAD
from ghsched_nova.tests.fixtures.malformed_guests import GOOD
from ghsched_nova.tests.fixtures.malformed_guests import list_guests
from ghsched_nova.tests.fixtures.malformed_guests import running
from ghsched_placement.tests import base

#: Functions of features that return the guests that they look after.
FINDERS = (
    host_scheduling.list_guest_thread_scheduling,
    interrupts.list_housekeeping_irq_guests,
    load_use.list_measurable_guests,
)


@ddt.ddt
class UnreadableGuestTest(base.TestCase):

    def test_text_that_is_cut_off_or_unknown_is_not_readable(self):
        self.assertEqual([False, True],
                         [one.is_readable for one in list_guests()])
        self.assertFalse(running(1, '').is_readable)

    @ddt.data(*range(len(BAD)))
    def test_features_find_the_other_guest(self, bad):
        self.assertNotEqual(GOOD, BAD[bad])
        for find in FINDERS:
            self.assertIn('uuid2', [one.uuid for one
                                    in find(list_guests(bad))])

    @ddt.data(*range(len(BAD)))
    def test_the_other_guest_counts(self, bad):
        guests = list_guests(bad)
        _first, second = bandwidth_use.list_guests_and_policies(guests)
        self.assertIsNotNone(second.policy)
        self.assertIn('uuid2', uncounted_guests.map_policies_with_allocation(
            guests, 'min'))
