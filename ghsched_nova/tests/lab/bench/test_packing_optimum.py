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

"""The optimum of the packing benchmark against an exhaustive search."""

import functools
import importlib
import itertools
from pathlib import Path
import random
import sys
from unittest import mock

from ghsched_placement.tests import base

TOP = Path(__file__).parents[4]
with mock.patch('sys.path', [str(TOP / 'tools/bench'), *sys.path]):
    packing = importlib.import_module('packing')
    packing_optimum = importlib.import_module('packing_optimum')
    packing_policies = importlib.import_module('packing_policies')

#: Hosts so small that all placements can be tried.
SMALL = packing.Shape(hosts=2, nodes=2, groups=2,
                      node=packing.Node(4, 4, 10, 2))
WIDE = packing.Shape(hosts=1, nodes=3, groups=4,
                     node=packing.Node(3, 3, 10, 1))
ONE = packing.Shape(hosts=3, nodes=1, groups=2,
                    node=packing.Node(4, 4, 10, 2))


def some_guests(shape, seed, count=6):
    dice = random.Random(seed)  # noqa: S311
    flavors = [
        packing.Flavor(dice.randint(1, min(2, shape.nodes)), packing.Node(
            dice.randint(1, 3), dice.randint(1, 3), dice.choice((0, 3, 5)),
            dice.randint(0, 1)))
        for _ in range(3)]
    return dice.choices(flavors, k=count)


def search(shape, guests):
    """Yield the set of guests of each way to place some of them."""
    names = ('cpus', 'memory_mb', 'bandwidth', 'vfs')
    whole = tuple(getattr(shape.node, name) for name in names)

    @functools.cache
    def ways(number, free, groups):
        if number == len(guests):
            return frozenset({()})
        found = set(ways(number + 1, free, groups))
        guest = guests[number]
        need = tuple(getattr(guest.node, name) for name in names)
        controlled = bool(guest.node.bandwidth)
        for host in range(shape.hosts):
            if groups[host] < controlled:
                continue
            for nodes in itertools.combinations(range(shape.nodes),
                                                guest.nodes):
                left = list(free)
                for node in nodes:
                    place = host * shape.nodes + node
                    left[place] = tuple(
                        have - want for have, want
                        in zip(left[place], need, strict=True))
                if min(min(one) for one in left) < 0:
                    continue
                fewer = list(groups)
                fewer[host] -= controlled
                found |= {(number, *rest) for rest in ways(
                    number + 1, tuple(left), tuple(fewer))}
        return frozenset(found)
    return ways(0, (whole,) * (shape.hosts * shape.nodes),
                (shape.groups,) * shape.hosts)


class OptimumTest(base.TestCase):

    def test_optimum_is_that_of_an_exhaustive_search(self):
        for shape, seed in itertools.product((SMALL, WIDE, ONE), range(8)):
            guests = some_guests(shape, seed)
            ways = search(shape, guests)
            patterns = packing_optimum.patterns(shape, guests)
            found = packing_optimum.best(patterns, guests)
            self.assertAlmostEqual(max(
                sum(packing.worth(shape, guests[number]) for number in way)
                for way in ways), found.value)
            self.assertAlmostEqual(found.value, found.bound)
            most = max(number for number in range(len(guests) + 1)
                       if tuple(range(number)) in ways)
            self.assertEqual(most, packing_optimum.in_turn(
                patterns, guests).value)

    def test_repacking_takes_a_guest_where_all_can_be_packed(self):
        for shape, seed in itertools.product((SMALL, WIDE), range(8)):
            guests = some_guests(shape, seed)
            ways = search(shape, guests)
            taken = ()
            for number in range(len(guests)):
                if (*taken, number) in ways:
                    taken = (*taken, number)
            self.assertAlmostEqual(
                sum(packing.worth(shape, guests[number])
                    for number in taken),
                packing_optimum.ceiling(packing_optimum.patterns(
                    shape, guests), guests))

    def test_no_way_to_choose_hosts_exceeds_what_can_be_had(self):
        shape = packing.Shape(hosts=2, nodes=2)
        for seed in range(3):
            guests = packing.mix(shape, seed, 4, 1.3)
            patterns = packing_optimum.patterns(shape, guests)
            most = packing_optimum.best(patterns, guests).value
            bound = packing_optimum.churn_bound(
                patterns, guests, packing_policies.LOAD)
            self.assertTrue(0 < bound <= 1)
            for chooser, known in packing_policies.CHOOSERS.values():
                self.assertLessEqual(packing_policies.arrive(
                    shape, guests, chooser, known), most + 1e-9)

    def test_all_guests_are_served_where_few_come(self):
        shape = packing.Shape(hosts=2, nodes=2)
        guests = packing.mix(shape, 1, 4, 1.3)
        patterns = packing_optimum.patterns(shape, guests)
        stays = [*packing.stays(shape, guests, 1, 60, 0.2)]
        self.assertEqual(1, packing_optimum.churn_ceiling(patterns, stays))
        self.assertEqual(1, packing_policies.churn(
            shape, guests, packing_policies.first_fit, 1, 60, 0.2))
        self.assertAlmostEqual(1, packing_optimum.churn_bound(
            patterns, guests, 0.2))

    def test_too_many_patterns_are_refused(self):
        shape = packing.Shape(hosts=1, nodes=8, node=packing.Node(
            64, 64, 100, 64))
        guests = [packing.Flavor(2, packing.Node(1, number, 0, 0))
                  for number in range(1, 9)]
        self.assertRaises(packing_optimum.TooManyPatterns,
                          packing_optimum.patterns, shape, guests)


class PlacedTest(base.TestCase):

    def test_guests_that_fit_together_count(self):
        flavor = packing.Flavor(1, packing.Node(3, 1, 5, 0))
        other = packing.Flavor(1, packing.Node(2, 1, 0, 0))
        here, there = packing.Placed(0, (0,)), packing.Placed(0, (1,))
        for guests, places, worth, turn in (
                ([flavor, other], [here, here], flavor, 1),
                ([flavor, other], [here, there], None, 2),
                ([flavor, flavor], [here, None], flavor, 1),
                ([other], [None], 0, 0)):
            value = (sum(packing.worth(SMALL, one) for one in guests)
                     if worth is None
                     else worth and packing.worth(SMALL, worth))
            self.assertAlmostEqual(
                value, packing.best(SMALL, guests, places).value)
            self.assertEqual(
                turn, packing.in_turn(SMALL, guests, places).value)
