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
import math
from pathlib import Path

import fixtures
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_placement.features.history import usage_history
from ghsched_placement.features.history.usage_history import History
from ghsched_placement.features.history.usage_history import Minute
from ghsched_placement.features.history.usage_history import UsageKey
from ghsched_placement.features.history.usage_history import UsagePeriod
from ghsched_placement.tests import base

#: 1 November 2026, 00:00 UTC.
BEGIN = 1793491200
KEYS = (UsageKey('a', 0), UsageKey('a', 1), UsageKey('b', 0), UsageKey('', 0))

#: Length of a period and pause before it, in whole seconds.
PERIODS = st.lists(st.tuples(
    st.integers(1, 600), st.sampled_from((0, 0, 0, 7, 60, 4000)),
    st.dictionaries(st.sampled_from(KEYS), st.integers(0, 10 ** 12))),
    max_size=40)


def record(periods, begin=BEGIN):
    """Return the history of periods, and when the last one ended."""
    history, now = History(), begin
    for seconds, pause, rates in periods:
        now += pause
        history = usage_history.add_period_to_history(
            history, UsagePeriod(now, now + seconds, rates))
        now += seconds
    return history, now


def judge(periods):
    """Return the bytes and seconds of each minute, one second at a time."""
    found, now = {}, BEGIN
    for seconds, pause, rates in periods:
        now += pause
        for second in range(now, now + seconds):
            for key, rate in rates.items():
                moved = found.setdefault(key, {}).setdefault(
                    second // 60, [0, 0])
                moved[0] += rate
                moved[1] += 1
        now += seconds
    return found, now


class RecordTest(base.TestCase):

    @settings(max_examples=40)
    @given(PERIODS)
    def test_history_of_any_periods_has_the_mean_of_each_minute(self, periods):
        history, _now = record(periods)
        expected, now = judge(periods)
        kept = {}
        for key, minutes in expected.items():
            last = [(number, seconds, moved / seconds) for number, (
                moved, seconds) in sorted(minutes.items())
                if number > now // 60 - usage_history.MINUTES_KEPT]
            if last:
                kept[key] = last
        self.assertEqual(set(kept), set(history.minutes))
        for key, minutes in kept.items():
            found = history.minutes[key]
            self.assertEqual([one[:2] for one in minutes],
                             [one[:2] for one in found])
            for one, (_number, _seconds, mean) in zip(found, minutes,
                                                      strict=True):
                self.assertTrue(math.isclose(one.rate, mean, rel_tol=1e-9),
                                (one, mean))

    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.integers(-5000, 5000), st.floats(0, 700),
                              st.floats(0, 1e12)), max_size=40))
    def test_history_with_a_clock_set_back_stays_ascending_and_bounded(
            self, periods):
        history, end = History(), float(BEGIN)
        for step, length, rate in periods:
            end = max(0.0, end + step)
            history = usage_history.add_period_to_history(
                history,
                UsagePeriod(max(0.0, end - length), end, {KEYS[0]: rate}))
            for minutes in history.minutes.values():
                numbers = [one.number for one in minutes]
                self.assertEqual(sorted(set(numbers)), numbers)
                self.assertLessEqual(numbers[-1], end // 60)
                self.assertLess(end // 60 - numbers[0],
                                usage_history.MINUTES_KEPT)
                self.assertTrue(all(0 < one.seconds for one in minutes))

    def test_history_of_too_many_servers_keeps_the_newest_within_its_limits(
            self):
        keys = [UsageKey(f'{number:036}', 0) for number in range(3000)]
        history = History()
        for minute in range(40):
            now = BEGIN + 60 * minute
            chosen = keys if minute < 39 else keys[1500:]
            history = usage_history.add_period_to_history(history, UsagePeriod(
                now, now + 59.99, dict.fromkeys(chosen, 999_999_999_999.0),
                {key.server: '\U0001f600' * 200 for key in chosen}))
            self.assertLessEqual(sum(map(len, history.minutes.values())),
                                 usage_history.ENTRIES_KEPT)
        self.assertEqual(usage_history.SERVERS_KEPT, len(history.minutes))
        self.assertLessEqual(set(keys[1500:]), set(history.minutes))
        text = usage_history.FILE_FORMAT.render(history)
        self.assertLess(len(text.encode()), usage_history.LONGEST)
        self.assertEqual(set(history.minutes),
                         set(usage_history.FILE_FORMAT.parse(text).minutes))

    def test_server_that_is_gone_leaves_with_its_name(self):
        history, now = record([(60, 0, {KEYS[0]: 5})])
        later = now + 60 * usage_history.MINUTES_KEPT
        history = usage_history.add_period_to_history(
            History(history.minutes, {'a': 'web'}),
            UsagePeriod(later, later + 60, {KEYS[2]: 1}, {'b': 'db'}))
        self.assertEqual({KEYS[2]}, set(history.minutes))
        self.assertEqual({'b': 'db'}, history.names)


class UsesTest(base.TestCase):

    def test_servers_that_moved_most_come_first_with_mean_and_peak(self):
        history, _now = record([
            (60, 0, {KEYS[0]: 1000, KEYS[2]: 10}),
            (60, 0, {KEYS[0]: 10, KEYS[2]: 40}), (60, 0, {KEYS[2]: 30})])
        first = BEGIN // 60
        self.assertEqual(
            [(KEYS[0], 60600.0, 120.0, 505.0, 1000.0),
             (KEYS[2], 4800.0, 180.0, 80 / 3, 40.0)],
            [(use.key, use.moved, use.seconds, use.rate, use.peak)
             for use in usage_history.list_bandwidth_uses(history, first)])
        # The first minute does not count.
        self.assertEqual(
            [(KEYS[2], 4200.0), (KEYS[0], 600.0)],
            [(use.key, use.moved)
             for use in usage_history.list_bandwidth_uses(history, first + 1)])
        self.assertEqual(
            [], usage_history.list_bandwidth_uses(history, first + 3))


class FormatTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path, 'history')

    @settings(max_examples=25)
    @given(PERIODS)
    def test_record_that_is_read_again_is_the_same(self, periods):
        history, _now = record(periods)
        found = usage_history.FILE_FORMAT.parse(
            usage_history.FILE_FORMAT.render(history))
        self.assertEqual(
            {key: [(one.number, one.seconds, round(one.rate))
                   for one in minutes]
             for key, minutes in history.minutes.items()},
            {key: list(minutes) for key, minutes in found.minutes.items()})

    @given(st.one_of(
        st.text(), st.recursive(
            st.one_of(st.none(), st.integers(), st.floats(), st.text()),
            lambda one: st.one_of(st.lists(one), st.dictionaries(
                st.sampled_from(('version', 'minutes', 'names', 'capacity')),
                one))).map(json.dumps)))
    def test_malformed_record_is_empty(self, text):
        self.assertEqual({}, usage_history.FILE_FORMAT.parse(text).minutes)

    def test_record_with_bad_minutes_is_empty(self):
        for packed in ([1, 60], [5, 60, 1, 0, 60, 1], [5, -1, 1], [5, 1, -1],
                       [5, 60, 'x'], [5, 60, math.inf], 'abc', None):
            parse = usage_history.FILE_FORMAT.parse
            self.assertEqual(History(), parse(json.dumps({
                'version': 1, 'names': {}, 'capacity': [],
                'minutes': [['a', 0, packed]]})), packed)

    def test_link_pipe_and_long_file_are_not_read(self):
        text = usage_history.FILE_FORMAT.render(
            record([(60, 0, {KEYS[0]: 5})])[0])
        self.path.write_text(text)
        self.assertEqual({KEYS[0]},
                         set(usage_history.read_history(self.path).minutes))
        link = self.path.with_name('link')
        link.symlink_to(self.path)
        long = self.path.with_name('long')
        long.write_text(text + ' ' * usage_history.LONGEST)
        for path in (link, long, Path('/dev/null'), Path('/none')):
            self.assertRaises(OSError, usage_history.read_history, path)

    def test_diagnostics_have_the_last_hours_of_one_server(self):
        history, _now = record([(60, 0, {KEYS[0]: 7, KEYS[2]: 9})] * 200)
        history = History(history.minutes, {'b': 'db'}, {0: 100.0, 1: 50.0})
        found = usage_history.parse_history_diagnostics(
            usage_history.make_history_diagnostics(history, 'a'))
        self.assertEqual(
            {KEYS[0]: history.minutes[KEYS[0]][
                -usage_history.MINUTES_REPORTED:]}, found.minutes)
        self.assertEqual(({}, {0: 100.0}), (found.names, found.capacity))
        self.assertEqual(
            {}, usage_history.make_history_diagnostics(history, 'c'))
        self.assertIsNone(usage_history.parse_history_diagnostics({}))
        self.assertEqual(Minute, type(found.minutes[KEYS[0]][0]))
