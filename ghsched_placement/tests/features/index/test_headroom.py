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
import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.index import headroom
from ghsched_placement.tests import base


class HeadroomTest(base.TestCase):

    @given(st.builds(
        headroom.Headroom,
        time=st.integers(0, 2 ** 31).map(float), guests=st.integers(0, 999),
        groups=st.integers(0, 999), bandwidth=st.dictionaries(
            # More than all where bandwidth is oversubscribed.
            st.integers(0, 63), st.integers(0, 400)),
        capacity=st.dictionaries(st.integers(0, 63), st.integers(0, 400)),
        shape=st.none() | st.text('0123456789abcdef', min_size=1,
                                  max_size=32)))
    def test_written_values_are_read(self, left):
        self.assertEqual(left, headroom.parse_headroom_stats(
            headroom.make_headroom_stats(left)))

    @given(st.text() | st.sampled_from([
        '[]', '{}', '{"version": 2}', '{"version": 1, "time": "x"}',
        '{"version": 1, "time": 1, "guests": 1, "groups": 1, '
        '"bandwidth": []}']))
    def test_nonsense_is_nothing(self, text):
        self.assertIsNone(headroom.parse_headroom_stats({headroom.KEY: text}))

    def test_a_record_of_the_release_before_has_no_shape(self):
        left = headroom.parse_headroom_stats({headroom.KEY: (
            '{"version": 1, "time": 5.0, "guests": 1, "groups": 2, '
            '"bandwidth": {"0": 40}}')})
        self.assertEqual(headroom.Headroom(5., 1, 2, {0: 40}), left)

    def test_a_record_with_a_shape_is_read_by_the_release_before(self):
        text = headroom.make_headroom_stats(headroom.Headroom(
            5., 1, 2, {0: 40}, 'abc', {0: 95}))[headroom.KEY]
        found = json.loads(text)
        # What the release before reads.
        self.assertEqual(
            (1, 5.0, 1, 2, {'0': 40}),
            tuple(found[name] for name in ('version', 'time', 'guests',
                                           'groups', 'bandwidth')))

    def test_the_digest_is_of_all_traits_and_classes_in_any_order(self):
        made = headroom.hash_provider(['A', 'B'], ['C'])
        self.assertEqual(made, headroom.hash_provider({'B', 'A'}, {'C': 1}))
        for traits, classes in ((['A'], ['C']), (['A', 'B'], []),
                                (['A'], ['B', 'C']), ([], ['A', 'B', 'C'])):
            self.assertNotEqual(made,
                                headroom.hash_provider(traits, classes))

    def test_a_host_that_reports_none(self):
        self.assertIsNone(headroom.parse_headroom_stats({}))

    def test_headroom_is_repeated_until_more_than_its_time_changes(self):
        first = headroom.Headroom(0., 1, 9, {0: 40}, 'x')
        choose = headroom.choose_headroom_report
        self.assertIs(first, choose(None, first))
        for when in (60., 6000., -60.):
            later = dataclasses.replace(first, time=when)
            self.assertIs(first, choose(first, later))
            for values in ({'guests': 2}, {'groups': 8}, {'shape': 'y'},
                           {'bandwidth': {0: 39}}):
                changed = dataclasses.replace(later, **values)
                self.assertIs(changed, choose(first, changed))
