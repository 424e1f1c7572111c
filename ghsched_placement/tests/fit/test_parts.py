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

"""Amounts that are taken from few of several stocks, such as L3 caches.

The judge tries every way to divide every amount.
"""

import functools
import itertools
import random

from ghsched_placement.fit import counting
from ghsched_placement.fit import model
from ghsched_placement.fit import node_capacity
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit import parts
from ghsched_placement.fit import room
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: Random host nodes that are compared in the whole.
CASES = 3000

REQUIRE = GuestNode(pinned=8, memory=1, cpu_cache='require')


def yield_left(free, amount, stocks):
    """Yield what is left after each way to take an amount."""
    for number in range(1, stocks + 1):
        for chosen in itertools.combinations(range(len(free)), number):
            for first in itertools.product(*(
                    range(1, free[one] + 1) for one in chosen[:-1])):
                last = amount - sum(first)
                if 1 <= last <= free[chosen[-1]]:
                    left = list(free)
                    for one, taken in zip(chosen, (*first, last),
                                          strict=True):
                        left[one] -= taken
                    yield tuple(sorted(filter(None, left)))


@functools.cache
def count_by_trying(free, amount, stocks):
    return max((1 + count_by_trying(left, amount, stocks)
                for left in set(yield_left(free, amount, stocks))), default=0)


def count_promised(totals, amount):
    """The fewest stocks that hold an amount, by trying all sets of them."""
    return next((number for number in range(1, len(totals) + 1)
                 if any(sum(some) >= amount for some
                        in itertools.combinations(totals, number))), 0)


def draw(seed):
    """Return totals and free amounts of a node's caches, and an amount."""
    chance = random.Random(seed)  # noqa: S311
    count, size = chance.randint(1, 4), chance.choice((3, 4, 4, 6))
    totals = [size if chance.random() < .8 else chance.randint(1, size)
              for _cache in range(count)]
    return totals, [chance.choice((total, chance.randint(0, total)))
                    for total in totals], chance.randint(1, sum(totals))


def make_room(totals, free, number=0, **values):
    return NodeCapacity(
        number, dedicated=sum(totals), dedicated_used=sum(totals) - sum(free),
        memory=4096, caches=tuple(
            CacheCpus(total, total - left)
            for total, left in zip(totals, free, strict=True)), **values)


class JudgedTest(base.TestCase):

    def test_counts_of_random_host_nodes_are_those_of_every_way(self):
        several = 0
        for seed in spaces.choose(range(CASES)):
            totals, free, amount = draw(seed)
            promised = count_promised(totals, amount)
            several += promised > 1
            guest = GuestNode(pinned=amount, cpu_cache='require')
            with self.subTest(totals=totals, free=free, amount=amount):
                found = room.count_guest_nodes(
                    make_room(totals, free), guest, None)
                self.assertEqual(count_by_trying(
                    tuple(sorted(filter(None, free))), amount, promised),
                    found)
                self.assertEqual(not found, any(make_room(
                    totals, free).find_shortages(guest)))
        self.assertGreater(several, 20)

    def test_guests_placed_one_by_one_reach_the_count_of_the_host(self):
        for seed in spaces.choose(range(500)):
            totals, free, amount = draw(seed)
            one, two = make_room(totals, free), make_room(
                totals, free[::-1], 1)
            caches = room.list_cache_totals([one, two])
            nodes = []
            for each in (one, two):
                left, most = room.read_free_amounts(each, (), len(caches))
                nodes.append(model.Node(each.node, left, model.Units(
                    most, (1,) * len(most), (1,) * len(most))))
            host = model.Host((), model.Units((), (), ()), tuple(nodes))
            need = model.Need((), (room.make_need(
                GuestNode(pinned=amount, cpu_cache='require'), (), None,
                caches=len(caches)),))
            placed, now = 0, host
            while chosen := counting.choose_host_nodes(now, need):
                now, placed = now.subtract_guest(need, chosen), placed + 1
            self.assertEqual(counting.count_guests(host, need).guests, placed)
            after, number = counting.place_guests(host, need, placed + 1)
            self.assertEqual((now.nodes, placed), (after.nodes, number))


class NodeTest(base.TestCase):

    def test_shortage_has_the_figures_of_the_fullest_caches(self):
        found, = make_room([8, 8, 8], [6, 3, 3]).find_shortages(REQUIRE)
        self.assertEqual(('dedicated CPUs of one L3 cache', 8, 6, 8), found)
        found, = make_room([4, 4, 4], [3, 3, 2]).find_shortages(REQUIRE)
        self.assertEqual(('dedicated CPUs of 2 L3 caches', 8, 6, 8), found)

    def test_too_few_dedicated_cpus_are_the_only_shortage(self):
        found, = make_room([8, 8], [4, 3]).find_shortages(REQUIRE)
        self.assertEqual(node_capacity.DEDICATED, found.resource)

    def test_unknown_caches_refuse_no_guest(self):
        unknown = NodeCapacity(0, dedicated=16, memory=64)
        self.assertEqual([], unknown.find_shortages(REQUIRE))
        self.assertEqual(2, room.count_guest_nodes(unknown, REQUIRE, None))
        self.assertEqual([], make_room([8, 8], [4, 4]).find_shortages(
            GuestNode(pinned=8, memory=1, cpu_cache='prefer')))

    def test_placed_guest_takes_cpus_as_its_flavor_says(self):
        before = make_room([8, 8, 8], [8, 6, 5])
        for wish, left in (('', [3, 6, 5]), ('prefer', [8, 6, 0]),
                           ('require', [8, 6, 0])):
            after = before.subtract_guest_node(
                GuestNode(pinned=5, cpu_cache=wish))
            self.assertEqual(left, [one.free for one in after.caches], wish)
        # Nova takes CPUs of more caches where the first are used up.
        self.assertEqual([0, 0, 1], [one.free for one in before
                         .subtract_guest_node(GuestNode(pinned=18)).caches])

    def test_different_guest_nodes_are_a_lower_bound_if_not_at_the_most(self):
        rooms = [make_room([4, 4], [4, 4], number) for number in (0, 1)]
        nodes = []
        for each in rooms:
            left, most = room.read_free_amounts(each, (), 2)
            nodes.append(model.Node(each.node, left, model.Units(
                most, (1,) * len(most), (1,) * len(most))))
        need = model.Need((), tuple(room.make_need(
            GuestNode(pinned=pinned, cpu_cache='require'), (), None, caches=2)
            for pinned in (3, 1)))
        count = counting.count_guests(
            model.Host((), model.Units((), (), ()), tuple(nodes)), need)
        self.assertEqual((4, True), (count.guests, count.is_exact))


class MakeCacheCpusTest(base.TestCase):

    def make(self, dedicated, caches, pinned=()):
        return node_capacity.make_cache_cpus(
            frozenset(dedicated), frozenset(pinned),
            [frozenset(one) for one in caches])

    def test_dedicated_cpus_are_counted_by_cache_in_their_order(self):
        self.assertEqual((CacheCpus(2, 1), CacheCpus(4, 0)), self.make(
            range(2, 8), [range(4, 9), range(4)], [3]))

    def test_one_cache_and_unknown_ones_are_none(self):
        self.assertEqual((), self.make(range(4), [range(8)]))
        self.assertEqual((), self.make(range(4), [range(4), range(4, 8)]))
        self.assertEqual((), self.make(range(9), [range(4), range(4, 8)]))


class TakeTest(base.TestCase):

    def test_tightest_stock_is_chosen_last(self):
        self.assertEqual((1, 2), parts.choose_parts([3, 8, 5, 7], 12, 2))
        self.assertEqual((), parts.choose_parts([3, 8], 12, 2))
        self.assertEqual((8, 0, 4), parts.take_amounts([8, 3, 4], 3, 2))
        self.assertEqual((8, 3), parts.take_amounts([8, 3], 12, 2))
