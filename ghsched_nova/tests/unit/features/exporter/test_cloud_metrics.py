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

import prometheus_client

from ghsched_nova.features.exporter import cloud_metrics
from ghsched_nova.tests.fixtures import dashboards
from ghsched_placement.features.exporter import cloud_figures
from ghsched_placement.features.planner import flavor_counts
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

CLOUD = cloud_figures.CloudFigures(
    (clouds.host(clouds.node(0, used=30), clouds.node(1)),
     clouds.host(clouds.node(0, name='b', used=100), name='b')),
    frozenset({'b'}),
    (flavor_counts.FlavorCapacity('big', 5, 3, 1, {'memory': 1}),), 7, 20.0)


class CollectorTest(base.TestCase):

    def scrape(self, reading):
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(cloud_metrics.CloudCollector(lambda: reading))

    def value(self, name, **labels):
        return self.registry.get_sample_value(f'ghsched_cloud_{name}', labels)

    def test_figures_of_a_cloud(self):
        self.scrape(cloud_metrics.CloudReading(
            CLOUD, 12.5, {'placement': 9}, 2))
        node = {'host': 'a', 'node': '0',
                'resource_class': 'CUSTOM_MEM_BW_PCT'}
        for expected, name, labels in (
                (100, 'capacity', node), (30, 'allocated', node),
                (70, 'free', node),
                (31, 'free', {'host': 'b', 'node': '', 'resource_class':
                              'CUSTOM_RESCTRL_GROUP'}),
                (41, 'fragmentation_percent', {'host': 'a'}),
                (None, 'fragmentation_percent', {'host': 'b'}),
                (1, 'host_available', {'host': 'a'}),
                (0, 'host_available', {'host': 'b'}),
                (3, 'flavor_guests', {'flavor': 'big'}),
                (5, 'flavor_least_guests', {'flavor': 'big'}),
                (1, 'flavor_hosts', {'flavor': 'big'}),
                (1, 'flavor_lacking_hosts', {'flavor': 'big',
                                             'resource': 'memory'}),
                (9, 'requests_total', {'service': 'placement'}),
                (2, 'errors_total', {}), (12.5, 'age_seconds', {}),
                (7, 'unread_hosts', {})):
            self.assertEqual(expected, self.value(name, **labels), name)

    def test_cloud_that_was_never_read_has_no_age(self):
        self.scrape(cloud_metrics.CloudReading(cloud_figures.CloudFigures()))
        self.assertIsNone(self.value('age_seconds'))
        self.assertEqual(0, self.value('errors_total'))

    def test_dashboard_asks_for_metrics_that_exist(self):
        asked = dashboards.read_metrics(self, 'ghsched-cloud.json')
        ours = {metric.exported_name for metric in cloud_metrics.METRICS}
        # Measured by the exporters of the hosts.
        self.assertEqual({'ghsched_guest_not_protected'}, asked - ours)
        self.assertEqual({'ghsched_cloud_requests_total',
                          'ghsched_cloud_errors_total',
                          'ghsched_cloud_flavor_least_guests'}, ours - asked)
