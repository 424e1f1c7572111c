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
import prometheus_client
import yaml

from ghsched_nova.features.service_level import service_metrics
from ghsched_placement.features.service_level import service_level
from ghsched_placement.features.service_level.service_level import (
    ShortageCause)
from ghsched_placement.tests import base

ETC = Path(__file__).parents[5] / 'etc' / 'ghsched'

LABELS = {'project': 'p', 'server': 'u', 'flavor': 'f', 'node': '1',
          'vcpu_class': ''}


class ServiceMetricsTest(base.TestCase):

    def value(self, path, name, **labels):
        registry = prometheus_client.CollectorRegistry()
        registry.register(service_metrics.ServiceLevelCollector(path))
        return registry.get_sample_value(f'ghsched_server_{name}',
                                         {**LABELS, **labels})

    def test_values_of_the_file_for_each_server(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, 'levels.json')
        path.write_text(service_level.FORMAT.render({
            service_level.LevelKey('u', 1, 'latency'): service_level.Level(
                service_level.Owner('web', 'p', 'f'), 7, 1000.0,
                seconds=60.0),
            service_level.LevelKey('u', 1): service_level.Level(
                service_level.Owner('web', 'p', 'f'), 7, 1000.0,
                service_level.LevelPeriod(30, 80, None, 28, 12.5), 600.0,
                0.0, 10,
                {ShortageCause.NODE_FULL: 2},
                {ShortageCause.NODE_FULL: 120.0})}))
        os.utime(path, (1000, 1000))
        for expected, name, labels in (
                (30, 'asked_percent', {}), (None, 'allocated_percent', {}),
                (28, 'held_percent', {}), (12.5, 'got_percent', {}),
                (600, 'measured_seconds_total', {}), (10, 'periods_total', {}),
                (120, 'short_seconds_total', {'cause': 'node_full'}),
                (2, 'short_periods_total', {'cause': 'node_full'}),
                (0, 'short_seconds_total', {'cause': 'own_cap'})):
            self.assertEqual(expected, self.value(path, name, **labels), name)
        self.assertEqual(60, self.value(path, 'measured_seconds_total',
                                        vcpu_class='latency'))

    def test_deleted_server_keeps_its_counters_and_has_no_gauge(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, 'levels.json')
        path.write_text(service_level.FORMAT.render({
            service_level.LevelKey(server, 1): service_level.Level(
                service_level.Owner('web', 'p', 'f'), 7, seen,
                service_level.LevelPeriod(30), 600.0)
            for server, seen in (('deleted', 940.0), ('u', 1000.0))}))
        for written, running in ((1001, 30), (1601, None)):
            os.utime(path, (written, written))
            self.assertEqual(running, self.value(path, 'asked_percent'))
            self.assertIsNone(self.value(path, 'asked_percent',
                                         server='deleted'))
            self.assertEqual(600, self.value(
                path, 'measured_seconds_total', server='deleted'))

    def test_rating_asks_for_metrics_and_labels_that_exist(self):
        asked = yaml.safe_load((ETC / 'cloudkitty' / 'metrics.yml'
                                ).read_text())['metrics']
        known = {metric.exported_name: metric.labels
                 for metric in service_metrics.METRICS}
        self.assertEqual({'ghsched_server_allocated_percent',
                          'ghsched_server_got_percent'}, set(asked))
        for name, wanted in asked.items():
            self.assertLessEqual({*wanted['groupby'], *wanted['metadata']},
                                 set(known[name]), name)

    def test_file_that_is_missing_or_malformed_has_no_sample(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, 'levels.json')
        self.assertIsNone(self.value(path, 'asked_percent'))
        path.write_text('{"version": 1, "levels": [1]}')
        self.assertIsNone(self.value(path, 'asked_percent'))
