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

"""Tables share the width of a terminal."""

import argparse
import io

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.osc import capacity
from ghsched_placement.osc import tables
from ghsched_placement.tests import base

COLUMNS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)),
                   max_size=12)


class WidthsTest(base.TestCase):

    def test_narrow_columns_stay_and_wide_ones_get_the_same(self):
        self.assertEqual([4, 20, 20, 8], tables.fit_column_widths(
            [4, 36, 50, 8], [4, 9, 9, 3], 52))

    def test_no_column_is_narrower_than_a_word_of_its_heading(self):
        self.assertEqual([9, 5], tables.fit_column_widths([17, 36], [9, 4],
                                                          14))
        self.assertEqual([9, 4], tables.fit_column_widths([17, 36], [9, 4], 3))

    @given(COLUMNS, st.integers(0, 200))
    def test_they_fit_where_the_headings_do(self, columns, room):
        natural = [wide for wide, _ in columns]
        least = [narrow for _, narrow in columns]
        found = tables.fit_column_widths(natural, least, room)
        if sum(natural) <= room:
            self.assertEqual(natural, found)
        elif sum(map(min, natural, least)) <= room:
            self.assertLessEqual(sum(found), room)
        for width, wide, narrow in zip(found, natural, least, strict=True):
            self.assertTrue(min(wide, narrow) <= width <= wide)


class WrappedTableTest(base.TestCase):

    def render(self, width, columns, *rows):
        """Return the lines of a table whose first two columns are keys."""
        formatter = tables.WrappedTableFormatter(columns[:2])
        stdout = io.StringIO()
        formatter.emit_list(columns, rows, stdout, argparse.Namespace(
            max_width=width, fit_width=False, print_empty=False))
        return stdout.getvalue().splitlines()

    def test_capacity_of_all_columns_keeps_to_the_width_and_cuts_no_word(self):
        columns = capacity.COLUMNS
        figures = [270336] * (len(columns) - 3)
        rows = [('simulated-compute-1', node, *figures[:5],
                 '0000:81:00.0 8/8', *figures[5:]) for node in (0, 1)]
        for width in (80, 120, 200):
            lines = self.render(width, columns, *rows)
            self.assertLessEqual(max(map(len, lines)), width)
            begun = [line for line in lines if 'simulated-compute-1' in line]
            parts = lines.count('') + 1
            self.assertEqual(2 * parts, len(begun))
            self.assertEqual([f'| simulated-compute-1 | {node} ' for _ in
                              range(parts) for node in (0, 1)],
                             [' '.join(line.split()[:4]) + ' ' for line
                              in begun])
            self.assertIn('Fragmentation', '\n'.join(lines))
            self.assertEqual(2, '\n'.join(lines).count('0000:81:00.0'))
            self.assertEqual(2 * len(figures),
                             '\n'.join(lines).count('270336'))

    def test_table_that_fits_with_wrapped_headings_is_not_split(self):
        lines = self.render(36, ('Host', 'Node', 'Free (%)', 'Used (%)'),
                            ('host_a', 0, 5, 10))
        self.assertNotIn('', lines)
        self.assertLessEqual(max(map(len, lines)), 36)

    def test_host_is_cut_only_if_it_does_not_fit_with_each_column(self):
        host = 'compute-017.rack-12.dc2.example.org'
        for width, count in ((61, 2), (40, 0)):
            lines = self.render(width, ('Host', 'Node', 'Free', 'Devices'),
                                (host, 0, 5, '0000:81:00.0'))
            self.assertLessEqual(max(map(len, lines)), width)
            self.assertEqual(count, '\n'.join(lines).count(host))

    def test_word_longer_than_a_line_is_cut(self):
        lines = self.render(60, ('Host', 'Node', 'Reason'),
                            ('host_a', 0, 'x' * 100))
        self.assertLessEqual(max(map(len, lines)), 60)
        self.assertEqual(100, ''.join(lines).count('x'))
