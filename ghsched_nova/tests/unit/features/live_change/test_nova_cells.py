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

"""NUMA nodes of guests and hosts, from Nova's own objects."""

import types

from nova import objects

from ghsched_nova.features.live_change import nova_cells
from ghsched_placement.fit import cells
from ghsched_placement.tests import base


class PlaceTest(base.TestCase):
    """Facts for the plan of a move, from Nova's own objects."""

    def setUp(self):
        super().setUp()
        objects.register_all()

    def room(self, **more):
        topology = objects.NUMATopology(cells=[objects.NUMACell(**{
            'id': 1, 'cpuset': {8, 9}, 'pcpuset': {10, 11, 12},
            'memory': 2048, 'memory_usage': 512, 'cpu_usage': 1,
            'pinned_cpus': {10}, 'siblings': [{8, 9}, {10, 11}],
            'socket': 0, 'network_metadata': objects.NetworkMetadata(
                physnets=set(), tunneled=False),
            'mempages': [objects.NUMAPagesTopology(
                size_kb=2048, total=100, used=30, reserved=8)], **more})])
        found = nova_cells.map_host_cells(types.SimpleNamespace(
            numa_topology=topology._to_json()))
        self.assertEqual([1], list(found))
        return found[1]

    def test_the_host_has_what_nobody_has(self):
        room = self.room()
        self.assertEqual(
            (frozenset({11, 12}), frozenset({8, 9}), 1536, {2048: 62}),
            (room.free, room.shared, room.memory_free,
             dict(room.pages_free)))

    def test_each_dedicated_cpu_is_in_one_core(self):
        self.assertEqual([[10, 11], [12]], sorted(map(
            sorted, self.room().cores)))
        self.assertEqual([[10], [11], [12]], sorted(map(
            sorted, self.room(siblings=[]).cores)))

    def test_more_than_there_is_leaves_nothing(self):
        self.assertEqual(0, self.room(memory_usage=4096).memory_free)

    def test_a_host_that_reports_no_nodes_has_none(self):
        self.assertEqual({}, nova_cells.map_host_cells(
            types.SimpleNamespace(numa_topology=None)))

    def test_a_guest_with_both_kinds_of_vcpus(self):
        cell = objects.InstanceNUMACell(
            id=1, cpuset={0}, pcpuset={1}, memory=512, pagesize=2048,
            cpu_policy='mixed', cpu_thread_policy='isolate',
            cpu_pinning={1: 12}, cpuset_reserved={11})
        self.assertEqual(
            (cells.GuestCell(1, frozenset({0}), {1: 12},
                             frozenset({11}), 512, 2048, 'isolate'),),
            nova_cells.list_guest_cells(
                objects.InstanceNUMATopology(cells=[cell])))

    def test_a_guest_that_floats(self):
        cell = objects.InstanceNUMACell(id=0, cpuset={0, 1}, pcpuset=set(),
                                        memory=512)
        self.assertEqual(
            (cells.GuestCell(0, frozenset({0, 1}), memory=512),),
            nova_cells.list_guest_cells(
                objects.InstanceNUMATopology(cells=[cell])))
        self.assertEqual((), nova_cells.list_guest_cells(None))
