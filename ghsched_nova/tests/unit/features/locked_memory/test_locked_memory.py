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

"""The limit of locked memory of guests with passthrough devices."""

from lxml import etree

from ghsched_nova.features.locked_memory import locked_memory
from ghsched_nova.guest import device_numa as dn
from ghsched_nova.tests.fixtures.device_guests import domain
from ghsched_nova.tests.fixtures.device_guests import hostdev
from ghsched_nova.tests.fixtures.device_guests import ON_A_PORT
from ghsched_placement.tests import base


class LockedMemoryTest(base.TestCase):
    GIB = 1024 * 1024
    NEW, OLD = (9, 0, 0), (8, 0, 0)

    def guest(self, vfs=2, iommu=True, limit='', backing=''):
        devices = [hostdev(number) for number in range(vfs)]
        devices += ['<iommu model="intel"/>'] if iommu else []
        return domain(devices).replace(
            '<memory>2048</memory>',
            f'<memory unit="GiB">240</memory>{limit}{backing}')

    def test_the_formula_of_libvirt(self):
        ram = 240 * self.GIB
        self.assertEqual(0, locked_memory.compute_locked_memory(ram, 0))
        self.assertEqual(241 * self.GIB,
                         locked_memory.compute_locked_memory(ram, 40))
        self.assertEqual(9601 * self.GIB,
                         locked_memory.compute_locked_memory(ram, 40, True))

    def test_nothing_is_written_where_libvirt_knows(self):
        for xml, version in ((self.guest(), self.NEW),
                             (self.guest(), (8, 7, 0)),
                             (self.guest(iommu=False), self.OLD),
                             (self.guest(vfs=1), self.OLD),
                             (self.guest(vfs=0), self.OLD),
                             (self.guest(backing='<memoryBacking><locked/>'
                                         '</memoryBacking>'), self.OLD)):
            self.assertEqual(
                xml, locked_memory.render_locked_memory(xml, version))

    def test_an_old_libvirt_is_reported(self):
        found = locked_memory.render_locked_memory(self.guest(), self.OLD)
        limit = etree.fromstring(found).find('memtune/hard_limit')
        self.assertEqual(('KiB', str(481 * self.GIB)),
                         (limit.get('unit'), limit.text))
        self.assertEqual(found, locked_memory.render_locked_memory(
            found, self.OLD))

    def test_a_limit_that_is_there_is_kept_or_refused(self):
        def limited(size):
            return self.guest(limit='<memtune><hard_limit unit="G">'
                              f'{size}</hard_limit></memtune>')
        enough, low = limited(480), limited(479)
        self.assertEqual(enough, locked_memory.render_locked_memory(
            enough, self.NEW))
        with self.assertRaisesRegex(dn.DeviceNumaError, '2 VFIO devices'):
            locked_memory.render_locked_memory(low, self.NEW)

    def test_plugged_memory_and_mediated_devices_count(self):
        xml = self.guest(vfs=1).replace('<hostdev', (
            '<memory model="nvdimm"><target><size unit="KiB">1024</size>'
            f'</target></memory>{ON_A_PORT[5]}<hostdev'), 1)
        found = locked_memory.render_locked_memory(xml, self.OLD)
        self.assertIn(f'>{2 * (240 * self.GIB + 1024) + self.GIB}<', found)

    def test_a_size_that_makes_no_sense(self):
        for size in ('<memory unit="parsec">1</memory>', '<memory>x</memory>',
                     '<memory/>', ''):
            with self.assertRaises(dn.DeviceNumaError):
                locked_memory.render_locked_memory(
                    domain([hostdev(1)]).replace('<memory>2048</memory>',
                                                 size), self.OLD)
