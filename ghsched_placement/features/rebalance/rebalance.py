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

"""``openstack ghsched rebalance plan`` and ``rebalance apply``."""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
import functools
import math
import time
from typing import Any
from typing import cast

from osc_lib import exceptions
import stevedore

from ghsched_placement.base import exits
from ghsched_placement.features.live_change import server_change
from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import measured
from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance import no_move_reasons
from ghsched_placement.features.rebalance import rebalance_for_flavor
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import http
from ghsched_placement.osc import observe

COLUMNS = ('Server', 'Name', 'From', 'To', 'Reason', 'Gain (CPU s)',
           'Cost (CPU s)')
RESULT = (*COLUMNS, 'Result')

#: Seconds between two looks at a live migration.
_INTERVAL = 2.0

#: Nova: no live migration past the scheduler's check of the host.
_LIVE_MIGRATION = '2.68'

#: Limits on groups of servers that are kept together: type, default and help
#: by name.
GROUP_BOUNDS: dict[str, tuple[type, float, str]] = {
    'group_members': (int, affinity.Bounds().members,
                      'maximum number of servers to keep together'),
    'group_load': (float, 0.0, 'maximum number of CPUs that servers which are '
                               'kept together keep busy'),
    'group_memory': (int, 0, 'maximum memory in MiB of servers that are kept '
                             'together')}

#: Help of the options that set fields of :class:`move_plan.Settings`.
OPTIONS = {
    'moves': 'maximum number of moves within --period',
    'per_host': 'maximum number of moves to or from a host within --period',
    'period': 'seconds over which moves are counted',
    'cool_down': 'seconds for which a moved server is not moved again',
    'horizon': 'seconds over which the gain of a move is counted',
    'margin': 'factor by which the gain of a move must exceed its cost'}


def load_rebalance_policy(name: str) -> move_plan.Policy:
    """Load the installed rebalance policy that has a given name.

    A rebalance policy decides which servers to move.

    :raises CommandError: if no such policy is installed; the error names the
        installed policies.
    """
    known: Any = stevedore.ExtensionManager(move_plan.POLICIES)
    if name not in known:
        raise exceptions.CommandError(
            f'no policy {name}; installed are '
            + ', '.join(sorted(known.names())))
    return cast(move_plan.Policy, known[name].plugin())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--policy', default='affinity', metavar='<policy>',
        help='Rebalance policy: an entry point of the group '
             'ghsched.rebalance_policies (default: %(default)s)')
    parser.add_argument(
        '--only', choices=('inside', 'between'),
        help='Plan only moves inside a host, or only moves between hosts')
    parser.add_argument(
        '--with-vfs', action='store_true',
        help='Plan live migrations of servers with VFs as well; Nova refuses '
             'those whose [pci]alias has no live_migratable')
    defaults = move_plan.Settings()
    for name, text in OPTIONS.items():
        default = getattr(defaults, name)
        parser.add_argument(
            f'--{name.replace("_", "-")}', type=type(default),
            default=default, metavar='<n>',
            help=f'{text.capitalize()} (default: %(default)s)')
    rebalance_for_flavor.add_flavor_arguments(parser)
    for name, (kind, default, text) in GROUP_BOUNDS.items():
        parser.add_argument(
            f'--{name.replace("_", "-")}', type=kind, default=default,
            metavar='<n>', help=f'{text.capitalize()}; 0 is no limit '
                                '(default: %(default)s)')


def make_group_bounds(values: Mapping[str, Any]) -> affinity.Bounds:
    """Return the size limits of groups of servers to place on one NUMA node.

    :param values: values by name of :data:`GROUP_BOUNDS`; 0 is no limit.
    """
    return affinity.Bounds(**{
        name.removeprefix('group_'): values[name] or math.inf
        for name in GROUP_BOUNDS})


def settings(parsed_args: argparse.Namespace) -> move_plan.Settings:
    return dataclasses.replace(move_plan.Settings(), **{
        name: getattr(parsed_args, name) for name in OPTIONS})


def restrict_movable_guests(
        cloud: move_plan.Cloud, only: str | None,
        fixed: frozenset[str] = frozenset()) -> move_plan.Cloud:
    """Return a copy of a cloud in which fewer guests may be moved.

    :param only: whether guests may move only ``inside`` hosts or only
        ``between`` hosts; None for both.
    :param fixed: UUIDs of guests that must not be moved.
    """
    def may(guest: move_plan.Guest, way: str) -> bool:
        return guest.uuid not in fixed and only in (None, way)
    return dataclasses.replace(cloud, guests=tuple(
        dataclasses.replace(
            guest, inside=guest.inside and may(guest, 'inside'),
            between=guest.between and may(guest, 'between'))
        for guest in cloud.guests))


@dataclass(frozen=True)
class PlannedMoves:
    """Planned moves of servers of a cloud.

    :param moves: moves in the order in which they are to be made.
    :param records: servers by UUID, as Nova's API has them.
    :param again: function that makes the plan again without moves of the
        servers with given UUIDs.
    :param nothing: reason why there are no moves; empty if there are some.
    :param makes_room: whether the servers for which the moves are to make room
        fit after them; True for moves that relieve nodes.
    :param fixed: servers that no plan moves.
    """

    moves: tuple[move_plan.Move, ...]
    records: Mapping[str, Mapping[str, Any]]
    again: Callable[[frozenset[str]], Sequence[move_plan.Move]]
    nothing: str = ''
    makes_room: bool = True
    fixed: tuple[move_plan.FixedGuest, ...] = ()


def plan_server_moves(client: clients.Client,
                      parsed_args: argparse.Namespace) -> PlannedMoves:
    """Plan the moves of servers that the command line asks for.

    The moves relieve overloaded NUMA nodes, or make room for a flavor.

    :raises CommandError: if no host has measured its load.
    """
    if parsed_args.flavor:
        return _plan_moves_for_flavor(client, parsed_args)
    chosen, limits = load_rebalance_policy(
        parsed_args.policy), settings(parsed_args)
    cloud, records = measured.read_cloud_for_rebalance(
        client, make_group_bounds(vars(parsed_args)), parsed_args.with_vfs)
    if not any(node.cpu is not None for node in cloud.nodes):
        raise exceptions.CommandError(
            'no host has reported its load yet; nova-compute does so with '
            'each periodic report')
    now = time.time()
    history = measured.list_recent_moves(client, cloud, limits, now)

    def again(staying: frozenset[str]) -> tuple[move_plan.Move, ...]:
        return chosen.plan(
            restrict_movable_guests(cloud, parsed_args.only, staying), limits,
            history, now)
    moves = again(frozenset())
    return PlannedMoves(
        moves, records, again,
        '' if moves else no_move_reasons.explain_no_moves(
            restrict_movable_guests(cloud, parsed_args.only), limits, history,
            now), fixed=cloud.fixed)


def _plan_moves_for_flavor(client: clients.Client,
                           parsed_args: argparse.Namespace) -> PlannedMoves:
    """Plan moves of servers that make room for new servers of a flavor."""
    question = rebalance_for_flavor.read_flavor_move_request(
        client, parsed_args.flavor, parsed_args.count, parsed_args.image)
    only = parsed_args.only
    moves = question.plan_moves(only=only)
    return PlannedMoves(moves, question.records,
                        lambda staying: question.plan_moves(staying, only),
                        '' if moves else question.explain_no_moves(only),
                        bool(moves) or question.fits_without_moves)


def make_move_row(move: move_plan.Move,
                  records: Mapping[str, Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return the output row of a planned move for ``rebalance plan``.

    :param records: server records of Nova's API by UUID.
    """
    origins, destinations = (
        format_host_nodes(spots[0].host, [spot.node for spot in spots])
        for spots in zip(*move.ways, strict=True))
    return (move.guest, records[move.guest]['name'], origins, destinations,
            move.reason, round(move.gain, 1), round(move.cost, 1))


def make_fixed_row(guest: move_plan.FixedGuest,
                   records: Mapping[str, Mapping[str, Any]]
                   ) -> tuple[Any, ...]:
    """Return the output row of a server that the plan does not move.

    :param records: server records of Nova's API by UUID.
    """
    return (guest.uuid, records[guest.uuid]['name'],
            format_host_nodes(guest.host, guest.nodes), '',
            f'stays: {guest.reason}', '', '')


def format_host_nodes(host: str, nodes: Sequence[int]) -> str:
    """Return a host and its NUMA nodes as text: ``host1 nodes 0,1``."""
    if not nodes:
        return host
    word = 'node' if len(nodes) == 1 else 'nodes'
    return f'{host} {word} {",".join(map(str, nodes))}'


class PlanRebalance(base.Lister):
    """Show which servers should be moved; change nothing.

    Servers on a NUMA node that is a bottleneck are moved away, those first
    that exchange the least network traffic with other servers of the node.
    Servers with several NUMA nodes are moved to another host as a whole.
    Other servers are moved to the NUMA node of the servers with which they
    exchange much traffic. Each move saves more CPU time than it costs. The
    loads are those that the hosts have measured. If a server is migrated, Nova
    chooses the NUMA node of the destination host; the node in the table is one
    with enough room. Exit status: 0, or 1 if no moves make room for the
    servers of --for.
    """

    SHORT = COLUMNS[1:]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_arguments(parser)
        parser.add_argument(
            '--fixed', action='store_true',
            help='Show servers that no plan moves as well, and why')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        found = plan_server_moves(clients.get_client(self.app), parsed_args)
        self.nothing = found.nothing
        if not found.makes_room:
            self.status = exits.FOUND
        rows = [make_move_row(move, found.records) for move in found.moves]
        if parsed_args.fixed:
            rows += [make_fixed_row(one, found.records)
                     for one in found.fixed]
        return COLUMNS, rows


class ApplyRebalance(base.Lister):
    """Move the servers that should be moved, one after the other.

    Servers are live-migrated to another host, or moved within their host as by
    "server move-node". If Nova or Placement refuses a move, the server stays
    where it is. The plan is then made again without this server, and only
    those of the shown moves are made that the new plan contains. The command
    ends at the first move that fails for another reason. Exit status: 0 all
    moves were made, 1 not all of them, or none makes room for --for.
    """

    SHORT = RESULT[1:]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_arguments(parser)
        parser.add_argument('--yes', action='store_true',
                            help='Do not ask for consent')
        parser.add_argument(
            '--timeout', type=float, default=1800.0, metavar='<seconds>',
            help='Time limit of a live migration in seconds '
                 '(default: %(default)s)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.get_client(self.app)
        found = plan_server_moves(client, parsed_args)
        moves, records = found.moves, found.records
        self.nothing = found.nothing
        if not found.makes_room:
            self.status = exits.FOUND
        for move in moves:
            self.log.warning('planned move of server %s from %s to %s: %s',
                             records[move.guest]['name'], move.origin,
                             move.destination, move.reason)
        if moves and not parsed_args.yes:
            base.require_user_consent()
        return RESULT, list(self._apply_moves(
            client, moves, records, _Replan(found.again),
            parsed_args.timeout))

    def _apply_moves(
            self, client: clients.Client, moves: Sequence[move_plan.Move],
            records: Mapping[str, Mapping[str, Any]], replan: '_Replan',
            timeout: float) -> Iterator[tuple[Any, ...]]:
        while moves:
            move, *moves = moves
            outcome = (move_server_within_host(client, move)
                       if move.inside else migrate_server_between_hosts(
                           client, move, timeout))
            yield (*make_move_row(move, records), outcome.text)
            if not outcome.problem:
                continue
            self.status = exits.FOUND
            if not outcome.unchanged:
                return
            left_out, moves = replan.split_moves_after_refusal(move, moves)
            for one in left_out:
                yield (*make_move_row(one, records),
                       f'left out, because {records[move.guest]["name"]} '
                       'stays')


@dataclass(frozen=True)
class MoveOutcome:
    """Result of a move of a server.

    :param problem: reason why the move failed; empty if it succeeded.
    :param unchanged: whether a failed move has changed nothing.
    """

    problem: str = ''
    unchanged: bool = False

    @property
    def text(self) -> str:
        if not self.problem:
            return 'moved'
        return (f'nothing was changed: {self.problem}' if self.unchanged
                else self.problem)


class _Replan:
    """Decides which moves remain useful after a move was refused.

    :param again: function that makes the plan again without moves of the
        servers with given UUIDs.
    """

    def __init__(self, again: Callable[
            [frozenset[str]], Sequence[move_plan.Move]]) -> None:
        self._again = again
        self._staying: frozenset[str] = frozenset()

    def split_moves_after_refusal(
        self, refused: move_plan.Move, remaining: Sequence[move_plan.Move]
    ) -> tuple[list[move_plan.Move], list[move_plan.Move]]:
        """Decide which moves of a plan remain after Nova has refused one.

        The plan is made again without the refused move. Remaining moves that
        the new plan does not contain are dropped.

        :param refused: move that Nova has refused.
        :param remaining: moves of the plan that have not been tried yet.
        :returns: the moves to drop, and the moves that are still to be made.
        """
        self._staying |= {refused.guest}
        planned = {_get_route(move) for move in self._again(self._staying)}
        return ([move for move in remaining
                 if _get_route(move) not in planned],
                [move for move in remaining if _get_route(move) in planned])


def _get_route(move: move_plan.Move
               ) -> tuple[str, move_plan.Spot, move_plan.Spot]:
    return move.guest, move.origin, move.destination


def move_server_within_host(client: clients.Client,
                            move: move_plan.Move) -> MoveOutcome:
    """Ask nova-api to move a server to another NUMA node of its host."""
    return _request_move(functools.partial(
        server_change.move_server_nodes, client, move.guest,
        {0: move.destination.node}, dry_run=False))


def _request_move(request: Callable[[], object]) -> MoveOutcome:
    try:
        request()
    except base.CommandRefused as error:
        return MoveOutcome(str(error), unchanged=True)
    except exceptions.CommandError as error:
        return MoveOutcome(str(error))
    return MoveOutcome()


def request_live_migration(client: clients.Client, uuid: str,
                           service_host: str) -> None:
    """Ask Nova to live-migrate a server to a given host.

    Nova checks that the host has enough free resources.

    :param service_host: nova-compute service of the destination host.
    :raises CommandRefused: when Nova refuses the migration.
    :raises CommandError: when the request fails.
    """
    response = http.send_request(
        client.connection, 'compute', 'post', f'/servers/{uuid}/action',
        microversion=_LIVE_MIGRATION, json={'os-migrateLive': {
            'host': service_host, 'block_migration': 'auto'}})
    if response.status_code == 202:
        return
    text = (f'HTTP {response.status_code} '
            f'{http.get_error_message(response)}')
    if response.status_code < 500:
        raise base.CommandRefused(text)
    raise exceptions.CommandError(text)


def migrate_server_between_hosts(
        client: clients.Client, move: move_plan.Move, timeout: float,
        sleep: Callable[[float], None] = time.sleep) -> MoveOutcome:
    """Ask Nova to live-migrate a server; wait until the migration has ended.

    :param timeout: longest time to wait, in seconds.
    """
    nodes = client.list_compute_nodes().values()
    service = next((str(node['service']['host']) for node in nodes
                    if node['hypervisor_hostname'] == move.destination.host),
                   None)
    if service is None:
        return MoveOutcome(
            f'Nova knows no compute host {move.destination.host}',
            unchanged=True)
    requested = _request_move(functools.partial(
        request_live_migration, client, move.guest, service))
    if requested.problem:
        return requested
    for _turn in range(max(1, int(timeout / _INTERVAL))):
        record = client.get_server(move.guest)
        if record is None:
            return MoveOutcome('the server is gone')
        if not observe.is_server_moving(record):
            return _make_migration_outcome(move, record)
        sleep(_INTERVAL)
    return MoveOutcome(f'the live migration did not end within {timeout:g} s')


def _make_migration_outcome(move: move_plan.Move,
                            record: Mapping[str, Any]) -> MoveOutcome:
    """Return whether a live migration that has ended was successful.

    If it was not, the outcome contains the reason.

    :param move: the planned move.
    :param record: record of the server after the migration.
    """
    host, status = str(record.get(observe.HYPERVISOR)), record['status']
    if host == move.destination.host:
        return MoveOutcome()
    return MoveOutcome(
        f'it is still on {host}, in state {status}; see "openstack server '
        f'migration list --server {move.guest}"',
        unchanged=host == move.origin.host and status == 'ACTIVE')
