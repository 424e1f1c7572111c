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

"""Rebalancing as a goal and a strategy of Watcher.

Watcher runs the audit, stores the plan and applies it. Its cluster data model
gives the hosts and servers in the scope of an audit. This model has no NUMA
nodes, and Watcher's data sources have no waiting times. Loads are therefore
read from Nova and Placement, as by ``openstack ghsched rebalance plan``, with
Watcher's credentials. Watcher has no action for moves within a host; only that
command makes them.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import time
from typing import Any

from oslo_log import log as logging
from watcher import conf
from watcher.decision_engine.loading import default as loading

from ghsched_placement.features.rebalance import measured
from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance import rebalance as command
from ghsched_placement.features.rebalance import watcher_base

LOG = logging.getLogger(__name__)

NAME = 'ghsched_numa'


class NumaGoal(watcher_base.GhschedGoal):
    """Goal of OpenStack Watcher: NUMA nodes without bottlenecks.

    Guests that exchange much network traffic should also be near each other.
    """

    NAME = NAME
    TITLE = 'NUMA nodes without bottlenecks'


class NumaStrategy(watcher_base.GhschedStrategy):
    """Strategy of OpenStack Watcher that rebalances NUMA nodes.

    It live-migrates servers away from overloaded NUMA nodes, and to the hosts
    of servers with which they exchange much network traffic.
    """

    NAME = NAME
    TITLE = 'Rebalance NUMA nodes by load, waiting and affinity (ghsched)'

    @classmethod
    def get_schema(cls) -> dict[str, Any]:
        defaults = move_plan.Settings()
        return {'properties': {
            'policy': {
                'description': 'Entry point of ghsched.rebalance_policies.',
                'type': 'string', 'default': 'affinity'},
            **{name: {'description': 'See "openstack ghsched rebalance plan '
                                     '--help".',
                      'type': 'number', 'minimum': 0,
                      'default': getattr(defaults, name)}
               for name in command.OPTIONS},
            **{name: {'description': f'{text.capitalize()}; 0 is no limit.',
                      'type': 'number', 'minimum': 0, 'default': default}
               for name, (_kind, default, text)
               in command.GROUP_BOUNDS.items()}}}

    def do_execute(self, audit: Any = None) -> None:
        chosen = dataclasses.replace(move_plan.Settings(), **{
            name: self.input_parameters[name] for name in command.OPTIONS})
        client = self._make_client()
        now = time.time()
        found, _records = measured.read_cloud_for_rebalance(
            client, command.make_group_bounds({
                name: self.input_parameters[name]
                for name in command.GROUP_BOUNDS}))
        uuids = watcher_base.map_compute_node_uuids(client)
        cloud = restrict_to_audit_scope(found, self.compute_model, uuids)
        moves = command.load_rebalance_policy(
            self.input_parameters.policy).plan(
                cloud, chosen,
                measured.list_recent_moves(client, cloud, chosen, now), now)
        for move in drop_dependent_moves(moves, count_parallel_migrations()):
            self._add_migration(move, uuids)


def restrict_to_audit_scope(cloud: move_plan.Cloud, model: Any,
                            uuids: Mapping[str, str]) -> move_plan.Cloud:
    """Return a copy of a cloud that allows only moves in an audit's scope.

    The audit is one of OpenStack Watcher. A host outside its scope receives no
    servers. A server that is outside the scope, excluded or locked is not
    moved.

    :param model: Watcher's cluster data model.
    :param uuids: UUIDs of compute nodes, by name.
    """
    hosts = model.get_all_compute_nodes()
    servers = list_movable_servers(model)
    return dataclasses.replace(
        cloud,
        nodes=tuple(dataclasses.replace(
            node, open=node.open and uuids.get(node.spot.host) in hosts)
            for node in cloud.nodes),
        guests=tuple(dataclasses.replace(
            guest, inside=False, between=guest.between
            and guest.uuid in servers and uuids.get(guest.spot.host) in hosts)
            for guest in cloud.guests))


def list_movable_servers(model: Any) -> set[str]:
    """Return the UUIDs of the servers that a Watcher audit may move.

    :param model: Watcher's cluster data model.
    """
    return {uuid for uuid, instance in model.get_all_instances().items()
            if not (instance.watcher_exclude or instance.locked)}


def count_parallel_migrations() -> int | None:
    """Return how many migrations Watcher's planner starts in parallel.

    :returns: None for planners other than Watcher's default planner, because
        their order of actions is unknown.
    """
    planner = loading.DefaultPlannerLoader().load(
        conf.CONF.watcher_planner.planner)
    found = getattr(planner.config, 'parallelization', {}).get('migrate')
    return None if found is None else max(1, int(found))


def drop_dependent_moves(moves: Sequence[move_plan.Move],
                         parallel: int | None) -> tuple[move_plan.Move, ...]:
    """Drop moves that Watcher would start before moves on which they depend.

    Watcher starts several migrations in parallel, in the order of the plan. If
    one server moves to a host that another must leave first, the first move
    would not wait. Both moves are dropped in this case.

    :param parallel: number of migrations that Watcher starts in parallel; None
        if the order of the migrations is unknown.
    """
    kept = tuple(moves)
    while late := _find_premature_move(kept, parallel or max(1, len(kept))):
        LOG.warning(
            'ghsched: skipping the migration of server %(server)s because it '
            'depends on another migration that Watcher would start at the '
            'same time; to keep the order, set migrate:1 in '
            '[watcher_planners.weight]parallelization',
            {'server': late.guest})
        kept = tuple(one for one in kept
                     if one.guest not in (late.guest, late.partner))
    return kept


def _find_premature_move(moves: Sequence[move_plan.Move], parallel: int
                         ) -> move_plan.Move | None:
    """Return the first move that Watcher would start too early.

    The move goes to a host that another server, whose move starts at the same
    time, has not left yet.

    :param parallel: number of migrations that Watcher starts in parallel.
    :returns: None if no move starts too early.
    """
    for number, move in enumerate(moves):
        together = moves[number - number % parallel:number]
        if any(one.origin.host == move.destination.host for one in together):
            return move
    return None
