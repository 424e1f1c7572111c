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
"""Part of a policy that opens a channel to the host."""

from ghsched_placement.features.guest_channel import channel_part
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base


class ChannelPartTest(base.TestCase):

    def part(self, **values):
        return policy.parse_policy(
            {'ghsched:lock_memory': 'true', **{
                f'ghsched:{name}': value for name, value in values.items()}},
            0).get_part(channel_part.ChannelPart)

    def test_flavor_without_the_key_has_no_channel(self):
        self.assertFalse(self.part().is_open)
        self.assertEqual(frozenset(), self.part().get_needed_capabilities())

    def test_channel_needs_a_host_that_opens_it(self):
        for mode in ('read', 'write'):
            part = self.part(guest_channel=mode)
            self.assertEqual({'GUEST_CHANNEL'}, part.get_needed_capabilities())
        self.assertFalse(self.part(guest_channel='none').is_open)
