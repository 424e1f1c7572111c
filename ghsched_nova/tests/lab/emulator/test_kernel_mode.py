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


"""The emulated file info/kernel_mode answers as the series' documentation."""

import errno

from ghsched_nova.lab.emulator import kernel
from ghsched_nova.tests.fixtures import emulated
from ghsched_placement.tests import base

FILE = '/info/kernel_mode'
INHERIT_MON = 'global_assign_ctrl_inherit_mon_per_cpu'
ASSIGN_MON = 'global_assign_ctrl_assign_mon_per_cpu'
UNBOUND = (f'[inherit_ctrl_and_mon]\n{INHERIT_MON}:group=uninitialized\n'
           f'{ASSIGN_MON}:group=uninitialized\n')


class KernelModeTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.model = emulated.model('amd-gmb')
        self.model.mkdir('/ctrl1')
        self.model.mkdir('/ctrl1/mon_groups/mon1')
        self.model.mkdir('/mon_groups/mon0')

    def _write(self, text):
        self.model.write(FILE, f'{text}\n')
        return self.model.read(FILE)

    def test_file_is_on_machines_with_the_feature_only(self):
        self.assertNotIn('kernel_mode', emulated.model('amd').listdir('/info'))
        self.assertEqual(UNBOUND, self.model.read(FILE))

    def test_bound_group_is_shown_with_its_mode(self):
        for text, shown in (
                (ASSIGN_MON, f'[{ASSIGN_MON}:group=//]'),
                (f'{ASSIGN_MON}:group=ctrl1//', None),
                (f' {ASSIGN_MON} :group=ctrl1/mon1/', None),
                (f'{ASSIGN_MON}:group=/mon0/', None),
                (f'{INHERIT_MON}:group=ctrl1//', None)):
            shown = shown or f'[{text.replace(" ", "")}]'
            self.assertIn(shown, self._write(text).splitlines())
        self.assertEqual(UNBOUND, self._write(
            'inherit_ctrl_and_mon:group=ctrl1//'))

    def test_refused_text_keeps_the_binding(self):
        before = self._write(f'{ASSIGN_MON}:group=ctrl1/mon1/')
        for text, status in (
                ('[inherit_ctrl_and_mon]', 'Unknown kernel mode'),
                ('global', 'Unknown kernel mode'),
                (f'{ASSIGN_MON}:group=uninitialized',
                 "Cannot bind to 'uninitialized' group"),
                (f'{ASSIGN_MON}:group=ctrl1', 'Group must be <ctrl>/<mon>/'),
                (f'{ASSIGN_MON}:group=ctrl1/mon1',
                 'Group must be <ctrl>/<mon>/'),
                (f'{ASSIGN_MON}:group=ctrl1/mon1/x',
                 'Group must be <ctrl>/<mon>/'),
                (f'{ASSIGN_MON}:group=ctrl1/mon2/', 'Group not found'),
                (f'{ASSIGN_MON}:group=ctrl2//', 'Group not found'),
                (f'{INHERIT_MON}:group=ctrl1/mon1/',
                 f'{INHERIT_MON} requires a control group')):
            error = self.assertRaises(
                kernel.ResctrlError, self.model.write, FILE, f'{text}\n')
            self.assertEqual((errno.EINVAL, f'{status}\n'), (
                error.number, self.model.read('/info/last_cmd_status')))
            self.assertEqual(before, self.model.read(FILE))
        self.assertRaises(kernel.ResctrlError, self.model.write, FILE,
                          'inherit_ctrl_and_mon')

    def test_removed_group_is_bound_no_more(self):
        for path, group in (('/ctrl1/mon_groups/mon1', 'ctrl1/mon1/'),
                            ('/ctrl1', 'ctrl1//')):
            self._write(f'{ASSIGN_MON}:group={group}')
            self.model.rmdir(path)
            self.assertEqual(UNBOUND, self.model.read(FILE))
