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

"""Measurements of servers reach the storage of metering services.

nova-compute's notification goes over a real RabbitMQ to Ceilometer's
notification agent, which has the definitions that are shipped. The agent
publishes to a real Gnocchi, and by a Pushgateway to a real Prometheus.
CloudKitty rates what Gnocchi has, if it is installed.

GHSCHED_TELEMETRY=DIRECTORY names a virtual environment with Ceilometer,
gnocchi[mysql] and CloudKitty. Each step ends after base.GIVE_UP_S.
"""

import json
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time
import uuid

import fixtures
import requests
from testtools import content
import yaml

from ghsched_placement.features.metering import metering
from ghsched_placement.features.service_level.service_level import LevelKey
from ghsched_placement.features.service_level.service_level import LevelPeriod
from ghsched_placement.features.service_level.service_level import Owner
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import ports

ETC = Path(__file__).parents[3] / 'etc' / 'ghsched'

PROGRAMS = ('/usr/lib/rabbitmq/bin/rabbitmq-server', 'epmd',
            '/usr/sbin/mariadbd', 'mariadb-install-db',
            'prometheus', 'prometheus-pushgateway')

SERVERS = tuple(str(uuid.UUID(int=number, version=4)) for number in (1, 2))
PROJECTS = tuple(uuid.UUID(int=number, version=4).hex for number in (11, 12))

#: Two host NUMA nodes of the first server, one of the second.
PERIODS = {
    LevelKey(SERVERS[0], 0): (Owner('web', PROJECTS[0], 'f'),
                              LevelPeriod(allocated=30, got=12.5)),
    LevelKey(SERVERS[0], 1): (Owner('web', PROJECTS[0], 'f'),
                              LevelPeriod(allocated=20, got=1.0)),
    LevelKey(SERVERS[1], 1): (Owner('db', PROJECTS[1], 'g'),
                              LevelPeriod(allocated=10, got=7.0))}

#: Percent, by (meter, server, project): the nodes of a server are added.
EXPECTED = {
    (metering.ALLOCATED, SERVERS[0], PROJECTS[0]): 50.0,
    (metering.USED, SERVERS[0], PROJECTS[0]): 13.5,
    (metering.ALLOCATED, SERVERS[1], PROJECTS[1]): 10.0,
    (metering.USED, SERVERS[1], PROJECTS[1]): 7.0}

#: Sends the notification on standard input, configured as nova-compute is.
SEND = '''
import json
import sys

from nova import config

from ghsched_nova.nova_seams import messaging
from ghsched_placement.features.metering import metering

config.parse_args(['nova-compute', '--config-file', sys.argv[1]],
                  configure_db=False)
messaging.send_notification(metering.EVENT, json.load(sys.stdin))
'''

#: Gnocchi's API at the port that the first argument names.
SERVE_GNOCCHI = '''
import sys
from wsgiref import simple_server

port = int(sys.argv.pop(1))
from gnocchi.rest.wsgi import application

simple_server.make_server('127.0.0.1', port, application).serve_forever()
'''

#: Rates what CloudKitty's own collector finds in Gnocchi, at a cost of each
#: percent. Prints a line [type, server, project, percent, price] each.
RATE = '''
import datetime
import json
import sys

from cloudkitty import dataframe
from cloudkitty import service
from cloudkitty.collector import gnocchi
from cloudkitty.rating import hash as hashmap
import yaml

config, metrics, cost, hour = sys.argv[1:]
service.prepare_service(['rate', '--config-file', config])
with open(metrics) as file:
    collector = gnocchi.GnocchiCollector(
        period=3600, conf=yaml.safe_load(file))
start = datetime.datetime.fromisoformat(hour)
rates = hashmap.HashMap.db_api
for metric in collector.conf.values():
    name = metric['alt_name']
    rates.create_mapping(
        cost, map_type='flat', name=name, created_by='test', start=start,
        service_id=rates.create_service(name).service_id)
for project in json.load(sys.stdin):
    frame = dataframe.DataFrame(start, start + datetime.timedelta(hours=1))
    for name in collector.conf:
        found, points = collector.retrieve(
            name, frame.start, frame.end, project)
        frame.add_points(points, found)
    for found, point in hashmap.HashMap(project).process(frame).iterpoints():
        print(json.dumps([
            found, point.groupby['id'], point.groupby['project_id'],
            float(point.qty), float(point.price)]))
'''


class MeteringStorageTest(base.TestCase):

    def setUp(self):
        self.telemetry = os.environ.get('GHSCHED_TELEMETRY', '')
        for program in (f'{self.telemetry}/bin/ceilometer-agent-notification',
                        f'{self.telemetry}/bin/gnocchi-metricd', *PROGRAMS):
            if shutil.which(program) is None:
                self.skipTest(f'{program} is not installed')
        super().setUp()
        self.top = Path(self.useFixture(fixtures.TempDir()).path)
        self.addOnException(self._attach_logs)
        first = ports.find_free_ports(7)
        (self.broker, self.dist, self.epmd, self.database, self.api,
         self.gateway, self.prometheus) = range(first, first + 7)
        self._write_configurations()

    def test_measurements_of_two_projects_reach_gnocchi_and_prometheus(self):
        self._start_broker()
        self._start_gnocchi()
        self._start_prometheus()
        self._start_ceilometer()
        self._send_notification()
        self._until(lambda: self._read_gnocchi() == EXPECTED,
                    self._read_gnocchi)
        self._until(lambda: self._read_prometheus() == EXPECTED,
                    self._read_prometheus)
        self.assertEqual(
            {metering.UNIT}, {metric['unit'] for metric in
                              self._gnocchi('get', 'metric').json()})
        if (Path(self.telemetry) / 'bin' / 'cloudkitty-dbsync').exists():
            self._rate_with_cloudkitty()

    def _rate_with_cloudkitty(self):
        config = self._write('cloudkitty.conf', f'''
[collector_gnocchi]
gnocchi_auth_type = basic
gnocchi_user = admin
gnocchi_endpoint = http://127.0.0.1:{self.api}
[database]
connection = mysql+pymysql://root@127.0.0.1:{self.database}/cloudkitty
''')
        self._run(f'{self.telemetry}/bin/cloudkitty-dbsync',
                  '--config-file', str(config), 'upgrade')
        metric = self._gnocchi('get', 'metric').json()[0]['id']
        hour = self._gnocchi('get', f'metric/{metric}/measures',
                             params={'granularity': 3600}).json()[0][0]
        done = self._run(
            f'{self.telemetry}/bin/python', '-W', 'ignore', '-c', RATE,
            str(config), str(ETC / 'cloudkitty' / 'metrics-gnocchi.yml'),
            '0.02', hour, input=json.dumps(PROJECTS))
        rated = map(json.loads, done.stdout.splitlines())
        names = {metering.ALLOCATED: 'memory.bandwidth.guaranteed',
                 metering.USED: 'memory.bandwidth.used'}
        self.assertEqual(
            sorted([names[meter], server, project, percent, percent * .02]
                   for (meter, server, project), percent in EXPECTED.items()),
            sorted(rated))

    def _write_configurations(self):
        url = f'rabbit://guest:guest@127.0.0.1:{self.broker}/'
        self._write('rabbitmq.conf', f'listeners.tcp.1 = 127.0.0.1:'
                    f'{self.broker}\n')
        self._write('nova.conf', f'''
[DEFAULT]
host = host
transport_url = {url}
[oslo_messaging_notifications]
driver = messagingv2
[notifications]
notification_format = both
''')
        self._write('gnocchi.conf', f'''
[DEFAULT]
coordination_url = file://{self.top}/coordination
[api]
auth_mode = basic
[indexer]
url = mysql+pymysql://root@127.0.0.1:{self.database}/gnocchi
[metricd]
workers = 1
metric_processing_delay = 1
[storage]
driver = file
file_basepath = {self.top}/gnocchi
''')
        self._write('prometheus.yml', yaml.safe_dump({
            'global': {'scrape_interval': '1s'},
            'scrape_configs': [{
                'job_name': 'ceilometer', 'honor_labels': True,
                'static_configs': [{
                    'targets': [f'127.0.0.1:{self.gateway}']}]}]}))
        self._write_configuration_of_ceilometer(url)

    def _write_configuration_of_ceilometer(self, url):
        (self.top / 'meters.d').mkdir()
        shutil.copy(ETC / 'ceilometer' / 'ghsched.yaml', self.top / 'meters.d')
        self._write('ceilometer.conf', f'''
[DEFAULT]
transport_url = {url}
[meter]
meter_definitions_dirs = {self.top}/meters.d
[notification]
workers = 1
pipelines = meter
[oslo_messaging_notifications]
topics = notifications
topics = versioned_notifications
[service_credentials]
auth_type = gnocchi-basic
user = admin
endpoint = http://127.0.0.1:{self.api}
''')
        self._write('pipeline.yaml', yaml.safe_dump({
            'sources': [{'name': 'ghsched', 'sinks': ['storage'],
                         'meters': ['ghsched.server.bandwidth.*']}],
            'sinks': [{'name': 'storage', 'publishers': [
                'gnocchi://?enable_filter_project=false',
                f'prometheus://127.0.0.1:{self.gateway}'
                '/metrics/job/ceilometer']}]}))
        shipped = next(Path(self.telemetry).glob(
            'lib/python*/site-packages/ceilometer/publisher/data/'
            'gnocchi_resources.yaml'))
        definitions = yaml.safe_load(shipped.read_text())
        ours = yaml.safe_load(
            (ETC / 'gnocchi' / 'ghsched_resources.yaml').read_text())
        for name, entries in ours.items():
            definitions[name] += entries
        self._write('gnocchi_resources.yaml', yaml.safe_dump(definitions))

    def _start_broker(self):
        erlang = {'HOME': str(self.top), 'ERL_EPMD_ADDRESS': '127.0.0.1',
                  'ERL_EPMD_PORT': str(self.epmd)}
        self._start('epmd', **erlang)
        self._start(
            PROGRAMS[0], **erlang, RABBITMQ_NODENAME='metering@localhost',
            RABBITMQ_CONF_ENV_FILE=str(self.top / 'none'),
            RABBITMQ_CONFIG_FILE=str(self.top / 'rabbitmq.conf'),
            RABBITMQ_MNESIA_BASE=str(self.top / 'mnesia'),
            RABBITMQ_LOG_BASE=str(self.top), RABBITMQ_LOGS='-',
            RABBITMQ_PID_FILE=str(self.top / 'rabbitmq.pid'),
            RABBITMQ_GENERATED_CONFIG_DIR=str(self.top / 'generated'),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(self.top / 'plugins'),
            RABBITMQ_DIST_PORT=str(self.dist))
        self._until(lambda: ports.is_listening(self.broker))

    def _start_gnocchi(self):
        data = self.top / 'mariadb'
        self._run('mariadb-install-db', '--no-defaults', '--user=root',
                  f'--datadir={data}',
                  '--auth-root-authentication-method=normal',
                  '--skip-test-db')
        init = self._write('init.sql', 'CREATE DATABASE gnocchi;\n'
                           'CREATE DATABASE cloudkitty;\n')
        self._start('/usr/sbin/mariadbd', '--no-defaults', '--user=root',
                    f'--datadir={data}', f'--socket={self.top}/mariadb.sock',
                    f'--pid-file={self.top}/mariadb.pid',
                    '--bind-address=127.0.0.1', f'--port={self.database}',
                    f'--init-file={init}')
        self._until(lambda: ports.is_listening(self.database))
        config = '--config-file', str(self.top / 'gnocchi.conf')
        self._run(f'{self.telemetry}/bin/gnocchi-upgrade', *config)
        self._start(f'{self.telemetry}/bin/python', '-W', 'ignore', '-c',
                    SERVE_GNOCCHI, str(self.api), *config)
        self._start(f'{self.telemetry}/bin/gnocchi-metricd', *config)
        self._until(lambda: ports.is_listening(self.api))

    def _start_prometheus(self):
        self._start('prometheus-pushgateway',
                    f'--web.listen-address=127.0.0.1:{self.gateway}')
        self._start('prometheus', f'--config.file={self.top}/prometheus.yml',
                    f'--storage.tsdb.path={self.top}/tsdb',
                    f'--web.listen-address=127.0.0.1:{self.prometheus}')
        for port in self.gateway, self.prometheus:
            self._until(lambda port=port: ports.is_listening(port))

    def _start_ceilometer(self):
        """Start the agent; Gnocchi has the servers, as Ceilometer makes them.

        Ceilometer makes them of compute.instance.create.end, or when
        ceilometer-polling on the host finds them.
        """
        config = '--config-file', str(self.top / 'ceilometer.conf')
        self._run(f'{self.telemetry}/bin/ceilometer-upgrade', *config)
        for server, project in zip(SERVERS, PROJECTS, strict=True):
            self._gnocchi('post', 'resource/instance', json={
                'id': server, 'project_id': project, 'display_name': 'name',
                'flavor_id': 'f', 'flavor_name': 'f', 'host': 'host'})
        self._start(f'{self.telemetry}/bin/ceilometer-agent-notification',
                    *config)

    def _send_notification(self):
        self._run(sys.executable, '-W', 'ignore', '-c', SEND,
                  str(self.top / 'nova.conf'), input=json.dumps(
                      metering.make_bandwidth_notification(
                          'host', 60.0, PERIODS)))

    def _read_gnocchi(self):
        """Return the last measure by meter, server and project."""
        found = {}
        for resource in self._gnocchi('get', 'resource/instance').json():
            for name, metric in resource['metrics'].items():
                measures = self._gnocchi(
                    'get', f'metric/{metric}/measures').json()
                if measures:
                    found[name, resource['original_resource_id'],
                          resource['project_id']] = measures[-1][2]
        return found

    def _gnocchi(self, method, path, **arguments):
        answer = requests.request(
            method, f'http://127.0.0.1:{self.api}/v1/{path}',
            auth=('admin', ''), timeout=base.GIVE_UP_S, **arguments)
        self.assertTrue(answer.ok, answer.text)
        return answer

    def _read_prometheus(self):
        """Return the last value by meter, server and project."""
        found = {}
        for meter in metering.ALLOCATED, metering.USED:
            answer = requests.get(
                f'http://127.0.0.1:{self.prometheus}/api/v1/query',
                params={'query': meter.replace('.', '_')},
                timeout=base.GIVE_UP_S)
            for one in answer.json().get('data', {}).get('result', ()):
                labels = one['metric']
                found[meter, labels['resource_id'],
                      labels['project_id']] = float(one['value'][1])
        return found

    def _write(self, name, text):
        path = self.top / name
        path.write_text(text)
        return path

    def _run(self, *command, **arguments):
        done = subprocess.run(command, capture_output=True, text=True,
                              timeout=base.GIVE_UP_S, cwd=self.top,
                              **arguments)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done

    def _start(self, *command, **environment):
        log = (self.top / (Path(command[0]).name + '.log')).open('a')
        self.addCleanup(log.close)
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=self.top,
            env={**os.environ, **environment}, start_new_session=True)
        # Some have children that outlive them.
        self.addCleanup(process.wait, base.GIVE_UP_S)
        self.addCleanup(os.killpg, process.pid, signal.SIGKILL)

    def _until(self, condition, describe=lambda: 'no answer'):
        end = time.monotonic() + base.GIVE_UP_S
        while not condition():
            self.assertLess(time.monotonic(), end, describe())
            time.sleep(.2)

    def _attach_logs(self, _failure):
        for log in sorted(self.top.glob('*.log')):
            self.addDetail(log.name, content.text_content(
                log.read_text(errors='replace')[-5000:]))
