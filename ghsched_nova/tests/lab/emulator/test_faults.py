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


import errno

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import faults
from ghsched_placement.tests import base


class FaultsTest(base.TestCase):
    def test_short_form_is_an_errno(self):
        found = faults.parse({'mkdir': 'ENOSPC'}).take('mkdir', ['a'])
        self.assertEqual([errno.ENOSPC], [x.error for x in found])

    def test_pattern_is_held_against_the_subject(self):
        some = faults.parse({'schemata:MBMIN': 'EINVAL'})
        self.assertEqual([], some.take('schemata', ['MB', 'L3']))
        self.assertEqual(1, len(some.take('schemata', ['MB', 'MBMIN'])))

    def test_match_is_held_against_the_group(self):
        some = faults.parse({'tasks': {'error': 'ESRCH', 'match': 'qemu-*'}})
        self.assertEqual([], some.take('tasks', ['a'], 'a'))
        self.assertEqual(1, len(some.take('tasks', ['qemu-1'], 'qemu-1')))

    def test_times_counts_down(self):
        some = faults.parse({'mkdir': {'error': 'EBUSY', 'times': 2}})
        struck = [len(some.take('mkdir', ['a'])) for _ in range(3)]
        self.assertEqual([1, 1, 0], struck)

    def test_monitor_text(self):
        found = faults.parse({'mon': 'Unavailable'}).take('mon', ['x'])
        self.assertEqual(['Unavailable'], [x.text for x in found])

    def test_list_is_several_faults(self):
        some = faults.parse({'rmdir': ['EBUSY', {'delay': 0.1}]})
        self.assertEqual(2, len(some.take('rmdir', ['a'])))

    def test_invalid_values_are_refused(self):
        for spec in (
            {'mkdri': 'ENOSPC'}, {'mkdir': 'ENOSUCH'}, {'mkdir': 5},
            {'mkdir': {'err': 'EIO'}}, {'mkdir': {'times': 'x'}},
        ):
            self.assertRaises(faults.BadFault, faults.parse, spec)
        self.assertRaises(faults.BadFault, faults.parse_text, '[]')

    @given(st.text(max_size=30))
    def test_any_text_is_read_or_refused(self, text):
        try:
            faults.parse_text(text)
        except faults.BadFault:
            pass
