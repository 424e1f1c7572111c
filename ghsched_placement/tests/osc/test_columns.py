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

"""Formats of values in columns."""


from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.osc import columns
from ghsched_placement.tests import base

VALUES = st.lists(st.none() | st.integers(-5, 5), max_size=8)


class KnownTest(base.TestCase):

    @given(VALUES)
    def test_unknown_values_are_sorted_first(self, values):
        # As cliff does.
        found = sorted(map(columns.mark_unknown, values),
                       key=lambda value: (value is None, value))
        nones = values.count(None)
        self.assertEqual(
            [columns.Unknown()] * nones + sorted(
                one for one in values if one is not None), found)

    def test_is_a_dash_for_people_only(self):
        unknown = columns.mark_unknown(None)
        self.assertEqual(('-', None), (unknown.human_readable(),
                                       unknown.machine_readable()))
        self.assertEqual([0, False, ''], [columns.mark_unknown(value)
                                          for value in (0, False, '')])


class LinesTest(base.TestCase):

    def test_people_see_lines_and_programs_a_list(self):
        for kind, text in ((columns.MultilineCell, '1\n2'),
                           (columns.CommaListCell, '1, 2')):
            self.assertEqual((text, '-', [1, 2]), (
                kind([1, 2]).human_readable(), kind([]).human_readable(),
                kind([1, 2]).machine_readable()))

    def test_vfs_of_a_pf(self):
        self.assertEqual('0000:81:00.0 3/8', columns.VfsCell([
            {'pf': '0000:81:00.0', 'free': 3, 'total': 8}]).human_readable())
