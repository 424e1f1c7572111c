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
from unittest import mock

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import host_texts
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.providers import names
from ghsched_placement.tests import base

FOUR = {node: (node,) for node in range(4)}
ALL = frozenset(name for name in names.CAPABILITY_TRAITS
                if name.startswith('MEM_BW'))


class MachinesTest(base.TestCase):

    def test_kunpeng_920b(self):
        host = captured.read_machine('kunpeng920b-openeuler24.03')
        self.assertEqual(dialects.OPENEULER_66, host.dialect)
        self.assertEqual((32, 128, 1, 1, 3, True), (
            host.num_closids, host.num_rmids, host.min_bandwidth,
            host.granularity, host.priority_default, host.monitored))
        self.assertEqual({node: (node,) for node in range(4)},
                         host.domains_by_node)
        described = host.make_description(reserved_groups=1)
        self.assertEqual(((0, 1, 2, 3), 30, ALL), (
            described.nodes, described.control_groups,
            described.capabilities))

    def test_intel_xeon(self):
        host = captured.read_machine('intel-xeon-2s')
        self.assertEqual(dialects.INTEL, host.dialect)
        # info/L3 has 16 control groups, info/MB has 8: the least counts.
        self.assertEqual((8, 224, 10, 10, None), (
            host.num_closids, host.num_rmids, host.min_bandwidth,
            host.granularity, host.priority_default))
        self.assertEqual({0: (0,), 1: (1,)}, host.domains_by_node)
        self.assertEqual(
            {'MEM_BW_MAX', 'MEM_BW_HARDLIMIT', 'L3_WAYS', 'MEM_BW_MONITOR'},
            host.make_description().capabilities)

    def test_a_guarantee_has_the_steps_of_the_line_that_holds_it(self):
        self.assertEqual(
            (2, 1), (captured.openeuler(granularity=2).make_description()
                     .guarantee_step, captured.intel().make_description()
                     .guarantee_step))

    def test_intel_before_5_12(self):
        self.assertEqual(dialects.INTEL,
                         captured.read_machine('intel-5.4').dialect)

    def test_the_traffic_of_devices_takes_a_control_group(self):
        for text, less in (('enabled', 1), ('disabled', 0),
                           ('not supported', 0)):
            top = Path(self.enterContext(tempfile.TemporaryDirectory()))
            machine = captured.MACHINES / 'amd-epyc'
            shutil.copytree(machine, top, dirs_exist_ok=True)
            before = captured.read_machine('amd-epyc').num_closids
            (top / 'resctrl/info/L3/io_alloc').write_text(f'{text}\n')
            self.assertEqual(before - less, resctrl_host.read_host(
                top / 'resctrl', top / 'sysfs').num_closids)

    def test_groups_are_measured_by_all_or_none(self):
        # resctrl_arch_system_num_rmid_idx()
        for number, usable in ((576, 160), (96, 96)):
            top = Path(self.enterContext(tempfile.TemporaryDirectory()))
            shutil.copytree(captured.MACHINES / 'intel-2s-snc-cdp', top,
                            dirs_exist_ok=True)
            packages = top / 'resctrl/info/PERF_PKG_MON'
            packages.mkdir(exist_ok=True)
            (packages / 'num_rmids').write_text(f'{number}\n')
            self.assertEqual(usable, resctrl_host.read_host(
                top / 'resctrl', top / 'sysfs').num_rmids)

    def test_files_that_clear_the_last_status_are_not_read(self):
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        shutil.copytree(captured.MACHINES / 'amd-epyc', top,
                        dirs_exist_ok=True)
        for name in ('L3/io_alloc_cbm', 'L3_MON/available_mbm_cntrs',
                     'L3_MON/mbm_assign_on_mkdir'):
            (top / 'resctrl/info' / name).write_text('0=5\n')
            self.assertEqual(
                '', host_texts.read_info(top / 'resctrl')[name])

    def test_unknown_lines_do_no_harm(self):
        host = captured.read_machine('unknown-lines')
        self.assertEqual(16, host.num_closids)
        self.assertEqual(7, host.priority_default)
        self.assertIsNone(host.dialect.find_knob('minimum'))
        self.assertNotIn('MEM_BW_MIN', host.make_description().capabilities)
        self.assertEqual({0: (0,), 1: (1,)}, host.domains_by_node)
        self.assertEqual({2: 'it has no CPU'}, host.left_out)

    def test_each_machine(self):
        for machine, dialect, lines, domains in (
                ('intel-1s', 'intel-rdt', 'MB', {0: (0,)}),
                ('intel-2s-snc-cdp', 'intel-rdt', 'MB',
                 {0: (0,), 1: (0,), 2: (1,), 3: (1,)}),
                ('intel-mba-mbps', 'intel-mba-mbps', 'MB',
                 {0: (0,), 1: (1,)}),
                ('amd-epyc', 'amd-qos', 'MB', {0: (0, 1, 2), 1: (8, 9, 10)}),
                ('arm-mainline', 'mpam', 'MB', {0: (5,), 1: (71,)}),
                ('arm-mainline-7.1', 'mpam', 'MB', {0: (0,)}),
                ('kunpeng920-openeuler22.03', 'openeuler-5.10',
                 'MB MBHDL MBPRI', FOUR),
                ('kunpeng920-openeuler22.03-mbmax', 'openeuler-5.10',
                 'MBMAX MBHDL MBMIN', FOUR),
                ('kunpeng920-openeuler22.03-plain', 'openeuler-5.10', 'MB',
                 FOUR),
                ('kunpeng950-openeuler24.03', 'openeuler-6.6',
                 'MB MBHDL MBPRI MBMIN', FOUR),
                ('nvidia-grace', 'nvidia-mpam', 'MB MB_HLIM',
                 {0: (0,), 1: (1,)}),
                ('nvidia-grace-l3', 'nvidia-mpam', 'MB', {0: (1,), 1: (2,)}),
                ('nvidia-vera', 'nvidia-mpam', 'MB MB_HLIM',
                 {0: (0,), 1: (1,)})):
            host = captured.read_machine(machine)
            self.assertEqual(
                (dialect, lines.split(), domains),
                (host.dialect.name, [k.line for k in host.dialect.knobs],
                 host.domains_by_node), machine)

    def test_where_each_machine_reports_bandwidth(self):
        for machine, prefix, unit, rmids in (
                ('intel-2s-snc-cdp', 'mon_L3_', 'counter_bytes', 160),
                ('amd-epyc', 'mon_L3_', 'counter_bytes', 4096),
                ('arm-mainline', 'mon_L3_', 'counter_bytes', 128),
                ('kunpeng920-openeuler22.03', 'mon_MB_', 'rate_mb', 16),
                ('kunpeng950-openeuler24.03', 'mon_MB_', 'rate_mb', 128),
                ('nvidia-grace', 'mon_L3_', 'counter_bytes', 64),
                ('nvidia-vera', 'mon_MB_', 'counter_bytes', 64)):
            host = captured.read_machine(machine)
            monitor = host.dialect.monitor
            self.assertEqual((prefix, unit, rmids), (
                monitor.prefix, monitor.unit, host.num_rmids), machine)
            top = captured.MACHINES / machine / 'resctrl'
            for entry in (top / 'mon_data').glob(prefix + '[0-9]*'):
                self.assertTrue((entry / monitor.file).is_file(), entry)
        for machine in ('arm-mainline-7.1', 'nvidia-grace-l3'):
            host = captured.read_machine(machine)
            self.assertFalse(host.monitored)
            self.assertEqual(
                (0, 0), (host.plan_facts['monitors'],
                         host.plan_facts['monitors_per_group']))
            self.assertNotIn('MEM_BW_MONITOR', host.capabilities())

    def test_counters_that_are_assigned(self):
        for machine, counters, file in (
                ('amd-epyc', dict.fromkeys((0, 1, 2, 8, 9, 10), 32),
                 'mbm_L3_assignments'),
                ('arm-mainline', {5: 4, 71: 4}, 'mbm_L3_assignments'),
                ('nvidia-grace', {1: 1, 2: 1}, 'mbm_L3_assignments'),
                ('nvidia-vera', {0: 4, 1: 4}, 'mbm_MB_assignments')):
            host = captured.read_machine(machine)
            self.assertEqual(counters, host.counters)
            self.assertTrue(
                (captured.MACHINES / machine / 'resctrl' / file).is_file())
        self.assertEqual({}, captured.read_machine('intel-1s').counters)

    def test_who_can_make_the_groups(self):
        for machine, upstream, openeuler in (
                ('intel-1s', True, True), ('intel-2s-snc-cdp', True, True),
                ('arm-mainline', False, False),     # sparse ids
                ('arm-mainline-7.1', False, False),
                ('amd-epyc', False, False), ('intel-mba-mbps', False, False),
                ('kunpeng920-openeuler22.03-plain', False, False),
                ('kunpeng950-openeuler24.03', False, True),
                ('nvidia-grace', False, False)):
            host = captured.read_machine(machine)
            self.assertEqual((upstream, openeuler), (
                host.can_libvirt_make_groups(False),
                host.can_libvirt_make_groups(True)), machine)

    def test_priorities_of_openeuler_5_10(self):
        host = captured.read_machine('kunpeng920-openeuler22.03')
        self.assertEqual((3, 7), (host.priority_default,
                                  host.dialect.find_knob('priority').maximum))

    def test_nodes_of_a_gpu_are_left_out(self):
        self.assertEqual(dict.fromkeys((2, 10), 'it has no CPU'),
                         captured.read_machine('nvidia-grace').left_out)

    def test_the_others_are_refused_with_a_reason(self):
        for machine, reason in (
                ('intel-mba-mbps-5.15', '[ghsched]node_bandwidth'),
                ('amd-epyc-milan', '[ghsched]node_bandwidth'),
                ('kunpeng920-openeuler22.03-mbpbm', 'no line MBMAX or MB'),
                ('nvidia-ambiguous', 'it is unknown whether'),
                ('broken-truncated', 'it is incomplete'),
                ('broken-binary', 'has no colon'),
                ('broken-empty', 'schemata: the file is empty'),
                ('broken-cpulist', 'it has no CPU'),
                ('broken-counters', 'info/L3_MON/num_mbm_cntrs'),
                ('not-there', 'is resctrl mounted?')):
            exc = self.assertRaises(resctrl_host.ResctrlUnavailable,
                                    captured.read_machine, machine)
            self.assertIn(reason, exc.reason)

    def test_monitor_without_control_of_bandwidth_is_offered(self):
        host = captured.read_machine('intel-no-mba')
        self.assertEqual({'MEM_BW_MONITOR'}, host.capabilities())
        self.assertEqual({}, host.domains_by_node)
        self.assertIn('no control of memory bandwidth', host.notes[0])

    def test_resctrl_closed_to_nova_compute_is_refused_with_the_cure(self):
        # Root may open everything, so a mode would not close it to root.
        with mock.patch.object(host_texts.os, 'access', return_value=False):
            exc = self.assertRaises(resctrl_host.ResctrlUnavailable,
                                    captured.read_machine,
                                    'kunpeng920b-openeuler24.03')
        self.assertIn('(chgrp nova', exc.reason)

    def test_nothing_is_to_be_done_on_a_machine_as_it_came(self):
        # So the defaults are those of the kernels.
        for machine in captured.all_machines():
            try:
                host = captured.read_machine(machine)
            except resctrl_host.ResctrlUnavailable:
                continue
            text = (captured.MACHINES / machine
                    / 'resctrl/schemata').read_text()
            self.assertEqual(
                (),
                differences.plan_schemata_writes(
                    schemata.parse_kernel_schemata(text),
                    {},
                    host.unused_domain_values,
                ),
                machine,
            )

    def test_a_refusal_names_the_file_system(self):
        for machine in ('broken-binary', 'broken-empty'):
            exc = self.assertRaises(resctrl_host.ResctrlUnavailable,
                                    captured.read_machine, machine)
            self.assertIn(str(captured.MACHINES / machine), exc.reason)


class ToldTest(base.TestCase):

    def test_bandwidth_that_the_firmware_does_not_give(self):
        host = captured.read_machine('amd-epyc-milan',
                                     node_bandwidth={0: 204800})
        self.assertEqual(({0: 204800 * 10 ** 6}, {0: (0, 1, 2, 3)}, 2048),
                         (host.node_bandwidth, host.domains_by_node,
                          host.no_cap))

    def test_it_goes_before_what_the_firmware_gives(self):
        host = captured.read_machine('amd-epyc', node_bandwidth={1: 1000})
        self.assertEqual({0: 219726 * 2 ** 20, 1: 10 ** 9},
                         host.node_bandwidth)

    def test_a_node_without_is_left_out(self):
        host = captured.read_machine('intel-mba-mbps-5.15',
                                     node_bandwidth={1: 1000})
        self.assertEqual({1: (1,)}, host.domains_by_node)
        self.assertIn('read_bandwidth', host.left_out[0])

    def test_shares_need_none(self):
        self.assertEqual({}, captured.read_machine(
            'intel-1s', node_bandwidth={0: 1000}).node_bandwidth)

    def test_cap_semantics(self):
        for cap, held in (('hard', 'MEM_BW_HARDLIMIT'),
                          ('soft', 'MEM_BW_SOFTLIMIT'), (None, None)):
            for machine in ('arm-mainline', 'nvidia-grace-l3',
                            'kunpeng920-openeuler22.03-plain'):
                host = captured.read_machine(machine, cap=cap)
                self.assertEqual({held} - {None}, host.capabilities() & {
                    'MEM_BW_HARDLIMIT', 'MEM_BW_SOFTLIMIT'})

    def test_it_is_not_asked_where_it_is_known(self):
        for machine in ('intel-1s', 'nvidia-grace', 'amd-epyc',
                        'kunpeng950-openeuler24.03'):
            self.assertEqual(captured.read_machine(machine),
                             captured.read_machine(machine, cap='soft'))


class DescriptionTest(base.TestCase):

    def test_control_groups_are_never_negative(self):
        host = captured.openeuler(num_closids=4)
        for reserved, left in ((0, 3), (3, 0), (9, 0)):
            self.assertEqual(left,
                             host.make_description(reserved).control_groups)

    def test_no_monitor_no_trait(self):
        host = captured.without_monitor(captured.openeuler())
        self.assertEqual(ALL - {'MEM_BW_MONITOR'},
                         host.make_description().capabilities)


class ChangedTest(base.TestCase):
    """A captured machine, with one thing changed."""

    def setUp(self):
        super().setUp()
        self.top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.top)

    def _take(self, machine):
        shutil.copytree(captured.MACHINES / machine, self.top,
                        dirs_exist_ok=True)
        self.system = self.top / 'sysfs' / 'devices' / 'system'
        self.info = self.top / 'resctrl' / 'info'

    def _read(self):
        return resctrl_host.read_host(self.top / 'resctrl',
                                      self.top / 'sysfs')

    def _refused(self):
        return self.assertRaises(resctrl_host.ResctrlUnavailable,
                                 self._read).reason

    def test_a_domain_shared_by_two_nodes_belongs_to_both(self):
        self._take('intel-xeon-2s')
        for cpu in (2, 3, 6, 7):
            cache = self.system / f'cpu/cpu{cpu}/cache/index3'
            (cache / 'id').write_text('0\n')
            (cache / 'shared_cpu_list').write_text('0-7\n')
        self.assertEqual({0: (0,), 1: (0,)}, self._read().domains_by_node)

    def test_a_node_with_two_caches_has_two_domains(self):
        self._take('intel-xeon-2s')
        (self.system / 'node/node0/cpulist').write_text('0-7\n')
        shutil.rmtree(self.system / 'node/node1')
        self.assertEqual({0: (0, 1)}, self._read().domains_by_node)

    def test_a_node_with_a_cpu_of_unknown_cache_is_left_out(self):
        self._take('intel-xeon-2s')
        (self.system / 'cpu/cpu2/cache/index3/id').unlink()
        host = self._read()
        self.assertEqual({0: (0,)}, host.domains_by_node)
        self.assertIn('cache/index3/id', host.left_out[1])

    def test_no_cache_id_at_all(self):
        self._take('intel-xeon-2s')
        for file in self.system.glob('cpu/cpu*/cache/index3/id'):
            file.unlink()
        self.assertIn('no cache/index3/id', self._refused())

    def test_a_cache_that_is_no_domain(self):
        self._take('intel-xeon-2s')
        (self.top / 'resctrl/schemata').write_text('MB:0=100\n')
        host = self._read()
        self.assertEqual({0: (0,)}, host.domains_by_node)
        self.assertEqual({1: 'the MB line has no domain 1'}, host.left_out)

    def test_a_node_that_is_no_domain(self):
        self._take('kunpeng920b-openeuler24.03')
        (self.system / 'node/node9').mkdir()
        (self.system / 'node/node9/cpulist').write_text('160-199\n')
        host = self._read()
        self.assertEqual([0, 1, 2, 3], sorted(host.domains_by_node))
        self.assertIn(9, host.left_out)

    def test_no_node_at_all(self):
        self._take('kunpeng920b-openeuler24.03')
        shutil.rmtree(self.top / 'sysfs')
        self.assertIn('there is no node', self._refused())

    def test_a_lowest_cap_of_0_is_nothing_for_libvirt(self):
        self._take('intel-xeon-2s')
        self.assertTrue(self._read().libvirt_reads)
        (self.info / 'MB/min_bandwidth').write_text('0\n')
        host = self._read()
        self.assertEqual((0, False, False), (
            host.min_bandwidth, host.libvirt_reads,
            host.openeuler_libvirt_reads))

    def test_ids_that_are_not_dense_are_nothing_for_libvirt(self):
        self._take('intel-xeon-2s')
        file = self.top / 'resctrl/schemata'
        file.write_text(file.read_text().replace('1= 100', '2= 100'))
        host = self._read()
        self.assertEqual({0: (0,)}, host.domains_by_node)
        self.assertFalse(host.libvirt_reads or host.openeuler_libvirt_reads)

    def test_numbers_that_make_no_sense(self):
        self._take('kunpeng920b-openeuler24.03')
        for name, text in (('min_bandwidth', '-1\n'), ('min_bandwidth', ''),
                           ('bandwidth_gran', 'x'), ('num_closids', '0')):
            file = self.info / 'MB' / name
            before = file.read_text()
            file.write_text(text)
            self.assertIn(f'info/MB/{name} is', self._refused())
            file.write_text(before)
        (self.info / 'MB/num_closids').unlink()
        self.assertIn('no info/MB/num_closids', self._refused())

    def test_occupancy_alone_is_no_bandwidth_monitor(self):
        self._take('intel-xeon-2s')
        (self.info / 'L3_MON/mon_features').write_text('llc_occupancy\n')
        host = self._read()
        self.assertFalse(host.monitored)
        # Each group takes an id all the same.
        self.assertEqual(224, host.num_rmids)
        self.assertEqual(0, host.plan_facts['monitors'])

    def test_the_root_groups_least_priority_is_the_default(self):
        self._take('unknown-lines')
        file = self.top / 'resctrl/schemata'
        file.write_text(file.read_text().replace('1=0000007', '1=0000002'))
        self.assertEqual(2, self._read().priority_default)

    def test_no_root_schemata(self):
        self._take('intel-xeon-2s')
        (self.top / 'resctrl/schemata').unlink()
        self.assertIn('schemata cannot be read', self._refused())


def _snapshot(top):
    return {str(path): (path.read_bytes() if path.is_file() else None,
                        path.lstat().st_mtime_ns)
            for path in sorted(top.rglob('*'))}


_FILES = ('resctrl/schemata', 'resctrl/info/MB/num_closids',
          'resctrl/info/MB/min_bandwidth', 'resctrl/info/MB/bandwidth_gran',
          'resctrl/info/MB/thread_throttle_mode',
          'resctrl/info/MB/delay_linear', 'resctrl/info/MB/features',
          'resctrl/info/MB/max_lim', 'resctrl/mba_MBps_event',
          'resctrl/info/MB_MON/num_rmids', 'resctrl/info/L3/num_closids',
          'resctrl/info/L3/sparse_masks',
          'resctrl/info/L3_MON/mbm_assign_mode',
          'resctrl/info/L3_MON/num_mbm_cntrs',
          'resctrl/info/L3_MON/mon_features',
          'sysfs/devices/system/node/node0/cpulist',
          'sysfs/devices/system/node/node0/access1/initiators/'
          'read_bandwidth',
          'sysfs/devices/system/cpu/cpu0/cache/index3/id',
          'sysfs/devices/system/cpu/cpu0/cache/index3/shared_cpu_list')
_CONTENT = (st.binary(max_size=40)
            | st.text('0123456789-,;=MBPRIL3: \n', max_size=40).map(
                str.encode) | st.none())


class FuzzTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self._top = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def _change(self, top, changes):
        for file, content in changes.items():
            path = top / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content)
            else:  # a directory where a file should be
                path.unlink(missing_ok=True)
                path.mkdir()

    def _restore(self, top, machine, changes):
        for file, content in changes.items():
            path, original = top / file, captured.MACHINES / machine / file
            if content is None:
                path.rmdir()
            else:
                path.unlink()
            if original.exists():
                shutil.copyfile(original, path)

    @settings(max_examples=100, deadline=None)
    @given(st.sampled_from(captured.all_machines()),
           st.dictionaries(st.sampled_from(_FILES), _CONTENT, max_size=4))
    def test_nothing_but_unavailable_is_raised_and_nothing_is_written(
            self, machine, changes):
        top = self._top / machine
        if not top.exists():
            shutil.copytree(captured.MACHINES / machine, top)
        self._change(top, changes)
        before = _snapshot(top)
        try:
            host = resctrl_host.read_host(top / 'resctrl', top / 'sysfs')
        except resctrl_host.ResctrlUnavailable as exc:
            self.assertTrue(exc.reason)
        else:
            self.assertGreaterEqual(host.make_description().control_groups, 0)
        self.assertEqual(before, _snapshot(top))
        self._restore(top, machine, changes)
