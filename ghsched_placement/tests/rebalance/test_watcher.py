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

"""The strategy on Watcher's own base classes, loaders and data model."""

import unittest
from unittest import mock
import uuid


from ghsched_placement.rebalance import move_plan
from ghsched_placement.rebalance.move_plan import Spot
from ghsched_placement.tests import base

try:
    from watcher.decision_engine.loading import default as loading
    from watcher.decision_engine.model import element
    from watcher.decision_engine.model import model_root

    from ghsched_placement.rebalance import watcher as ours
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


class StrategyTest(base.TestCase):

    def audit(self, model, **parameters):
        """Return the actions that an audit proposes: action, server, from, to.
        """
        strategy = loading.DefaultStrategyLoader().load(ours.NAME)
        self.assertIsInstance(strategy, ours.NumaStrategy)
        strategy._compute_model = model
        for name, value in strategy.get_schema()['properties'].items():
            strategy.input_parameters[name] = parameters.get(
                name, value['default'])
        client = mock.Mock()
        client.list_compute_nodes.return_value = {
            node: {'hypervisor_hostname': name}
            for name, node in HOSTS.items()}
        with mock.patch.object(strategy, '_client', lambda: client), \
                mock.patch.object(ours.measured, 'read_cloud',
                                  return_value=(cloud(), {})), \
                mock.patch.object(ours.measured, 'list_recent_moves',
                                  return_value=()):
            solution = strategy.execute()
        return [(action['action_type'],
                 action['input_parameters']['resource_id'],
                 action['input_parameters']['migration_type'],
                 action['input_parameters']['source_node'],
                 action['input_parameters']['destination_node'])
                for action in solution.actions]

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
