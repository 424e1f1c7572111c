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

from ghsched_placement.base import decimals
from ghsched_placement.tests import base


class DecimalTest(base.TestCase):

    def test_decimal_of_a_number_is_the_number(self):
        for text, number in (('0', 0), (' 12\n', 12), ('007', 7),
                             ('9' * 20, 10 ** 20 - 1)):
            self.assertEqual(number, decimals.parse_decimal(text))

    def test_decimal_of_another_text_is_none(self):
        for text in ('', '-1', '+1', '1.0', '1e3', '0x1', '²', '١', '1 2',
                     '9' * 21, '9' * 5000, 'x', '1_0'):
            self.assertIsNone(decimals.parse_decimal(text), text)

    @given(st.text())
    def test_decimal_of_any_text_is_a_number_or_none(self, text):
        found = decimals.parse_decimal(text)
        self.assertTrue(found is None or 0 <= found < 10 ** 20)
