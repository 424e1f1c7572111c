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

from pathlib import Path
import tempfile

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.features.l3_ways import cache
from ghsched_nova.resctrl import schemata
from ghsched_placement.tests import base


def a_cache(width=12, taken=0, shared=2, least=1):
    mask = cache.make_low_bits_mask(width)
    return cache.Cache(
        ('L3',),
        mask,
        cache.choose_guest_ways(mask, taken, shared),
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
            found = cache.assign_reserved_masks(one, wanted, held)
            self.assertEqual(
                wanted, {name: mask.bit_count()
                         for name, mask in found.items()})
            together = 0
            for mask in found.values():
                self.assertTrue(cache.is_contiguous(mask))
                self.assertFalse(mask & together)
                self.assertFalse(mask & ~one.region)
                together |= mask
            rest = cache.compute_unreserved_ways(one, found, 0)
            self.assertFalse(rest & together)
            self.assertTrue(cache.is_contiguous(rest))
            self.assertEqual(one.mask & ~one.region, rest & ~one.region)
            held = found

    @given(histories())
    def test_correct_state_is_kept(self, given):
        one, steps = given
        first = cache.assign_reserved_masks(one, steps[0], {})
        self.assertEqual(
            first, cache.assign_reserved_masks(one, steps[0], first)
        )

    def test_guests_move_together_when_free_ways_are_apart(self):
        one = a_cache(8)
        held = {'b': 0b001100}
        self.assertEqual(
            {'b': 0b000011, 'c': 0b111100},
            cache.assign_reserved_masks(one, {'b': 2, 'c': 4}, held),
        )

    def test_a_guest_without_room_is_left_out(self):
        self.assertEqual(
            {'a': 0b11},
            cache.assign_reserved_masks(a_cache(6), {'a': 2, 'b': 5}, {}),
        )

    def test_no_guest_leaves_all_ways_to_all(self):
        self.assertEqual(cache.make_low_bits_mask(12),
                         cache.compute_unreserved_ways(a_cache(), {}, 0))

    @given(st.integers(0, 2 ** 20))
    def test_longest_run_is_whole_and_no_run_is_longer(self, mask):
        run = cache.find_longest_bit_run(mask)
        self.assertEqual(run, run & mask)
        self.assertTrue(not mask or cache.is_contiguous(run))
        self.assertEqual(max(map(len, f'{mask:b}'.split('0'))),
                         run.bit_count())


class ExclusiveTest(base.TestCase):
    """Groups of another program that are exclusive."""

    INFO = {'L3/cbm_mask': 'fff\n', 'L3/min_cbm_bits': '1\n',
            'L3/shareable_bits': 'c00\n'}

    def read(self, usage):
        return ReadTest.read(self, self.INFO | {'L3/bit_usage': usage},
                             'L3:0=fff;1=fff\n', [[0], [1]])

    def test_ways_of_an_exclusive_group_are_no_guests(self):
        found = self.read('0=XXSSSSSSSSSS;1=XXSSSSSSSSEE\n')
        self.assertEqual({1: 3}, found.exclusive)
        self.assertFalse(found.region & 0xc03)
        self.assertEqual({}, self.read('0=XXSSSSSSSSSS;1=XX0000000000\n'
                                       ).exclusive)

    def test_rest_leaves_out_the_exclusive_ways_of_its_cache_alone(self):
        found = self.read('0=XXSSSSSSSSSS;1=XXSSEESSSSSS\n')
        self.assertEqual(0xfff, cache.compute_unreserved_ways(found, {}, 0))
        self.assertEqual(0x03f, cache.compute_unreserved_ways(found, {}, 1))
        mine = cache.assign_reserved_masks(found, {'a': 2}, {})
        self.assertEqual(0, mine['a'] & 0xcc0)
        for domain in (0, 1):
            rest = cache.compute_unreserved_ways(found, mine, domain)
            self.assertTrue(cache.is_contiguous(rest))
            self.assertFalse(rest & (mine['a'] | found.exclusive.get(
                domain, 0)))


class RegionTest(base.TestCase):

    def test_ways_of_devices_stay_with_the_rest(self):
        self.assertEqual(0x3ff, cache.choose_guest_ways(0xfff, 0xc00, 2))
        self.assertEqual(0xffc, cache.choose_guest_ways(0xfff, 0x003, 2))

    def test_some_ways_are_left_to_all(self):
        self.assertEqual(0xff, cache.choose_guest_ways(0xfff, 0, 4))
        self.assertEqual(0, cache.choose_guest_ways(0x3, 0, 4))

    def test_a_mask_that_devices_use_in_full_has_none(self):
        self.assertEqual(0, cache.choose_guest_ways(0xf, 0xf, 1))

    def test_ways_of_devices_at_both_ends_leave_the_middle(self):
        # Two device ways above, one below: two must stay shared.
        self.assertEqual(0x3fffe, cache.choose_guest_ways(
            0xfffff, 0xc0001, 2))
        self.assertEqual(0x0fffe, cache.choose_guest_ways(
            0xfffff, 0xc0001, 4))

    @given(st.integers(0, 16), st.integers(0, 16), st.integers(0, 2 ** 16),
           st.integers(1, 6))
    def test_no_other_run_of_ways_is_longer(self, first, width, devices,
                                            shared):
        free = (1 << width) - 1 << first
        found = cache.choose_guest_ways(free, devices, shared)
        possible = [0]
        for start in range(first, first + width):
            for stop in range(start + 1, first + width + 1):
                if (devices >> start & (1 << stop - start) - 1 == 0
                        and max(start - first,
                                first + width - stop) >= shared):
                    possible.append((1 << stop - start) - 1 << start)
        self.assertIn(found, possible)
        self.assertEqual(max(one.bit_count() for one in possible),
                         found.bit_count())

    @settings(max_examples=300)
    @given(st.integers(3, 16), st.integers(0, 2 ** 16), st.integers(1, 4),
           st.lists(st.integers(1, 5), max_size=6))
    def test_ways_that_no_guest_reserves_stay_adjacent_and_enough(
            self, width, devices, shared, wanted):
        mask = (1 << width) - 1
        region = cache.choose_guest_ways(mask, devices, shared)
        if not region:
            return
        made = cache.Cache(('L3',), mask, region, 1, {0: (0,)})
        found = cache.assign_reserved_masks(
            made, {f'g{n}': ways for n, ways in enumerate(wanted)}, {})
        if sum(wanted) <= region.bit_count():
            self.assertEqual(len(wanted), len(found))
        rest = cache.compute_unreserved_ways(made, found, 0)
        self.assertTrue(cache.is_contiguous(rest))
        self.assertGreaterEqual(rest.bit_count(), shared)
        for one in found.values():
            self.assertFalse(one & (rest | devices))


class ReadTest(base.TestCase):

    def read(self, info, root, nodes, shared=2):
        """Read caches of a made-up sysfs; ``nodes`` holds the L3 ids of each
        node's CPUs.
        """
        with tempfile.TemporaryDirectory() as top:
            sysfs, cpu = Path(top), 0
            for node, l3s in enumerate(nodes):
                path = sysfs / f'devices/system/node/node{node}'
                path.mkdir(parents=True)
                (path / 'cpulist').write_text(f'{cpu}-{cpu + len(l3s) - 1}\n')
                for l3 in l3s:
                    index = (sysfs / f'devices/system/cpu/cpu{cpu}'
                             / 'cache/index3')
                    index.mkdir(parents=True)
                    (index / 'id').write_text(f'{l3}\n')
                    cpu += 1
            return cache.read_caches(
                info, schemata.parse_schemata(root), sysfs, shared
            )[0]

    def test_several_caches_of_a_node_are_all_its_own(self):
        found = self.read({'L3/cbm_mask': 'ffff\n', 'L3/min_cbm_bits': '1\n',
                           'L3/shareable_bits': '0\n'},
                          'L3:0=ffff;1=ffff;2=ffff\n', [[0, 1], [2, 2]])
        self.assertEqual({0: (0, 1), 1: (2,)}, found.domains_by_node)
        self.assertEqual(14, found.way_count)

    def test_a_cache_of_two_nodes_is_offered_on_neither(self):
        self.assertIsNone(self.read({'L3/cbm_mask': 'fff\n'}, 'L3:0=fff\n',
                                    [[0], [0]]))

    def test_with_cdp_both_lines_hold_the_same(self):
        found = self.read({'L3CODE/cbm_mask': '7fff\n',
                           'L3CODE/min_cbm_bits': '2\n'},
                          'L3CODE:0=7fff\nL3DATA:0=7fff\n', [[0]])
        self.assertEqual((('L3CODE', 'L3DATA'), 2),
                         (found.lines, found.least))

    def test_ways_of_devices_are_left_to_the_rest(self):
        # resctrl.rst, bit_usage: X and H are used by hardware.
        files = {'L3/cbm_mask': 'ffff\n', 'L3/min_cbm_bits': '0\n'}
        for usage, region in (
                ('0=SSSSSSSSSSSSSSSS;1=SSSSSSSSSSSSSSSS\n', 0x3fff),
                ('0=SSSSSSSSSSSSXXXX;1=SSSSSSSSSSSSSHSS\n', 0xfff0),
                ('0=XXSSSSSSSSSSSSSS;1=SSSSSSSSSSSSSSSS\n', 0x3fff),
                ('0=XXXXXXXXXXXXXXXX;1=XXXXXXXXXXXXXXXX\n', 0x3fff)):
            found = self.read({**files, 'L3/bit_usage': usage},
                              'L3:0=ffff;1=ffff\n', [[0], [1]])
            self.assertEqual(region, found.region, usage)

    def test_portions_of_openeuler_are_of_nodes(self):
        found = self.read({'L3/cbm_mask': '7fff\n',
                           'L3/shareable_bits': '7fff\n'},
                          'L3PBM:0=7fff;1=7fff\n', [[64], [71]])
        self.assertEqual({0: (0,), 1: (1,)}, found.domains_by_node)

    def test_a_host_without_masks_has_no_ways(self):
        self.assertIsNone(self.read({}, 'MB:0=100\n', [[0]]))
