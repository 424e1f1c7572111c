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
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import texts
from ghsched_placement.tests.fixtures import threads


class RepairsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path,
                         repair_metrics.FILE)

    def scraped(self):
        found = prometheus_client.CollectorRegistry()
        found.register(repair_metrics.Collector(self.path))
        return {sample.labels['kind']: sample.value
                for metric in found.collect() for sample in metric.samples
                if sample.name == 'ghsched_repairs_total'}

    def test_each_report_adds_to_what_was_counted(self):
        self.assertEqual({}, self.scraped())
        repair_counts.Repairs(self.path).count_repairs(
            ['write line', 'write line'])
        repair_counts.Repairs(self.path).count_repairs(
            iter(['write line', 'make group']))
        self.assertEqual({'write line': 3, 'make group': 1}, self.scraped())

    def test_counters_of_the_kernel_are_no_repair(self):
        repair_counts.Repairs(self.path).count_repairs(['assign counters'])
        self.assertFalse(self.path.exists())

    def test_a_broken_file_begins_again(self):
        for text in ('', '[]', '{"version": 9, "repairs": {"a": 1}}'):
            self.path.write_text(text)
            self.assertEqual({}, self.scraped())
        repair_counts.Repairs(self.path).count_repairs(['set class'])
        self.assertEqual({'set class': 1}, self.scraped())

    def test_no_place_to_count_stops_no_report(self):
        log = self.useFixture(fixtures.FakeLogger())
        repair_counts.Repairs(
            Path('/nowhere/repairs.json')).count_repairs(['write line'])
        self.assertIn('cannot count restored guest settings',
                      log.output)

    def test_repairs_added_by_native_threads_are_all_counted(self):
        shared = repair_counts.Repairs(self.path)
        self.assertEqual([], threads.stress(
            [lambda _chance: shared.count_repairs(['write line'])] * 4, 5))
        self.assertEqual({'write line': 20}, self.scraped())

    @given(st.dictionaries(texts.printable(64), st.integers(0, 2 ** 53 - 1),
                           max_size=100))
    def test_written_values_are_read(self, counts):
        self.assertEqual(counts, repair_metrics.parse_repair_counts(
            repair_metrics.render_repair_counts(counts)))
