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

"""Record of refused flavors."""

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.refusals import refusal_record
from ghsched_placement.features.refusals.refusal_record import RefusalCount
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import texts

RECORDS = st.lists(st.builds(
    RefusalCount, texts.printable(5), texts.printable(5), st.integers(1, 99),
    st.floats(0, 1e9)), max_size=5, unique_by=lambda one: one.flavor)


class RecordTest(base.TestCase):

    def test_refusals_of_a_flavor_are_counted(self):
        record = ()
        for now, flavor in ((1.0, 'a'), (2.0, 'b'), (3.0, 'a')):
            record = refusal_record.add_refusal(record, flavor,
                                                f'name {flavor}', now)
        self.assertEqual((RefusalCount('a', 'name a', 2, 3.0),
                          RefusalCount('b', 'name b', 1, 2.0)), record)

    def test_flavor_that_was_refused_first_is_dropped_beyond_the_limit(self):
        record = ()
        for number in range(refusal_record.MAX_FLAVORS + 5):
            record = refusal_record.add_refusal(record, str(number), 'x',
                                                float(number))
        self.assertEqual(
            [str(number) for number in range(
                refusal_record.MAX_FLAVORS + 4, 4, -1)],
            [one.flavor for one in record])

    def test_renamed_flavor_has_its_new_name(self):
        self.assertEqual(
            (RefusalCount('a', 'new', 3, 5.0),), refusal_record.merge_refusals(
                [RefusalCount('a', 'new', 1, 5.0)],
                [RefusalCount('a', 'old', 2, 4.0)]))

    def test_recent_flavors_are_sorted_by_their_refusals(self):
        record = (RefusalCount('c', 'c', 1, 9.0),
                  RefusalCount('b', 'b', 7, 8.0),
                  RefusalCount('a', 'a', 9, 1.0))
        self.assertEqual(['b', 'c'], [
            one.flavor
            for one in refusal_record.list_recent_refusals(record, 5.0)])

    @given(RECORDS, RECORDS)
    def test_merged_records_have_the_sum_of_all_refusals(self, one, other):
        merged = refusal_record.merge_refusals(one, other)
        self.assertEqual(sum(each.count for each in one + other),
                         sum(each.count for each in merged))
        self.assertEqual(merged, refusal_record.FORMAT.parse(
            refusal_record.FORMAT.render(merged)))

    def test_malformed_record_is_empty(self):
        for text in ('', '[]', '{"version": 1}', '{"version": 1, "refused": '
                     '[{"flavor": "a", "name": "a", "count": -1, "last": 1}]}',
                     '{"version": 1, "refused": [{"flavor": "a", "name": "a", '
                     '"count": 1, "last": Infinity}]}',
                     '{"version": 2, "refused": []}'):
            self.assertEqual((), refusal_record.FORMAT.parse(text), text)
