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
import re
import sys
from unittest import mock

import fixtures

from ghsched_nova.lab.contention import server
from ghsched_placement.tests import base

TOP = Path(__file__).parents[4]
with mock.patch('sys.path', [str(TOP / 'tools/judge/memory'), *sys.path]):
    memory_build = importlib.import_module('memory_build')
    memory_compare = importlib.import_module('memory_compare')
    memory_judge = importlib.import_module('memory_judge')
    ramulator2 = importlib.import_module('ramulator2')
    simulators = importlib.import_module('simulators')
    toolchain = importlib.import_module('toolchain')

DRAMSIM3, RAMULATOR2 = (simulators.SIMULATORS[name]
                        for name in ('dramsim3', 'ramulator2'))

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
        self.assertEqual(197, len(rows))
        self.assertEqual([], [(row.cell, row.figure) for row in rows
                              if not row.agrees])
        self.assertGreaterEqual(sum(row.holds for row in rows), 195)

    def test_file_is_what_a_run_writes(self):
        for simulator in simulators.SIMULATORS.values():
            text = simulator.recording.read_text(encoding='utf-8')
            self.assertEqual(text, memory_judge.render_recording(
                json.loads(text)))

    def test_priority_helps_more_inside_the_controller(self):
        for memory in simulators.MEMORIES:
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
                encoding='utf-8'), memory_compare.render(DRAMSIM3, RECORDED))

    def test_model_covers_every_figure_of_ramulator2(self):
        recorded = json.loads(RAMULATOR2.recording.read_text(
            encoding='utf-8'))
        rows = list(memory_compare.rows(recorded))
        self.assertEqual(197, len(rows))
        self.assertEqual([], [(row.cell, row.figure) for row in rows
                              if not row.agrees])
        self.assertEqual(193, sum(row.holds for row in rows))
        self.assertEqual(
            (TOP / 'doc/source/admin/contention-judge-ramulator2.inc'
             ).read_text(encoding='utf-8'),
            memory_compare.render(RAMULATOR2, recorded, RECORDED))


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

    def test_runs_with_few_requests_have_no_closed_p99(self):
        alone = {'latency_ns': 100.0, 'servers': 0.1, 'streams': 0.0,
                 'services_ns': [[100.0] * 40] * 2}
        self.assertEqual(1.0, memory_judge.figures(
            alone, alone, 1)['p99_closed'])
        few = dict(alone, services_ns=[[100.0] * 40, [100.0] * 39])
        self.assertNotIn('p99_closed', memory_judge.figures(few, alone, 1))
        self.assertNotIn('p99_closed', memory_judge.figures(alone, few, 1))

    def test_figure_that_one_run_lacks_has_no_row(self):
        cells = {name: [dict(run) for run in runs]
                 for name, runs in RECORDED['cells'].items()}
        del cells['ddr4 want 25%'][1]['p99_closed']
        found = {row.figure for row in memory_compare.rows({'cells': cells})
                 if row.cell == 'ddr4 want 25%'}
        self.assertEqual({'latency', 'streams', 'p99_open'}, found)


class BuildTest(base.TestCase):

    def test_insert_needs_exactly_one_line(self):
        self.assertEqual('a\nx\nb\n', memory_build.insert('a\nb\n', 'a', 'x'))
        for text in ('b\n', 'a\na\n'):
            self.assertRaises(memory_build.BuildError, memory_build.insert,
                              text, 'a', 'x')

    def test_configuration_replaces_the_settings_of_a_memory(self):
        self.assertEqual(
            '[timing]\ntCK = 0.4\nCL = 22\n', simulators.configuration(
                '[timing]\ntCK = 0.63\nCL = 22\n', {'tCK': 0.4}))

    def test_command_scales_the_requesters_with_the_channels(self):
        (cell,) = [one for one in memory_judge.CELLS
                   if one.name == 'ddr4-4ch want 50%']
        found = memory_judge.command(cell, 'memory', 'x.ini', 2, 100)
        self.assertEqual(['memory', 'x.ini'], found[:2])
        self.assertLessEqual({'servers=32', 'streams=32', 'channels=4',
                              'seed=2', 'cycles=100', 'demand=0.5'},
                             set(found[2:]))


class ToolchainTest(base.TestCase):

    def _refuse(self, check, *given, installed=True, **printed):
        """Return the error of a check of a program that prints this."""
        with mock.patch('shutil.which', return_value=installed or None), \
                mock.patch('subprocess.run',
                           return_value=mock.Mock(**printed)):
            return str(self.assertRaises(toolchain.ToolchainError, check,
                                         *given))

    def test_missing_compiler_is_refused_by_name(self):
        self.assertIn('g++ is not installed', self._refuse(
            toolchain.check_compiler, 'c++20', installed=False))

    def test_old_compiler_is_refused_with_its_version(self):
        error = self._refuse(
            toolchain.check_compiler, 'c++20', returncode=1,
            stdout='g++ (Debian) 8.3.0\n', stderr='unrecognized option\n')
        self.assertIn('g++ 8.3.0 is too old', error)
        self.assertIn('c++20: unrecognized option', error)

    def test_old_cmake_is_refused_with_both_versions(self):
        for version in ('3.9.6', '2.8'):
            self.assertIn(f'cmake {version} is too old: the build needs 3.14',
                          self._refuse(toolchain.check_cmake,
                                       stdout=f'cmake version {version}\n'))
        self.assertIn('without a version', self._refuse(
            toolchain.check_cmake, stdout=''))

    def test_cmake_that_is_new_enough_is_accepted(self):
        for version in ('3.14.0', '4.0.2'):
            with mock.patch('shutil.which', return_value='cmake'), \
                    mock.patch('subprocess.run', return_value=mock.Mock(
                        stdout=f'cmake version {version}\n')):
                toolchain.check_cmake()

    def test_dramsim3_needs_a_compiler(self):
        with mock.patch('shutil.which', return_value=None):
            self.assertRaises(toolchain.ToolchainError, DRAMSIM3.build,
                              'tree', self.useFixture(fixtures.TempDir()).path)


class CommandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.calls = []
        for name, simulator in simulators.SIMULATORS.items():
            self.useFixture(fixtures.MockPatchObject(
                simulator, 'build', lambda tree, directory, name=name:
                self.calls.append(('build', name, tree, directory))))
        self.useFixture(fixtures.MockPatchObject(
            memory_judge, 'run', lambda simulator, directory, *rest:
            self.calls.append(('run', simulator.title, rest[-1]))))
        self.compare = self.useFixture(fixtures.MockPatchObject(
            memory_judge, 'compare', return_value=None)).mock

    def test_all_builds_both_simulators_before_it_runs_them(self):
        self.assertRaises(SystemExit, memory_judge.main, [
            'all', 'tree', '/out', '--ramulator2', 'second',
            '--out', 'a.json'])
        self.assertEqual(
            [('build', 'dramsim3', Path('tree'), Path('/out')),
             ('build', 'ramulator2', Path('second'), Path('/out/ramulator2')),
             ('run', 'DRAMsim3', Path('a.json')),
             ('run', 'Ramulator2', Path('a_ramulator2.json'))], self.calls)
        self.assertEqual(
            [mock.call(Path('a.json'), None),
             mock.call(Path('a_ramulator2.json'), Path('a.json'))],
            self.compare.call_args_list)

    def test_all_writes_the_recording_of_each_simulator(self):
        self.assertRaises(SystemExit, memory_judge.main, [
            'all', 'tree', '/out', '--ramulator2', 'second'])
        self.assertEqual([DRAMSIM3.recording, RAMULATOR2.recording],
                         [call[-1] for call in self.calls[2:]])

    def test_all_fails_with_the_errors_of_both_simulators(self):
        self.compare.side_effect = ['1 figures disagree', '2 figures disagree']
        error = self.assertRaises(SystemExit, memory_judge.main, [
            'all', 'tree', '/out', '--ramulator2', 'second'])
        self.assertEqual('1 figures disagree; 2 figures disagree', error.code)

    def test_second_simulator_is_only_for_all_with_the_first(self):
        for given in (['run', '/out'],
                      ['all', 'tree', '/out', '--simulator', 'ramulator2']):
            with mock.patch('sys.stderr'):
                error = self.assertRaises(SystemExit, memory_judge.main,
                                          [*given, '--ramulator2', 'second'])
            self.assertEqual(2, error.code)
        self.assertEqual([], self.calls)


class Ramulator2Test(base.TestCase):

    def test_library_that_is_missing_is_built_in_a_copy(self):
        tree = Path(self.useFixture(fixtures.TempDir()).path)
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (tree / 'src').mkdir()
        for offline in ('OFF', 'ON'):
            with mock.patch('subprocess.run') as run, \
                    mock.patch.object(toolchain, 'check_cmake'), \
                    mock.patch.object(toolchain, 'check_compiler'):
                ramulator2.link(tree, directory)
            configure, build, link = (call.args[0]
                                      for call in run.call_args_list)
            copy = directory / 'ramulator2'
            self.assertTrue((copy / 'src').exists())
            self.assertIn(f'-DFETCHCONTENT_FULLY_DISCONNECTED={offline}',
                          configure)
            self.assertIn(f'{copy}/build', build)
            self.assertIn(f'{copy}/{ramulator2.LIBRARY}', link)
            for name in ('yaml-cpp', 'fmt'):
                (tree / 'ext' / name).mkdir(parents=True, exist_ok=True)
                (tree / 'ext' / name / 'CMakeLists.txt').touch()
        self.assertEqual(['ext', 'src'],
                         sorted(path.name for path in tree.iterdir()))

    def test_library_that_lacks_one_dependency_is_built_online(self):
        tree, directory = (Path(self.useFixture(fixtures.TempDir()).path)
                           for _ in range(2))
        (tree / 'ext' / 'yaml-cpp').mkdir(parents=True)
        (tree / 'ext' / 'yaml-cpp' / 'CMakeLists.txt').touch()
        with mock.patch('subprocess.run') as run, \
                mock.patch.object(toolchain, 'check_cmake'):
            ramulator2.build_library(tree, directory)
        self.assertIn('-DFETCHCONTENT_FULLY_DISCONNECTED=OFF',
                      run.call_args_list[0].args[0])

    def test_library_that_is_missing_needs_cmake(self):
        tree = self.useFixture(fixtures.TempDir()).path
        with mock.patch.object(toolchain, 'check_compiler'), \
                mock.patch('shutil.which', return_value=None):
            error = self.assertRaises(toolchain.ToolchainError,
                                      ramulator2.link, tree, tree)
        self.assertIn('cmake is not installed', str(error))

    def test_link_compiles_only_files_of_the_judge(self):
        tree = self.useFixture(fixtures.TempDir()).path
        Path(tree, ramulator2.LIBRARY).touch()
        with mock.patch('subprocess.run') as run, \
                mock.patch.object(toolchain, 'check_compiler') as check:
            ramulator2.link(tree, tree)
        check.assert_called_once_with('c++20')
        (command,) = run.call_args.args
        self.assertEqual(
            {'memory.cc', 'ramulator2.cc'},
            {Path(word).name for word in command if word.endswith('.cc')})
        self.assertIn(f'{tree}/{ramulator2.LIBRARY}', command)

    def test_configuration_has_a_controller_for_each_channel(self):
        package = mock.MagicMock()
        package.dram.DDR5.return_value.resolve.return_value = (
            {}, {'nBL': 8})
        with mock.patch.object(importlib, 'import_module',
                               return_value=package):
            found = ramulator2.get_configuration('tree', 'ddr5', 2)
        package.dram.DDR5.assert_called_once_with(
            org_preset='DDR5_16Gb_x8', timing_preset='DDR5_4800C', rank=2)
        (call,) = package.memory_system.GenericDRAM.call_args_list
        self.assertEqual(2, len(call.kwargs['controllers']))
        self.assertEqual({'line_cycles', 'frontend', 'memory_system'},
                         set(found))
        self.assertEqual(8, found['line_cycles'])
        package.row_policy.ClosedCAP.assert_not_called()

    def test_rows_are_closed_where_the_memory_says_so(self):
        package = mock.MagicMock()
        package.dram.DDR4.return_value.resolve.return_value = (
            {}, {'nBL': 4})
        with mock.patch.object(importlib, 'import_module',
                               return_value=package):
            ramulator2.get_configuration('tree', 'ddr4-closed', 1)
        self.assertIs(
            package.row_policy.ClosedCAP.return_value,
            package.controller.GenericDDR.call_args.kwargs['row_policy'])

    def test_scheduler_follows_the_classes_inside_the_controller(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / 'ddr4.json').write_text(json.dumps(
            {'memory_system': {'controllers': [
                {'scheduler': {'impl': 'FRFCFS'}}]}}), encoding='utf-8')
        for options, expected in (
                ({'server_priority': 5}, 'FRFCFS'),
                ({'server_priority': 5, 'inside': 1},
                 ramulator2.SERVICE_CLASS_SCHEDULER)):
            path = RAMULATOR2.write_configuration(memory_judge.Cell(
                'ddr4 x', options=options), directory, directory)
            (controller,) = json.loads(path.read_text(encoding='utf-8'))[
                'memory_system']['controllers']
            self.assertEqual({'impl': expected}, controller['scheduler'])

    def test_cells_are_those_of_the_memories_of_ramulator2(self):
        def choose(pattern):
            return [cell.name for cell in memory_judge.choose_cells(
                RAMULATOR2, re.compile(pattern))]
        self.assertEqual(['ddr4-closed alone', 'ddr4-closed want 25%',
                          'ddr5 alone', 'ddr5 want 25%'],
                         choose('^ddr(5|4-closed) want 25%'))
        self.assertEqual(set(ramulator2.PRESETS), {
            cell.memory for cell in memory_judge.CELLS
            if cell.name in choose('')})

    def test_table_gives_the_mean_of_dramsim3(self):
        single = {'cells': {name: runs[:1] for name, runs
                            in RECORDED['cells'].items()}}
        reference = {'cells': {'ddr4 want 25%': [{'latency': 71.0},
                                                 {'latency': 72.0}]}}
        text = memory_compare.render(RAMULATOR2, single, reference)
        self.assertIn('Memory of Ramulator2', text)
        self.assertEqual(1, text.count('; DRAMsim3 71.50)'))
        with mock.patch('builtins.print') as printed:
            memory_compare.show(single, reference)
        self.assertEqual(1, sum('  71.50' in call.args[0]
                                for call in printed.call_args_list))
