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

"""CPUs and memory of host NUMA nodes, as they are published and read."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.fit import node_capacity
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.fit import room as rooms
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base

NUMBERS = st.integers(0, 2 ** 31)
ROOMS = st.builds(
    NodeCapacity, st.integers(0, 1023), NUMBERS, NUMBERS, st.floats(0, 100),
    NUMBERS,
    NUMBERS,
    NUMBERS, NUMBERS, st.floats(0, 100),
    st.lists(st.builds(Pages, st.integers(1, 2 ** 20), NUMBERS, NUMBERS,
                       NUMBERS), unique_by=lambda one: one.size_kb).map(
        lambda pages: tuple(sorted(pages, key=lambda one: one.size_kb))),
    st.none() | NUMBERS)


class RecordTest(base.TestCase):

    @given(st.lists(ROOMS, unique_by=lambda room: room.node))
    def test_record_written_and_read_is_the_same(self, capacities):
        self.assertEqual(
            tuple(sorted(capacities, key=lambda room: room.node)),
            node_capacity.from_diagnostics(
                node_capacity.to_diagnostics(capacities)))

    @given(st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | NUMBERS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(['version', 'nodes', 'node', 'pages', 'cpus',
                             'size_kb', 'socket']), inner, max_size=4)))
    def test_record_malformed_is_read_as_none(self, found):
        read = node_capacity.from_diagnostics(
            {node_capacity.KEY: json.dumps(found)})
        self.assertTrue(all(isinstance(room, NodeCapacity) for room in read))

    def test_record_of_another_version_is_read_as_none(self):
        for text in ('{"version":2,"nodes":[]}', '[]', 'x', '', None, 7):
            self.assertEqual((),
                             node_capacity.from_diagnostics(
                                 {node_capacity.KEY: text}))
        self.assertEqual((), node_capacity.from_diagnostics({}))

    def test_field_of_a_later_release_is_ignored(self):
        room = dataclasses.asdict(NodeCapacity(0, 4)) | {'new': 'x'}
        text = json.dumps({'version': 1, 'nodes': [room]})
        self.assertEqual(
            (NodeCapacity(0, 4),),
            node_capacity.from_diagnostics({node_capacity.KEY: text}))


class ShortagesTest(base.TestCase):
    """Expected figures are those of Nova's documentation of overcommitment.
    """

    def test_guest_node_with_more_vcpus_than_cpus_is_short_at_once(self):
        room = NodeCapacity(0, cpus=1, cpu_ratio=4.0, memory=4096)
        self.assertEqual([('CPUs', 2, 4, 1)],
                         room.find_shortages(GuestNode(shared=2, memory=64)))
        self.assertEqual([],
                         room.find_shortages(GuestNode(shared=1, memory=64)))

    def test_huge_pages_used_by_a_guest_are_missing_for_the_next(self):
        room = NodeCapacity(0, cpus=8, memory=8192, pages=(
            Pages(4, 1048576), Pages(2048, 2048)))
        guest = GuestNode(shared=1, memory=3072)
        self.assertEqual([], room.find_shortages(guest, 'large'))
        left = room.subtract_guest_node(guest, 'large')
        for size in (2048, 'large'):
            self.assertEqual([('pages of 2 MB', 1536, 512, 2048)],
                             left.find_shortages(guest, size))
        self.assertEqual([('pages of 1 GB', 3, 0, 0)],
                         left.find_shortages(guest, 1048576))
        self.assertEqual([], left.find_shortages(guest))

    def test_huge_pages_that_nobody_reports_are_counted_as_memory(self):
        room = NodeCapacity(0, cpus=8, memory=4096, ram_ratio=9.0)
        guest = GuestNode(shared=1, memory=3072)
        for size in (2048, 1048576, 'large', 'small', 'any'):
            self.assertEqual([], room.find_shortages(guest, size))
            left = room.subtract_guest_node(guest, size)
            self.assertEqual([('memory', 3072, 1024, 1024)],
                             left.find_shortages(guest, size))

    @given(st.tuples(*[st.integers(0, 4)] * 4), st.integers(0, 3),
           st.sampled_from((1.0, 1.5)), st.tuples(*[st.integers(0, 3)] * 2),
           st.integers(1, 4), st.sampled_from(
               (None, 'small', 'large', 'any', 4, 2048, 1048576)))
    def test_reasons_are_given_where_a_guest_node_does_not_fit(
            self, free, used, ratio, cpus, memory, page_size):
        vcpus, dedicated, small, huge = free
        room = NodeCapacity(
            0, vcpus + used, used, ratio, dedicated + used, used, 1024 * 3,
            1024 * used, ratio, (Pages(4, (small + used) * 131072,
                                       used * 131072),
                                 Pages(2048, huge * 256)) if small else ())
        guest = GuestNode(*cpus, 512 * memory)
        self.assertEqual(
            not room.find_shortages(guest, page_size),
            rooms.count_guest_nodes(room, guest, page_size) > 0)
