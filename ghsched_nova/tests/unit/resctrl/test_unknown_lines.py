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

"""Lines of schemata that ghsched does not know cost a host nothing.

The names and forms are those of the linux-kernel list: "fs/resctrl: Generic
schema description" (October 2025), its proof of concept of 29 May 2026 with
the answers for MPAM, RISC-V (CBQRI) and Intel's regions of June 2026, and
AMD's GMB (April 2026).
"""

import dataclasses
from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.features.doctor import node
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import detection
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

LOWERED = 'GMB:0=4096;1=8'
ADDED = ('MB_MIN:0=0', 'MB_MAX:0=65535', 'MB_HARDMAX:0=0', 'MB_HW:0=255',
         'MB_OPT:0=100', 'MB_REGION0_OPT:0=255', 'MB_REGION1_MIN:0=255',
         'MB_WGHT:72=255', 'MB_MIN:72=756', 'MB_NODE:0=100', 'MB_PROP:0=0',
         'MBN:0=100;18=100', 'GMB:0=4096', LOWERED, 'GSMBA:0=4096',
         '# MB_HW: 0=32', '# MB_MIN: 0=16, 1=16', '#MB_HW=127')
KNOWN = frozenset().union(*(dialect.line_names for dialect in dialects.ALL))
TOLD = resctrl_host.HostSettings(
    node_bandwidth=dict.fromkeys(range(4), 204800)
)


class AddedLinesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def _known(self):
        """Yield machines that are known, and how to read them changed."""
        for machine in captured.all_machines():
            top = self.top / machine
            shutil.copytree(captured.MACHINES / machine, top)
            try:
                before = self._read(top)
            except resctrl_host.ResctrlUnavailable:
                continue
            yield top, before

    def _read(self, top):
        return resctrl_host.read_host(top / 'resctrl', top / 'sysfs', TOLD)

    def _check(self, top, before, rows):
        file = top / 'resctrl/schemata'
        text = file.read_text()
        file.write_text(rows + text + rows.replace('MB', 'MBZ'))
        try:
            after = self._read(top)
        finally:
            file.write_text(text)
        self.assertEqual(before.capabilities(), after.capabilities(), rows)
        self.assertEqual(
            dataclasses.replace(before, libvirt_reads=False,
                                openeuler_libvirt_reads=False),
            dataclasses.replace(
                after, libvirt_reads=False, openeuler_libvirt_reads=False,
                notes=before.notes), rows)
        return after

    def test_each_added_line_leaves_each_machine_as_it_was(self):
        count = 0
        for top, before in self._known():
            for row in ADDED:
                after = self._check(top, before, f'{row}\n')
                name = row.partition(':')[0]
                self.assertEqual(
                    name.startswith('MB') or row == LOWERED,
                    any(f'the line {name} ' in note for note in after.notes),
                    row)
                count += 1
        self.assertGreater(count, 15 * len(ADDED))

    def test_lines_of_any_name_leave_a_machine_as_it_was(self):
        hosts = list(self._known())
        names = st.from_regex('MB[A-Z0-9_]{1,12}', fullmatch=True).filter(
            lambda name: not {name, 'MBZ' + name[2:]} & KNOWN)

        @settings(deadline=None, max_examples=150, database=None)
        @given(st.sampled_from(hosts), names, st.integers(0, 2 ** 32 - 1))
        def check(host, name, value):
            self._check(*host, f'{name}:0={value}\n')

        check()

    def test_a_lowered_gmb_is_known_to_limit_the_cap(self):
        for text, lowered in (('GMB:0=4096;1=4096', ''), ('MB:0=1', ''),
                              ('GMB:0=4096;1=4095', '1=4095'),
                              ('GMB:0=8;1=4096', '0=8')):
            notes = tuple(
                detection.describe_reduced_caps(schemata.parse_schemata(text))
            )
            self.assertEqual(bool(lowered), bool(notes), text)
            if lowered:
                self.assertIn(f'the line GMB holds {lowered}, below its '
                              'highest value 4096', notes[0])

    def test_doctor_notes_a_group_whose_gmb_was_lowered(self):
        shutil.copytree(captured.MACHINES / 'amd-epyc', self.top / 'host')
        root = self.top / 'host/resctrl'
        host = resctrl_host.read_host(root, self.top / 'host/sysfs', TOLD)
        text = (root / 'schemata').read_text()
        for group, row in ((f'ghsched-{world.UUID.format(1)}', 'GMB:0=9\n'),
                           ('of-others', 'GMB:0=9\n')):
            (root / group).mkdir()
            (root / group / 'schemata').write_text(text + row)
        self.assertEqual(
            [f'control group ghsched-{world.UUID.format(1)}: the line GMB '
             'holds 0=9, below its highest value 16: caps give less than MB '
             'says'], list(node._describe_foreign_controls(root, host)))


class EngineTest(base.TestCase):
    """The engine beside lines that it does not know."""

    def test_guests_are_held_and_the_lines_never_written(self):
        for dialect in machines.DIALECTS:
            known = machines.build(dialect, emulated.NODES)
            more = tuple(machines.Line(
                name, known.line(known.cap).scope, 0, 65535, value, label=name)
                for name, value in (('MB_XMIN', 0), ('MB_XMAX', 65535),
                                    ('MBX', 1)))
            machine = dataclasses.replace(
                known, lines=(more[0], *known.lines, *more[1:]))
            with tempfile.TemporaryDirectory() as top:
                self._check(world.World(Path(top), machine), dialect)

    def _check(self, host, dialect):
        domain = min(host.model.machine.domains(
            host.model.machine.line('MBX').scope))
        report = host.reconcile()
        self.assertEqual((), report.problems, dialect)
        self.assertEqual([], host.wrong(), dialect)
        group = host.guests[0].group
        host.model.write(f'/{group}/schemata', f'MBX:{domain}=7\n')
        host.model.write(f'/{group}/schemata', f'MB_XMIN:{domain}=9\n')
        host.reconcile()
        self.assertEqual([], host.wrong(), dialect)
        for line, value in (('MBX', 7), ('MB_XMIN', 9)):
            self.assertEqual(
                value, host.schemata(group).values(line)[domain], dialect)
        self.assertEqual(3, len([
            note for note in host.host.notes
            if note.startswith('the line ')]), dialect)
