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
import prometheus_client

from ghsched_nova.features.bursts import burst_metrics
from ghsched_placement.features.bursts import burst
from ghsched_placement.features.bursts import burst_projects
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.tests import base


class BurstMetricsTest(base.TestCase):

    def scrape(self, path):
        registry = prometheus_client.CollectorRegistry()
        registry.register(burst_metrics.BurstCollector(path))
        return registry

    def test_values_of_the_file_for_each_node(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, 'bursts.json')
        hours = tuple(burst.BurstHour(number, periods=60, over=2, short=1)
                      for number in (7, 8))
        path.write_text(burst_record.FORMAT.render({
            1: burst_record.Record(
                hours, 40, 60, 80, 0.005, (), burst_projects.BurstUseByProject(
                    1, 8, 120.0, (burst_projects.ProjectBurstUse('a', 50),
                                  burst_projects.ProjectBurstUse('b', 10)))),
            0: burst_record.Record()}))
        found = self.scrape(path)
        for name, value in (
                ('pool_percent', 40), ('promised_percent', 60),
                ('offered_percent', 80), ('short_chance', 0.005),
                ('periods', 120), ('periods_over', 4), ('periods_short', 2),
                ('largest_project_percent', 50)):
            self.assertEqual(value, found.get_sample_value(
                f'ghsched_bursts_{name}', {'node': '1'}), name)
        self.assertIsNone(found.get_sample_value(
            'ghsched_bursts_short_chance', {'node': '0'}))

    def test_no_file_has_no_sample(self):
        found = self.scrape(Path('/nowhere/bursts.json'))
        self.assertEqual([], [one for metric in found.collect()
                              for one in metric.samples])
