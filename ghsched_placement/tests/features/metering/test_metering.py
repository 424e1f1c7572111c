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

"""Measurements of servers for metering services.

GHSCHED_TELEMETRY=DIRECTORY names a virtual environment with Ceilometer, whose
own code then reads them by the definitions that are shipped.
"""

import json
import os
from pathlib import Path
import subprocess

import fixtures

from ghsched_placement.features.metering import metering
from ghsched_placement.features.service_level.service_level import LevelKey
from ghsched_placement.features.service_level.service_level import LevelPeriod
from ghsched_placement.features.service_level.service_level import Owner
from ghsched_placement.tests import base

METERS = Path(__file__).parents[4] / 'etc' / 'ghsched' / 'ceilometer'

#: Two nodes of a server, one of another, and one whose use is unknown.
PERIODS = {
    LevelKey('u1', 0): (Owner('web', 'p1', 'f'),
                        LevelPeriod(allocated=30, got=12.5)),
    LevelKey('u1', 1): (Owner('web', 'p1', 'f'),
                        LevelPeriod(allocated=20, got=1.0)),
    LevelKey('u2', 0): (Owner('db', 'p2', 'g'),
                        LevelPeriod(allocated=None, got=7.0)),
    LevelKey('u3', 1): (Owner('log', 'p2', 'g'),
                        LevelPeriod(allocated=10, got=None))}

#: (name, server, project, value), by the definition of PERIODS.
SAMPLES = [
    ('ghsched.server.bandwidth.allocated', 'u1', 'p1', 50),
    ('ghsched.server.bandwidth.allocated', 'u2', 'p2', 0),
    ('ghsched.server.bandwidth.allocated', 'u3', 'p2', 10),
    ('ghsched.server.bandwidth.used', 'u1', 'p1', 13.5),
    ('ghsched.server.bandwidth.used', 'u2', 'p2', 7)]

#: Prints the samples that Ceilometer makes of a notification.
CEILOMETER = '''
import json
import sys

from ceilometer import service
from ceilometer.meter import notifications

conf = service.prepare_service([], [])
conf.set_override('meter_definitions_dirs', [sys.argv[1]], group='meter')
endpoint = notifications.ProcessMeterNotifications(conf, None)
print(json.dumps([
    [sample.name, sample.resource_id, sample.project_id, sample.volume,
     sample.unit, sample.type, sample.resource_metadata['host']]
    for sample in endpoint.build_sample(json.load(sys.stdin))]))
'''


class NotificationTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.payload = metering.make_bandwidth_notification(
            'host', 60.04, PERIODS)

    def test_nodes_of_a_server_are_added(self):
        self.assertEqual(('host', 60.0), (self.payload['host'],
                                          self.payload['seconds']))
        self.assertEqual(SAMPLES, sorted(
            (one['name'], one['server'], one['project'], one['value'])
            for one in self.payload['measurements']))

    def test_each_measurement_has_all_that_a_meter_needs(self):
        """Ceilometer drops a notification in which one lacks a field."""
        needed = {'name', 'unit', 'value', 'server', 'project'}
        for one in self.payload['measurements']:
            self.assertLessEqual(needed, one.keys())
            self.assertNotIn(None, one.values())

    def test_ceilometer_makes_a_sample_of_each(self):
        top = os.environ.get('GHSCHED_TELEMETRY')
        if top is None:
            self.skipTest('GHSCHED_TELEMETRY names no environment')
        done = subprocess.run(
            [f'{top}/bin/python', '-W', 'ignore', '-c', CEILOMETER, METERS],
            input=json.dumps({
                'event_type': metering.EVENT, 'payload': self.payload,
                'publisher_id': 'nova-compute:host', 'message_id': 'm',
                'priority': 'INFO', 'ctxt': {},
                'timestamp': '2026-01-01 00:00:00',
                'metadata': {'timestamp': '2026-01-01 00:00:00',
                             'message_id': 'm'}}),
            capture_output=True, text=True, timeout=base.GIVE_UP_S,
            cwd=self.useFixture(fixtures.TempDir()).path)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(
            [(*sample, '%', 'gauge', 'host') for sample in SAMPLES],
            sorted(map(tuple, json.loads(done.stdout.splitlines()[-1]))))
