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

"""The group to which the kernel's own work is bound."""

from pathlib import Path
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import kernel_mode
from ghsched_nova.resctrl.kernel_mode import KernelBinding
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl.naming import GroupName
from ghsched_placement.tests import base

INHERIT_MON = 'global_assign_ctrl_inherit_mon_per_cpu'
ASSIGN_MON = 'global_assign_ctrl_assign_mon_per_cpu'
UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c11'

#: Texts of info/kernel_mode and info/kernel_mode_assignment as the series
#: shows them (v4, v3 and v2), and the group.
TEXTS = (
    (f'[inherit_ctrl_and_mon]\n{INHERIT_MON}:group=uninitialized\n', '',
     None),
    (f'inherit_ctrl_and_mon\n[{INHERIT_MON}:group=ctrl1//]\n'
     f'{ASSIGN_MON}:group=uninitialized\n', '',
     KernelBinding(INHERIT_MON, GroupName('ctrl1'))),
    (f'inherit_ctrl_and_mon\n[{ASSIGN_MON}]:group=ctrl1/mon1/\n', '',
     KernelBinding(ASSIGN_MON, GroupName('ctrl1', 'mon1'))),
    (f'[inherit_ctrl_and_mon:group=//]\n{ASSIGN_MON}:group=none\n', '', None),
    (f'inherit_ctrl_and_mon:group=none\n[{ASSIGN_MON}:group=/mon1/]\n', '',
     KernelBinding(ASSIGN_MON, GroupName('', 'mon1'))),
    (f'[{ASSIGN_MON}:group=g//;cpus_list=5-8]\n', '',
     KernelBinding(ASSIGN_MON, GroupName('g'))),
    (f'inherit_ctrl_and_mon\n[{ASSIGN_MON}]\n', 'ctrl1/mon1/\n',
     KernelBinding(ASSIGN_MON, GroupName('ctrl1', 'mon1'))),
    (f'[{ASSIGN_MON}]\n', '//\n', KernelBinding(ASSIGN_MON)),
    (f'[{ASSIGN_MON}]\n', 'none\n', KernelBinding(ASSIGN_MON)),
    ('[inherit_ctrl_and_mon]\n', 'none\n', None),
    ('', '', None))


class KernelModeTest(base.TestCase):

    def test_each_version_of_the_files_is_read(self):
        for mode, assignment, expected in TEXTS:
            self.assertEqual(expected, kernel_mode.parse_kernel_mode(
                mode, assignment), mode)

    @given(st.text('[]:;=/ abgroup\n'), st.text('/ab\n'))
    def test_any_text_is_read(self, mode, assignment):
        kernel_mode.parse_kernel_mode(mode, assignment)

    def test_groups_are_those_that_must_not_be_removed(self):
        for control, monitor, top in (
                ('g', '', 'g'), ('g', 'm', 'g'), ('', '', ''),
                ('', 'm', naming.MONITORS + 'm')):
            self.assertEqual(top, GroupName(control, monitor).top)
        self.assertTrue(KernelBinding(ASSIGN_MON).is_measured_apart)
        self.assertFalse(KernelBinding(INHERIT_MON).is_measured_apart)


class BoundGroupTest(base.TestCase):

    def test_group_of_a_guest_that_ended_stays_while_it_is_bound(self):
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        group = root / naming.render_own_group_name(UUID)
        group.mkdir()
        info = root / 'info'
        info.mkdir()
        (group / 'tasks').write_text('')
        mode = info / 'kernel_mode'
        self.assertIsNone(fs.read_kernel_binding(fs.Files(), root))
        mode.write_text(f'[{ASSIGN_MON}:group={group.name}//]\n')
        self.assertFalse(fs.remove_group(root, UUID))
        # Nothing but the kernel can remove a directory with files.
        mode.write_text('[inherit_ctrl_and_mon]\n')
        self.assertRaises(fs.GroupError, fs.remove_group, root, UUID)
