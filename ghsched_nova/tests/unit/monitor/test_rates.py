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


"""Parsing of monitor files, and the rates computed from them."""

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.monitor import rates
from ghsched_nova.monitor.rates import Figure
from ghsched_nova.monitor.rates import RateState
from ghsched_nova.monitor.rates import Reading
from ghsched_placement.tests import base

_values = st.integers(0, rates.WRAP - 1)
_times = st.floats(0, 1e6, allow_nan=False)
_readings = st.builds(
    Reading, st.sampled_from(RateState), _values, _times)


def counter(before, now):
    found = rates.compute_bandwidths({'x': before}, {'x': now},
                                     'counter_bytes')
    return found['x']


class ParseTest(base.TestCase):

    def test_words_are_no_zero(self):
        # fs/resctrl/ctrlmondata.c, rdtgroup_mondata_show()
        for text, state in ((b'Unavailable\n', RateState.UNAVAILABLE),
                            (b'Unassigned\n', RateState.UNASSIGNED),
                            (b'Error\n', RateState.ERROR)):
            self.assertEqual(Reading(state, 0, 1.0),
                             rates.parse_monitor_file(text, 1.0))
            for unit in ('rate_mb', 'counter_bytes'):
                self.assertEqual(
                    Figure(state, None),
                    rates.compute_bandwidths(
                        {}, {'x': rates.parse_monitor_file(text, 1.0)},
                        unit)['x'])

    @given(_values)
    def test_number(self, value):
        self.assertEqual(Reading(RateState.OK, value, 2.0),
                         rates.parse_monitor_file(b'%d\n' % value, 2.0))

    def test_leading_zeros_are_decimal(self):
        self.assertEqual(9, rates.parse_monitor_file(b'09\n', 0).value)

    @given(st.binary(max_size=80))
    def test_anything_is_a_state(self, text):
        reading = rates.parse_monitor_file(text, 0.0)
        if reading.state is RateState.OK:
            self.assertEqual(int(text), reading.value)
        else:
            self.assertEqual(0, reading.value)

    def test_more_than_64_bits_is_an_error(self):
        self.assertEqual(RateState.ERROR,
                         rates.parse_monitor_file(b'%d' % rates.WRAP, 0).state)


class CounterTest(base.TestCase):

    def test_rate(self):
        self.assertEqual(
            Figure(RateState.OK, 500.0),
            counter(Reading(RateState.OK, 1000, 1.0),
                    Reading(RateState.OK, 2000, 3.0)))

    def test_one_reading_gives_no_rate(self):
        now = {'x': Reading(RateState.OK, 1000, 1.0)}
        self.assertEqual({'x': Figure(RateState.FIRST, None)},
                         rates.compute_bandwidths({}, now, 'counter_bytes'))

    @given(_values, st.integers(0, 10 ** 12), st.floats(0.5, 60))
    def test_wrap(self, start, moved, elapsed):
        figure = counter(
            Reading(RateState.OK, start, 10.0),
            Reading(RateState.OK, (start + moved) % rates.WRAP,
                    10.0 + elapsed))
        self.assertEqual(RateState.OK, figure.state)
        self.assertAlmostEqual(moved / elapsed, figure.rate,
                               delta=1 + 1e-9 * moved / elapsed)

    @given(st.integers(1, 2 ** 60), st.data())
    def test_counter_that_restarts_gives_no_rate(self, before, data):
        now = data.draw(st.integers(0, before - 1))
        self.assertEqual(Figure(RateState.FIRST, None),
                         counter(Reading(RateState.OK, before, 1.0),
                                 Reading(RateState.OK, now, 2.0)))

    def test_no_rate_across_a_word(self):
        # The hardware may have begun again behind it.
        for state in RateState:
            if state is not RateState.OK:
                self.assertEqual(
                    Figure(RateState.FIRST, None),
                    counter(Reading(state, 0, 1.0),
                            Reading(RateState.OK, 5, 2.0)))

    @given(_readings, _readings)
    def test_never_negative_nor_absurd(self, before, now):
        figure = counter(before, now)
        if now.state is RateState.IDLE:
            self.assertEqual(rates.ZERO, figure)
            return
        self.assertEqual(figure.state is RateState.OK, figure.rate is not None)
        if figure.rate is not None:
            self.assertTrue(0 <= figure.rate <= rates.LIMIT, figure)
            self.assertGreater(now.when, before.when)

    @given(st.dictionaries(st.integers(0, 9), _readings),
           st.dictionaries(st.integers(0, 9), _readings))
    def test_figures_are_of_what_was_read_now(self, before, now):
        for unit in ('rate_mb', 'counter_bytes'):
            self.assertEqual(list(now), list(
                rates.compute_bandwidths(before, now, unit)))


class RateTest(base.TestCase):

    @given(_readings, _readings)
    def test_is_not_differentiated(self, before, now):
        figure = rates.compute_bandwidths(
            {'x': before}, {'x': now}, 'rate_mb')['x']
        self.assertEqual(now.state, figure.state)
        if figure.rate is not None:
            self.assertEqual(float(now.value * 10 ** 6), figure.rate)


class SumTest(base.TestCase):

    def test_known_values_are_summed_and_the_state_is_shown(self):
        self.assertEqual(rates.NOTHING, rates.sum_bandwidths([]))
        self.assertEqual(Figure(RateState.OK, 3.0), rates.sum_bandwidths(
            [Figure(RateState.OK, 1.0), Figure(RateState.OK, 2.0)]))
        self.assertEqual(Figure(RateState.UNAVAILABLE, 1.0),
                         rates.sum_bandwidths(
            [Figure(RateState.OK, 1.0), Figure(RateState.UNAVAILABLE, None)]))
        self.assertEqual(Figure(RateState.UNASSIGNED, None),
                         rates.sum_bandwidths(
            [Figure(RateState.UNASSIGNED, None)]))

    @given(st.permutations([Figure(RateState.OK, 1.0), Figure(RateState.FIRST,
                                                              None),
                            Figure(RateState.ERROR, None),
                            Figure(RateState.OK, 4.0)]))
    def test_order_does_not_matter(self, parts):
        self.assertEqual(Figure(RateState.ERROR, 5.0),
                         rates.sum_bandwidths(parts))

    def test_rest_is_never_negative(self):
        whole = Figure(RateState.OK, 5.0)
        self.assertEqual(Figure(RateState.OK, 3.0), rates.subtract_bandwidths(
            whole, [Figure(RateState.OK, 2.0)]))
        self.assertEqual(Figure(RateState.OK, 0.0), rates.subtract_bandwidths(
            whole, [Figure(RateState.OK, 9.0)]))
        self.assertEqual(whole, rates.subtract_bandwidths(
            whole, [Figure(RateState.UNASSIGNED, None)]))
        nothing = Figure(RateState.ERROR, None)
        self.assertEqual(nothing, rates.subtract_bandwidths(nothing, [whole]))
