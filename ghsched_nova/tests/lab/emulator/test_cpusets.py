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


from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import cpusets
from ghsched_placement.tests import base

CPUS = st.frozensets(st.integers(0, 300), max_size=64)


class CPUSetsTest(base.TestCase):
    @given(CPUS)
    def test_list_round_trip(self, cpus):
        self.assertEqual(
            cpus, cpusets.parse_list(cpusets.format_list(cpus))
        )

    @given(CPUS, st.integers(1, 320))
    def test_mask_round_trip(self, cpus, width):
        cpus = frozenset(cpu for cpu in cpus if cpu < width)
        text = cpusets.format_mask(cpus, width)
        self.assertEqual(cpus, cpusets.parse_mask(text))
        self.assertEqual((width + 31) // 32, len(text.split(',')))

    @given(st.text(alphabet='0123456789,-x \n', max_size=12))
    def test_text_is_read_or_refused(self, text):
        for parse in (cpusets.parse_list, cpusets.parse_mask):
            try:
                parse(text)
            except ValueError:
                continue

    def test_mask_is_as_wide_as_the_machine(self):
        self.assertEqual('3', cpusets.format_mask({0, 1}, 2))
        self.assertEqual('0000,00000001', cpusets.format_mask({0}, 48))

    def test_masks_are_read_as_leniently_as_by_the_kernel(self):
        for text, cpus in (('02,', {1}), (',1, 00000002\nx', {1, 32}),
                           ('', set()), (',,\n', set())):
            self.assertEqual(cpus, cpusets.parse_mask(text))
        for text in ('123456789', '1-2', '0x1'):
            self.assertRaises(ValueError, cpusets.parse_mask, text)

    def test_a_list_is_taken_as_the_kernel_does(self):
        for text, cpus in (
                ('all', {0, 1, 2, 3}), ('ALL:1/2\n', {0, 2}), ('N', {3}),
                ('0-N:1/2,3', {0, 2, 3}), ('0-0:1/1 2\nx', {0, 2}),
                ('1-N', {1, 2, 3}), (', \n', set()), ('9', {9})):
            self.assertEqual(cpus, cpusets.parse_written(text, 3), text)
        for text in ('0:1/1', '3-1', 'n', '0-3:2/1', '0-3:0/0', '0-', 'x'):
            self.assertRaises(ValueError, cpusets.parse_written, text, 3)

    @given(st.frozensets(st.integers(0, 200)))
    def test_shown_values_can_be_written(self, cpus):
        self.assertEqual(cpus, cpusets.parse_written(
            cpusets.format_list(cpus) + '\n', 200))

    def test_backward_range_is_refused(self):
        self.assertRaises(ValueError, cpusets.parse_list, '3-1')
