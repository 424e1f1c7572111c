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

import time

import fixtures
from nova import objects
from nova.scheduler import weights

from ghsched_nova.monitor import rates
from ghsched_nova.monitor import stats
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import bandwidth_weigher
from ghsched_nova.tests.fixtures import trees
from ghsched_nova.tests.unit.scheduler import states
from ghsched_placement import names
from ghsched_placement.tests import base


def host(*percents, age=10.0, name='host_a', chosen=None, parts=()):
    """A host of which so much of each node's bandwidth is used.

    :param parts: nodes of which not all is known.
    """
    state = states.host([states.cell(number)
                         for number in range(len(percents))], name=name)
    state.stats = stats.to_stats(trees.snapshot(*(
        trees.node((number,), percent * 1e7, 10 ** 9,
                   rates.State.UNASSIGNED if number in parts
                   else rates.State.OK)
        for number, percent in enumerate(percents))), time.time() - age)
    if chosen is not None:
        state.limits['numa_topology'] = objects.NUMATopologyLimits(
            network_metadata=objects.NetworkMetadata(
                physnets={names.order_physnet(chosen)}))
    return state


class BandwidthWeigherTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=10, format='%(levelname)s %(message)s'))
        self.weigher = bandwidth_weigher.GhschedBandwidthWeigher()

    def option(self, name, value):
        conf = shared.config()
        conf.set_override(name, value, group='ghsched')
        self.addCleanup(conf.clear_override, name, group='ghsched')

    def weigh(self, state):
        return self.weigher._weigh_object(state, states.spec())

    def test_hosts_with_bandwidth_to_spare_are_equal(self):
        self.assertEqual({0.0}, {self.weigh(host(use, use))
                                 for use in (0, 10, 69, 70)})

    def test_the_nearer_to_the_limit_the_worse(self):
        found = [self.weigh(host(use)) for use in (70, 80, 90, 100, 150)]
        for expected, score in zip((0, -1 / 3, -2 / 3, -1, -1), found,
                                   strict=True):
            self.assertAlmostEqual(expected, score)

    def test_stale_figures_are_not_heard(self):
        for age in (181.0, 10 ** 6, -181.0):
            self.assertEqual(0.0, self.weigh(host(100, age=age)))
        self.assertIn('is not heard', self.log.output)
        for age in (179.0, -100.0):
            self.assertEqual(-1.0, self.weigh(host(100, age=age)))
        self.option('bandwidth_weight_max_age', 1000)
        self.assertEqual(-1.0, self.weigh(host(100, age=999.0)))

    def test_hosts_that_report_nothing(self):
        for value in (None, {}, {'uptime': None}, {stats.KEY: '['}):
            state = host(100)
            state.stats = value
            self.assertEqual(0.0, self.weigh(state))
        self.assertNotIn('WARNING', self.log.output)

    def test_chosen_nodes_count(self):
        for chosen, score in (((1,), 0.0), ((0,), -1.0), ((1, 0), -1.0)):
            self.assertAlmostEqual(score, self.weigh(
                host(100, 10, chosen=chosen)))

    def test_else_all_nodes_count(self):
        self.assertEqual(0.0, self.weigh(host(100, 10)))
        self.assertAlmostEqual(-0.5, self.weigh(host(100, 70)))

    def test_a_part_below_the_threshold_says_nothing(self):
        self.assertEqual(-1.0, self.weigh(host(100, 0, parts=(1,))))
        self.assertEqual(-1.0, self.weigh(host(100, 0, chosen=(0, 1),
                                               parts=(1,))))
        self.assertEqual(0.0, self.weigh(host(50, parts=(0,))))

    def test_other_nodes_say_nothing_of_a_chosen_one_that_is_not_known(self):
        self.assertEqual(0.0, self.weigh(host(100, 10, chosen=(1,),
                                              parts=(1,))))

    def test_a_part_above_the_threshold_does(self):
        for parts in ((1,), (0, 1)):
            self.assertAlmostEqual(-0.5, self.weigh(host(100, 70,
                                                         parts=parts)))
        self.assertAlmostEqual(-2 / 3, self.weigh(host(90, parts=(0,))))

    def test_threshold(self):
        self.option('bandwidth_weight_threshold', 0)
        self.assertAlmostEqual(-0.4, self.weigh(host(40)))
        self.option('bandwidth_weight_threshold', 99)
        self.assertEqual(0.0, self.weigh(host(98)))

    def test_an_error_is_no_reason(self):
        state = host(100)
        del state.limits
        self.assertEqual(0.0, self.weigh(state))
        self.assertIn('WARNING ghsched: the use of bandwidth of host_a '
                      'cannot be told', self.log.output)

    def order(self, *hosts):
        return [weighed.obj.host for weighed
                in weights.HostWeightHandler().get_weighed_objects(
                    [self.weigher], list(hosts), states.spec())]

    def test_nova_puts_the_busy_host_last(self):
        busy, idle = host(95, name='busy'), host(20, name='idle')
        self.assertEqual(['idle', 'busy'], self.order(busy, idle))
        self.option('bandwidth_weight_multiplier', 0.0)
        self.assertEqual(['busy', 'idle'], self.order(busy, idle))
