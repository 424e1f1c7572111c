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
import shutil
import tempfile


from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

UUID = world.UUID.format(0)


class OwnGroupTest(base.TestCase):

    def setUp(self):
        super().setUp()
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        self.world = world.World(top, makers=('ghsched',))
        self.world.reconcile()

    def remove(self):
        return fs.remove_group(self.world.root, UUID, proc=self.world.proc,
                               files=self.world.files)

    def test_the_group_of_a_guest_that_has_ended_is_removed(self):
        self.world.end(0)
        self.assertTrue(self.remove())
        self.assertEqual([], self.world.groups())
        self.assertFalse(self.remove())

    def test_other_threads_do_not_keep_it(self):
        self.world.end(0)
        self.world.thread(7, 7, 'vhost-1000')
        self.world.model.write(
            f'/{naming.render_own_group_name(UUID)}/tasks', '7\n'
        )
        self.assertTrue(self.remove())

    def test_a_group_with_a_running_guest_is_not_removed(self):
        self.assertFalse(self.remove())
        self.assertEqual(
            [naming.render_own_group_name(UUID)], self.world.groups()
        )

    def test_a_group_that_the_kernel_keeps_is_reported(self):
        self.world.end(0)

        def busy(*_operation):
            raise OSError(errno.EBUSY, 'injected')

        self.world.files.before = busy
        error = self.assertRaises(fs.GroupError, self.remove)
        self.assertIn('EBUSY', str(error))

    def test_groups_of_others_are_not_ours(self):
        self.assertEqual(
            UUID,
            naming.parse_group_name(naming.render_own_group_name(UUID)).uuid
        )
        for name in ('info', 'mon_groups', 'qemu-1-a-vcpus_0', 'low_prio'):
            self.assertIsNone(naming.parse_group_name(name).uuid)

    def test_parse_group_name_of_each_creator_gives_its_guests(self):
        own, shared = f'ghsched-{UUID}', 'ghsched-shared-' + 16 * 'a'
        nested = f'{shared}/mon_groups/{own}'
        for path, uuid, vcpu_class, machine, is_managed in (
                ('', None, '', None, False),
                ('ghsched-u', None, '', None, False),
                (own, UUID, '', None, True),
                (f'{own}.latency', UUID, 'latency', None, True),
                (shared, None, '', None, True),
                (naming.PROBE, None, '', None, True),
                (f'mon_groups/{own}', UUID, '', None, True),
                (nested, UUID, '', None, True),
                ('qemu-7-a.b-vcpus_0', None, '', (7, 'a.b'), True),
                ('mon_groups/qemu-7-a', None, '', (7, 'a'), False)):
            name = naming.parse_group_name(path)
            self.assertEqual(
                (path, uuid, vcpu_class, machine, is_managed),
                (name.path, name.uuid, name.vcpu_class, name.machine,
                 name.is_managed))
        self.assertEqual([own, f'mon_groups/{own}', shared],
                         [naming.parse_group_name(path).top for path in (
                             own, f'mon_groups/{own}', nested)])


class LibvirtReadsTest(base.TestCase):

    def reads(self, *lines):
        return schemata.can_libvirt_parse(
            schemata.parse_schemata(''.join(f'{line}:0=1\n' for line in lines))
        )

    def test_attributes_of_upstream_libvirt(self):
        self.assertTrue(self.reads('MB', 'L3'))
        self.assertTrue(self.reads('MB', 'L3CODE', 'L3DATA', 'L2'))
        self.assertTrue(self.reads('MB', 'SMBA'))

    def test_lines_that_it_takes_for_others(self):
        for line in ('MBMIN', 'MBHDL', 'MBPRI', 'MB_HLIM', 'L3PRI', 'L3MAX'):
            self.assertFalse(self.reads('MB', 'L3', line))
