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
import errno

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging
from ghsched_placement.tests import base

KUNPENG = machines.build('openeuler66', '0=0-3;1=4-7')
XEON = machines.build('intel', '0=0-3;1=4-7')


def refusal(machine, text, **more):
    try:
        staging.stage(machine, text, **more)
    except staging.ResctrlError as exc:
        return exc.number, exc.status
    raise AssertionError(f'{text!r} was taken')


class ShowTest(base.TestCase):
    def test_openeuler_pads_names_and_values(self):
        # One width for all names and one for all values (max_name_width and
        # max_data_width of fs/resctrl/rdtgroup.c).
        text = staging.show(KUNPENG, staging.defaults(KUNPENG))
        self.assertEqual([
            '   MB:0=0000100;1=0000100',
            'MBMIN:0=0000000;1=0000000',
            'MBPRI:0=0000003;1=0000003',
            'MBHDL:0=0000001;1=0000001',
            '   L3:1=fffffff;122=fffffff',
            'L3PRI:1=0000000;122=0000000',
        ], text.splitlines())

    def test_intel_right_justifies_names(self):
        text = staging.show(XEON, staging.defaults(XEON))
        self.assertEqual(
            '    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n', text
        )

    def test_size_of_a_cache_portion_is_in_bytes(self):
        values = staging.defaults(XEON)
        values['L3'][1] = 0b11
        self.assertIn(f'1={2 * 1835008}', staging.sizes(XEON, values))


class StageTest(base.TestCase):
    def test_value_is_rounded_up_to_granularity(self):
        staged = staging.stage(XEON, 'MB:0=11;1=100\n')
        self.assertEqual({'MB': {0: 20, 1: 100}}, staged)

    def test_names_with_a_common_beginning_are_apart(self):
        staged = staging.stage(KUNPENG, 'MBMIN:1=7\n  MBPRI:0=5\nMB:0=60\n')
        self.assertEqual(
            {'MBMIN': {1: 7}, 'MBPRI': {0: 5}, 'MB': {0: 60}}, staged
        )

    def test_out_of_range(self):
        self.assertEqual(
            (errno.EINVAL, 'MB value 5 out of range [10,100]\n'),
            refusal(XEON, 'MB:0=5\n'),
        )
        self.assertEqual(
            (errno.EINVAL, 'MB value 110 out of range [1,100]\n'),
            refusal(KUNPENG, 'MB:1=110\n'),
        )
        self.assertEqual(errno.EINVAL, refusal(KUNPENG, 'MB:1=0\n')[0])

    def test_newline_is_needed_and_its_lack_leaves_the_status(self):
        self.assertEqual((errno.EINVAL, None), refusal(XEON, 'MB:0=50'))
        self.assertEqual((errno.EINVAL, None), refusal(XEON, ''))

    def test_unknown_domain_has_no_text(self):
        self.assertEqual((errno.EINVAL, ''), refusal(XEON, 'MB:7=50\n'))

    def test_unknown_line(self):
        self.assertEqual(
            (errno.EINVAL, "Unknown or unsupported resource name 'MBMIN'\n"),
            refusal(XEON, 'MBMIN:0=50\n'),
        )

    def test_malformed(self):
        for text, status in (
            ('MB\n', "Missing ':'\n"),
            ('\n', "Missing ':'\n"),
            ('MB:\n', "Missing 'MB' value\n"),
            ('MB:0\n', "Missing '=' or non-numeric domain\n"),
            ('MB:x=1\n', "Missing '=' or non-numeric domain\n"),
            ('MB:0=ten\n', 'Invalid MB value ten\n'),
            ('MB:0=50;0=60\n', 'Duplicate domain 0\n'),
            ('MB:0=50\nMB:0=60\n', 'Duplicate domain 0\n'),
            ('L3:0=xyz\n', 'Non-hex character in the mask xyz\n'),
            ('L3:0=0\n', 'Mask out of range\n'),
            ('L3:0=5\n', 'The mask 5 has non-consecutive 1-bits\n'),
        ):
            self.assertEqual((errno.EINVAL, status), refusal(XEON, text))

    def test_mask_of_too_few_bits_together_is_refused(self):
        lines = tuple(dataclasses.replace(line, minimum=2)
                      if line.base == 16 else line for line in XEON.lines)
        haswell = dataclasses.replace(XEON, lines=lines)
        for mask, status in (
                ('1', 'Need at least 2 bits in the mask\n'),
                ('4', 'Need at least 2 bits in the mask\n'),
                ('0', 'Mask out of range\n'),
                ('5', 'The mask 5 has non-consecutive 1-bits\n')):
            self.assertEqual((errno.EINVAL, status),
                             refusal(haswell, f'L3:0={mask}\n'))
        self.assertEqual({'L3': {0: 6}}, staging.stage(haswell, 'L3:0=6\n'))

    def test_exclusive_cache_portions_do_not_overlap(self):
        other = staging.Neighbour(True, {'L3': {0: 0xF}})
        self.assertEqual(
            (errno.EINVAL, 'Overlaps with exclusive group\n'),
            refusal(XEON, 'L3:0=c\n', neighbours=[other]),
        )
        shared = staging.Neighbour(False, {'L3': {0: 0xF}})
        self.assertEqual(
            (errno.EINVAL, 'Overlaps with other group\n'),
            refusal(XEON, 'L3:0=c\n', exclusive=True, neighbours=[shared]),
        )
        staging.stage(XEON, 'L3:1=c\n', neighbours=[other])

    @given(st.text(max_size=40))
    def test_any_text_is_taken_or_refused(self, text):
        try:
            staged = staging.stage(KUNPENG, text + '\n')
        except staging.ResctrlError as exc:
            self.assertEqual(errno.EINVAL, exc.number)
        else:
            self.assertTrue(staged)

    @given(st.fixed_dictionaries({
        'MB': st.fixed_dictionaries({}, optional={
            0: st.integers(1, 100), 1: st.integers(1, 100)}),
        'MBMIN': st.fixed_dictionaries({}, optional={
            0: st.integers(0, 100), 1: st.integers(0, 100)}),
        'MBPRI': st.fixed_dictionaries({}, optional={0: st.integers(0, 7)}),
        'MBHDL': st.fixed_dictionaries({}, optional={1: st.integers(0, 1)}),
    }))
    def test_shown_values_can_be_written(self, change):
        values = staging.defaults(KUNPENG)
        for name, domains in change.items():
            for domain, value in domains.items():
                values[name] |= staging.stage(
                    KUNPENG, f'{name}:{domain}={value}\n')[name]
        text = staging.show(KUNPENG, values)
        self.assertEqual(values, staging.stage(KUNPENG, text))

    @given(st.integers(10, 100))
    def test_rounding_never_lowers(self, value):
        rounded = staging.stage(XEON, f'MB:0={value}\n')['MB'][0]
        self.assertTrue(value <= rounded < value + 10)
        self.assertEqual(0, rounded % 10)
