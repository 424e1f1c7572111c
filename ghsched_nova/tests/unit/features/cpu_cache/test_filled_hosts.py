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

"""Hosts on which guests come, move and go, in Nova's own fit.

The judge counts the caches of the CPUs that Nova pins, and the guests until
Nova refuses one.
"""

import random
import statistics
import types

from nova import objects

from ghsched_nova.nova_seams import numa
from ghsched_nova.tests.fixtures import states  # noqa: F401
from ghsched_nova.tests.unit.features.cpu_cache import test_cpu_cache
from ghsched_placement.fit import room
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: Random hosts whose guests are counted in the whole.
CASES = 500

#: CPUs of guests on hosts with L3 caches of eight CPUs.
SIZES = (1, 2, 2, 4, 4, 8)

RATIOS = types.SimpleNamespace(cpu_allocation_ratio=1.0,
                               ram_allocation_ratio=1.0)


class Filled:
    """Host NUMA node with guests of Nova's fit."""

    def __init__(self, caches, threads=1, number=0):
        self.cell, self.caches = test_cpu_cache.make_cell(
            caches, threads, number=number)
        self.cell.socket = None

    def boot(self, vcpus, wish):
        """Return the CPUs of another guest; None if Nova refuses it."""
        found = test_cpu_cache.fit(
            self.cell, test_cpu_cache.make_guest(vcpus), wish)
        if found:
            self.cell.pin_cpus(set(found))
        return found

    def stop(self, cpus):
        self.cell.unpin_cpus(set(cpus))

    def count(self, cpus):
        return test_cpu_cache.count(self.caches, cpus)

    def foretell(self, vcpus):
        """Return how many guests with "require" the fit of ghsched counts."""
        node, = numa.list_node_capacities(
            objects.NUMATopology(cells=[self.cell]), RATIOS)
        return room.count_guest_nodes(
            node, GuestNode(pinned=vcpus, cpu_cache='require'), None)


class BootTest(base.TestCase):

    def setUp(self):
        super().setUp()
        numa.patch_numa_fit()

    def test_as_many_guests_fit_as_nova_starts(self):
        counts = set()
        for seed in spaces.choose(range(CASES)):
            draw = random.Random(seed)  # noqa: S311
            node = Filled([draw.choice((4, 4, 4, 3))
                           for _cache in range(draw.randint(2, 6))])
            total = len(node.cell.pcpuset)
            node.cell.pinned_cpus = set(draw.sample(
                range(total), draw.randint(0, total // 2)))
            vcpus = draw.randint(1, min(10, total))
            with self.subTest(seed=seed):
                expected, started = node.foretell(vcpus), 0
                while node.boot(vcpus, 'require'):
                    started += 1
                self.assertEqual(expected, started)
                counts.add(started)
        self.assertGreater(len(counts), 2)

    def count_until_refusal(self, seed, wish):
        """Return how many guests have been started as guests come and go."""
        draw, node = random.Random(seed), Filled([8] * 8)  # noqa: S311
        started, guests = 0, []
        while found := node.boot(draw.choice(SIZES), wish):
            guests.append(found)
            started += 1
            if draw.random() < .3:
                node.stop(guests.pop(draw.randrange(len(guests))))
        return started

    def test_key_costs_no_guest_in_the_median(self):
        numbers = {wish: statistics.median(
            self.count_until_refusal(seed, wish) for seed in range(100))
            for wish in (None, 'prefer', 'require')}
        self.assertGreaterEqual(numbers['prefer'], numbers[None])
        self.assertGreaterEqual(numbers['require'], numbers[None])

    def test_choice_keeps_whole_caches_for_those_that_require_them(self):
        """Guests of whole caches until refusal, beside guests that prefer."""
        found = {}
        for wish in (None, 'prefer'):
            found[wish] = []
            for seed in range(60):
                draw, node = random.Random(seed), Filled([8] * 8)  # noqa: S311
                guests = [node.boot(draw.choice(SIZES), wish)
                          for _guest in range(14)]
                for guest in draw.sample(
                        [one for one in guests if one], 5):
                    node.stop(guest)
                whole = 0
                while node.boot(8, 'require'):
                    whole += 1
                found[wish].append(whole)
        self.assertGreater(statistics.mean(found['prefer']),
                           statistics.mean(found[None]))


class MoveTest(base.TestCase):

    def test_required_caches_hold_through_300_random_moves(self):
        numa.patch_numa_fit()
        draw = random.Random(300)  # noqa: S311
        nodes = [Filled([6, 6, 6, 4], 2, number) for number in range(3)]
        total = {node: sorted(map(len, node.caches), reverse=True)
                 for node in nodes}
        guests, moved, spans = [], 0, set()

        def check(node, cpus):
            promised = next(number for number in range(1, 5)
                            if sum(total[node][:number]) >= len(cpus))
            self.assertLessEqual(node.count(cpus), promised)
            spans.add(promised)
        while moved < 300:
            node, vcpus = draw.choice(nodes), draw.choice((2, 3, 6, 12, 16))
            if draw.random() < .4 or not guests:
                if cpus := node.boot(vcpus, 'require'):
                    guests.append((node, cpus))
            elif draw.random() < .2:
                before, cpus = guests.pop(draw.randrange(len(guests)))
                before.stop(cpus)
                continue
            else:
                place = draw.randrange(len(guests))
                before, held = guests[place]
                if node is not before and (
                        cpus := node.boot(len(held), 'require')):
                    before.stop(held)
                    guests[place] = node, cpus
                    moved += 1
            for node, cpus in guests:
                check(node, cpus)
        self.assertEqual({1, 2}, spans)
