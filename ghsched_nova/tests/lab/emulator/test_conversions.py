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

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.lab.emulator import machines
from ghsched_placement.tests import base


class ConversionsTest(base.TestCase):

    def test_table_has_each_percentage_of_each_driver_and_width(self):
        drivers = {driver for driver, _bits in conversions.tables()}
        self.assertEqual(
            {(driver, bits) for driver in drivers for bits in range(1, 17)},
            set(conversions.tables()))
        for table in conversions.tables().values():
            self.assertEqual(101, len(table.shown))
            self.assertTrue(all(-1 <= one <= 100 for one in table.shown))

    def test_every_mpam_machine_has_a_recorded_driver(self):
        for dialect in machines.DIALECTS:
            machine = machines.build(dialect, '0=0-3')
            found = {line.conversion for line in machine.lines} - {''}
            self.assertEqual(bool(found), not dialect.startswith(
                ('intel', 'amd')), dialect)
