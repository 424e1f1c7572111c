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


from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import tasks
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.base import cpulist
from ghsched_placement.tests import base

_cpus = st.sets(st.integers(0, 300), min_size=1)
_name = st.text('abcXYZ019.-', max_size=55)


def find(names, domain, name, vcpus):
    return [path for path in names
            if (group := naming.parse_group_name(path)).is_of_domain(
                domain, name) and group.is_of_vcpus(vcpus)]


class FindTest(base.TestCase):

    @given(st.lists(st.tuples(st.integers(1, 200), _name, _cpus), min_size=1,
                    max_size=6, unique_by=lambda guest: guest[0]))
    def test_each_guest_has_its_own(self, guests):
        names = [f'qemu-{domain}-{name}-vcpus_{cpulist.render_cpu_list(cpus)}'
                 for domain, name, cpus in guests]
        others = ['info', 'mon_data', 'mon_groups', 'low_prio_machine']
        for (domain, title, cpus), name in zip(guests, names, strict=True):
            self.assertEqual([name],
                             find(names + others, domain, title, cpus))

    def test_no_domain_is_taken_for_another(self):
        names = ['qemu-12-a-vcpus_0-3', 'qemu-1-b-vcpus_0-30',
                 'qemu-1-b-vcpus_10-3', 'qemu-1-c', 'xqemu-1-a-vcpus_0-3',
                 'qemu-1-a-vcpus_0-3x', 'qemu-1-a-vcpus_0-3\n']
        self.assertEqual([], find(names, 1, 'a', range(4)))

    def test_one_that_libvirt_forgot_is_that_of_another_name(self):
        names = ['qemu-1-new-vcpus_0', 'qemu-1-old-vcpus_0']
        self.assertEqual(names[:1], find(names, 1, 'new', {0}))


class ThreadsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.proc = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.proc)
        captured.add_threads(
            self.proc, 100, {101: 'CPU 0/KVM', 102: 'CPU 1/TCG',
                             103: 'IO mon_iothread'})

    def test_vcpus_are_recognised_by_their_names(self):
        self.assertEqual({101, 102}, tasks.select_vcpu_threads(
            tasks.parse_thread_ids('101\n102\n103\n999\n'), self.proc))

    def test_the_process_of_a_thread(self):
        self.assertEqual({'100'}, tasks.read_process_ids(self.proc, 101))
        self.assertEqual(set(), tasks.read_process_ids(self.proc, 999))

    def test_invalid_thread_ids_are_ignored(self):
        self.assertEqual({101}, tasks.parse_thread_ids(
            '../101 x \u0661 iommu_group:7\n101\n'))

    def test_iommu_groups_are_listed_among_the_threads(self):
        self.assertEqual({7, 12}, tasks.parse_iommu_groups(
            '101\niommu_group:7\niommu_group:12\niommu_group:x\n'))
