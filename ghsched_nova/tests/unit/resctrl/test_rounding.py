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


from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.resctrl import rounding
from ghsched_placement.tests import base

_READINGS = st.lists(st.none() | st.integers(0, 100),
                     min_size=101, max_size=101)


def shown(driver, bits, percent):
    return conversions.table(driver, bits).shown[percent]


class FractionsTest(base.TestCase):
    """Against the recorded arithmetic of the driver."""

    def test_width_of_a_control_follows_from_its_two_numbers(self):
        for (granularity, minimum), bits in rounding.FRACTIONS.items():
            table = conversions.table('linux', bits)
            self.assertEqual((table.bandwidth_gran, table.min_bandwidth),
                             (granularity, minimum))
        for bits in range(9, 17):
            table = conversions.table('linux', bits)
            self.assertEqual(8, rounding.FRACTIONS[
                table.bandwidth_gran, table.min_bandwidth])

    def test_written_values_are_shown_alike_by_each_mainline_kernel(self):
        for (granularity, minimum), bits in rounding.FRACTIONS.items():
            scale = rounding.make_mpam_percentages(granularity, minimum)
            self.assertEqual(sorted(scale.written), list(scale.written))
            self.assertEqual(100, scale.highest_percent)
            for value, percent in scale.written.items():
                self.assertTrue(minimum <= percent <= 100)
                for driver in ('linux', 'linux-unrounded'):
                    self.assertEqual(value, shown(driver, bits, percent))

    def test_cap_goes_to_the_next_fraction_that_a_rounding_kernel_shows(self):
        for (granularity, minimum), bits in rounding.FRACTIONS.items():
            reached = set(conversions.table('linux', bits).shown)
            for asked in range(1, 101):
                self.assertEqual(
                    min(value for value in reached if value >= asked),
                    rounding.make_mpam_percentages(
                        granularity, minimum
                    ).round_percent_up(asked),
                )

    def test_four_bits_show_100_for_less_than_100_alone(self):
        self.assertEqual(6, shown('linux', 4, 100))
        self.assertEqual(100, shown('linux-unrounded', 4, 100))
        self.assertEqual(
            98, rounding.make_mpam_percentages(7, 6).written[100]
        )

    def test_each_percentage_is_shown_from_seven_bits_on(self):
        everything = {percent: percent for percent in range(1, 101)}
        for minimum in (0, 1):
            scale = rounding.make_mpam_percentages(1, minimum)
            self.assertEqual(everything, scale.written)

    def test_numbers_of_no_control_are_refused(self):
        self.assertRaises(KeyError, rounding.make_mpam_percentages, 10, 10)


class ScaleTest(base.TestCase):

    @given(_READINGS, st.integers(0, 100))
    def test_scale_from_readings_finds_the_nearest_shown_values(
            self, readings, asked):
        scale = rounding.SettablePercentages.from_readings(readings)
        known = {value for value in readings if value is not None}
        self.assertEqual(
            min((value for value in known if value >= asked), default=None),
            scale.round_percent_up(asked))
        self.assertEqual(
            max((value for value in known if value <= asked), default=0),
            scale.round_percent_down(asked))
        for value, written in scale.written.items():
            self.assertEqual(value, readings[written])
            same = [one for one, shown_ in enumerate(readings)
                    if shown_ == value]
            self.assertEqual(value if value in same else same[0], written)


class MultipleTest(base.TestCase):

    @given(st.integers(0, 2 ** 32), st.integers(1, 1000))
    def test_it_is_the_next(self, value, granularity):
        found = rounding.round_up_to_multiple(value, granularity)
        self.assertEqual(0, found % granularity)
        self.assertTrue(value <= found < value + granularity)
