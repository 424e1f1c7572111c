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

"""State files that somebody has forged, one field after the other.

No reader raises, and Prometheus gets metrics of all other files. See
tests/fixtures/forged.py of ghsched_placement.
"""

import functools
import json
from pathlib import Path
import tempfile

from fixtures import FakeLogger
import prometheus_client

from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features import declared_exporter
from ghsched_nova.features.exporter import repair_metrics
from ghsched_nova.features.guest_channel import pressure_metrics
from ghsched_nova.host import readings
from ghsched_nova.tests.unit import test_state_files
from ghsched_placement.features.blame import blame
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.load import pressure
from ghsched_placement.features.refusals import refusal_record
from ghsched_placement.features.refusals import refusals
from ghsched_placement.features.service_level import service_level
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import forged

UUID = '11111111-1111-1111-1111-111111111111'
NOW = 1_800_000_000
_SUMS = {'promised': 40, 'mean': .4, 'square': .2, 'own': .3, 'guests': 2.0}
#: Content of honest state files, by name.
STATE = {
    burst_record.FORMAT.name: {
        'version': 1, 'nodes': {'0': {
            'hours': [{'number': NOW // 3600, 'periods': 3, 'over': 1,
                       'short': 1, **_SUMS}],
            'pool': 20.0, 'promised': 30, 'offered': 40, 'chance': .1,
            'lowest': [[NOW // 3600, 20]]}},
        'projects': {'0': {
            'since': NOW // 3600, 'hour': NOW // 3600, 'periods': 3.0,
            'projects': [{'project': 'p', 'promised': 30,
                          'promised_sum': 90.0, 'used_sum': 9.0,
                          'square_sum': .9}]}}},
    service_level.FORMAT.name: {'version': 1, 'levels': [[UUID, 0, {
        'owner': {'name': 'web', 'project': 'p', 'flavor': 'f'},
        'month': 24322, 'seen': NOW, 'seconds': 60.0, 'unmeasured': 0.0,
        'periods': 1, 'short_periods': {'node_full': 1},
        'short': {'node_full': 60.0}, 'hours': [[NOW // 3600, 60.0, 9.5, 60]],
        'last': {'asked': 30, 'cap': 100, 'allocated': 30, 'held': 30,
                 'got': 9.5, 'node_used': 97, 'busy': 1.0,
                 'protected': True}}]]},
    repair_metrics.FORMAT.name: {'version': 1, 'repairs': {'write line': 3}},
    refusal_record.FORMAT.name: {'version': 1, 'refused': [
        {'flavor': 'id', 'name': 'f', 'count': 3, 'last': NOW}]},
    usage_history.FILE_FORMAT.name: {
        'version': 1, 'names': {UUID: 'web'}, 'capacity': [[0, 10 ** 10]],
        'minutes': [[UUID, 0, [NOW // 60, 60.0, 10 ** 9, 1, 60.0, 7]]]},
    blame_periods.FORMAT.name: {'version': 1, 'periods': [{
        'time': NOW, 'seconds': 60.0, 'used': [[0, 10 ** 9]],
        'capacity': [[0, 10 ** 10]], 'guests': [[UUID, 0, 10 ** 8]],
        'busy': {UUID: .5}}]},
    pressure.FILE: {'version': 1, 'guests': [
        [UUID, {'cpu': 9.5, 'memory': 0.0, 'steal': 2}, 'p', 'f']]},
    readings.FILE: {'version': 1, 'mount': '', 'lines': {
        'MB': list(range(101))}},
}
#: Metric of the exporter by file, as STATE gives it.
METRICS = {
    burst_record.FORMAT.name: 'ghsched_bursts_pool_percent{node="0"} 20.0',
    service_level.FORMAT.name: 'ghsched_server_asked_percent{',
    repair_metrics.FORMAT.name: 'ghsched_repairs_total{kind="write line"} 3.0',
    refusal_record.FORMAT.name:
        'ghsched_refusals_total{flavor="id",name="f"} 3.0',
    # The metric is of guest_channel, the file of load.
    pressure.FILE: f'{pressure_metrics.METRICS[0].name}{{flavor="f",'
        f'project="p",resource="cpu",server="{UUID}"}} 9.5',
}
#: Calls that all readers of one file take at most.
MOST_CALLS = 3000000


class ForgedStateTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(FakeLogger())
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.top / 'info').mkdir()
        STATE[readings.FILE]['mount'] = readings._identify_mount(
            self.top)

    def use(self, name, text):
        """Read a text as each reader of a state file does."""
        path = self.top / name
        path.write_text(text)
        for file, read in test_state_files.READERS:
            if file == name:
                read(path)
                path.write_text(text)

    def scrape(self):
        """Return what the exporter shows of all state files."""
        registry = prometheus_client.CollectorRegistry()
        for one in declared_exporter.FILE_METRICS:
            registry.register(one.make_collector(
                self.top / f'ghsched-{one.option.replace("_", "-")}.json'))
        return prometheus_client.generate_latest(registry).decode()

    def test_each_state_file_is_forged_here(self):
        self.assertEqual(test_state_files.NAMES, STATE.keys())
        self.assertEqual(len(declared_exporter.FILE_METRICS), len(METRICS))

    def test_honest_state_files_are_read(self):
        for name, content in STATE.items():
            self.use(name, json.dumps(content))
        shown = self.scrape()
        for metric in METRICS.values():
            self.assertIn(metric, shown)
        self.assertEqual('', self.log.output)

    def test_forged_state_files_cost_what_is_in_them_only(self):
        for name, content in STATE.items():
            for what, text in forged.forge(content, 15):
                _none, calls = forged.count_calls(
                    functools.partial(self.use, name, text))
                self.assertLess(calls, MOST_CALLS, f'{name}: {what}')

    def test_forged_state_files_leave_the_metrics_of_the_others(self):
        for name, content in STATE.items():
            (self.top / name).write_text(json.dumps(content))
        for name in METRICS:
            path = self.top / name
            honest = path.read_text()
            for what, text in forged.forge(STATE[name], 40, 2):
                path.write_text(text)
                shown = self.scrape()
                for other, metric in METRICS.items():
                    if other != name:
                        self.assertIn(metric, shown, f'{name}: {what}')
                self.assertLess(len(shown), 10 ** 6, f'{name}: {what}')
            path.write_text(honest)

    def test_forged_periods_are_samples_or_nothing(self):
        for what, text in forged.forge(STATE[blame_periods.FORMAT.name], 100):
            for period in blame_periods.FORMAT.parse(text):
                sample = blame_periods.make_server_sample(period, UUID, [0])
                self.assertIsInstance(sample, blame.BlameSample, what)

    def test_forged_refusals_are_shown_or_nothing(self):
        for what, text in forged.forge(STATE[refusal_record.FORMAT.name], 100):
            for one in refusal_record.FORMAT.parse(text):
                self.assertIn('T', refusals._format_unix_time(one.last), what)
