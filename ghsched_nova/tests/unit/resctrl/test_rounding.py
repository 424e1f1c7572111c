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


from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.resctrl import rounding
from ghsched_placement.tests import base


def _half_up(number):
    return int(number + Fraction(1, 2))


def _kernel(percent, bits, granularity):
    """What drivers/resctrl/mpam_resctrl.c shows after a write."""
    if granularity:                   # Linux 7.1 and 7.2
        percent = -(-percent // granularity) * granularity
    band = max(_half_up(Fraction(percent * 2 ** bits, 100)), 1)
    # A band beyond the last does not fit into the 16 bits.
    band = (band - 1) % 2 ** bits + 1
    return _half_up(Fraction(band * 100, 2 ** bits))


class FractionsTest(base.TestCase):

    def test_each_control_is_known_by_its_two_numbers(self):
        for (granularity, minimum), bits in rounding.FRACTIONS.items():
            self.assertEqual(-(-100 // 2 ** bits), granularity)
            self.assertEqual(_half_up(Fraction(100, 2 ** bits)), minimum)

    def test_what_is_written_becomes_the_same_on_every_kernel(self):
        for (granularity, minimum), bits in rounding.FRACTIONS.items():
            held = rounding.fractions(granularity, minimum)
            self.assertEqual(sorted(held), list(held))
            self.assertEqual(100, list(held)[-1])
            for shown, percent in held.items():
                self.assertTrue(minimum <= percent <= 100)
                for rounded_first in (0, granularity):
                    self.assertEqual(
                        shown, _kernel(percent, bits, rounded_first))

    def test_a_cap_goes_to_the_next_fraction_that_7_2_can_reach(self):
        for (granularity, minimum), bits in rounding.FRACTIONS.items():
            reached = {_kernel(percent, bits, granularity)
                       for percent in range(1, 101)}
            for asked in range(1, 101):
                held = next(shown for shown in rounding.fractions(
                    granularity, minimum) if shown >= asked)
                self.assertEqual(min(shown for shown in reached
                                     if shown >= asked), held)

    def test_100_is_held_but_by_a_control_of_four_bits_before_7_3(self):
        wrong = [bits for (granularity, _minimum), bits
                 in rounding.FRACTIONS.items()
                 if _kernel(100, bits, granularity) != 100]
        self.assertEqual([4], wrong)
        self.assertEqual(100, _kernel(100, 4, 0))

    def test_four_bits_reach_the_maximum_by_less_than_100(self):
        self.assertEqual(98, rounding.rewritten(7, 6)[100])

    def test_from_seven_bits_on_each_percentage_is_held(self):
        everything = {percent: percent for percent in range(1, 101)}
        self.assertEqual(everything, rounding.fractions(1, 1))
        self.assertEqual(everything, rounding.fractions(1, 0))
        self.assertEqual({}, rounding.rewritten(1, 1))

    def test_no_such_control(self):
        self.assertRaises(KeyError, rounding.fractions, 10, 10)


class ShownInsteadTest(base.TestCase):

    def test_it_is_near_to_what_was_written(self):
        for percent in range(101):
            for shown in rounding.shown_instead(percent):
                self.assertTrue(percent - 2 <= shown <= percent + 1)

    def test_the_ends(self):
        # The manual of OLK-6.6: echo "MB:1=0000001" reads 0000000.
        self.assertIn(0, rounding.shown_instead(1))
        self.assertEqual({100}, rounding.shown_instead(100))
        self.assertEqual({0}, rounding.shown_instead(0))


class MultipleTest(base.TestCase):

    @given(st.integers(0, 2 ** 32), st.integers(1, 1000))
    def test_it_is_the_next(self, value, granularity):
        found = rounding.multiple(value, granularity)
        self.assertEqual(0, found % granularity)
        self.assertTrue(value <= found < value + granularity)
