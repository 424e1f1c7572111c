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

"""The contention model beside the recordings of simulated memory."""

import importlib
import json
from pathlib import Path
import sys
from unittest import mock

from ghsched_nova.lab.contention import server
from ghsched_placement.tests import base

TOP = Path(__file__).parents[5]
with mock.patch('sys.path', [str(TOP / 'tools/judge/memory'), *sys.path]):
    memory_cells = importlib.import_module('memory_cells')
    memory_compare = importlib.import_module('memory_compare')

RECORDED = json.loads(memory_cells.RECORDINGS['DRAMsim3'].read_text(
    encoding='utf-8'))


def get_latency(name):
    """Mean latency of a recorded cell."""
    return memory_compare.mean(RECORDED['cells'][name], 'latency')


class RecordedTest(base.TestCase):

    def test_every_cell_has_three_runs(self):
        self.assertEqual([cell.name for cell in memory_cells.CELLS],
                         list(RECORDED['cells']))
        self.assertEqual({3}, set(map(len, RECORDED['cells'].values())))

    def test_model_covers_every_figure(self):
        rows = list(memory_compare.rows(RECORDED))
        self.assertEqual(197, len(rows))
        self.assertEqual([], [(row.cell, row.figure) for row in rows
                              if not row.agrees])
        self.assertGreaterEqual(sum(row.holds for row in rows), 195)

    def test_priority_helps_more_inside_the_controller(self):
        for memory in memory_cells.MEMORIES:
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

    def test_guide_has_the_recording(self):
        """tools/contention-tables writes it."""
        self.assertEqual(
            (TOP / 'doc/source/contributor/contention-judge.inc').read_text(
                encoding='utf-8'), memory_compare.render('DRAMsim3', RECORDED))

    def test_model_covers_every_figure_of_ramulator2(self):
        recorded = json.loads(memory_cells.RECORDINGS['Ramulator2'].read_text(
            encoding='utf-8'))
        rows = list(memory_compare.rows(recorded))
        self.assertEqual(197, len(rows))
        self.assertEqual([], [(row.cell, row.figure) for row in rows
                              if not row.agrees])
        self.assertEqual(193, sum(row.holds for row in rows))
        self.assertEqual(
            (TOP / 'doc/source/contributor/contention-judge-ramulator2.inc'
             ).read_text(encoding='utf-8'),
            memory_compare.render('Ramulator2', recorded, RECORDED))


class FiguresTest(base.TestCase):

    def test_server_that_cannot_keep_up_has_no_limit(self):
        self.assertAlmostEqual(1.6, server.get_relative_service_time(0.3, 3))
        self.assertAlmostEqual(1.2 * 0.5 / 0.4,
                               server.get_relative_open_loop_p99(0.5, 1.2))
        self.assertEqual(float('inf'), server.get_relative_open_loop_p99(
            0.5, 2))

    def test_interval_grows_with_the_spread(self):
        self.assertEqual((2, 2, 2), memory_cells.interval([2]))
        mean, low, high = memory_cells.interval([1, 2, 3])
        self.assertAlmostEqual(2, mean)
        self.assertAlmostEqual(4.3 / 3 ** 0.5, high - mean, 2)
        self.assertAlmostEqual(mean - low, high - mean)

    def test_figure_that_one_run_lacks_has_no_row(self):
        cells = {name: [dict(run) for run in runs]
                 for name, runs in RECORDED['cells'].items()}
        del cells['ddr4 want 25%'][1]['p99_closed']
        found = {row.figure for row in memory_compare.rows({'cells': cells})
                 if row.cell == 'ddr4 want 25%'}
        self.assertEqual({'latency', 'streams', 'p99_open'}, found)

    def test_table_gives_the_mean_of_dramsim3(self):
        single = {'cells': {name: runs[:1] for name, runs
                            in RECORDED['cells'].items()}}
        reference = {'cells': {'ddr4 want 25%': [{'latency': 71.0},
                                                 {'latency': 72.0}]}}
        text = memory_compare.render('Ramulator2', single, reference)
        self.assertIn('Memory of Ramulator2', text)
        self.assertEqual(1, text.count('; DRAMsim3 71.50)'))
