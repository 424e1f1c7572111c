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

"""``openstack ghsched server bandwidth show``."""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osc_lib.command import command
from osc_lib import exceptions

from ghsched_placement import audit
from ghsched_placement import diagnostics
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import columns
from ghsched_placement.osc import observe
from ghsched_placement import policy as policies

COLUMNS = (
    'Guest Node', 'Host', 'Host Node', 'Min (%)', 'Max (%)', 'Hard Limit',
    'Priority', 'VFs', 'Allocated (%)', 'Effective Min (%)',
    'Effective Max (%)', 'Effective Hard Limit', 'Effective Priority',
    'Used (MB/s)')


@dataclass(frozen=True)
class Guest:
    """A server from all sides.

    :param host: name of its compute node; None where it has none, or where
        only an admin is told.
    :param nodes: host NUMA node of each guest NUMA node, None where only an
        admin is told.
    :param allocated: percent that Placement holds for it, by host NUMA node;
        None where only an admin is told.
    :param report: what its host tells of it.
    """

    host: str | None
    policy: policies.GuestPolicy
    nodes: tuple[int | None, ...]
    allocated: Mapping[int, int] | None = None
    report: diagnostics.Report | None = None


class ShowServerBandwidth(command.Lister):
    """Show what a server may have of the memory bandwidth of its host.

    Asked, by its flavor; allocated, in Placement; and effective, in the
    control group on the host. Who is no admin sees what is asked.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='<server>',
                            help='Server (name or ID)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.of(self.app)
        record = client.find_server(parsed_args.server)
        guest = look(client, record, self.log.warning)
        return COLUMNS, list(rows(guest))


def look(client: clients.Client, record: Mapping[str, Any],
         warn: Any) -> Guest:
    """A server from all sides, as far as the user may look.

    :raises CommandError: when it has no policy, or one that makes no sense.
    """
    nodes = client.host_nodes(record['id'])
    server = observe.read_server(record, nodes)
    if server.problem:
        raise exceptions.CommandError(
            f'the flavor of {server.name}: {server.problem}')
    if server.policy is None:
        raise exceptions.CommandError(
            f'the flavor of {server.name} asks for nothing of ghsched')
    known = server.host not in ('None', '')
    host = server.host if known else None
    if None in nodes or (host is None and not server.moving):
        warn('Only an admin is told the host of a server, and what is '
             'allocated and effective there.')
        return Guest(host, server.policy, nodes)
    report = client.diagnostics(server.uuid)
    if report is None or report.problem:
        warn('What is effective is not known: %s', report.problem if report
             else 'the host does not tell. Does the server run?')
    allocated: Mapping[int, int] = {}
    if host is not None:
        on, = client.hosts([host])
        allocated = audit.bandwidth_by_node(on, client.held(server.uuid))
    return Guest(host, server.policy, nodes, allocated, report)


def rows(guest: Guest) -> Iterator[tuple[Any, ...]]:
    """A row for each guest NUMA node."""
    told = guest.report.by_node() if guest.report else {}
    for number, node in enumerate(guest.nodes):
        asked = (guest.policy.nodes[number] if guest.policy.nodes else None)
        real = None if node is None else told.get(node)
        used = real.used if real else None
        allocated = (None if guest.allocated is None or node is None
                     else guest.allocated.get(node, 0))
        yield (
            number, *map(columns.known, (
                guest.host, node,
                asked and asked.minimum, asked and asked.maximum,
                asked and asked.hardlimit, asked and asked.priority)),
            columns.Lines([f'{vfs.alias}:{vfs.count}'
                           for vfs in guest.policy.vfs
                           if vfs.guest_node == number]),
            *map(columns.known, (
                allocated,
                real and real.minimum, real and real.maximum,
                real and real.hardlimit, real and real.priority,
                None if used is None else round(used / 1e6, 1))))
