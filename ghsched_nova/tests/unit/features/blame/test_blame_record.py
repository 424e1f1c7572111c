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

from fixtures import FakeLogger
from fixtures import TempDir

from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features.blame import blame_record
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.features.blame import blame
from ghsched_placement.features.load import load
from ghsched_placement.tests import base


def snapshot(**rates):
    return observing.snapshot(*(
        observing.guest(rate, uuid)
        for uuid, rate in rates.items()), used=500.0)


class RecordTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(FakeLogger())
        self.path = Path(self.useFixture(TempDir()).path) / 'blame.json'
        self.record = blame_record.BlameRecord(self.path)
        self.reports = observing.Reports(self.record, ['load'])

    def test_record_has_the_last_periods_and_survives_a_restart(self):
        for number in range(40):
            self.reports.report(
                60.0 * number, snapshot(a=100.0 + number),
                {'load': load.HostLoad(1.0, 60.0, (), (load.GuestNodeLoad(
                    'a', 0, 0, 2, 1024, cpu_load=0.5),))})
        found = blame_periods.FORMAT.read(self.path)
        self.assertEqual(blame_periods.PERIODS_KEPT, len(found))
        self.assertEqual(
            (39 * 60.0, 60.0, {('a', 0): 139.0}, {0: 500.0}, {0: 1000.0},
             {'a': 0.5}),
            (found[-1].time, found[-1].seconds, found[-1].guests,
             found[-1].used, found[-1].capacity, found[-1].busy))
        self.assertEqual(
            found, blame_record.BlameRecord(self.path).periods)

    def test_record_without_figures_stays_as_it_is(self):
        for now, found in ((60.0, snapshot(a=1.0)), (120.0, None),
                           (180.0, snapshot()), (170.0, snapshot(a=1.0))):
            self.reports.report(now, found)
        self.assertEqual((), self.record.periods)
        self.assertEqual('', self.log.output)

    def test_malformed_file_is_no_record(self):
        for text in ('', '{', '[]', '{"version": 1}',
                     '{"version": 1, "periods": [7]}', '\xff'):
            self.path.write_bytes(text.encode('latin-1'))
            self.assertEqual((), blame_periods.FORMAT.read(self.path))


class SampleTest(base.TestCase):

    def test_sample_is_of_the_nodes_of_the_server(self):
        period = blame_periods.BlamePeriod(
            60.0, 60.0, {0: 100.0, 1: 50.0, 2: 900.0}, {0: 200.0, 1: 60.0},
            {('s', 0): 10.0, ('s', 1): 5.0, ('a', 1): 40.0, ('a', 2): 800.0},
            {'s': 0.7})
        found = blame_periods.make_server_sample(period, 's', (0, 1))
        self.assertEqual({'s': 15.0, 'a': 40.0, blame.HOST: 95.0},
                         found.rates)
        self.assertAlmostEqual(50 / 60, found.load)
        self.assertEqual(0.7, found.busy)

    def test_busy_time_is_the_mean_of_all_vcpus(self):
        self.assertEqual({'a': 0.5}, blame_periods.compute_mean_vcpu_loads([
            load.GuestNodeLoad('a', 0, 0, 1, cpu_load=0.8),
            load.GuestNodeLoad('a', 1, 1, 3, cpu_load=0.4),
            load.GuestNodeLoad('b', 0, 0, 1, cpu_load=0.8),
            load.GuestNodeLoad('b', 1, 0, 1)]))
