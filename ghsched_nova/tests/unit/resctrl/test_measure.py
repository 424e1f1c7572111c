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

import errno
from pathlib import Path
import tempfile

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import measure
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

LINES = ('MB', 'MBMIN')


class MeasureTest(base.TestCase):

    def setUp(self):
        super().setUp()
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.world = world.World(top, 'openeuler66-6bit')
        self.world.reconcile()
        self.world.files.operations.clear()

    def measure(self, lines=LINES, domain=0):
        return measure.measure_percentages(self.world.root, lines, domain,
                                           self.world.files)

    def state(self):
        return {name: (self.world.model.read(f'/{name}/schemata'),
                       self.world.model.read(f'/{name}/tasks'))
                for name in ('', *self.world.groups())}

    def test_measured_values_are_those_that_the_driver_shows(self):
        found = self.measure()
        table = conversions.table('olk-6.6', 6).shown
        self.assertEqual((None, *table[1:]), found['MB'])
        self.assertEqual(table, found['MBMIN'])

    def test_measurement_changes_no_other_group_and_leaves_none(self):
        before = self.state()
        self.measure()
        self.assertEqual(before, self.state())
        self.assertEqual({naming.PROBE}, {
            Path(group).name for _what, group, _text
            in self.world.files.operations})

    def test_measurement_without_a_control_group_left_is_refused(self):
        self.world.files.model = kernel.ResctrlModel(machines.build(
            'openeuler66', emulated.NODES, closids=1), self.world.threads)
        error = self.assertRaises(fs.GroupError, self.measure)
        self.assertEqual(errno.ENOSPC, error.errno)
        self.assertEqual('Out of CLOSIDs', error.status)

    def test_measurement_of_a_line_that_is_not_there_leaves_no_group(self):
        self.assertRaises(fs.GroupError, self.measure, ('MBMAX',))
        self.assertNotIn(naming.PROBE, self.world.groups())
        self.assertRaises(fs.GroupError, self.measure, LINES, 7)
        self.assertNotIn(naming.PROBE, self.world.groups())

    def test_group_of_a_killed_measurement_is_removed_by_the_next_repair(self):
        self.world.files.kill_at(9)
        self.world.files.remove_directory = self.refuse
        self.assertRaises(KeyboardInterrupt, self.measure)
        del self.world.files.remove_directory
        self.world.files.before = lambda *_operation: None
        self.assertIn(naming.PROBE, self.world.groups())
        self.assertEqual((), self.world.reconcile().problems)
        self.assertNotIn(naming.PROBE, self.world.groups())

    def refuse(self, path):
        raise OSError(errno.EBUSY, 'killed', str(path))

    def test_group_of_a_killed_measurement_does_not_hinder_the_next(self):
        self.world.model.mkdir(f'/{naming.PROBE}')
        self.world.model.write(f'/{naming.PROBE}/schemata', 'MB:0=50\n')
        before = self.measure()
        self.assertEqual(before, self.measure())

    def test_value_written_last_is_that_of_a_new_group(self):
        self.measure()
        last = {}
        for what, _group, text in self.world.files.operations:
            if what == 'schemata':
                last[text.partition(':')[0]] = text
        self.assertEqual({'MB': 'MB:0=100\n', 'MBMIN': 'MBMIN:0=0\n'}, last)
