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

"""Guests and their policies, as ghsched-top reads them from libvirt."""

from ghsched_nova.features.top import guest_reader
from ghsched_nova.tests.fixtures import pylibvirt
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base


class LibvirtTest(base.TestCase):

    def source(self, *domains):
        self.now = 0.0
        self.module = pylibvirt.Module(*domains)
        return guest_reader.LibvirtReader('test:///', self.module,
                                          lambda: self.now)

    def test_policy(self):
        (guest,) = self.source(
            pylibvirt.Domain(7, pylibvirt.ELEMENT)).read_guests()
        self.assertEqual(
            (trees.UUID, 7, (1,)),
            (guest.uuid, guest.domain_id, guest.policy.host_nodes))
        self.assertEqual(NodePolicy(20, 60, False),
                         guest.policy.policy.nodes[0])

    def test_policy_is_kept_for_a_while(self):
        domain = pylibvirt.Domain(7, pylibvirt.ELEMENT)
        source = self.source(domain)
        for self.now in (0.0, 1.0, 29.0):
            source.read_guests()
        self.assertEqual(1, domain.asked)
        self.now = 31.0
        source.read_guests()
        self.assertEqual(2, domain.asked)

    def test_guest_without_policy(self):
        for error in (80, 42, 55):
            guest, = self.source(pylibvirt.Domain(7, '', error)).read_guests()
            self.assertEqual((None, ''), (guest.policy, guest.problem))

    def test_bad_policy_is_reported(self):
        for text in ('', '<x', pylibvirt.ELEMENT.replace('"20"', '"x"')):
            guest, = self.source(pylibvirt.Domain(7, text)).read_guests()
            self.assertIsNone(guest.policy)
            self.assertNotEqual('', guest.problem)

    def test_guest_that_has_ended_is_left_out(self):
        self.assertEqual(
            (), self.source(pylibvirt.Domain(-1, '')).read_guests())

    def test_libvirtd_that_comes_back(self):
        source = self.source(pylibvirt.Domain(7, pylibvirt.ELEMENT))
        source.read_guests()
        self.module.fails = True
        self.assertEqual((), source.read_guests())
        self.assertIn('test:///', source.problem)
        self.module.fails = False
        self.assertEqual(1, len(source.read_guests()))
        self.assertEqual(('', 2), (source.problem, self.module.opened))
