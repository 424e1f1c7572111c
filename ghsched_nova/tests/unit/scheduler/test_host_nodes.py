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

"""CPUs and memory that guest NUMA nodes need, from Nova's requests."""

from ghsched_nova.scheduler import host_nodes
from ghsched_nova.tests.fixtures import states
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base


class GuestNodesTest(base.TestCase):
    """Nova's own keys keep their meaning."""

    def test_isolated_threads_take_whole_cores(self):
        topology = states.spec(thread_policy='isolate').numa_topology
        self.assertEqual([GuestNode(pinned=4, memory=256)],
                         host_nodes.list_guest_node_requirements(topology, 2))

    def test_isolated_emulator_threads_take_a_cpu_of_the_first_node(self):
        topology = states.spec(size=2).numa_topology
        topology.emulator_threads_policy = 'isolate'
        nodes = host_nodes.list_guest_node_requirements(topology, 1)
        self.assertEqual([3, 2], [node.pinned for node in nodes])
