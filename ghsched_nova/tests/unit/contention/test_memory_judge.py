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

"""The contention model beside the recording of simulated memory."""

import importlib
import json
from pathlib import Path
import sys
from unittest import mock

from ghsched_placement.contention import server
from ghsched_placement.tests import base

TOP = Path(__file__).parents[4]
with mock.patch('sys.path', [str(TOP / 'tools/judge/memory'), *sys.path]):
    memory_build = importlib.import_module('memory_build')
    memory_compare = importlib.import_module('memory_compare')
    memory_judge = importlib.import_module('memory_judge')

RECORDED = json.loads(memory_judge.RECORDED.read_text(encoding='utf-8'))


def get_latency(name):
    """Mean latency of a recorded cell."""
    return memory_compare.mean(RECORDED['cells'][name], 'latency')


class RecordedTest(base.TestCase):

    def test_every_cell_has_three_runs(self):
        self.assertEqual([cell.name for cell in memory_judge.CELLS],
                         list(RECORDED['cells']))
        self.assertEqual({3}, set(map(len, RECORDED['cells'].values())))

    def test_model_covers_every_figure(self):
        rows = list(memory_compare.rows(RECORDED))
        self.assertEqual(194, len(rows))
        self.assertEqual([], [(row.cell, row.figure) for row in rows
                              if not row.agrees])
        self.assertGreaterEqual(sum(row.holds for row in rows), 192)

    def test_priority_helps_more_inside_the_controller(self):
        for memory in memory_judge.MEMORIES:
            alike, entrance, inside = (
                get_latency(f'{memory} want all{keys}') for keys in (
                    '', ', priority entrance', ', priority controller'))
            self.assertLess(inside, entrance)
            self.assertLess(entrance, alike)

    def test_cap_counted_over_a_window_costs_latency(self):
        even = get_latency('ddr4 want all, cap 50%')
        for window in (1, 10, 100, 1000):
            self.assertGreater(get_latency(
                f'ddr4 want all, cap 50% in windows of {window} us'),
                1.3 * even)

    def test_single_run_is_held_to_its_latencies(self):
        single = {'cells': {
            name: [dict(run, p99_closed=9.0) for run in runs[:1]]
            for name, runs in RECORDED['cells'].items()
            if name.startswith(('ddr4 alone', 'ddr4 want'))}}
        with mock.patch('builtins.print'):
            self.assertIsNone(memory_compare.show(single))
            single['cells']['ddr4 want all, cap 50%'][0]['latency'] = 9.0
            self.assertIn('disagree', memory_compare.show(single))

    def test_guide_has_the_recording(self):
        """tools/contention-tables writes it."""
        self.assertEqual(
            (TOP / 'doc/source/admin/contention-judge.inc').read_text(
                encoding='utf-8'), memory_compare.render(RECORDED))


class FiguresTest(base.TestCase):

    def test_even_services_have_even_percentiles(self):
        services = [[100.0] * 50]
        self.assertEqual(100.0 * memory_judge.CLIENTS,
                         memory_judge.closed_p99(services))
        self.assertEqual(100.0, memory_judge.open_p99(services, 1e9, 1))
        self.assertGreater(memory_judge.open_p99(services, 120.0, 1), 150)

    def test_server_that_cannot_keep_up_has_no_limit(self):
        self.assertAlmostEqual(1.6, server.get_relative_service_time(0.3, 3))
        self.assertAlmostEqual(1.2 * 0.5 / 0.4,
                               server.get_relative_open_loop_p99(0.5, 1.2))
        self.assertEqual(float('inf'), server.get_relative_open_loop_p99(
            0.5, 2))

    def test_interval_grows_with_the_spread(self):
        self.assertEqual((2, 2, 2), memory_judge.interval([2]))
        mean, low, high = memory_judge.interval([1, 2, 3])
        self.assertAlmostEqual(2, mean)
        self.assertAlmostEqual(4.3 / 3 ** 0.5, high - mean, 2)
        self.assertAlmostEqual(mean - low, high - mean)


class BuildTest(base.TestCase):

    def test_insert_needs_exactly_one_line(self):
        self.assertEqual('a\nx\nb\n', memory_build.insert('a\nb\n', 'a', 'x'))
        for text in ('b\n', 'a\na\n'):
            self.assertRaises(memory_build.BuildError, memory_build.insert,
                              text, 'a', 'x')

    def test_configuration_replaces_the_settings_of_a_memory(self):
        self.assertEqual(
            '[timing]\ntCK = 0.4\nCL = 22\n', memory_judge.configuration(
                '[timing]\ntCK = 0.63\nCL = 22\n', {'tCK': 0.4}))

    def test_command_scales_the_requesters_with_the_channels(self):
        (cell,) = [one for one in memory_judge.CELLS
                   if one.name == 'ddr4-4ch want 50%']
        found = memory_judge.command(cell, 'memory', 'x.ini', 2, 100)
        self.assertEqual(['memory', 'x.ini'], found[:2])
        self.assertLessEqual({'servers=32', 'streams=32', 'channels=4',
                              'seed=2', 'cycles=100', 'demand=0.5'},
                             set(found[2:]))
