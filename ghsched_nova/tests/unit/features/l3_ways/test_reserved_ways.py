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

"""Masks of the L3: whole, apart, in the region, and what is left is whole."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.features.l3_ways import reserved_ways
from ghsched_nova.resctrl import cache_facts
from ghsched_nova.tests.fixtures.sysfs_caches import read_caches
from ghsched_placement.tests import base


def a_cache(width=12, taken=0, shared=2, least=1):
    mask = cache_facts.make_low_bits_mask(width)
    return cache_facts.CacheWays(
        ('L3',),
        mask,
        cache_facts.choose_guest_ways(mask, taken, shared),
        least,
        {0: (0,)},
    )


@st.composite
def histories(draw):
    """A cache, and groups with ways that come and go, all of which fit."""
    width = draw(st.integers(4, 20))
    taken = draw(st.sampled_from([0, 1, 3 << (width - 2)]))
    one = a_cache(width, taken)
    steps = []
    for _step in range(draw(st.integers(1, 6))):
        wanted, left = {}, one.way_count
        for name in draw(st.sets(st.sampled_from('abcdef'))):
            ways = draw(st.integers(1, max(1, left)))
            if ways <= left:
                wanted[name] = ways
                left -= ways
        steps.append(wanted)
    return one, steps


class AssignTest(base.TestCase):

    @given(histories())
    def test_each_guest_has_its_ways_alone_and_the_rest_is_whole(self, given):
        one, steps = given
        held = {}
        for wanted in steps:
            found = reserved_ways.assign_reserved_masks(one, wanted, held)
            self.assertEqual(
                wanted, {name: mask.bit_count()
                         for name, mask in found.items()})
            together = 0
            for mask in found.values():
                self.assertTrue(reserved_ways.is_contiguous(mask))
                self.assertFalse(mask & together)
                self.assertFalse(mask & ~one.region)
                together |= mask
            rest = reserved_ways.compute_unreserved_ways(one, found, 0)
            self.assertFalse(rest & together)
            self.assertTrue(reserved_ways.is_contiguous(rest))
            self.assertEqual(one.mask & ~one.region, rest & ~one.region)
            held = found

    @given(histories())
    def test_correct_state_is_kept(self, given):
        one, steps = given
        first = reserved_ways.assign_reserved_masks(one, steps[0], {})
        self.assertEqual(
            first, reserved_ways.assign_reserved_masks(one, steps[0], first)
        )

    def test_guests_move_together_when_free_ways_are_apart(self):
        one = a_cache(8)
        held = {'b': 0b001100}
        self.assertEqual(
            {'b': 0b000011, 'c': 0b111100},
            reserved_ways.assign_reserved_masks(one, {'b': 2, 'c': 4}, held),
        )

    def test_a_guest_without_room_is_left_out(self):
        self.assertEqual(
            {'a': 0b11},
            reserved_ways.assign_reserved_masks(
                a_cache(6), {'a': 2, 'b': 5}, {}),
        )

    def test_no_guest_leaves_all_ways_to_all(self):
        self.assertEqual(
            cache_facts.make_low_bits_mask(12),
            reserved_ways.compute_unreserved_ways(a_cache(), {}, 0))

    @settings(max_examples=300)
    @given(st.integers(3, 16), st.integers(0, 2 ** 16), st.integers(1, 4),
           st.lists(st.integers(1, 5), max_size=6))
    def test_ways_that_no_guest_reserves_stay_adjacent_and_enough(
            self, width, devices, shared, wanted):
        mask = (1 << width) - 1
        region = cache_facts.choose_guest_ways(mask, devices, shared)
        if not region:
            return
        made = cache_facts.CacheWays(('L3',), mask, region, 1, {0: (0,)})
        found = reserved_ways.assign_reserved_masks(
            made, {f'g{n}': ways for n, ways in enumerate(wanted)}, {})
        if sum(wanted) <= region.bit_count():
            self.assertEqual(len(wanted), len(found))
        rest = reserved_ways.compute_unreserved_ways(made, found, 0)
        self.assertTrue(reserved_ways.is_contiguous(rest))
        self.assertGreaterEqual(rest.bit_count(), shared)
        for one in found.values():
            self.assertFalse(one & (rest | devices))


class ExclusiveTest(base.TestCase):
    """Groups of another program that are exclusive."""

    INFO = {'L3/cbm_mask': 'fff\n', 'L3/min_cbm_bits': '1\n',
            'L3/shareable_bits': 'c00\n'}

    def read(self, usage):
        return read_caches(self.INFO | {'L3/bit_usage': usage},
                           'L3:0=fff;1=fff\n', [[0], [1]])

    def test_rest_leaves_out_the_exclusive_ways_of_its_cache_alone(self):
        found = self.read('0=XXSSSSSSSSSS;1=XXSSEESSSSSS\n')
        for domain, ways in enumerate((0xfff, 0x03f)):
            self.assertEqual(ways, reserved_ways.compute_unreserved_ways(
                found, {}, domain))
        mine = reserved_ways.assign_reserved_masks(found, {'a': 2}, {})
        self.assertEqual(0, mine['a'] & 0xcc0)
        for domain in (0, 1):
            rest = reserved_ways.compute_unreserved_ways(found, mine, domain)
            self.assertTrue(reserved_ways.is_contiguous(rest))
            self.assertFalse(rest & (mine['a'] | found.exclusive.get(
                domain, 0)))
