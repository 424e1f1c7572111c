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


import itertools

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.base import cpulist
from ghsched_placement.tests import base

CPUS = st.frozensets(st.integers(0, cpulist.MAX_CPUS - 1), max_size=40)


class RenderTest(base.TestCase):

    def test_writes_what_libvirt_writes(self):
        for cpus, text in (((), ''), ((3,), '3'), ((0, 1), '0-1'),
                           ((8, 0, 1, 2, 3), '0-3,8'),
                           ((0, 2, 8, 9), '0,2,8-9')):
            self.assertEqual(text, cpulist.render_cpu_list(cpus))

    @given(CPUS)
    def test_parse_reads_back_what_render_wrote(self, cpus):
        self.assertEqual(cpus,
                         cpulist.parse_cpu_list(cpulist.render_cpu_list(cpus)))

    @given(CPUS)
    def test_neighbours_never_stand_apart(self, cpus):
        parts = [part.split('-')
                 for part in cpulist.render_cpu_list(cpus).split(',')]
        for before, after in itertools.pairwise(parts):
            self.assertGreater(int(after[0]), int(before[-1]) + 1)


class ParseTest(base.TestCase):

    def test_blanks_overlaps_and_exclusions(self):
        for text, cpus in (('', ()), (' 0 - 3 ', None), ('0-3, 8', (0, 1, 2,
                                                                    3, 8)),
                           ('2,1,1-2', (1, 2)), ('^1,0-3,^3', (0, 2)),
                           ('0-7,^2-5', (0, 1, 6, 7)), ('3,,4,', (3, 4))):
            if cpus is None:
                self.assertRaises(cpulist.CpuListError, cpulist.parse_cpu_list,
                                  text)
            else:
                self.assertEqual(frozenset(cpus), cpulist.parse_cpu_list(text))

    def test_refusal_quotes_the_rule(self):
        for text, reason in (('0-x', 'neither a CPU number'),
                             ('0,-3', "'-3'"), ('1_0', "'1_0'"),
                             ('٣', 'neither'), ('5-2', 'backwards'),
                             ('0-16384', 'beyond CPU 16383'),
                             ('0-99999999999', 'neither')):
            with self.assertRaisesRegex(cpulist.CpuListError, reason):
                cpulist.parse_cpu_list(text)

    @given(st.text(alphabet='0123456789-,^ \nx', max_size=12))
    def test_any_text_is_read_or_refused(self, text):
        try:
            cpus = cpulist.parse_cpu_list(text)
        except cpulist.CpuListError:
            return
        self.assertEqual(cpus,
                         cpulist.parse_cpu_list(cpulist.render_cpu_list(cpus)))
