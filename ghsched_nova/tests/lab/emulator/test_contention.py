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


import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import contention
from ghsched_nova.lab.emulator import machines
from ghsched_nova.tests.lab.emulator import test_kernel
from ghsched_placement.tests import base

NODES = '0=0-1;1=2-3'
NOISY = {'capacity_mb': 100000,
         'groups': {'noisy': {'0': 400000}, 'victim': {'0': 20000}}}


class ParseTest(base.TestCase):
    machine = machines.build('openeuler66', NODES)

    def test_good(self):
        load = contention.parse_text(json.dumps({
            'capacity_mb': 9, 'link_mb': 5, 'groups': {'a': {'0': 1}},
            'tasks': {'7': {'1>0': 2.5}}, 'iommu_groups': {'3': {}},
        }), self.machine)
        self.assertEqual(contention.Load(
            9.0, 5.0, {'a': {(0, 0): 1.0}}, {7: {(1, 0): 2.5}}, {3: {}}),
            load)

    def test_no_text_is_no_load(self):
        self.assertIsNone(contention.parse_text(' \n', self.machine))

    def test_mistakes_are_named(self):
        for spec, reason in (
                ([], 'want one JSON object'),
                ({}, 'capacity_mb: want MB/s'),
                ({'capacity_mb': 0}, 'capacity_mb: want MB/s, a number from'),
                ({'capacity_mb': 9, 'x': 1}, 'x: unknown key'),
                ({'capacity_mb': 9, 'groups': 1}, 'groups: want an object'),
                ({'capacity_mb': 9, 'groups': {'a': 1}}, 'groups.a: want an'),
                ({'capacity_mb': 9, 'groups': {'a': {'0>': 1}}},
                 'groups.a.0>: want NODE or NODE>NODE'),
                ({'capacity_mb': 9, 'groups': {'a': {'0>2': 1}}},
                 'groups.a.0>2: the machine has no such node'),
                ({'capacity_mb': 9, 'groups': {'a': {'0': -1}}},
                 'groups.a.0: want MB/s, a number from 0'),
                ({'capacity_mb': 9, 'tasks': {'a': {}}},
                 'tasks.a: want a number')):
            error = self.assertRaises(
                contention.BadLoad, contention.parse_text, json.dumps(spec),
                self.machine)
            self.assertIn(reason, str(error))

    @given(st.text() | st.recursive(
        st.none() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(['capacity_mb', 'groups', 'tasks', '0', '1>0']),
            inner, max_size=3)).map(json.dumps))
    def test_junk_is_taken_or_refused_and_nothing_else(self, text):
        try:
            contention.parse_text(text, self.machine)
        except contention.BadLoad as error:
            self.assertTrue(str(error))


class ControlTest(base.TestCase):

    def control(self, dialect, **lines):
        machine = machines.build(dialect, NODES)
        load = contention.Load(100000, 100000)
        node = machine.nodes[0]
        domains = {'l3': [cache.id for cache in node.caches], 'node': [0]}
        values = {name: dict.fromkeys(
            domains[machine.line(name).scope], value)
            for name, value in lines.items()}
        found = contention.control(machine, load, values, node)
        return (found.minimum, found.maximum, found.hardlimit,
                found.priority)

    def test_no_line_does_nothing(self):
        for dialect in machines.DIALECTS:
            self.assertEqual((0, 100, True, 3), self.control(dialect))

    def test_lines_of_openeuler(self):
        self.assertEqual((20, 60, False, 7), self.control(
            'openeuler66', MB=60, MBMIN=20, MBHDL=0, MBPRI=7))
        self.assertEqual((20, 60, False, 7), self.control(
            'openeuler510', MBMAX=60, MBMIN=20, MBHDL=0, MBPRI=7))

    def test_a_cap_that_is_a_bandwidth(self):
        # 80 eighths of a GB/s on each of two caches.
        self.assertEqual((0, 20, True, 3), self.control('amd', MB=80))
        self.assertEqual((0, 100, True, 3), self.control('amd', MB=2048))

    def test_a_soft_cap_of_nvidia(self):
        self.assertEqual((0, 60, False, 3), self.control(
            'nvidia', MB=60, MB_HLIM=0))


class DrivenTestCase(test_kernel.ModelTestCase):
    spec = NOISY

    def setUp(self):
        super().setUp()
        for group in 'noisy', 'victim':
            self.model.mkdir(f'/{group}')
        self.now += 1

    def make(self, **more):
        self.load = None
        model = super().make(load=lambda: self.load, **more)
        self.give(self.spec, model.machine)
        return model

    def give(self, spec, machine=None):
        self.load = spec and contention.parse(
            spec, machine or self.model.machine)

    def seconds(self, path, count=1):
        """Return the rate of a counter, in MB/s."""
        before = int(self.model.read(path))
        self.now += count
        return (int(self.model.read(path)) - before) / count / 1e6


class RateTest(DrivenTestCase):
    """openEuler 6.6: the file shows MB/s."""

    def rate(self, group, node=0):
        return int(self.model.read(
            f'/{group}/mon_data/mon_MB_{node:02d}/mbm_total_bytes'))

    def test_a_noisy_group_takes_what_others_would_have(self):
        self.assertEqual(4761, self.rate('victim'))
        self.assertEqual(95238, self.rate('noisy'))
        self.assertEqual(0, self.rate('victim', 1))
        self.give({'capacity_mb': 100000,
                   'groups': {'victim': {'0': 20000}}})
        self.assertEqual(20000, self.rate('victim'))

    def test_each_control_gives_it_back(self):
        for group, line, victim, noisy in (
                ('victim', 'MBMIN:0=20', 20000, 80000),
                ('victim', 'MBPRI:0=7', 20000, 80000),
                ('noisy', 'MB:0=50', 20000, 50000),
                ('noisy', 'MB:0=50\nMBHDL:0=0', 20000, 80000)):
            model, self.model = self.model, self.make()
            for name in 'noisy', 'victim':
                self.model.mkdir(f'/{name}')
            self.model.write(f'/{group}/schemata', f'{line}\n')
            self.assertEqual((victim, noisy),
                             (self.rate('victim'), self.rate('noisy')))
            self.model = model

    def test_a_task_counts_for_its_group(self):
        self.threads.add(11)
        self.give({'capacity_mb': 100000, 'tasks': {
            '11': {'1': 700}, '12': {'1': 900}}})
        self.assertEqual((700, 0), (self.rate('', 1), self.rate('noisy', 1)))
        self.model.write('/noisy/tasks', '11')
        self.assertEqual((0, 700), (self.rate('', 1), self.rate('noisy', 1)))
        del self.threads.samples[11]
        self.assertEqual(0, self.rate('noisy', 1))

    def test_a_device_counts_for_the_group_that_it_was_bound_to(self):
        self.give({'capacity_mb': 100000, 'iommu_groups': {'17': {'0': 300}}})
        self.assertEqual((300, 0), (self.rate(''), self.rate('victim')))
        self.model.write('/victim/tasks', 'iommu_group:17')
        self.assertEqual((0, 300), (self.rate(''), self.rate('victim')))

    def test_a_monitor_group_is_part_of_its_control_group(self):
        self.model.mkdir('/victim/mon_groups/m')
        self.give({'capacity_mb': 100000, 'groups': {
            'victim': {'0': 30}, 'victim/mon_groups/m': {'0': 12}}})
        self.assertEqual((42, 12), (self.rate('victim'),
                                    self.rate('victim/mon_groups/m')))

    def test_remote_traffic_is_seen_at_the_memory(self):
        self.give({'capacity_mb': 100000, 'link_mb': 4000,
                   'groups': {'noisy': {'0>1': 9000}}})
        self.assertEqual((0, 4000),
                         (self.rate('noisy'), self.rate('noisy', 1)))

    def test_busy_threads_move_nothing_next_to_a_load(self):
        self.threads.add(11, cpu=2)
        self.model.write('/noisy/tasks', '11')
        self.threads.work(11, 1)
        self.now += 1
        self.assertEqual(0, self.rate('noisy', 1))
        self.give(None)
        self.threads.work(11, 1)
        self.now += 1
        self.assertEqual(0, self.rate('victim'))
        self.assertEqual(4000, self.rate('noisy', 1))


class CounterTest(DrivenTestCase):
    """Intel: the files count bytes."""

    dialect = 'intel'
    path = '/victim/mon_data/mon_L3_00/mbm_total_bytes'

    def test_a_counter_goes_on_at_the_rate_of_the_model(self):
        self.assertAlmostEqual(4761.9, self.seconds(self.path), delta=0.1)
        self.model.write('/noisy/schemata', 'MB:0=50\n')
        self.assertAlmostEqual(20000, self.seconds(self.path, 3), delta=0.1)

    def test_traffic_before_a_command_counts_under_earlier_limits(self):
        before = int(self.model.read(self.path))
        self.now += 1
        self.model.write('/noisy/schemata', 'MB:0=50\n')
        self.now += 1
        moved = int(self.model.read(self.path)) - before
        self.assertAlmostEqual(24761.9, moved / 1e6, delta=0.1)

    def test_a_counter_never_goes_back(self):
        before = self.seconds(self.path)
        self.give(None)
        self.assertEqual(0, self.seconds(self.path))
        self.assertGreater(before, 0)

    def test_remote_traffic_is_seen_at_the_cache_and_is_not_local(self):
        self.give({'capacity_mb': 100000, 'groups': {
            'victim': {'0>1': 500, '0': 100}}})
        self.assertAlmostEqual(600, self.seconds(self.path), delta=0.1)
        self.assertAlmostEqual(
            100, self.seconds(self.path.replace('total', 'local')), delta=0.1)


class AssignedCounterTest(DrivenTestCase):
    dialect = 'mpam'

    def test_an_assigned_counter_counts_the_load(self):
        names = self.model.listdir('/victim/mon_data')
        path = f'/victim/mon_data/{min(names)}/mbm_total_bytes'
        self.assertAlmostEqual(4761.9, self.seconds(path), delta=0.1)
