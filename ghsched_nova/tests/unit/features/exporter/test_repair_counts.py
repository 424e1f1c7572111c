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

from pathlib import Path

import fixtures
from hypothesis import given
from hypothesis import strategies as st
import prometheus_client

from ghsched_nova.features.exporter import repair_counts
from ghsched_nova.features.exporter import repair_metrics
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import texts


class RepairsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path,
                         repair_metrics.FORMAT.name)

    def count(self, *kinds):
        reports = observing.Reports(repair_counts.RepairCounts(self.path))
        reports.host.count_repairs(iter(kinds))
        reports.report(1.0)

    def scraped(self):
        found = prometheus_client.CollectorRegistry()
        found.register(repair_metrics.RepairCollector(self.path))
        return {sample.labels['kind']: sample.value
                for metric in found.collect() for sample in metric.samples
                if sample.name == 'ghsched_repairs_total'}

    def test_each_report_adds_to_what_was_counted(self):
        self.assertEqual({}, self.scraped())
        self.count('write line', 'write line')
        self.count('write line', 'make group')
        self.assertEqual({'write line': 3, 'make group': 1}, self.scraped())

    def test_counters_of_the_kernel_are_no_repair(self):
        self.count('assign counters')
        self.assertFalse(self.path.exists())

    def test_a_broken_file_begins_again(self):
        for text in ('', '[]', '{"version": 9, "repairs": {"a": 1}}'):
            self.path.write_text(text)
            self.assertEqual({}, self.scraped())
        self.count('set class')
        self.assertEqual({'set class': 1}, self.scraped())

    def test_repairs_are_counted_with_one_report_only(self):
        reports = observing.Reports(repair_counts.RepairCounts(self.path))
        reports.host.count_repairs(['write line'])
        for now in (1.0, 2.0):
            reports.report(now)
        self.assertEqual({'write line': 1}, self.scraped())

    @given(st.dictionaries(texts.printable(64), st.integers(0, 2 ** 53 - 1),
                           max_size=100))
    def test_written_values_are_read(self, counts):
        self.assertEqual(counts, repair_metrics.FORMAT.parse(
            repair_metrics.FORMAT.render(counts)))


class ParseTest(base.TestCase):

    def test_repairs_beyond_any_number_are_none(self):
        for number in ('1e999', '-1e999', 'NaN', '"x"', 'null', '[]'):
            self.assertEqual({}, repair_metrics.FORMAT.parse(
                f'{{"version": 1, "repairs": {{"a": {number}}}}}'))
