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

"""Moves that make room, against a search over plain numbers."""

from collections import Counter
import itertools

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_placement.features.rebalance import flavor_moves
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

#: vCPUs that a NUMA node of these hosts can take.
VCPUS = 4


def wish(share, vcpus=1):
    """A guest with one NUMA node."""
    return GuestDemand(
        GuestPolicy(nodes=(NodePolicy(share),)), 1,
        amounts={'VCPU': vcpus, 'MEMORY_MB': 256},
        needs=(GuestNode(shared=vcpus, memory=256),))


def cloud(placed, hosts=2, nodes=2):
    """Return hosts and their guests.

    :param placed: percent of bandwidth, vCPUs, host and node of each guest.
    """
    guests = [flavor_moves.MovableGuest(
        f'guest{number}', Spot(f'host{host}', node), wish(share, vcpus),
        256 * (number + 1), vcpus)
        for number, (share, vcpus, host, node) in enumerate(placed)]
    found = {}
    for number in range(hosts):
        name = f'host{number}'
        one = clouds.host(
            *(clouds.node(node, name=name) for node in range(nodes)),
            name=name, VCPU=VCPUS * nodes, MEMORY_MB=65536)
        one = capacity.set_node_capacity(one, [
            NodeCapacity(node, cpus=VCPUS, memory=32768, pages=(
                Pages(4, 32768 * 256),)) for node in range(nodes)])
        for guest in guests:
            if guest.spot.host == name:
                one = fitting.take_guest(one, guest.demand,
                                         (guest.spot.node,))
        found[name] = one
    return list(found.values()), guests


class Numbers:
    """The same cloud as percent and vCPUs by spot; shares no code."""

    def __init__(self, placed, hosts, nodes):
        self.spots = [(host, node) for host in range(hosts)
                      for node in range(nodes)]
        self.guests = [(share, vcpus) for share, vcpus, _h, _n in placed]
        self.at = [(host, node) for _s, _v, host, node in placed]

    def compute_free(self, at):
        left = {spot: [100, VCPUS] for spot in self.spots}
        for (share, vcpus), spot in zip(self.guests, at, strict=True):
            left[spot][0] -= share
            left[spot][1] -= vcpus
        return left

    def fits(self, at, share, vcpus):
        """Number of guests that fit, each node by itself."""
        return sum(max(0, min(bandwidth // share, cpus // vcpus))
                   for bandwidth, cpus in self.compute_free(at).values())

    def after_one(self, at):
        for guest, spot in itertools.product(range(len(at)), self.spots):
            if spot != at[guest]:
                moved = [*at[:guest], spot, *at[guest + 1:]]
                if all(min(free) >= 0
                       for free in self.compute_free(moved).values()):
                    yield moved

    def fewest(self, share, vcpus, count):
        """Number of moves after which guests fit; None beyond two."""
        if self.fits(self.at, share, vcpus) >= count:
            return 0
        ones = list(self.after_one(self.at))
        if any(self.fits(at, share, vcpus) >= count for at in ones):
            return 1
        if any(self.fits(at, share, vcpus) >= count
               for one in ones for at in self.after_one(one)):
            return 2
        return None


def placements(hosts, nodes):
    """Guests that fit where they are."""
    guest = st.tuples(st.sampled_from([10, 20, 30, 40, 50, 60]),
                      st.integers(1, 3), st.integers(0, hosts - 1),
                      st.integers(0, nodes - 1))
    return st.lists(guest, max_size=6).filter(lambda placed: all(
        min(free) >= 0 for free in Numbers(placed, hosts, nodes).compute_free(
            Numbers(placed, hosts, nodes).at).values()))


class PlanTest(base.TestCase):

    def check(self, placed, share, vcpus, hosts, nodes):
        """Compare a plan with the search over numbers; replay its moves."""
        numbers = Numbers(placed, hosts, nodes)
        found, guests = cloud(placed, hosts, nodes)
        before = numbers.fits(numbers.at, share, vcpus)
        plan = flavor_moves.plan_moves_for_flavor(found, guests,
                                                  [wish(share, vcpus)],
                                                  before + 1)
        self.assertFalse(plan.is_cut)
        fewest = numbers.fewest(share, vcpus, before + 1)
        self.assertEqual(fewest, len(plan.moves) or None,
                         (placed, share, vcpus, plan))
        at = list(numbers.at)
        for move in plan.moves:
            guest = int(move.guest.removeprefix('guest'))
            self.assertEqual(f'host{at[guest][0]}', move.origin.host)
            at[guest] = (int(move.destination.host.removeprefix('host')),
                         move.destination.node)
            for free in numbers.compute_free(at).values():
                self.assertGreaterEqual(min(free), 0)
        self.assertEqual(plan.fits, numbers.fits(at, share, vcpus))

    @settings(max_examples=150)
    @given(placements(1, 3), st.sampled_from([20, 50, 70, 100]),
           st.integers(1, 4))
    def test_plan_inside_a_host_is_the_one_with_the_fewest_moves(
            self, placed, share, vcpus):
        self.check(placed, share, vcpus, 1, 3)

    @settings(max_examples=100)
    @given(placements(2, 1), st.sampled_from([20, 50, 70, 100]),
           st.integers(1, 4))
    def test_plan_between_hosts_is_the_one_with_the_fewest_moves(
            self, placed, share, vcpus):
        self.check(placed, share, vcpus, 2, 1)

    def test_move_inside_a_host_comes_before_one_between_hosts(self):
        placed = [(40, 1, 0, 0), (40, 1, 0, 1), (50, 1, 1, 0), (60, 1, 1, 1)]
        found, guests = cloud(placed)
        move, = flavor_moves.plan_moves_for_flavor(found, guests,
                                                   [wish(90)]).moves
        self.assertTrue(move.inside)
        self.assertEqual(('guest0', Spot('host0', 1)),
                         (move.guest, move.destination))

    def test_cheapest_of_equal_moves_is_taken(self):
        placed = [(40, 2, 0, 0), (40, 1, 0, 1)]
        found, guests = cloud(placed, hosts=1)
        move, = flavor_moves.plan_moves_for_flavor(found, guests,
                                                   [wish(90)]).moves
        self.assertEqual('guest0', move.guest)
        heavy = flavor_moves.replace(guests[0], memory=10 ** 6)
        move, = flavor_moves.plan_moves_for_flavor(found, [heavy, guests[1]],
                                                   [wish(90)]).moves
        self.assertEqual('guest1', move.guest)

    def test_guest_of_undecided_nodes_gets_room_on_two(self):
        one = wish(95, VCPUS + 1)
        found, guests = cloud([
            (20, 1, 0, 0), (40, 1, 0, 0), (40, 1, 0, 1),
            (70, 1, 1, 0), (70, 1, 1, 1)])
        two = GuestDemand(GuestPolicy(nodes=(NodePolicy(50),) * 2), 2,
                          amounts={'VCPU': 2, 'MEMORY_MB': 512},
                          needs=(GuestNode(shared=1, memory=256),) * 2)
        plan = flavor_moves.plan_moves_for_flavor(found, guests,
                                                  [one, two])
        self.assertEqual([('guest0', 'host1')], [
            (move.guest, move.destination.host) for move in plan.moves])
        self.assertEqual(1, plan.fits)
        self.assertEqual((), flavor_moves.plan_moves_for_flavor(
            found, guests, [one]).moves)

    def test_search_that_takes_too_many_steps_is_cut(self):
        self.patch(flavor_moves, 'STEPS', 3)
        placed = [(40, 1, host, node) for host in (0, 1) for node in (0, 1)]
        found, guests = cloud(placed)
        self.assertTrue(
            flavor_moves.plan_moves_for_flavor(found, guests,
                                               [wish(190)]).is_cut)


class CacheTest(base.TestCase):
    """Guests with dedicated CPUs of few L3 caches."""

    def make_host(self, *free_by_node):
        """Return a host with L3 caches of 8 CPUs.

        :param free_by_node: free CPUs of the caches of each node.
        """
        host = clouds.host(*map(clouds.node, range(len(free_by_node))),
                           PCPU=64, MEMORY_MB=65536)
        return capacity.set_node_capacity(host, [NodeCapacity(
            number, dedicated=8 * len(free), memory=32768,
            dedicated_used=sum(8 - one for one in free),
            caches=tuple(CacheCpus(8, 8 - one, f'{first}-{first + 7}')
                         for first, one in zip(
                             itertools.count(100 * number, 8), free)))
            for number, free in enumerate(free_by_node)])

    def make_demand(self, pinned, cpu_cache='require'):
        return GuestDemand(
            GuestPolicy(), 1, amounts={'PCPU': pinned, 'MEMORY_MB': 256},
            needs=(GuestNode(pinned=pinned, memory=256,
                             cpu_cache=cpu_cache),))

    def test_moved_guest_frees_the_caches_of_its_cpus(self):
        # Node 0: three CPUs of each cache are used, all by the guest.
        host = self.make_host([5, 5], [8, 2])
        for by_cache, fits in (((3, 3), 2), ((), 1), ((3, 0), 1)):
            guest = flavor_moves.MovableGuest(
                'guest', Spot('a', 0), self.make_demand(6, ''), 256, 6,
                by_cache=by_cache)
            plan = flavor_moves.plan_moves_for_flavor(
                [host], [guest], [self.make_demand(8)], 2)
            self.assertEqual((fits, bool(fits > 1)),
                             (plan.fits, bool(plan.moves)), by_cache)

    def test_guest_that_moved_twice_leaves_caches_as_they_were(self):
        host = self.make_host([8, 5, 2], [8, 7, 1])
        for wish_, pinned in itertools.product(('', 'prefer', 'require'),
                                               range(1, 9)):
            demand = self.make_demand(pinned, wish_)
            after = fitting.take_guest(host, demand, (0,))
            taken = fitting.count_taken_by_cache(host, after, (0,))
            self.assertEqual(pinned, sum(taken[0]))
            again = fitting.give_guest(after, demand, (0,), taken)
            self.assertEqual(host.nodes, again.nodes)

    def test_cpus_of_a_guest_are_counted_by_cache(self):
        room = self.make_host([8, 8], [8, 8]).nodes[1].room
        self.assertEqual((2, 1), room.count_by_cache({1, 106, 107, 108}))


class OccupancyTest(base.TestCase):

    @given(placements(2, 2))
    def test_guest_that_came_and_left_leaves_the_host_as_it_was(self, placed):
        before, guests = cloud(placed)
        for host in before:
            for node in host.nodes:
                after = fitting.give_guest(
                    fitting.take_guest(host, wish(10), (node.number,)),
                    wish(10), (node.number,))
                self.assertEqual((host.nodes, host.groups),
                                 (after.nodes, after.groups))
                self.assertEqual(+Counter(host.root.used),
                                 +Counter(after.root.used))

    def test_guest_takes_all_that_it_asks_for(self):
        (host, _other), _guests = cloud([])
        after = fitting.take_guest(host, wish(30, 2), (1,))
        node = after.nodes[1]
        self.assertEqual((30, 30, 2, 256), (
            node.stocks[names.MEM_BW_PCT].used, node.bandwidth.used,
            node.room.vcpus_used, node.room.memory_used))
        self.assertEqual((2, 256, 1), (
            after.root.used['VCPU'], after.root.used['MEMORY_MB'],
            after.groups.used))
        self.assertEqual(host.nodes[0], after.nodes[0])
