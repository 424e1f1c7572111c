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

"""Guests booted until a host refuses, and the most that fit on it.

The filter chooses the host NUMA nodes, Nova's own fit claims them. The judge
tries all divisions of guests among the nodes, in whole numbers.
"""

import itertools
import random
from unittest import mock

from nova import objects
from nova.virt import hardware
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler import needed_nodes
from ghsched_nova.scheduler import request_filter
from ghsched_nova.tests.fixtures import states
from ghsched_placement.flavor import keys
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: Random hosts in the whole.
HOSTS = 400

ROOT = uuids.root


class Cloud:
    """A host on which guests of one flavor are booted.

    :param nodes: vCPUs for which each host node has shared CPUs.
    :param bandwidth: free percent of the bandwidth of each host node.
    :param with_nic: whether host node 0 has free devices.
    :param need: percent of bandwidth of each guest node; 0 for a flavor
        without keys of ghsched.
    """

    def __init__(self, nodes, bandwidth, with_nic, guest_nodes, need):
        self.free = dict(enumerate(bandwidth))
        self.need, self.guest_nodes = need, guest_nodes
        self.cells = [states.cell(
            number, cpus=cpus, memory_usage=0, physnets={
                names.make_node_physnet(number)}, pages=[
                objects.NUMAPagesTopology(size_kb=4, total=1024 * 256, used=0,
                                          reserved=0)])
            for number, cpus in enumerate(nodes)]
        self.pools = [states.pool(0)] if with_nic else []

    def make_state(self):
        state = states.host(self.cells, self.pools)
        state.uuid, state.stats = ROOT, {}
        state.allocation_candidates = list(self.yield_candidates())
        return state

    def yield_candidates(self):
        if not self.need:
            yield {'allocations': {ROOT: {'resources': {}}}, 'mappings': {}}
            return
        for order in itertools.permutations(self.free, self.guest_nodes):
            if all(self.free[node] >= self.need for node in order):
                uuid = [names.make_numa_provider_uuid(ROOT, node)
                        for node in order]
                allocations = {one: {'resources': {
                    names.MEM_BW_PCT: self.need}} for one in uuid}
                mappings = {names.make_bandwidth_suffix(number): [one]
                            for number, one in enumerate(uuid)}
                yield {'allocations': {ROOT: {'resources': {}}, **allocations},
                       'mappings': {'': [ROOT], **mappings}}

    def make_request(self):
        spec = states.spec(self.guest_nodes, cpus=1, memory=16, pinned=False)
        spec.flavor.extra_specs = {'hw:numa_nodes': str(self.guest_nodes)}
        if self.need:
            spec.flavor.extra_specs['ghsched:mem_bw_min'] = str(self.need)
        spec.image = objects.ImageMeta(properties=objects.ImageMetaProps())
        spec.instance_uuid, spec.scheduler_hints = uuids.server, {}
        spec.requested_resources = []
        request_filter.set_provider_summaries(spec, {
            names.make_numa_provider_uuid(ROOT, node): {'resources': {
                names.MEM_BW_PCT: {'capacity': free + 7, 'used': 7}}}
            for node, free in self.free.items()})
        return spec

    def boot(self):
        """Boot one guest; return whether it fits."""
        spec = self.make_request()
        passed = list(filters.GhschedNUMATopologyFilter().filter_all(
            [self.make_state()], spec))
        if not passed or not list(self.yield_candidates()):
            return False
        limits = passed[0].limits['numa_topology']
        fitted = scheduler.fit_guest_topology(
            passed[0], self.make_request(), limits, {}, [])
        if fitted is None:
            raise AssertionError(f'the claim refuses {limits}')
        host = hardware.numa_usage_from_instance_numa(
            objects.NUMATopology(cells=self.cells), fitted)
        self.cells = host.cells
        for cell in fitted.cells if self.need else ():
            self.free[cell.id] -= self.need
        return True

    def count_boots(self):
        boots = 0
        while self.boot():
            boots += 1
        return boots

    def count_most(self):
        """Return the most guests that fit, of all divisions."""
        rooms = [len(cell.cpuset) if not self.need else min(
            len(cell.cpuset), self.free[cell.id] // self.need)
            for cell in self.cells]
        known = {}

        def most(rooms):
            key = tuple(sorted(rooms))
            if key not in known:
                known[key] = max(
                    (1 + most([room - (place in places)
                               for place, room in enumerate(rooms)])
                     for places in itertools.combinations(
                         range(len(rooms)), self.guest_nodes)
                     if all(rooms[place] for place in places)), default=0)
            return known[key]
        return most(rooms)


class VfCloud(Cloud):
    """A host on which guests of two NUMA nodes with a VF each are booted.

    :param vfs: free VFs of the PF of each host node.
    """

    REQUESTS = uuids.vf0, uuids.vf1

    def __init__(self, vfs):
        super().__init__([64] * len(vfs), [100] * len(vfs), False, 2, 0)
        self.pfs = [getattr(uuids, f'pf{node}') for node in range(len(vfs))]
        self.vfs = list(vfs)

    def make_state(self):
        self.pools = [states.pool(
            node, count=count, address=f'0000:8{node}:00.0',
            rp_uuid=self.pfs[node], resource_class='X')
            for node, count in enumerate(self.vfs) if count]
        return super().make_state()

    def yield_candidates(self):
        nodes = [node for node, count in enumerate(self.vfs) if count]
        for order in itertools.permutations(nodes, 2):
            mappings = {'': [ROOT]}
            for number, node in enumerate(order):
                mappings[f'{self.REQUESTS[number]}-0'] = [self.pfs[node]]
                mappings[names.make_node_suffix(number)] = [
                    names.make_numa_provider_uuid(ROOT, node)]
            yield {'allocations': {ROOT: {'resources': {}}, **{
                self.pfs[node]: {'resources': {'X': 1}} for node in order}},
                'mappings': mappings}

    def make_request(self):
        spec = super().make_request()
        spec.flavor.extra_specs.update({
            'ghsched:vfs': 'vf:2', 'ghsched:vfs_locality': 'node'})
        spec.pci_requests = objects.InstancePCIRequests(requests=[
            objects.InstancePCIRequest(
                count=1, request_id=request, alias_name='vf',
                requester_id=f'ghsched-vfs-node{number}', spec=[{
                    'vendor_id': '8086', 'product_id': '1515',
                    'dev_type': 'type-VF', 'resource_class': 'X'}])
            for number, request in enumerate(self.REQUESTS)])
        return spec

    def boot(self):
        if sum(map(bool, self.vfs)) < 2:
            return False
        passed, = filters.GhschedNUMATopologyFilter().filter_all(
            [self.make_state()], self.make_request())
        for node in numa.parse_chosen_host_nodes(
                passed.limits['numa_topology']):
            self.vfs[node] -= 1
        return True


class CacheCloud(Cloud):
    """A host on which guests of two NUMA nodes with dedicated CPUs are booted.

    :param caches: numbers of CPUs of the L3 caches of each host node.
    """

    def __init__(self, caches, pinned):
        super().__init__([8] * len(caches), [100] * len(caches), False, 2, 0)
        self.pinned = pinned
        for cell, sizes in zip(self.cells, caches, strict=True):
            first = min(cell.pcpuset)
            for size in sizes:
                cell.network_metadata.physnets.add(names.make_cache_physnet(
                    frozenset(range(first, first + size))))
                first += size

    def make_request(self):
        spec = super().make_request()
        spec.numa_topology = states.spec(2, cpus=self.pinned,
                                         memory=16).numa_topology
        spec.flavor.extra_specs.update({
            'hw:cpu_policy': 'dedicated', 'ghsched:cpu_cache': 'require'})
        return spec

    def boot(self):
        with numa.choosing_cpus(self.make_request().flavor):
            return super().boot()


class BootTest(base.TestCase):

    @base.needs_features('cpu_cache')
    def test_guest_nodes_that_need_one_cache_are_counted_by_cache(self):
        """Caches of 4 and 4 CPUs have room for two, of 6 and 2 for one."""
        numa.patch_numa_fit()
        for caches in itertools.product(((4, 4), (6, 2)), repeat=3):
            rooms = [2 if one == (4, 4) else 1 for one in caches]
            self.assertEqual(
                min(sum(rooms) // 2, sum(rooms) - max(rooms)),
                CacheCloud(caches, 4).count_boots(), caches)

    def test_guests_with_a_vf_for_each_node_use_all_vfs(self):
        self.assertEqual(9, VfCloud([6, 6, 6]).count_boots())
        self.assertEqual(8, VfCloud([4, 4, 8]).count_boots())

    def assert_all_boot(self, *args):
        self.assertEqual(Cloud(*args).count_most(), Cloud(*args).count_boots(),
                         args)

    def test_preference_that_cannot_be_found_refuses_no_host(self):
        cloud = Cloud((4, 4, 4), (60, 60, 60), False, 2, 15)
        with mock.patch.object(needed_nodes, '_find_needed_nodes',
                               side_effect=ValueError('a forged figure')):
            self.assertTrue(cloud.boot())

    def test_vfs_of_a_node_without_cpus_are_those_of_the_nearest(self):
        for wanted, is_shown, counts in (
                (keys.PREFERRED, False, [5]), (keys.REQUIRED, False, [2]),
                (keys.REQUIRED, True, [5]), (keys.NONE, True, [2])):
            cloud = VfCloud((2, 2, 0))
            state, spec = cloud.make_state(), cloud.make_request()
            state.pci_stats.pools[1]['numa_node'] = 9
            spec.flavor.extra_specs['ghsched:device_numa'] = wanted
            state.pci_stats.pools.append(
                {**state.pci_stats.pools[0], 'numa_node': 9, 'count': 3})
            state.pci_stats.pools.pop(1)
            self.assertEqual(counts, needed_nodes._count_by_devices(
                state, spec, request_filter.parse_policy(spec), 0, {9: 0},
                is_shown))

    def test_nova_is_asked_once_about_a_host_where_our_fit_finds_room(self):
        for guest_nodes in (1, 2, 3):
            cloud = Cloud([4] * 4, [90] * 4, False, guest_nodes, 15)
            with mock.patch.object(
                    hardware, 'numa_fit_instance_to_host',
                    side_effect=hardware.numa_fit_instance_to_host) as asked:
                self.assertTrue(list(
                    filters.GhschedNUMATopologyFilter().filter_all(
                        [cloud.make_state()], cloud.make_request())))
            self.assertEqual(1, asked.call_count)

    def test_nova_is_not_asked_about_a_host_where_no_node_has_room(self):
        cloud = Cloud([0] * 4, [90] * 4, False, 2, 15)
        with mock.patch.object(hardware, 'numa_fit_instance_to_host') as asked:
            self.assertFalse(cloud.boot())
        self.assertEqual(0, asked.call_count)

    def test_a_node_that_nova_refuses_leaves_all_ways_without_it(self):
        """Half of the 1,680 ways with four of eight host nodes have it."""
        cloud = Cloud([4] * 8, [90] * 8, False, 4, 15)
        fit, tried = scheduler.fit_guest_topology, []

        def refuse_node_0(view, spec, limits, *args):
            tried.append(numa.parse_chosen_host_nodes(limits))
            return 0 not in tried[-1] and fit(view, spec, limits,
                                              *args) or None
        with mock.patch.object(scheduler, 'fit_guest_topology',
                               refuse_node_0), mock.patch.object(
                scheduler, 'has_node_capacity',
                lambda _view, _spec, _guest_node, node: node != 0):
            passed, = filters.GhschedNUMATopologyFilter().filter_all(
                [cloud.make_state()], cloud.make_request())
        self.assertEqual([(0, 1, 2, 3), (1, 2, 3, 4)], tried)
        self.assertEqual((1, 2, 3, 4), numa.parse_chosen_host_nodes(
            passed.limits['numa_topology']))

    def test_three_equal_nodes_take_nine_guests_of_two(self):
        cloud = Cloud([64] * 3, [90] * 3, False, 2, 15)
        self.assertEqual(9, cloud.count_boots())

    def test_a_node_with_devices_gets_a_partner_for_guests_without_keys(self):
        cloud = Cloud([8, 8, 8, 8], [100] * 4, True, 2, 0)
        self.assertEqual(16, cloud.count_boots())

    def test_boots_until_refusal_are_the_most_that_fit(self):
        for number in spaces.choose(range(HOSTS)):
            chance = random.Random(number)  # noqa: S311
            nodes = chance.choice((3, 3, 4, 5))
            need = chance.choice((0, 0, 10, 15, 30))
            self.assert_all_boot(
                [chance.randint(0, 5) for _node in range(nodes)],
                [chance.choice((100, 60, 30)) for _node in range(nodes)],
                chance.random() < .5, chance.randint(2, nodes - 1), need)
