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

"""Plans from the data of Nova, Placement and hosts, and their moves."""

import argparse
import dataclasses
import datetime
import math
from unittest import mock

from osc_lib import exceptions

from ghsched_placement.audit.findings import Server
from ghsched_placement.features.load import load
from ghsched_placement.features.load import pressure
from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import affinity_policy
from ghsched_placement.features.rebalance import measured
from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.features.rebalance import rebalance as command
from ghsched_placement.features.rebalance import traffic
from ghsched_placement.fit import capacity
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import base as osc_base
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import sample_flavors

POWER = 'OS-EXT-STS:power_state'
HOST = 'OS-EXT-SRV-ATTR:hypervisor_hostname'


def server(uuid='u', nodes=(0,), **specs):
    return Server(uuid, uuid, 'a', policies.parse_policy(
        {f'ghsched:{key}': value for key, value in specs.items()},
        len(nodes)), '', nodes, running=True)


def said(uuid='u', time=10.0, node=0, talks=None, **figures):
    """The diagnostics of a guest on a host with two nodes of 8 CPUs."""
    record = load.HostLoad(time, 60, tuple(
        load.HostNodeLoad(number, cpus=8, memory_free=32768,
                          cpu_load=0.9 if number == 0 else 0.0)
        for number in (0, 1)),
        (load.GuestNodeLoad(uuid, 0, node, **{
            'vcpus': 4, 'memory': 2048, 'cpu_load': 0.9, 'cpu_wait': 0.1,
            **figures}),))
    found = load.make_guest_load_diagnostics(record, uuid)
    return found if talks is None else found | {traffic.KEY: talks}


def _said_of_two_nodes():
    """The diagnostics of a guest on both nodes of its host."""
    record = load.parse_load_stats(said(bandwidth=1e9))
    second = dataclasses.replace(record.guests[0], node=1, host_node=1,
                                 cpu_load=0.5, cpu_wait=0.0, memory=4096)
    nodes = tuple(dataclasses.replace(node, cpu_load=0.9)
                  for node in record.nodes)
    return load.make_guest_load_diagnostics(dataclasses.replace(
        record, nodes=nodes, guests=(*record.guests, second)), 'u')


class GuestTest(base.TestCase):

    def test_awaited_traffic_is_demand_too(self):
        found = measured.make_rebalance_guest(server(mem_bw_min='20'),
                                              said(bandwidth=5e9))
        self.assertEqual(move_plan.Guest(
            'u', Spot('a', 0), 4.0, 5e9, 2048, 20, groups=1,
            traits=frozenset({names.CAPABILITY_TRAITS['MEM_BW_MIN']})), found)

    def test_steal_that_a_guest_reports_is_known_within_its_limits(self):
        for steal, expected in ((7.5, 7.5), (100.5, 0.0)):
            found = measured.make_rebalance_guest(server(), {
                **said(), **pressure.make_pressure_diagnostics(
                    pressure.Pressure(steal=steal))})
            self.assertEqual(expected, found.steal)

    def test_all_that_is_counted_of_its_node_goes_with_a_guest(self):
        for kind, key in sample_flavors.KEY_OF_CLASS.items():
            specs = sample_flavors.flavor(key)
            found = measured.make_rebalance_guest(
                Server('u', 'u', 'a', policies.parse_policy(specs, 1, 2), '',
                       (0, ),
                       running=True), said())
            counted = {names.MEM_BW_PCT: found.guarantee, **found.counted}
            self.assertGreater(counted[kind], 0)
            self.assertTrue(found.inside)

    def test_unknown_values_stay_unknown(self):
        for name in ('cpu_load', 'cpu_wait', 'vcpus'):
            self.assertIsNone(
                measured.make_rebalance_guest(server(),
                                              said(**{name: None})).cpu)
        self.assertIsNone(measured.make_rebalance_guest(server(), {}))
        found = measured.make_rebalance_guest(server(), said(memory=None))
        self.assertFalse(found.inside or found.between)

    def test_each_guest_that_stays_has_its_reason(self):
        servers = [server('f', ()), server('v', vfs='nic:1'), server('u'),
                   dataclasses.replace(server('l'), locked=True),
                   server('s', (0, 1)), server('m')]
        guests = [found for one in servers if one.uuid not in 'us' and (
            found := measured.make_rebalance_guest(one, said(one.uuid)))]
        self.assertEqual(
            {'f': 'it is bound to no NUMA node; set hw:numa_nodes in its '
                  'flavor',
             'v': 'it has VFs; with --with-vfs it is live-migrated, if '
                  '[pci]alias has live_migratable',
             'u': 'its load is unknown', 'l': 'it is locked',
             's': 'its load is unknown'},
            {one.uuid: one.reason for one in measured.list_fixed_guests(
                servers, guests, False)})


class NodeTest(base.TestCase):

    def make_node(self, *guests, **figures):
        return measured.make_rebalance_node(Spot('a', 0),
                                            load.HostNodeLoad(0, **figures),
                                            guests, 30, True)

    def test_the_others_use_what_guests_do_not(self):
        one = move_plan.Guest('u', Spot('a', 0), 3.0, 2e9)
        found = self.make_node(one, cpus=8, cpu_load=0.5, bandwidth=5e9,
                               capacity=1e10, memory_free=9,
                               bottlenecks=('io_wait',))
        self.assertEqual(move_plan.Node(
            Spot('a', 0), 8, 1.0, 1e10, 3e9, 9, 30, True), found)

    def test_a_node_without_figures_is_not_idle(self):
        self.assertIsNone(self.make_node().cpu)
        self.assertIsNone(self.make_node(cpus=8, capacity=1e10).capacity)


class Cloud:
    """A client of a cloud with the hosts a and b, where b has no guest."""

    def __init__(self, *guests):
        self.guests = {uuid: (found, group) for uuid, found, group in guests}
        self.asked = []
        self.refused = None
        self.status = 'ACTIVE'
        self.at, self.moved = 'a', {}

    def list_hosts(self):
        found = []
        for name in 'ab':
            found += capacity.build_hosts([
                clouds.root(name, PCPU=16, MEMORY_MB=65536), *(
                    clouds.node(number, name=name) for number in (0, 1))])
        return found

    def list_unavailable_nodes(self):
        return {}

    def list_compute_nodes(self):
        return {name: {'hypervisor_hostname': name,
                       'service': {'host': f'{name}-service'}}
                for name in 'ab'}

    def list_servers(self):
        return [self.get_server(uuid) for uuid in self.guests]

    def get_server(self, uuid):
        return {'id': uuid, 'name': uuid, 'status': self.status, POWER: 1,
                HOST: self.at, 'tenant_id': 'p',
                'OS-EXT-STS:task_state': None, 'addresses': {'net': [
                    {'addr': f'10.0.0.{ord(uuid)}'}]},
                'flavor': {'extra_specs': {
                    'ghsched:affinity_group': self.guests[uuid][1]}
                    if self.guests[uuid][1] else {}}}

    def map_in_parallel(self, ask, items):
        return list(map(ask, items))

    def get_host_numa_nodes(self, uuid):
        return (0,)

    def get_diagnostics(self, uuid, _host=''):
        return self.guests[uuid][0]

    def list_recent_migrations(self, since):
        return []

    def query_nova(self, path, _version, default=None):
        if path.startswith('/os-server-groups'):
            return {'server_groups': []}
        """Return a server's actions, or an action."""
        uuid, _, request = path.removeprefix('/servers/').partition(
            '/os-instance-actions')
        if request.startswith('/'):
            return {'instanceAction': {'events': [
                {'event': 'ghsched_move_nodes'}]}}
        return {'instanceActions': [
            {'action': 'ghsched', 'request_id': 'r', 'start_time': time}
            for time in self.moved.get(uuid, [])]}

    def live_migrate_server(self, uuid, host):
        self.asked.append((uuid, host))
        if self.refused:
            raise self.refused
        self.at = host.partition('-')[0]


class ReadTest(base.TestCase):

    def test_a_host_without_guests_is_idle_and_one_that_is_silent_is_not(self):
        found, _records = measured.read_cloud_for_rebalance(
            Cloud(('u', {}, '')), affinity.Bounds())
        self.assertEqual(
            {Spot('a', 0): None, Spot('a', 1): None, Spot('b', 0): 0.0,
             Spot('b', 1): 0.0},
            {node.spot: node.cpu for node in found.nodes})
        self.assertEqual((8, 32768), (found.nodes[2].cpus,
                                      found.nodes[2].memory))

    def test_load_of_a_guest_is_not_that_of_its_nodes(self):
        cloud = Cloud(('u', _said_of_two_nodes(), ''))
        cloud.get_host_numa_nodes = {'u': (0, 1)}.get
        found, _records = measured.read_cloud_for_rebalance(
            cloud, affinity.Bounds())
        self.assertEqual([3.2, 5.2], [round(node.cpu, 3)
                                      for node in found.nodes[:2]])

    def test_guests_that_talk_or_wish_are_together(self):
        talks = [['10.0.0.116', '10.0.0.117', 5e6]]
        found, _records = measured.read_cloud_for_rebalance(Cloud(
            ('t', said('t', talks=talks), ''), ('u', said('u'), ''),
            ('v', said('v'), 'web'), ('w', said('w'), 'web')),
            affinity.Bounds())
        self.assertEqual({frozenset('tu'), frozenset('vw')},
                         {group.members for group in found.groups})
        self.assertEqual(5e6, found.ties.get_mean_traffic('u', 't'))

    def test_the_latest_measurement_of_a_host_counts(self):
        servers = [server('t'), server('u')]
        found = measured.collect_host_loads(servers, {
            't': said('t', time=20.0), 'u': said('u', time=10.0)})
        self.assertEqual(20.0, found['a'].time)

    def test_records_of_moves_in_nova(self):
        def one(kind, **more):
            return {'instance_uuid': 'u', 'migration_type': kind,
                    'created_at': '1970-01-01T00:00:10.000000',
                    'updated_at': None, 'source_node': 'a',
                    'dest_node': 'b', **more}
        found = measured.convert_migrations_to_moves([
            one('resize'), one('live-migration'),
            one('live-migration', updated_at='1970-01-01T00:01:00.000000',
                dest_node=None)])
        self.assertEqual(
            (move_plan.Moved('u', 10.0, frozenset('ab')),
             move_plan.Moved('u', 60.0, frozenset('a'))), found)


MOVE = move_plan.Move('u', Spot('a', 0), Spot('b', 1), 'why', 100.0, 2.0)


class CommandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.patch(command, 'request_live_migration',
                   lambda cloud, *args: cloud.live_migrate_server(*args))

    def arguments(self, *words):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        return parser.parse_args(words)

    def planned(self, cloud, *words):
        moves = command.plan_server_moves(cloud, self.arguments(*words)).moves
        return [(move.guest, move.destination) for move in moves]

    def test_a_plan_for_two_busy_guests_on_one_node(self):
        cloud = Cloud(('t', said('t'), ''), ('u', said('u'), ''))
        self.assertEqual([('t', Spot('a', 1))], self.planned(cloud))
        self.assertEqual(
            'b', self.planned(cloud, '--only', 'between')[0][1].host)
        self.assertEqual([], self.planned(cloud, '--moves', '0'))

    def test_servers_that_stay_are_shown_with_the_reason(self):
        cloud = Cloud(('t', said('t'), ''), ('u', said('u'), ''))
        nodes = {'t': (), 'u': (0,)}
        cloud.get_host_numa_nodes = nodes.get
        found = command.plan_server_moves(cloud, self.arguments())
        self.assertEqual([('t', 't', 'a', '', 'stays: it is bound to no NUMA '
                           'node; set hw:numa_nodes in its flavor', '', '')],
                         [command.make_fixed_row(one, found.records)
                          for one in found.fixed])
        move = dataclasses.replace(MOVE, others=((Spot('a', 1),
                                                  Spot('b', 0)),))
        self.assertEqual(('u', 'u', 'a nodes 0,1', 'b nodes 1,0', 'why',
                          100.0, 2.0),
                         command.make_move_row(move, found.records))

    def test_limits_on_groups_are_those_of_the_command_line(self):
        for words, bounds in (
                ((), affinity.Bounds()),
                (('--group-load', '40.5', '--group-memory', '65536',
                  '--group-members', '3'), affinity.Bounds(40.5, 3, 65536)),
                (('--group-members', '0'), affinity.Bounds(
                    members=math.inf))):
            with mock.patch.object(
                    measured, 'read_cloud_for_rebalance',
                    side_effect=measured.read_cloud_for_rebalance) as read:
                self.planned(Cloud(('t', said('t'), ''),
                                   ('u', said('u'), '')), *words)
            self.assertEqual(bounds, read.call_args.args[1])

    def test_who_was_moved_inside_a_host_rests(self):
        cloud = Cloud(('t', said('t'), ''), ('u', said('u'), ''))
        now = datetime.datetime.now(datetime.UTC)
        cloud.moved = {'t': [now.strftime('%Y-%m-%dT%H:%M:%S.000000')]}
        self.assertEqual(['u'], [uuid for uuid, _spot
                                 in self.planned(cloud)])
        self.assertEqual([], self.planned(cloud, '--per-host', '1'))
        self.assertEqual([], self.planned(cloud, '--moves', '1'))

    def test_a_cloud_that_measures_nothing(self):
        cloud = Cloud(('t', {}, ''))
        cloud.list_hosts = lambda: Cloud.list_hosts(cloud)[:1]
        with self.assertRaisesRegex(exceptions.CommandError, 'no host has'):
            self.planned(cloud)

    def test_a_policy_that_is_not_installed(self):
        with self.assertRaisesRegex(exceptions.CommandError,
                                    'installed are affinity'):
            command.load_rebalance_policy('nobody')

    def test_nova_is_asked_to_migrate_to_a_service(self):
        cloud = Cloud(('u', {}, ''))
        self.assertEqual(
            command.MoveOutcome(),
            command.migrate_server_between_hosts(cloud, MOVE, 10, print))
        self.assertEqual([('u', 'b-service')], cloud.asked)

    def test_refusals_of_nova_are_repeated(self):
        cloud = Cloud(('u', {}, ''))
        for kind, unchanged in ((osc_base.CommandRefused, True),
                                (exceptions.CommandError, False)):
            cloud.refused = kind('HTTP 4 or 5')
            self.assertEqual(
                command.MoveOutcome('HTTP 4 or 5', unchanged),
                command.migrate_server_between_hosts(cloud, MOVE, 10, print))

    def test_a_server_that_comes_back(self):
        cloud = Cloud(('u', {}, ''))
        cloud.live_migrate_server = lambda uuid, host: None
        for status, unchanged in (('ACTIVE', True), ('ERROR', False)):
            cloud.status = status
            found = command.migrate_server_between_hosts(
                cloud, MOVE, 10, print)
            self.assertIn(f'still on a, in state {status}', found.problem)
            self.assertEqual(unchanged, found.unchanged)
        cloud.status, waited = 'MIGRATING', []
        found = command.migrate_server_between_hosts(cloud, MOVE, 10,
                                                     waited.append)
        self.assertIn('did not end within 10 s', found.problem)
        self.assertFalse(found.unchanged)
        self.assertEqual(5, len(waited))

    def test_a_host_that_nova_does_not_know(self):
        cloud = Cloud(('u', {}, ''))
        cloud.list_compute_nodes = dict
        found = command.migrate_server_between_hosts(cloud, MOVE, 10, print)
        self.assertIn('knows no', found.problem)
        self.assertTrue(found.unchanged)

    def test_inside_a_host_nova_api_moves_it(self):
        inside = move_plan.Move('u', Spot('a', 0), Spot('a', 1), '', 1, 1)
        cloud = mock.Mock()
        self.assertEqual(command.MoveOutcome(),
                         command.move_server_within_host(cloud, inside))
        cloud.post_server_action.assert_called_once_with(
            'u', {'move_nodes': {'0': 1}, 'dry_run': False})
        for error, unchanged in (
                (osc_base.CommandRefused('refused: pinned'), True),
                (exceptions.CommandError('HTTP 500'), False)):
            cloud.post_server_action.side_effect = error
            self.assertEqual(command.MoveOutcome(str(error), unchanged),
                             command.move_server_within_host(cloud, inside))


class ApplyTestCase(base.TestCase):

    def apply(self, plans, outcomes):
        """[(guest, result)] of a plan.

        :param plans: moves by the guests that stay.
        :param outcomes: what becomes of each guest, by its UUID.
        """
        applying = command.ApplyRebalance(mock.Mock(), None)
        moves = plans[frozenset()]
        with mock.patch.object(
                command, 'move_server_within_host',
                lambda _client,
                move: outcomes.get(move.guest, command.MoveOutcome(
                ))):
            rows = list(applying._apply_moves(
                mock.Mock(), moves, {move.guest: {'name': move.guest}
                                     for move in moves},
                command._Replan(plans.__getitem__), 10.0))
        return [(row[0], row[-1]) for row in rows], applying.status


class ApplyTest(ApplyTestCase):
    """Moves are decided again after one that was refused."""

    def way(self, guest, origin=0, destination=1):
        return move_plan.Move(guest, Spot('a', origin), Spot('a', destination),
                              'why', 100.0, 2.0)

    def test_refusal_that_changed_nothing_leaves_the_other_moves(self):
        every = [self.way(guest) for guest in 'tuvw']
        rows, status = self.apply(
            {frozenset(): every, frozenset('t'): every[1:],
             frozenset('tv'): [every[1], every[3]]},
            {'t': command.MoveOutcome('pinned', unchanged=True),
             'v': command.MoveOutcome('no room', unchanged=True)})
        self.assertEqual([('t', 'nothing was changed: pinned'),
                          ('u', 'moved'),
                          ('v', 'nothing was changed: no room'),
                          ('w', 'moved')], rows)
        self.assertEqual(1, status)

    def test_move_that_depended_on_a_refused_one_is_left_out(self):
        every = [self.way('t'), self.way('u', 1, 0), self.way('v')]
        rows, _status = self.apply(
            {frozenset(): every, frozenset('t'): [
                every[2], self.way('u', 1, 2), self.way('x')]},
            {'t': command.MoveOutcome('pinned', unchanged=True)})
        self.assertEqual([('t', 'nothing was changed: pinned'),
                          ('u', 'left out, because t stays'),
                          ('v', 'moved')], rows)

    def test_failure_that_changed_something_ends_it(self):
        every = [self.way(guest) for guest in 'tu']
        rows, status = self.apply(
            {frozenset(): every}, {'t': command.MoveOutcome('between nodes')})
        self.assertEqual([('t', 'between nodes')], rows)
        self.assertEqual(1, status)


class ApplyPairTest(ApplyTestCase):
    """u makes room on the host b for t; then t leaves a bottleneck."""

    PAIR = (move_plan.Move('u', Spot('b', 0), Spot('c', 0), 'makes room on b',
                           10.0, 2.0, 't'),
            move_plan.Move('t', Spot('a', 0), Spot('b', 0), 'a bottleneck',
                           10.0, 2.0, 'u'))

    def apply_pair(self, again, **outcomes):
        """Return what becomes of each guest, the exit status and all moves
        that Nova was asked for.

        :param again: moves that are planned without the guest that stays.
        """
        asked = []

        def migrate(_client, move, _timeout):
            asked.append((move.guest, move.destination.host))
            return outcomes.get(move.guest, command.MoveOutcome())

        with mock.patch.object(command, 'migrate_server_between_hosts',
                               migrate):
            rows, status = self.apply(again | {frozenset(): self.PAIR}, {})
        return rows, status, asked

    def test_moves_of_a_pair_are_made_one_after_the_other(self):
        rows, status, asked = self.apply_pair({})
        self.assertEqual([('u', 'moved'), ('t', 'moved')], rows)
        self.assertEqual([('u', 'c'), ('t', 'b')], asked)
        self.assertFalse(status)

    def test_first_move_stays_made_when_the_second_is_refused(self):
        rows, status, asked = self.apply_pair(
            {frozenset('t'): []}, t=command.MoveOutcome('no', unchanged=True))
        self.assertEqual([('u', 'moved'), ('t', 'nothing was changed: no')],
                         rows)
        self.assertEqual((1, [('u', 'c'), ('t', 'b')]), (status, asked))


class RoomTest(base.TestCase):
    """A plan has no move that Placement would refuse for lack of anything."""

    def planned(self, key, room):
        """Whether a guest with a key leaves a busy node, inside and between.

        :param room: nodes of the cloud, by host and number.
        """
        specs = sample_flavors.flavor(key)
        found = measured.make_rebalance_guest(
            Server('u', 'u', 'a', policies.parse_policy(specs, 1, 2), '',
                   (0, ),
                   running=True), said())
        hosts = {name: capacity.build_hosts([clouds.root(name), *(
            clouds.counting_node(number, name, **(
                room if (name, number) != ('a', 0) else {}))
            for number in (0, 1))])[0] for name in 'ab'}
        nodes = [dataclasses.replace(
            node, cpus=4, cpu=2.0 if node.spot == found.spot else 0.0,
            memory=9999)
            for host in hosts.values()
            for node in measured._yield_host_nodes(host, None, (), True, True)]
        settings = move_plan.Settings()
        return [
            bool(affinity_policy.Affinity().plan(
                command.restrict_movable_guests(
                    move_plan.Cloud(tuple(nodes), (found, )), only), settings))
            for only in ('inside', 'between')]

    def test_class_without_room_on_any_other_node_keeps_a_guest(self):
        for kind, key in sample_flavors.KEY_OF_CLASS.items():
            self.assertEqual([True, True], self.planned(key, {}), key)
            self.assertEqual([False, False],
                             self.planned(key, {kind: 1}), key)
            self.assertEqual([False, False],
                             self.planned(key, {kind: 0}), key)

    def test_other_host_needs_a_group_and_the_traits(self):
        specs = sample_flavors.flavor('mem_bw_min')
        found = measured.make_rebalance_guest(
            Server('u', 'u', 'a', policies.parse_policy(specs, 1, 2), '',
                   (0, ),
                   running=True), said())
        for other, expected in (
                (clouds.root('b'), True),
                (clouds.root('b', groups_used=31), False),
                (clouds.root('b', groups=0), False),
                (clouds.root('b', traits=()), False)):
            hosts = [capacity.build_hosts([root, *(
                clouds.counting_node(number, root.name)
                for number in (0, 1))])[0]
                for root in (clouds.root('a'), other)]
            nodes = [dataclasses.replace(
                node, cpus=4, cpu=2.0 if node.spot == found.spot else 0.0,
                memory=9999) for host in hosts
                for node in measured._yield_host_nodes(
                    host, None, (), True, True)]
            self.assertEqual(expected, bool(affinity_policy.Affinity().plan(
                command.restrict_movable_guests(move_plan.Cloud(
                    tuple(nodes), (found,)), 'between'),
                move_plan.Settings())))
