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

import fixtures

from ghsched_nova.base import qemu
from ghsched_nova.features.real_time import model
from ghsched_nova.features.real_time import survey
from ghsched_nova.guest import metadata
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.fixtures import libvirt_host

TOP = Path(__file__).parents[3]
POLICY = (f'<metadata><g:policy xmlns:g="{metadata.NAMESPACE}" '
          'monitor="true"><g:node host="1" min="0" max="55" '
          'hardlimit="true"/></g:policy></metadata>')


class TopTest(libvirt_host.HostTestCase):
    settings = testhost.Settings(dialect='intel')

    def top(self):
        done = self.host.run([
            'env', f'PYTHONPATH={TOP}', sys.executable, '-W', 'ignore', '-m',
            'ghsched_nova.features.top.top', '--json', '-n', '1', '-d', '0.5'])
        self.assertEqual('', done.stderr)
        return json.loads(done.stdout)

    def start_with_policy(self, name, tune):
        self.useFixture(fixtures.MonkeyPatch(
            f'{libvirt_host.__name__}.DOMAIN', libvirt_host.DOMAIN.replace(
                '  <memory unit', f'  {POLICY}\n  <memory unit', 1)))
        self.assertEqual('', self.start(name, tune))

    def test_asked_effective_and_used(self):
        self.start_with_policy('asked', libvirt_host.NODE_1)
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
        self.start_with_policy('watched', libvirt_host.MONITOR)
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

    def test_vcpus_in_the_status_of_a_guest_are_its_threads(self):
        self.assertEqual('', self.start('a', libvirt_host.NODE_1))
        run_path = Path(self.host.state, 'run/libvirt/qemu')
        found = qemu.read_vcpu_threads(run_path, 'a')
        self.assertEqual({0, 1}, found.keys())
        process = qemu.find_qemu_process(run_path, 'a')
        for number, tid in found.items():
            self.assertEqual(
                model.Role('vcpu', number),
                survey.read_thread_role(Path('/proc'), process, tid))
        self.assertIsNone(qemu.read_vcpu_threads(run_path, 'b'))
