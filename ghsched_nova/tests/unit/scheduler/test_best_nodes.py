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

from ghsched_nova.scheduler import best_nodes
from ghsched_nova.tests.fixtures import states
from ghsched_placement.providers import names
from ghsched_placement.tests import base

#: Costs of a host whose node 1 is the busiest.
COSTS = {0: (0.1,), 1: (0.9,)}


class LimitTest(base.TestCase):
    """Nodes to which a guest is limited on a host with devices on node 1."""

    def choose_nodes(self, with_device):
        cells = [states.cell(node, physnets={names.make_node_physnet(node)})
                 for node in COSTS]
        spec = states.spec(vfs=int(with_device), numa_policy='required')
        spec.flavor.extra_specs = {'ghsched:mem_bw_min': '20'}
        limited = best_nodes.limit_to_best_nodes(
            states.host(cells, [states.pool(1)]), spec, lambda _view: COSTS)
        return limited.limits['numa_topology'].network_metadata.physnets

    def test_guest_without_devices_gets_the_cheapest_node(self):
        self.assertEqual({names.make_node_physnet(0),
                          names.make_host_nodes_physnet([0])},
                         self.choose_nodes(with_device=False))

    def test_guest_gets_the_node_of_its_device_whatever_it_costs(self):
        self.assertEqual({names.make_node_physnet(1),
                          names.make_host_nodes_physnet([1])},
                         self.choose_nodes(with_device=True))
