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


"""Guests go to the NUMA node with least to do, as the host has measured it.

The hosts and all figures are simulated.
"""


from nova import context as nova_context
from nova import objects

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_index
from ghsched_placement.features.load import load

WEIGHER = 'ghsched_nova.features.load.load_weigher.GhschedLoadWeigher'
#: MB/s of a node.
CAPACITY = 10000


class LoadTestCase(nova_base.GhschedTestCase):
    """Hosts of which nodes have so much to do."""

    def setUp(self):
        self.configure()
        super().setUp()
        self.flags(load_placement=True, group='ghsched')

    def configure(self):
        """Set the options that Nova's services read when they start."""
        self.flags(weight_classes=['nova.scheduler.weights.all_weighers',
                                   WEIGHER], group='filter_scheduler')
        # More than all of Nova's weighers together. This machine's own
        # load must not matter.
        self.flags(load_weight_multiplier=10.0, load_period=0.0,
                   load_smoothing=0.0,
                   bottleneck_thresholds={'cpu_load': 0, 'memory_wait': 0,
                                          'io_load': 0, 'io_wait': 0},
                   node_bandwidth={'0': CAPACITY, '1': CAPACITY},
                   group='ghsched')

    def start(self, name, *percents):
        """A host with so much of the bandwidth of each node in use."""
        self.start_measured_host(name, CAPACITY, *percents)
        self.computes[name].manager.update_available_resource(
            nova_context.get_admin_context())

    def measured(self, name):
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            nova_context.get_admin_context(), name)
        return load.parse_load_stats(node.stats)


class LoadPlacementTest(LoadTestCase):

    def test_guests_go_to_the_idle_node_although_both_have_room(self):
        self.start('host_a', 70, 5)
        nodes = self.measured('host_a').get_nodes_by_number()
        self.assertEqual([0.7, 0.05], [nodes[0].memory_load,
                                       nodes[1].memory_load])
        for flavor in (self.flavor(mem_bw_min=10), self.flavor()):
            self.assertEqual([1], list(self.host_nodes(self.boot(flavor))))

    def test_guest_of_few_caches_goes_to_the_idle_node(self):
        self.start('host_a', 70, 5)
        server = self.boot(self.flavor(cpu_cache='prefer'))
        self.assertEqual([1], self.host_nodes(server))

    def test_allocated_nodes_come_first(self):
        self.start('host_a', 5, 95)
        self.assertEqual(('memory_load',), self.measured(
            'host_a').get_nodes_by_number()[1].bottlenecks)
        self.reserve('host_a', n0=95)
        server = self.boot(self.flavor(mem_bw_min=10))
        self.assertEqual([1], list(self.host_nodes(server)))

    def test_nodes_that_are_alike_take_turns(self):
        self.start('host_a', 5, 5)
        flavor = self.flavor(vcpus=1)
        found = [tuple(self.host_nodes(self.boot(flavor)))
                 for _guest in range(4)]
        self.assertEqual([(0,), (1,)] * 2, found)

    def test_the_idle_host_is_preferred(self):
        self.start('host_a', 85, 85)
        self.start('host_b', 5, 5)
        server = self.api.get_server(self.boot(self.flavor())['id'])
        self.assertEqual('host_b', server['OS-EXT-SRV-ATTR:host'])


class IndexedLoadPlacementTest(LoadTestCase, test_index.IndexTestCase):

    def test_the_idle_node_of_the_idle_host_is_taken(self):
        self.start('host_a', 85, 85)
        self.start('host_b', 70, 5)
        server = self.boot(self.flavor(mem_bw_min=10))
        self.assertEqual('host_b', self.host(server))
        self.assertEqual([1], list(self.host_nodes(server)))
        self.assertEqual((1, 0, 0), self.ways())
