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


"""Differences between the emulated kernels."""

import errno


from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.tests.lab.emulator import test_kernel
from ghsched_placement.tests import base

NODES = '0=0-1;1=2-3'


class DialectTestCase(base.TestCase):
    dialect = 'intel'
    nodes = NODES

    def setUp(self):
        super().setUp()
        self.threads = test_kernel.FakeThreads()
        self.now = 100.0
        self.model = kernel.ResctrlModel(
            machines.build(self.dialect, self.nodes), self.threads,
            clock=lambda: self.now,
        )
        self.model.mkdir('/g')

    def lines(self, group='g'):
        text = self.model.read(f'/{group}/schemata')
        return dict(row.strip().split(':') for row in text.splitlines())

    def write(self, text, line):
        self.model.write('/g/schemata', text)
        return self.lines()[line]

    def refused(self, text, status, number=errno.EINVAL):
        before = self.lines()
        exc = self.assertRaises(
            kernel.ResctrlError, self.model.write, '/g/schemata', text)
        self.assertEqual(number, exc.number)
        self.assertEqual(status, self.status)
        self.assertEqual(before, self.lines())

    @property
    def status(self):
        return self.model.read('/info/last_cmd_status').strip()

    def run_thread(self, group, cpu=0, seconds=1.0, tid=100):
        """A thread that was put into a group, and has worked then."""
        if tid not in self.threads.samples:
            self.threads.add(tid, cpu=cpu)
            self.model.write(f'{group}/tasks', f'{tid}\n')
        self.threads.work(tid, seconds)
        self.now += seconds

    def figure(self, name, group=''):
        return self.model.read(f'{group}/mon_data/{name}').strip()


class SoftwareControllerTest(DialectTestCase):

    def test_info_is_in_percent_all_the_same(self):
        for name in ('min_bandwidth', 'bandwidth_gran'):
            self.assertEqual('10\n', self.model.read(f'/info/MB/{name}'))
    dialect = 'intel-mbps'

    def test_the_event_is_named_in_each_group(self):
        for group in ('', '/g'):
            self.assertEqual('mbm_local_bytes\n', self.model.read(
                f'{group}/mba_MBps_event'))

    def test_the_event_can_be_changed(self):
        self.model.write('/g/mba_MBps_event', 'mbm_total_bytes\n')
        self.assertEqual('mbm_total_bytes\n',
                         self.model.read('/g/mba_MBps_event'))
        refused = self.assertRaises(
            kernel.ResctrlError, self.model.write, '/g/mba_MBps_event',
            'llc_occupancy\n')
        self.assertEqual((errno.EINVAL,
                          "Unsupported event id 'llc_occupancy'\n"),
                         (refused.number, refused.status))

    def test_a_cap_is_a_bandwidth(self):
        self.model.write('/g/schemata', 'MB:0=1000\n')
        self.run_thread('/g')
        self.assertEqual(1000 * 2 ** 20, int(self.figure(
            'mon_L3_00/mbm_total_bytes', '/g')))


class SubNumaTest(DialectTestCase):
    dialect = 'intel-snc-cdp'

    def test_each_node_below_a_cache_is_reported(self):
        self.run_thread('/g', cpu=2)
        whole = self.figure('mon_L3_00/mbm_total_bytes', '/g')
        for node, figure in ((0, '0'), (1, whole)):
            self.assertEqual(figure, self.figure(
                f'mon_L3_00/mon_sub_L3_{node:02d}/mbm_total_bytes', '/g'))


class AmdTest(DialectTestCase):
    dialect = 'amd'

    def test_a_mask_may_be_empty(self):
        self.assertEqual('0\n', self.model.read('/info/L3/min_cbm_bits'))

    def test_two_caches_a_node_with_sparse_ids(self):
        self.assertEqual('0=2048;1=2048;8=2048;9=2048', self.lines()['MB'])

    def test_slow_memory_has_a_line_of_its_own(self):
        self.assertEqual('0=2048;1=2048;8=  64;9=2048',
                         self.write('SMBA:8=64\n', 'SMBA'))
        self.assertEqual('0\n', self.model.read('/info/MB/delay_linear'))

    def test_a_cap_is_an_eighth_of_a_gigabyte(self):
        self.model.write('/g/schemata', 'MB:9=8\n')
        self.run_thread('/g', cpu=3)
        self.assertEqual(10 ** 9, int(self.figure(
            'mon_L3_09/mbm_total_bytes', '/g')))
        self.assertEqual('0', self.figure('mon_L3_08/mbm_total_bytes', '/g'))


class IoAllocTest(DialectTestCase):
    """AMD's portions of the cache for devices, ctrlmondata.c of Linux 7.2."""

    dialect = 'amd'
    SWITCH = '/info/L3/io_alloc'
    MASKS = '/info/L3/io_alloc_cbm'

    def refusal(self, path, text):
        return self.assertRaises(
            kernel.ResctrlError, self.model.write, path, text)

    def test_it_takes_the_highest_control_group(self):
        self.model.write(self.SWITCH, '1\n')
        self.assertEqual('enabled\n', self.model.read(self.SWITCH))
        for number in range(13):
            self.model.mkdir(f'/{number}')
        full = self.assertRaises(kernel.ResctrlError, self.model.mkdir, '/x')
        self.assertEqual((errno.ENOSPC, 'Out of CLOSIDs\n'),
                         (full.number, full.status))
        self.model.write(self.SWITCH, 'n')
        self.model.mkdir('/x')
        taken = self.refusal(self.SWITCH, 'yes')
        self.assertEqual(
            (errno.ENOSPC, 'CLOSID (ctrl_hw_id) 15 for io_alloc is used by x '
             'group\n'), (taken.number, taken.status))

    def test_its_masks_are_all_or_none(self):
        self.model.write(self.SWITCH, 'on\n')
        self.assertEqual('0=ffff;1=ffff;8=ffff;9=ffff\n',
                         self.model.read(self.MASKS))
        self.model.write(self.MASKS, '*=f0\n')
        for text, status in (
                ('0=1;0=2', 'Duplicate domain 0'),
                ('0=1;5=2', 'Invalid domain 5'),
                ('*=1;0=2', "Configurations after global '*'"),
                ('x=1', "Missing '=' or non-numeric domain"),
                ('0=x', 'Non-hex character in the mask x'),
                ('0=10000', 'Mask out of range')):
            self.refusal(self.MASKS, f'{text}\n')
            self.assertEqual(status, self.status, text)
        self.assertIsNone(self.refusal(self.MASKS, '0=1').status)
        self.model.write(self.MASKS, '8=f\n')
        self.assertEqual('0=00f0;1=00f0;8=000f;9=00f0\n',
                         self.model.read(self.MASKS))

    def test_devices_are_neighbours(self):
        self.model.write(self.SWITCH, '1')
        self.model.write(self.MASKS, '*=f0\n')
        self.model.write('/schemata', 'L3:0=f;1=f;8=f;9=f\n')
        self.assertTrue(self.model.read('/info/L3/bit_usage').startswith(
            '0=SSSSSSSSXXXXSSSS;'))
        self.model.rmdir('/g')
        self.assertTrue(self.model.read('/info/L3/bit_usage').startswith(
            '0=00000000HHHHSSSS;'))
        self.model.mkdir('/h')
        self.assertTrue(self.model.read('/h/schemata').splitlines()[-1]
                        .endswith('L3:0=ff0f;1=ff0f;8=ff0f;9=ff0f'))
        self.model.write(
            '/h/schemata', 'L3:0=ff80;1=ff80;8=ff80;9=ff80\n')
        refused = self.refusal('/h/mode', 'exclusive\n')
        self.assertEqual('Schemata overlaps\n', refused.status)
        self.model.write(
            '/h/schemata', 'L3:0=ff00;1=ff00;8=ff00;9=ff00\n')
        self.model.write('/h/mode', 'exclusive\n')
        refused = self.refusal(self.MASKS, '1=f00\n')
        self.assertEqual('Overlaps with exclusive group\n', refused.status)


class EventConfigsTest(DialectTestCase):
    """Transactions that AMD's events count, by monitor.c and rdtgroup.c of
    Linux 7.2.
    """

    dialect = 'amd'
    TOP = '/info/L3_MON'
    FILE = 'mon_L3_00/mbm_total_bytes'

    def refusal(self, name, text):
        refused = self.assertRaises(
            kernel.ResctrlError, self.model.write, f'{self.TOP}/{name}', text)
        return refused.number, refused.status

    def test_counters_of_a_changed_filter_begin_again(self):
        path = f'{self.TOP}/event_configs/mbm_total_bytes/event_filter'
        self.run_thread('/g')
        held = self.figure(self.FILE, '/g')
        self.model.write(path, 'local_reads, remote_reads\n')
        self.assertEqual('local_reads,remote_reads\n', self.model.read(path))
        self.assertNotEqual('0', held)
        self.assertEqual('0', self.figure(self.FILE, '/g'))
        self.assertEqual((errno.EINVAL, 'Invalid memory transaction type x\n'),
                         self.refusal(
                             'event_configs/mbm_total_bytes/event_filter',
                             'local_reads,x\n'))

    def test_the_older_files_are_there_without_assignments(self):
        names = self.model.listdir(self.TOP)
        self.assertNotIn('mbm_total_bytes_config', names)
        self.model.write(f'{self.TOP}/mbm_assign_mode', 'default\n')
        self.assertIn('mbm_total_bytes\nmbm_total_bytes_config\n',
                      self.model.read(f'{self.TOP}/mon_features'))
        self.assertEqual('0=0x15;1=0x15;8=0x15;9=0x15\n', self.model.read(
            f'{self.TOP}/mbm_local_bytes_config'))
        self.assertRaises(
            kernel.ResctrlError, self.model.read,
            f'{self.TOP}/event_configs/mbm_total_bytes/event_filter')

    def test_a_changed_config_clears_what_was_counted(self):
        self.model.write(f'{self.TOP}/mbm_assign_mode', 'default\n')
        name = 'mbm_total_bytes_config'
        self.run_thread('/g')
        self.model.write(f'{self.TOP}/{name}', '0=0x7f\n')
        self.assertNotEqual('Unavailable', self.figure(self.FILE, '/g'))
        for text, status in (
                ('0=30;x=1', "Missing '=' or non-numeric domain id\n"),
                ('0=', 'Non-numeric event configuration value\n'),
                ('0=80', 'Invalid event configuration: max valid mask is '
                         '0x7f\n'),
                ('7=1', '')):
            self.assertEqual((errno.EINVAL, status),
                             self.refusal(name, f'{text}\n'), text)
        self.assertEqual('0=0x30;1=0x7f;8=0x7f;9=0x7f\n',
                         self.model.read(f'{self.TOP}/{name}'))
        self.assertEqual('Unavailable', self.figure(self.FILE, '/g'))
        self.assertEqual('0', self.figure(self.FILE, '/g'))
        self.model.mkdir('/new')
        self.assertEqual('0', self.figure(self.FILE, '/new'))


class FixedCountersTest(DialectTestCase):
    """Kernels on which neither modes nor events are configurable."""

    dialect = 'mpam'

    def test_events_cannot_be_chosen(self):
        path = '/info/L3_MON/event_configs/mbm_total_bytes/event_filter'
        self.assertEqual('\n', self.model.read(path))
        self.assertRaises(kernel.ResctrlError, self.model.write, path, '\n')
        self.assertEqual('event_filter is not configurable', self.status)


class Linux73Test(DialectTestCase):
    """rdtgroup_kn_lock_live() empties last_cmd_status."""

    dialect = 'mpam'

    def refuse(self, path, text):
        self.assertRaises(kernel.ResctrlError, self.model.write, path, text)

    def test_any_read_of_a_group_empties_the_status(self):
        for path in ('/g/schemata', '/g/tasks', '/g/mode', '/g/size',
                     '/g/cpus', '/schemata', '/mon_data/mon_L3_05/'
                     'mbm_total_bytes', '/g/mon_data/mon_L3_71/llc_occupancy'):
            self.refuse('/g/schemata', 'MB:5=x\n')
            self.model.read('/info/MB/num_closids')
            self.model.read('/info/last_cmd_status')
            self.assertEqual('Invalid MB value x', self.status)
            self.model.read(path)
            self.assertEqual('ok', self.status, path)

    def test_write_without_a_line_feed_has_a_text(self):
        self.refuse('/g/schemata', 'MB:5=50')
        self.assertEqual('schemata: Invalid input', self.status)
        self.refuse('/g/mode', 'shareable')
        self.assertEqual('mode: Invalid input', self.status)


class PackagesTest(DialectTestCase):
    """Intel's telemetry of packages, Linux 7.0."""

    dialect = 'intel-snc-cdp'

    def test_energy_has_a_fraction(self):
        self.assertEqual('576\n', self.model.read(
            '/info/PERF_PKG_MON/num_rmids'))
        self.assertEqual('core_energy\nactivity\n', self.model.read(
            '/info/PERF_PKG_MON/mon_features'))
        self.run_thread('/g')
        self.assertRegex(self.figure('mon_PERF_PKG_00/core_energy', '/g'),
                         r'\A[0-9]+\.[0-9]{6}\Z')

    def test_there_is_one_mode(self):
        path = '/info/L3_MON/mbm_assign_mode'
        self.assertEqual('[default]\n', self.model.read(path))
        self.model.write(path, 'default\n')
        self.assertRaises(
            kernel.ResctrlError, self.model.write, path, 'mbm_event\n')
        self.assertEqual('mbm_event mode is not supported', self.status)


class CountersTest(DialectTestCase):
    """Counters that are assigned, on a machine with four a domain."""

    dialect = 'mpam'
    FILE = 'mon_L3_05/mbm_total_bytes'

    def free(self):
        return self.model.read('/info/L3_MON/available_mbm_cntrs').strip()

    def assign(self, text, group='/g'):
        self.model.write(f'{group}/mbm_L3_assignments', f'{text}\n')

    def test_a_new_group_has_one_until_there_are_none(self):
        self.assertEqual('5=2;71=2', self.free())
        for name in 'abc':
            self.model.mkdir(f'/{name}')
        self.assertEqual(
            'Failed to allocate counter for mbm_total_bytes in domain 5\n'
            'Failed to allocate counter for mbm_total_bytes in domain 71',
            self.status)
        self.assertEqual('5=0;71=0', self.free())
        self.assertEqual('ok', self.status)
        self.assertEqual('mbm_total_bytes:5=_;71=_\n',
                         self.model.read('/c/mbm_L3_assignments'))
        self.assertEqual('Unassigned', self.figure(self.FILE, '/c'))
        self.model.rmdir('/a')
        self.assertEqual('5=1;71=1', self.free())

    def test_writes_are_refused_as_by_the_kernel(self):
        # mbm_L3_assignments_write() and what it calls.
        for text, error, status in (
                ('x:*=e', errno.ENOENT, 'Invalid event x'),
                ('', errno.ENOENT, 'Invalid event '),
                ('mbm_total_bytes:=e', errno.EINVAL, 'Missing domain id'),
                ('mbm_total_bytes:5=_;;71=_', errno.EINVAL,
                 'Missing domain id'),
                ('mbm_total_bytes:6=e', errno.EINVAL, 'Invalid domain id 6'),
                ('mbm_total_bytes:5', errno.EINVAL,
                 "Assign operation 'mbm_total_bytes:5=(null)' failed"),
                ('mbm_total_bytes:*=x', errno.EINVAL,
                 "Assign operation 'mbm_total_bytes:*=x' failed")):
            refused = self.assertRaises(
                kernel.ResctrlError, self.assign, text)
            self.assertEqual((error, status + '\n'),
                             (refused.number, refused.status), text)

    def test_every_domain_is_tried(self):
        self.assign('mbm_total_bytes:*=_')
        for name in 'ab':
            self.model.mkdir(f'/{name}')
        self.assign('mbm_total_bytes:71=_', '/a')
        self.model.mkdir('/c')
        self.model.mkdir('/d')
        self.assign('mbm_total_bytes:71=_', '/c')
        self.assertEqual('5=0;71=1', self.free())
        refused = self.assertRaises(
            kernel.ResctrlError, self.assign, 'mbm_total_bytes:*=e')
        self.assertEqual(errno.ENOSPC, refused.number)
        self.assertEqual('mbm_total_bytes:5=_;71=e\n',
                         self.model.read('/g/mbm_L3_assignments'))

    def test_a_monitoring_group_makes_up_for_its_parent(self):
        self.model.mkdir('/g/mon_groups/m')
        self.assign('mbm_total_bytes:*=_')
        self.assertEqual('0', self.figure(self.FILE, '/g'))

    def test_occupancy_takes_none(self):
        self.assign('mbm_total_bytes:*=_')
        self.assertEqual('0', self.figure('mon_L3_05/llc_occupancy', '/g'))

    def test_they_need_not_be_assigned_by_themselves(self):
        self.model.write('/info/L3_MON/mbm_assign_on_mkdir', '0\n')
        self.model.mkdir('/a')
        self.assertEqual('mbm_total_bytes:5=_;71=_\n',
                         self.model.read('/a/mbm_L3_assignments'))

    def test_there_is_but_one_mode_on_arm(self):
        self.assertEqual('[mbm_event]\n', self.model.read(
            '/info/L3_MON/mbm_assign_mode'))
        self.assertRaises(kernel.ResctrlError, self.model.write,
                          '/info/L3_MON/mbm_assign_mode', 'default\n')
        self.assertEqual('Counter assignment mode is not configurable',
                         self.status)


class ModesTest(DialectTestCase):

    def test_the_mode_can_be_changed(self):
        path = '/info/L3_MON/mbm_assign_mode'
        self.assertEqual('[mbm_event]\ndefault\n', self.model.read(path))
        self.model.write('/g/mbm_L3_assignments', 'mbm_local_bytes:*=_\n')
        self.model.write(path, 'default\n')
        self.assertEqual('[default]\nmbm_event\n', self.model.read(path))
        self.assertEqual('0', self.figure('mon_L3_00/mbm_local_bytes', '/g'))
        exc = self.assertRaises(kernel.ResctrlError, self.model.read,
                                '/g/mbm_L3_assignments')
        self.assertEqual(errno.EINVAL, exc.number)
        self.model.write(path, 'mbm_event\n')
        self.assertEqual('Unassigned',
                         self.figure('mon_L3_00/mbm_local_bytes', '/g'))
        self.model.mkdir('/h')
        self.assertIn('mbm_local_bytes:0=e;1=e;8=e;9=e\n',
                      self.model.read('/h/mbm_L3_assignments'))
    dialect = 'amd'


class FractionTest(DialectTestCase):
    """drivers/resctrl/mpam_resctrl.c, as test_mpam_resctrl.c has it."""

    dialect = 'mpam71'

    def test_a_value_goes_to_the_nearest_fraction(self):
        for value, held in ((3, 3), (5, 9), (8, 9), (31, 31), (50, 53),
                            (100, 100)):
            self.assertEqual(f'5={held};71=100',
                             self.write(f'MB:5={value}\n', 'MB'))
        self.refused('MB:5=2\n', 'MB value 2 out of range [3,100]')

    def test_there_is_no_monitor_of_bandwidth(self):
        self.assertEqual(['llc_occupancy'],
                         self.model.listdir('/mon_data/mon_L3_05'))


class OpenEuler510Test(DialectTestCase):
    dialect = 'openeuler510'

    def test_the_lines_are_those_of_the_mount_options(self):
        self.assertEqual(
            {'L3PBM': '0=7fff;1=7fff', 'MBMAX': '0=100;1=100',
             'MBMIN': '0=0;1=0', 'MBHDL': '0=1;1=1', 'MBPRI': '0=3;1=3'},
            self.lines())

    def test_a_value_goes_up(self):
        for value, held in ((0, 2), (1, 2), (51, 52), (100, 100)):
            self.assertEqual(f'0={held};1=100',
                             self.write(f'MBMAX:0={value}\n', 'MBMAX'))
        self.assertEqual('0=0;1=0', self.write('MBMIN:0=0\n', 'MBMIN'))

    def test_refused_input(self):
        for text in ('MBMAX:0=101\n', 'MBPRI:0=8\n', 'MBHDL:0=2\n',
                     'MBMAX:7=1\n'):
            self.refused(text, 'ok')
        self.refused('MB:0=1\n', "unknown/unsupported resource name 'MB'")
        self.refused('MBMAX:0=4;0=4\n', 'duplicate domain')

    def test_the_files(self):
        self.assertEqual(
            {'cpus', 'cpus_list', 'mon_data', 'mon_groups', 'rmid',
             'schemata', 'tasks'}, set(self.model.listdir('/g')))
        self.assertEqual(
            {'bandwidth_gran', 'features', 'min_bandwidth', 'num_closids'},
            set(self.model.listdir('/info/MB')))
        self.assertEqual({'num_monitors', 'num_rmids'},
                         set(self.model.listdir('/info/MB_MON')))

    def test_one_thread_at_a_time(self):
        self.threads.add(7)
        self.threads.add(8)
        self.assertRaises(kernel.ResctrlError, self.model.write, '/g/tasks',
                          '7,8\n')
        self.model.write('/g/tasks', '7\n')
        self.assertEqual('7\n', self.model.read('/g/tasks'))

    def test_a_monitor_is_a_file_with_a_rate(self):
        self.run_thread('/g')
        self.figure('mon_MB_00', '/g')
        self.run_thread('/g')
        self.assertEqual('4000', self.figure('mon_MB_00', '/g'))
        self.assertEqual('0', self.figure('mon_MB_01', '/g'))


class NvidiaTest(DialectTestCase):
    dialect = 'nvidia'
    nodes = NODES + ';2='

    def test_nodes_without_cpus_have_domains(self):
        self.assertEqual('0=100;1=100;2=100', self.lines()['MB'])
        self.assertEqual('1=fff;2=fff', self.lines()['L3'])

    def test_a_cap_is_soft_until_it_is_hard(self):
        self.model.write('/g/schemata', 'MB:0=50\n')
        self.assertEqual('4000000000', self._moved())
        self.model.write('/g/schemata', 'MB_HLIM:0=1\n')
        self.assertEqual('6000000000', self._moved())
        self.refused('MB_HLIM:0=2\n', 'MB value 2 out of range [0,1]')

    def _moved(self):
        # The one counter of a domain is the root group's at first.
        self.model.write('/mbm_L3_assignments', 'mbm_total_bytes:*=_\n')
        self.model.write('/g/mbm_L3_assignments', 'mbm_total_bytes:1=e\n')
        self.run_thread('/g')
        return self.figure('mon_L3_01/mbm_total_bytes', '/g')

    def test_directories_of_monitors_that_there_are_not(self):
        self.assertEqual([], self.model.listdir('/mon_data/mon_MB_HLIM_02'))


class VeraTest(DialectTestCase):
    dialect = 'nvidia-vera'

    def test_bandwidth_is_counted_at_the_memory(self):
        self.run_thread('/g', cpu=2)
        self.assertEqual('4000000000', self.figure(
            'mon_MB_01/mbm_total_bytes', '/g'))
        self.assertEqual('mbm_total_bytes:0=e;1=e\n',
                         self.model.read('/g/mbm_MB_assignments'))


class Kunpeng950Test(DialectTestCase):
    dialect = 'kunpeng950'

    def test_shares_of_the_cache(self):
        self.assertEqual('1=0000100;122=0000100', self.lines()['L3MAX'])
        self.assertEqual('1=0000000;122=0000040',
                         self.write('L3MIN:122=40\n', 'L3MIN'))


class SevenBitsTest(DialectTestCase):
    dialect = 'openeuler66-7bit'

    def test_percentages_between_bits_are_shown_as_the_lower_one(self):
        for value, held in ((1, 1), (2, 1), (24, 22), (33, 32), (50, 50),
                            (70, 69), (97, 97), (98, 97), (100, 100)):
            self.assertEqual(f'0={held:07};1=0000100',
                             self.write(f'MB:0={value}\n', 'MB'))
