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

"""A small, fixed part of tools/fuzz_engine.py."""


from ghsched_nova.tests.unit.resctrl import fuzz
from ghsched_placement.tests import base

CASES = 120


class EngineTest(base.TestCase):

    def test_any_host_is_repaired_whatever_was_done_to_it(self):
        count = fuzz.Count()
        for number in range(CASES):
            fuzz.run(1, number, count)
        self.assertEqual([], count.failures)
        self.assertEqual(len(fuzz.DIALECTS), len(count.dialects))
        self.assertLess(CASES // 4, count.killed)
        self.assertLess(CASES // 8, count.refused)
