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

import time
import types

import fixtures
from nova import context as nova_context
from nova import objects

from ghsched_nova.monitor import stats
from ghsched_nova.tests.functional import nova_base

WEIGHER = ('ghsched_nova.scheduler.bandwidth_weigher.'
           'GhschedBandwidthWeigher')
#: MB/s of a node.
CAPACITY = 10000


class BandwidthUseTest(nova_base.GhschedTestCase):

    def setUp(self):
        self.flags(weight_classes=['nova.scheduler.weights.all_weighers',
                                   WEIGHER], group='filter_scheduler')
        # More than all of Nova's weighers together.
        self.flags(bandwidth_weight_multiplier=10.0,
                   node_bandwidth={'0': CAPACITY, '1': CAPACITY},
                   group='ghsched')
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=10, format='%(message)s'))

    def start(self, name, *percents):
        """A host with so much of the bandwidth of each node in use."""
        self.start_measured_host(name, CAPACITY, *percents)

    def hosts_of(self, flavor, count):
        return {self.api.get_server(self.boot(flavor)['id'])[
            'OS-EXT-SRV-ATTR:host'] for _ in range(count)}

    def test_stats_of_the_compute_node(self):
        self.start('host_a', 95, 20)
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            nova_context.get_admin_context(), 'host_a')
        measured = stats.from_stats(node.stats, time.time())
        self.assertEqual({0: 0.95, 1: 0.2}, measured.share)
        self.assertTrue(0 <= measured.age < 60, measured)
        self.assertIn('uptime', node.stats)

    def test_the_busy_host_is_avoided(self):
        self.start('host_a', 95, 95)
        self.start('host_b', 30, 30)
        self.assertEqual({'host_b'}, self.hosts_of(self.flavor(), 2))
        self.assertRegex(self.log.output,
                         r'host_a scores -0\.83 for bandwidth: 95 %')

    def test_so_is_the_busy_node_that_placement_chose(self):
        for name, busy in (('host_a', 1), ('host_b', 0)):
            self.start(name, *(95 if node == busy else 5 for node in (0, 1)))
            self.reserve(name, n0=95)
        self.assertEqual({'host_b'},
                         self.hosts_of(self.flavor(mem_bw_min=10), 1))

    def test_an_old_figure_is_not_heard(self):
        self.flags(bandwidth_weight_max_age=1, group='ghsched')
        self.start('host_a', 95, 95)
        self.start('host_b', 30, 30)
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.scheduler.bandwidth_weigher.time',
            types.SimpleNamespace(time=lambda: 4e9)))
        self.hosts_of(self.flavor(), 1)
        self.assertIn('is not heard', self.log.output)
        self.assertNotIn('for bandwidth', self.log.output)
