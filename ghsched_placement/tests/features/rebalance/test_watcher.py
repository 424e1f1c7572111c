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

"""The strategies on Watcher's own base classes, loaders, planner and model."""

import math
import unittest
from unittest import mock
import uuid


from osc_lib import exceptions

from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import flavor_moves
from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.features.rebalance import rebalance_for_flavor
from ghsched_placement.features.refusals.refusal_record import RefusalCount
from ghsched_placement.features.refusals import refusals
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

try:
    from watcher import conf
    from watcher.decision_engine.loading import default as loading
    from watcher.decision_engine.model import element
    from watcher.decision_engine.model import model_root

    from ghsched_placement.features.rebalance import watcher as ours
    from ghsched_placement.features.rebalance import watcher_room
except ImportError as error:
    raise unittest.SkipTest(
        f'Watcher is not installed (python-watcher): {error}') from error

HOSTS = {name: str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in 'ab'}
GUESTS = ('t', 'u')


def model(hosts=('a', 'b'), **of_guests):
    """A cluster of Watcher with two servers on the host a."""
    root = model_root.ModelRoot()
    nodes = {name: element.ComputeNode(
        uuid=HOSTS[name], hostname=f'{name}-service', status='enabled',
        state='up', disabled_reason=None, memory=65536, memory_mb_reserved=0,
        disk=100, disk_gb_reserved=0, vcpus=16, vcpu_reserved=0,
        memory_ratio=1.0, vcpu_ratio=1.0, disk_ratio=1.0)
        for name in hosts}
    for node in nodes.values():
        root.add_node(node)
    for name in GUESTS:
        root.add_instance(element.Instance(
            uuid=name, name=f'server {name}', state='active', memory=2048,
            disk=1, vcpus=4, metadata={}, project_id=HOSTS['a'],
            **{'watcher_exclude': False, 'locked': False,
               **of_guests.get(name, {})}))
        root.map_instance(root.get_instance_by_uuid(name), nodes['a'])
    return root


def cloud():
    """Return a cloud in which either of two servers should leave the host a.
    """
    nodes = [move_plan.Node(Spot(host, 0), 8, 0.0, memory=32768)
             for host in HOSTS]
    return move_plan.Cloud(tuple(nodes), tuple(
        move_plan.Guest(name, Spot('a', 0), 4.0, memory=2048)
        for name in GUESTS))


class StrategyTestCase(base.TestCase):

    NAME = ours.NAME

    def setUp(self):
        super().setUp()
        # As watcher-decision-engine does before it loads anything.
        conf.CONF([], project='watcher', default_config_files=[])
        self.addCleanup(conf.CONF.reset)

    def migrate_at_once(self, number):
        """Set how many migrations Watcher's planner starts at a time."""
        loading.DefaultPlannerLoader().load('weight')
        group = 'watcher_planners.weight'
        conf.CONF.set_override('parallelization', {'migrate': number}, group)
        self.addCleanup(conf.CONF.clear_override, 'parallelization', group)

    def execute(self, model, client, **parameters):
        """Return the actions that an audit proposes: action, server, from, to.
        """
        strategy = loading.DefaultStrategyLoader().load(self.NAME)
        strategy._compute_model = model
        for name, value in strategy.get_schema()['properties'].items():
            strategy.input_parameters[name] = parameters.get(
                name, value['default'])
        client.list_compute_nodes.return_value = {
            node: {'hypervisor_hostname': name}
            for name, node in HOSTS.items()}
        with mock.patch.object(strategy, '_make_client', lambda: client):
            solution = strategy.execute()
        return [(action['action_type'],
                 action['input_parameters']['resource_id'],
                 action['input_parameters']['migration_type'],
                 action['input_parameters']['source_node'],
                 action['input_parameters']['destination_node'])
                for action in solution.actions]


class StrategyTest(StrategyTestCase):

    def test_limits_on_groups_are_those_of_the_audit(self):
        for parameters, bounds in (
                ({}, affinity.Bounds()),
                ({'group_members': 3, 'group_load': 40.5,
                  'group_memory': 65536}, affinity.Bounds(40.5, 3, 65536)),
                ({'group_members': 0}, affinity.Bounds(members=math.inf))):
            with mock.patch.object(
                    ours.measured, 'read_cloud_for_rebalance',
                    return_value=(cloud(), {})) as read, \
                    mock.patch.object(ours.measured, 'list_recent_moves',
                                      return_value=()):
                self.execute(model(), mock.Mock(), **parameters)
            self.assertEqual(bounds, read.call_args.args[1])

    def audit(self, model, planned=None, **parameters):
        """Return the actions that an audit proposes.

        :param planned: moves of the policy; None for its own.
        """
        policy = ours.command.load_rebalance_policy('affinity')
        with mock.patch.object(ours.measured, 'read_cloud_for_rebalance',
                               return_value=(cloud(), {})), \
                mock.patch.object(ours.measured, 'list_recent_moves',
                                  return_value=()), \
                mock.patch.object(
                    ours.command, 'load_rebalance_policy', lambda _name: policy
                    if planned is None else mock.Mock(
                        **{'plan.return_value': planned})):
            return self.execute(model, mock.Mock(), **parameters)

    def test_goal_and_strategy_are_found_by_watcher(self):
        goal = loading.DefaultGoalLoader().load(ours.NAME)
        self.assertIsInstance(goal, ours.NumaGoal)
        self.assertEqual(ours.NAME, goal.name)
        strategy = loading.DefaultStrategyLoader().load(ours.NAME)
        self.assertEqual(ours.NAME, strategy.goal.name)

    def test_a_live_migration_off_a_bottleneck(self):
        self.assertEqual(
            [('migrate', 't', 'live', 'a-service', 'b-service')],
            self.audit(model()))

    def test_parameters_of_the_audit_hold(self):
        self.assertEqual([], self.audit(model(), moves=0))

    def test_servers_out_of_scope_stay(self):
        self.assertEqual([], self.audit(model(hosts=('a',))))
        self.assertEqual('u', self.audit(
            model(t={'watcher_exclude': True}))[0][1])
        self.assertEqual([], self.audit(
            model(t={'locked': True}, u={'locked': True})))

    def test_pair_of_moves_needs_a_planner_that_keeps_the_order(self):
        """t makes room on the host a for u."""
        pair = (move('t', 'a', 'b', 'u'), move('u', 'b', 'a', 't'))
        self.assertEqual([], self.audit(model(), pair))
        self.migrate_at_once(1)
        self.assertEqual(['t', 'u'], [
            action[1] for action in self.audit(model(), pair)])


class DropDependentTest(base.TestCase):
    """Plans by the number of migrations that are started at a time."""

    def cut_plan(self, parallel, *moves):
        return [
            one.guest for one in ours.drop_dependent_moves(moves, parallel)]

    def test_single_move_that_must_wait_is_dropped_alone(self):
        moves = (move('t', 'a', 'b'), move('u', 'b', 'a'))
        for parallel, expected in ((1, ['t', 'u']), (2, ['t']), (None, ['t'])):
            self.assertEqual(expected, self.cut_plan(parallel, *moves))

    def test_moves_of_different_turns_keep_their_order(self):
        moves = (move('s', 'c', 'd'), move('t', 'a', 'b', 'u'),
                 move('u', 'b', 'a', 't'))
        self.assertEqual(['s', 't', 'u'], self.cut_plan(2, *moves))
        self.assertEqual(['s'], self.cut_plan(3, *moves))

    def test_pair_that_falls_into_one_turn_later_is_dropped(self):
        moves = (move('s', 'c', 'd', 'x'), move('x', 'd', 'c', 's'),
                 move('r', 'e', 'f'), move('t', 'a', 'b', 'u'),
                 move('u', 'b', 'a', 't'))
        self.assertEqual(['r'], self.cut_plan(4, *moves))


def move(guest, origin, destination, partner=''):
    return move_plan.Move(guest, Spot(origin, 0), Spot(destination, 0), 'why',
                          1.0, 1.0, partner)


def wish(share):
    return GuestDemand(GuestPolicy(nodes=(NodePolicy(share),)), 1)


class RoomTest(StrategyTestCase):
    """t and u take 40 % of the host a each; b has one node with 30 % left."""

    NAME = watcher_room.NAME

    def question(self, share, count):
        hosts = (
            clouds.host(clouds.node(0, used=40), clouds.node(1, used=40)),
            clouds.host(clouds.node(0, used=50, name='b'), name='b'))
        return rebalance_for_flavor.FlavorMoveRequest(
            'large', count, [wish(share)], hosts, tuple(
                flavor_moves.MovableGuest(name, Spot('a', node), wish(40), 512)
                for node, name in enumerate(GUESTS)), {})

    def audit(self, model, *refused, asked=None, **parameters):
        """Return the actions of an audit; flavors are shares of a node."""
        asked = [] if asked is None else asked

        def read(_client, flavor, count, image):
            asked.append(flavor)
            if flavor == 'deleted':
                raise exceptions.CommandError('there is no flavor')
            return self.question(int(flavor), count)
        client = mock.Mock()
        with mock.patch.object(rebalance_for_flavor,
                               'read_flavor_move_request', read), \
                mock.patch.object(refusals, 'list_refused_flavors',
                                  return_value=(refused, ('silent',))), \
                mock.patch('time.time', return_value=10000.0):
            return self.execute(model, client, **parameters)

    def refused(self, share, count=1, last=9999.0):
        return RefusalCount(str(share), f'flavor {share}', count, last)

    def test_goal_and_strategy_are_found_by_watcher(self):
        goal = loading.DefaultGoalLoader().load(self.NAME)
        self.assertIsInstance(goal, watcher_room.RoomGoal)
        strategy = loading.DefaultStrategyLoader().load(self.NAME)
        self.assertEqual(self.NAME, strategy.goal.name)

    def test_refused_flavor_gets_room_by_a_live_migration(self):
        self.assertEqual(
            [('migrate', 't', 'live', 'a-service', 'b-service')],
            self.audit(model(), self.refused(90)))

    def test_nothing_is_moved_for_what_fits_was_refused_long_ago_or_is_gone(
            self):
        for refused in (self.refused(60), self.refused(90, last=6399.0),
                        self.refused('deleted')):
            self.assertEqual([], self.audit(model(), refused))
        self.assertEqual([], self.audit(model()))

    def test_flavor_that_was_refused_most_often_is_first(self):
        asked = []
        self.assertEqual(1, len(self.audit(
            model(), self.refused(90), self.refused('deleted', 9),
            self.refused(100, 2), asked=asked)))
        self.assertEqual(['deleted', '100'], asked)

    def test_servers_and_hosts_out_of_scope_stay(self):
        self.assertEqual([], self.audit(model(hosts=('a',)),
                                        self.refused(90)))
        self.assertEqual('u', self.audit(
            model(t={'locked': True}), self.refused(90))[0][1])
        self.assertEqual([], self.audit(
            model(t={'locked': True}, u={'watcher_exclude': True}),
            self.refused(90)))

    def test_count_and_time_of_the_audit_hold(self):
        self.assertEqual([], self.audit(model(), self.refused(90), count=9))
        self.assertEqual(1, len(self.audit(
            model(), self.refused(90, last=1.0), since=99999)))
