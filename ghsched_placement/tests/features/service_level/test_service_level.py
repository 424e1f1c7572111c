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

import collections
import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.service_level import service_level
from ghsched_placement.features.service_level.service_level import (
    ShortageCause)
from ghsched_placement.features.service_level.service_level import LevelKey
from ghsched_placement.features.service_level.service_level import LevelPeriod
from ghsched_placement.features.service_level.service_level import Owner
from ghsched_placement.tests import base

#: 1 November 2026, 00:00 UTC.
BEGIN = 1793491200.0
DAY = 86400

SHARE = st.one_of(st.none(), st.floats(0, 120))
PERIODS = st.builds(
    LevelPeriod, st.floats(0, 100), st.floats(1, 100), SHARE, SHARE, SHARE,
    SHARE,
    st.one_of(st.none(), st.floats(0, 1)), st.booleans())


def short(**figures):
    """Return the cause of a period in which a busy server got too little."""
    moved = figures.pop('moved', False)
    return service_level.find_shortage_cause(LevelPeriod(**{
        'asked': 30, 'held': 30, 'got': 10, 'node_used': 50, 'busy': 1.0,
        **figures}), moved)


class CauseTest(base.TestCase):

    def test_server_that_needs_no_more_is_not_short(self):
        for figures in ({}, {'moved': True}, {'busy': 0.1, 'node_used': 99},
                        {'got': None, 'node_used': 99},
                        {'got': 29, 'node_used': 99, 'protected': False}):
            self.assertIsNone(short(**figures), figures)

    def test_each_cause_is_found(self):
        for cause, figures in (
                (ShortageCause.NODE_FULL, {'node_used': 97}),
                (ShortageCause.NODE_FULL, {'node_used': 97, 'busy': None}),
                (ShortageCause.UNKNOWN, {'node_used': None}),
                (ShortageCause.NOT_PROTECTED, {'protected': False}),
                (ShortageCause.NOT_PROTECTED, {'held': 20, 'node_used': 97}),
                (ShortageCause.HOST_MOVED, {'moved': True, 'node_used': 97}),
                (ShortageCause.HOST_MOVED, {'moved': True, 'node_used': None}),
                (ShortageCause.OWN_CAP, {'cap': 50, 'got': 49}),
                (ShortageCause.OWN_CAP, {'asked': 0, 'cap': 50, 'got': 60})):
            self.assertEqual(cause, short(**figures), figures)

    def test_guarantee_that_the_kernel_rounds_down_is_held(self):
        self.assertIsNone(short(held=28))
        self.assertEqual(ShortageCause.NODE_FULL, short(held=28, node_used=97))

    def test_first_cause_that_applies_is_taken(self):
        figures = {'protected': False, 'moved': True, 'node_used': 97}
        self.assertEqual(ShortageCause.NOT_PROTECTED, short(**figures))
        del figures['protected']
        self.assertEqual(ShortageCause.HOST_MOVED, short(**figures))
        self.assertEqual(ShortageCause.OWN_CAP, short(**figures, cap=10))


class DayTest(base.TestCase):
    """A day of one server, minute by minute, that the test has staged."""

    #: What happens, in turn: figures of the period, and its true cause.
    STAGES: tuple[tuple[dict[str, object], str | None], ...] = (
        ({}, None), ({'node_used': 97}, 'node_full'),
        ({'busy': 0.0, 'got': 0, 'node_used': 99}, None),
        ({'protected': False}, 'not_protected'),
        ({'cap': 40, 'got': 40}, 'own_cap'),
        ({'node_used': None}, 'unknown'), ({'got': None}, 'unmeasured'))

    def setUp(self):
        super().setUp()
        self.levels, self.true = {}, collections.Counter()
        for minute in range(1, DAY // 60 + 1):
            figures, cause = self.STAGES[(minute // 7) % len(self.STAGES)]
            self.true[cause] += 1
            self.add(minute, LevelKey('a', 0), figures)
            if minute >= 600:     # moved from another host, and full there
                self.add(minute, LevelKey('b', 1), {'node_used': 97})

    def add(self, minute, key, figures):
        self.levels = service_level.add_period_to_levels(self.levels, {key: (
            Owner('web', 'p', 'f'), LevelPeriod(**{
                'asked': 30, 'held': 30, 'got': 10, 'node_used': 50,
                'busy': 1.0, **figures}))}, 60.0, BEGIN + 60 * minute - 1)

    def test_each_short_minute_has_one_cause_and_they_add_up(self):
        level = self.levels[LevelKey('a', 0)]
        found = {cause: seconds / 60 for cause, seconds
                 in level.short.items()}
        true = {cause: minutes for cause, minutes in self.true.items()
                if cause not in (None, 'unmeasured')}
        self.assertEqual(true, found)
        self.assertEqual(true, level.short_periods)
        self.assertEqual(self.true['unmeasured'], level.unmeasured / 60)
        self.assertEqual(DAY, level.seconds + level.unmeasured)
        self.assertEqual(
            sum(found.values()), sum(hour.short for hour in level.hours) / 60)
        self.assertEqual(level.seconds,
                         sum(hour.seconds for hour in level.hours))

    def test_first_minute_after_a_move_is_of_the_move(self):
        self.assertEqual({'host_moved': 1, 'node_full': 840},
                         self.levels[LevelKey('b', 1)].short_periods)

    def test_month_begins_with_sums_of_0_and_keeps_the_hours(self):
        for minute in (30 * 1440, 30 * 1440 + 1):
            self.add(minute, LevelKey('a', 0), {'node_used': 97})
        level = self.levels[LevelKey('a', 0)]
        self.assertEqual((60.0, 1, {'node_full': 60.0}),
                         (level.seconds, level.periods, level.short))
        self.assertEqual(2, len(level.hours))

    def test_classes_of_a_server_are_apart_and_its_worst_counts(self):
        for minute in (DAY // 60 + 1, DAY // 60 + 2):
            for name, node_used in (('calm', 50), ('latency', 97)):
                self.add(minute, LevelKey('c', 0, name),
                         {'node_used': node_used})
        self.assertEqual({'host_moved': 1, 'node_full': 1},
                         self.levels[LevelKey('c', 0, 'latency')
                                     ].short_periods)
        self.assertEqual(service_level.ShortTime(120.0, 120.0),
                         service_level.map_shortage_times(self.levels)[
                             LevelKey('c', 0)])
        self.assertEqual(self.levels, service_level.FORMAT.parse(
            service_level.FORMAT.render(self.levels)))

    def test_record_survives_a_file(self):
        text = service_level.FORMAT.render(self.levels)
        self.assertEqual(self.levels, service_level.FORMAT.parse(text))


class BoundsTest(base.TestCase):

    def test_record_is_bounded_in_servers_hours_and_time(self):
        self.patch(service_level, 'LEVELS_KEPT', 10)
        levels = {}
        for hour in range(200):
            levels = service_level.add_period_to_levels(levels, {
                LevelKey(name, 0): (Owner(), LevelPeriod(got=1.0))
                for name in ('a', f'b{hour}')}, 3600.0, BEGIN + 3600 * hour)
            self.assertLessEqual(len(levels), 10)
        self.assertEqual(service_level.HOURS_KEPT,
                         len(levels[LevelKey('a', 0)].hours))
        levels = service_level.add_period_to_levels(
            levels, {}, 60.0, BEGIN + 3600 * 199 + DAY + 1)
        self.assertEqual({}, levels)

    def test_malformed_record_is_empty(self):
        good = service_level.FORMAT.render(
            {LevelKey('a', 0): service_level.Level()})
        self.assertEqual(1, len(service_level.FORMAT.parse(good)))
        for text in ('', '[]', 'x', '{"version": 1}',
                     good.replace('"month":0', '"month":"x"'),
                     good.replace('"a",0', '"a","x"'),
                     good.replace('"version": 1', '"version": 2').replace(
                         '"version":1', '"version":2')):
            self.assertEqual({}, service_level.FORMAT.parse(text), text)

    @given(st.lists(PERIODS, max_size=20))
    def test_sums_agree_and_survive_json(self, periods):
        levels = {}
        for number, period in enumerate(periods):
            levels = service_level.add_period_to_levels(levels, {
                LevelKey('a', 0): (Owner('n'), period)}, 60.0,
                BEGIN + 60 * number)
        for level in levels.values():
            self.assertEqual(60.0 * len(periods),
                             level.seconds + level.unmeasured)
            self.assertLessEqual(sum(level.short.values()), level.seconds)
            self.assertEqual(level.short, {
                cause: 60.0 * count for cause, count
                in level.short_periods.items()})
        self.assertEqual(levels, service_level.FORMAT.parse(
            service_level.FORMAT.render(levels)))

    def test_unknown_fields_and_causes_of_another_release_are_ignored(self):
        document = json.loads(service_level.FORMAT.render({
            LevelKey('a', 0): service_level.Level(short={'new': 1.0})}))
        document['levels'][0][2]['owner']['colour'] = 'red'
        level, = service_level.FORMAT.parse(json.dumps(document)).values()
        self.assertEqual({}, level.short)
