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


"""Host files with NUMA nodes that have no CPUs, in the planner."""

import dataclasses

from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_nova.tests.fixtures.cpuless_hosts import HostFileTestCase
from ghsched_placement.features.planner import flavors
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner import offer
from ghsched_placement.features.planner.state import FilledHost

NIC = 'CUSTOM_PCI_19E5_375E'


class HostFileTest(HostFileTestCase):

    def list_nodes(self, device_numa, **compute):
        """Host nodes of each way to place a guest with two VFs."""
        need = needs.build_flavor_need(flavors.parse_flavor_argument(
            'f:vcpus=1,ram=512,hw:numa_nodes=1,ghsched:mem_bw_min=20,'
            'ghsched:vfs=nic:2,ghsched:vfs_locality=node,'
            f'ghsched:device_numa={device_numa}'), aliases={'nic': NIC})
        state = FilledHost(planner_hosts.make_planner_host(
            dataclasses.replace(self.host, compute=hostfile.Compute(
                **compute)), 'far'))
        return {way.get_host_node_order()
                for way in offer.list_host_placements(
                    state, need, 'node', {},
                    lambda _guest, node: node != 2)}

    def test_planner_takes_the_nearest_node_if_the_flavor_allows(self):
        self.assertEqual({(1,)}, self.list_nodes('preferred'))
        self.assertEqual(set(), self.list_nodes('required'))
        self.assertEqual({(1,)}, self.list_nodes('required',
                                                 device_cells=True))
        self.assertEqual(set(), self.list_nodes('none', device_cells=True))
