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

"""``cloud``, with guests whose scripts run here."""

from pathlib import Path
import shutil
from unittest import mock

import fixtures

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench import plots
from ghsched_nova.lab.bench import record
from ghsched_nova.lab.bench import report
from ghsched_nova.lab.bench import run
from ghsched_nova.lab.bench import scenario_list
from ghsched_nova.lab.bench.scenarios import cloud
from ghsched_nova.tests.fixtures.guests import Guests
from ghsched_nova.tests.fixtures import results
from ghsched_placement.features.load import load
from ghsched_placement.tests import base

#: Prints what stress-ng does; slower the more guests there are.
_STRESS = '''#!/bin/sh
sleep 0.02
guests=$(ls "$GUESTS" | wc -l)
echo "stress-ng: metrc: [7] stream $((1000 / guests)) 1.00 1.00 0.00" \\
  "$((1000 / guests)).00 1000.00"
'''


class CloudTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.work = self.directory / 'work'
        self.work.mkdir()
        (self.directory / 'bin').mkdir()
        program = self.directory / 'bin' / 'stress-ng'
        program.write_text(_STRESS)
        program.chmod(0o755)
        for name in ('sh', 'ls', 'sed', 'sleep', 'tr', 'wc'):
            (self.directory / 'bin' / name).symlink_to(shutil.which(name))
        self.useFixture(fixtures.EnvironmentVariable(
            'PATH', f'{self.directory}/bin'))
        self.useFixture(fixtures.EnvironmentVariable(
            'GUESTS', str(self.work / 'guests')))
        self.useFixture(fixtures.MockPatchObject(cloud, '_LOOK', 0.02))

    def result(self, guests, **given):
        given = {'flavors': 'small', 'image': 'i', 'network': 'n',
                 'workload': 'stress', 'runs': 2, 'warm-up': 0, **given}
        with mock.patch.object(cloud, 'connect_cloud', return_value=guests):
            return run.run(scenario_list.named('cloud'), given, Machine(),
                           lambda _text: None)

    def findings(self, result):
        return {one.name: one.text for one in result.measured.findings}

    def test_steps_up_to_the_line_for_each_flavor(self):
        guests = Guests(self.work, 9)
        result = self.result(guests, flavors='small,large', limit=2.5)
        self.assertEqual(('done', ()), (result.status, result.reasons))
        for flavor in ('small', 'large'):
            self.assertIn('N = 2 is the last that passes, N = 3 the first',
                          self.findings(result)[f'density of {flavor}'])
        self.assertEqual(['small'] * 3 + ['large'] * 3, guests.booted)
        self.assertEqual({}, guests.running)

    def test_a_full_cloud_ends_the_ramp(self):
        result = self.result(Guests(self.work, 2), limit=9.0)
        self.assertIn('at least 2; there is no place for one more: No valid '
                      'host', self.findings(result)['density of small'])

    def test_bandwidth_of_the_nodes_is_reported_without_names(self):
        told = load.HostLoad(1.0, 60.0, (load.HostNodeLoad(0, bandwidth=12e9),
                                         load.HostNodeLoad(1)), ())
        result = self.result(Guests(self.work, 1, told), **{'up-to': 1})
        self.assertEqual(
            [('bandwidth of a node, flavor small, N 1, host 1, node 0',
              (12.0,))],
            [(one.title, one.samples) for one in result.measured.series
             if one.metric == 'bandwidth of a node'])
        self.assertEqual((), result.measured.skipped)

    def test_facts_missing_from_all_hosts_are_reported(self):
        result = self.result(Guests(self.work, 1), **{'up-to': 1})
        self.assertIn('no host told it', dict(
            result.measured.skipped)['bandwidth of a node'])

    def test_an_image_without_the_program(self):
        guests = Guests(self.work, 2)
        result = self.result(guests, container='podman', **{
            'image-of-container': 'x'})
        self.assertEqual(('failed', ('the image has no podman',)),
                         (result.status, result.reasons))
        self.assertEqual({}, guests.running)

    def test_a_report_holds_no_address_of_a_guest(self):
        with self.assertRaisesRegex(errors.BenchError, r'^h \(a guest\)$'), \
                cloud.hide_addresses(['192.0.2.7']):
            raise errors.BenchError('h 192.0.2.7')

    def test_each_flavor_has_a_line_of_its_own(self):
        curve, = plots.plots(results.result(*(
            record.Series('p99 latency', 'ms', 'lower', (1.0,),
                          (('flavor', flavor), ('N', str(n))))
            for flavor in ('a', 'b') for n in (1, 2))))
        self.assertEqual(
            [('p99 latency, flavor a', 2), ('p99 latency, flavor b', 2)],
            [(line.name, len(line.points)) for line in curve.lines])

    def test_three_ways_from_client_to_server(self):
        def series(path, value, *flavor):
            return record.Series('p99 latency', 'ms', 'lower', (value,),
                                 (*flavor, ('path', path)))
        small = ('flavor', 'small')
        table = report.paths([
            series('host-host', 0.5), series('guest-host', 0.6, small),
            series('guest-guest', 0.75, small)])[1]
        self.assertEqual(
            [('host-host', '', '0.5', '1.00'),
             ('guest-host', 'small', '0.6', '1.20'),
             ('guest-guest', 'small', '0.75', '1.50')],
            [(row[0], row[1], row[4], row[5]) for row in table.rows])
        self.assertEqual([], report.paths(
            results.result(record.Series('m', '', 'lower', (1.0,))
                           ).measured.series))
