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

from unittest import mock

from ghsched_placement.features.rebalance import flavor_moves
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.features.rebalance import rebalance_for_flavor
from ghsched_placement.fit import capacity
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.osc import observe
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds


def wish(share):
    return GuestDemand(GuestPolicy(nodes=(NodePolicy(share),)), 1)


class QuestionTest(base.TestCase):

    def question(self, share, used=(40, 40), count=1):
        host = clouds.host(*(clouds.node(number, used=one)
                             for number, one in enumerate(used)))
        return rebalance_for_flavor.FlavorMoveRequest(
            'large', count, [wish(share)], (host,),
            (flavor_moves.MovableGuest('u', Spot('a', 0), wish(40), 512),), {})

    def test_flavor_that_fits_has_no_moves_and_a_sentence(self):
        question = self.question(60, count=2)
        self.assertEqual((), question.plan_moves())
        self.assertEqual('Nothing to move, because 2 servers of flavor large '
                         'fit now.', question.explain_no_moves())

    def test_flavor_that_no_moves_help_has_what_is_missing(self):
        question = self.question(90, used=(70, 70))
        self.assertEqual((), question.plan_moves())
        self.assertIn('(0 of 1 fit). a: NUMA nodes 0-1 cannot take guest NUMA '
                      'node 0: 30 % of memory bandwidth free, 90 needed',
                      question.explain_no_moves())

    def test_search_that_was_cut_says_so(self):
        self.patch(flavor_moves, 'STEPS', 0)
        self.assertIn('limit of steps', self.question(90).explain_no_moves())

    def test_moves_are_restricted_as_asked(self):
        question = self.question(90)
        move, = question.plan_moves()
        self.assertEqual(('u', Spot('a', 1)), (move.guest, move.destination))
        self.assertEqual((), question.plan_moves(only='between'))
        self.assertEqual((), question.plan_moves(frozenset('u')))


class RunningTest(base.TestCase):
    """Servers that a plan can move."""

    def running(self, nodes, hosts=(), **specs):
        client = mock.Mock(**{
            'get_host_numa_nodes.return_value': nodes,
            'get_dedicated_cpus.return_value': frozenset({3, 4})})
        wishes = rebalance_for_flavor._FlavorParser(hosts, 'min', False)
        return rebalance_for_flavor._make_movable_guest(client, wishes, {
            'id': 'u', observe.HYPERVISOR: 'a', 'flavor': {
                'vcpus': 2, 'ram': 512, 'disk': 1, 'ephemeral': 0, 'swap': 0,
                'extra_specs': specs}})

    def test_server_with_one_numa_node_is_movable(self):
        found = self.running((1,), **{'hw:numa_nodes': '1',
                                      'ghsched:mem_bw_min': '30'})
        self.assertEqual((Spot('a', 1), 512, 2), (
            found.spot, found.memory, found.vcpus))
        self.assertEqual({'VCPU': 2, 'MEMORY_MB': 512, 'DISK_GB': 1},
                         found.demand.amounts)
        self.assertEqual(30, found.demand.policy.nodes[0].minimum)

    def test_dedicated_cpus_of_a_server_are_counted_by_cache(self):
        host = capacity.set_node_capacity(
            clouds.host(clouds.node(0), name='a'), [NodeCapacity(0, caches=(
                CacheCpus(4, 1, '0-3'), CacheCpus(4, 1, '4-7')))])
        found = self.running((0,), (host,), **{
            'hw:numa_nodes': '1', 'hw:cpu_policy': 'dedicated'})
        self.assertEqual((1, 1), found.by_cache)

    def test_other_servers_stay(self):
        one = {'hw:numa_nodes': '1'}
        for nodes, specs in (
                ((), {}), ((None,), one), ((0, 1), {'hw:numa_nodes': '2'}),
                ((0,), {**one, 'ghsched:vfs': 'nic:1'}),
                ((0,), {**one, 'hw:mem_page_size': 'large'}),
                ((0,), {**one, 'ghsched:mem_bw_min': 'much'})):
            self.assertIsNone(self.running(nodes, **specs), (nodes, specs))
