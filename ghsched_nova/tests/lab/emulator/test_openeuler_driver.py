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

"""The emulator converts and stages values as openEuler's MPAM drivers do.

``vectors/openeuler.json.gz`` holds what functions of the drivers did, compiled
outside of this tree over registers in memory, without their locks; the file
names repository, branch, file, commit and functions. For OLK-5.10 it has
writes to ``schemata`` of up to four groups with controls of 1 to 16 bits, and
for each write whether it was taken and, for both domains, the portions of the
L3, priority, hard limit, maximum and minimum of that group's registers.
"""

import collections
import gzip
import json
from pathlib import Path

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.tests.fixtures import emulated
from ghsched_placement.tests import base

FILE = Path(__file__).parent / 'vectors' / 'openeuler.json.gz'
#: Width at which the driver overflows; no machine of the emulator has it.
OVERFLOWS = '16'
LINES = ('L3PBM', 'MBPRI', 'MBHDL', 'MBMAX', 'MBMIN')


def read_back(register, bits):
    """Return the percentage that OLK-5.10 shows of a register.

    mpam_component_read_mpamcfg() of mpam_device.c and mbw_rdmsr() of
    mpam_resctrl.c.
    """
    percent = register * 99 // ((1 << bits) - 1)
    return percent + percent % 2


class OpenEulerDriverTest(base.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.recorded = json.loads(gzip.decompress(FILE.read_bytes()))

    def test_recording_names_branches_files_and_functions(self):
        for branch, files in (
                ('OLK-5.10', {'arch/arm64/kernel/mpam/mpam_resctrl.c',
                              'arch/arm64/kernel/mpam/mpam_ctrlmon.c'}),
                ('OLK-6.6', {'drivers/platform/mpam/mpam_resctrl.c'})):
            found = self.recorded['sources'][branch]['files']
            self.assertEqual(files, set(found))
            for commit, functions in found.values():
                self.assertRegex(commit, '^[0-9a-f]{8}$')
                self.assertTrue(functions)

    def test_olk66_shows_what_its_driver_shows_of_each_percentage(self):
        found = self.recorded['OLK-6.6 conversions']
        self.assertEqual({str(bits) for bits in range(1, 17)}, set(found))
        for bits, rows in found.items():
            self.assertEqual(
                [shown for _register, shown in rows],
                list(conversions.table('olk-6.6', int(bits)).shown), bits)

    def test_olk66_register_uses_the_bits_of_its_control_alone(self):
        for bits, rows in self.recorded['OLK-6.6 conversions'].items():
            for register, _shown in rows[:100] if int(bits) < 16 else ():
                self.assertEqual(0, register % (1 << 16 - int(bits)), bits)

    def test_olk510_groups_hold_what_the_driver_stages(self):
        seen = collections.Counter()
        for width, rows in self.recorded['OLK-5.10 staging'].items():
            if width == OVERFLOWS:
                continue
            model = kernel.ResctrlModel(machines.with_bits(
                machines.build('openeuler510', '0=0-3;1=4-7'), int(width)),
                emulated.NoThreads())
            for command, taken, *registers in rows:
                where = width, command
                self.assertEqual(bool(taken), self.apply(model, command),
                                 where)
                self.assertEqual(self.expected(registers, int(width)),
                                 self.shown_values(model, command), where)
                seen[taken] += 1
        self.assertLess(4000, seen[1])
        self.assertLess(500, seen[0])

    def test_olk510_control_of_16_bits_holds_the_highest_caps_as_none(self):
        """99 and 100 % of 16 bits do not fit into the driver's u16."""
        table = conversions.table('olk-5.10-max', int(OVERFLOWS))
        least = conversions.table('olk-5.10-min', int(OVERFLOWS))
        rows = self.recorded['OLK-5.10 staging'][OVERFLOWS]
        self.assertEqual(['mkdir 1', 0], [rows[0][0], read_back(
            rows[0][5], int(OVERFLOWS))])
        for percent in range(101):
            row, = (row for row in rows[:203]
                    if row[0] == f'1 MBMAX:0={percent}')
            self.assertEqual(table.shown[percent],
                             read_back(row[5], int(OVERFLOWS)), percent)
            row, = (row for row in rows[:203]
                    if row[0] == f'1 MBMIN:1={percent}')
            self.assertEqual(least.shown[percent],
                             read_back(row[11], int(OVERFLOWS)), percent)
        self.assertEqual((98, 0), (table.shown[98], table.shown[100]))

    def apply(self, model, command):
        """Make a group or write its schemata; return whether it was taken."""
        if command.startswith('mkdir'):
            model.mkdir('/' + command.split()[1])
            return True
        group, _, text = command.partition(' ')
        try:
            model.write(f'/{group}/schemata', text.replace('|', '\n') + '\n')
        except kernel.ResctrlError:
            return False
        return True

    def expected(self, registers, bits):
        found = {}
        for domain in (0, 1):
            portions, priority, hard, most, least = registers[
                5 * domain:5 * domain + 5]
            values = (portions, priority, hard, read_back(most, bits),
                      read_back(least, bits))
            for line, value in zip(LINES, values, strict=True):
                found[line, domain] = value
        return found

    def shown_values(self, model, command):
        words = command.split()
        text = model.read(f'/{words[words[0] == "mkdir"]}/schemata')
        found = {}
        for row in text.splitlines():
            line, _, rest = row.strip().partition(':')
            for item in rest.split(';'):
                domain, _, value = item.partition('=')
                found[line, int(domain)] = int(
                    value, 16 if line == 'L3PBM' else 10)
        return found
