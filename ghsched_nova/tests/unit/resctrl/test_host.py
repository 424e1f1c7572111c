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
from hypothesis import settings
from hypothesis import strategies as st
import testtools

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.tests.unit.resctrl import base
from ghsched_placement import names

ALL = frozenset(name for name in names.CAPABILITY_TRAITS
                if name.startswith('MEM_BW'))


class MachinesTestCase(testtools.TestCase):

    def test_kunpeng_920b(self):
        host = base.read_machine('kunpeng920b-openeuler24.03')
        self.assertEqual(dialects.OPENEULER_66, host.dialect)
        self.assertEqual((32, 128, 1, 1, 3, True), (
            host.num_closids, host.num_rmids, host.min_bandwidth,
            host.granularity, host.priority_default, host.monitored))
        self.assertEqual({node: (node,) for node in range(4)},
                         host.domains_by_node)
        described = host.description(reserved_groups=1)
        self.assertEqual(((0, 1, 2, 3), 30, ALL), (
            described.nodes, described.control_groups,
            described.capabilities))

    def test_intel_xeon(self):
        host = base.read_machine('intel-xeon-2s')
        self.assertEqual(dialects.INTEL, host.dialect)
        # info/L3 has 16 control groups, info/MB has 8: the least counts.
        self.assertEqual((8, 224, 10, 10, None), (
            host.num_closids, host.num_rmids, host.min_bandwidth,
            host.granularity, host.priority_default))
        self.assertEqual({0: (0,), 1: (1,)}, host.domains_by_node)
        self.assertEqual(
            {'MEM_BW_MAX', 'MEM_BW_HARDLIMIT', 'MEM_BW_MONITOR'},
            host.description().capabilities)

    def test_unknown_lines_do_no_harm(self):
        host = base.read_machine('unknown-lines')
        self.assertEqual(16, host.num_closids)
        self.assertEqual(7, host.priority_default)
        self.assertIsNone(host.dialect.knob('minimum'))
        self.assertNotIn('MEM_BW_MIN', host.description().capabilities)
        self.assertEqual({0: (0,), 1: (1,)}, host.domains_by_node)
        self.assertEqual({2: 'it has no CPU'}, host.left_out)

    def test_the_others_are_refused_with_a_reason(self):
        for machine, reason in (
                ('intel-no-mba', 'no control of memory bandwidth'),
                ('intel-mba-mbps', 'outside 1..100'),
                ('amd-epyc', 'no info/MB/thread_throttle_mode'),
                ('arm-mainline', 'no info/MB/thread_throttle_mode'),
                ('kunpeng920-openeuler22.03', 'info/MB/features'),
                ('not-there', 'is resctrl mounted?')):
            exc = self.assertRaises(resctrl_host.ResctrlUnavailable,
                                    base.read_machine, machine)
            self.assertIn(reason, exc.reason)
            self.assertIn(str(base.MACHINES / machine), exc.reason)


class DescriptionTestCase(testtools.TestCase):

    def test_control_groups_are_never_negative(self):
        host = base.openeuler(num_closids=4)
        for reserved, left in ((0, 3), (3, 0), (9, 0)):
            self.assertEqual(left, host.description(reserved).control_groups)

    def test_no_monitor_no_trait(self):
        host = base.openeuler(monitored=False)
        self.assertEqual(ALL - {'MEM_BW_MONITOR'},
                         host.description().capabilities)


class ChangedTestCase(testtools.TestCase):
    """One captured machine, with one thing changed."""

    def setUp(self):
        super().setUp()
        self.top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.top)

    def _take(self, machine):
        shutil.copytree(base.MACHINES / machine, self.top,
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

    def test_numbers_that_libvirt_would_not_take(self):
        self._take('kunpeng920b-openeuler24.03')
        for name, text in (('min_bandwidth', '0\n'), ('min_bandwidth', ''),
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
        self.assertEqual(0, host.num_rmids)

    def test_the_root_groups_least_priority_is_the_default(self):
        self._take('unknown-lines')
        file = self.top / 'resctrl/schemata'
        file.write_text(file.read_text().replace('1=0000007', '1=0000002'))
        self.assertEqual(2, self._read().priority_default)

    def test_no_root_schemata(self):
        self._take('intel-xeon-2s')
        (self.top / 'resctrl/schemata').unlink()
        self.assertIn('schemata can not be read', self._refused())


def _snapshot(top):
    return {str(path): (path.read_bytes() if path.is_file() else None,
                        path.lstat().st_mtime_ns)
            for path in sorted(top.rglob('*'))}


_FILES = ('resctrl/schemata', 'resctrl/info/MB/num_closids',
          'resctrl/info/MB/min_bandwidth', 'resctrl/info/MB/bandwidth_gran',
          'resctrl/info/MB/thread_throttle_mode',
          'resctrl/info/MB_MON/num_rmids', 'resctrl/info/L3/num_closids',
          'resctrl/info/L3_MON/mon_features',
          'sysfs/devices/system/node/node0/cpulist',
          'sysfs/devices/system/cpu/cpu0/cache/index3/id',
          'sysfs/devices/system/cpu/cpu0/cache/index3/shared_cpu_list')
_CONTENT = (st.binary(max_size=40)
            | st.text('0123456789-,;=MBPRIL3: \n', max_size=40).map(
                str.encode) | st.none())


class FuzzTestCase(testtools.TestCase):

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(('intel-xeon-2s', 'kunpeng920b-openeuler24.03',
                            'unknown-lines')),
           st.dictionaries(st.sampled_from(_FILES), _CONTENT, max_size=4))
    def test_nothing_but_unavailable_is_raised_and_nothing_is_written(
            self, machine, changes):
        with tempfile.TemporaryDirectory() as name:
            top = Path(name)
            shutil.copytree(base.MACHINES / machine, top, dirs_exist_ok=True)
            for file, content in changes.items():
                path = top / file
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is not None:
                    path.write_bytes(content)
                else:  # a directory where a file should be
                    path.unlink(missing_ok=True)
                    path.mkdir()
            before = _snapshot(top)
            try:
                host = resctrl_host.read_host(top / 'resctrl', top / 'sysfs')
            except resctrl_host.ResctrlUnavailable as exc:
                self.assertTrue(exc.reason)
            else:
                self.assertGreaterEqual(host.description().control_groups, 0)
            self.assertEqual(before, _snapshot(top))
