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

"""A real Prometheus answers each query of the dashboards and each rule.

It scrapes the exporters of two simulated hosts, and that of a cloud.
GHSCHED_TELEMETRY=DIRECTORY names a virtual environment with Aetos, through
which tenants then ask.
"""

import itertools
import json
import os
from pathlib import Path
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib import parse
from wsgiref import simple_server

import fixtures
import jsonschema
import prometheus_client
import requests
import yaml

from ghsched_nova.features.exporter import cloud_metrics
from ghsched_nova.features.exporter import exporter
from ghsched_nova.features.load import load_metrics
from ghsched_nova.features.service_level import service_metrics
from ghsched_nova.monitor import view
from ghsched_nova.tests.fixtures import exporter_case
from ghsched_placement.features.exporter import cloud_figures
from ghsched_placement.features.load import load
from ghsched_placement.features.planner import flavor_counts
from ghsched_placement.features.service_level import service_level
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

ETC = Path(__file__).parents[3] / 'etc' / 'ghsched'

#: What stands for a dashboard's variables in its queries.
VARIABLES = {'$instance': '.*', '$host': '.*', '$flavor': '.*',
             '$__rate_interval': '5m'}

PROJECTS = 'one', 'two'

#: Aetos as a server, with Keystone's headers as its client sends them.
SERVE_AETOS = '''
import sys
from wsgiref import simple_server

from aetos import app

simple_server.make_server('127.0.0.1', int(sys.argv[1]), app.build_wsgi_app(
    ['--config-file', sys.argv[2]])).serve_forever()
'''

#: Figures that neither host has.
ABSENT = ('ghsched_effective_max_bytes_per_second',)


CLOUD = cloud_figures.CloudFigures(
    (clouds.host(clouds.node(0, used=30), clouds.node(1)),
     clouds.host(clouds.node(0, name='b'), name='b')), frozenset({'b'}),
    (flavor_counts.FlavorCapacity('big', 5, 3, 1, {'memory': 1}),), 7, 20.0)

#: A host with all figures.
LOAD = load.HostLoad(1.0, 60.0, (load.HostNodeLoad(
    0, 4, 2, 4096, 1024, .95, .5, 1e9, 4e9, .25, .1, 3.0, 2.0, .2, .3, 2.0,
    ('cpu_load',)),), (load.GuestNodeLoad('a', 0, 0, 2, 1024, cpu_load=1.0,
                                          cpu_wait=.5),))


#: What Grafana needs of a panel to draw it.
PANEL = {
    'type': 'object',
    'required': ['id', 'type', 'title', 'gridPos', 'datasource', 'targets',
                 'fieldConfig', 'options'],
    'properties': {
        'type': {'enum': ['stat', 'table', 'timeseries']},
        'title': {'type': 'string', 'minLength': 1},
        'datasource': {'type': 'object', 'required': ['type', 'uid']},
        'gridPos': {
            'type': 'object', 'required': ['x', 'y', 'w', 'h'],
            'additionalProperties': {'type': 'integer', 'minimum': 0}},
        'targets': {'type': 'array', 'minItems': 1, 'items': {
            'type': 'object', 'required': ['refId', 'expr'],
            'properties': {'expr': {'type': 'string', 'minLength': 1}}}}}}


class PanelsTest(base.TestCase):

    def test_panels_can_be_drawn_and_do_not_overlap(self):
        for path in sorted((ETC / 'grafana').glob('*.json')):
            taken = set()
            for panel in json.loads(path.read_text())['panels']:
                jsonschema.validate(panel, PANEL)
                names = [target['refId'] for target in panel['targets']]
                self.assertEqual(len(names), len(set(names)), panel['title'])
                grid = panel['gridPos']
                cells = set(itertools.product(
                    range(grid['x'], grid['x'] + grid['w']),
                    range(grid['y'], grid['y'] + grid['h'])))
                self.assertLessEqual(grid['x'] + grid['w'], 24)
                self.assertFalse(taken & cells, (path.name, panel['title']))
                taken |= cells


class LoadCollector:

    def collect(self):
        return load_metrics.make_load_metrics(
            LOAD, [view.MonitoredGuest('g', 'a', 1)])


def find_free_port():
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return free.getsockname()[1]


class AlertsTest(base.TestCase):

    def test_they_fire_when_they_should_and_only_then(self):
        promtool = shutil.which('promtool')
        if promtool is None:
            self.skipTest('promtool is not installed')
        done = subprocess.run(
            [promtool, 'test', 'rules', 'ghsched.rules.test.yaml'],
            cwd=ETC / 'prometheus', capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)


class CommandTest(exporter_case.ExporterTestCase):

    def test_listens_on_loopback_until_it_is_ended(self):
        host = self.host('openeuler66', exporter_case.QEMU)
        script = ('import sys; '
                  'from ghsched_nova.features.exporter import exporter; '
                  'sys.exit(exporter.main())')
        with subprocess.Popen(
                [sys.executable, '-c', script, '--port', '0',
                 '--no-libvirt', '--resctrl', str(host.root), '--sysfs',
                 str(host.top / 'sysfs')],
                stderr=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            line = process.stderr.readline()
            match = re.fullmatch(r'ghsched-exporter: 127\.0\.0\.1 port '
                                 r'([0-9]+), /metrics\n', line)
            self.url = f'http://127.0.0.1:{match[1]}/metrics'
            found = self.scrape()
            self.assertIn(self.figure(
                'ghsched_memory_bytes_per_second', guest_uuid='',
                guest_name='instance-00000001'), found)
            self.assertNotIn('ghsched_libvirt_up', self.types)
            process.send_signal(signal.SIGTERM)
            self.assertEqual('', process.stderr.read())
        self.assertEqual(0, process.returncode)


class PrometheusTestCase(exporter_case.ExporterTestCase):

    def setUp(self):
        super().setUp()
        if shutil.which('prometheus') is None:
            self.skipTest('prometheus is not installed')
        self.top = Path(self.useFixture(fixtures.TempDir()).path)
        # One host counts bytes, the other one has rates and guarantees.
        targets = [self.serve_cloud()]
        for dialect in ('intel', 'openeuler66'):
            self.serve(self.host(dialect, exporter_case.QEMU, 'other'))
            targets.append(parse.urlsplit(self.url).netloc)
        self.start_prometheus(targets)

    def serve_cloud(self):
        """Serve the metrics of a cloud, loads and service levels."""
        levels = self.top / 'levels.json'
        levels.write_text(service_level.FORMAT.render({
            service_level.LevelKey(f'server of {project}',
                                   1): service_level.Level(
                service_level.Owner('web', project, 'f'), 7, 1000.0,
                service_level.LevelPeriod(30, 80, None, 28, 12.5), 600.0,
                0.0, 10,
                {service_level.ShortageCause.NODE_FULL: 2},
                {service_level.ShortageCause.NODE_FULL: 120.0})
            for project in PROJECTS}))
        registry = prometheus_client.CollectorRegistry()
        for collector in (
                cloud_metrics.CloudCollector(
                    lambda: cloud_metrics.CloudReading(
                        CLOUD, 12.5, {'placement': 9}, 2)),
                LoadCollector(),
                service_metrics.ServiceLevelCollector(levels)):
            registry.register(collector)
        server = simple_server.make_server(
            '127.0.0.1', 0, exporter.make_registry_application(registry),
            handler_class=exporter._Handler)
        thread = threading.Thread(target=server.serve_forever, args=(.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f'127.0.0.1:{server.server_port}'

    def start_prometheus(self, targets):
        rules = ETC / 'prometheus' / 'ghsched.rules.yaml'
        config = self.top / 'prometheus.yml'
        config.write_text(yaml.safe_dump({
            'global': {'scrape_interval': '1s', 'evaluation_interval': '1s'},
            'rule_files': [str(rules)],
            'scrape_configs': [{'job_name': 'ghsched', 'static_configs': [
                {'targets': targets}]}]}))
        self.port = find_free_port()
        self.api = f'http://127.0.0.1:{self.port}/api/v1'
        self.start('prometheus', f'--config.file={config}',
                   f'--storage.tsdb.path={self.top / "data"}',
                   f'--web.listen-address=127.0.0.1:{self.port}')
        self.until(lambda: self.ask('targets')['activeTargets'])

    def start(self, *command):
        log = (self.top / 'log').open('a')
        self.addCleanup(log.close)
        process = subprocess.Popen(command, stdout=log,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

    def ask(self, path, headers=None, **parameters):
        """Data of Prometheus' answer; None until it answers."""
        try:
            answer = requests.get(
                f'{self.api}/{path}', params=parameters, headers=headers,
                timeout=base.GIVE_UP_S).json()
        except (requests.ConnectionError, requests.JSONDecodeError):
            return {'activeTargets': None}
        self.assertEqual('success', answer['status'], (parameters, answer))
        return answer['data']

    def until(self, condition):
        end = time.monotonic() + base.GIVE_UP_S
        while not condition():
            self.assertLess(time.monotonic(), end, 'no answer')
            time.sleep(.2)


class PrometheusTest(PrometheusTestCase):

    def queries(self):
        """(dashboard and panel, query) of all dashboards."""
        for path in sorted((ETC / 'grafana').glob('*.json')):
            for panel in json.loads(path.read_text())['panels']:
                for target in panel['targets']:
                    query = target['expr']
                    for name, value in VARIABLES.items():
                        query = query.replace(name, value)
                    yield f'{path.stem}: {panel["title"]}', query

    def test_each_query_of_the_dashboards_has_an_answer(self):
        empty = [(panel, query) for panel, query in self.queries()
                 if not any(name in query for name in ABSENT)]

        def is_answered():
            # On a busy machine a scrape may come too late, so that a query
            # has no answer until the next one.
            empty[:] = [(panel, query) for panel, query in empty
                        if not self.ask('query', query=query)['result']]
            return not empty or len(self.ask(
                'query', query='sum_over_time(up[5m]) > 20')['result']) == 3
        self.until(is_answered)
        self.assertEqual([], empty)

    def test_each_rule_is_evaluated(self):
        def rules():
            return [rule for group in self.ask('rules')['groups']
                    for rule in group['rules']]
        self.until(lambda: rules() and all(
            rule['health'] != 'unknown' for rule in rules()))
        self.assertEqual([], [rule['name'] for rule in rules()
                              if rule['health'] != 'ok'])


class TenantsTest(PrometheusTestCase):

    def setUp(self):
        aetos = os.environ.get('GHSCHED_TELEMETRY')
        if aetos is None:
            self.skipTest('GHSCHED_TELEMETRY names no environment with Aetos')
        super().setUp()
        config = self.top / 'aetos.conf'
        config.write_text('[DEFAULT]\nauth_mode = noauth\n[prometheus]\n'
                          f'host = 127.0.0.1\nport = {self.port}\n')
        self.until(lambda: self.list_servers({}) == set(PROJECTS))
        port = find_free_port()
        self.start(f'{aetos}/bin/python', '-c', SERVE_AETOS, str(port),
                   str(config))
        self.api = f'http://127.0.0.1:{port}/api/v1'

    def list_servers(self, headers):
        """Projects of the servers whose figures somebody sees."""
        answer = self.ask('query', headers,
                          query='ghsched_server_got_percent')
        return {one['metric']['project'] for one in answer.get('result', ())}

    def test_tenant_sees_its_own_servers_and_no_others(self):
        admin = {'X-Project-Id': 'admin', 'X-Roles': 'admin'}
        self.until(lambda: self.list_servers(admin))
        self.assertEqual(set(PROJECTS), self.list_servers(admin))
        for project in (*PROJECTS, 'three'):
            tenant = {'X-Project-Id': project, 'X-Roles': 'reader'}
            self.assertEqual({project} & set(PROJECTS),
                             self.list_servers(tenant))
            # Not even by the name of the other project.
            for query in ('ghsched_server_got_percent{project="one"}',
                          'sum(ghsched_server_periods_total) by (project)',
                          '{project=~".+"}'):
                seen = self.ask('query', tenant, query=query)['result']
                self.assertLessEqual({one['metric']['project']
                                      for one in seen}, {project})
            # Figures of hosts have no project.
            self.assertEqual([], self.ask(
                'query', tenant, query='ghsched_node_load')['result'])
