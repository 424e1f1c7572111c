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

"""``openstack ghsched server bandwidth show`` and ``server list``."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import time
from typing import Any

from ghsched_placement.audit import audit
from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import Server
from ghsched_placement.features import declared_osc
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor.bandwidth import Bandwidth
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import columns
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import http
from ghsched_placement.osc import node_classes
from ghsched_placement.osc import observe

COLUMNS = (
    'Guest Node', 'Host', 'Host Node', 'Min (%)', 'Max (%)', 'Hard Limit',
    'Priority', 'VFs', 'Allocated (%)', 'Effective Min (%)',
    'Effective Max (%)', 'Effective Hard Limit', 'Effective Priority',
    'Used (MB/s)', *(one.make_column_heading() for one in node_classes.BESIDE),
    *(f'Allocated {one.make_column_heading()}' for one in node_classes.BESIDE))


@dataclass(frozen=True)
class ServerRecords:
    """Records of Placement, of Nova and of a host about one server.

    A value that only an admin may see is None for other users.

    :param host: name of the server's compute node; None if it is on none.
    :param policy: bandwidth policy of the server's flavor.
    :param nodes: host NUMA node of each guest NUMA node.
    :param allocated: percent of bandwidth allocated in Placement, by host NUMA
        node.
    :param report: report of nova-compute about the server.
    :param held: amounts of other resources allocated in Placement, see
        :func:`node_classes.sum_allocations_by_node`.
    """

    host: str | None
    policy: policies.GuestPolicy
    nodes: tuple[int | None, ...]
    allocated: Mapping[int, int] | None = None
    report: diagnostics.GuestReport | None = None
    held: Mapping[int, Mapping[str, int]] | None = None


class ShowServerBandwidth(base.Lister):
    """Show requested, allocated and enforced resources of a server, by node.

    The resources are memory bandwidth, bursts, L3 cache ways and real-time CPU
    time. Requested amounts are those of the flavor. Allocated amounts are
    those in Placement. Effective values of the bandwidth are those of the
    control group on the host. Users who are not admins see only the requested
    amounts. A server without a NUMA topology has a row for each host NUMA node
    that it uses.
    """

    SHORT = ('Guest Node', 'Host Node', 'Min (%)', 'Max (%)',
             'Allocated (%)', 'Effective Min (%)', 'Used (MB/s)', 'L3 Ways')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='<server>',
                            help='Server (name or ID)')
        for one in declared_osc.SERVER_TABLES:
            parser.add_argument(f'--{one.option}', action='store_true',
                                help=one.help_text)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.get_client(self.app)
        record = client.find_server(parsed_args.server)
        for one in declared_osc.SERVER_TABLES:
            if getattr(parsed_args, one.option):
                parsed_args.long = True     # a table with all its columns
                return one.columns, one.list_rows(client, record)
        guest = collect_server_records(client, record, self.log.warning)
        return COLUMNS, list(list_node_rows(guest))


def collect_server_records(client: clients.Client, record: Mapping[str, Any],
                           warn: Any) -> ServerRecords:
    """Read the records of a server in Placement, in Nova and on its host.

    :param record: server record of Nova's API.
    :param warn: function that logs a warning.
    :raises CommandError: if the server has no valid bandwidth policy.
    """
    nodes = client.get_host_numa_nodes(record['id'])
    server = observe.parse_server_record(record, nodes)
    is_placed = bool(nodes) or not auto_nodes.is_node_count_undecided(
        observe.get_flavor_extra_specs(record))
    if server.problem and is_placed:
        raise base.CommandRefused(
            f'the flavor of {server.name}: {server.problem}')
    if server.policy is None and is_placed:
        raise base.CommandRefused(
            f'the flavor of {server.name} has no extra spec of ghsched')
    policy = server.policy if is_placed else None
    host = record.get(observe.HYPERVISOR) or None
    if host is None and not server.moving:
        reason = observe.describe_missing_host(record)
        warn('%s', reason or 'Only an admin sees the host of a server, and '
             'what is allocated and effective there.')
        # Nova shows the number of the guest node in place of the host node.
        return ServerRecords(None, policy or policies.GuestPolicy(),
                             (None,) * len(nodes))
    if None in nodes or policy is None:
        warn('The host NUMA nodes of %s are not known%s.', server.name,
             ': only an admin sees them' if nodes else ' yet')
        return ServerRecords(host, policy or policies.GuestPolicy(), nodes)
    report = client.get_server_report(server.uuid, server.host)
    if report is None:
        warn('Effective values are not known: the host does not report '
             'them')
    elif report.problem or not report.runs:
        warn('Effective values are not known: %s',
             report.problem or 'the server does not run')
    allocated, held = _read_server_allocations(client, server, host, warn)
    return ServerRecords(host, policy, nodes, allocated, report, held)


def _read_server_allocations(
    client: clients.Client, server: Server, host: str | None, warn: Any
) -> tuple[Mapping[int, int] | None, Mapping[int, Mapping[str, int]] | None]:
    """Return a server's allocations in Placement, by host NUMA node.

    :param host: name of the server's host; None if it has none.
    :param warn: function that logs a warning.
    :returns: the percent of bandwidth, and the amounts of other resources;
        both are None if Placement does not answer.
    """
    if host is None:
        return {}, {}
    try:
        (on, ), held = client.list_hosts([
            host]), client.get_consumer_allocations(server.uuid)
    except http.Unreachable as error:
        warn('Allocated values are not known: %s', error)
        return None, None
    return (audit.get_bandwidth_by_node(on, held),
            node_classes.sum_allocations_by_node(on, held))


def list_node_rows(guest: ServerRecords) -> Iterator[tuple[Any, ...]]:
    """Yield a table row for each guest NUMA node of a server.

    A server without a NUMA topology has a row for each host NUMA node.
    """
    limits_by_node = (guest.report.get_limits_by_host_node()
                      if guest.report else {})
    places = (enumerate(guest.nodes) if guest.nodes
              else ((None, node) for node in limits_by_node or (None,)))
    for number, node in places:
        yield _make_node_row(guest, number, node, None if node is None
                             else limits_by_node.get(node))


def _make_node_row(guest: ServerRecords, number: int | None, node: int | None,
                   real: diagnostics.GuestNodeReport | None
                   ) -> tuple[Any, ...]:
    """Return the table row of a guest NUMA node.

    :param number: number of the guest node; None for a server without a NUMA
        topology, whose bandwidth is only measured on the host nodes.
    :param node: host NUMA node; None if unknown.
    :param real: values that the host reports of the server on this node.
    """
    asked = (guest.policy.nodes[number]
             if guest.policy.nodes and number is not None else None)
    allocated = (
        None if guest.allocated is None or node is None or number is None
        else guest.allocated.get(node, 0))
    return (
        *map(columns.mark_unknown,
             (number, guest.host, node, *_list_bandwidth_cells(asked))),
        columns.MultilineCell([
            f'{vfs.alias}:{vfs.count}' for vfs in guest.policy.vfs
            if vfs.guest_node == number]),
        *map(columns.mark_unknown,
             (allocated,
              *_list_bandwidth_cells(real.enforced_limits if real else None),
              _convert_to_megabytes(real.used if real else None),
              *_yield_amounts_except_bandwidth(guest, number, node))))


def _yield_amounts_except_bandwidth(guest: ServerRecords, number: int | None,
                                    node: int | None) -> Iterator[int | None]:
    """Yield the cells of a guest NUMA node for resources except bandwidth.

    The resources are burst bandwidth, L3 cache ways and real-time CPU time.
    First come the amounts that the flavor requests, one per resource, then
    those that Placement has allocated.

    :param number: number of the guest NUMA node; None for a server without a
        NUMA topology, of which all amounts are unknown.
    :param node: host NUMA node; None if unknown.
    """
    asked = (None if number is None
             else guest.policy.get_resources_by_node().get(number, {}))
    held = (None if guest.held is None or node is None or number is None
            else guest.held.get(node, {}))
    for one in node_classes.BESIDE:
        yield None if asked is None else asked.get(one.name, 0)
    for one in node_classes.BESIDE:
        yield None if held is None else held.get(one.field, 0)


def _list_bandwidth_cells(limits: Bandwidth | None) -> Iterable[Any]:
    """Return four table cells: guarantee, cap, hard limit and priority.

    :param limits: bandwidth of a guest on a NUMA node; None if it is
        unknown or not set. All cells are None then.
    """
    return (limits or Bandwidth()).as_dict().values()


def _convert_to_megabytes(used: int | None) -> float | None:
    """Convert a number of bytes to megabytes (10^6 bytes).

    :returns: None if the number is None.
    """
    return None if used is None else round(used / 1e6, 1)


LIST = ('Server', 'Name', 'Host', 'Host Nodes', 'Min (%)', 'Allocated (%)',
        'Used (MB/s)')

#: Index of the column in LIST, and whether the largest value comes first.
_SORTED = {'name': (1, False), 'host': (2, False), 'min': (4, True),
           'allocated': (5, True), 'used': (6, True)}


class ListServers(base.Lister):
    """List the servers of all projects that use ghsched.

    These are the servers whose flavor has a ghsched extra spec. Percentages
    and MB/s are sums over the NUMA nodes of a server. The used bandwidth is
    the mean of the last seconds. It is read from nova-compute for each running
    server; if nova-compute has not measured the server before, it is read
    again after --interval.
    """

    SHORT = LIST[1:]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--sort', choices=sorted(_SORTED), default='used',
            help='Column to sort by: numbers from the largest, names from A '
                 '(default: used)')
        parser.add_argument('--limit', type=base.parse_count, metavar='<n>',
                            help='Show at most this many servers')
        parser.add_argument(
            '--interval', type=float, default=1.0, metavar='<seconds>',
            help='Time between two measurements (default: 1.0)')
        host_commands.add_accounting_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.get_client(self.app)
        seen = observe.collect_host_records(client, ask_hosts=True,
                                            accounting=parsed_args.accounting)
        if any(real.used is None for one in seen for guest in one.guests
               for real in (guest.effective or {}).values()):
            time.sleep(parsed_args.interval)
            seen = observe.collect_host_records(
                client, ask_hosts=True, accounting=parsed_args.accounting)
        self.nothing = describe_no_servers(seen)
        return LIST, make_sorted_server_rows(
            seen, parsed_args.sort)[:parsed_args.limit]


def describe_no_servers(hosts: Sequence[observe.HostRecords]) -> str:
    """Return a message for the user that no server on the hosts uses ghsched.
    """
    if not hosts:
        return base.NO_HOSTS
    servers = sum(len(one.servers) for one in hosts)
    return ('No server asks for anything of ghsched: '
            f'{base.format_count(len(hosts), "host")}, '
            f'{base.format_count(servers, "server")}.')


def make_sorted_server_rows(hosts: Iterable[observe.HostRecords], column: str
                            ) -> list[tuple[Any, ...]]:
    """Return the sorted rows of ``server list`` for the servers of hosts.

    :param hosts: the hosts, with their servers.
    :param column: column to sort by, with unknown values last; servers with
        equal values are sorted by name.
    """
    place, largest = _SORTED[column]
    found = sorted(
        (make_server_row(one, guest) for one in hosts for guest in one.guests),
        key=lambda row: (row[1], row[0]))
    # A sort in reverse keeps the order of equal ones, too.
    return sorted(found, key=lambda row: row[place], reverse=largest)


def make_server_row(observed: observe.HostRecords,
                    guest: Server) -> tuple[Any, ...]:
    """Return the row of a server in the output of ``server list``.

    :param observed: host of the server, with its allocations.
    """
    shares = audit.get_bandwidth_by_node(
        observed.host, observed.holdings.get(guest.uuid, {}))
    nodes = guest.policy.nodes if guest.policy else ()
    used = [real.used for real in (guest.effective or {}).values()
            if real.used is not None]
    return (guest.uuid, guest.name, observed.host.name,
            columns.CommaListCell(list(guest.nodes)),
            sum(node.minimum for node in nodes), sum(shares.values()),
            columns.mark_unknown(
                _convert_to_megabytes(sum(used)) if used else None))
