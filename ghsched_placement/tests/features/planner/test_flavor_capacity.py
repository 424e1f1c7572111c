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

"""All flavors at once, against the exporter's figures and by hand."""

import json
import types

from ghsched_placement.features.exporter import cloud_cache
from ghsched_placement.features.planner import flavor_capacity
from ghsched_placement.features.rebalance import flavor_moves
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.features.rebalance import rebalance_for_flavor
from ghsched_placement.fit import capacity
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.fit.node_capacity import to_diagnostics
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import node_capacities
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import commands
from ghsched_placement.tests.fixtures.simulated_cloud import flavor
from ghsched_placement.tests.fixtures.simulated_cloud import NODES
from ghsched_placement.tests.fixtures.simulated_cloud import SimulatedCloud


class FlavorCapacityTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.cloud = SimulatedCloud(3)

    def list_rows(self, *arguments):
        """Return the rows of the command by flavor, as JSON has them."""
        self.patch(flavor_capacity.clients, 'get_client',
                   lambda _app: clients.Client(self.cloud.connection, 1))
        command = flavor_capacity.ListFlavorCapacities(None, None)
        parser = command.get_parser('openstack ghsched capacity flavors')
        names, rows = command.take_action(parser.parse_args(arguments))
        self.assertEqual(flavor_capacity.COLUMNS, names)
        return {row[0]: commands.plain(row)[1:] for row in rows}

    def test_numbers_are_those_of_the_exporter(self):
        self.cloud.use('h0000', 0, 70, 4)
        self.cloud.use('h0001', 1, 100, 30)
        self.cloud.down.add('h0002')
        self.cloud.flavors = [
            flavor('one', hw__numa_nodes='1', ghsched__mem_bw_min='30'),
            flavor('two', hw__numa_nodes='2', ghsched__mem_bw_min='45'),
            flavor('auto', ghsched__numa='auto', ghsched__mem_bw_min='60'),
            flavor('plain', vcpus=40)]
        cache, _reading = cloud_cache.make_cloud_cache(
            self.cloud.connection, cloud_cache.CloudCacheSettings(tuple(
                cloud_cache.WatchedFlavor(one['name'])
                for one in self.cloud.flavors)))
        cache.refresh()
        rows = self.list_rows()
        self.assertEqual(
            {one.flavor: [one.guests, one.hosts, dict(one.binding)]
             for one in cache.cloud.flavors},
            {name: row[:3] for name, row in rows.items()})
        # 30 % of one node and three whole ones; then three nodes, each with 8
        # of its 16 CPUs left.
        self.assertEqual([1 + 3 * 3 + 3 * 2, 2], rows['one'][:2])
        self.assertEqual(['one'], list(self.list_rows('one')))

    def test_one_node_in_place_of_two_needs_both_bandwidths(self):
        for number in range(NODES - 1):
            for name in self.cloud.trees:
                self.cloud.use(name, number, 100, 4)
        self.cloud.flavors = [
            flavor('two', hw__numa_nodes='2', ghsched__mem_bw_min='20')]
        self.assertEqual(
            [0, 0, {'% of memory bandwidth': 3},
             'ghsched:mem_bw_min=40, hw:numa_nodes=1', 3 * 2],
            self.list_rows()['two'])

    def test_change_that_makes_no_more_is_not_shown(self):
        self.cloud.flavors = [flavor('one', hw__numa_nodes='1',
                                     ghsched__mem_bw_min='100')]
        self.assertEqual([3 * NODES, 3, {'% of memory bandwidth': 3},
                          None, None], self.list_rows()['one'])

    def test_page_size_is_changed_too(self):
        specs = list(flavor_capacity.yield_other_extra_specs(
            {'hw:mem_page_size': 'large', 'hw:numa_nodes': '4',
             'ghsched:mem_bw_max': '10'}))
        self.assertEqual(
            [('1', '40', 'large'), ('2', '20', 'large'), ('8', '5', 'large'),
             ('4', '10', 'small')],
            [(one['hw:numa_nodes'], one['ghsched:mem_bw_max'],
              one['hw:mem_page_size']) for one in specs])
        self.assertEqual([], list(flavor_capacity.yield_other_extra_specs({})))

    def test_flavor_that_is_refused_has_no_number(self):
        self.cloud.flavors = [flavor('bad', ghsched__mem_bw_min='101')]
        self.assertEqual([0, 0, {'valid flavor': 0}, None, None],
                         self.list_rows()['bad'])

    def test_resource_of_most_hosts_comes_first(self):
        cell = flavor_capacity.HostCountsCell({'CPUs': 1, 'memory': 3})
        self.assertEqual('memory (3)\nCPUs (1)', cell.human_readable())
        self.assertEqual('{"CPUs": 1, "memory": 3}',
                         json.dumps(cell.machine_readable()))


class EmptyHostTest(base.TestCase):
    """CPUs and memory of hosts without a server, which report none."""

    def read(self, hosts, reports, known=()):
        """Return the CPUs by node of each host, and the estimated hosts.

        :param reports: reported CPUs and memory by name of the host.
        """
        client = types.SimpleNamespace(
            map_in_parallel=lambda function, items: [*map(function, items)],
            list_active_servers=lambda name, _most: [name] * (name in reports),
            get_diagnostics=lambda _server, name: to_diagnostics(
                reports[name]))
        found = node_capacities.read_free_node_resources(client, hosts, {
            host.uuid: {'state': 'up', 'service': {'host': host.name}}
            for host in hosts}, known)
        return [[(node.cpus, node.vcpus_used, node.memory_used,
                  *(pages.used for pages in node.pages))
                 for node in found.by_host[host.uuid]] for host in hosts
                ], found.spread

    def test_nodes_are_those_of_a_host_with_the_same_inventories(self):
        busy, empty, other = (clouds.host(
            clouds.node(0, name=name), clouds.node(1, name=name), name=name,
            VCPU=cpus, MEMORY_MB=4096, used=used)
            for name, cpus, used in (
                ('a', 12, {'VCPU': 3}), ('b', 12, {}),
                ('c', 20, {'VCPU': 4, 'MEMORY_MB': 1024})))
        report = (
            NodeCapacity(0, cpus=2, vcpus_used=1, memory=1024,
                         pages=(Pages(4, 99999, 9), Pages(2048, 99, 9))),
            NodeCapacity(1, cpus=10, vcpus_used=2, memory=3072))
        found = [[(2, 1, 0, 9, 9), (10, 2, 0)],
                 [(2, 0, 0, 0, 0), (10, 0, 0)],
                 [(10, 2, 512), (10, 2, 512)]]
        self.assertEqual((found, ('c',)), self.read(
            [busy, empty, other], {'a': report}))
        self.assertEqual((found[1:2], ()), self.read(
            [empty], {}, [capacity.set_node_capacity(busy, report)]))


class MoveTest(base.TestCase):

    def test_move_that_makes_room_is_named(self):
        def wish(share):
            return GuestDemand(GuestPolicy(nodes=(NodePolicy(share),)), 1)
        host = clouds.host(clouds.node(0, used=40), clouds.node(1, used=40))
        self.patch(rebalance_for_flavor, '_read_movable_guests',
                   lambda *_arguments: (flavor_moves.MovableGuest(
                       'u', Spot('a', 0), wish(40), 512),))
        client = clients.Client(SimulatedCloud(1).connection, 1)
        self.patch(client, 'list_servers', lambda: [{'id': 'u',
                                                     'name': 'web'}])
        find_moves = rebalance_for_flavor.make_move_finder(client, [host])
        self.assertEqual([('move web from node 0 of a to node 1 of a', 1)],
                         find_moves([wish(90)], 0))
        self.assertEqual([], find_moves([wish(60)], 2))
