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

"""Choice of nodes that leaves least that the next guests cannot use."""


from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.packing import gradient
from ghsched_placement.features.packing.gradient import GuestKind
from ghsched_placement.tests import base

TOTAL = (16, 0, 32768, 100, 8)
SMALL = GuestKind(((2, 0, 4096, 10, 0),), True)
WIDE = GuestKind(((2, 0, 4096, 0, 0),) * 2)

amounts = st.tuples(st.integers(0, 16), st.just(0), st.integers(0, 32768),
                    st.integers(0, 100), st.integers(0, 8))
kinds = st.builds(GuestKind,
                  st.lists(amounts, min_size=1, max_size=3).map(tuple),
                  st.booleans())


def room(*free, groups=12):
    return gradient.FreeCapacity(dict(enumerate(free)),
                                 dict.fromkeys(range(len(free)), TOTAL),
                                 groups)


rooms = st.builds(lambda free, groups: room(*free, groups=groups),
                  st.lists(amounts, min_size=1, max_size=4),
                  st.none() | st.integers(0, 3))


def measure_unusable_capacity(capacity, kind):
    """Return how much free capacity of a host a kind of guest cannot use."""
    return gradient._sum_unusable_capacity(
        gradient._sum_free_fractions_by_node(capacity),
        gradient._find_fitting_nodes(capacity, kind.nodes), capacity.groups,
        kind)


class FragmentedTest(base.TestCase):

    def test_fragmented_of_an_empty_host_is_0(self):
        self.assertEqual(0,
                         measure_unusable_capacity(room(TOTAL, TOTAL),
                                                   WIDE))

    def test_fragmented_of_a_host_without_room_is_all(self):
        self.assertEqual(4,
                         measure_unusable_capacity(room(TOTAL), WIDE))
        self.assertEqual(8, measure_unusable_capacity(
            room(TOTAL, TOTAL, groups=0), SMALL))

    def test_fragmented_counts_nodes_that_lack_something(self):
        self.assertEqual(2.5, measure_unusable_capacity(
            room(TOTAL, (16, 0, 16384, 0, 8)), SMALL))

    @given(rooms, kinds)
    def test_fragmented_is_between_0_and_all(self, given_room, kind):
        found = measure_unusable_capacity(given_room, kind)
        self.assertGreaterEqual(found, 0)
        self.assertLessEqual(found, 4 * len(given_room.free))

    @given(rooms, kinds)
    def test_fragmented_ignores_the_numbers_of_nodes(self, given_room, kind):
        nodes = list(given_room.free)
        turned = gradient.FreeCapacity(
            {node: given_room.free[other]
             for node, other in zip(nodes, nodes[::-1], strict=True)},
            given_room.total, given_room.groups)
        self.assertAlmostEqual(measure_unusable_capacity(given_room,
                                                         kind),
                               measure_unusable_capacity(turned,
                                                         kind))


class GradientTest(base.TestCase):

    def cost(self, before, order, mix, kind=SMALL):
        growth = gradient.FragmentationGrowth(before, mix)
        return growth.compute_fragmentation_growth(kind, order)

    @given(rooms, kinds, st.lists(kinds, min_size=1, max_size=3),
           st.randoms())
    def test_growth_equals_the_difference_of_whole_fragmentations(
            self, before, kind, others, chance):
        mix = {other: 1 / number for number, other
               in enumerate(others, start=1)}
        order = chance.sample(range(6), len(kind.nodes))
        after = before.subtract_guest(kind, order)
        expected = sum(part * (measure_unusable_capacity(after, other)
                               - measure_unusable_capacity(before,
                                                           other))
                       for other, part in mix.items())
        growth = gradient.FragmentationGrowth(before, mix)
        for _time in range(2):
            self.assertAlmostEqual(expected,
                                   growth.compute_fragmentation_growth(kind,
                                                                       order))

    def test_growth_is_least_on_a_node_of_no_use_to_others(self):
        mix = {GuestKind(((8, 0, 16384, 60, 0),), True): 1.0}
        before = room(TOTAL, (6, 0, 8192, 30, 0))
        self.assertLess(self.cost(before, [1], mix),
                        self.cost(before, [0], mix))

    def test_growth_is_more_where_it_parts_two_whole_nodes(self):
        full = (2, 0, 4096, 10, 8)
        mix = {WIDE: 1.0}
        pair, single = room(TOTAL, full), room(full)
        self.assertLess(self.cost(single, [0], mix),
                        self.cost(pair, [1], mix))


class MixTest(base.TestCase):

    def test_shares_are_the_parts_of_the_requests(self):
        mix = gradient.Mix()
        for kind in (SMALL, WIDE, SMALL, SMALL):
            mix.add_request(kind)
        self.assertEqual({SMALL: 0.75, WIDE: 0.25}, mix.get_kind_shares())

    def test_shares_forget_old_requests(self):
        mix = gradient.Mix()
        mix.add_request(WIDE)
        for _number in range(gradient.REMEMBERED):
            mix.add_request(SMALL)
        self.assertEqual({SMALL: 1.0}, mix.get_kind_shares())

    def test_shares_have_the_16_most_frequent_kinds(self):
        mix = gradient.Mix()
        for number in range(20):
            mix.add_request(GuestKind(((number, 0, 1, 0, 0),)))
        self.assertEqual(16, len(mix.get_kind_shares()))
