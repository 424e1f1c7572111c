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

"""Load and waiting in ghsched-top."""

from ghsched_nova.features.load import top_load
from ghsched_placement.features.load.load import GuestNodeLoad
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.tests import base

LOAD = HostLoad(10.0, 2.0, (
    HostNodeLoad(0, cpu_load=1.0, cpu_wait=0.496, memory_wait=0.0, io_wait=2.5,
                 bottlenecks=('cpu_load', 'cpu_wait')),
    HostNodeLoad(1)), (
        GuestNodeLoad('u', 0, 0, 1, cpu_load=1.0, cpu_wait=0.5),
        GuestNodeLoad('u', 1, 0, 3, cpu_load=0.2, cpu_wait=0.1),
        GuestNodeLoad('u', 2, 1, 2, cpu_load=0.5),
        GuestNodeLoad('v', 0, None, 1, cpu_load=1.0)))


class TopLoadTest(base.TestCase):

    def test_unknown_values_of_a_node_are_no_numbers(self):
        self.assertEqual([
            ['0', '100.0', '49.6', '-', '0.0', '-', '-', '2.5',
             'cpu_load cpu_wait'],
            ['1', *['-'] * 8]], top_load.format_node_load_rows(LOAD))

    def test_nodes_of_a_guest_on_one_host_node_count_by_their_vcpus(self):
        self.assertEqual(['40.0', '20.0'],
                         top_load.format_guest_load_cells(LOAD, 'u', (0,)))
        self.assertEqual(['50.0', '-'],
                         top_load.format_guest_load_cells(LOAD, 'u', (1,)))
        # Of three of five vCPUs a mean of all is not known.
        self.assertEqual(['43.3', '-'],
                         top_load.format_guest_load_cells(LOAD, 'u', (0, 1)))

    def test_a_guest_without_figures(self):
        for uuid, measured in (('v', LOAD), ('w', LOAD), ('', LOAD),
                               ('u', None)):
            self.assertEqual(['-', '-'], top_load.format_guest_load_cells(
                measured, uuid, (0,)))

    def test_the_record_is_that_of_reports(self):
        self.assertIsNone(top_load.make_load_document(None))
        found = top_load.make_load_document(LOAD)
        self.assertEqual((1, 2), (found['version'], len(found['nodes'])))
        self.assertEqual({'node': 1}, found['nodes'][1])
