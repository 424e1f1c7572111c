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

import os
from pathlib import Path

import fixtures
from prometheus_client import parser

from ghsched_nova.features.index import index_metrics
from ghsched_placement.tests import base

FIGURES = index_metrics.Figures()


class WriterTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.file = self.directory / f'ghsched_scheduler_{os.getpid()}.prom'
        self.writer = index_metrics.Writer(str(self.directory))

    def samples(self):
        return {(sample.name, sample.labels.get('way')): sample.value
                for family in parser.text_string_to_metric_families(
                    self.file.read_text()) for sample in family.samples}

    def test_write_renders_all_figures(self):
        self.writer.write_metrics(index_metrics.Figures(
            {'hits': 3, 'fallbacks': 1}, hosts=7, future=2, malformed=1))
        found = self.samples()
        self.assertEqual(
            {'index': 3, 'index_in_vain': 1, 'whole': 0,
             'refused_from_memory': 0},
            {way: value for (name, way), value in found.items()
             if name == 'ghsched_scheduler_requests_total'})
        self.assertEqual([7, 2, 1], [
            found[f'ghsched_scheduler_index_hosts{kind}', None]
            for kind in ('', '_ahead', '_unread')])

    def test_write_a_moment_later_keeps_the_file(self):
        self.writer.write_metrics(FIGURES)
        self.writer.write_metrics(index_metrics.Figures(hosts=7))
        self.assertEqual(
            0, self.samples()['ghsched_scheduler_index_hosts', None])

    def test_write_removes_files_of_processes_that_have_ended(self):
        stale = self.directory / 'ghsched_scheduler_99999999.prom'
        other = self.directory / 'ghsched_scheduler_x.prom'
        stale.touch()
        other.touch()
        self.writer.write_metrics(FIGURES)
        self.assertEqual({self.file, other}, set(self.directory.iterdir()))

    def test_write_to_a_missing_directory_raises_nothing(self):
        index_metrics.Writer('/nonexistent').write_metrics(FIGURES)

    def test_write_without_a_directory_writes_nothing(self):
        index_metrics.Writer('').write_metrics(FIGURES)
        self.assertEqual([], list(self.directory.iterdir()))
