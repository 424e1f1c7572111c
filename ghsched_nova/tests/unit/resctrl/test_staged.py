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

"""OLK-5.10: a line that is written to a group changes its other lines."""

import errno
from pathlib import Path
import tempfile

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import kernel
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

LINES = ('MBMIN', 'MBMAX', 'MBHDL', 'MBPRI')
ASKED = (NodePolicy(maximum=40, minimum=20, hardlimit=True, priority=5),
         NodePolicy(maximum=100, minimum=4, hardlimit=False, priority=1),
         NodePolicy(maximum=60, minimum=30, hardlimit=True, priority=7))


class StagedTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.world = world.World(
            Path(self.enterContext(tempfile.TemporaryDirectory())),
            'openeuler510', ())
        for number, asked in enumerate(ASKED):
            desired = resolve.make_desired_lines(
                self.world.host, resolve.resolve_settings(
                    self.world.host, GuestPolicy(nodes=(asked,)), (0,)))
            self.world.guests.append(model.ResctrlGuest(
                model.Domain(world.UUID.format(number), number + 1,
                             f'instance-{number:08x}'),
                frozenset({0, 1}), 2, desired, 'ghsched'))
            self.world.start(number, ['qemu-system-x86', 'CPU 0/KVM',
                                      'CPU 1/KVM'])
        self.assertEqual((), self.world.reconcile().problems)
        self.assertEqual([], self.world.wrong())

    def write(self, number, text):
        group = self.world.guests[number].group
        self.world.model.write(f'/{group}/schemata', text)

    def read_first_values(self, number):
        rows = self.world.schemata(self.world.guests[number].group)
        return {line: rows.values(line)[0] for line in LINES}

    def test_line_that_somebody_writes_gives_the_group_values_of_another(self):
        # What the emulator has to show for the tests below to say anything.
        self.write(0, 'MBMAX:0=50\n')
        self.assertNotEqual(20, self.read_first_values(0)['MBMIN'])
        error = self.assertRaises(
            kernel.ResctrlError, self.write, 0, 'MBMAX:0=50\nMBMIN:0=20\n')
        self.assertEqual((errno.EINVAL, 'duplicate domain\n'),
                         (error.number, error.status))
        # The first of the two is kept, and goes to the next group.
        self.write(1, 'MBPRI:0=2\n')
        self.assertEqual(48, self.read_first_values(1)['MBMAX'])

    @settings(deadline=None)
    @given(st.lists(st.tuples(
        st.integers(0, 2), st.integers(0, 1), st.one_of(
            st.tuples(st.sampled_from(('MBMAX', 'MBMIN')),
                      st.integers(0, 100)),
            st.tuples(st.just('MBPRI'), st.integers(0, 7)),
            st.tuples(st.just('MBHDL'), st.integers(0, 1)))), max_size=6))
    def test_any_drift_is_repaired_at_once_and_only_where_it_is(self, drift):
        self.world.reconcile()
        for number, domain, (line, value) in drift:
            self.write(number, f'{line}:{domain}={value}\n')
        hit = {self.world.guests[number].group for number, *_rest in drift}
        self.assertEqual((), self.world.reconcile().problems)
        self.assertEqual([], self.world.wrong())
        self.assertLessEqual({group for _what, group, _text
                              in self.world.files.operations}, hit)
        self.assertEqual((), self.world.reconcile().actions)

    def test_guarantee_of_another_guest_is_never_taken_over(self):
        for number in range(3):
            self.write(number, 'MBHDL:0=0\n')
            self.write(number, f'MBMIN:0={ASKED[number].minimum}\n')
        self.world.model.write('/schemata', 'MBMIN:0=90\n')
        sums = []

        def note(*_operation):
            sums.append(sum(self.read_first_values(number)['MBMIN']
                            for number in range(3)))

        self.world.files.before = note
        self.assertEqual((), self.world.reconcile().problems)
        note()
        self.assertGreater(len(sums), 3)
        self.assertLessEqual(max(sums), 100)
