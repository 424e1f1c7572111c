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


"""A small, fixed part of tools/fuzz_engine.py --described."""

from ghsched_nova.tests.unit.resctrl import described_fuzz
from ghsched_nova.tests.unit.resctrl import fuzz
from ghsched_placement.tests import base

CASES = 120


class DescribedTest(base.TestCase):

    def test_controls_of_any_description_are_held_within_their_tolerance(self):
        count = fuzz.Count()
        for number in range(CASES):
            described_fuzz.run(1, number, count)
        self.assertEqual([], count.failures)
        self.assertLess(CASES // 10, count.killed)
        self.assertLess(CASES, count.guests)
