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


"""Hosts whose memory bandwidth is nearly used up."""

import fixtures
from nova.scheduler import weights

from ghsched_nova.features.load import load_weigher
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.load import load
from ghsched_placement.tests import base


def host(*percents, **more):
    """A host of which so much of each node's bandwidth is used.

    :param percents: None for a node whose bandwidth is not known.
    """
    return states.loaded_host(*(
        load.HostNodeLoad(number, cpu_load=1.0,
                          memory_load=None if percent is None
                          else percent / 100, bottlenecks=('cpu_load',))
        for number, percent in enumerate(percents)), **more)


#: Thresholds with which only memory bandwidth counts.
ALONE = {'cpu_load': 0, 'cpu_wait': 0, 'memory_wait': 0, 'io_load': 0,
         'io_wait': 0}


class MemoryLoadTest(base.TestCase):

    def setUp(self):
        super().setUp()
        states.stop_clock(self)
        self.log = self.useFixture(fixtures.FakeLogger(
            level=10, format='%(levelname)s %(message)s'))
        states.override_option(self, 'bottleneck_thresholds', ALONE)
        self.weigher = load_weigher.GhschedLoadWeigher()

    def weigh(self, state):
        return self.weigher._weigh_object(state, states.spec())

    def test_score_falls_from_idle_memory_to_a_memory_bottleneck(self):
        for percent, score in ((0, 0.0), (20, -0.25), (60, -0.75),
                               (80, -1.0), (150, -1.0)):
            self.assertAlmostEqual(score, self.weigh(host(percent)))

    def test_stale_measurement_is_ignored(self):
        for age in (181.0, 10 ** 6, -181.0):
            self.assertEqual(-0.5, self.weigh(host(100, age=age)))
        for age in (179.0, -100.0):
            self.assertEqual(-1.0, self.weigh(host(100, age=age)))
        states.override_option(self, 'load_max_age', 1000)
        self.assertEqual(-1.0, self.weigh(host(100, age=999.0)))

    def test_host_without_a_report_counts_as_half_loaded(self):
        for value in (None, {}, {'uptime': None}, {load.KEY: '['}):
            state = host(100)
            state.stats = value
            self.assertEqual(-0.5, self.weigh(state))
        self.assertNotIn('WARNING', self.log.output)

    def test_worst_chosen_node_counts(self):
        for chosen, score in (((1,), 0.0), ((0,), -1.0), ((1, 0), -1.0)):
            self.assertAlmostEqual(score, self.weigh(
                host(100, 0, chosen=chosen)))

    def test_mean_of_all_nodes_counts_without_a_choice(self):
        self.assertAlmostEqual(-0.5, self.weigh(host(100, 0)))

    def test_node_of_unknown_bandwidth_is_left_out(self):
        self.assertEqual(-1.0, self.weigh(host(100, None)))
        self.assertEqual(-1.0, self.weigh(host(100, None, chosen=(0, 1))))
        self.assertEqual(-0.5, self.weigh(host(100, None, chosen=(1,))))

    def test_threshold_of_a_memory_bottleneck_is_the_end_of_the_scale(self):
        states.override_option(self, 'bottleneck_thresholds',
                               {**ALONE, 'memory_load': 40})
        self.assertAlmostEqual(-0.5, self.weigh(host(20)))

    def test_an_error_is_no_reason(self):
        state = host(100)
        del state.limits
        self.assertEqual(-0.5, self.weigh(state))
        self.assertIn('WARNING ghsched: host host_a: cannot compute the '
                      'weigher score for load; using the score -0.5: ',
                      self.log.output)

    def order(self, *hosts):
        return [weighed.obj.host for weighed
                in weights.HostWeightHandler().get_weighed_objects(
                    [self.weigher], list(hosts), states.spec())]

    def test_nova_puts_the_busy_host_last(self):
        busy, idle = host(95, name='busy'), host(20, name='idle')
        self.assertEqual(['idle', 'busy'], self.order(busy, idle))
        states.override_option(self, 'load_weight_multiplier', 0.0)
        self.assertEqual(['busy', 'idle'], self.order(busy, idle))
