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

import contextlib
import io
import json
from pathlib import Path
import time

import fixtures

from ghsched_nova.features.top import top
from ghsched_nova.features.top import top_history
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.history.usage_history import UsageKey
from ghsched_placement.tests import base


class ParseTest(base.TestCase):

    def test_time_of_minutes_and_hours_is_read(self):
        for text, minutes in (('1m', 1), ('90m', 90), ('1h', 60),
                              ('6h', 360)):
            self.assertEqual(minutes, top_history.parse_minutes(text))

    def test_time_that_is_malformed_or_too_long_is_refused(self):
        for text in ('', '0m', '1', 'h', '1d', '-1h', '1.5h', '7h', '361m'):
            self.assertRaises(ValueError, top_history.parse_minutes, text)


class SinceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path, 'history')
        end = time.time()
        history = usage_history.History()
        for ago, rates in ((7200, {'u1': 9e9}),
                           (60, {'u1': 1e9, 'u2': 4e9, '': 6e9})):
            history = usage_history.add_period_to_history(
                history, usage_history.UsagePeriod(
                    end - ago - 60, end - ago,
                    {UsageKey(uuid, 1): rate for uuid, rate in rates.items()},
                    {'u1': 'web\x1b', 'u2': 'batch'}, {1: 10e9}))
        self.path.write_text(usage_history.FILE_FORMAT.render(history))

    def run_top(self, *options, path=None):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(errors):
            status = top.main(['--history', str(path or self.path), *options])
        return status, output.getvalue(), errors.getvalue()

    def test_who_used_most_in_the_last_hour_is_first(self):
        status, text, _errors = self.run_top('--since', '1h')
        self.assertEqual(0, status)
        titles, *rows = text.splitlines()
        self.assertIn('MEAN MB/s', titles)
        self.assertEqual(
            [['(all)', '1', '360.0', '6000.0', '60.0', '6000.0', '1'],
             ['batch', '1', '240.0', '4000.0', '40.0', '4000.0', '1'],
             ['web?', '1', '60.0', '1000.0', '10.0', '1000.0', '1']],
            [row.split() for row in rows])

    def test_longer_time_filter_and_order_change_what_is_shown(self):
        _status, text, _errors = self.run_top('--since', '3h')
        self.assertEqual(['web?', '(all)', 'batch'],
                         [row.split()[0] for row in text.splitlines()[1:]])
        _status, text, _errors = self.run_top('--since', '1h', '-r',
                                              '--guest', 'u')
        self.assertEqual(['web?', 'batch'],
                         [row.split()[0] for row in text.splitlines()[1:]])

    def test_json_has_exact_figures(self):
        _status, text, _errors = self.run_top('--since', '1h', '--json')
        found = json.loads(text)
        self.assertEqual(60, found['minutes'])
        self.assertEqual(
            [(None, None), ('batch', 'u2'), ('web?', 'u1')],
            [(use['name'], use['uuid']) for use in found['uses']])
        use = found['uses'][1]
        self.assertEqual((1, 4e9, 4e9, 10e9), (
            use['node'], use['bytes_per_second'],
            use['peak_bytes_per_second'], use['capacity']))
        self.assertAlmostEqual(60.0, use['measured_seconds'], 1)

    def test_record_that_is_missing_is_an_error(self):
        status, text, errors = self.run_top(
            '--since', '1h', path=self.path.with_name('none'))
        self.assertEqual((2, ''), (status, text))
        self.assertIn('ghsched-top: cannot read the record of nova-compute:',
                      errors)
