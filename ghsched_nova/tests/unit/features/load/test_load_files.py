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


from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.load import load_files
from ghsched_nova.resctrl import sysfs
from ghsched_placement.tests import base

NUMBERS = st.integers(0, 2 ** 63)
TEXTS = st.text() | st.binary(max_size=200).map(
    lambda some: some.decode(errors='replace'))
PARSERS = (load_files.parse_cpu_times, load_files.parse_run_times,
           load_files.parse_last_cpu,
           load_files.parse_stall_time, load_files.parse_vmstat,
           load_files.parse_diskstats,
           sysfs.parse_node_memory, load_files.parse_memory_numa_stat,
           load_files.parse_numa_maps, load_files.parse_guest_control_group)


class ParsersTest(base.TestCase):

    @given(TEXTS)
    def test_no_text_is_an_error(self, text):
        for parse in PARSERS:
            parse(text)

    @given(st.dictionaries(
        st.integers(0, 4096),
        st.lists(st.integers(0, 2 ** 50), min_size=10, max_size=10)))
    def test_busy_is_all_but_idle_and_waiting_for_io(self, cpus):
        text = ''.join(f'cpu{cpu} {" ".join(map(str, ticks))}\n'
                       for cpu, ticks in cpus.items())
        found = load_files.parse_cpu_times('cpu  1 2 3 4 5 6 7 8 9 10\n' + text
                                           + 'intr 1 2\n')
        self.assertEqual(
            {cpu: (sum(ticks[:3]) + sum(ticks[5:8]), sum(ticks[:8]))
             for cpu, ticks in cpus.items()}, found)

    @given(NUMBERS, NUMBERS, NUMBERS)
    def test_a_thread_has_run_and_waited(self, ran, waited, slices):
        self.assertEqual((ran, waited), load_files.parse_run_times(
            f'{ran} {waited} {slices}\n'))

    def test_a_kernel_without_schedstat_says_nothing(self):
        self.assertIsNone(load_files.parse_run_times(''))

    @given(st.text(st.characters(exclude_characters='\n')),
           st.integers(0, 8191))
    def test_the_name_of_a_thread_does_not_matter(self, name, cpu):
        fields = ' '.join(['S', *['0'] * 35, str(cpu), '0', '0'])
        self.assertEqual(cpu, load_files.parse_last_cpu(
            f'12 ({name}) {fields}\n'))

    @given(st.integers(0, 10 ** 18))
    def test_some_waited_is_read_and_not_full(self, total):
        self.assertEqual(total, load_files.parse_stall_time(
            f'some avg10=0.00 avg60=0.00 avg300=0.12 total={total}\n'
            'full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n'))

    def test_refaults_of_both_kinds_are_added(self):
        vmstat = load_files.parse_vmstat(
            'nr_free_pages 3\nworkingset_refault_anon 2\n'
            'workingset_refault_file 40\n')
        self.assertEqual(42, load_files.count_refaults(vmstat))
        self.assertIsNone(load_files.count_reclaimed(vmstat))

    def test_a_kernel_that_counts_reclaim_by_node(self):
        self.assertEqual(5, load_files.count_reclaimed(load_files.parse_vmstat(
            'pgsteal_kswapd 2\npgsteal_direct 3\n')))

    def test_a_device_is_busy_and_has_a_queue(self):
        self.assertEqual(
            {'nvme0n1': (120, 340)}, load_files.parse_diskstats(
                ' 259 0 nvme0n1 1 2 3 4 5 6 7 8 0 120 340 0 0 0 0 0 0\n'
                ' 8 0 short 1 2\n'))

    def test_memory_of_a_node(self):
        self.assertEqual(
            {'MemTotal': 3000, 'MemFree': 1000, 'Inactive(file)': 7},
            sysfs.parse_node_memory(
                'Node 0 MemTotal:  3000 kB\nNode 0 MemFree: 1000 kB\n'
                'Node 0 HugePages_Total:     0\n'
                'Node 0 Inactive(file):  7 kB\n'))

    def test_memory_of_a_group_counts_shared_memory_once(self):
        self.assertEqual({0: 5, 1: 70}, load_files.parse_memory_numa_stat(
            'anon N0=5 N1=10\nfile N0=0 N1=60\nshmem N0=0 N1=60\n'
            'slab N0=9 N1=9\n'))
        self.assertIsNone(load_files.parse_memory_numa_stat('total=3 N0=3\n'))

    def test_pages_of_each_size_are_counted(self):
        self.assertEqual(
            {0: 3 * 4096, 1: 2 * 2 ** 21}, load_files.parse_numa_maps(
                '7f00 default anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n'
                '7f10 bind:1 file=/dev/hugepages/N0 huge N1=2 '
                'kernelpagesize_kB=2048\n'
                '7f20 default stack\n'))

    def test_the_group_of_the_machine_is_found_above_its_threads(self):
        self.assertEqual(
            r'/machine.slice/machine-qemu\x2d1.scope',
            load_files.parse_guest_control_group(
                '1:name=systemd:/x\n'
                '0::/machine.slice/machine-qemu\\x2d1.scope/libvirt/vcpu0\n'))
        self.assertIsNone(
            load_files.parse_guest_control_group('4:memory:/machine\n'))
