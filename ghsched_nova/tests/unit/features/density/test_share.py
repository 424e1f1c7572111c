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
import math

from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.density.share import Claim
from ghsched_placement.features.density.share import share_bandwidth
from ghsched_placement.tests import base

CAPACITY = 100.0
NEAR = 1e-6

figures = st.integers(0, 2500).map(lambda number: number / 10)
claims = st.builds(
    Claim, demand=figures, minimum=figures,
    maximum=figures | st.just(math.inf), hardlimit=st.booleans(),
    priority=st.integers(0, 7))
several = st.lists(claims, min_size=1, max_size=6)


class PropertyTest(base.TestCase):

    @given(several)
    def test_no_more_than_there_is_and_than_was_asked(self, asked):
        got = share_bandwidth(CAPACITY, asked)
        self.assertLessEqual(sum(got), CAPACITY + NEAR)
        for claim, amount in zip(asked, got, strict=True):
            self.assertGreaterEqual(amount, 0)
            self.assertLessEqual(amount, claim.demand + NEAR)

    @given(several)
    def test_a_hard_cap_holds_whatever_is_idle(self, asked):
        for claim, amount in zip(
                asked, share_bandwidth(CAPACITY, asked), strict=True):
            if claim.hardlimit:
                self.assertLessEqual(amount, claim.maximum + NEAR)

    @given(several)
    def test_a_soft_cap_holds_while_others_want_bandwidth(self, asked):
        got = share_bandwidth(CAPACITY, asked)
        beyond = any(amount > claim.maximum + NEAR
                     for claim, amount in zip(asked, got, strict=True))
        if beyond:
            for claim, amount in zip(asked, got, strict=True):
                self.assertGreaterEqual(amount, claim.capped_demand - NEAR)

    @given(several)
    def test_a_feasible_guarantee_is_never_starved(self, asked):
        assume(sum(claim.minimum for claim in asked) <= CAPACITY)
        for claim, amount in zip(
                asked, share_bandwidth(CAPACITY, asked), strict=True):
            self.assertGreaterEqual(
                amount,
                min(claim.demand, claim.minimum, claim.maximum) - NEAR)

    @given(several)
    def test_usable_entries_are_used(self, asked):
        most = sum(claim.max_bandwidth for claim in asked)
        self.assertAlmostEqual(min(CAPACITY, most),
                               sum(share_bandwidth(CAPACITY, asked)), places=5)

    @given(several, st.integers(0, 7))
    def test_a_higher_priority_never_gives_less(self, asked, priority):
        assume(priority > asked[0].priority)
        raised = [replace(asked[0], priority=priority), *asked[1:]]
        self.assertGreaterEqual(share_bandwidth(CAPACITY, raised)[0],
                                share_bandwidth(CAPACITY, asked)[0] - NEAR)

    @given(several, figures)
    def test_more_demand_of_others_never_helps(self, asked, more):
        assume(len(asked) > 1)
        loud = [asked[0], replace(asked[1], demand=asked[1].demand + more),
                *asked[2:]]
        self.assertLessEqual(share_bandwidth(CAPACITY, loud)[0],
                             share_bandwidth(CAPACITY, asked)[0] + NEAR)

    @given(several, figures)
    def test_a_higher_guarantee_never_gives_less(self, asked, more):
        favoured = [replace(asked[0], minimum=asked[0].minimum + more),
                    *asked[1:]]
        self.assertGreaterEqual(share_bandwidth(CAPACITY, favoured)[0],
                                share_bandwidth(CAPACITY, asked)[0] - NEAR)


class ShareTest(base.TestCase):

    def test_equals_share_by_what_they_ask(self):
        self.assertEqual((25.0, 75.0),
                         share_bandwidth(CAPACITY, [Claim(50), Claim(150)]))

    def test_a_guarantee_below_the_equal_part_changes_nothing(self):
        # The manual: for n equal guests, set it above 100/n to favour one.
        self.assertEqual(
            (50.0, 50.0),
            share_bandwidth(CAPACITY, [Claim(200, minimum=40), Claim(200)]))

    def test_a_guarantee_above_the_equal_part_favours(self):
        self.assertEqual(
            (90.0, 10.0),
            share_bandwidth(CAPACITY, [Claim(200, minimum=90), Claim(200)]))

    def test_guarantees_that_do_not_fit_shrink_alike(self):
        self.assertEqual((80.0, 20.0, 0.0),
                         share_bandwidth(CAPACITY, [Claim(200, minimum=160),
                                                    Claim(200, minimum=40),
                                                    Claim(200, priority=7)]))

    def test_the_higher_priority_wins(self):
        self.assertEqual((70.0, 30.0), share_bandwidth(
            CAPACITY, [Claim(70, priority=7), Claim(200)]))

    def test_idle_bandwidth_goes_beyond_soft_limits_only(self):
        self.assertEqual((10.0, 60.0), share_bandwidth(
            CAPACITY, [Claim(200, maximum=10), Claim(60)]))
        self.assertEqual((40.0, 60.0), share_bandwidth(
            CAPACITY, [Claim(200, maximum=10, hardlimit=False), Claim(60)]))

    def test_nothing_is_asked(self):
        self.assertEqual((), share_bandwidth(CAPACITY, []))
        self.assertEqual((0.0,), share_bandwidth(CAPACITY, [Claim(0)]))
