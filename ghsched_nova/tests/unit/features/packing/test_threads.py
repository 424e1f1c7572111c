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

"""Objects that the threads of nova-scheduler share, under native threads."""

import collections
import contextlib
import datetime
import re
import threading
import types

import fixtures
from nova import exception
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.features import declared_scheduler
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import host_index
from ghsched_nova.features.index import index_feed
from ghsched_nova.features.index import index_metrics
from ghsched_nova.features.index import indexed
from ghsched_nova.features.index import nova_seams
from ghsched_nova.features.index import refusal_cache
from ghsched_nova.features.packing import fragments
from ghsched_nova.scheduler import unread_reports
from ghsched_placement.features.index import headroom
from ghsched_placement.features.packing import gradient
from ghsched_placement.features.packing import numa_nodes
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces
from ghsched_placement.tests.fixtures import threads

objects.register_all()

HOSTS = 20
WORKERS = 7
STEPS = 100
CPUS = 16

NEEDS = [RequestNeed(tuple(RequestNodeNeed(pinned=pinned, memory=10,
                                           bandwidth=5)
                           for pinned in nodes), groups=1,
                     other_requirements=nodes)
         for nodes in ((1,), (2,), (3, 1), (4, 4))]


def row(number, updated, free=CPUS):
    """Return the report of a host of two NUMA nodes."""
    name = f'h{number}'
    return ReportedHost(name, name, 'c', updated, tuple(
        ReportedNode(node, free, 0, {0: 10 ** 6})
        for node in range(2)), has_driver=True,
        placement_headroom=headroom.Headroom(
            float(updated), 0, 50, {0: 100, 1: 100}))


def anywhere(_row):
    return True


class IndexStressTest(base.TestCase):
    """Requests of many threads, and a feed of reports."""

    def setUp(self):
        super().setUp()
        self.index = host_index.Index()
        self.updated = 1
        self.index.update_hosts([row(number, 1) for number in range(HOSTS)],
                                (), 0)
        self.placed = [collections.deque() for _number in range(WORKERS)]

    def request(self, number, chance):
        """Schedule one guest, as the thread of a request does."""
        placed = self.placed[number]
        if len(placed) > 3 or (placed and chance.random() < .3):
            self.index.drop_claim(placed.popleft())
        need = chance.choice(NEEDS)
        self.index.has_cpus_and_memory_for(need)
        found = self.index.propose_hosts(need, anywhere, ('h3',), 0)
        assert all(view.assign_nodes(need) for view in found)
        if not found:
            return
        uuid = chance.choice(found).row.uuid
        if chance.random() < .2:
            self.index.add_refusals([uuid], need, 0)
            return
        self.index.set_free_amounts(uuid, {0: 100}, 50, queried_at=0, now=0)
        consumer = f'{number}-{chance.random()}'
        self.index.add_claim(uuid, consumer, need, 0)
        placed.append(consumer)

    def report(self, chance):
        """Report some hosts, drop one and mark one as down."""
        self.updated += 1
        self.index.update_hosts([
            row(number, self.updated, CPUS - 1)
            for number in range(HOSTS) if chance.random() < .5
        ], [f'h{chance.randrange(HOSTS)}'], 0)
        self.index.set_unavailable_hosts({f'h{chance.randrange(HOSTS)}'})

    def test_index_after_concurrent_steps_equals_a_fresh_one(self):
        self.assertEqual([], threads.stress(
            [lambda chance, number=number: self.request(number, chance)
             for number in range(WORKERS)] + [self.report],
            spaces.count(1250), fine=False))
        self.check_views()
        for consumer in [one for of in self.placed for one in of]:
            self.index.drop_claim(consumer)
        rows = [row(number, 0) for number in range(HOSTS)]
        self.index.update_hosts(rows, (), 0)
        fresh = host_index.Index()
        fresh.update_hosts(rows, (), 0)
        found = {view.row.uuid: (view.row, view.amounts)
                 for view in self.index.list_views()}
        self.assertEqual({view.row.uuid: (view.row, view.amounts)
                          for view in fresh.list_views()}, found)
        self.assertEqual((HOSTS, {}), (len(self.index), self.index._placed))

    def test_index_under_native_threads_subtracts_all_claims(self):
        self.assertEqual([], threads.stress(
            [lambda chance, number=number: self.request(number, chance)
             for number in range(WORKERS)] + [self.report], 20))
        self.check_views()

    def check_views(self):
        """Check that each view is the report without the claims left."""
        for host in self.index._hosts.values():
            rooms = [room_of(host, node) for node in host.view.row.nodes]
            groups = host._groups
            for claim in host._claims.values():
                groups -= claim.need.groups
                for node, need in zip(claim.nodes, claim.need.nodes,
                                      strict=True):
                    rooms[node] -= collections.Counter(
                        cpus=need.pinned, share=need.bandwidth)
            self.assertEqual(
                ([(room['cpus'], room['share']) for room in rooms], groups),
                ([(node.free[0], host.view.bandwidth[node.number])
                  for node in host.view.amounts.nodes], host.view.groups))


def room_of(host, node):
    """Return what a node has without the claims of this scheduler."""
    return collections.Counter(cpus=node.pinned,
                               share=host._bandwidth[node.number])


class RefusalStressTest(base.TestCase):

    def test_refusals_under_native_threads_stay_bounded(self):
        self.patch(refusal_cache, '_MAX_REFUSALS', 4)
        cache = refusal_cache.RefusalCache(lambda _need: False)
        specs = [objects.RequestSpec(
            instance_uuid=uuids.instance, flavor=objects.Flavor(
                name=str(number), memory_mb=1, extra_specs={}))
            for number in range(12)]

        def step(chance):
            spec = chance.choice(specs)
            cache.add_refusal(spec, spec.flavor.name, (), is_proven=True)
            assert cache.find_refusal_reason(
                spec, NEEDS[0], lambda _query: False) in (
                    None, spec.flavor.name)
            if chance.random() < .05:
                cache.clear()
        self.assertEqual([], threads.stress([step] * 4, 40))
        self.assertLessEqual(len(cache._refusals), 4)


class FeedStressTest(base.TestCase):

    TIME = datetime.datetime(2026, 11, 1)

    def setUp(self):
        super().setUp()
        self.patch(index_feed, 'REFRESH', 0.0)
        self.hosts = {f'h{number}': 0 for number in range(HOSTS)}
        for name, value in (
                ('call_in_cells', lambda _context, cells, look: [
                    look(cell) for cell in cells]),
                ('connect_to_database', contextlib.nullcontext),
                ('get_database_time', lambda _context: self.TIME
                 + datetime.timedelta(days=1)),
                ('list_compute_nodes', self.changed),
                ('count_updates_by_second', self.counts),
                ('read_compute_node_reports', self.reports)):
            self.useFixture(fixtures.MonkeyPatch(
                f'ghsched_nova.features.index.nova_seams.{name}', value))
        self.feed = index_feed.Feed(host_index.Index())

    def at(self, updated):
        return self.TIME + datetime.timedelta(seconds=updated)

    def counts(self, _context, since):
        found = {}
        for number, updated in enumerate(list(self.hosts.values())):
            if self.at(updated) >= since:
                count, ids = found.get(self.at(updated), (0, 0))
                found[self.at(updated)] = count + 1, ids + number
        return found

    def changed(self, _context, since=None, omitted=(), _keys=()):
        found = {}
        for uuid, number in list(self.hosts.items()):
            updated = self.at(number)
            if since is None or (updated >= since and updated not in omitted):
                found.setdefault(updated, {})[uuid] = (
                    None if since is None else str(number))
        return [nova_seams.ComputeNodes(updated, 0, digests)
                for updated, digests in found.items()]

    def reports(self, _context, uuids_of_hosts, _keys):
        return [{'uuid': uuid, 'host': uuid, 'digest': str(self.hosts[uuid]),
                 'updated_at': self.at(self.hosts[uuid]), 'stats':
                 f'{{"num_instances": "{self.hosts[uuid]}"}}',
                 'numa_topology': None, 'pci_stats': None, 'vcpus': 4,
                 'vcpus_used': 0, 'memory_mb': 4096, 'memory_mb_used': 0,
                 'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0}
                for uuid in uuids_of_hosts]

    def refresh(self, _chance=None):
        self.feed.refresh(None, [types.SimpleNamespace(cell_uuid='c')],
                          lambda _cell: set())

    def report(self, chance):
        self.hosts[f'h{chance.randrange(HOSTS)}'] += 1

    def test_feed_under_native_threads_equals_the_database(self):
        self.assertEqual([], threads.stress(
            [self.refresh] * 4 + [self.report], STEPS))
        self.feed._full_at = float('-inf')
        self.refresh()
        self.assertEqual(self.hosts, {
            view.row.uuid: view.row.guests
            for view in self.feed.index.list_views()})


class Scheduler(declared_scheduler.GhschedSchedulerManager):
    """The manager without Nova's part."""

    def __init__(self, by_index):
        self._indexed = by_index


class RequestStressTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.index.nova_seams.'
            'cache_host_topologies', lambda _n: None))
        self.indexed = indexed.IndexedScheduler(None)
        self.indexed.index.update_hosts(
            [row(number, 0) for number in range(4)], (), 0)
        self.patch(self.indexed, 'compute_need', lambda *_args: NEEDS[0])

    def test_requests_under_native_threads_are_all_counted(self):
        self.assertEqual([], threads.stress(
            [lambda _chance: self.indexed._count_request_result('hits')] * 8,
            STEPS))
        self.assertEqual(8 * STEPS * threads.SCALE,
                         self.indexed._counts['hits'])

    def test_requests_under_native_threads_never_fail_after_the_claim(self):
        claimed, lock = set(), threading.Lock()

        def select(spec, _servers, need, _run, _has_other, _wanted):
            """Claim in Placement, as IndexedScheduler.select_hosts does."""
            found = self.indexed.index.propose_hosts(need, anywhere, (), 0)
            if not found:
                raise exception.NoValidHost(reason='')
            with lock:
                claimed.add(spec.instance_uuid)
            return [[types.SimpleNamespace(
                compute_node_uuid=found[0].row.uuid, limits=None)]]
        self.patch(self.indexed, 'select_hosts', select)
        scheduler = Scheduler(self.indexed)

        def step(chance):
            uuid = str(chance.random())
            try:
                scheduler.select_destinations(
                    None, spec_obj=types.SimpleNamespace(
                        instance_uuid=uuid, flavor={}),
                    instance_uuids=[uuid], return_objects=True)
            except Exception:
                assert uuid not in claimed
            if chance.random() < .95:
                self.indexed.index.drop_claim(uuid)
        self.assertEqual([], threads.stress([step] * 8, STEPS // 2))
        self.assertEqual(8 * (STEPS // 2) * threads.SCALE, len(claimed))


class OthersStressTest(base.TestCase):

    def test_mix_under_native_threads_counts_the_last_requests(self):
        mix = gradient.Mix()
        kinds = [gradient.GuestKind(((number, 0, 0, 0, 0),))
                 for number in range(9)]

        def step(chance):
            mix.add_request(chance.choice(kinds))
            assert round(sum(mix.get_kind_shares().values()), 6) == 1
        self.assertEqual([], threads.stress([step] * 6, STEPS))
        self.assertEqual(collections.Counter(mix._last), mix._count)

    def test_metrics_under_native_threads_are_written_whole(self):
        directory = self.useFixture(fixtures.TempDir()).path
        writer = index_metrics.Writer(directory)
        self.patch(index_metrics, 'EVERY', 0.0)
        self.assertEqual([], threads.stress(
            [lambda chance: writer.write_metrics(index_metrics.Figures(
                {'hits': chance.randrange(9)}))] * 6, 20))

    def test_warnings_under_native_threads_name_each_host_once(self):
        log = self.useFixture(fixtures.FakeLogger())
        warnings = unread_reports.Warnings(lambda: 0.0)
        self.assertEqual([], threads.stress(
            [lambda chance: warnings.warn_once(
                f'h{chance.randrange(9)}', ValueError('no number'))] * 6,
            STEPS))
        self.assertEqual(
            [f'host h{number}:' for number in range(9)],
            sorted(re.findall('host h[0-9]:', log.output)))

    def test_devices_under_native_threads_keep_the_most_that_were_free(self):
        self.patch(fragments, 'MOST_DEVICES', fragments.MaxFreeDevices())
        state = types.SimpleNamespace(uuid='u', stats=None)

        def step(chance):
            free = chance.randrange(1000)
            room = fragments.get_free_capacity(state, [
                numa_nodes.HostNode(0, devices={'pool': free})])
            assert room.total[0][-1] >= free == room.free[0][-1]

        self.assertEqual([], threads.stress([step] * 6, STEPS))


class DevicesStressTest(base.TestCase):

    def test_most_devices_under_native_threads_never_shrink(self):
        most = fragments.MaxFreeDevices()
        noted, lock = {}, threading.Lock()

        def step(chance):
            host, count = f'h{chance.randrange(2)}', chance.randrange(10 ** 6)
            floor = noted.get(host, 0)
            assert most.record_free_devices(host, 0,
                                            count) >= max(floor, count)
            with lock:
                noted[host] = max(noted.get(host, 0), count)
        self.assertEqual([], threads.stress([step] * WORKERS, 200))
        self.assertEqual(noted, {
            host: most.record_free_devices(host, 0, 0) for host in noted})

    def test_most_devices_under_native_threads_stay_bounded(self):
        self.patch(fragments, '_MAX_NODES', 5)
        most = fragments.MaxFreeDevices()
        self.assertEqual([],
                         threads.stress([
                             lambda chance: most.record_free_devices(
                                 'h', chance.randrange(20), 1)
                         ] * WORKERS, 60))
        self.assertEqual(5, len(most._most))
