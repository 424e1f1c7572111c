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


import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.load.load_files import CpuTicks
from ghsched_nova.features.load.load_files import DiskTime
from ghsched_nova.features.load.load_files import RunTimes
from ghsched_nova.features.load import load_rates
from ghsched_nova.features.load.load_rates import GuestCounters
from ghsched_nova.features.load.load_rates import LoadSample
from ghsched_nova.features.load.load_rates import NodeCounters
from ghsched_nova.features.load.load_rates import ThreadCounters
from ghsched_nova.guest.cells import Cell
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.tests import base

SECOND = 10 ** 9
TWO_NODES = {0: NodeCounters(frozenset({0, 1})),
             1: NodeCounters(frozenset({2, 3}))}


def _guest(uuid, host_nodes, runs, cpu=None, **more):
    cell = Cell(0, frozenset(range(len(runs))), 1024 ** 2, host_nodes)
    return GuestCounters(uuid, 1, (cell,), {
        vcpu: ThreadCounters(RunTimes(*run), cpu) for vcpu,
        run in enumerate(runs)},
        **more)


def _compute_load(before, now):
    return load_rates.compute_load(before, now, 1.0)


def _after(seconds, before, now, **more):
    """The record of guests before and after some seconds."""
    return _compute_load(LoadSample(0.0, TWO_NODES, guests=before),
                         LoadSample(seconds, TWO_NODES, guests=now, **more))


class NodeLoadTest(base.TestCase):

    def test_busy_time_of_its_cpus(self):
        found = _compute_load(
            LoadSample(0.0, TWO_NODES,
                       {cpu: CpuTicks(0, 0) for cpu in range(4)}),
            LoadSample(1.0, TWO_NODES, {
                0: CpuTicks(100, 100), 1: CpuTicks(50, 100),
                2: CpuTicks(0, 100), 3: CpuTicks(10, 100)}))
        self.assertEqual([0.75, 0.05],
                         [node.cpu_load for node in found.nodes])

    def test_cpus_that_tell_nothing_are_not_idle(self):
        found = _compute_load(LoadSample(0.0, TWO_NODES, {0: CpuTicks(0, 0)}),
                              LoadSample(1.0, TWO_NODES, {0: CpuTicks(9, 10)}))
        self.assertEqual([0.9, None], [node.cpu_load for node in found.nodes])

    def test_two_that_share_a_cpu_wait_for_one_half(self):
        found = _after(
            10.0,
            (_guest('a', (0,), [(0, 0)]), _guest('b', (0,), [(0, 0)])),
            (_guest('a', (0,), [(5 * SECOND, 5 * SECOND)]),
             _guest('b', (0,), [(5 * SECOND, 5 * SECOND)])))
        self.assertEqual([0.5, None], [node.cpu_wait for node in found.nodes])
        self.assertEqual([(0.5, 0.5)] * 2, [
            (guest.cpu_load, guest.cpu_wait) for guest in found.guests])

    def test_those_that_sleep_do_not_hide_those_that_wait(self):
        busy, idle = [(5 * SECOND, 5 * SECOND)] * 2, [(0, 0)] * 30
        found = _after(10.0, (_guest('a', (0,), [(0, 0)] * 32),),
                       (_guest('a', (0,), busy + idle),))
        self.assertAlmostEqual(0.5, found.nodes[0].cpu_wait)

    def test_next_to_nothing_that_waits_is_no_bottleneck(self):
        found = _after(10.0, (_guest('a', (0,), [(0, 0)]),),
                       (_guest('a', (0,), [(10 ** 6, 10 ** 6)]),))
        self.assertLess(found.nodes[0].cpu_wait, 0.001)

    def test_a_guest_that_has_just_come_is_not_known(self):
        found = _after(10.0, (), (_guest('a', (0,), [(0, 0)]),))
        self.assertIsNone(found.guests[0].cpu_load)
        self.assertIsNone(found.nodes[0].cpu_wait)

    def test_a_guest_that_was_started_again_begins_again(self):
        old = _guest('a', (0,), [(9 * SECOND, 0)])
        new = dataclasses.replace(_guest('a', (0,), [(SECOND, 0)]), id=2)
        self.assertIsNone(_after(10.0, (old,), (new,)).guests[0].cpu_load)

    def test_a_guest_that_floats_counts_where_it_ran(self):
        found = _after(10.0, (_guest('a', (), [(0, 0)], cpu=3),),
                       (_guest('a', (), [(SECOND, SECOND)], cpu=3),))
        self.assertEqual([None, 0.1],
                         [node.cpu_wait for node in found.nodes])
        self.assertIsNone(found.guests[0].host_node)

    def test_memory_that_is_elsewhere(self):
        found = _after(1.0, (), (_guest(
            'a', (0,), [(0, 0)], memory={0: 300, 1: 100}),))
        self.assertEqual(0.25, found.guests[0].remote)
        self.assertEqual([0.25, None], [node.remote for node in found.nodes])

    def test_the_guest_that_waits_longest_for_memory(self):
        found = _after(
            10.0, (_guest('a', (0,), [(0, 0)], stalled=0),
                   _guest('b', (0,), [(0, 0)], stalled=0)),
            (_guest('a', (0,), [(0, 0)], stalled=10 ** 6),
             _guest('b', (0,), [(0, 0)], stalled=10 ** 5)))
        self.assertEqual([0.1, None],
                         [node.memory_wait for node in found.nodes])

    def test_where_nobody_of_the_host_waits_no_node_does(self):
        found = _compute_load(LoadSample(0.0, TWO_NODES, stalled=5),
                              LoadSample(1.0, TWO_NODES, stalled=5))
        self.assertEqual([0.0, 0.0],
                         [node.memory_wait for node in found.nodes])

    def test_the_busiest_device_of_a_node(self):
        node_of = {'a': 0, 'b': 0}
        found = _compute_load(
            LoadSample(0.0, TWO_NODES, disks={'a': DiskTime(0, 0),
                                              'b': DiskTime(0, 0)},
                       disk_node=node_of),
            LoadSample(1.0, TWO_NODES, disks={'a': DiskTime(500, 4500),
                                              'b': DiskTime(800, 800)},
                       disk_node=node_of))
        self.assertEqual([(0.8, 4.0), (None, None)],
                         [(node.io_load, node.io_wait)
                          for node in found.nodes])

    def test_bandwidth_by_what_the_node_can_deliver(self):
        found = load_rates.compute_load(
            LoadSample(0.0, TWO_NODES), LoadSample(1.0, TWO_NODES), 1.0,
            load_rates.MeasuredBandwidth({0: 50.0, 1: 5.0}, {0: 100.0}))
        self.assertEqual([0.5, None],
                         [node.memory_load for node in found.nodes])

    @given(st.lists(st.tuples(st.integers(0, 10 * SECOND),
                              st.integers(0, 10 * SECOND)),
                    min_size=1, max_size=8))
    def test_waiting_is_between_the_least_and_the_most(self, runs):
        found = _after(10.0, (_guest('a', (0,), [(0, 0)] * len(runs)),),
                       (_guest('a', (0,), runs),)).nodes[0].cpu_wait
        waits = [wait / SECOND / 10 for _run, wait in runs]
        self.assertLessEqual(min(waits) - 1e-9, found)
        self.assertLessEqual(found, max(waits) + 1e-9)

    @given(st.integers(0, 1000), st.integers(0, 1000),
           st.integers(0, 1000), st.integers(0, 1000))
    def test_no_figure_is_below_zero(self, one, two, three, four):
        nodes = {0: NodeCounters(frozenset({0}), vmstat={
            'pgsteal_kswapd': one, 'workingset_refault': two})}
        later = {0: NodeCounters(frozenset({0}), vmstat={
            'pgsteal_kswapd': three, 'workingset_refault': four})}
        found = _compute_load(
            LoadSample(0.0, nodes, {0: CpuTicks(one, one + two)},
                       {'a': DiskTime(one, two)}, {'a': 0}, one,
                       (_guest('a', (0,), [(one, two)], stalled=three),)),
            LoadSample(1.0, later, {0: CpuTicks(three, three + four)},
                       {'a': DiskTime(three, four)}, {'a': 0}, four,
                       (_guest('a', (0,), [(three, four)], stalled=one),)))
        for node in (*found.nodes, *found.guests):
            for name, value in dataclasses.asdict(node).items():
                if isinstance(value, (int, float)):
                    self.assertGreaterEqual(value, 0, name)


class MeanTest(base.TestCase):

    @staticmethod
    def _load(value, period=60.0):
        return HostLoad(0.0, period, (HostNodeLoad(0, cpu_load=value),))

    def test_nothing_is_smoothed_without_a_time(self):
        now = self._load(1.0)
        self.assertEqual(now, load_rates.smooth_load(self._load(0.0), now, 0))

    def test_unknown_values_are_not_invented(self):
        found = load_rates.smooth_load(self._load(1.0), self._load(None), 60)
        self.assertIsNone(found.nodes[0].cpu_load)
        found = load_rates.smooth_load(self._load(None), self._load(0.5), 60)
        self.assertEqual(0.5, found.nodes[0].cpu_load)

    @given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 600),
           st.floats(1, 600))
    def test_it_is_between_what_was_and_what_is(self, old, new, period,
                                                seconds):
        found = load_rates.smooth_load(
            self._load(old), self._load(new, period), seconds).nodes[0]
        self.assertLessEqual(min(old, new) - 1e-9, found.cpu_load)
        self.assertLessEqual(found.cpu_load, max(old, new) + 1e-9)

    def test_two_short_periods_weigh_as_one_long_one(self):
        once = load_rates.smooth_load(
            self._load(0.0), self._load(1.0, 60.0), 90
        )
        half = self._load(1.0, 30.0)
        twice = load_rates.smooth_load(
            load_rates.smooth_load(self._load(0.0), half, 90), half, 90)
        self.assertAlmostEqual(once.nodes[0].cpu_load,
                               twice.nodes[0].cpu_load)
