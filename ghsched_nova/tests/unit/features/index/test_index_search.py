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

import random
import types
from urllib import parse

import fixtures
from nova import objects
from nova.objects import pci_device_pool
from nova.scheduler import utils
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.features.index import host_capacity
from ghsched_nova.features.index.host_capacity import PfCapacity
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import host_index
from ghsched_nova.features.index import index_feed
from ghsched_nova.features.index import index_search
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.index import headroom
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.providers import names
from ghsched_placement.tests import base


class QueryTest(base.TestCase):

    def read(self, *pairs):
        return index_search.make_one_host_query(parse.urlencode(pairs))

    def test_every_group_is_asked_for_in_the_tree_of_the_host(self):
        query = self.read(
            ('resources', 'PCPU:1'), ('resources_x', 'A:1'),
            ('required_y', 'T'), ('limit', '5'),
            ('same_subtree', '_x,_y'), ('member_of', 'in:u'))
        self.assertEqual(
            {'resources': 'PCPU:1', 'resources_x': 'A:1', 'required_y': 'T',
             'limit': '5', 'same_subtree': '_x,_y', 'member_of': 'in:u',
             'in_tree': 'h', 'in_tree_x': 'h', 'in_tree_y': 'h'},
            dict(parse.parse_qsl(query.for_host('h'))))

    def test_traits_are_looked_for_in_the_answer(self):
        query = self.read(('resources', 'PCPU:1'), ('required', 'A,!B'),
                          ('root_required', 'C,!D'))
        self.assertEqual([('resources', 'PCPU:1'), ('in_tree', 'h')],
                         parse.parse_qsl(query.for_host('h')))
        self.assertEqual([('', ('A', '!B')), (None, ('C', '!D'))],
                         list(query.traits))

    def test_reasons_known_to_the_full_search_only(self):
        for name, value in (('in_tree', 'h'), ('required', 'in:A,B')):
            self.assertRaises(index_search.UnsupportedByIndex, self.read,
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
                in index_search.filter_by_traits(query, answer, 'h')])


class ReadTest(base.TestCase):

    def report(self, **values):
        cells = [objects.NUMACell(
            id=0, cpuset={0, 1}, pcpuset={2, 3, 4}, memory=4096,
            cpu_usage=1, memory_usage=1024, pinned_cpus={4},
            siblings=[], socket=0, mempages=[objects.NUMAPagesTopology(
                size_kb=2048, total=100, used=10, reserved=20)],
            network_metadata=objects.NetworkMetadata(
                physnets={names.make_node_physnet(0)}, tunneled=False))]
        left = headroom.Headroom(1., 2, 3, {0: 40})
        return {'uuid': 'u', 'host': 'h', 'updated_at': 1,
                'numa_topology': objects.NUMATopology(cells=cells)._to_json(),
                'pci_stats': None, 'cpu_allocation_ratio': 2.0,
                'ram_allocation_ratio': 1.5, 'vcpus': 2, 'vcpus_used': 1,
                'memory_mb': 4096, 'memory_mb_used': 1024,
                'stats': jsonutils.dumps({
                    'num_instances': '2',
                    **headroom.make_headroom_stats(left)}),
                **values}

    def test_a_report(self):
        row = index_feed.parse_compute_node('c', self.report())
        (room,) = row.nodes
        self.assertEqual((0, 2, 3, {2048: 140, 0: 5120}), (
            room.number, room.pinned, room.shared, room.pages))
        self.assertEqual(('u', 'h', 'c', 2, True, {0: 40}), (
            row.uuid, row.name, row.cell, row.guests, row.has_driver,
            row.placement_headroom.bandwidth))

    def test_report_has_the_dedicated_cpus_of_each_cache(self):
        for networks, caches in (
                ([{2, 3, 9}, {4, 0}], (CacheCpus(2, 0), CacheCpus(1, 1))),
                ([{0, 1, 2, 3, 4}], ()), ([{2}, {3}], ()),
                ([{2, 3}, {3, 4}], ())):
            cell = objects.NUMACell.obj_from_primitive(jsonutils.loads(
                self.report()['numa_topology'])['nova_object.data']['cells'][
                    0])
            cell.network_metadata.physnets |= set(map(
                names.make_cache_physnet, map(frozenset, networks)))
            row = index_feed.parse_compute_node('c', self.report(
                numa_topology=objects.NUMATopology(cells=[cell])._to_json()))
            self.assertEqual(caches, row.nodes[0].caches, networks)
            self.assertTrue(row.has_driver)

    def test_report_of_pci_pools_lists_pfs_with_a_provider_and_a_node(self):
        pool = {'vendor_id': 'v', 'product_id': 'p', 'numa_node': 0,
                'count': 3, 'dev_type': 'type-VF', 'rp_uuid': uuids.pf}
        pools = pci_device_pool.from_pci_stats([
            pool, {**pool, 'rp_uuid': uuids.floating, 'numa_node': None},
            {**pool, 'rp_uuid': 'no UUID'}, {
                **pool, 'rp_uuid': uuids.whole, 'dev_type': 'type-PF'}])
        row = index_feed.parse_compute_node('c', self.report(
            pci_stats=jsonutils.dumps(pools.obj_to_primitive())))
        self.assertEqual((PfCapacity(uuids.pf, 0, ('v', 'p'), 3),), row.pfs)
        self.assertEqual('CUSTOM_PCI_V_P', row.pfs[0].resource_class)

    def test_a_host_without_numa_nodes(self):
        row = index_feed.parse_compute_node(
            'c', self.report(numa_topology=None, stats=None))
        self.assertEqual(((), False, None),
                         (row.nodes, row.has_driver, row.placement_headroom))


class ForIndexTest(base.TestCase):
    """Requests that are eligible for the index."""

    def need(self, instances=('i',), size=1, specs=(), **values):
        spec = states.spec(size)
        spec.flavor.extra_specs = dict(specs)
        spec.project_id = 'p'
        for name, value in values.items():
            setattr(spec, name, value)
        return index_search.compute_request_need(spec, instances, 'min')

    def is_for_it(self, *args, **values):
        return self.need(*args, **values) is not None

    def test_a_guest_without_a_numa_topology_needs_the_host_as_a_whole(self):
        spec = states.spec(0)
        need = self.need(size=0)
        self.assertEqual(
            ((), spec.flavor.vcpus, spec.flavor.memory_mb),
            (need.nodes, need.vcpus, need.memory))

    def test_a_guest_with_dedicated_cpus_needs_no_shared_ones(self):
        self.assertEqual(0, self.need().vcpus)

    def test_key_that_requires_few_caches_is_of_dedicated_cpus(self):
        for specs, few in (({}, False),
                           ({'ghsched:cpu_cache': 'prefer'}, False),
                           ({'ghsched:cpu_cache': 'require'}, True)):
            need = self.need(specs=specs)
            self.assertEqual([few], [node.few_caches for node in need.nodes])
        shared = states.spec(1)
        shared.numa_topology.cells[0].cpuset = {0}
        shared.numa_topology.cells[0].pcpuset = set()
        self.assertFalse(self.need(
            specs={'ghsched:cpu_cache': 'require'},
            numa_topology=shared.numa_topology).nodes[0].few_caches)

    @base.needs_features('bursts')
    def test_bursts_are_left_to_placement(self):
        specs = {'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '30'}
        with_burst = self.need(
            specs={**specs, 'ghsched:mem_bw_burst': '20'})
        without = self.need(specs=specs)
        self.assertEqual(without.nodes, with_burst.nodes)

    def test_several_servers_in_one_request(self):
        self.assertEqual(self.need(), self.need(('i', 'j')))
        self.assertFalse(self.is_for_it(None))

    def test_a_forced_host(self):
        self.assertTrue(self.is_for_it(force_hosts=[], force_nodes=None))
        self.assertFalse(self.is_for_it(force_hosts=['h']))
        self.assertFalse(self.is_for_it(force_nodes=['h']))

    def test_a_host_that_is_asked_for(self):
        self.assertFalse(self.is_for_it(
            requested_destination=objects.Destination(host='h')))
        self.assertTrue(self.is_for_it(
            requested_destination=objects.Destination(aggregates=['a'])))

    def test_a_rebuild(self):
        self.assertFalse(self.is_for_it(
            scheduler_hints={'_nova_check_type': ['rebuild']}))

    def test_a_refusal_of_a_server_group_is_none_of_others(self):
        needs = {self.need()}
        for policy, hosts in (('affinity', ['h']), ('affinity', ['i']),
                              ('anti-affinity', ['h'])):
            needs.add(self.need(instance_group=objects.InstanceGroup(
                policy=policy, hosts=hosts)))
        self.assertEqual(4, len(needs))


class AllowedTest(base.TestCase):
    """Conditions of requests that narrow the choice of hosts."""

    def allowed(self, member_of=(), forbidden=(), **values):
        """Return the allowed ones of three hosts; the cell of the third is
        disabled.

        The first is in the aggregates a and b, the second in a.
        """
        spec = states.spec()
        spec.ignore_hosts = None
        for name, value in values.items():
            setattr(spec, name, value)
        manager = types.SimpleNamespace(
            enabled_cells=[types.SimpleNamespace(uuid=uuids.one),
                           types.SimpleNamespace(uuid=uuids.two)],
            aggs_by_id={1: types.SimpleNamespace(uuid=uuids.a),
                        2: types.SimpleNamespace(uuid=uuids.b)},
            host_aggregates_map={'first': {1, 2}, 'second': {1, 99}})
        resources = utils.ResourceRequest()
        group = objects.RequestGroup(
            use_same_provider=False, aggregates=list(member_of),
            forbidden_aggregates=set(forbidden))
        resources._rg_by_id[None] = group
        found = index_search._AllowedHosts(spec, manager, resources)
        rows = [host_capacity.ReportedHost(name, name, cell, 0)
                for name, cell in (
            ('first', uuids.one), ('second', uuids.two),
            ('third', uuids.three))]
        return [row.name for row in rows if found.is_allowed(row)]

    def test_hosts_of_cells_that_are_enabled(self):
        self.assertEqual(['first', 'second'], self.allowed())

    def test_hosts_to_avoid_after_a_failed_start(self):
        self.assertEqual(['second'], self.allowed(ignore_hosts=['FIRST']))

    def test_a_move_within_a_cell(self):
        cell = objects.CellMapping(uuid=uuids.two)
        self.assertEqual(['second'], self.allowed(
            requested_destination=objects.Destination(
                cell=cell, allow_cross_cell_move=False)))
        self.assertEqual(['first', 'second'], self.allowed(
            requested_destination=objects.Destination(
                cell=cell, allow_cross_cell_move=True)))

    def test_one_aggregate_of_each_list(self):
        self.assertEqual(['first', 'second'], self.allowed([{uuids.a}]))
        self.assertEqual(['first', 'second'],
                         self.allowed([{uuids.a, uuids.b}]))
        self.assertEqual(['first'], self.allowed([{uuids.a}, {uuids.b}]))
        self.assertEqual([], self.allowed([{uuids.c}]))

    def test_forbidden_aggregates(self):
        self.assertEqual(['second'], self.allowed(forbidden=[uuids.b]))
        self.assertEqual([], self.allowed([{uuids.b}], [uuids.a]))


class FromFirstHost(random.Random):
    """Chance that lets each walk through the index begin at the first host."""

    def randrange(self, *_args):
        return 0


class ProposeTest(base.TestCase):
    """Hosts whose records are read, and that are proposed of them."""

    def setUp(self):
        super().setUp()
        self.index = host_index.Index(FromFirstHost())
        self.search = index_search.Search(states.spec(),
                                          RequestNeed((RequestNodeNeed(),)))
        self.search.spec.ignore_hosts = None
        self.read = []
        self.refused = set()
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.index.nova_seams.get_host_states',
            self.read_states))

    def read_states(self, _manager, _context, hosts, _spec):
        self.read.append(list(hosts))
        return [types.SimpleNamespace(uuid=host) for host in hosts]

    def filter_states(self, _filters, found, _spec, _number):
        return [state for state in found if state.uuid not in self.refused]

    @staticmethod
    def weigh_states(found, _spec):
        """Return hosts in the order of their numbers."""
        return [types.SimpleNamespace(obj=state) for state
                in sorted(found, key=lambda state: int(state.uuid))]

    def propose(self, hosts):
        """Return the hosts proposed of a cloud of a number of hosts."""
        self.index.update_hosts([
            host_capacity.ReportedHost(
                str(number), f'h{number}', 'c', 1,
                (host_capacity.ReportedNode(0, pages={0: 1}),))
            for number in range(hosts)], (), 0.)
        manager = types.SimpleNamespace(
            enabled_cells=[types.SimpleNamespace(uuid='c')], aggs_by_id={},
            host_aggregates_map={}, enabled_filters=[],
            filter_handler=types.SimpleNamespace(
                get_filtered_objects=self.filter_states),
            get_weighed_hosts=self.weigh_states)
        return [view.row.uuid for view in index_search._propose_hosts(
            self.search, self.index, manager, None, utils.ResourceRequest())]

    def test_a_quarter_of_the_hosts_is_read_and_the_best_are_proposed(self):
        found = self.propose(host_index.POOL)
        (read,) = self.read
        self.assertEqual(host_index.POOL / 4, len(read))
        self.assertEqual(sorted(read, key=int)[:3], found)
        self.assertEqual(set(found), self.search.tried)

    def test_read_hosts_are_chosen_at_random(self):
        for _number in range(10):
            self.search.tried.clear()
            self.propose(host_index.POOL)
        self.assertGreater(len({frozenset(read) for read in self.read}), 5)

    def test_three_hosts_of_a_few_are_read(self):
        self.assertEqual(3, len(self.propose(5)))
        self.assertEqual([3], list(map(len, self.read)))

    def test_more_hosts_are_read_while_fewer_than_three_pass_the_filters(self):
        self.refused = {str(number) for number in range(2, host_index.POOL)}
        found = self.propose(host_index.POOL)
        self.assertEqual(['0', '1'], found)
        read = [host for some in self.read for host in some]
        self.assertEqual(host_index.POOL, len(set(read)))
        self.assertEqual(len(read), len(set(read)))
        # Those that a filter refused are not proposed again.
        self.assertEqual(set(read), self.search.tried)

    def test_no_host_is_read_if_the_index_finds_none(self):
        self.assertEqual([], self.propose(0))
        self.assertEqual([], self.read)

    def join_group(self, policy, *hosts):
        self.search.spec.instance_group = objects.InstanceGroup(
            policy=policy, hosts=list(hosts))

    def test_only_hosts_with_members_are_read_for_affinity(self):
        self.join_group('affinity', 'h30', 'h7')
        self.assertEqual(['7', '30'], self.propose(host_index.POOL + 9))
        self.assertEqual([{'7', '30'}], list(map(set, self.read)))

    def test_hosts_with_members_are_read_first_for_soft_affinity(self):
        self.join_group('soft-affinity', 'h39')
        self.propose(host_index.POOL + 9)
        self.assertEqual('39', self.read[0][0])
        self.assertLess(3, len(self.read[0]))

    def test_first_members_with_affinity_fit_on_one_host(self):
        self.join_group('affinity')
        self.search.servers = 2
        self.search.need = RequestNeed((RequestNodeNeed(memory=1),))
        self.assertEqual([], self.propose(5))
        self.search.need = RequestNeed((RequestNodeNeed(),))
        self.assertEqual(4, len(self.propose(5)))

    def test_four_servers_have_more_hosts_to_choose_from(self):
        self.search.servers = 4
        self.assertEqual(6, len(self.propose(host_index.POOL)))
