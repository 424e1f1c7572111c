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

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.density import queueing
from ghsched_placement.features.density.share import Claim
from ghsched_placement.features.density.share import share_bandwidth
from ghsched_placement.features.density import shipped
from ghsched_placement.tests import base

CAPACITY = 100.0


def some(most):
    """Claims that ask for so much at most, each."""
    return st.lists(st.builds(
        Claim, demand=st.integers(0, most), minimum=st.integers(0, 100),
        maximum=st.integers(1, 100), hardlimit=st.booleans(),
        priority=st.integers(0, 7)), min_size=1, max_size=5)


def waits(*asked):
    return queueing.get_control_group_delays(
        CAPACITY, asked, share_bandwidth(CAPACITY, asked))


class WaitTest(base.TestCase):

    def test_one_class_waits_as_in_an_open_queue(self):
        self.assertAlmostEqual(1.0, queueing.get_mean_queueing_delay(0.5))
        self.assertAlmostEqual(1.0, waits(Claim(20), Claim(30))[0])

    def test_a_full_server_is_taken_for_nearly_full(self):
        self.assertAlmostEqual(49.0, queueing.get_mean_queueing_delay(1.0))
        self.assertAlmostEqual(49.0, waits(Claim(200))[0])

    def test_the_higher_priority_waits_less(self):
        high, low = waits(Claim(30, priority=7), Claim(30))
        self.assertAlmostEqual(0.6 / 0.7, high)
        self.assertAlmostEqual(0.6 / (0.7 * 0.4), low)

    def test_below_its_guarantee_a_claim_goes_first(self):
        guaranteed, high = waits(Claim(30, minimum=30),
                                 Claim(30, priority=7))
        self.assertLess(guaranteed, high)

    def test_one_with_no_traffic_waits_as_its_traffic_would(self):
        for kind in ({}, {'minimum': 5}, {'priority': 7},
                     {'maximum': 5, 'hardlimit': False}):
            self.assertAlmostEqual(waits(Claim(40), Claim(0.001, **kind))[1],
                                   waits(Claim(40), Claim(0, **kind))[1],
                                   places=4)

    def test_blocked_traffic_waits_as_well(self):
        # 20 of 30 go first, 10 go with the rest of 200 to a full server.
        wait, _other = waits(Claim(30, minimum=20), Claim(200))
        self.assertAlmostEqual(
            (20 * 0.98 / 0.8 + 10 * 0.98 / (0.8 * 0.02)) / 30, wait)

    def test_a_higher_priority_on_a_full_server(self):
        # It lets a little more through, of a class that waits long.
        others = (Claim(16, maximum=80, hardlimit=False, priority=4),
                  Claim(293, maximum=50, hardlimit=False, priority=2),
                  Claim(20, priority=2))
        before, after = (Claim(30, minimum=20, priority=priority)
                         for priority in (1, 2))
        self.assertLess(share_bandwidth(CAPACITY, [before, *others])[0],
                        share_bandwidth(CAPACITY, [after, *others])[0])
        self.assertLess(waits(after, *others)[0], waits(before, *others)[0])

    @given(some(250), st.integers(0, 7))
    def test_a_higher_priority_never_waits_longer(self, asked, priority):
        raised = [replace(asked[0],
                          priority=max(priority, asked[0].priority)),
                  *asked[1:]]
        self.assertLessEqual(waits(*raised)[0],
                             waits(*asked)[0] * (1 + 1e-9))

    def test_deliverable_is_what_the_curve_reaches(self):
        self.assertEqual(
            100.0, queueing.get_deliverable_bandwidth(100.0, None))
        self.assertAlmostEqual(
            82.8, queueing.get_deliverable_bandwidth(
                100.0, shipped.load_shipped_curve('mess-graviton3')))

    def test_first_access_of_full_memory_waits_for_one_in_service(self):
        curve = shipped.load_shipped_curve('mess-graviton3')
        asked = Claim(5, minimum=5), Claim(1000)
        found = queueing.get_control_group_delays(
            CAPACITY, asked, share_bandwidth(
                queueing.get_deliverable_bandwidth(CAPACITY, curve), asked),
            curve)
        # Memory is never idle; 5 % of it is used by what goes first.
        self.assertAlmostEqual(0.98 * curve.get_latency(0.05), found[0])
        # What goes last waits as the curve and the order say.
        full = curve.get_latency(0.828)
        self.assertAlmostEqual(
            (1 - 1 / full) * curve.get_latency(0.05) * full, found[1],
            places=6)

    def test_priority_at_the_entrance_saves_no_wait_in_the_controller(self):
        asked = Claim(30, minimum=30, priority=7), Claim(30)
        entrance = queueing.get_control_group_delays(
            CAPACITY, asked, share_bandwidth(CAPACITY, asked),
            enforcement=queueing.Enforcement(queueing.ENTRANCE))
        self.assertAlmostEqual(0.6 / 0.4, entrance[0])
        self.assertAlmostEqual(0.6 / 0.4, entrance[1])
        self.assertLess(waits(*asked)[0], entrance[0])

    def test_cap_counted_over_a_window_costs_the_time_without_it(self):
        # Half of the time the streams take all that is there (0.98 busy),
        # and the other half nothing: the mean of both waits.
        asked = Claim(10), Claim(1000, maximum=50)
        found = self.windowed(*asked)
        part = 50 / (100 * 1000 / 1010)
        self.assertAlmostEqual(part * 49 + (1 - part) * 0.1 / 0.9, found[0])
        self.assertGreater(found[0], waits(*asked)[0])

    def windowed(self, *asked):
        return queueing.get_control_group_delays(
            CAPACITY, asked, share_bandwidth(CAPACITY, asked),
            enforcement=queueing.Enforcement(cap_window_us=100))

    @given(some(250))
    def test_windows_never_shorten_a_wait_or_change_one_without_caps(
            self, asked):
        even, windowed = waits(*asked), self.windowed(*asked)
        held = any(one.hardlimit and one.demand > one.maximum
                   for one in asked)
        for one, other in zip(even, windowed, strict=True):
            self.assertGreaterEqual(other, one)
            if not held:
                self.assertAlmostEqual(one, other)

    @given(some(250))
    def test_waits_are_finite_and_not_negative(self, asked):
        for one in waits(*asked):
            self.assertGreaterEqual(one, 0)
            self.assertLess(one, 1e4)
