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

"""Steps to find the host NUMA nodes of a guest, for the worst flavors."""

import dataclasses
import importlib
from pathlib import Path
import sys
from unittest import mock

from ghsched_placement import node_assignment
from ghsched_placement.tests import base

TOP = Path(__file__).parents[4]
with mock.patch('sys.path', [str(TOP / 'tools/bench'), *sys.path]):
    candidates_bench = importlib.import_module('candidates_bench')

GUESTS = (8, 10, 12, 16)


class StepsTest(base.TestCase):
    """A step is less than a microsecond of a processor that is not busy."""

    def test_place_takes_about_20_ms_at_most(self):
        for case in candidates_bench.cases(GUESTS, 16):
            result = candidates_bench.measure(case)
            # Without a way all candidates are read.
            self.assertLess(result.steps, node_assignment.MAX_STEPS * (
                1.15 if result.ways else 1.3), case)
            if case.is_full and case.guest == 16:
                self.assertEqual(0, result.ways, case)

    def test_place_with_few_guest_nodes_takes_20_ms_at_most(self):
        """More guest nodes with groups take too long in Placement itself."""
        for case in candidates_bench.cases((1, 2, 4, 5, 6, 7), 16):
            result = candidates_bench.measure(case)
            self.assertLess(result.steps, 1.15 * node_assignment.MAX_STEPS,
                            case)

    def test_place_of_one_candidate_finds_as_many_ways_as_are_tried(self):
        for kind in candidates_bench.KINDS[:2]:
            for guest in range(3, 17):
                case = candidates_bench.Case(kind, guest, count=1)
                self.assertEqual(candidates_bench.TRIED,
                                 candidates_bench.measure(case).ways, case)

    def test_place_without_a_limit_of_steps_takes_more(self):
        case = dataclasses.replace(candidates_bench.Case('VFs', 6),
                                   is_busy=True)
        self.patch(node_assignment, 'MAX_STEPS', 10 ** 9)
        self.assertGreater(candidates_bench.measure(case).steps, 50000)
