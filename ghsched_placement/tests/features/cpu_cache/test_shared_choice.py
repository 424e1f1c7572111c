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

"""Shared CPUs of few L3 caches.

The judge tries all sets of caches.
"""

import itertools
import random

from ghsched_placement.features.cpu_cache import shared_choice
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: Random host nodes that are compared in the whole.
CASES = 2000


def make_caches(*sizes):
    ends = list(itertools.accumulate(sizes, initial=0))
    return [frozenset(range(first, last))
            for first, last in itertools.pairwise(ends)]


def choose(caches, loads, vcpus, ratio=None, current=frozenset()):
    """Choose among caches with a load for each cache, equal on its CPUs."""
    return shared_choice.choose_shared_cpus(
        caches, {cpu: load / len(cache) for cache, load
                 in zip(caches, loads, strict=True) for cpu in cache},
        vcpus, current, ratio)


def find_best(caches, loads, vcpus, ratio):
    """Return number of caches and fullest vCPUs per CPU, by all sets."""
    for number in range(1, len(caches) + 1):
        found = [max(loads[one] / len(caches[one]) for one in some)
                 + vcpus / sum(len(caches[one]) for one in some)
                 for some in itertools.combinations(range(len(caches)),
                                                    number)
                 if sum(len(caches[one]) for one in some) >= vcpus]
        if found and (ratio is None or min(found) <= ratio + 1e-6):
            return number, min(found)
    return len(caches), None


class ChoiceTest(base.TestCase):

    def test_least_loaded_of_the_fewest_caches_are_chosen(self):
        numbers = set()
        for seed in spaces.choose(range(CASES)):
            draw = random.Random(seed)  # noqa: S311
            caches = make_caches(*(draw.choice((4, 4, 4, 3, 2))
                                   for _cache in range(draw.randint(2, 5))))
            loads = [draw.randint(0, 12) for _cache in caches]
            vcpus = draw.randint(1, sum(map(len, caches)))
            ratio = draw.choice((None, 1.0, 2.0, 3.0))
            with self.subTest(seed=seed):
                found = choose(caches, loads, vcpus, ratio)
                number, density = find_best(caches, loads, vcpus, ratio)
                taken = [one for one in range(len(caches))
                         if caches[one] <= found]
                self.assertEqual(found, frozenset().union(
                    *(caches[one] for one in taken)))
                self.assertEqual(number, len(taken))
                if density is not None:
                    self.assertAlmostEqual(density, max(
                        loads[one] / len(caches[one]) for one in taken)
                        + vcpus / len(found), 5)
                numbers.add(number)
        self.assertGreater(len(numbers), 3)

    def test_bound_vcpus_stay_unless_other_caches_have_less_load(self):
        caches = make_caches(4, 4, 4)
        self.assertEqual(caches[2], choose(caches, [2, 2, 2], 2,
                                           current=caches[2]))
        # After the move the other cache would have as much.
        self.assertEqual(caches[2], choose(caches, [0, 1, 0], 2,
                                           current=caches[2]))
        self.assertEqual(caches[0], choose(caches, [1, 2, 2], 2,
                                           current=caches[2]))

    def test_more_caches_are_chosen_if_few_exceed_the_ratio(self):
        caches = make_caches(4, 4, 4)
        self.assertEqual(caches[0], choose(caches, [4, 4, 4], 4, 2.0))
        self.assertEqual(caches[0] | caches[1],
                         choose(caches, [6, 6, 6], 4, 2.0))
        self.assertEqual(caches[0], choose(caches, [6, 6, 6], 4))

    def test_too_many_vcpus_have_all_cpus(self):
        caches = make_caches(4, 4)
        self.assertEqual(frozenset(range(8)), choose(caches, [0, 0], 9))

    def test_fewest_caches_hold_among_many_of_unequal_size(self):
        caches = make_caches(*[2] * 60, *[8] * 4)
        found = choose(caches, [0] * 60 + [50] * 4, 32)
        self.assertEqual(frozenset().union(*caches[60:]), found)

    def test_vcpus_per_cpu_exceed_the_mean_by_one_guest_at_most(self):
        draw = random.Random(7)  # noqa: S311
        caches = make_caches(*[8] * 6)
        loads, guests = [0] * 6, 0
        while sum(loads) + 8 <= 48 * 2:
            vcpus = draw.choice((1, 2, 4, 6, 8))
            mean = sum(loads) / 48
            place = caches.index(choose(caches, loads, vcpus))
            loads[place] += vcpus
            guests += 1
            self.assertLessEqual(loads[place] / 8, mean + vcpus / 8)
        self.assertGreater(guests, 12)
