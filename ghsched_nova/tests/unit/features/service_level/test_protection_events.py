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

import fixtures

from ghsched_nova.features.service_level import protection_events
from ghsched_placement.tests import base


class NoticesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.sent, self.unsent = [], set()
        self.notices = protection_events.ProtectionNotifier(self.send)

    def send(self, event, payload):
        if payload['server'] in self.unsent:
            raise OSError('the bus is away')
        self.sent.append((event.rpartition('.')[2], payload['server']))

    def report(self, *guests):
        self.sent.clear()
        self.notices.notify_protection_changes(
            'host_a', dict.fromkeys(guests, 'no group'))
        return self.sent

    def test_each_change_is_sent_once(self):
        self.assertEqual([('start', 'a'), ('start', 'b')],
                         self.report('a', 'b'))
        self.assertEqual([], self.report('a', 'b'))
        self.assertEqual([('end', 'b')], self.report('a'))
        self.assertEqual([], self.report('a'))

    def test_unsent_data_is_sent_with_the_next_report(self):
        self.unsent = {'b'}
        self.assertEqual([('start', 'a')], self.report('a', 'b', 'c'))
        self.assertIn('the bus is away', self.log.output)
        self.unsent = set()
        self.assertEqual([('start', 'b'), ('start', 'c')],
                         self.report('a', 'b', 'c'))
        self.unsent = {'a'}
        self.assertEqual([], self.report('b', 'c'))
        self.unsent = set()
        self.assertEqual([('end', 'a')], self.report('b', 'c'))

    def test_an_unknown_guest_needs_no_end(self):
        self.unsent = {'a'}
        self.report('a')
        self.unsent = set()
        self.assertEqual([], self.report())
