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
from hypothesis import strategies as st

from ghsched_nova.resctrl import cache_facts
from ghsched_nova.tests.fixtures.sysfs_caches import read_caches
from ghsched_placement.tests import base


class RegionTest(base.TestCase):

    def test_ways_of_devices_stay_with_the_rest(self):
        self.assertEqual(0x3ff, cache_facts.choose_guest_ways(0xfff, 0xc00, 2))
        self.assertEqual(0xffc, cache_facts.choose_guest_ways(0xfff, 0x003, 2))

    def test_some_ways_are_left_to_all(self):
        self.assertEqual(0xff, cache_facts.choose_guest_ways(0xfff, 0, 4))
        self.assertEqual(0, cache_facts.choose_guest_ways(0x3, 0, 4))

    def test_a_mask_that_devices_use_in_full_has_none(self):
        self.assertEqual(0, cache_facts.choose_guest_ways(0xf, 0xf, 1))

    def test_ways_of_devices_at_both_ends_leave_the_middle(self):
        # Two device ways above, one below: two must stay shared.
        self.assertEqual(0x3fffe, cache_facts.choose_guest_ways(
            0xfffff, 0xc0001, 2))
        self.assertEqual(0x0fffe, cache_facts.choose_guest_ways(
            0xfffff, 0xc0001, 4))

    @given(st.integers(0, 16), st.integers(0, 16), st.integers(0, 2 ** 16),
           st.integers(1, 6))
    def test_no_other_run_of_ways_is_longer(self, first, width, devices,
                                            shared):
        free = (1 << width) - 1 << first
        found = cache_facts.choose_guest_ways(free, devices, shared)
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

    @given(st.integers(0, 2 ** 20))
    def test_longest_run_is_whole_and_no_run_is_longer(self, mask):
        run = cache_facts.find_longest_bit_run(mask)
        self.assertEqual(run, run & mask)
        self.assertTrue(not mask or not run & run + (run & -run))
        self.assertEqual(max(map(len, f'{mask:b}'.split('0'))),
                         run.bit_count())


class ReadTest(base.TestCase):

    def test_several_caches_of_a_node_are_all_its_own(self):
        found = read_caches(
            {'L3/cbm_mask': 'ffff\n', 'L3/min_cbm_bits': '1\n',
             'L3/shareable_bits': '0\n'},
            'L3:0=ffff;1=ffff;2=ffff\n', [[0, 1], [2, 2]])
        self.assertEqual({0: (0, 1), 1: (2,)}, found.domains_by_node)
        self.assertEqual(14, found.way_count)

    def test_a_cache_of_two_nodes_is_offered_on_neither(self):
        self.assertIsNone(read_caches(
            {'L3/cbm_mask': 'fff\n'}, 'L3:0=fff\n',
            [[0], [0]]))

    def test_with_cdp_both_lines_hold_the_same(self):
        found = read_caches(
            {'L3CODE/cbm_mask': '7fff\n',
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
            found = read_caches({**files, 'L3/bit_usage': usage},
                                'L3:0=ffff;1=ffff\n', [[0], [1]])
            self.assertEqual(region, found.region, usage)

    def test_portions_of_openeuler_are_of_nodes(self):
        found = read_caches(
            {'L3/cbm_mask': '7fff\n',
             'L3/shareable_bits': '7fff\n'},
            'L3PBM:0=7fff;1=7fff\n', [[64], [71]])
        self.assertEqual({0: (0,), 1: (1,)}, found.domains_by_node)

    def test_a_host_without_masks_has_no_ways(self):
        self.assertIsNone(read_caches(
            {}, 'MB:0=100\n', [[0]]))

    def test_ways_of_an_exclusive_group_are_no_guests(self):
        for usage, exclusive in (
                ('0=XXSSSSSSSSSS;1=XXSSSSSSSSEE\n', {1: 3}),
                ('0=XXSSSSSSSSSS;1=XX0000000000\n', {})):
            found = read_caches(
                {'L3/cbm_mask': 'fff\n', 'L3/min_cbm_bits': '1\n',
                 'L3/shareable_bits': 'c00\n', 'L3/bit_usage': usage},
                'L3:0=fff;1=fff\n', [[0], [1]])
            self.assertEqual(exclusive, found.exclusive)
            self.assertFalse(found.region & 0xc00)
            self.assertFalse(found.region & exclusive.get(1, 0))
