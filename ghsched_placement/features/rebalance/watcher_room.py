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

"""Room for refused flavors as a goal and a strategy of Watcher.

nova-scheduler counts the requests that it refuses by flavor
(:mod:`ghsched_placement.features.refusals.refusal_record`). An audit takes the
flavors that were refused recently and makes the plan of ``openstack ghsched
rebalance plan --for``, but with live migrations only, because Watcher has no
action for moves within a host.
"""

from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import time
from typing import Any

from osc_lib import exceptions

from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance import rebalance_for_flavor
from ghsched_placement.features.rebalance import watcher
from ghsched_placement.features.rebalance import watcher_base
from ghsched_placement.features.refusals import refusal_record
from ghsched_placement.features.refusals import refusals
from ghsched_placement.osc import client as clients

NAME = 'ghsched_room'

#: Maximum number of flavors that an audit plans for until it finds moves.
_MAX_FLAVORS = 10


class RoomGoal(watcher_base.GhschedGoal):
    """Goal of OpenStack Watcher: make room for flavors that found no host."""

    NAME = NAME
    TITLE = 'Room for flavors that were refused'


class RoomStrategy(watcher_base.GhschedStrategy):
    """Strategy of Watcher: live migrations that make room for a flavor."""

    NAME = NAME
    TITLE = 'Make room for flavors that were refused (ghsched)'

    @classmethod
    def get_schema(cls) -> dict[str, Any]:
        return {'properties': {
            'since': {
                'description': 'Seconds within which a flavor was refused.',
                'type': 'number', 'minimum': 1, 'default': 3600},
            'count': {
                'description': 'Number of servers to make room for.',
                'type': 'integer', 'minimum': 1, 'maximum': 100,
                'default': 1}}}

    def do_execute(self, audit: Any = None) -> None:
        """Add migrations that make room for a flavor to Watcher's action plan.

        Watcher calls this method. The flavors for which nova-scheduler
        recently found no host are tried in turn, until migrations make room
        for one of them.
        """
        client = self._make_client()
        record, _silent = refusals.list_refused_flavors(client)
        recent = refusal_record.list_recent_refusals(
            record, time.time() - self.input_parameters.since)
        uuids = watcher_base.map_compute_node_uuids(client)
        for refused in recent[:_MAX_FLAVORS]:
            moves = self._plan_migrations(client, refused, uuids)
            for move in moves:
                self._add_migration(move, uuids)
            if moves:
                return

    def _plan_migrations(
            self, client: clients.Client, refused: refusal_record.RefusalCount,
            uuids: Mapping[str, str]) -> tuple[move_plan.Move, ...]:
        """Return live migrations that make room for a refused flavor.

        The result is empty if the flavor fits now, if no migrations within the
        audit's scope help, or if the flavor is invalid or has been deleted.

        :param refused: flavor for which nova-scheduler has found no host.
        :param uuids: UUIDs of compute nodes, by name.
        """
        try:
            request = rebalance_for_flavor.read_flavor_move_request(
                client, refused.flavor, self.input_parameters['count'], None)
        except exceptions.CommandError:
            return ()
        if request.fits_without_moves:
            return ()
        found = restrict_request_to_audit_scope(request, self.compute_model,
                                                uuids)
        moves = found.plan_moves(only='between')
        kept = watcher.drop_dependent_moves(
            moves, watcher.count_parallel_migrations())
        # A part of the moves makes no room.
        return kept if kept == moves else ()


def restrict_request_to_audit_scope(
        request: rebalance_for_flavor.FlavorMoveRequest, model: Any,
        uuids: Mapping[str, str]) -> rebalance_for_flavor.FlavorMoveRequest:
    """Restrict a request for moves to hosts and servers in an audit's scope.

    The audit is one of OpenStack Watcher.

    :param request: request for moves that make room for a flavor.
    :param model: Watcher's cluster data model.
    :param uuids: UUIDs of compute nodes, by name.
    """
    hosts: Collection[str] = model.get_all_compute_nodes()
    servers = watcher.list_movable_servers(model)
    return dataclasses.replace(
        request, hosts=tuple(host for host in request.hosts
                             if uuids.get(host.name) in hosts),
        guests=tuple(guest for guest in request.guests
                     if guest.uuid in servers
                     and uuids.get(guest.spot.host) in hosts))
