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

from ghsched_nova.features.blame import blame
from ghsched_nova.features.doctor import retire
from ghsched_nova.features.interrupts import interrupts
from ghsched_nova.features.load import load_use
from ghsched_nova.features.real_time import host_scheduling
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.guest import metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import desired
from ghsched_nova.host import uncounted_guests
from ghsched_nova.resctrl import model
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

#: XML of a guest with everything that features look for.
GOOD = metadata.write_policy(
    '<domain><vcpu>1</vcpu><cputune><vcpusched vcpus="0" scheduler="batch"/>'
    '</cputune><devices/><metadata>'
    f'<i:interrupts xmlns:i="{scheduling.IRQ_NAMESPACE}"'
    ' affinity="housekeeping"/></metadata></domain>',
    metadata.DomainPolicy(GuestPolicy(nodes=(NodePolicy(minimum=20),)), (0,)))
#: It ends in the middle.
BAD = GOOD[:-1]


def running(number, xml):
    return desired.Running(model.Domain(f'uuid{number}', number,
                                        f'guest{number}'), xml)


class UnreadableGuestTest(base.TestCase):

    def guests(self):
        return [running(1, BAD), running(2, GOOD)]

    def test_text_that_is_cut_off_or_unknown_is_not_readable(self):
        self.assertEqual([False, True],
                         [one.is_readable for one in self.guests()])
        self.assertFalse(running(1, '').is_readable)

    def test_features_find_the_other_guest(self):
        for found in (
                host_scheduling.list_guests_with_classes(self.guests()),
                interrupts.list_housekeeping_irq_guests(self.guests()),
                load_use.list_measurable_guests(self.guests())):
            self.assertEqual(['uuid2'], [one.uuid for one in found])
        self.assertEqual('uuid2', blame.find_running_guest(
            self.guests(), 'guest2'))

    def test_the_other_guest_counts(self):
        first, second = bandwidth_use.list_guests_and_policies(self.guests())
        self.assertIsNone(first.policy)
        self.assertIsNotNone(second.policy)
        self.assertEqual(
            {'uuid2'}, uncounted_guests.map_policies_with_allocation(
                self.guests(), 'min').keys())

    def test_retire_names_both_guests(self):
        self.assertEqual(2, len(list(
            retire._describe_guests_with_policy(self.guests()))))
