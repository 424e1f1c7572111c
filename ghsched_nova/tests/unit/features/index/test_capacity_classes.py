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

import itertools
import random

import fixtures
from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.index import capacity_classes
from ghsched_nova.features.index import host_capacity
from ghsched_nova.features.index.host_capacity import HostReport
from ghsched_nova.features.index.host_capacity import Need
from ghsched_nova.features.index.host_capacity import NodeCapacity
from ghsched_nova.features.index.host_capacity import NodeNeed
from ghsched_nova.features.index import host_index
from ghsched_placement.features.index import headroom
from ghsched_placement.tests import base

free_nodes = st.lists(
    st.tuples(st.integers(-3, 70), st.none() | st.integers(-5, 100)),
    min_size=1, max_size=4)
guests = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 100)),
                  min_size=1, max_size=3)


def row(name, free, updated=1):
    return HostReport(name, name, 'c', updated, tuple(
        NodeCapacity(number, cpus=64, pinned=cpus, pages={0: 9, 4: 9})
        for number, (cpus, _share) in enumerate(free)), guests=0,
        has_driver=True, placement_headroom=headroom.Headroom(
            float(updated), 0, 9, {number: share for number, (_cpus, share)
                                   in enumerate(free)}))


def make_need(*nodes):
    return Need(tuple(NodeNeed(pinned=cpus, bandwidth=share)
                      for cpus, share in nodes), 1, True)


class RoomClassTest(base.TestCase):

    @given(free_nodes, guests)
    def test_host_with_room_is_never_ruled_out(self, free, wanted):
        fits = any(
            all(cpus >= pinned and (share is None or share >= bandwidth)
                for (cpus, share), (pinned, bandwidth)
                in zip(some, wanted, strict=True))
            for some in itertools.permutations(free, len(wanted)))
        found = capacity_classes.classify_host(free).may_fit(
            capacity_classes.round_guest_needs(wanted))
        self.assertTrue(found or not fits)

    def test_host_without_room_is_ruled_out(self):
        for free, wanted in (
                ([(3, 100)], [(4, 0)]), ([(64, 19)], [(1, 20)]),
                # No single node has both.
                ([(32, 5), (2, 90)], [(8, 50)]),
                # One node is not enough for two.
                ([(32, 90), (4, 90)], [(8, 20), (8, 20)]),
                ([(32, 90)], [(1, 1), (1, 1)])):
            self.assertFalse(capacity_classes.classify_host(free).may_fit(
                capacity_classes.round_guest_needs(wanted)), (free, wanted))

    def test_class_counts_the_best_nodes_only(self):
        few, many = [(32, 90), (16, 95)], [(32, 90), (16, 95), (0, 0)]
        self.assertEqual(capacity_classes.classify_host(few),
                         capacity_classes.classify_host(many))
        self.assertNotEqual(capacity_classes.classify_host([(32, 90)]),
                            capacity_classes.classify_host(
                                [(32, 90), (32, 90)]))


class TurnsTest(base.TestCase):

    @given(st.integers(0, 200), st.data())
    def test_every_member_has_one_turn(self, count, data):
        start = data.draw(st.integers(0, max(0, count - 1)))
        self.assertEqual(list(range(count)), sorted(
            capacity_classes.iterate_hosts_scattered(range(count), start)))


class WalkTest(base.TestCase):
    """Steps of a walk; no test depends on the clock."""

    def setUp(self):
        super().setUp()
        self.index = host_index.Index(random.Random(1))  # noqa: S311
        self.looked = []
        fit = host_capacity.HostView.assign_nodes

        def count_and_fit(view, need):
            self.looked.append(view.row.uuid)
            return fit(view, need)
        self.useFixture(fixtures.MockPatchObject(
            host_capacity.HostView, 'assign_nodes', count_and_fit))

    def fill(self, count, free=((2, 10), (8, 0))):
        self.index.update_hosts(
            [row(f'full{number}', free) for number in range(count)], (), 0)

    def propose(self, *nodes, tried=()):
        self.looked.clear()
        return {view.row.uuid for view in self.index.propose_hosts(
            make_need(*nodes), lambda _row: True, tried, 0)}

    def test_request_that_fits_nowhere_looks_at_few_hosts(self):
        self.fill(3000)
        for wanted in ([(8, 50)], [(16, 0)], [(4, 20), (4, 20)]):
            self.assertEqual(set(), self.propose(*wanted))
            self.assertEqual(host_index.PROBES, len(self.looked))

    def test_host_with_room_is_found_among_many_full_ones(self):
        self.fill(2000)
        self.index.update_hosts([row('free', ((16, 60), (0, 0)))], (), 0)
        self.fill(3000)
        self.assertEqual({'free'}, self.propose((8, 50)))
        self.assertLessEqual(len(self.looked), host_index.PROBES + 1)
        self.assertEqual(set(), self.propose((8, 50), tried={'free'}))

    def test_request_that_fits_everywhere_looks_at_the_pool_alone(self):
        self.fill(3000)
        self.assertEqual(host_index.POOL, len(self.propose((1, 5))))
        self.assertEqual(host_index.POOL, len(self.looked))

    def test_hosts_of_several_classes_are_proposed_together(self):
        self.fill(3000)
        self.index.update_hosts([
            row(f'{cpus}-{number}', ((cpus, 80), )) for cpus in (16, 32, 48)
            for number in range(40)
        ], (), 0)
        found = self.propose((9, 60))
        self.assertEqual(host_index.POOL, len(found))
        self.assertEqual({'16', '32', '48'},
                         {name.partition('-')[0] for name in found})

    def test_class_follows_what_a_host_has_left(self):
        self.fill(1000)
        self.index.update_hosts([row('a', ((16, 60),))], (), 0)
        wanted = make_need((8, 50))
        self.index.add_claim('a', 'guest', wanted, 0)
        self.assertEqual(set(), self.propose((8, 50)))
        self.index.drop_claim('guest')
        self.assertEqual({'a'}, self.propose((8, 50)))
        self.index.set_free_amounts('a', {0: 40}, 9, 1, 1)
        self.assertEqual(set(), self.propose((8, 50)))
        self.index.update_hosts([row('a', ((16, 70),), updated=2)], (), 2)
        self.assertEqual({'a'}, self.propose((8, 50)))
        self.index.update_hosts([], ['a'], 3)
        self.assertEqual(set(), self.propose((8, 50)))
        self.assertEqual(1, len(self.index._classes.list_classes()))

    def test_every_host_is_in_its_class_whatever_happens(self):
        chance = random.Random(5)  # noqa: S311
        for step in range(400):
            name = f'h{chance.randrange(20)}'
            act = chance.randrange(5)
            if act == 0:
                self.index.update_hosts([row(name, [
                    (chance.randrange(20), chance.randrange(100))
                    for _node in range(2)], step)], (), step)
            elif act == 1:
                self.index.add_claim(name, f'g{chance.randrange(9)}',
                                     make_need((2, 10)), step)
            elif act == 2:
                self.index.drop_claim(f'g{chance.randrange(9)}')
            elif act == 3:
                self.index.set_free_amounts(name, {0: chance.randrange(100)},
                                            5, step, step)
            elif chance.random() < .3:
                self.index.update_hosts([], [name], step)
            filed = {host.view.row.uuid: known
                     for known in self.index._classes.list_classes()
                     for host in self.index._classes.list_members([known])}
            self.assertEqual({
                view.row.uuid: capacity_classes.classify_host(
                    (room.pinned, room.bandwidth) for room in view.nodes)
                for view in self.index.list_views()}, filed)
