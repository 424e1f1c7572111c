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


from ghsched_nova.lab.emulator import faults as faultlib
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import traffic
from ghsched_placement.tests import base


class FakeThreads:
    """Threads that a test makes, works and ends."""

    def __init__(self):
        self.samples = {}
        self.children = {}
        self.ticks = 0

    def add(self, tid, cpu=0, parent=None):
        self.ticks += 1
        self.samples[tid] = kernel.Sample(self.ticks, 0.0, cpu)
        if parent:
            self.children.setdefault(parent, set()).add(tid)

    def work(self, tid, seconds):
        old = self.samples[tid]
        self.samples[tid] = kernel.Sample(
            old.start, old.cpu_seconds + seconds, old.cpu
        )

    def sample(self, tid):
        return self.samples.get(tid)

    def thread_ids(self):
        return set(self.samples)

    def offspring(self, tid):
        return self.children.get(tid, set()) & set(self.samples)

    def now(self):
        self.ticks += 1
        return self.ticks


class ModelTestCase(base.TestCase):
    dialect = 'openeuler66'

    def setUp(self):
        super().setUp()
        self.threads = FakeThreads()
        self.now = 100.0
        self.faults = faultlib.Faults()
        self.slept = []
        self.model = self.make()

    def make(self, load=lambda: None, **more):
        return kernel.ResctrlModel(
            machines.build(self.dialect, '0=0-1;1=2-3', **more),
            self.threads, faults=lambda: self.faults,
            clock=lambda: self.now, sleep=self.slept.append, load=load,
        )

    def refused(self, number, method, *args):
        exc = self.assertRaises(kernel.ResctrlError, method, *args)
        self.assertEqual(errno.errorcode[number], errno.errorcode[exc.number])

    @property
    def status(self):
        return self.model.read('/info/last_cmd_status')

    def tids(self, group):
        return [int(x) for x in self.model.read(f'{group}/tasks').split()]


class TreeTest(ModelTestCase):
    def test_root(self):
        self.assertEqual(
            {'cpus', 'cpus_list', 'info', 'mode', 'mon_data', 'mon_groups',
             'schemata', 'size', 'tasks'},
            set(self.model.listdir('/')),
        )
        self.assertEqual('ok\n', self.status)

    def test_info(self):
        self.assertEqual(
            {'L3', 'L3_MON', 'MB', 'MB_MON', 'last_cmd_status'},
            set(self.model.listdir('/info')),
        )
        for path, text in (
            ('MB/min_bandwidth', '1'), ('MB/bandwidth_gran', '1'),
            ('MB/num_closids', '32'), ('L3/num_closids', '32'),
            ('L3/cbm_mask', 'fffffff'), ('L3/min_cbm_bits', '1'),
            ('L3_MON/mon_features', 'llc_occupancy'),
            ('MB_MON/mon_features', 'mbm_total_bytes'),
            ('MB_MON/num_rmids', '128'),
        ):
            self.assertEqual(f'{text}\n', self.model.read(f'/info/{path}'))

    def test_monitor_directories(self):
        self.assertEqual(
            ['mon_L3_01', 'mon_L3_122', 'mon_MB_00', 'mon_MB_01'],
            self.model.listdir('/mon_data'),
        )

    def test_paths_that_are_not_there(self):
        self.refused(errno.ENOENT, self.model.read, '/info/L2')
        self.refused(errno.ENOTDIR, self.model.listdir, '/tasks/x')
        self.refused(errno.EISDIR, self.model.read, '/info')
        self.refused(errno.EACCES, self.model.write, '/size', '1\n')

    def test_threshold_can_be_set(self):
        path = '/info/L3_MON/max_threshold_occupancy'
        self.model.write(path, '131072\n')
        self.assertEqual('131072\n', self.model.read(path))
        self.refused(errno.EINVAL, self.model.write, path, 'x\n')

    def test_threshold_is_read_as_a_kernel_reads_numbers(self):
        path = '/info/L3_MON/max_threshold_occupancy'
        self.refused(errno.ENOENT, self.model.rmdir, '/none')
        self.refused(errno.EINVAL, self.model.write, '/schemata', 'x\n')
        status = self.status
        for text, found in (('0x1000', 4096), ('010\n', 8), ('0', 0)):
            self.model.write(path, text)
            self.assertEqual(f'{found}\n', self.model.read(path))
        for text, number in (('99999999999', errno.ERANGE), (' 5',
                             errno.EINVAL), ('20000000', errno.EINVAL),
                             ('-1', errno.EINVAL)):
            self.refused(number, self.model.write, path, text)
        self.assertEqual(status, self.status)

    def test_nothing_can_be_made_below_info(self):
        for path in ('/info/x', '/info/L3/x'):
            self.refused(errno.ENODEV, self.model.mkdir, path)
        self.refused(errno.EPERM, self.model.mkdir, '/mon_data/x')

    def test_modes_of_directories(self):
        self.model.mkdir('/a')
        for path, mode in (('/', 0o555), ('/mon_groups', 0o555),
                           ('/a', 0o755), ('/a/mon_groups', 0o755),
                           ('/info', 0o555), ('/a/mon_data', 0o555)):
            self.assertEqual(mode, self.model.lookup(path).mode, path)


class GroupTest(ModelTestCase):

    def test_rmids_run_out(self):
        self.model = self.make(rmids=2)
        self.model.mkdir('/a')
        self.refused(errno.ENOSPC, self.model.mkdir, '/b')
        self.assertEqual('Out of RMIDs\n', self.status)
        self.assertNotIn('b', self.model.listdir('/'))

    def test_rmid_in_limbo_is_busy(self):
        self.model = self.make(rmids=2, limbo_seconds=5)
        self.model.mkdir('/a')
        self.model.rmdir('/a')
        self.refused(errno.EBUSY, self.model.mkdir, '/b')
        self.now += 6
        self.model.mkdir('/b')

    def test_names_and_places(self):
        self.model.mkdir('/a')
        self.refused(errno.EEXIST, self.model.mkdir, '/a')
        self.refused(errno.EEXIST, self.model.mkdir, '/info')
        self.refused(errno.EINVAL, self.model.mkdir, '/a\nb')
        self.refused(errno.EPERM, self.model.mkdir, '/a/b')
        self.refused(errno.EPERM, self.model.mkdir,
                     '/a/mon_groups/mon_groups')
        self.refused(errno.ENOENT, self.model.mkdir, '/x/mon_groups/m')
        for path in ('/info', '/mon_groups', '/mon_data', '/'):
            self.refused(errno.EPERM, self.model.rmdir, path)
        self.refused(errno.ENOENT, self.model.rmdir, '/x')
        self.refused(errno.ENOTDIR, self.model.rmdir, '/tasks')

    def test_refused_write_applies_no_line(self):
        self.model.mkdir('/a')
        before = self.model.read('/a/schemata')
        self.refused(
            errno.EINVAL, self.model.write, '/a/schemata',
            'MB:0=60\nMBPRI:0=9\n',
        )
        self.assertEqual(before, self.model.read('/a/schemata'))
        self.assertEqual('MB value 9 out of range [0,7]\n', self.status)


class MpamCacheTest(base.TestCase):
    """Cache portions of each machine with MPAM, as its driver sets them up.

    mpam_resctrl_control_init() of mainline and mpam_resctrl_resource_init()
    of OLK-6.6: arch_has_sparse_bitmasks is true, and shareable_bits are all.
    """

    def test_masks_of_each_mpam_machine_have_holes_and_are_shared(self):
        checked = set()
        for dialect in machines.DIALECTS:
            machine = machines.build(dialect, '0=0-3;1=4-7')
            line = machine.line('L3')
            if dialect.startswith(('intel', 'amd')) or line is None:
                continue
            checked.add(dialect)
            model = kernel.ResctrlModel(machine, FakeThreads())
            model.mkdir('/a')
            domain = min(machine.domains(line.scope))
            model.write('/a/schemata', f'L3:{domain}=5\n')
            self.assertIn('5', model.read('/a/schemata'), dialect)
            self.assertEqual('1\n', model.read('/info/L3/sparse_masks'))
            self.assertEqual(f'{line.maximum:x}\n',
                             model.read('/info/L3/shareable_bits'))
            usage = model.read('/info/L3/bit_usage').partition(';')[0]
            self.assertLessEqual(set(usage.partition('=')[2]), {'X', 'H'})
            error = self.assertRaises(kernel.ResctrlError, model.write,
                                      '/a/mode', 'exclusive\n')
            self.assertEqual(errno.EINVAL, error.number, dialect)
        self.assertEqual(
            {'mpam', 'mpam71', 'openeuler66', 'openeuler66-6bit',
             'openeuler66-7bit', 'kunpeng950', 'nvidia', 'nvidia-vera'},
            checked)


class CodeAndDataTest(ModelTestCase):
    """CDP: the masks of code and of data are of the same portions."""

    dialect = 'intel-snc-cdp'

    def test_exclusive_group_owns_its_portions_for_code_and_for_data(self):
        self.model.write('/schemata', 'L3DATA:0=ff\nL3CODE:0=ff\n')
        self.model.mkdir('/a')
        self.model.write('/a/schemata', 'L3DATA:0=700\nL3CODE:0=3800\n')
        self.model.write('/a/mode', 'exclusive\n')
        self.refused(errno.EINVAL, self.model.write, '/schemata',
                     'L3CODE:0=7ff\n')
        self.assertEqual('Overlaps with exclusive group\n', self.status)
        self.model.mkdir('/b')
        rows = self.model.read('/b/schemata').splitlines()
        self.assertEqual(['L3DATA:0=00ff', 'L3CODE:0=00ff'], rows[1:])


class TasksTest(ModelTestCase):
    def setUp(self):
        super().setUp()
        for tid in (11, 12, 13):
            self.threads.add(tid)
        self.model.mkdir('/a')
        self.model.mkdir('/b')

    def test_numbers_as_the_kernel_reads_them(self):
        self.model.write('/a/tasks', ' 0xb ,014,\n')
        self.assertEqual([11, 12], self.tids('/a'))
        self.model.write('/a/tasks', '0', 13)
        self.assertEqual([11, 12, 13], self.tids('/a'))
        for text, status in (
            ('x', 'Task list parsing error pid x\n'),
            ('11\n12\n', 'Task list parsing error pid 11\n12\n'),
            ('-5', 'Invalid pid -5\n'),
        ):
            self.refused(errno.EINVAL, self.model.write, '/a/tasks', text)
            self.assertEqual(status, self.status)

    def test_a_move_looks_at_no_other_thread(self):
        self.model.mkdir('/many')
        looked = []
        sample = self.threads.sample
        self.threads.sample = lambda tid: looked.append(tid) or sample(tid)
        for tid in range(1000, 1800):
            self.threads.add(tid)
            self.model.write('/many/tasks', f'{tid}\n')
        self.assertTrue(len(looked) <= 4 * 800, len(looked))
        self.assertEqual(800, len(self.model.read('/many/tasks').split()))

    def test_processes_started_before_a_second_move_follow(self):
        for name in ('/many', '/more'):
            self.model.mkdir(name)
        self.threads.add(1000)
        self.model.write('/many/tasks', '1000\n')
        self.threads.add(1001, parent=1000)
        self.model.write('/more/tasks', '1000\n')
        self.assertEqual('1001\n', self.model.read('/many/tasks'))

    def test_ended_thread_vanishes_and_its_number_is_free(self):
        self.model.write('/a/tasks', '11,12')
        del self.threads.samples[11]
        self.assertEqual([12], self.tids('/a'))
        self.threads.add(11)
        self.assertEqual([12], self.tids('/a'))

    def test_later_children_of_a_process_are_in_its_group(self):
        self.threads.add(20, parent=11)
        self.model.write('/a/tasks', '11')
        self.threads.add(21, parent=11)
        self.assertEqual([11, 21], self.tids('/a'))
        self.model.write('/tasks', '21')
        self.assertEqual([11], self.tids('/a'))

    def test_iommu_group_is_listed_where_it_was_bound(self):
        self.model.write('/a/tasks', 'iommu_group:17\n')
        self.assertEqual('iommu_group:17\n', self.model.read('/a/tasks'))
        self.model.write('/b/tasks', 'iommu_group:17\n')
        self.assertEqual('', self.model.read('/a/tasks'))
        self.model.rmdir('/b')
        self.assertNotIn('iommu', self.model.read('/tasks'))

    def test_iommu_group_that_is_not_there(self):
        self.model._tasks._iommu_groups = {3}
        self.refused(errno.ESRCH, self.model.write, '/a/tasks',
                     'iommu_group:17\n')
        self.assertEqual('No matching iommu group\n', self.status)
        self.model.write('/a/tasks', 'iommu_group:3\n')

    def test_iommu_group_in_a_monitor_group_stays_in_its_control_group(self):
        self.model.mkdir('/a/mon_groups/m')
        self.refused(errno.EINVAL, self.model.write, '/a/mon_groups/m/tasks',
                     'iommu_group:3\n')
        self.assertIn('different control group', self.status)
        self.model.write('/a/tasks', 'iommu_group:3\n')
        self.model.write('/a/mon_groups/m/tasks', 'iommu_group:3\n')
        self.model.rmdir('/a/mon_groups/m')
        self.assertEqual('iommu_group:3\n', self.model.read('/a/tasks'))

    def test_a_thread_is_an_int(self):
        for text in ('2147483648', '99999999999', '-2147483649', '0x80000000'):
            self.refused(errno.EINVAL, self.model.write, '/tasks',
                         f'{text}\n')
            self.assertIn(f'Task list parsing error pid {text}', self.status)
        self.refused(errno.ESRCH, self.model.write, '/tasks', '2147483647\n')
        self.refused(errno.EINVAL, self.model.write, '/tasks',
                     '-2147483648\n')
        self.assertIn('Invalid pid -2147483648', self.status)


class CPUsTest(ModelTestCase):
    def setUp(self):
        super().setUp()
        self.model.mkdir('/a')
        self.model.mkdir('/b')

    def cpus(self, group):
        return self.model.read(f'{group}/cpus_list').strip()

    def test_cpu_is_in_one_group(self):
        self.model.write('/a/cpus_list', '1-2\n')
        self.model.write('/b/cpus', '2\n')
        self.assertEqual(
            ['0,3', '2', '1'], [self.cpus(x) for x in ('', '/a', '/b')]
        )
        self.model.rmdir('/b')
        self.assertEqual('0-1,3', self.cpus(''))

    def test_monitor_group_takes_only_its_parents_cpus(self):
        self.model.mkdir('/a/mon_groups/m')
        path = '/a/mon_groups/m/cpus_list'
        self.refused(errno.EINVAL, self.model.write, path, '1\n')
        self.model.write('/a/cpus_list', '1-2\n')
        self.model.write(path, '1\n')
        self.assertEqual('1-2', self.cpus('/a'))
        self.model.write('/a/cpus_list', '1-2\n')
        self.assertEqual('', self.cpus('/a/mon_groups/m'))

    def test_refusals(self):
        for text, status in (
            ('0-9\n', 'Can only assign online CPUs\n'),
            ('a\n', 'Bad CPU list/mask\n'),
        ):
            self.refused(
                errno.EINVAL, self.model.write, '/a/cpus_list', text
            )
            self.assertEqual(status, self.status)
        self.refused(errno.EINVAL, self.model.write, '/cpus_list', '0\n')
        self.assertEqual("Can't drop CPUs from default group\n", self.status)


class RateTest(ModelTestCase):
    """openEuler 6.6: mbm_total_bytes is MB/s whatever its name says."""

    def rate(self, group, node=0):
        path = f'{group}/mon_data/mon_MB_{node:02d}/mbm_total_bytes'
        return int(self.model.read(path))

    def busy(self, seconds, *tids):
        for tid in tids:
            self.threads.work(tid, seconds)
        self.now += seconds

    def setUp(self):
        super().setUp()
        self.threads.add(11, cpu=0)
        self.threads.add(12, cpu=2)
        self.model.mkdir('/a')
        self.model.write('/a/tasks', '11,12')

    def test_rate_follows_load_and_cap(self):
        self.busy(1, 11)
        self.assertEqual((4000, 0), (self.rate('/a'), self.rate('/a', 1)))
        self.model.write('/a/schemata', 'MB:0=50\n')
        self.busy(1, 11)
        self.assertEqual(2000, self.rate('/a'))
        self.model.write('/a/schemata', 'MBHDL:0=0\n')
        self.busy(1, 11)
        self.assertEqual(4000, self.rate('/a'))
        self.now += 1
        self.assertEqual(0, self.rate('/a'))

    def test_two_looks_at_once_agree(self):
        self.busy(1, 12)
        self.assertEqual(4000, self.rate('/a', 1))
        self.assertEqual(4000, self.rate('/a', 1))

    def test_control_group_includes_its_monitor_groups(self):
        self.model.mkdir('/a/mon_groups/m')
        self.model.write('/a/mon_groups/m/tasks', '12')
        self.busy(1, 11, 12)
        self.assertEqual(4000, self.rate('/a/mon_groups/m', 1))
        self.assertEqual((4000, 4000), (self.rate('/a'), self.rate('/a', 1)))

    def test_a_thread_of_the_default_group_counts_for_that_of_its_cpu(self):
        self.threads.add(13, cpu=1)
        self.threads.add(14, cpu=1)
        self.model.mkdir('/b')
        self.model.mkdir('/b/mon_groups/m')
        self.model.write('/b/tasks', '14')
        self.model.write('/b/cpus_list', '1\n')
        self.model.write('/b/mon_groups/m/cpus_list', '1\n')
        self.model.write('/b/schemata', 'MB:0=50\n')
        self.rate('')
        self.busy(1, 11, 13)
        self.assertEqual((2000, 0, 4000), (
            self.rate('/b/mon_groups/m'), self.rate(''), self.rate('/a')))
        occupancy = '{}/mon_data/mon_L3_01/llc_occupancy'
        self.assertEqual(['131072\n', '65536\n', '0\n'], [
            self.model.read(occupancy.format(group))
            for group in ('/b', '/b/mon_groups/m', '')])
        self.model.rmdir('/b')
        self.busy(1, 13)
        self.assertEqual(4000, self.rate(''))

    def test_occupancy(self):
        path = '/a/mon_data/mon_L3_122/llc_occupancy'
        self.assertEqual(f'{traffic.OCCUPANCY}\n', self.model.read(path))


class CounterTest(ModelTestCase):
    dialect = 'intel'

    def test_bytes_only_grow_and_survive_a_move(self):
        self.threads.add(11, cpu=2)
        self.model.mkdir('/a')
        self.model.write('/a/tasks', '11')
        path = '/a/mon_data/mon_L3_01/mbm_total_bytes'
        self.threads.work(11, 1)
        self.now += 1
        self.assertEqual('4000000000\n', self.model.read(path))
        self.threads.work(11, 1)
        self.model.write('/tasks', '11')
        self.now += 1
        self.assertEqual('8000000000\n', self.model.read(path))
        local = self.model.read(path.replace('total', 'local'))
        self.assertEqual('6400000000\n', local)


class FaultTest(ModelTestCase):
    def inject(self, **spec):
        self.faults = faultlib.parse(spec)

    def test_mkdir(self):
        self.inject(mkdir='ENOSPC')
        self.refused(errno.ENOSPC, self.model.mkdir, '/a')
        self.assertEqual('Injected fault\n', self.status)
        self.inject()
        self.model.mkdir('/a')
        self.assertEqual('ok\n', self.status)

    def test_one_line_of_schemata(self):
        self.faults = faultlib.parse({'schemata:MBMIN': 'EINVAL'})
        self.model.write('/schemata', 'MB:0=50\n')
        self.refused(
            errno.EINVAL, self.model.write, '/schemata', 'MBMIN:0=1\n'
        )

    def test_ignored_line(self):
        self.faults = faultlib.parse({'schemata:MBPRI': 'ignore'})
        self.model.write('/schemata', 'MB:0=50\nMBPRI:0=7\n')
        text = self.model.read('/schemata')
        self.assertIn('MB:0=0000050', text)
        self.assertIn('MBPRI:0=0000003', text)

    def test_unavailable_monitor(self):
        self.inject(mon='Unavailable')
        path = '/mon_data/mon_MB_00/mbm_total_bytes'
        self.assertEqual('Unavailable\n', self.model.read(path))

    def test_delay(self):
        self.inject(tasks={'delay': 3})
        self.threads.add(11)
        self.model.write('/tasks', '11')
        self.assertEqual([3.0], self.slept)

    def test_failed_rmdir_keeps_the_group(self):
        self.model.mkdir('/a')
        self.inject(rmdir='EBUSY')
        self.refused(errno.EBUSY, self.model.rmdir, '/a')
        self.assertIn('a', self.model.listdir('/'))
