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


"""Hosts by the load of their NUMA nodes."""

import fixtures

from ghsched_nova.features.load import by_load
from ghsched_nova.features.load import load_weigher
from ghsched_nova.scheduler import best_nodes
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.load import load
from ghsched_placement.tests import base


def host(*shares, **more):
    """A host whose NUMA nodes have such CPU loads."""
    return states.loaded_host(*(
        load.HostNodeLoad(number, cpus=4, vcpus=0, cpu_load=share)
        for number, share in enumerate(shares)), **more)


class LoadWeigherTest(base.TestCase):

    def setUp(self):
        super().setUp()
        states.stop_clock(self)
        self.log = self.useFixture(fixtures.FakeLogger(level=10))
        self.weigher = load_weigher.GhschedLoadWeigher()

    def weigh(self, state):
        return self.weigher._weigh_object(state, states.spec())

    def test_an_idle_host_is_best_and_a_bottleneck_worst(self):
        self.assertEqual([0.0, -0.5, -1.0, -1.0], [
            self.weigh(host(share, share))
            for share in (0.0, 0.45, 0.9, 1.0)])

    def test_the_worst_of_the_chosen_nodes_counts(self):
        self.assertEqual(-1.0, self.weigh(host(0.9, 0.0, chosen=(0,))))
        self.assertEqual(0.0, self.weigh(host(0.9, 0.0, chosen=(1,))))

    def test_without_a_choice_it_is_the_mean(self):
        self.assertEqual(-0.5, self.weigh(host(1.0, 0.0)))

    def test_unknown_load_is_neither_idle_nor_busy(self):
        self.assertEqual(-0.5, self.weigh(host(None, None)))
        self.assertEqual(-0.5, self.weigh(host(0.0, age=1000)))
        state = host(0.0)
        state.stats = {load.KEY: '{"version": 1}'}
        self.assertEqual(-0.5, self.weigh(state))

    def test_an_error_fails_no_request(self):
        state = host(0.0)
        state.numa_topology = 'none'
        self.assertEqual(-0.5, self.weigh(state))
        self.assertIn('cannot compute the weigher score for load',
                      self.log.output)

    def test_costs_are_none_where_placement_by_load_is_off(self):
        self.assertEqual({0, 1}, set(by_load.compute_node_costs(host(0.9,
                                                                     0.0))))
        states.override_option(self, 'load_placement', False)
        self.assertEqual({}, by_load.compute_node_costs(host(0.9, 0.0)))

    def test_orders_begin_with_the_best_nodes(self):
        costs = by_load.compute_node_costs(host(0.9, 0.4, 0.0))
        orders = list(best_nodes.yield_host_nodes_by_cost(
            costs, costs, 2))
        self.assertEqual([(1, 2), (2, 1)], sorted(orders[:2]))
