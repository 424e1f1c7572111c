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

from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import move_messages
from ghsched_placement.features.live_change.node_move import NodeMove
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.tests import base

NUMBERS = st.integers(0, 64)
CELLS = st.builds(
    GuestCell, NUMBERS, st.frozensets(NUMBERS),
    st.dictionaries(NUMBERS, NUMBERS), st.frozensets(NUMBERS), NUMBERS,
    st.none() | NUMBERS)


class MoveMessageTest(base.TestCase):

    @given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=3),
           st.dictionaries(NUMBERS, st.frozensets(NUMBERS)))
    def test_packed_values_are_read_back(self, cells, shared):
        before, after = zip(*cells, strict=True)
        nodes = {cell.host_node for cell in before + after}
        request = move_messages.MoveRequest(
            NodeMove(before, after),
            {node: shared.get(node, frozenset()) for node in nodes})
        self.assertEqual(request, move_messages.unpack_move(
            move_messages.pack_move(request)))

    def test_unpack_number_that_no_host_has_is_refused(self):
        cell = {'host_node': 0, 'vcpus': [0], 'pins': [[0, 4]],
                'reserved': [1], 'memory': 1, 'page_size': 4, 'shared': [2]}
        move_messages.unpack_move([{'before': cell, 'after': cell}])
        for key, value in cell.items():
            for number in (-1, 10 ** 15,
                           2 ** 64, True, 1.0, '1'):
                wrong = (number if not isinstance(value, list) else
                         [[0, number]] if key == 'pins' else [number])
                self.assertRaises(
                    messages.MessageError, move_messages.unpack_move,
                    [{'before': cell, 'after': {**cell, key: wrong}}])

    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(
            st.sampled_from(['before', 'after', 'pins', 'host_node']),
            inner)))
    def test_anything_is_read_or_refused(self, packed):
        try:
            move_messages.unpack_move(packed)
        except messages.MessageError:
            pass
