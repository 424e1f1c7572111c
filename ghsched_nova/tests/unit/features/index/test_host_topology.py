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

"""NUMA topologies of hosts that nova-scheduler parses when it reads them."""

import copy

from nova import objects
from nova.pci import stats

from ghsched_nova.features.index import nova_seams
from ghsched_placement.tests import base


class HostTopologyTest(base.TestCase):
    """Topology of a host, parsed when its nodes are needed."""

    def setUp(self):
        super().setUp()
        self.whole = objects.NUMATopology(cells=[objects.NUMACell(
            id=0, cpuset={0}, pcpuset=set(), memory=1, cpu_usage=0,
            memory_usage=0, pinned_cpus=set(), siblings=[{0}], mempages=[],
            socket=0)])
        self.parsed = 0
        self.late = nova_seams._HostTopology(self.parse)

    def parse(self):
        self.parsed += 1
        return self.whole

    def test_it_is_not_parsed_before(self):
        self.assertEqual(0, self.parsed)
        self.assertEqual([0], [cell.id for cell in self.late.cells])
        self.assertEqual(1, len(self.late))
        self.assertEqual(1, self.parsed)

    def test_it_is_as_one_that_was(self):
        self.assertEqual(self.whole, self.late)
        self.assertEqual(set(), self.late.obj_what_changed())

    def test_it_is_written_as_one_that_was(self):
        self.whole.obj_reset_changes(recursive=True)
        self.assertEqual(self.whole.obj_to_primitive(),
                         self.late.obj_to_primitive())

    def test_deep_copy_parses_nothing_and_shares_the_nodes(self):
        found = copy.deepcopy(self.late)
        self.assertEqual(0, self.parsed)
        self.assertIsNot(self.late, found)
        self.assertEqual(self.whole, found)
        self.assertIs(self.whole.cells[0], found.cells[0])

    def test_support_of_devices_does_not_copy_the_nodes_of_the_host(self):
        free = stats.PciDeviceStats(self.late)
        self.assertTrue(free.support_requests([], {}))
        self.assertEqual(0, self.parsed)

    def test_missing_features(self):
        self.assertNotIn('sockets', self.late)
