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

import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import record
from ghsched_nova.tests.fixtures import results
from ghsched_placement.tests import base

REPORTS = st.builds(
    record.Report, st.lists(results.RESULTS, max_size=3).map(tuple),
    results.TEXT)


class JsonTest(base.TestCase):

    @given(REPORTS)
    def test_round_trip(self, report):
        text = record.to_json(report)
        self.assertEqual(report, record.from_json(text))
        self.assertEqual(text, record.to_json(record.from_json(text)))

    def test_names_its_version(self):
        self.assertEqual('ghsched-bench/1', json.loads(
            record.to_json(record.Report(())))['schema'])

    def refused(self, text):
        return str(self.assertRaises(errors.BenchError, record.from_json,
                                     text))

    def test_other_version(self):
        self.assertIn("'ghsched-bench/2'",
                      self.refused('{"schema": "ghsched-bench/2"}'))

    def test_no_report(self):
        for text in ('', '[]', '{}', 'null', '{"schema": [NaN]}'):
            self.refused(text)

    def test_says_where_it_is_wrong(self):
        document = json.loads(record.to_json(
            record.Report((results.result(),))))
        document['results'][0]['environment']['cpus'] = 'two'
        self.assertIn('$.results[0].environment.cpus',
                      self.refused(json.dumps(document)))

    def test_unknown_key(self):
        document = json.loads(record.to_json(record.Report(())))
        self.assertIn('more', self.refused(json.dumps(
            {**document, 'more': 1})))

    @given(st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False)
        | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(
            ['results', 'made_by', 'scenario']), inner)))
    def test_anything_else(self, results):
        try:
            record.from_json(json.dumps({
                'schema': record.SCHEMA, 'made_by': '', 'results': results}))
        except errors.BenchError:
            pass


class SeriesTest(base.TestCase):

    def series(self, *values):
        return record.Series('x', 's', 'lower', values)

    def test_no_samples(self):
        self.assertRaises(errors.BenchError, self.series)

    def test_samples_that_are_no_numbers(self):
        for value in (float('nan'), float('inf')):
            self.assertRaises(errors.BenchError, self.series, 1.0, value)

    def test_better_is_a_known_word(self):
        self.assertRaises(errors.BenchError, record.Series, 'x', 's', 'big',
                          (1.0,))
