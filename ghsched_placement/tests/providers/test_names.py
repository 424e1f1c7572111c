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

from ghsched_placement.providers import names
from ghsched_placement.tests import base


class OrderTest(base.TestCase):

    @given(st.lists(st.integers(0, 1023), min_size=1, max_size=16))
    def test_the_order_is_read_as_written(self, nodes):
        physnet = names.make_host_nodes_physnet(nodes)
        self.assertEqual(tuple(nodes), names.parse_host_nodes_physnet(physnet))
        # Nova keeps limits as JSON in a column without a limit, and physical
        # networks are names of up to 255 characters elsewhere.
        self.assertLess(len(physnet), 255)

    @given(st.text(max_size=30))
    def test_other_networks_are_no_order(self, text):
        self.assertIsNone(names.parse_host_nodes_physnet(text))

    def test_a_node_alone_is_no_order(self):
        self.assertIsNone(
            names.parse_host_nodes_physnet(names.make_node_physnet(3)))
        self.assertIsNone(names.parse_host_nodes_physnet('ghsched-order'))
        self.assertIsNone(names.parse_host_nodes_physnet('ghsched-order-1-'))
