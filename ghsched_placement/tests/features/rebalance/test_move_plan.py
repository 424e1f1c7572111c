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

import dataclasses
import itertools
import math
from pathlib import Path
import runpy
from unittest import mock

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import affinity_policy
from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance.move_plan import Cloud
from ghsched_placement.features.rebalance.move_plan import Guest
from ghsched_placement.features.rebalance.move_plan import Moved
from ghsched_placement.features.rebalance.move_plan import Node
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.features.rebalance import no_move_reasons
from ghsched_placement.tests import base

SETTINGS = move_plan.Settings()
POLICY = affinity_policy.Affinity()
A0, A1, B0, B1 = (Spot(host, node) for host in 'ab' for node in (0, 1))
_RARELY = st.sampled_from([False, False, False, True])


def tied(**rates):
    """Ties of pairs of guests with names of one letter."""
    return affinity.TrafficAverages(0, {
        affinity.make_pair_key(*pair): affinity.PairTraffic(rate, 0)
        for pair, rate in rates.items()})


def made(nodes, guests, ties=None):
    ties = ties or affinity.TrafficAverages()
    return Cloud(
        tuple(nodes), tuple(guests), ties,
        affinity.group_guests_by_traffic(
            (affinity.Member(guest.uuid, guest.cpu or 0, guest.memory)
             for guest in guests), ties, affinity.Bounds()))


def _with_second_node(guest, cpu):
    """The guest with a node on the other node of its host, too."""
    return dataclasses.replace(guest, inside=False, parts=(
        Guest(guest.uuid, Spot(guest.spot.host, 1 - guest.spot.node), cpu,
              1e9, 4096, 25, counted=guest.counted),))


@st.composite
def clouds(draw):
    nodes = [Node(spot, 8, draw(st.sampled_from([0.0, 0.0, 1.0, 3.0, None])),
                  draw(st.none() | st.just(1e10)),
                  memory=draw(st.sampled_from([64, 64, 9])) * 1024,
                  guarantee=draw(st.sampled_from([100, 100, 30])),
                  bottleneck=draw(_RARELY), open=not draw(_RARELY),
                  left=draw(st.sampled_from([{}, {'L3': 4}, {'L3': 20}])),
                  groups=draw(st.sampled_from([math.inf, 1])))
             for spot in (A0, A1, B0, B1)]
    names = draw(st.lists(st.sampled_from('abcdefghij'), unique=True,
                          min_size=2))
    guests = [Guest(name, draw(st.sampled_from([A0, A1, B0, B1])),
                    draw(st.sampled_from([0.5, 1.0, 2.0, 4.0, 6.0, None])),
                    draw(st.sampled_from([0, 1e9, 4e9])),
                    draw(st.sampled_from([1, 4, 16])) * 1024,
                    draw(st.sampled_from([0, 0, 25])), not draw(_RARELY),
                    not draw(_RARELY),
                    draw(st.none() | st.sampled_from([10.0, 2000.0])),
                    draw(st.sampled_from([{}, {}, {'L3': 4}])),
                    draw(st.sampled_from([0, 1])))
              for name in names]
    guests = [guest if draw(st.integers(0, 3)) else _with_second_node(
        guest, draw(st.sampled_from([0.5, 4.0, None]))) for guest in guests]
    ties = tied(**draw(st.dictionaries(
        st.sampled_from([one + other for one in names for other in names
                         if one < other]),
        st.sampled_from([1e6, 1e8, 1e9]))))
    return made(nodes, guests, ties)


def judged(state):
    """The cloud as its hosts would find it next, with the same loads."""
    nodes = tuple(dataclasses.replace(
        node, bottleneck=state.is_overloaded(spot), memory=state.memory[spot],
        guarantee=state.guarantee[spot], left=state.left[spot],
        groups=state.groups[spot.host])
        for spot, node in state.nodes.items())
    return nodes, tuple(state.guests.values())


def crowded(state):
    """Return the pressure beyond the end of a bottleneck, the fullest node
    first.
    """
    return sorted(
        (round(max(0.0,
                   state.get_relative_load(spot) - state.hysteresis_load), 9)
         for spot in state.nodes
         if not math.isnan(state.get_relative_load(spot))), reverse=True)


def steps(moves):
    """Return the moves of a plan in tuples, those of a pair together."""
    found = []
    for move in moves:
        if found and found[-1][-1].partner == move.guest:
            found[-1] += (move,)
        else:
            found.append((move,))
    return found


class RulesTest(base.TestCase):

    @given(clouds())
    def test_every_move_is_allowed_and_pays(self, cloud):
        state = move_plan.CloudState(cloud, SETTINGS)
        for moves in steps(POLICY.plan(cloud, SETTINGS)):
            before = crowded(state)
            was = {origin: (state.get_relative_load(origin),
                            state.is_overloaded(origin))
                   for move in moves for origin, _destination in move.ways}
            near = {move.guest: tuple(
                state.get_traffic_with_node(state.guests[move.guest], spot)
                for spot in (move.origin, move.destination)) for move in moves}
            for move in moves:
                self.check_move(state, move)
                state.apply_move(move)
                self.check_room(state, move)
            self.assertLessEqual(crowded(state), before)
            if len(moves) == 1:
                pressure, was_bottleneck = was[moves[0].origin]
                here, there = near[moves[0].guest]
                if moves[0].others:
                    was_bottleneck = any(one for _load, one in was.values())
                    pressure = 1
                for _origin, destination in moves[0].ways:
                    self.assertLess(
                        state.get_relative_load(destination),
                        state.hysteresis_load
                        * max(1, was_bottleneck * pressure))
                self.assertTrue(was_bottleneck or there > here)
            else:
                self.check_pair(state, moves, was)

    def check_move(self, state, move):
        """Check what holds before each move."""
        guest = state.guests[move.guest]
        self.assertEqual([one.spot for one in guest.nodes],
                         [origin for origin, _destination in move.ways])
        self.assertEqual(len(move.ways), len({way[1] for way in move.ways}))
        for one, (origin, destination) in zip(guest.nodes, move.ways,
                                              strict=True):
            self.assertNotEqual(origin, destination)
            self.assertEqual(move.destination.host, destination.host)
            self.assertIsNotNone(one.cpu)
            self.assertIsNotNone(state.nodes[destination].cpu)
            self.assertTrue(state.nodes[destination].open)
        self.assertTrue(guest.inside if move.inside else guest.between)
        self.assertGreater(move.gain, SETTINGS.margin * move.cost)

    def check_room(self, state, move):
        """Check that Placement and Nova have room after each move."""
        guest = state.guests[move.guest]
        for _origin, destination in move.ways:
            self.assertGreaterEqual(state.memory[destination], 0)
            self.assertGreaterEqual(state.guarantee[destination], 0)
            for name in guest.counted:
                self.assertGreaterEqual(state.left[destination][name], 0)
        if guest.groups and not move.inside:
            self.assertGreaterEqual(state.groups[move.destination.host], 0)

    def check_pair(self, state, moves, was):
        """Check that a bottleneck is relieved and no node made one."""
        room, = (move for move in moves if 'makes room' in move.reason)
        left, = (move for move in moves if move is not room)
        self.assertEqual(left.destination, room.origin)
        self.assertTrue(was[left.origin][1])
        self.assertLess(
            state.get_relative_load(left.origin), was[left.origin][0])
        for spot in {left.destination, room.destination} - {left.origin}:
            self.assertFalse(state.nodes[spot].bottleneck)
            self.assertLess(state.get_relative_load(spot),
                            state.hysteresis_load)

    @given(clouds())
    def test_no_more_than_the_limits(self, cloud):
        settings = dataclasses.replace(SETTINGS, moves=3, per_host=2)
        moves = POLICY.plan(cloud, settings)
        self.assertLessEqual(len(moves), 3)
        self.assertEqual(len(moves), len({move.guest for move in moves}))
        for host in 'ab':
            self.assertLessEqual(
                sum(host in {move.origin.host, move.destination.host}
                    for move in moves), 2)

    @given(clouds(), st.randoms(use_true_random=False))
    def test_order_does_not_matter(self, cloud, order):
        guests, nodes = list(cloud.guests), list(cloud.nodes)
        order.shuffle(guests)
        order.shuffle(nodes)
        self.assertEqual(
            POLICY.plan(cloud, SETTINGS),
            POLICY.plan(dataclasses.replace(
                cloud, guests=tuple(guests), nodes=tuple(nodes)), SETTINGS))

    @hypothesis_settings(max_examples=50)
    @given(clouds())
    def test_it_comes_to_rest_and_nobody_returns(self, cloud):
        """No cool-down prevents moves, and loads stay the same."""
        settings = dataclasses.replace(SETTINGS, cool_down=0)
        left = set()
        for _turn in range(200):
            moves = POLICY.plan(cloud, settings)
            if not moves:
                return
            state = move_plan.CloudState(cloud, settings)
            for move in moves:
                state.apply_move(move)
                self.assertNotIn((move.guest, move.destination), left)
                left.add((move.guest, move.origin))
            nodes, guests = judged(state)
            cloud = dataclasses.replace(cloud, nodes=nodes, guests=guests)
        self.fail('it does not come to rest')

    @given(clouds())
    def test_who_was_moved_rests(self, cloud):
        history = [Moved(guest.uuid, 0) for guest in cloud.guests]
        settings = dataclasses.replace(SETTINGS, period=1)
        self.assertEqual((), POLICY.plan(cloud, settings, history,
                                         settings.cool_down - 1))

    @given(clouds())
    def test_moves_of_the_period_count(self, cloud):
        history = [Moved(str(number), 0, frozenset('ab'))
                   for number in range(2)]
        self.assertEqual((), POLICY.plan(cloud, SETTINGS, history, 599))


class DecisionTest(base.TestCase):

    def plan(self, nodes, guests, ties=None, **changed):
        moves = POLICY.plan(made(nodes, guests, ties),
                            dataclasses.replace(SETTINGS, **changed))
        return [(move.guest, move.destination) for move in moves]

    def node(self, spot, cpus=8, **more):
        return Node(spot, cpus, 0.0, memory=65536, **more)

    def test_two_busy_guests_on_one_node_and_an_idle_one(self):
        guests = [Guest(name, A0, 2, memory=1024) for name in 'ab']
        self.assertEqual([('a', A1)], self.plan(
            [self.node(A0, 2), self.node(A1, 3)], guests))

    def test_guest_on_two_nodes_goes_to_another_host_as_a_whole(self):
        dense = Guest('d', A0, 7.5, memory=1024, inside=False, parts=(
            Guest('d', A1, 2.0, memory=1024),))
        nodes = [self.node(A0), self.node(A1), self.node(B0, 4),
                 self.node(B1, 16)]
        move, = POLICY.plan(made(nodes, [dense]), SETTINGS)
        self.assertEqual(((A0, B1), (A1, B0)), move.ways)
        state = move_plan.CloudState(made(nodes, [dense]), SETTINGS)
        state.apply_move(move)
        self.assertEqual([B1, B0],
                         [one.spot for one in state.guests['d'].nodes])
        # Half of a guest cannot be moved.
        for fewer in (nodes[:3], [*nodes[:3], self.node(B1, 6)],
                      [*nodes[:2], self.node(B0, 2), nodes[3]],
                      [*nodes[:2], self.node(B0, 4, guarantee=0), nodes[3]]):
            self.assertEqual([], self.plan(fewer, [dataclasses.replace(
                dense, parts=(dataclasses.replace(
                    dense.parts[0], guarantee=5),))]))

    def test_small_neighbour_leaves_a_guest_that_is_fixed(self):
        dense = Guest('d', A0, 6.0, memory=65536, inside=False, between=False,
                      parts=(Guest('d', A1, 1.0, memory=65536),))
        small = Guest('s', A0, 1.9, memory=1024)
        nodes = [self.node(A0), self.node(A1), self.node(B0), self.node(B1)]
        self.assertEqual([('s', A1)], self.plan(nodes, [dense, small]))

    def test_guests_of_two_crowded_nodes_are_swapped(self):
        guests = [Guest('a', A0, 4, memory=1024),
                  Guest('b', A0, 4, inside=False),
                  Guest('c', A1, 3, memory=1024),
                  Guest('d', A1, 2, inside=False)]
        nodes = [self.node(A0), self.node(A1)]
        self.assertEqual([('c', A0), ('a', A1)], self.plan(nodes, guests))
        # Each waits for the memory of the other.
        full = [dataclasses.replace(node, memory=512) for node in nodes]
        self.assertEqual([], self.plan(full, guests))
        # The guest of the bottleneck has to go first.
        full[1] = nodes[1]
        self.assertEqual([('a', A1), ('c', A0)], self.plan(full, guests))

    def test_guest_makes_room_on_a_third_node(self):
        guests = [Guest('a', A0, 4, memory=1024, between=False),
                  Guest('b', A0, 4, inside=False, between=False),
                  Guest('c', A1, 3, memory=1024, inside=False),
                  Guest('d', A1, 2, inside=False, between=False),
                  Guest('e', B0, 2, between=False)]
        nodes = [self.node(spot) for spot in (A0, A1, B0)]
        self.assertEqual([('c', B0), ('a', A1)], self.plan(nodes, guests))
        self.assertEqual([], self.plan(nodes, guests, moves=1))
        self.assertEqual([], self.plan(nodes, guests, per_host=1))

    def test_search_of_pairs_ends_at_its_number_of_steps(self):
        guests = [Guest(f'{number:03}', spot, 2, memory=1024)
                  for number, spot in enumerate([A0, A1, B0, B1] * 40)]
        cloud = made([self.node(spot) for spot in (A0, A1, B0, B1)], guests)
        pressure, compared = move_plan.CloudState.get_relative_load, []

        def count_calls(state, *args):
            compared[-1] += 1
            return pressure(state, *args)
        for limit in (0, 100, 200):
            compared.append(0)
            with mock.patch.object(
                    move_plan.CloudState, 'get_relative_load', count_calls):
                self.assertEqual(
                    (), affinity_policy.Affinity(limit).plan(cloud, SETTINGS))
        self.assertEqual([100, 100], [more - less for less, more
                                      in itertools.pairwise(compared)])

    def test_the_weakest_affinity_leaves_first(self):
        guests = [Guest(name, A0, 3, memory=1024) for name in 'abc']
        self.assertEqual([('b', A1)], self.plan(
            [self.node(A0), self.node(A1)], guests,
            tied(ab=2e6, ac=9e6, bc=3e6)))

    def test_reported_steal_orders_guests_that_may_leave_and_no_more(self):
        nodes = [self.node(A0), self.node(A1)]
        guests = [Guest('a', A0, 3, memory=1024),
                  Guest('b', A0, 3, memory=1024, steal=5.0),
                  Guest('c', A0, 3, memory=1024, steal=2.0)]
        self.assertEqual([('b', A1)], self.plan(nodes, guests))
        self.assertEqual([('a', A1)], self.plan(nodes, guests, tied(bc=2e6)))
        calm = [dataclasses.replace(one, cpu=1, steal=100.0)
                for one in guests]
        self.assertEqual([], self.plan(nodes, calm))

    def test_nobody_leaves_his_best_node_unless_it_is_a_bottleneck(self):
        guests = [Guest('a', A0, 1), Guest('b', A0, 1), Guest('c', A1, 1)]
        ties = tied(ab=5e8, ac=4e8)
        nodes = [self.node(A0), self.node(A1)]
        self.assertEqual([('c', A0)], self.plan(nodes, guests, ties))
        nodes[0] = self.node(A0, bottleneck=True)
        self.assertEqual([], self.plan(nodes, guests, ties))

    def test_small_goes_to_large(self):
        guests = [Guest('a', A0, 1, memory=1024),
                  Guest('b', A1, 4, memory=32768)]
        nodes = [self.node(A0), self.node(A1)]
        self.assertEqual([('a', A1)], self.plan(nodes, guests,
                                                tied(ab=1e9)))

    def test_a_move_that_costs_more_than_it_gains(self):
        guests = [Guest('a', A0, 1, memory=1024), Guest('b', A1, 1, 0, 1024)]
        nodes = [self.node(A0), self.node(A1)]
        self.assertEqual([], self.plan(nodes, guests, tied(ab=2e6)))

    def test_a_guest_that_writes_faster_than_it_can_be_sent(self):
        guests = [Guest('a', A0, 1, memory=1024, dirty=2000),
                  Guest('b', B0, 4, memory=1024, between=False)]
        nodes = [self.node(A0), self.node(B0)]
        self.assertEqual([], self.plan(nodes, guests, tied(ab=1e9)))
        slow = [dataclasses.replace(guests[0], dirty=100), guests[1]]
        self.assertEqual([('a', B0)], self.plan(nodes, slow, tied(ab=1e9)))

    def test_memory_bandwidth_makes_a_bottleneck_too(self):
        guests = [Guest(name, A0, 1, 5e9, 1024) for name in 'ab']
        nodes = [self.node(spot, capacity=1e10) for spot in (A0, A1)]
        self.assertEqual([('a', A1)], self.plan(nodes, guests))
        nodes[1] = self.node(A1, capacity=5e9)
        self.assertEqual([], self.plan(nodes, guests))

    def test_unknown_entries_are_left_alone(self):
        guests = [Guest('a', A0, 7, memory=1024), Guest('b', A0, None)]
        self.assertEqual([], self.plan([self.node(A0), self.node(A1)],
                                       guests))

    def test_a_wish_counts_without_a_word(self):
        members = [affinity.Member(name, 1, declared='web') for name in 'ab']
        guests = [Guest('a', A0, 1, memory=1024),
                  Guest('b', B0, 1, memory=2048)]
        ties = affinity.add_server_group_traffic(members,
                                                 affinity.TrafficAverages(),
                                                 125e6)
        self.assertEqual([('a', B0)], self.plan(
            [self.node(A0), self.node(B0)], guests, ties))

    def test_the_policy_of_the_manual(self):
        path = (Path(__file__).parents[4] / 'doc' / 'source' / 'operators'
                / 'rebalance_policy.py')
        policy = runpy.run_path(str(path))['OneByOne']()
        guests = [Guest(f'{number:02}', A0, 1, memory=1024)
                  for number in range(16)]
        cloud = made([self.node(A0), self.node(A1)], guests)
        self.assertLess(1, len(POLICY.plan(cloud, SETTINGS)))
        self.assertEqual(POLICY.plan(cloud, SETTINGS)[:1],
                         policy.plan(cloud, SETTINGS))


class NothingToMoveTest(base.TestCase):

    def check(self, expected, nodes, guests, **more):
        cloud = made(nodes, guests)
        history = more.pop('history', ())
        self.assertEqual((), POLICY.plan(cloud, SETTINGS, history, 1000.0))
        self.assertIn(expected, no_move_reasons.explain_no_moves(
            cloud, SETTINGS, history, 1000.0))

    def test_calm_cloud_has_no_bottleneck(self):
        self.check('because no NUMA node whose load is known is a',
                   [Node(A0, 8, 0.0), Node(A1, 8, 0.0)],
                   [Guest('a', A0, 1.0, memory=1024)])

    def test_cloud_without_known_guests_says_so(self):
        self.check('because no server with NUMA nodes runs',
                   [Node(A0, 8, 7.9)], [])

    def test_bottlenecks_without_room_elsewhere_are_named(self):
        self.check(
            'because a node 0, a node 1 are bottlenecks, and the 2 servers '
            'there stay (2: no other NUMA node has room for it).',
            [Node(A0, 8, 4.0, memory=64), Node(A1, 8, 4.0, memory=64)],
            [Guest('a', A0, 4.0, memory=1024),
             Guest('b', A1, 4.0, memory=1024)])

    def test_server_that_may_not_move_or_rests_is_counted(self):
        nodes = [Node(A0, 8, 7.9, memory=65536),
                 Node(A1, 8, 0.0, memory=65536)]
        self.check('a node 0 is a bottleneck, and the server there stays: it '
                   'may not be moved.', nodes,
                   [Guest('a', A0, 1.0, memory=1024, inside=False,
                          between=False)])
        self.check('it was moved within the cool-down', nodes,
                   [Guest('a', A0, 1.0, memory=1024)],
                   history=[Moved('a', 10.0)])

    def test_moves_of_the_period_used_up_are_named(self):
        self.check('there were 8 moves within 600 s', [Node(A0, 8, 7.9)],
                   [Guest('a', A0, 1.0)],
                   history=[Moved(str(one), 999.0) for one in range(8)])

    @given(clouds())
    def test_reason_never_says_that_a_move_would_pay(self, cloud):
        """The policy itself judges: it would have made the move."""
        if not POLICY.plan(cloud, SETTINGS):
            found = no_move_reasons.explain_no_moves(cloud, SETTINGS)
            self.assertNotIn(no_move_reasons.LIMITED, found)
            self.assertTrue(found.startswith('Nothing to move, because '))
            self.assertTrue(found.endswith('.'))
