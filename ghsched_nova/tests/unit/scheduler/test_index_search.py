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

from urllib import parse

from nova import objects
from oslo_serialization import jsonutils
import testtools

from ghsched_nova.scheduler import index_feed
from ghsched_nova.scheduler import index_search
from ghsched_placement import headroom
from ghsched_placement import names


class QueryTest(testtools.TestCase):

    def read(self, *pairs):
        return index_search.read_query(parse.urlencode(pairs))

    def test_every_group_is_asked_for_in_the_tree_of_the_host(self):
        query = self.read(
            ('resources', 'PCPU:1'), ('resources_x', 'A:1'),
            ('required_y', 'T'), ('limit', '5'),
            ('same_subtree', '_x,_y'), ('member_of', 'in:u'))
        self.assertEqual(
            {'resources': 'PCPU:1', 'resources_x': 'A:1', 'required_y': 'T',
             'limit': '5', 'same_subtree': '_x,_y', 'member_of': 'in:u',
             'in_tree': 'h', 'in_tree_x': 'h', 'in_tree_y': 'h'},
            dict(parse.parse_qsl(query.of_host('h'))))

    def test_traits_are_looked_for_in_the_answer(self):
        query = self.read(('resources', 'PCPU:1'), ('required', 'A,!B'),
                          ('root_required', 'C,!D'))
        self.assertEqual([('resources', 'PCPU:1'), ('in_tree', 'h')],
                         parse.parse_qsl(query.of_host('h')))
        self.assertEqual([('', ('A', '!B')), (None, ('C', '!D'))],
                         list(query.traits))

    def test_what_only_the_whole_search_knows(self):
        for name, value in (('in_tree', 'h'), ('required', 'in:A,B')):
            self.assertRaises(index_search.NotForIndex, self.read,
                              ('resources', 'PCPU:1'), (name, value))

    def test_candidates_that_have_the_traits(self):
        answer = {
            'provider_summaries': {
                'h': {'traits': ['C', 'Z']}, 'n': {'traits': ['A']},
                'm': {'traits': ['A', 'B']}},
            'allocation_requests': [
                {'mappings': {'': ['h'], '_x': [provider]}}
                for provider in ('n', 'm')]}
        for root, mine, expected in (
                ('C', 'A', ['n', 'm']), ('!Z', 'A', []), ('Y', 'A', []),
                ('C,!D', 'A,!B', ['n']), ('C', 'B', ['m'])):
            query = self.read(
                ('resources', 'PCPU:1'), ('resources_x', 'A:1'),
                ('required_x', mine), ('root_required', root))
            self.assertEqual(expected, [
                found['mappings']['_x'][0] for found
                in index_search.having_traits(query, answer, 'h')])


class ReadTest(testtools.TestCase):

    def report(self, **values):
        cells = [objects.NUMACell(
            id=0, cpuset={0, 1}, pcpuset={2, 3, 4}, memory=4096,
            cpu_usage=1, memory_usage=1024, pinned_cpus={4},
            siblings=[], socket=0, mempages=[objects.NUMAPagesTopology(
                size_kb=2048, total=100, used=10, reserved=20)],
            network_metadata=objects.NetworkMetadata(
                physnets={names.node_physnet(0)}, tunneled=False))]
        left = headroom.Headroom(1., 2, 3, {0: 40})
        return {'uuid': 'u', 'host': 'h', 'updated_at': 1,
                'numa_topology': objects.NUMATopology(cells=cells)._to_json(),
                'pci_stats': None, 'cpu_allocation_ratio': 2.0,
                'ram_allocation_ratio': 1.5, 'stats': jsonutils.dumps(
                    {'num_instances': '2', **headroom.write(left)}),
                **values}

    def test_a_report(self):
        row = index_feed.read('c', self.report())
        (room,) = row.nodes
        self.assertEqual((0, 3, 2, 3, {2048: 140, 0: 5120}), (
            room.number, room.cpus, room.pinned, room.shared, room.pages))
        self.assertEqual(('u', 'h', 'c', 2, True, {0: 40}), (
            row.uuid, row.name, row.cell, row.guests, row.steered,
            row.left.bandwidth))

    def test_a_host_without_numa_nodes(self):
        row = index_feed.read('c', self.report(numa_topology=None,
                                               stats=None))
        self.assertEqual(((), False, None),
                         (row.nodes, row.steered, row.left))
