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

"""``ghsched-bench``, without measuring anything that takes long."""

import io
import json
from pathlib import Path
from unittest import mock

import fixtures
import lxml.etree
import lxml.html

from ghsched_nova.lab.bench import cli
from ghsched_nova.lab.bench import plots
from ghsched_nova.lab.bench import record
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.tests.fixtures import results
from ghsched_placement.tests import base


def curve(n, *values):
    return Series('p99 latency', 'ms', 'lower', values, (('N', str(n)),), 1)


REPORT = record.Report((results.result(
    curve(1, 1.0, 1.1, 1.2), curve(2, 1.4, 1.5, 1.9),
    Series('copy', 'MiB/s', 'higher', (5.0, 6.0, 7.0), (('tool', 'mbw'),)),
    scenario='redis-density', findings=[
        Finding('rule', 'passes: ...', 1.21, 'ms')]),))


class CommandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)

    def run_command(self, *argv):
        out, err = io.StringIO(), io.StringIO()
        with mock.patch('sys.stdout', out), mock.patch('sys.stderr', err):
            try:
                status = cli.main([str(part) for part in argv])
            except SystemExit as end:
                status = end.code
        self.error = err.getvalue()
        return status, out.getvalue()

    def write_report(self, report=REPORT, name='one.json'):
        path = self.directory / name
        path.write_text(record.to_json(report))
        return path

    def test_list_tells_what_is_missing(self):
        self.useFixture(fixtures.EnvironmentVariable('PATH', ''))
        status, text = self.run_command('list')
        self.assertEqual(0, status)
        self.assertIn('redis-benchmark is not installed (package '
                      'redis-tools)', text)

    def test_skipped_run(self):
        self.useFixture(fixtures.EnvironmentVariable('PATH', ''))
        output = self.directory / 'x.json'
        status, text = self.run_command('run', 'rt-latency', '-o', output)
        self.assertEqual(3, status)
        self.assertIn('cyclictest is not installed', text)
        found, = record.from_json(output.read_text()).results
        self.assertEqual('skipped', found.status)

    def test_scenario_of_a_cloud_has_one_command(self):
        status, text = self.run_command('cloud', '--workload', 'stress')
        self.assertEqual(3, status)
        self.assertIn('--flavors is not given', text)
        for name in ('cloud', 'gh-density'):
            status, _text = self.run_command('run', name)
            self.assertEqual(2, status)
            self.assertIn('invalid choice', self.error)
        self.assertIn('cloud: guests of flavors on a running cloud',
                      self.run_command('list')[1])

    def test_parameter_that_is_none(self):
        status, _text = self.run_command('run', 'rt-latency', '--runs', '0')
        self.assertEqual(2, status)
        self.assertIn('runs: 0 is not from 1 on', self.error)

    def test_an_aborted_run_leaves_no_file(self):
        for kept in (None, 'a report'):
            output = self.directory / 'x.json'
            if kept:
                output.write_text(kept)
            with mock.patch.object(cli.run, 'run',
                                   side_effect=KeyboardInterrupt):
                status, _text = self.run_command('run', 'rt-latency', '-o',
                                                 output)
            self.assertEqual(2, status)
            self.assertEqual([kept] if kept else [], [
                path.read_text() for path in self.directory.iterdir()])

    def test_output_that_can_not_be_written_is_reported_before_the_run(self):
        status, _text = self.run_command(
            'run', 'rt-latency', '-o', self.directory / 'no' / 'x.json')
        self.assertEqual(2, status)
        self.assertEqual(f'ghsched-bench: {self.directory}/no/x.json: No '
                         'such file or directory\n', self.error)

    def test_report_as_html_holds_its_pictures(self):
        output = self.directory / 'report.html'
        self.assertEqual((0, ''), self.run_command(
            'report', self.write_report(), '-f', 'html', '-o', output))
        page = lxml.html.fromstring(output.read_bytes())
        self.assertEqual(2, len(page.findall('.//figure')))

    def test_report_with_pictures_next_to_it(self):
        for form in ('md', 'rst'):
            output = self.directory / f'report.{form}'
            self.run_command(
                'report', self.write_report(), '-f', form, '-o', output)
            self.assertIn('report-1-1.svg', output.read_text())
            for number in (1, 2):
                lxml.etree.parse(self.directory / f'report-1-{number}.svg')

    def test_same_data_same_picture(self):
        pictures = []
        for name in ('a', 'b'):
            self.run_command('report', self.write_report(), '-o',
                             self.directory / f'{name}.md')
            pictures.append((self.directory / f'{name}-1-1.svg').read_text())
        self.assertEqual(*pictures)
        self.assertIn('limit 1.21 ms', pictures[0])

    def texts(self, plot):
        return ' '.join(' '.join(lxml.etree.fromstring(
            plots.svg(plot).encode()).itertext()).split())

    def test_each_picture_has_a_legend(self):
        curve, boxes = plots.plots(REPORT.results[0])
        self.assertIn('p99 latency, median limit 1.21 ms', self.texts(curve))
        self.assertIn('quartiles median samples', self.texts(boxes))
        ratios = plots.Ratios('a', 'ratio', (('x', 0.9, 1.0, 1.1),))
        self.assertIn('interval ratio no difference', self.texts(ratios))

    def test_missing_library_is_named(self):
        with mock.patch.dict('sys.modules', {'matplotlib': None}):
            status, _text = self.run_command(
                'report', self.write_report(), '-f', 'html')
        self.assertEqual(2, status)
        self.assertIn('pip install ghsched[bench]', self.error)

    def test_file_that_is_no_report(self):
        path = self.directory / 'x.json'
        path.write_text('{}')
        self.assertEqual(2, self.run_command('report', path)[0])
        self.assertIn(f'{path}: is no report', self.error)
        path.write_bytes(b'\xff')
        self.assertEqual(2, self.run_command('report', path)[0])
        self.assertEqual(2, self.run_command(
            'report', self.directory / 'absent')[0])

    def test_comparison(self):
        status, text = self.run_command(
            'compare', self.write_report(), self.write_report())
        self.assertEqual(0, status)
        self.assertIn('# Before and after', text)
        self.assertIn('n = 3 and 3 are too few', text)
        self.assertIn('No metric could be tested', text)
        self.assertNotIn('adjusted', text)
        self.assertNotIn('NOT alike', text)

    def test_unlike_pair(self):
        other = self.write_report(record.Report((results.result(
            curve(1, 1.0), scenario='redis-density', cpus=2),)), 'b.json')
        compare = ('compare', '--kind', 'host-guest', self.write_report(),
                   other)
        self.assertEqual(2, self.run_command(*compare)[0])
        self.assertIn('host and guest are not alike: cpus: 8 CPUs against 2 '
                      'CPUs', self.error)
        status, text = self.run_command(*compare, '--allow', 'cpus')
        self.assertEqual(0, status)
        self.assertIn('NOT alike', text)
        self.assertIn('* cpus: 8 CPUs against 2 CPUs', text)

    def test_comparison_with_a_picture(self):
        series = Series('copy', 'MiB/s', 'higher',
                        tuple(map(float, range(10, 20))))
        path = self.write_report(record.Report((results.result(series),)))
        output = self.directory / 'both.md'
        self.run_command('compare', path, path, '-o', output)
        self.assertIn("Whitney's test. A difference", output.read_text())
        self.assertIn('](both-1.svg)', output.read_text())
        lxml.etree.parse(self.directory / 'both-1.svg')

    def test_comparison_for_programs(self):
        _status, text = self.run_command(
            'compare', self.write_report(), self.write_report(), '-f', 'json')
        pair, = json.loads(text)
        self.assertEqual([1.0, 1.0, 1.0],
                         [one['ratio'] for one in pair['comparisons']])
        self.assertEqual(8, pair['environments'][0]['cpus'])
