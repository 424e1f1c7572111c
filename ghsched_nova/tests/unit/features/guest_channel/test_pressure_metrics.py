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

import functools
import os
from pathlib import Path

import fixtures
import prometheus_client

from ghsched_nova.features.guest_channel import pressure_metrics
from ghsched_placement.features.load import pressure
from ghsched_placement.tests import base


class PressureMetricsTest(base.TestCase):

    def test_each_server_has_its_labels_and_resources(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, 'pressure')
        path.write_text(pressure.FILE_FORMAT.render({
            'u': pressure.ReportedPressure(pressure.Pressure(7, 3, 1), 'p',
                                           'f')}))
        os.utime(path, (1000, 1000))
        for now, expected in ((1060.0, [7, 3, 1]), (2000.0, [None] * 3)):
            registry = prometheus_client.CollectorRegistry()
            registry.register(pressure_metrics.PressureCollector(
                path, functools.partial(float, now)))
            self.assertEqual(expected, [registry.get_sample_value(
                'ghsched_server_pressure_percent', {
                    'project': 'p', 'server': 'u', 'flavor': 'f',
                    'resource': resource})
                for resource in ('cpu', 'memory', 'steal')])
