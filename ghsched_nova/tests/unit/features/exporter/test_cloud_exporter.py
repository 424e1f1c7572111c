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

"""``ghsched-exporter --cloud``, with a simulated Nova and Placement."""

import contextlib
import io
import json
from unittest import mock

import fixtures
import prometheus_client

from ghsched_nova.features.exporter import cloud_exporter
from ghsched_nova.features.exporter import cloud_metrics
from ghsched_nova.features.exporter import exporter
from ghsched_nova.features.planner import planner_inputs
from ghsched_placement.features.exporter import cloud_cache
from ghsched_placement.fit import node_capacity
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import simulated_cloud


class CloudExporterTest(base.TestCase):

    def make(self, *options):
        self.cloud = simulated_cloud.SimulatedCloud(2)
        self.patch(planner_inputs, 'connect_cloud',
                   lambda name: self.cloud.connection)
        return cloud_exporter.make_cloud_reader(
            exporter.make_parser().parse_args(['--cloud', 'mine', *options])
        )

    def scrape(self, reader, name):
        registry = prometheus_client.CollectorRegistry()
        registry.register(
            cloud_metrics.CloudCollector(reader.get_cloud_reading))
        return registry.get_sample_value(f'ghsched_cloud_{name}')

    def test_failed_refresh_is_logged_and_counted_and_keeps_the_state(self):
        log = self.useFixture(fixtures.FakeLogger())
        reader = self.make('--interval', '60')
        self.assertEqual(60, reader.refresh_cloud())
        self.assertEqual(0, self.scrape(reader, 'errors_total'))
        self.cloud.broken = True
        self.assertEqual(60, reader.refresh_cloud())
        self.assertEqual(1, self.scrape(reader, 'errors_total'))
        self.assertIn('from Placement and Nova; exporting the previous '
                      'metrics: Placement: GET /traits: HTTP 500', log.output)
        self.assertEqual(2, len(reader.get_cloud_reading().cloud.hosts))
        self.assertIsNotNone(self.scrape(reader, 'age_seconds'))

    def test_any_error_is_counted_and_the_next_refresh_comes(self):
        log = self.useFixture(fixtures.FakeLogger())
        reader = self.make('--interval', '60')
        reader.refresh_cloud()
        self.patch(reader._cache, 'refresh', mock.Mock(
            side_effect=[OverflowError('forged'), KeyError('x'), None]))
        pauses = iter([None, None])
        self.patch(cloud_exporter.time, 'sleep',
                   lambda _seconds: next(pauses))
        self.assertRaises(StopIteration, reader._run)
        self.assertEqual(2, self.scrape(reader, 'errors_total'))
        self.assertEqual(2, len(reader.get_cloud_reading().cloud.hosts))
        self.assertIn('exporting the previous metrics: forged', log.output)

    def test_one_host_with_a_forged_report_does_not_hide_the_others(self):
        reader = self.make('--flavor', 'big=3')
        forged = {node_capacity.KEY: json.dumps({'version': 1, 'nodes': [
            {'node': node, 'cpus': 8, 'cpu_ratio': 1e308, 'dedicated': 8,
             'memory': 10 ** 5} for node in range(8)]})}
        client = reader._cache._client
        self.patch(client, 'list_active_servers',
                   lambda host, limit=1: [host])
        self.patch(client, 'get_diagnostics',
                   lambda uuid, host='': forged if uuid == 'h0001' else {})
        self.assertEqual(300, reader.refresh_cloud())
        self.assertEqual(0, self.scrape(reader, 'errors_total'))
        self.assertEqual(2, len(reader.get_cloud_reading().cloud.hosts))

    def test_hosts_that_wait_are_read_soon(self):
        self.patch(cloud_cache, 'HOSTS_READ', 1)
        reader = self.make()
        self.assertEqual(
            [5, 300], [reader.refresh_cloud(), reader.refresh_cloud()]
        )

    def test_server_is_filled_by_a_thread_and_asks_nothing_at_a_scrape(self):
        reader = self.make('--flavor', 'big=3')
        reader.refresh_cloud()
        asked = dict(self.cloud.asked)
        registry = prometheus_client.CollectorRegistry()
        registry.register(
            cloud_metrics.CloudCollector(reader.get_cloud_reading))
        text = prometheus_client.generate_latest(registry).decode()
        self.assertIn('ghsched_cloud_flavor_least_guests{flavor="big"} 3.0',
                      text)
        self.assertIn('ghsched_cloud_requests_total{service="placement"} '
                      f'{asked["placement"]}.0', text)
        self.assertEqual(asked, dict(self.cloud.asked))

    def test_wrong_options_are_refused(self):
        self.patch(planner_inputs, 'connect_cloud', mock.Mock(
            return_value=simulated_cloud.SimulatedCloud(0).connection))
        for options in (['--interval', '1'], ['--interval', 'x'],
                        ['--accounting', 'most'], ['--vf-class', 'nic']):
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertRaises(SystemExit, exporter.main,
                                  ['--cloud', 'mine', *options])

    def test_cloud_that_is_unknown_ends_with_its_reason(self):
        errors = io.StringIO()
        self.patch(planner_inputs, 'connect_cloud', mock.Mock(
            side_effect=exporter.client.PlannerError('no cloud mine')))
        with contextlib.redirect_stderr(errors):
            self.assertEqual(2, exporter.main(['--cloud', 'mine']))
        self.assertEqual('ghsched-exporter: no cloud mine\n',
                         errors.getvalue())
