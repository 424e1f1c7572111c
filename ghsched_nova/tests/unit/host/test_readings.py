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
from pathlib import Path
import threading
from unittest import mock

import fixtures

from ghsched_nova.host import readings
from ghsched_nova.resctrl import fs
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.tests import base

SHOWN = tuple(range(101))


class ReadingsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        top = Path(self.useFixture(fixtures.TempDir()).path)
        self.root, self.path = top / 'resctrl', top / readings.FILE
        (self.root / 'info').mkdir(parents=True)
        self.log = self.useFixture(fixtures.FakeLogger(level=20))
        self.measured = []
        self.host = captured.openeuler(unmeasured=('MB', 'MBMIN'))

    def measure(self, root, lines, domain):
        self.measured.append((root, tuple(lines), domain))
        return dict.fromkeys(lines, SHOWN)

    def readings(self, measure=None):
        return readings.RoundingCache(self.root, self.path,
                                      measure or self.measure)

    def test_lines_are_measured_once_and_known_to_the_next_process(self):
        first = self.readings()
        self.assertEqual({}, first.get_measured_rounding())
        self.assertTrue(first.measure_missing_percentages(self.host))
        self.assertEqual([(self.root, ('MB', 'MBMIN'), 0)], self.measured)
        both = {'MB': SHOWN, 'MBMIN': SHOWN}
        self.assertEqual(both, first.get_measured_rounding())
        self.assertEqual(both, self.readings().get_measured_rounding())
        self.assertIn('schemata lines MB, MBMIN', self.log.output)

    def test_host_that_was_read_before_a_measurement_starts_no_second(self):
        readings_ = self.readings()
        self.assertTrue(readings_.measure_missing_percentages(self.host))
        self.assertTrue(readings_.measure_missing_percentages(self.host))
        self.assertEqual(1, len(self.measured))

    def test_another_mount_is_measured_again(self):
        first = self.readings()
        first.measure_missing_percentages(self.host)
        with mock.patch.object(readings, '_identify_mount',
                               return_value='other/1'):
            self.assertEqual({}, first.get_measured_rounding())
            self.assertEqual({}, self.readings().get_measured_rounding())
            self.assertTrue(first.measure_missing_percentages(self.host))
        self.assertEqual(2, len(self.measured))

    def test_failure_is_logged_once_and_not_tried_again_at_once(self):
        calls = []

        def fail(*arguments):
            calls.append(arguments)
            raise fs.GroupError('there is no control group left')

        found = self.readings(fail)
        for _ in range(3):
            self.assertFalse(found.measure_missing_percentages(self.host))
        self.assertEqual(1, len(calls))
        self.assertEqual(1, self.log.output.count('cannot measure'))
        with mock.patch.object(readings, 'RETRY_S', -1.0):
            found._record_failure(ValueError('x'))
            self.assertFalse(found.measure_missing_percentages(self.host))
        self.assertEqual(2, len(calls))

    def test_nothing_is_measured_where_nothing_may_be_written(self):
        found = readings.RoundingCache(self.root, self.path)
        self.assertFalse(found.measure_missing_percentages(self.host))
        self.assertFalse(self.path.exists())

    def test_file_that_is_damaged_is_measured_again(self):
        found = self.readings()
        found.measure_missing_percentages(self.host)
        kept = json.loads(self.path.read_text())
        for damage in ('', '[]', '{}', '{"mount": 1}', json.dumps(
                kept | {'lines': {'MB': [1]}}), json.dumps(
                kept | {'lines': {'MB': ['a'] * 101}}), json.dumps(
                kept | {'lines': {'MB': [101] * 101}}), json.dumps(
                # Half of a character, which a log cannot encode.
                kept | {'lines': {'MB': '\ud800'}}), json.dumps(
                kept | {'lines': []})):
            self.path.write_text(damage)
            self.assertEqual({}, self.readings().get_measured_rounding(),
                             damage)

    def test_state_that_cannot_be_written_does_not_keep_from_measuring(self):
        found = readings.RoundingCache(
            self.root, self.path.parent / 'absent' / 'file', self.measure)
        self.assertTrue(found.measure_missing_percentages(self.host))
        self.assertIn('cannot save', self.log.output)

    def test_many_threads_measure_once(self):
        found = self.readings()
        barrier = threading.Barrier(8)
        answers = []

        def work():
            barrier.wait(base.GIVE_UP_S)
            if not found.get_measured_rounding():
                found.measure_missing_percentages(self.host)
            answers.append(found.get_measured_rounding())

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(base.GIVE_UP_S)
        self.assertEqual([{'MB': SHOWN, 'MBMIN': SHOWN}] * 8, answers)
        self.assertEqual(1, len(self.measured))

    def test_measurement_without_a_path_is_kept_in_memory(self):
        found = readings.RoundingCache(self.root, None, self.measure)
        self.assertTrue(found.measure_missing_percentages(self.host))
        self.assertEqual({'MB', 'MBMIN'},
                         found.get_measured_rounding().keys())

    def test_host_without_resctrl_is_not_measured(self):
        found = readings.RoundingCache(
            self.root / 'absent', None, self.measure)
        self.assertEqual({}, found.get_measured_rounding())
        self.assertFalse(found.measure_missing_percentages(self.host))
