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


"""The measured use of bandwidth, from the host to the choice of a host.

The hosts and all figures are simulated.
"""

import fixtures

from ghsched_nova.tests.functional import test_load_placement


class BandwidthUseTest(test_load_placement.LoadTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=10, format='%(message)s'))

    def hosts_of(self, flavor, count):
        return {self.api.get_server(self.boot(flavor)['id'])[
            'OS-EXT-SRV-ATTR:host'] for _ in range(count)}

    def test_busy_host_is_avoided(self):
        self.start('host_a', 95, 95)
        self.start('host_b', 30, 30)
        self.assertEqual({'host_b'}, self.hosts_of(self.flavor(), 2))
        self.assertIn('host_a: score -1.00 from weigher GhschedLoadWeigher',
                      self.log.output)

    def test_busy_node_that_placement_chose_is_avoided(self):
        for name, busy in (('host_a', 1), ('host_b', 0)):
            self.start(name, *(95 if node == busy else 5 for node in (0, 1)))
            self.reserve(name, n0=95)
        self.assertEqual({'host_b'},
                         self.hosts_of(self.flavor(mem_bw_min=10), 1))
