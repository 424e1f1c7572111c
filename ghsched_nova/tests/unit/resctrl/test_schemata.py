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

import functools

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl.schemata import Line
from ghsched_nova.resctrl.schemata import Schemata
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import forged

OPENEULER = ('   L3:1=fffffff;122=fffffff\n'
             '   MB:0=0000100;1=0000060\n'
             'MBPRI:0=0000007;1=0000003\n'
             'MBMIN:0=0000000;1=0000020\n'
             'MBHDL:0=0000001;1=0000000\n')

_names = st.from_regex(r'[A-Z][A-Z0-9_]{0,9}', fullmatch=True)
_values = st.from_regex(r'[0-9a-zA-Z,./+-]{1,10}', fullmatch=True)
_lines = st.builds(
    Line, _names,
    st.dictionaries(st.integers(0, 10 ** 9 - 1), _values, max_size=5).map(
        lambda values: tuple(values.items())))
_opaque = st.builds(Line, _names, st.just(()),
                    st.from_regex(r'[a-z]{1,20}', fullmatch=True))
_schemata = st.lists(
    _lines | _opaque, max_size=6, unique_by=lambda line: line.name).map(
        lambda lines: Schemata(tuple(lines)))
_padding = st.text(' \t', max_size=4)


def render_schemata(parsed):
    """Return the text of a schemata file, without padding."""
    return ''.join(
        f'{line.name}:'
        f'{line.body or schemata.render_values(line.values)}\n'
        if line.name else f'{line.body}\n' for line in parsed.lines)


class RoundTripTest(base.TestCase):

    @given(_schemata)
    def test_rendered_text_is_parsed_again(self, given_):
        self.assertEqual(
            given_, schemata.parse_schemata(render_schemata(given_))
        )

    @given(_schemata, st.data())
    def test_padding_is_all_that_is_lost(self, given_, data):
        def pad(text):
            return data.draw(_padding) + text + data.draw(_padding)

        text = ''.join(
            pad(line.name) + ':' + pad(line.body or ';'.join(
                pad(str(domain)) + '=' + pad(value)
                for domain, value in line.values)) + '\n'
            for line in given_.lines)
        self.assertEqual(given_, schemata.parse_schemata(text))
        self.assertEqual(
            text.replace(' ', '').replace('\t', ''),
            render_schemata(schemata.parse_schemata(text)))

    def test_steps_of_parsing_grow_as_the_lines_do(self):
        def count_steps(lines):
            text = ''.join(f'MB{number}:0=1\n' for number in range(lines))
            _none, calls = forged.count_calls(
                functools.partial(schemata.parse_schemata, text))
            return calls

        self.assertLess(count_steps(2000), 11 * count_steps(200))

    def test_values_are_kept_as_written(self):
        self.assertEqual(
            OPENEULER.replace(' ', ''),
            render_schemata(schemata.parse_schemata(OPENEULER)))

    def test_a_line_of_words_is_kept(self):
        text = 'L3:uninitialized\nMB:0=100\n'
        self.assertEqual(
            text, render_schemata(schemata.parse_schemata(text))
        )

    def test_domains_that_are_left_out_are_kept(self):
        # show_doms() of OLK-5.10 with more than eight domains.
        text = 'L2:S;2=fc;S;4=f;S\nMB:0=100\n'
        parsed = schemata.parse_schemata(text)
        self.assertEqual(text, render_schemata(parsed))
        self.assertEqual({0: 100}, parsed.values('MB'))
        self.assertRaises(schemata.SchemataError, parsed.values, 'L2', 16)

    @given(_schemata, st.lists(st.tuples(
        st.integers(0, 6), st.from_regex(r' {0,3}#[ -~]{0,20}',
                                         fullmatch=True)), max_size=4))
    def test_a_line_behind_a_hash_is_kept_verbatim(self, given_, hidden):
        rows = render_schemata(given_).splitlines(keepends=True)
        for place, text in hidden:
            rows.insert(place, f'{text}\n')
        text = ''.join(rows)
        parsed = schemata.parse_schemata(text)
        self.assertEqual(text, render_schemata(parsed))
        self.assertEqual(given_.lines, tuple(
            line for line in parsed.lines if line.name))
        self.assertTrue(schemata.can_libvirt_parse(schemata.parse_schemata(
            '# MB_HW: 0=32\nMB:0=1\n# MB_HW: 0=32\n')))

    def test_a_hidden_line_with_control_characters_is_refused(self):
        self.assertRaises(
            schemata.SchemataError, schemata.parse_schemata, '# \x01'
        )

    def test_a_resource_without_domains_is_kept(self):
        self.assertEqual(
            'MB:\n',
            render_schemata(schemata.parse_schemata('  MB:\n')))


class NamesTest(base.TestCase):

    @given(st.permutations(OPENEULER.splitlines(keepends=True)))
    def test_mbpri_is_never_taken_for_mb(self, rows):
        parsed = schemata.parse_schemata(''.join(rows))
        self.assertEqual({0: 100, 1: 60}, parsed.values('MB'))
        self.assertEqual({0: 7, 1: 3}, parsed.values('MBPRI'))

    @given(_names.filter(lambda name: name != 'MB'), st.integers(0, 9999))
    def test_no_other_name_is_taken_for_mb(self, name, value):
        parsed = schemata.parse_schemata(f'{name}:0={value}\n')
        self.assertIsNone(parsed.values('MB'))
        self.assertEqual({0: value}, parsed.values(name))

    def test_case_and_inner_blanks_count(self):
        self.assertIsNone(schemata.parse_schemata('mb:0=1\n').values('MB'))
        self.assertRaises(schemata.SchemataError, schemata.parse_schemata,
                          'MB PRI:0=1\n')


class LibvirtTest(base.TestCase):

    def test_which_libvirt_reads_which_lines(self):
        for lines, upstream, openeuler in (
                ('MB:0=1\nL3:0=1\nSMBA:0=1', True, True),
                ('L3CODE:0=1\nL3DATA:0=1', True, True),
                (OPENEULER, False, True), ('MB:0=1\nL3MAX:1=2', False, True),
                ('MBMAX:0=1', False, False),
                ('MB:0=1\nMB_HLIM:0=1', False, False),
                ('MB:0=1\nMBPBM:0=1', False, False)):
            parsed = schemata.parse_schemata(lines)
            self.assertEqual((upstream, openeuler), (
                schemata.can_libvirt_parse(parsed),
                schemata.can_openeuler_libvirt_parse(parsed)), lines)


class ValuesTest(base.TestCase):

    def test_bit_masks_are_hexadecimal(self):
        self.assertEqual({1: 0xfffffff, 122: 0xfffffff},
                         schemata.parse_schemata(OPENEULER).values('L3', 16))

    def test_words_are_no_numbers(self):
        for text in ('MB:0=on', 'MB:0=1_0', 'MB:0=-1', 'MB:0=0x1',
                     'MB:uninitialized'):
            self.assertRaises(schemata.SchemataError,
                              schemata.parse_schemata(text).values, 'MB')


class MalformedTest(base.TestCase):

    def test_each_is_refused(self):
        for text in ('MB', '=1', ':0=1', 'MB:0=', 'MB:=1', 'MB:0=1;',
                     'MB:0=1;;1=2', 'MB:0=1=2', 'MB:x=1', 'MB:-1=1',
                     'MB:0=1;0=2', 'MB:0=1\nMB:1=2', 'MB:0=1 2',
                     'MB:0=1\r', 'M\0B:0=1', 'MB:\x1b', 'MB:\u0661=1',
                     'MB:1234567890=1'):
            self.assertRaises(
                schemata.SchemataError, schemata.parse_schemata, text
            )

    def test_a_file_that_is_cut_off(self):
        for end in range(len(OPENEULER) - 1):
            self.assertRaises(schemata.SchemataError,
                              schemata.parse_kernel_schemata,
                              OPENEULER[:end].rstrip('\n'))
        self.assertEqual(schemata.parse_schemata(OPENEULER),
                         schemata.parse_kernel_schemata(OPENEULER))

    @given(st.text() | st.text('MBPRIL3:=;019 \n'))
    def test_nothing_but_schemata_error_is_raised(self, text):
        try:
            parsed = schemata.parse_schemata(text)
        except schemata.SchemataError:
            return
        self.assertEqual(
            parsed, schemata.parse_schemata(render_schemata(parsed))
        )
