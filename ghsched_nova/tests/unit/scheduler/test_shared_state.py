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

"""State shared by requests in parallel threads of nova-scheduler."""

import threading

import fixtures
from nova import objects
from nova.virt import hardware
from oslo_serialization import jsonutils

from ghsched_nova.features import declared_scheduler
from ghsched_nova.features.index import nova_seams
from ghsched_nova.tests.fixtures import states
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

WORKERS = 6


class TopologyStressTest(base.TestCase):

    def test_host_topologies_under_native_threads_are_not_changed(self):
        objects.register_all()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.NUMATopology.obj_from_db_obj',
            objects.NUMATopology.obj_from_db_obj))
        nova_seams.cache_host_topologies(2)
        documents = [jsonutils.dumps(objects.NUMATopology(cells=[
            states.cell(node, pinned=pinned, pages=[
                objects.NUMAPagesTopology(size_kb=4, total=262144, used=0,
                                          reserved=0)])
            for node in range(2)]
        ).obj_to_primitive()) for pinned in range(4)]
        guest = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(
                id=0, cpuset=set(), pcpuset={0}, memory=256,
                cpu_policy='dedicated', cpu_pinning={0: 3})])

        def step(chance):
            """Take of a host, as HostState.consume_from_request does."""
            document = chance.choice(documents)
            host = objects.NUMATopology.obj_from_db_obj(document)
            before = jsonutils.loads(document)
            pinned = hardware.numa_usage_from_instance_numa(host, guest)
            assert 3 in pinned.cells[0].pinned_cpus
            after = objects.NUMATopology.obj_from_primitive(before)
            assert [cell.pinned_cpus for cell in host.cells] == [
                cell.pinned_cpus for cell in after.cells]
        self.assertEqual([], threads.stress([step] * WORKERS, 10))


class Placement:
    """Claims of requests, taken and removed by the report client's names."""

    def __init__(self):
        self.held, self.lock = set(), threading.Lock()

    def remove_resources_from_instance_allocation(self, _context, consumer,
                                                  _resources):
        with self.lock:
            self.held.remove(consumer)


class Scheduler(declared_scheduler.GhschedSchedulerManager):
    """The manager, with requests of which some fail after their claim."""

    def __init__(self, chances):
        self._indexed, self._chances = None, chances

    def _schedule_request(self, call):
        uuid = call.keywords['uuid']
        self._seen.reset()
        self.placement_client.claim_resources(
            call.context, uuid, {'allocations': {'h': {'resources': {}}}})
        self._seen.record_filter('filter', 2, 1)
        assert len(self._seen.filtered) == 1
        if self._chances.pop(uuid):
            raise ValueError(uuid)
        return uuid


class ClaimsStressTest(base.TestCase):

    def test_requests_under_native_threads_release_only_their_claims(self):
        placement, chances = Placement(), {}

        def claim(client, _context, consumer, *_args):
            with client.lock:
                client.held.add(consumer)
            return {'h'}
        for name, value in (
                ('ghsched_nova.nova_seams.scheduler.claim_resources', claim),
                ('nova.scheduler.manager.SchedulerManager.placement_client',
                 property(lambda _manager: placement))):
            self.useFixture(fixtures.MonkeyPatch(name, value))
        self.useFixture(fixtures.FakeLogger())
        scheduler, placed = Scheduler(chances), []

        def step(chance):
            uuid = str(chance.random())
            chances[uuid] = chance.random() < .5
            try:
                placed.append(scheduler.select_destinations(None, uuid=uuid))
            except ValueError as error:
                assert str(error) == uuid
        self.assertEqual([], threads.stress([step] * WORKERS, 40))
        self.assertEqual(set(placed), placement.held)
        self.assertLess(WORKERS, len(placed))
