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
import tempfile
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.base import kernel_files
from ghsched_nova.features.live_change import cpusets
from ghsched_nova.features.live_change import numa_maps
from ghsched_nova.features.live_change import privileged
from ghsched_placement.tests import base

NUMA_MAPS = '\n'.join(f'{line} kernelpagesize_kB={size}' for line, size in (
    ('00400000 default file=/usr/bin/qemu mapped=10 N0=10', 4),
    ('7f0000000000 bind:0 anon=131072 dirty=131072 N0=131000 N1=72', 4),
    ('7f1000000000 bind=static:1 file=/dev/hugepages/x huge N1=4', 2048),
    ('7f2000000000 bind:0-1 anon=1 N0=1', 4),
    ('7f3000000000 bind:1 anon=1 N1=1', 4)))
MAPS = """00400000-00500000 r-xp 00000000 fe:00 1 /usr/bin/qemu
7f0000000000-7f0020000000 rw-p 00000000 00:00 0
7f1000000000-7f1000800000 rw-s 00000000 00:10 7 /dev/hugepages/x
7f2000000000-7f2000001000 rw-p 00000000 00:00 0
"""

few = st.integers(0, 7)


class AreasTest(base.TestCase):

    def test_resources_bound_to_one_node(self):
        first, second = numa_maps.parse_bound_areas(
            NUMA_MAPS.splitlines(), MAPS.splitlines())
        self.assertEqual(
            numa_maps.Area(0x7f0000000000, 0x7f0020000000, 0, 4096,
                           {0: 131000, 1: 72}), first)
        self.assertEqual((1, 2 << 20, 0), (second.node, second.page_size,
                                           second.stray_pages))
        self.assertEqual(72, first.stray_pages)

    @given(st.text(), st.text())
    def test_any_text_is_read(self, lines, maps):
        self.assertIsInstance(numa_maps.parse_bound_areas(
            lines.splitlines(), maps.splitlines()), list)

    @given(st.integers(1, 300), st.integers(1, 1 << 20),
           st.sampled_from([4096, 1 << 21]))
    def test_pieces_are_whole_pages_and_all_of_it(self, count, size, page):
        area = numa_maps.Area(0, count * page, 0, page, {})
        ends = list(numa_maps.split_area_into_pieces(area, size))
        self.assertEqual((0, area.last), (ends[0][0], ends[-1][1]))
        for (_first, last), (then, _last) in zip(
                ends, ends[1:], strict=False):
            self.assertEqual(last, then)
            self.assertEqual(0, last % page)


class SequenceTest(base.TestCase):

    def test_a_guest_of_one_node_goes_anywhere(self):
        for old, new in ((0, 1), (1, 0), (3, 2)):
            self.assertEqual(
                (frozenset({old, new}), frozenset({new})),
                numa_maps.plan_cpuset_mems({old: new}, [old]))

    def test_nodes_that_change_places_stay(self):
        error = self.assertRaises(
            numa_maps.MemoryMoveError, numa_maps.plan_cpuset_mems,
            {0: 1, 1: 0}, [0, 1])
        self.assertIn('0 to 1, 1 to 0', str(error))

    def test_the_kernel_counts_nodes_by_their_order(self):
        # lib/bitmap.c, bitmap_remap: the comment's own example.
        self.assertEqual(
            12,
            numa_maps.predict_rebound_node(
                4, frozenset(range(4, 8)), frozenset(range(12, 16))))
        self.assertEqual(
            15,
            numa_maps.predict_rebound_node(
                7, frozenset(range(4, 8)), frozenset(range(12, 16))))
        self.assertEqual(
            9,
            numa_maps.predict_rebound_node(9, frozenset({4}), frozenset({1})))

    @given(st.dictionaries(few, few, min_size=1).filter(
        lambda wish: len(set(wish.values())) == len(wish)))
    def test_answers_end_correctly_and_can_be_undone(self, wish):
        try:
            steps = numa_maps.plan_cpuset_mems(wish, wish)
        except numa_maps.MemoryMoveError:
            self.assertGreater(len(wish), 1)
            return
        old = frozenset(wish)
        for way, wanted in (
                ((old, *steps), wish),
                ((*reversed(steps), old),
                 {new: before for before, new in wish.items()})):
            for node, target in wanted.items():
                for here, there in zip(
                        way, way[1:], strict=False):
                    node = numa_maps.predict_rebound_node(node, here, there)
                self.assertEqual(target, node)


class QemuTest(base.TestCase):
    """A QEMU with two threads in control groups of their own."""

    def setUp(self):
        super().setUp()
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.proc, self.groups = root / 'proc', root / 'cgroup'
        self.files = []
        for tid, name in ((7, 'emulator'), (8, 'vcpu0'), (9, 'emulator')):
            task = self.proc / '7/task' / str(tid)
            task.mkdir(parents=True)
            (task / 'cgroup').write_text(
                f'0::/machine/qemu-1-x.libvirt-qemu/libvirt/{name}\n')
            group = (self.groups / 'machine/qemu-1-x.libvirt-qemu/libvirt'
                     / name)
            group.mkdir(parents=True, exist_ok=True)
            (group / 'cpuset.mems').write_text('0\n')
            self.files.append(group / 'cpuset.mems')

    def cpusets(self):
        return cpusets.find_cpuset_groups(7, self.proc, self.groups)

    def test_each_group_of_its_threads_is_found_once(self):
        self.assertEqual([path.parent for path in self.files[:2]],
                         self.cpusets())
        self.assertEqual([], cpusets.find_cpuset_groups(
            8, self.proc, self.groups))

    def test_the_groups_of_version_1_too(self):
        for tid in (7, 8, 9):
            (self.proc / '7/task' / str(tid) / 'cgroup').write_text(
                '4:memory:/a/b\n3:cpuset:/machine/x/emulator\n')
        group = self.groups / 'cpuset/machine/x/emulator'
        group.mkdir(parents=True)
        (group / 'cpuset.mems').write_text('0')
        self.assertEqual([group], self.cpusets())

    def test_a_group_that_others_are_in_is_none(self):
        for tid in (7, 8, 9):
            (self.proc / '7/task' / str(tid) / 'cgroup').write_text('0::/\n')
        (self.groups / 'cpuset.mems').write_text('0')
        self.assertEqual([], self.cpusets())

    def allow(self, *nodes):
        with (mock.patch.object(cpusets, 'find_cpuset_groups',
                                return_value=self.cpusets()),
              mock.patch.object(kernel_files, 'CGROUPS',
                                {kernel_files.get_file_system_type('/tmp')})):
            return privileged.write_cpuset_mems(7, nodes, self.groups)

    def test_allow_two_groups_writes_each_of_them_once(self):
        self.assertEqual('', self.allow(0, 1))
        self.assertEqual(['0-1', '0-1'], [
            path.read_text() for path in self.files[:2]])
        with mock.patch.object(kernel_files, 'write_kernel_file') as write:
            self.allow(0, 1)
        write.assert_not_called()

    def test_allow_group_without_file_returns_the_reason(self):
        self.files[0].unlink()
        self.files[0].mkdir()
        self.assertIn('cpuset.mems', self.allow(1))

    def test_allow_group_that_is_a_link_is_refused(self):
        victim = self.groups / 'victim'
        victim.write_text('before')
        self.files[0].unlink()
        self.files[0].symlink_to(victim)
        self.assertIn('symbolic links', self.allow(1))
        self.assertEqual('before', victim.read_text())
