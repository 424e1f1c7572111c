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


import fixtures
from nova import objects
from nova.scheduler import weights

from ghsched_nova.features.packing import weighers
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import host_nodes as read
from ghsched_nova.tests.fixtures import states
from ghsched_placement.fit.numa_nodes import NodeAmount
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base

cell, host, pool, spec = (states.cell, states.host, states.pool, states.spec)


class WeigherTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=10, format='%(levelname)s %(message)s'))
        self.weigher = weighers.GhschedFragmentationWeigher()

    def option(self, name, value, group='ghsched'):
        conf = shared.config()
        conf.set_override(name, value, group=group)
        self.addCleanup(conf.clear_override, name, group=group)

    def weigh(self, state, request):
        return self.weigher._weigh_object(state, request)

    def assert_better(self, one, other, request):
        self.assertGreater(self.weigh(one, request),
                           self.weigh(other, request))
        self.assertNotIn('WARNING', self.log.output)


class PinnedGuestTest(WeigherTestCase):

    def test_a_partly_used_host_is_better_than_a_fresh_one(self):
        self.assert_better(host([cell(0, pinned=2), cell(1)]),
                           host([cell(0), cell(1)]), spec())

    def test_when_the_claim_packs_it_is_the_used_node_that_counts(self):
        state = host([cell(0, pinned=2), cell(1)])
        before = self.weigh(state, spec())
        self.option('packing_host_numa_cells_allocation_strategy', True,
                    group='compute')
        self.assertGreater(self.weigh(state, spec()), before)

    def test_the_limits_of_our_filter_name_the_node(self):
        state = host([cell(number, pinned=2 * number,
                           physnets=[f'ghsched-numa{number}'])
                      for number in range(2)])
        self.assertIn('NUMA nodes 0: ', self.last_log(state, 'ghsched-numa0'))
        self.assertIn('NUMA nodes 1: ', self.last_log(state, 'ghsched-numa1'))

    def last_log(self, state, physnet):
        state.limits = {'numa_topology': objects.NUMATopologyLimits(
            network_metadata=objects.NetworkMetadata(
                physnets={physnet}, tunneled=False))}
        self.weigh(state, spec())
        return self.log.output.splitlines()[-1]

    def test_vfs_that_placement_names_draw_the_guest_to_their_node(self):
        state = host([cell(0), cell(1)],
                     [pool(0, rp_uuid='rp0'), pool(1, rp_uuid='rp1')],
                     allocation_candidates=[{'mappings': {'vf-0': ['rp1']}}])
        self.weigh(state, spec(vfs=1))
        self.assertIn('NUMA nodes 1: ', self.log.output)

    def test_a_host_with_vfs_is_the_last_for_a_guest_without(self):
        cells = [cell(0), cell(1)]
        self.assert_better(host(cells), host(cells, [pool(0)]), spec())

    def test_vfs_without_a_node_count_everywhere(self):
        cells = [cell(0), cell(1)]
        self.assert_better(host(cells), host(cells, [pool(None)]), spec())


class FloatingGuestTest(WeigherTestCase):
    """Guests without a NUMA topology."""

    def test_they_go_to_a_host_that_has_no_whole_node(self):
        self.assert_better(
            host([cell(0, floating=2), cell(1, floating=2)]),
            host([cell(0), cell(1)]), spec(size=0))

    def test_floating_guests_leave_no_node_whole(self):
        self.assert_better(host([cell(0), cell(1)], vcpus_used=2),
                           host([cell(0), cell(1)]), spec(size=0))

    def test_next_to_dedicated_cpus_they_break_none(self):
        def mixed(floating):
            return host([cell(number, cpus=8, shared=4, dedicated=4,
                              floating=floating) for number in range(2)])
        scores = [self.weigh(mixed(floating), spec(size=0))
                  for floating in (0, 1)]
        self.assertGreater(min(scores), 0.5)

    def test_a_host_that_reports_no_nodes_has_none_to_lose(self):
        plain = host(vcpus_total=8, total_usable_ram_mb=2048,
                     free_ram_mb=2048)
        self.assert_better(plain, host([cell(0), cell(1)]), spec(size=0))

    def test_the_host_without_vfs_comes_first(self):
        cells = [cell(0, floating=1), cell(1, floating=1)]
        self.assert_better(host(cells), host(cells, [pool(1)]),
                           spec(size=0))


class OddStateTest(WeigherTestCase):

    def assert_quiet(self, state, request):
        self.assertGreaterEqual(1, self.weigh(state, request))
        self.assertNotIn('WARNING', self.log.output)

    def test_no_topology_no_devices_no_limits(self):
        state = host()
        state.pci_stats = state.limits = None
        state.allocation_candidates = None
        for request in (spec(), spec(size=0), spec(vfs=1), spec(size=2)):
            self.assert_quiet(state, request)
        self.assertEqual(0.0, self.weigh(state, spec()))

    def test_missing_reports_of_a_new_host(self):
        state = host([cell(0)], cpu_allocation_ratio=None,
                     ram_allocation_ratio=None, vcpus_used=None,
                     total_usable_ram_mb=None, free_ram_mb=None)
        self.assert_quiet(state, spec())
        self.assert_quiet(state, spec(size=0))

    def test_an_overcommitted_host(self):
        state = host([cell(0, floating=40, memory_usage=9999)],
                     free_ram_mb=-4096, vcpus_used=99)
        for request in (spec(), spec(size=0), spec(pinned=False)):
            self.assert_quiet(state, request)

    def test_a_request_that_says_little(self):
        request = objects.RequestSpec(flavor=spec().flavor)
        self.assert_quiet(host([cell(0)]), request)

    def test_an_unreadable_host_is_last_and_no_error(self):
        state = host([cell(0)])
        state.numa_topology = objects.NUMATopology(
            cells=[objects.NUMACell(id=0)])
        self.assertEqual(0.0, self.weigh(state, spec()))
        self.assertIn('host host_a: cannot compute the weigher score for '
                      'fragmentation', self.log.output)


class NeedsTest(base.TestCase):
    """Nova's own keys keep their meaning."""

    def memory(self, page_size, **used):
        pages = [objects.NUMAPagesTopology(
            size_kb=size, total=total, used=used.get(f'of_{size}', 0))
            for size, total in ((4, 65536), (2048, 256), (1048576, 2))]
        state = host([cell(0, pages=pages,
                           memory_usage=used.get('memory', 0))])
        node, = read.list_host_nodes(state, {}, page_size)
        return node.memory

    def test_pages_of_the_size_asked_for(self):
        self.assertEqual(NodeAmount(512, 312), self.memory(2048, of_2048=100))
        self.assertEqual(NodeAmount(2048, 1024),
                         self.memory(1048576, of_1048576=1))

    def test_large_pages_are_those_with_most_left(self):
        self.assertEqual(NodeAmount(2048, 2048), self.memory(-2))
        self.assertEqual(NodeAmount(512, 512), self.memory(-2, of_1048576=2))

    def test_small_pages_are_what_is_not_huge(self):
        for page_size in (None, -1, -3):
            self.assertEqual(NodeAmount(256, 156), self.memory(
                page_size, memory=300, of_2048=100))

    def test_a_size_that_the_host_has_not(self):
        self.assertEqual(NodeAmount(0, 0), self.memory(16384))

    def test_isolated_threads_take_whole_cores(self):
        topology = spec(thread_policy='isolate').numa_topology
        self.assertEqual([GuestNode(pinned=4, memory=256)],
                         read.list_guest_node_requirements(topology, 2))

    def test_isolated_emulator_threads_take_a_cpu_of_the_first_node(self):
        topology = spec(size=2).numa_topology
        topology.emulator_threads_policy = 'isolate'
        nodes = read.list_guest_node_requirements(topology, 1)
        self.assertEqual([3, 2], [node.pinned for node in nodes])

    def test_a_preferred_device_may_be_anywhere(self):
        for policy, anywhere in (('preferred', True), ('socket', True),
                                 ('required', False), ('legacy', False)):
            need, = read.list_device_needs(
                host(), spec(vfs=2, numa_policy=policy), {})
            self.assertEqual((2, anywhere), (need.count, need.anywhere))

    def test_devices_of_another_kind_are_not_taken(self):
        state = host(pools=[pool(0), pool(0, product_id='other')])
        need, = read.list_device_needs(state, spec(vfs=2),
                                       read.get_pci_pools(state))
        self.assertEqual(frozenset('0'), need.pools)


class MultiplierTest(WeigherTestCase):

    def weighed(self):
        hosts = [host([cell(0, pinned=2), cell(1)], name='used'),
                 host([cell(0), cell(1)], name='fresh')]
        handler = weights.HostWeightHandler()
        return [(one.obj.host, one.weight) for one in
                handler.get_weighed_objects([self.weigher], hosts, spec())]

    def test_the_best_host_gets_the_multiplier_and_the_worst_nothing(self):
        self.option('fragmentation_weight_multiplier', 3.0)
        self.assertEqual([('used', 3.0), ('fresh', 0.0)], self.weighed())

    def test_less_than_0_spreads(self):
        self.option('fragmentation_weight_multiplier', -1.0)
        self.assertEqual(['fresh', 'used'],
                         [name for name, _weight in self.weighed()])

    def test_0_computes_nothing(self):
        self.option('fragmentation_weight_multiplier', 0.0)
        self.assertEqual({0}, {weight for _name, weight in self.weighed()})
        self.assertNotIn('fragmentation score', self.log.output)

    def test_an_aggregate_has_its_own(self):
        state = host([cell(0)], aggregates=[objects.Aggregate(
            metadata={'fragmentation_weight_multiplier': '2.5'})])
        self.assertEqual(1.0, self.weigher.weight_multiplier(host()))
        self.assertEqual(2.5, self.weigher.weight_multiplier(state))
