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


import testtools

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import schemata
from ghsched_placement import names

INTEL_INFO = {'MB/delay_linear': '1\n',
              'MB/thread_throttle_mode': 'per-thread\n'}


class CapabilitiesTestCase(testtools.TestCase):

    def test_openeuler_holds_all(self):
        self.assertEqual(frozenset(names.CAPABILITY_TRAITS) - {'DEVICE_NUMA'},
                         dialects.OPENEULER_66.capabilities())

    def test_intel_holds_hard_caps_alone(self):
        self.assertEqual(
            {'MEM_BW_MAX', 'MEM_BW_HARDLIMIT', 'MEM_BW_MONITOR'},
            dialects.INTEL.capabilities())

    def test_openeuler_without_a_hardlimit_line_promises_neither(self):
        # What such hardware does with a cap while bandwidth is idle is not
        # documented.
        held = dialects.OPENEULER_66.narrowed(
            frozenset({'MB', 'MBPRI'})).capabilities()
        self.assertEqual({'MEM_BW_MAX', 'MEM_BW_PRIORITY', 'MEM_BW_MONITOR'},
                         held)

    def test_a_dialect_is_found_by_its_name(self):
        for dialect in dialects.ALL:
            self.assertIs(dialect, dialects.BY_NAME[dialect.name])


class DetectTestCase(testtools.TestCase):

    def _detect(self, info, text):
        return dialects.detect(info, schemata.parse(text))

    def _why(self, info, text):
        root = schemata.parse(text)
        self.assertIsNone(dialects.detect(info, root))
        return dialects.why_unknown(info, root)

    def test_openeuler_is_known_by_its_lines(self):
        found = self._detect({}, 'MB:0=100\nMBHDL:0=1\nMBPRI:0=3\nMBMIN:0=0')
        self.assertEqual(dialects.OPENEULER_66, found)

    def test_only_the_knobs_that_are_there_are_kept(self):
        found = self._detect({}, 'MB:0=100\nMBPRI:0=3')
        self.assertEqual(['MB', 'MBPRI'], [k.line for k in found.knobs])
        self.assertIsNone(found.knob('minimum'))

    def test_intel_is_known_by_its_throttle_mode(self):
        self.assertEqual(dialects.INTEL,
                         self._detect(INTEL_INFO, 'L3:0=f\nMB:0=100'))

    def test_mb_alone_is_not_intel(self):
        why = self._why({'MB/delay_linear': '1'}, 'MB:0=100')
        self.assertIn('no info/MB/thread_throttle_mode', why)

    def test_a_value_out_of_range_is_not_intel(self):
        for value in (0, 101, 2048, 4294967295):
            self.assertIn(f'MB of domain 1 is {value}, outside 1..100',
                          self._why(INTEL_INFO, f'MB:0=100;1={value}'))

    def test_an_unknown_bandwidth_line_is_not_passed_over(self):
        for line in ('MBMAX', 'MB_HLIM', 'MBPBM'):
            self.assertIn(f'unknown line {line}', self._why(
                INTEL_INFO, f'MB:0=100\n{line}:0=1'))
            self.assertIn(f'unknown line {line}', self._why(
                {}, f'MB:0=100\nMBPRI:0=1\n{line}:0=1'))

    def test_a_value_that_is_no_number_is_nobodys(self):
        self.assertIn('is not a number', self._why(INTEL_INFO, 'MB:0=max'))

    def test_openeuler_5_10_is_not_6_6(self):
        self.assertIn('there is an info/MB/features',
                      self._why({'MB/features': 'mbPrio@8'},
                                'MB:0=100\nMBPRI:0=3'))
