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


"""ghsched-top beside an unmodified libvirtd. All figures are simulated."""

import json
import os
from pathlib import Path
import sys

from ghsched_nova.guest import metadata
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.functional import test_testhost

TOP = Path(__file__).parents[3]
POLICY = (f'<metadata><g:policy xmlns:g="{metadata.NAMESPACE}" '
          'monitor="true"><g:node host="1" min="0" max="55" '
          'hardlimit="true"/></g:policy></metadata>')


def setUpModule():
    test_testhost.setUpModule()


def tearDownModule():
    test_testhost.tearDownModule()


class TopTest(test_testhost.HostTestCase):
    settings = testhost.Settings(dialect='intel')

    def top(self):
        done = self.host.run([
            'env', f'PYTHONPATH={TOP}', sys.executable, '-W', 'ignore', '-m',
            'ghsched_nova.features.top.top', '--json', '-n', '1', '-d', '0.5'])
        self.assertEqual('', done.stderr)
        return json.loads(done.stdout)

    def start_with_policy(self, name, tune):
        self.useFixture(test_testhost.fixtures.MonkeyPatch(
            f'{test_testhost.__name__}.DOMAIN', test_testhost.DOMAIN.replace(
                '  <memory unit', f'  {POLICY}\n  <memory unit', 1)))
        self.assertEqual('', self.start(name, tune))

    def test_asked_effective_and_used(self):
        self.start_with_policy('asked', test_testhost.NODE_1)
        shown = self.top()
        self.assertIsNone(shown['problem'])
        guest, = shown['guests']
        uuid = self.virsh('domuuid', 'asked').stdout.strip()
        self.assertEqual(('asked', uuid, self.groups()), (
            guest['name'], guest['uuid'], guest['groups']))
        row = next(node for node in guest['nodes'] if node['nodes'] == [1])
        self.assertEqual((55, 60), (row['asked']['max'],
                                    row['effective']['max']))
        self.assertEqual('ok', row['used']['state'])
        self.assertIsNotNone(row['used']['bytes_per_second'])

    def test_guest_with_a_monitor_alone_is_measured(self):
        self.start_with_policy('watched', test_testhost.MONITOR)
        guest, = self.top()['guests']
        group, = guest['groups']
        self.assertEqual('mon_groups', os.path.dirname(group))
        self.assertEqual('ok', guest['used']['state'])

    def test_guest_without_a_group_is_reported(self):
        self.start_with_policy('plain', '')
        guest, = self.top()['guests']
        self.assertEqual(('plain', [], 'missing'), (
            guest['name'], guest['groups'], guest['used']['state']))

    def test_without_libvirt_the_groups_tell(self):
        done = self.host.run([
            'env', f'PYTHONPATH={TOP}', sys.executable, '-W', 'ignore', '-m',
            'ghsched_nova.features.top.top', '--json', '-n', '1', '-d', '0.1',
            '-c', 'qemu+unix:///system?socket=/nowhere'])
        self.assertIn('/nowhere', json.loads(done.stdout)['problem'])
        self.assertEqual('', done.stderr)
