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
import types

import fixtures

from ghsched_nova.features.history import history_use
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.history.usage_history import Minute
from ghsched_placement.features.history.usage_history import UsageKey
from ghsched_placement.tests import base

guest = observing.guest
snapshot = observing.snapshot


class HistoryUseTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=30))
        self.path = Path(self.useFixture(fixtures.TempDir()).path, 'history')
        self.use = history_use.HistoryRecorder(self.path)
        self.reports = observing.Reports(self.use)

    def test_history_of_reports_has_minute_means_and_is_kept_in_the_file(self):
        for now, used in ((1200.0, 9.0), (1230.0, 10.0), (1290.0, 40.0)):
            self.reports.report(now, snapshot(guest(used)))
        self.assertEqual(
            {UsageKey('u', 0): (Minute(20, 60.0, 25.0),
                                Minute(21, 30.0, 40.0)),
             UsageKey('', 0): (Minute(20, 60.0, 500.0),
                               Minute(21, 30.0, 500.0))},
            self.use.history.minutes)
        self.assertEqual(({'u': 'instance-1'}, {0: 1000.0}),
                         (self.use.history.names, self.use.history.capacity))
        self.assertEqual(self.use.history,
                         history_use.HistoryRecorder(self.path).history)

    def test_unknown_bandwidth_and_a_long_pause_add_no_time(self):
        for now, used in ((1200.0, 9.0), (1260.0, None), (9060.0, 10.0)):
            self.reports.report(now, snapshot(guest(used)))
        minutes = self.use.history.minutes[UsageKey('u', 0)]
        self.assertEqual(600.0, sum(one.seconds for one in minutes))

    def test_host_without_bandwidth_writes_nothing(self):
        for now in (1000.0, 1060.0):
            self.reports.report(now)
        self.assertFalse(self.path.exists())

    def test_history_is_known_although_the_file_cannot_be_written(self):
        use = history_use.HistoryRecorder(Path('/none/history'))
        reports = observing.Reports(use)
        for now in (1000.0, 1060.0):
            reports.report(now, snapshot(guest(100.0)))
        self.assertIn('cannot run hook observe', self.log.output)
        self.assertEqual({UsageKey('u', 0), UsageKey('', 0)},
                         set(use.history.minutes))

    def test_diagnostics_have_the_guests_own_last_hours(self):
        for now in (1200.0, 1260.0):
            self.reports.report(now, snapshot(guest(9.0),
                                              guest(7.0, uuid='x')))
        found = usage_history.parse_history_diagnostics(
            self.use.make_diagnostics(types.SimpleNamespace(uuid='u'), {}))
        self.assertEqual({UsageKey('u', 0): (Minute(20, 60.0, 9.0),)},
                         found.minutes)

    def test_link_in_place_of_the_record_is_logged_and_replaced(self):
        other = self.path.with_name('other')
        other.write_text('{}')
        self.path.symlink_to(other)
        use = history_use.HistoryRecorder(self.path)
        self.assertIn('starting a new record', self.log.output)
        reports = observing.Reports(use)
        for now in (1000.0, 1060.0):
            reports.report(now, snapshot(guest(100.0)))
        self.assertFalse(self.path.is_symlink())
        self.assertEqual('{}', other.read_text())
