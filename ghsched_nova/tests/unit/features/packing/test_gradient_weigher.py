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

"""The weigher that leaves least that the next guests cannot use."""

import fixtures
from nova import objects
from nova.scheduler import weights

from ghsched_nova.features.packing import fragments
from ghsched_nova.features.packing import gradient_weigher
from ghsched_nova.nova_seams import shared
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.index import headroom
from ghsched_placement.features.packing import gradient
from ghsched_placement.tests import base

cell, host, pool, spec = (states.cell, states.host, states.pool, states.spec)


class GradientWeigherTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=30))
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.packing.fragments.MIX', gradient.Mix()))
        self.weigher = gradient_weigher.GhschedGradientWeigher()

    def state(self, *cells, bandwidth=None, groups=5, **more):
        stats = headroom.make_headroom_stats(headroom.Headroom(
            1.0, 0, groups, bandwidth)) if bandwidth else {}
        return host(cells, uuid='11111111-1111-1111-1111-111111111111',
                    stats=stats, **more)

    def weigh(self, state, request):
        found = self.weigher._weigh_object(state, request)
        self.assertEqual('', self.log.output)
        return found

    def learn(self, request, times=1):
        for _time in range(times):
            fragments.MIX.add_request(fragments.get_guest_demand(request))

    def test_pairs_of_nodes_are_kept_for_guests_of_two(self):
        self.learn(spec(size=2), 3)
        one = spec()
        self.assertGreater(
            self.weigh(self.state(cell(0, pinned=1), cell(1, pinned=4)), one),
            self.weigh(self.state(cell(0, pinned=1), cell(1)), one))

    def test_bandwidth_that_hosts_report_counts(self):
        request = spec()
        request.flavor.extra_specs = {'ghsched:mem_bw_min': '60',
                                      'hw:numa_nodes': '1'}
        self.learn(request)
        plain = spec(cpus=3)
        whole, used = {0: 100}, {0: 30}
        self.assertLess(
            self.weigh(self.state(cell(0), bandwidth=whole), plain),
            self.weigh(self.state(cell(0), bandwidth=used), plain))

    def test_a_request_is_learned_when_hosts_are_weighed(self):
        class Weighed:
            obj = self.state(cell(0))
        self.weigher.weigh_objects([Weighed()], spec())
        self.assertEqual(1, len(fragments.MIX.get_kind_shares()))
        shared.config().set_override('gradient_weight_multiplier', 0.0,
                                     group='ghsched')
        self.addCleanup(shared.config().clear_override,
                        'gradient_weight_multiplier', group='ghsched')
        self.assertEqual([0.0], self.weigher.weigh_objects(
            [Weighed()], spec(cpus=1)))
        self.assertEqual(1, len(fragments.MIX.get_kind_shares()))
        self.assertIsNone(
            fragments.make_fragmentation_cost_function(Weighed.obj, spec()))

    def test_guests_without_a_numa_topology_are_weighed_alike(self):
        class Weighed:
            obj = self.state(cell(0))
        self.assertEqual([0.0], self.weigher.weigh_objects(
            [Weighed()], spec(size=0)))

    def test_a_host_that_cannot_be_read_is_the_worst(self):
        self.assertEqual(-64.0, self.weigher._weigh_object(
            object(), spec()))
        self.assertIn('score for fragmentation', self.log.output)

    def test_nodes_in_a_host_are_chosen_by_the_same(self):
        state = self.state(cell(0), cell(1, pinned=1))
        self.assertIsNone(
            fragments.make_fragmentation_cost_function(state, spec(cpus=3)))
        self.learn(spec(cpus=4))
        cost = fragments.make_fragmentation_cost_function(state, spec(cpus=3))
        self.assertLess(cost([1]), cost([0]))

    def option(self, name, value, group='ghsched'):
        shared.config().set_override(name, value, group=group)
        self.addCleanup(shared.config().clear_override, name, group=group)

    def weights(self):
        """Hosts by weight: one where guests of two nodes lose none."""
        self.learn(spec(size=2), 3)
        hosts = [self.state(cell(0, pinned=1), cell(1, pinned=4), name='used'),
                 self.state(cell(0, pinned=1), cell(1), name='fresh')]
        return [(one.obj.host, one.weight) for one in
                weights.HostWeightHandler().get_weighed_objects(
                    [self.weigher], hosts, spec())]

    def test_the_best_host_gets_the_multiplier_and_the_worst_nothing(self):
        self.option('gradient_weight_multiplier', 3.0)
        self.assertEqual([('used', 3.0), ('fresh', 0.0)], self.weights())

    def test_less_than_0_spreads(self):
        self.option('gradient_weight_multiplier', -1.0)
        self.assertEqual(['fresh', 'used'],
                         [name for name, _weight in self.weights()])

    def test_an_aggregate_has_its_own(self):
        state = host([cell(0)], aggregates=[objects.Aggregate(
            metadata={'gradient_weight_multiplier': '2.5'})])
        self.assertEqual(1.0, self.weigher.weight_multiplier(host()))
        self.assertEqual(2.5, self.weigher.weight_multiplier(state))

    def test_a_host_without_reports_is_weighed(self):
        state = host(uuid='11111111-1111-1111-1111-111111111111')
        state.pci_stats = state.limits = None
        state.allocation_candidates = None
        for request in (spec(), spec(vfs=1), spec(size=2)):
            self.learn(request)
            self.assertEqual(-64.0, self.weigh(state, request))

    def test_when_the_claim_packs_the_used_node_counts(self):
        self.learn(spec(cpus=4))
        state = self.state(cell(0, pinned=1), cell(1))
        before = self.weigh(state, spec())
        self.option('packing_host_numa_cells_allocation_strategy', True,
                    group='compute')
        self.assertGreater(self.weigh(state, spec()), before)

    def test_the_nodes_that_the_filter_has_chosen_count(self):
        self.learn(spec(cpus=4))
        state = self.state(*(cell(number, pinned=number, physnets=[
            f'ghsched-numa{number}']) for number in range(2)))
        found = []
        for node in range(2):
            state.limits = {'numa_topology': objects.NUMATopologyLimits(
                network_metadata=objects.NetworkMetadata(
                    physnets={f'ghsched-numa{node}'}, tunneled=False))}
            found.append(self.weigh(state, spec()))
        self.assertLess(*found)
