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

"""Report of a host on a guest, written and read again."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.audit import diagnostics
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import texts

PERCENT = st.none() | st.integers(0, 100)
RATE = st.none() | st.integers(0, 10 ** 13)
REPORTS = st.builds(
    diagnostics.GuestReport,
    st.lists(st.builds(
        diagnostics.GuestNodeReport, st.integers(0, 999), PERCENT, PERCENT,
        st.none() | st.booleans(), st.none() | st.integers(0, 7), RATE,
        texts.printable(5), PERCENT, PERCENT, st.none() | st.booleans()),
        max_size=3).map(tuple),
    st.lists(st.builds(diagnostics.HostNodeReport, st.integers(0, 999), RATE,
                       RATE), max_size=3).map(tuple),
    texts.printable(10), texts.printable(10),
    st.none() | st.lists(texts.printable(5), max_size=2).map(tuple),
    st.lists(texts.printable(5), max_size=2).map(tuple),
    texts.printable(5), st.sampled_from(['', 'min', 'max']))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['guest', 'host', 'problem', 'host_node', 'domains',
                         'left', 'x']),
        inner, max_size=3))


class ReportTest(base.TestCase):

    @given(REPORTS)
    def test_survives_the_way_through_nova(self, report):
        sent = json.loads(json.dumps({
            'cpu0_time': 1, **diagnostics.make_guest_diagnostics(report)}))
        self.assertEqual(report, diagnostics.parse_guest_diagnostics(sent))

    def test_other_drivers_tell_nothing(self):
        self.assertIsNone(
            diagnostics.parse_guest_diagnostics({'cpu0_time': 1}))

    @given(JSON)
    def test_nothing_that_is_reported_is_an_error(self, found):
        diagnostics.parse_guest_diagnostics({diagnostics.KEY: found})

    def test_unknown_fields_of_a_later_release_are_dropped(self):
        found = diagnostics.parse_guest_diagnostics({diagnostics.KEY: {
            'guest': [{'host_node': 0, 'minimum': 30, 'latency': 3}],
            'host': [{'host_node': 0, 'used': 5, 'latency': 3}],
            'weather': 'fine'}})
        self.assertEqual(diagnostics.GuestReport(
            (diagnostics.GuestNodeReport(0, 30),),
            (diagnostics.HostNodeReport(0, 5),)),
            found)
