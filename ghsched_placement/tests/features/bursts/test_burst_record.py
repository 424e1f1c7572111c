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

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.bursts import burst
from ghsched_placement.features.bursts import burst_projects
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import texts

LIMITS = burst.BurstLimits(window=2, correlation=0, safety=1)

hours = st.builds(
    burst.BurstHour, *[st.integers(0, 10 ** 6)] * 3,
    *[st.floats(0, 10 ** 6)] * 4, *[st.integers(0, 10 ** 6)] * 2)
uses = st.builds(
    burst_projects.BurstUseByProject, *[st.integers(0, 10 ** 6)] * 2,
    st.floats(0, 10 ** 6), st.lists(st.builds(
        burst_projects.ProjectBurstUse, texts.printable(5),
        st.integers(0, 100),
        *[st.floats(0, 10 ** 6)] * 3), max_size=3).map(tuple))
records = st.builds(
    burst_record.Record, st.lists(hours, max_size=3).map(tuple),
    st.floats(0, 100), st.integers(0, 300), st.integers(0, 300),
    st.none() | st.floats(0, 1),
    st.lists(st.tuples(st.integers(0, 10 ** 6), st.integers(0, 300)),
             max_size=3).map(tuple), uses)

#: What release 0.1.0 wrote. It reads a node with these names and no others.
BEFORE = """{"version": 1, "nodes": {"1": {"hours": [{"number": 7,
"periods": 60, "promised": 1200, "mean": 6.0, "square": 0.9, "own": 3.0,
"guests": 120.0, "over": 2, "short": 1}], "pool": 40.0, "promised": 20,
"offered": 60, "chance": 0.004, "lowest": [[7, 60]]}}}"""


def quiet(promised=40, used=4.0, pool=40):
    return burst_record.BurstPeriod([burst.GuestBurst(promised, used)], pool)


#: Record that an earlier release has written.
BURSTS = (
    '{"version": 1, "nodes": {"1": {"hours": [{"number": 490000, '
    '"periods": 60, "promised": 600, "mean": 6.0, "square": 0.7, '
    '"own": 0.4, "guests": 90.0, "over": 2, "short": 1}], "pool": 40.0, '
    '"promised": 10, "offered": 55, "chance": 0.001, '
    '"lowest": [[490000, 55]]}}}')
#: The same with uses by project, which the release after it has.
BURSTS_BY_PROJECT = (
    '{"version": 1, "nodes": {"1": {"hours": [], "pool": 40.0, '
    '"promised": 10, "offered": 55, "chance": null, "lowest": []}}, '
    '"projects": {"1": {"since": 489990, "hour": 490000, '
    '"periods": 1200.5, "projects": [{"project": "f1e2d3c4", '
    '"promised": 10, "promised_sum": 12005.0, "used_sum": 600.25, '
    '"square_sum": 40.5}]}}}')


class RecordTest(base.TestCase):

    @given(st.dictionaries(st.integers(0, 63), records, max_size=3))
    def test_written_values_are_read_back(self, found):
        self.assertEqual(found, burst_record.FORMAT.parse(
            burst_record.FORMAT.render(found)))

    @given(st.text() | st.from_regex(
        r'\{"version": 1, "nodes": [^\n]{0,30}\}', fullmatch=True))
    def test_any_text_is_read_or_is_nothing(self, text):
        self.assertIsInstance(burst_record.FORMAT.parse(text), dict)

    def test_a_node_that_is_seldom_busy_is_offered_more(self):
        record = burst_record.Record()
        offered = []
        for number in range(4):
            record = burst_record.add_period_to_record(record, number,
                                                       quiet(), LIMITS)
            offered.append(record.offered)
        # Known after two hours, and offered when both allow it.
        self.assertEqual([40, 40, 60, 60], offered)
        self.assertEqual(0, record.chance)
        self.assertEqual(2, record.total.periods)

    def test_a_quiet_hour_is_no_reason_to_offer_more(self):
        record = burst_record.Record()
        for number in range(8):
            record = burst_record.add_period_to_record(
                record, number, quiet(used=0.0 if number == 6 else 40.0),
                LIMITS)
            self.assertEqual(40, record.offered, number)

    def test_record_of_release_0_1_0_is_read(self):
        found, = burst_record.FORMAT.parse(BEFORE).values()
        self.assertEqual(
            (60, 40.0, ((7, 60),), burst_projects.BurstUseByProject()),
            (found.offered, found.pool, found.lowest, found.uses))
        self.assertEqual((60, 2, 1), (
            found.total.periods, found.total.over, found.total.short))

    @given(records)
    def test_release_0_1_0_reads_the_nodes_of_a_record(self, record):
        now = json.loads(burst_record.FORMAT.render({1: record}))
        before = json.loads(BEFORE)
        self.assertEqual(before['version'], now['version'])
        self.assertEqual(set(before['nodes']['1']), set(now['nodes']['1']))
        for hour in now['nodes']['1']['hours']:
            self.assertEqual(set(before['nodes']['1']['hours'][0]), set(hour))

    def test_record_of_a_later_release_is_read(self):
        later = json.loads(BEFORE)
        later['nodes']['1']['colour'] = 'red'
        later['nodes']['1']['hours'][0]['colour'] = 'red'
        self.assertEqual(burst_record.FORMAT.parse(BEFORE),
                         burst_record.FORMAT.parse(json.dumps(later)))

    @given(st.sampled_from([None, 1, {'1': None}, {'1': {'since': 'x'}},
                            {'1': {'since': 1, 'hour': 1, 'periods': 1,
                                   'projects': {}}}]))
    def test_unreadable_projects_leave_the_nodes(self, projects):
        now = {**json.loads(BEFORE), 'projects': projects}
        self.assertEqual(burst_record.FORMAT.parse(BEFORE),
                         burst_record.FORMAT.parse(json.dumps(now)))

    def test_unknown_use_adds_nothing_and_keeps_promises(self):
        record = burst_record.add_period_to_record(
            burst_record.Record(), 1, quiet(), LIMITS)
        silent = burst_record.add_period_to_record(
            record, 1, burst_record.BurstPeriod(None, 40), LIMITS)
        self.assertEqual(record, silent)

    def test_a_smaller_pool_is_offered_at_once(self):
        record = burst_record.Record(offered=80)
        self.assertEqual(30, burst_record.add_period_to_record(
            record, 1, quiet(pool=30), LIMITS).offered)

    def test_bursts_that_were_measured_are_read(self):
        hour = burst.BurstHour(490000, 60, 600, 6.0, 0.7, 0.4, 90.0, 2, 1)
        records = {1: burst_record.Record(
            (hour,), 40.0, 10, 55, 0.001, ((490000, 55),))}
        self.assertEqual(records, burst_record.FORMAT.parse(BURSTS))
        self.assertEqual(json.loads(BURSTS)['nodes'], json.loads(
            burst_record.FORMAT.render(records))['nodes'])

    def test_bursts_by_project_are_read(self):
        records = {1: burst_record.Record(
            pool=40.0, promised=10, offered=55,
            uses=burst_projects.BurstUseByProject(
                489990, 490000, 1200.5, (burst_projects.ProjectBurstUse(
                    'f1e2d3c4', 10, 12005.0, 600.25, 40.5),)))}
        self.assertEqual(records, burst_record.FORMAT.parse(BURSTS_BY_PROJECT))
        self.assertEqual(json.loads(BURSTS_BY_PROJECT), json.loads(
            burst_record.FORMAT.render(records)))
