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

"""``openstack ghsched server set`` and ``server move-node``."""

import argparse
from collections.abc import Mapping
from typing import Any

from ghsched_placement.features.live_change import change_arguments
from ghsched_placement.features.live_change import change_report
from ghsched_placement.features.live_change import move_report
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients


class SetServer(base.Lister):
    """Change the memory bandwidth policy of a server without a restart.

    nova-api must have the filter of ghsched in its api-paste.ini. The rule
    os_compute_api:ghsched:server-set of its policy says who may use this; with
    --dry-run, os_compute_api:ghsched:dry-run instead. The command "ghsched
    server set" does not need the filter; it runs on a node with nova-manage.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        change_arguments.add_change_arguments(parser, 'name or UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        client = clients.get_client(self.app)
        try:
            asked = change_arguments.parse_change_arguments(parsed_args)
        except policies.PolicyError as error:
            raise base.CommandRefused(f'refused: {error}') from error
        shown = set_bandwidth_policy(
            client, str(client.find_server(parsed_args.server)['id']), asked,
            parsed_args.dry_run)
        self.log.warning(change_report.summarize_change(shown))
        return change_report.HEADER, list(
            change_report.list_change_rows(shown))


class MoveServerNodes(base.Lister):
    """Move a running server to other NUMA nodes of its host.

    Shows the host CPUs of each vCPU before and after the move. If the move is
    not possible, shows the reason: too few free CPUs, too little memory or
    bandwidth on the target nodes, or memory that is pinned. nova-api must have
    the filter of ghsched in its api-paste.ini. The rule
    os_compute_api:ghsched:move-nodes of its policy says who may use this; with
    --dry-run, os_compute_api:ghsched:dry-run as well.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='<server>',
                            help='Server (name or ID)')
        parser.add_argument(
            '--node', action='append', required=True, metavar='<guest=host>',
            help='Guest NUMA node and the host NUMA node to move it to '
                 '(repeat for several)')
        parser.add_argument('--dry-run', action='store_true',
                            help='Check whether the move is possible; '
                                 'changes nothing')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        try:
            nodes = move_report.parse_node_pairs(parsed_args.node)
        except policies.PolicyError as error:
            raise base.CommandRefused(
                f'refused: --node: {error.reason}') from error
        client = clients.get_client(self.app)
        shown = move_server_nodes(
            client, str(client.find_server(parsed_args.server)['id']), nodes,
            parsed_args.dry_run)
        self.log.warning(move_report.summarize_move(shown))
        return move_report.HEADER, list(move_report.list_vcpu_rows(shown))


def set_bandwidth_policy(client: clients.Client, uuid: str,
                         extra_specs: Mapping[str, str | None],
                         dry_run: bool) -> dict[str, Any]:
    """Ask nova-api to change the bandwidth policy of a server.

    :param uuid: UUID of the server.
    :param extra_specs: new value of each extra spec; None removes the extra
        spec.
    :param dry_run: whether to only check that the change is possible.
    :returns: report of the change, in the form that ``ghsched server set``
        prints as JSON.
    :raises CommandRefused: if the request is refused and nothing has changed.
    :raises CommandError: if the request fails or is only partly carried out.
    """
    return client.post_server_action(
        uuid, {'extra_specs': dict(extra_specs), 'dry_run': dry_run},
        '; "ghsched server set" works without it, where nova-manage runs')


def move_server_nodes(client: clients.Client, uuid: str,
                      nodes: Mapping[int, int], dry_run: bool
                      ) -> dict[str, Any]:
    """Ask nova-api to move a server to other NUMA nodes of its host.

    :param uuid: UUID of the server.
    :param nodes: new host NUMA node of each guest NUMA node.
    :param dry_run: whether to only check that the move is possible.
    :returns: report of the move.
    :raises CommandRefused: if the request is refused and nothing has changed.
    :raises CommandError: if the request fails or is only partly carried out.
    """
    return client.post_server_action(uuid, {
        'move_nodes': {str(guest): host for guest, host in nodes.items()},
        'dry_run': dry_run})
