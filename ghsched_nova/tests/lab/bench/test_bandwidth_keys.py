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

"""Settings, findings, the model beside a measurement, and signatures."""

import itertools
import json
from pathlib import Path

import fixtures

from ghsched_nova.lab.bench import bandwidth_groups
from ghsched_nova.lab.bench import cli
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench import model_figures
from ghsched_nova.lab.bench import record
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenarios import bandwidth_keys
from ghsched_nova.lab.bench import signature
from ghsched_nova.lab.bench import suite
from ghsched_nova.tests.fixtures import emulated
from ghsched_placement.tests import base

ENVIRONMENT = record.Environment(
    'cpu', 4, 1, 1024, 'x86_64', '6.1', 'Debian', (), 'none', 'none', (), 0.0)


def make_series(**p99):
    """Return p99 latencies by setting; the streams move 100 less p99."""
    found = []
    for name, value in p99.items():
        conditions = (('key', name.replace('__', '=')),)
        found.append(Series(bandwidth_keys.P99, 'ms', 'lower', (value,),
                            conditions))
        if name != 'alone':
            found.append(Series(bandwidth_keys.STREAMS, 'MB/s', 'higher',
                                (100.0 - value,), conditions))
    return tuple(found)


def make_report(*series, **parameters):
    return record.Report((record.Result(
        'bandwidth-keys', 'done', (), tuple(parameters.items()), ENVIRONMENT,
        record.Measured(series)),))


class SettingsTest(base.TestCase):

    def find_skipped(self, dialect):
        host = emulated.read_host(emulated.model(dialect), Path(
            self.useFixture(fixtures.TempDir()).path))
        return {setting.title for setting in bandwidth_groups.list_settings(
            (50, 10), 30) if bandwidth_groups.find_reason_against(
                host, setting, 0)}

    def test_host_with_all_keys_has_each_setting(self):
        self.assertEqual(set(), self.find_skipped('openeuler66'))

    def test_host_with_caps_alone_has_no_guarantee_and_no_priority(self):
        self.assertEqual({'mem_bw_min=30', 'mem_bw_priority=7'},
                         self.find_skipped('intel'))

    def test_server_and_streams_have_groups_where_they_have_a_key(self):
        groups = {setting.title: set(setting.policies) for setting
                  in bandwidth_groups.list_settings((50,), 30)}
        self.assertEqual({
            'alone': set(), 'none': set(),
            'mem_bw_max=50': {'ghsched-bench-streams'},
            'mem_bw_min=30': {'ghsched-bench-server'},
            'mem_bw_priority=7': {'ghsched-bench-server',
                                  'ghsched-bench-streams'}}, groups)


class FindingsTest(base.TestCase):

    def test_findings_relate_the_server_to_alone_and_streams_to_no_key(self):
        found = bandwidth_keys.list_findings(make_series(
            alone=10.0, none=20.0, mem_bw_max__50=12.0))
        self.assertEqual([
            ('p99 with none',
             '2.00 x that alone, streams 100% of what they move without a '
             'key', 2.0),
            ('p99 with mem_bw_max=50',
             '1.20 x that alone, streams 110% of what they move without a '
             'key', 1.2)], [(one.name, one.text, one.value) for one in found])

    def test_streams_that_moved_nothing_are_a_failure(self):
        values = bandwidth_keys.SCENARIO.values({'requests': 5})
        measured = record.Measured((
            Series(bandwidth_keys.STREAMS, 'MB/s', 'higher', (3.0, 0.0)),
            Series('requests served', 'requests', 'neither', (4.0, 5.0))))
        moved, served = sorted(bandwidth_keys.verify(values, measured))
        self.assertIn('moved nothing', moved)
        self.assertIn('4 of 5 requests', served)


class ModelTest(base.TestCase):

    def test_figures_have_those_of_recorded_cells(self):
        rows, = model_figures.compare_with_model(make_report(*make_series(
            alone=10.0, none=20.0, mem_bw_max__50=12.0,
            mem_bw_min__30=15.0))).values()
        cells = model_figures.load_simulated()
        by_key = {row.key: row for row in rows}
        self.assertEqual(2.0, by_key['none'].p99)
        self.assertEqual(1.1, by_key['mem_bw_max=50'].streams)
        expected = sorted(
            sum(run['p99_closed'] for run in cells[name]) / len(cells[name])
            for name in ('ddr4 want all, guarantee entrance',
                         'ddr4 want all, guarantee controller'))
        self.assertEqual(tuple(expected),
                         by_key['mem_bw_min=30'].simulated_p99)

    def test_each_key_is_at_least_as_good_as_none_in_the_model(self):
        curve = model_figures.shipped.load_shipped_curve('mess-skylake')
        worst = model_figures.predict_effect('none', [curve], 0.05)[0]
        for key in ('mem_bw_max=50', 'mem_bw_min=30', 'mem_bw_priority=7'):
            p99, streams = model_figures.predict_effect(key, [curve], 0.05)
            self.assertLessEqual(p99[0], worst[0], key)
            self.assertLessEqual(streams[1], 1.0, key)

    def test_report_without_bandwidth_keys_is_refused(self):
        self.assertRaises(errors.BenchError, model_figures.compare_with_model,
                          record.Report(()))


class CommandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path)
        self.output = self.useFixture(fixtures.StringStream('stdout')).stream
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.output))

    def printed(self):
        self.output.seek(0)
        return self.output.read()

    def test_compare_with_the_model_prints_a_row_for_each_key(self):
        path = self.path / 'one.json'
        path.write_text(record.to_json(make_report(
            *make_series(alone=10.0, none=20.0), **{'in-guest': True})))
        self.assertEqual(0, cli.main([
            'compare', str(path), '--kind', 'model', '-f', 'json']))
        rows, = json.loads(self.printed()).values()
        self.assertEqual(['none'], [row['key'] for row in rows])

    def test_compare_with_one_report_of_a_pair_is_refused(self):
        path = self.path / 'one.json'
        path.write_text(record.to_json(make_report()))
        self.useFixture(fixtures.MonkeyPatch(
            'sys.stderr', self.useFixture(
                fixtures.StringStream('stderr')).stream))
        self.assertEqual(2, cli.main(['compare', str(path)]))

    def test_signature_is_of_one_content(self):
        path, here = self.path / 'signed.json', machine.Machine()
        path.write_text('{}')
        signature.sign_file(here, path, self.path / 'key')
        first = signature.verify_file(here, path)
        self.assertIn('ED25519 key', first)
        signature.sign_file(here, path, self.path / 'key')
        self.assertEqual(first, signature.verify_file(here, path))
        path.write_text('{} ')
        self.assertRaises(errors.BenchError, signature.verify_file, here,
                          path)


class SuiteTest(base.TestCase):

    def setUp(self):
        super().setUp()

        def run(scenario, values, _machine, _say):
            return record.Result(scenario.name, 'done', (),
                                 tuple(values.items()), ENVIRONMENT)
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.lab.bench.run.run', run))

    def run_suite(self, minutes, seconds_each):
        clock = itertools.count(step=seconds_each)
        return suite.run_suite({'runs': 2, 'caps': '7'}, minutes,
                               machine.Machine(Path('/nowhere')),
                               lambda _text: None, lambda: next(clock))

    def test_parameters_go_to_the_scenarios_that_have_them(self):
        results = self.run_suite(90, 0).results
        self.assertEqual([
            ('loaded-latency', {'runs': 2}),
            ('bandwidth-keys', {'runs': 2, 'caps': '7'}),
            ('bandwidth-keys', {'runs': 2, 'caps': '7', 'in-guest': True})],
            [(one.scenario, dict(one.parameters)) for one in results])

    def test_no_part_begins_after_the_time(self):
        self.assertEqual(
            ['done', 'skipped', 'skipped'],
            [one.status for one in self.run_suite(1, 45).results])
