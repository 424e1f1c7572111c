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

from hypothesis import given
from hypothesis import strategies as st

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
