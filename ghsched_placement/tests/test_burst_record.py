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

import unittest

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement import burst
from ghsched_placement import burst_record

LIMITS = burst.Limits(window=2, correlation=0, safety=1)

hours = st.builds(
    burst.Hour, *[st.integers(0, 10 ** 6)] * 3,
    *[st.floats(0, 10 ** 6)] * 4, *[st.integers(0, 10 ** 6)] * 2)
records = st.builds(
    burst_record.Record, st.lists(hours, max_size=3).map(tuple),
    st.floats(0, 100), st.integers(0, 300), st.integers(0, 300),
    st.none() | st.floats(0, 1))


def quiet(promised=40, used=4.0, pool=40):
    return burst_record.Period([burst.Share(promised, used)], pool)


class RecordTest(unittest.TestCase):

    @given(st.dictionaries(st.integers(0, 63), records, max_size=3))
    def test_what_is_written_is_read_back(self, found):
        self.assertEqual(found, burst_record.read(burst_record.write(found)))

    @given(st.text() | st.from_regex(
        r'\{"version": 1, "nodes": [^\n]{0,30}\}', fullmatch=True))
    def test_any_text_is_read_or_is_nothing(self, text):
        self.assertIsInstance(burst_record.read(text), dict)

    def test_a_node_that_is_seldom_busy_is_offered_more(self):
        record = burst_record.Record()
        offered = []
        for number in range(4):
            record = burst_record.advance(record, number, quiet(), LIMITS)
            offered.append(record.offered)
        self.assertEqual([40, 60, 60, 60], offered)
        self.assertEqual(0, record.chance)
        self.assertEqual(2, record.total.periods)

    def test_what_is_not_known_adds_nothing_and_keeps_what_is_promised(self):
        record = burst_record.advance(
            burst_record.Record(), 1, quiet(), LIMITS)
        silent = burst_record.advance(
            record, 1, burst_record.Period(None, 40), LIMITS)
        self.assertEqual(record, silent)

    def test_a_smaller_pool_is_offered_at_once(self):
        record = burst_record.Record(offered=80)
        self.assertEqual(30, burst_record.advance(
            record, 1, quiet(pool=30), LIMITS).offered)
