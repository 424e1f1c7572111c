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


"""The use of bandwidth on its way to the scheduler."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.monitor import rates
from ghsched_nova.monitor import stats
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.tests import base

NOW = 1_800_000_000.0
_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['time', 'nodes', 'parts', '0', '0-1']) | st.text(),
        inner, max_size=4), max_leaves=12)


class StatsTest(base.TestCase):

    def test_there_and_back(self):
        written = stats.to_stats(trees.snapshot(
            trees.node((0,), 5e9, 20 * 10 ** 9),
            trees.node((1, 2), 3e9, 10 * 10 ** 9),
            trees.node((3,), 5e9, None),
            trees.node((4,), None, 10 ** 9, rates.State.UNASSIGNED)), NOW)
        self.assertEqual({'ghsched_bandwidth'}, set(written))
        self.assertEqual(
            {'time': NOW, 'nodes': {
                '0': [5 * 10 ** 9, 20 * 10 ** 9],
                '1-2': [3 * 10 ** 9, 10 * 10 ** 9],
                '3': [5 * 10 ** 9, None]}},
            json.loads(written[stats.KEY]))
        self.assertEqual(
            stats.Measured(30.0, {0: 0.25, 1: 0.3, 2: 0.3}),
            stats.from_stats(written, NOW + 30))

    def test_a_part_is_told_as_one(self):
        written = stats.to_stats(trees.snapshot(
            trees.node((0,), 5e9, 10 ** 10, rates.State.UNASSIGNED),
            trees.node((1, 2), 5e9, 10 ** 10, rates.State.FIRST),
            trees.node((3,), 5e9, 10 ** 10)), NOW)
        self.assertEqual(
            stats.Measured(0.0, dict.fromkeys(range(4), 0.5),
                           frozenset({0, 1, 2})),
            stats.from_stats(written, NOW))

    def test_counters_that_were_read_once_report_nothing(self):
        host = trees.Host('intel')
        self.addCleanup(host.remove)
        self.assertEqual({}, stats.to_stats(host.snapshot(), NOW))
        host.run(60.0)
        self.assertEqual({0: 0.0, 1: 0.0}, stats.from_stats(
            stats.to_stats(host.snapshot(), NOW), NOW).share)

    def test_hosts_without_it(self):
        for text in ({}, {stats.KEY: None}, {stats.KEY: ''},
                     {stats.KEY: '{'}, {'uptime': '3 days'}):
            self.assertIsNone(stats.from_stats(text, NOW))

    @given(st.text() | _json.map(json.dumps))
    def test_anything_is_a_share_or_nothing(self, text):
        found = stats.from_stats({stats.KEY: text}, NOW)
        for share in found.share.values() if found else ():
            self.assertGreaterEqual(share, 0)

    @given(_json, _json, st.floats() | st.integers(), _json)
    def test_anything_as_a_node(self, used, capacity, when, parts):
        stats.from_stats({stats.KEY: json.dumps(
            {'time': when, 'nodes': {'0': [used, capacity]},
             'parts': parts})}, NOW)
