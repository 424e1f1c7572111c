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

"""The number of guest NUMA nodes that the scheduler chooses, and its judge.

The judge adds and compares whole numbers. The scheduler uses its own filter,
Nova's fit and the claim of nova-compute.
"""

import itertools
import random
import types

import fixtures
from nova import exception
from nova import objects
from nova.virt import hardware
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.features.numa_auto import numa_choice
from ghsched_nova.nova_seams import numa
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler.select_call import NoHostFits
from ghsched_nova.tests.fixtures import states
from ghsched_nova.virt import instance_claims
from ghsched_placement.tests import base

IMAGE = objects.ImageMeta(properties=objects.ImageMetaProps())

#: CPUs of each kind and MiB of a host node.
CPUS, MEMORY = 4, 1024


def flavor(vcpus, memory, pinned, most):
    return objects.Flavor(
        name='auto', vcpus=vcpus, memory_mb=memory, root_gb=1,
        ephemeral_gb=0, swap=0, extra_specs={
            'ghsched:numa': 'auto', 'ghsched:numa_max': str(most),
            **({'hw:cpu_policy': 'dedicated'} if pinned else {})})


class Cloud:
    """Hosts as nova-scheduler sees them, with the claims of nova-compute."""

    def __init__(self, nodes_of_hosts):
        self.hosts = [states.host(
            [states.cell(node, cpus=2 * CPUS, shared=CPUS, dedicated=CPUS,
                         pages=[objects.NUMAPagesTopology(
                             size_kb=4, total=MEMORY * 256, used=0,
                             reserved=0)])
             for node in range(nodes)], name=f'host_{number}')
            for number, nodes in enumerate(nodes_of_hosts)]

    def place_guest(self, wanted):
        """Return the host and the claimed topology, None if refused."""
        spec = states.spec(0)
        spec.flavor, spec.image = wanted, IMAGE
        spec.instance_uuid, spec.scheduler_hints = uuids.server, {}
        spec.requested_resources = []
        try:
            state = numa_choice.schedule_with_fitting_numa_count(
                None, spec, self._first)
        except exception.NoValidHost:
            return None
        instance = types.SimpleNamespace(
            pci_requests=None, numa_topology=None, launched_at=None)
        with instance_claims.claiming_move(instance, wanted, IMAGE, False):
            claimed = hardware.numa_fit_instance_to_host(
                state.numa_topology, None, None,
                limits=state.limits['numa_topology'], pci_requests=[],
                pci_stats=None)
        number = next(number for number, host in enumerate(self.hosts)
                      if host.host == state.host)
        self._count(number, claimed, False)
        return number, claimed

    def remove(self, number, claimed):
        self._count(number, claimed, True)

    def _count(self, number, claimed, free):
        host = self.hosts[number]
        host.numa_topology = hardware.numa_usage_from_instance_numa(
            host.numa_topology, claimed, free)

    def _first(self, spec, _has_other):
        for host in self.hosts:
            host.limits = {}
            host.allocation_candidates = [{'allocations': {}, 'mappings': {}}]
        found = next(iter(filters.GhschedNUMATopologyFilter().filter_all(
            self.hosts, spec)), None)
        if found is None:
            raise exception.NoValidHost(reason='no room')
        return found


class Judge:
    """Free CPUs of each kind and free MiB of each node, by host."""

    def __init__(self, nodes_of_hosts):
        self.free = [[[CPUS, CPUS, MEMORY] for _ in range(nodes)]
                     for nodes in nodes_of_hosts]

    def fewest(self, vcpus, memory, pinned, most):
        """Return the fewest nodes of one host that take a guest, 0 if none."""
        for count in range(1, most + 1):
            if vcpus % count or memory % count or count > vcpus:
                continue
            for host in self.free:
                for nodes in itertools.combinations(host, count):
                    if all(node[pinned] * count >= vcpus
                           and node[2] * count >= memory for node in nodes):
                        return count
        return 0

    def take(self, number, nodes, vcpus, memory, pinned, sign=1):
        for node in nodes:
            left = self.free[number][node]
            left[pinned] -= sign * vcpus // len(nodes)
            left[2] -= sign * memory // len(nodes)
            assert 0 <= left[pinned] <= CPUS and 0 <= left[2] <= MEMORY


class ChoiceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.record = (0, False)
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.numa_auto.nova_seams.'
            'get_current_numa_count',
            lambda _context, _uuid: self.record))

    def test_request_gets_the_fewest_nodes_that_any_host_has(self):
        chance = random.Random(27)  # noqa: S311
        results = {}
        for _cloud in range(10):
            shape = [chance.choice((1, 2, 2, 4))
                     for _ in range(chance.randint(1, 3))]
            for count in self.churn(chance, shape, requests=40):
                results[count] = results.get(count, 0) + 1
        # All answers occur often enough to say something.
        self.assertEqual({0, 1, 2, 4}, results.keys() - {3})
        self.assertGreater(min(results[0], results[1], results[2]), 20)

    def churn(self, chance, shape, requests):
        cloud, judge, guests = Cloud(shape), Judge(shape), []
        for _ in range(requests):
            if guests and chance.random() < .45:
                where, size = guests.pop(chance.randrange(len(guests)))
                cloud.remove(*where)
                judge.take(where[0], numa.list_host_nodes(where[1]), *size,
                           sign=-1)
            size = (chance.randint(1, 12),
                    chance.choice((64, 250, 512, 768, 1600, 2400)),
                    chance.random() < .5)
            most = chance.randint(1, 4)
            expected = judge.fewest(*size, most)
            placed = cloud.place_guest(flavor(*size, most))
            got = len(placed[1]) if placed else 0
            self.assertEqual(expected, got, (shape, judge.free, size, most))
            if placed:
                judge.take(placed[0], numa.list_host_nodes(placed[1]), *size)
                guests.append((placed, size))
            yield got

    def test_server_that_runs_is_scheduled_with_its_number_alone(self):
        self.record = (2, True)
        _number, claimed = Cloud([2]).place_guest(flavor(2, 64, True, 2))
        self.assertEqual(2, len(claimed))

    def test_claim_without_limits_takes_the_fewest_nodes(self):
        host, = Cloud([2]).hosts
        instance = types.SimpleNamespace(
            pci_requests=None, numa_topology=None, launched_at=None)
        for vcpus, nodes in ((4, 1), (6, 2)):
            with instance_claims.claiming_move(
                    instance, flavor(vcpus, 64, False, 2), IMAGE, False):
                claimed = hardware.numa_fit_instance_to_host(
                    host.numa_topology, None, None)
            self.assertEqual(nodes, len(claimed))

    def test_claim_for_which_no_number_fits_is_refused(self):
        host, = Cloud([2]).hosts
        instance = types.SimpleNamespace(
            pci_requests=None, numa_topology=None, launched_at=None)
        with instance_claims.claiming_move(
                instance, flavor(5, 64, False, 2), IMAGE, False):
            self.assertRaises(
                exception.ComputeResourcesUnavailable,
                hardware.numa_fit_instance_to_host, host.numa_topology, None,
                None)
        self.assertIsNone(hardware.numa_fit_instance_to_host(
            host.numa_topology, None, None))

    def test_refusal_has_the_reasons_of_all_numbers(self):
        def run(spec, _has_other):
            raise exception.NoValidHost(
                reason=f'reason {len(spec.numa_topology)}.')
        spec = states.spec(0)
        spec.flavor, spec.image = flavor(2, 64, True, 2), IMAGE
        spec.instance_uuid, spec.scheduler_hints = uuids.server, {}
        error = self.assertRaises(exception.NoValidHost,
                                  numa_choice.schedule_with_fitting_numa_count,
                                  None, spec, run)
        self.assertEqual('with 1 NUMA node: reason 1; with 2 NUMA nodes: '
                         'reason 2', error.kwargs['reason'])

    def schedule_with(self, excluded, fitting):
        """Schedule a request with an index that excludes some numbers.

        :param fitting: numbers for which a complete search finds a host.
        :returns: number that was chosen, and the searches: number, and
            whether it may be passed over.
        """
        searches = []

        def run(spec, has_other):
            count = len(spec.numa_topology)
            searches.append((count, has_other))
            if has_other and count in excluded:
                raise NoHostFits
            if count not in fitting:
                raise exception.NoValidHost(reason='full')
            return count
        spec = states.spec(0)
        spec.flavor, spec.image = flavor(2, 64, True, 2), IMAGE
        spec.instance_uuid, spec.scheduler_hints = uuids.server, {}
        return numa_choice.schedule_with_fitting_numa_count(
            None, spec, run), searches

    def test_number_that_the_index_excludes_is_passed_over(self):
        self.assertEqual((2, [(1, True), (2, True)]),
                         self.schedule_with({1}, {1, 2}))

    def test_number_that_was_passed_over_is_tried_before_a_refusal(self):
        self.assertEqual((1, [(1, True), (2, True), (1, False)]),
                         self.schedule_with({1, 2}, {1}))
        self.assertRaises(exception.NoValidHost, self.schedule_with, {1, 2},
                          set())

    def test_image_that_sets_nodes_is_refused(self):
        spec = states.spec(0)
        spec.flavor = flavor(2, 64, True, 2)
        spec.image = objects.ImageMeta(properties=objects.ImageMetaProps(
            hw_numa_nodes=2))
        spec.instance_uuid, spec.scheduler_hints = uuids.server, {}
        error = self.assertRaises(exception.NoValidHost,
                                  numa_choice.schedule_with_fitting_numa_count,
                                  None, spec, self.fail)
        self.assertIn('hw_numa_nodes', error.kwargs['reason'])


class VfsTest(base.TestCase):
    """VFs that nova-api requested before the number was chosen."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MockPatch(
            'ghsched_nova.features.numa_auto.nova_seams.'
            'get_current_numa_count',
            return_value=(0, False)))
        self.spec = states.spec(0)
        self.spec.flavor, self.spec.image = flavor(2, 64, True, 2), IMAGE
        self.spec.instance_uuid = uuids.server
        self.spec.scheduler_hints = {}
        self.spec.pci_requests = objects.InstancePCIRequests(requests=[
            objects.InstancePCIRequest(
                count=count, request_id=getattr(uuids, f'part{first}'),
                alias_name='nic', spec=[{}],
                requester_id=f'ghsched-vfs-{first}-of-3')
            for first, count in ((0, 2), (2, 1))])
        self.spec.requested_resources = [
            objects.RequestGroup(requester_id=suffix) for suffix in (
                f'{uuids.part0}-0', f'{uuids.part0}-1', f'{uuids.part2}-0',
                uuids.port)]

    def schedule(self, mappings, fitting):
        """Return mappings of the answer, and the requests that were tried."""
        tried = []

        def run(spec, _has_other):
            tried.append(([(one.count, one.requester_id) for one
                           in spec.pci_requests.requests],
                          [group.requester_id for group
                           in spec.requested_resources]))
            if len(spec.numa_topology) != fitting:
                raise exception.NoValidHost(reason='full')
            return [[objects.Selection(allocation_request=jsonutils.dumps(
                {'allocations': {}, 'mappings': mappings})),
                objects.Selection(allocation_request='null')]]
        ((chosen, alternate),) = numa_choice.schedule_with_fitting_numa_count(
            None, self.spec, run)
        self.assertEqual('null', alternate.allocation_request)
        return jsonutils.loads(chosen.allocation_request)['mappings'], tried

    def test_request_and_answer_with_one_node(self):
        found, tried = self.schedule(
            {'': ['root'], f'{uuids.part0}-0': ['a'],
             f'{uuids.part0}-1': ['a'], f'{uuids.part0}-2': ['b']}, 1)
        self.assertEqual(
            {'': ['root'], f'{uuids.part0}-0': ['a'],
             f'{uuids.part0}-1': ['a'], f'{uuids.part2}-0': ['b']}, found)
        self.assertEqual([([(3, 'ghsched-vfs-node0')], [
            f'{uuids.part0}-0', f'{uuids.part0}-1', uuids.port])], tried)

    def test_request_and_answer_with_two_nodes(self):
        given = {f'{uuids.part0}-0': ['a'], f'{uuids.part0}-1': ['a'],
                 f'{uuids.part2}-0': ['b']}
        found, tried = self.schedule(given, 2)
        self.assertEqual(given, found)
        self.assertEqual(([(2, 'ghsched-vfs-node0'),
                           (1, 'ghsched-vfs-node1')], [
            f'{uuids.part0}-0', f'{uuids.part0}-1', f'{uuids.part2}-0',
            uuids.port]), tried[-1])
        self.assertEqual('ghsched-vfs-0-of-3',
                         self.spec.pci_requests.requests[0].requester_id)
