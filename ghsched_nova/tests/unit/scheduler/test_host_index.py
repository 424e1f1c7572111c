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
import random

import fixtures
from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.scheduler import host_index
from ghsched_nova.scheduler.host_index import Need
from ghsched_nova.scheduler.host_index import NodeNeed
from ghsched_nova.scheduler.host_index import NodeRoom
from ghsched_nova.scheduler.host_index import Row
from ghsched_placement import headroom
from ghsched_placement.tests import base

NIC = ('15b3', '101e')


def node(number=0, pinned=8, **values):
    return NodeRoom(number, cpus=8, pinned=pinned,
                    pages={0: 4096, 4: 4096, **values.pop('pages', {})},
                    devices=values.pop('devices', {}), **values)


def row(name='a', nodes=None, bandwidth=None, guests=0, updated=1,
        counted=0, groups=5, **values):
    left = bandwidth is not None and headroom.Headroom(
        float(updated), counted, groups, bandwidth)
    return Row(uuid=name, name=name, cell='c', updated=updated,
               nodes=tuple(nodes or (node(0), node(1))), guests=guests,
               steered=True, left=left or None, **values)


def need(*nodes, **values):
    values.setdefault('groups', 1)
    return Need(tuple(nodes or [NodeNeed(pinned=4, memory=1024,
                                         bandwidth=30)]), **values)


class FitTest(base.TestCase):

    def fit(self, wanted, **values):
        return host_index.Host(row(**values)).fit(wanted)

    def test_bandwidth_that_is_not_known_may_be_enough(self):
        self.assertEqual((0,), self.fit(need()))

    def test_bandwidth_of_each_node(self):
        self.assertEqual((1,), self.fit(need(), bandwidth={0: 29, 1: 30}))
        self.assertIsNone(self.fit(need(), bandwidth={0: 29, 1: 29}))

    def test_control_groups(self):
        self.assertIsNone(self.fit(need(), bandwidth={0: 90}, groups=0))

    def test_cpus_memory_pages_and_devices(self):
        for wanted in (NodeNeed(pinned=9), NodeNeed(shared=1),
                       NodeNeed(memory=4097),
                       NodeNeed(memory=1, page=2048),
                       NodeNeed(devices=((NIC, 1),))):
            self.assertIsNone(self.fit(need(wanted)), wanted)

    def test_nodes_with_devices_and_whole_nodes_are_left_to_others(self):
        nodes = (node(0, devices={NIC: 4}), node(1), node(2, pinned=7))
        self.assertEqual((2,), self.fit(need(), nodes=nodes))
        self.assertEqual((1,), self.fit(need(), nodes=nodes[:2]))

    def test_a_host_without_our_driver(self):
        host = host_index.Host(dataclasses.replace(row(), steered=False))
        self.assertIsNone(host.fit(need(steered=True)))
        self.assertEqual((0,), host.fit(need(groups=0)))

    @given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 100)),
                    min_size=1, max_size=4),
           st.integers(1, 8), st.integers(1, 100), st.integers(1, 3))
    def test_guest_nodes_that_are_alike_are_fitted_whenever_they_can_be(
            self, rooms, pinned, bandwidth, count):
        wanted = NodeNeed(pinned=pinned, bandwidth=bandwidth)
        host = host_index.Host(row(
            nodes=[node(number, pinned=left)
                   for number, (left, _) in enumerate(rooms)],
            bandwidth={number: share
                       for number, (_, share) in enumerate(rooms)}))
        possible = any(
            all(room.holds(wanted) for room in some)
            for some in itertools.permutations(host.rooms, count))
        found = host.fit(need(*[wanted] * count))
        self.assertEqual(possible, found is not None)
        if found is not None:
            self.assertEqual(count, len(set(found)))


class HostTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = host_index.Host(row(bandwidth={0: 100, 1: 100}))

    def left(self):
        return [(room.pinned, room.bandwidth) for room in self.host.rooms]

    def test_a_claim_takes_until_the_host_has_reported_the_guest(self):
        self.host.claim('x', need(), now=1)
        self.assertEqual([(4, 70), (8, 100)], self.left())
        self.assertEqual(4, self.host.groups)
        # Nova's figures come first, ours with the next period.
        more = self.host.report(row(
            nodes=(node(0, pinned=4, pages={0: 3072}), node(1)),
            bandwidth={0: 100, 1: 100},
            guests=1, updated=2), now=2)
        self.assertFalse(more)
        self.assertEqual([(4, 70), (8, 100)], self.left())
        self.host.report(row(
            nodes=(node(0, pinned=4, pages={0: 3072}), node(1)),
            bandwidth={0: 70, 1: 100},
            guests=1, counted=1, updated=3, groups=4), now=3)
        self.assertEqual([(4, 70), (8, 100)], self.left())
        self.assertEqual(4, self.host.groups)

    def test_a_claim_that_never_comes_is_forgotten(self):
        self.host.claim('x', need(), now=1)
        self.host.report(row(bandwidth={0: 100, 1: 100}, updated=2),
                         now=2 + host_index.CLAIM_AGE)
        self.assertEqual([(8, 100), (8, 100)], self.left())

    def test_a_released_claim(self):
        self.host.claim('x', need(), now=1)
        self.host.release('x')
        self.assertEqual([(8, 100), (8, 100)], self.left())

    def test_placement_knows_better(self):
        self.host.claim('x', need(), now=1)
        self.host.hear({0: 50, 1: 20}, 3, now=2)
        self.assertEqual([(4, 50), (8, 20)], self.left())
        self.assertEqual(3, self.host.groups)

    def test_more_room_clears_refusals(self):
        wanted = need()
        self.host.refused[wanted] = 1.
        self.assertFalse(self.host.report(
            row(bandwidth={0: 90, 1: 90}, updated=2), now=2))
        self.assertTrue(self.host.is_refused(wanted, 2))
        self.assertTrue(self.host.report(
            row(bandwidth={0: 91, 1: 90}, updated=3), now=3))
        self.assertFalse(self.host.is_refused(wanted, 3))

    def test_a_refusal_holds_for_a_while(self):
        wanted = need()
        self.host.refused[wanted] = 1.
        self.assertFalse(self.host.is_refused(
            wanted, 1 + host_index.REFUSAL_AGE))


class IndexTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.index = host_index.Index(random.Random(1))  # noqa: S311
        self.index.report([row(name) for name in 'abc'], (), 0)

    def names(self, wanted=None, allowed=lambda _row: True, tried=()):
        return sorted(host.row.name for host in self.index.propose(
            wanted or need(), allowed, tried, 0))

    def test_hosts_with_room_that_were_not_tried(self):
        self.assertEqual(['a', 'b', 'c'], self.names())
        self.assertEqual(['c'], self.names(
            allowed=lambda host: host.name != 'a', tried=['b']))

    def test_no_host(self):
        self.assertEqual([], host_index.Index().propose(
            need(), lambda _row: True, (), 0))

    def test_those_that_are_down_or_gone(self):
        self.index.set_unavailable(['a'])
        self.index.report([], ['b', 'z'], 0)
        self.assertEqual(['c'], self.names())

    def test_no_more_than_are_weighed(self):
        self.index.report([row(f'h{number}') for number in range(99)], (), 0)
        self.assertEqual(host_index.POOL, len(self.names()))

    def test_refused_ones(self):
        self.index.refuse(['a', 'z'], need(), 0)
        self.assertEqual(['b', 'c'], self.names())
        self.assertEqual(['a', 'b', 'c'], self.names(need(label='other')))

    def test_what_may_make_a_refusal_out_of_date(self):
        before = self.index.gains
        self.index.report([row('a', updated=1), row('b', updated=2)], (), 0)
        self.index.set_unavailable(['c'])
        self.assertEqual(before, self.index.gains)
        self.index.set_unavailable([])
        self.index.report([row('d')], (), 0)
        self.assertEqual(before + 2, self.index.gains)

    def test_a_gain_of_a_host_without_room_changes_no_refusal(self):
        big = need(NodeNeed(pinned=8, memory=1024))
        self.index.report([row(name, [node(0, 1)], updated=2)
                           for name in 'abc'], (), 0)
        before = self.index.gains
        self.index.report([row('a', [node(0, 7)], updated=3)], (), 0)
        self.assertFalse(self.index.may_fit_since(big, before))
        self.assertTrue(self.index.may_fit_since(need(), before))
        self.index.report([row('b', [node(0, 8)], updated=3)], (), 0)
        self.assertTrue(self.index.may_fit_since(big, before))
        self.assertFalse(self.index.may_fit_since(big, self.index.gains))

    def test_a_host_that_is_back_changes_a_refusal(self):
        self.index.set_unavailable(['a'])
        before = self.index.gains
        self.index.set_unavailable([])
        self.assertTrue(self.index.may_fit_since(need(), before))

    def test_more_gains_than_are_remembered_change_any_refusal(self):
        self.useFixture(fixtures.MonkeyPatch(
            f'{host_index.__name__}._GAINS', 2))
        index = host_index.Index()
        big = need(NodeNeed(pinned=99, memory=1024))
        index.report([row('a'), row('b')], (), 0)
        self.assertFalse(index.may_fit_since(big, 0))
        index.report([row('c')], (), 0)
        self.assertTrue(index.may_fit_since(big, 0))

    def test_a_guest_that_is_scheduled_again_is_on_one_host(self):
        self.index.claim('a', 'x', need(), 0)
        self.index.claim('b', 'x', need(), 0)
        self.assertEqual([8, 4, 8], [
            self.index.hosts[name].rooms[0].pinned for name in 'abc'])

    def test_rivals_choose_different_hosts_of_the_best(self):
        best = [str(number) for number in range(12)]
        chosen = {tuple(self.index.choose(best, 3)) for _ in range(20)}
        self.assertGreater(len(chosen), 10)
        self.assertEqual(['0'], self.index.choose(['0'], 3))
