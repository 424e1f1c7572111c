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

"""Both places of a guest that is moved, with Nova's resource tracker."""

import types
from unittest import mock

from nova import exception
from nova import objects

from ghsched_nova.features.live_change import move_claims
from ghsched_nova.features.live_change import nova_cells
from ghsched_nova.nova_seams import compute_moves
from ghsched_nova.nova_seams import shared
from ghsched_nova.virt import manager
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

shared.config()
objects.register_all()

UUID = '0d1d0a2f-3a0e-4f0c-8bb0-6a4c4bb8d1a1'
AFTER = (GuestCell(1, pins={0: 4, 1: 5}, memory=512),)


def _cell(number, pinned=()):
    return objects.NUMACell(
        id=number, cpuset=set(), pcpuset=set(range(4 * number,
                                                   4 * number + 4)),
        memory=1024, cpu_usage=0, memory_usage=0, socket=0,
        siblings=[], pinned_cpus=set(pinned), network_metadata=objects
        .NetworkMetadata(physnets=set(), tunneled=False),
        mempages=[objects.NUMAPagesTopology(
            size_kb=4, total=262144, used=0, reserved=0)])


class ClaimTestCase(base.TestCase):
    """A host of two NUMA nodes, with one guest on the first."""

    def setUp(self):
        super().setUp()
        self.addCleanup(compute_moves.MOVING.clear)
        self.tracker = manager.GhschedResourceTracker(
            'host_a', mock.Mock(), mock.Mock())
        self.node = objects.ComputeNode(
            memory_mb=4096, memory_mb_used=0, local_gb=10, local_gb_used=0,
            vcpus_used=0, free_ram_mb=4096, free_disk_gb=10)
        self.tracker.compute_nodes['host_a'] = self.node
        self.count({0, 1})
        self.instance = objects.Instance(
            uuid=UUID, node='host_a', task_state='resize_prep',
            numa_topology=objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(
                    id=0, cpuset=set(), pcpuset={0, 1}, memory=512,
                    cpu_pinning={0: 0, 1: 1}, cpu_policy='dedicated',
                    pagesize=None)]))
        self.saved, self.task_state = [], 'resize_prep'
        self.enterContext(mock.patch.object(
            objects.Instance, 'save', self.save))
        self.virtapi = types.SimpleNamespace(
            _compute=types.SimpleNamespace(rt=self.tracker))

    def save(self, expected_task_state):
        if self.task_state not in expected_task_state:
            raise exception.UnexpectedDeletingTaskStateError(
                instance_uuid=UUID, expected=expected_task_state,
                actual=self.task_state)
        self.saved.append(nova_cells.list_guest_cells(
            self.instance.numa_topology))

    def count(self, first, second=()):
        self.node.numa_topology = objects.NUMATopology(cells=[
            _cell(0, first), _cell(1, second)])._to_json()

    def claim(self):
        return move_claims.claiming_new_nodes(self.virtapi, self.instance,
                                              AFTER)

    def taken(self):
        return [sorted(cell.pinned_cpus)
                for cell in objects.NUMATopology.obj_from_db_obj(
                    self.node.numa_topology).cells]


class ClaimTest(ClaimTestCase):

    def test_both_are_counted_until_the_record_is_written(self):
        with self.claim() as commit:
            self.assertEqual([[0, 1], [4, 5]], self.taken())
            commit()
            self.assertEqual([[], [4, 5]], self.taken())
        self.assertEqual([[], [4, 5]], self.taken())
        (cell,), = self.saved
        self.assertEqual((1, {0: 4, 1: 5}), (cell.host_node, cell.pins))

    def test_unwritten_data_is_dropped(self):
        with self.claim():
            pass
        self.assertEqual([[0, 1], []], self.taken())

    def test_a_report_meanwhile_counts_both(self):
        with self.claim():
            self.count({0, 1})      # as of the records alone
            self.tracker._update_usage_from_instances(None, [], 'host_a')
            self.assertEqual([[0, 1], [4, 5]], self.taken())
        self.assertEqual([[0, 1], []], self.taken())

    def test_foreign_resources_are_refused(self):
        self.count({0, 1}, {5})
        self.assertRaises(exception.NovaException, self.claim().__enter__)
        self.assertEqual([[0, 1], [5]], self.taken())
        self.assertEqual({}, compute_moves.MOVING)

    def test_memory_must_be_there(self):
        topology = objects.NUMATopology.obj_from_db_obj(
            self.node.numa_topology)
        topology.cells[1].memory_usage = 513
        self.node.numa_topology = topology._to_json()
        error = self.assertRaises(exception.NovaException,
                                  self.claim().__enter__)
        self.assertIn('511 MiB free', str(error))

    def test_a_guest_that_is_deleted_meanwhile_stays_for_that(self):
        with self.claim() as commit:
            self.task_state = 'deleting'
            self.assertRaises(exception.UnexpectedDeletingTaskStateError,
                              commit)
        self.assertEqual(([], [[0, 1], []]), (self.saved, self.taken()))

    def test_a_place_that_no_report_could_count_is_given_up(self):
        with self.claim():
            self.count({0, 1}, {5})
            self.tracker._update_usage_from_instances(None, [], 'host_a')
        self.assertEqual([[0, 1], [5]], self.taken())
        self.assertEqual({}, compute_moves.MOVING)


class ClaimStressTest(ClaimTestCase):
    """Moves of several guests, and reports of the host meanwhile."""

    def test_claims_under_native_threads_are_counted_while_they_last(self):
        self.count({0, 1, 2, 3})
        instances = [self.instance.obj_clone() for _cpu in range(4)]

        def move(cpu):
            one = instances[cpu]
            one.uuid = f'{UUID[:-1]}{cpu}'
            one.numa_topology.cells[0].cpu_pinning = {0: cpu}
            one.numa_topology.cells[0].memory = 10
            after = (GuestCell(1, pins={0: cpu + 4}, memory=10),)

            def step(_chance):
                with (move_claims.claiming_new_nodes(self.virtapi, one,
                                                     after),
                      compute_moves.get_claim_lock()):
                    assert cpu + 4 in self.taken()[1]
            return step

        def report(_chance):
            with compute_moves.get_claim_lock():
                self.count({0, 1, 2, 3})    # as of the records alone
                self.tracker._update_usage_from_instances(None, [], 'host_a')

        self.assertEqual([], threads.stress(
            [*map(move, range(4)), report], 3))
        self.assertEqual([[0, 1, 2, 3], []], self.taken())
        self.assertEqual({}, compute_moves.MOVING)
