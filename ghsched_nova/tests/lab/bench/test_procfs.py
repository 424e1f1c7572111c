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

from ghsched_nova.lab.bench.parsers import procfs
from ghsched_placement.tests import base

counts = st.dictionaries(st.from_regex('[a-z_]{1,20}', fullmatch=True),
                         st.integers(0, 10 ** 19))


class ProcfsTest(base.TestCase):

    @given(counts)
    def test_counters_are_read_as_they_are_written(self, found):
        self.assertEqual(found, procfs.counters(''.join(
            f'{name} {value}\n' for name, value in found.items())))

    def test_stalls(self):
        self.assertEqual({'some': 1234, 'full': 5}, procfs.stalls(
            'some avg10=0.00 avg60=1.50 avg300=0.70 total=1234\n'
            'full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n'))

    def test_tasks_that_are_gone_are_left_out(self):
        self.assertEqual({1: (20, 3)}, procfs.times(
            [(1, '20 3 7'), (2, ''), (3, '20 x 7'), (4, '1 2')]))

    @given(st.text())
    def test_any_text_is_read_or_is_nothing(self, text):
        self.assertIsInstance(procfs.counters(text), dict)
        self.assertIsInstance(procfs.stalls(text), dict)
        self.assertIsInstance(procfs.times([(1, text)]), dict)
