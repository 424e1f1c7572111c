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

"""Loads of host NUMA nodes, as commands show them."""

from ghsched_placement.features.load import host_load
from ghsched_placement.tests import base


class LoadsTest(base.TestCase):

    def test_a_node_says_what_is_known_and_where_it_is_a_bottleneck(self):
        found = host_load.LoadsCell([{
            'node': 1, 'cpu_load': 0.954, 'cpu_wait': 0.0, 'io_wait': 2.0,
            'remote': 0.25, 'bottlenecks': ('cpu_load',)}, {'node': 2}])
        self.assertEqual(
            'node 1: cpu load 95 %, cpu wait 0 %, io wait 2.0 requests, '
            '25 % remote memory, a bottleneck by cpu_load\n'
            'node 2: nothing is known', found.human_readable())
