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

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.query import matching
from ghsched_placement.tests import base

CHOICES = st.lists(st.lists(st.integers(0, 5), unique=True, max_size=5),
                   max_size=5)


class MatchTest(base.TestCase):

    @given(CHOICES, st.randoms())
    def test_match_finds_a_way_whenever_an_exhaustive_search_does(
            self, choices, chance):
        order = list(range(len(choices)))
        chance.shuffle(order)
        found = matching.match_items_to_places(choices, order)
        ways = {way for way in itertools.product(*choices)
                if len(set(way)) == len(way)}
        self.assertEqual(bool(ways), found is not None)
        if found is not None:
            self.assertIn(found, ways)

    def test_match_takes_the_first_free_choice_of_each_item(self):
        self.assertEqual((2, 1, 3), matching.match_items_to_places(
            [[2, 1], [2, 1, 3], [2, 1, 3]]))
        self.assertEqual((1, 2),
                         matching.match_items_to_places([[2, 1], [2, 1]],
                                                        [1, 0]))

    def test_match_moves_an_item_that_can_go_elsewhere(self):
        self.assertEqual((2, 1), matching.match_items_to_places([[1, 2], [1]]))

    def test_match_of_nothing_is_empty(self):
        self.assertEqual((), matching.match_items_to_places([]))
