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

"""``openstack ghsched host list`` and ``host show``."""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import Any

from ghsched_placement.audit import audit
from ghsched_placement.audit import diagnostics
from ghsched_placement.features import declared_osc
from ghsched_placement.fit import capacity
from ghsched_placement.fit import node_capacity
from ghsched_placement.osc import base
from ghsched_placement.osc import capacity as shown
from ghsched_placement.osc import client
from ghsched_placement.osc import columns
from ghsched_placement.osc import node_classes
from ghsched_placement.osc import observe

LIST = ('Host', 'State', 'Status', 'NUMA Nodes', 'BW Used (%)',
        'BW Free (%)', 'Largest Guarantee (%)', 'VFs Free', 'Groups Free',
        'Guests', 'Drift', 'BW Free by Node (%)')


def add_accounting_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--accounting', choices=('min', 'max'), default='min',
        help='Value of [ghsched]bandwidth_accounting for hosts that do not '
             'report it (default: min)')


class ListHosts(base.Lister):
    """List the compute hosts that run ghsched.

    Bandwidth (BW) is in percent of the theoretical bandwidth of one NUMA node,
    for each node in ascending order; with --long also as the sum over all
    nodes. Guests are the servers whose flavor has a ghsched extra spec. Drift
    is the number of differences between Placement and Nova; "openstack ghsched
    host show" lists them.
    """

    nothing = base.NO_HOSTS
    SHORT = ('Host', 'State', 'Status', 'Groups Free', 'Guests', 'Drift',
             'BW Free by Node (%)')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_accounting_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        found = observe.collect_host_records(client.get_client(self.app),
                                             accounting=parsed_args.accounting)
        return LIST, [make_host_row(one) for one in found]


def make_host_row(observed: observe.HostRecords) -> tuple[Any, ...]:
    """Return the row of a compute host in the output of ``host list``."""
    host = observed.host
    stocks = [node.bandwidth for node in host.nodes if node.bandwidth]
    guarantee = max((host.get_largest_guarantee(node) for node in host.nodes
                     if node.bandwidth), default=None)
    return (host.name, columns.mark_unknown(observed.state),
            columns.mark_unknown(observed.status), len(host.nodes),
            columns.mark_unknown(
                sum(stock.used for stock in stocks) if stocks else None),
            columns.mark_unknown(
                sum(stock.free for stock in stocks) if stocks else None),
            columns.mark_unknown(guarantee),
            columns.mark_unknown(
                sum(pf.stock.free for pf in host.pfs) if host.pfs else None),
            columns.mark_unknown(host.groups.free if host.groups else None),
            len(observed.guests), len(observed.findings),
            columns.PercentsCell([
                node.bandwidth.free if node.bandwidth else None
                for node in host.nodes]))


class ShowHost(base.ShowOne):
    """Show inventory, usage and drift of a compute host.

    The limits that the host has really set for each guest, and the bandwidth
    in use, are read from the host itself. It reports them only if at least one
    guest with a bandwidth policy runs there.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', metavar='<host>',
                            help='Compute host (hypervisor hostname)')
        parser.add_argument(
            '--no-effective', action='store_true',
            help='Do not ask the host; show the records of Placement and Nova '
                 'only')
        add_accounting_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        cloud = client.get_client(self.app)
        seen, = observe.collect_host_records(
            cloud, [parsed_args.host],
            ask_hosts=not parsed_args.no_effective,
            accounting=parsed_args.accounting)
        reported = ({} if parsed_args.no_effective
                    else _read_host_diagnostics(cloud, seen))
        found = make_host_report(
            dataclasses.replace(seen, host=capacity.set_node_capacity(
                seen.host, node_capacity.from_diagnostics(reported))),
            reported)
        return tuple(found), tuple(found.values())


def _read_host_diagnostics(cloud: client.Client,
                           observed: observe.HostRecords) -> dict[str, Any]:
    """Return the measurements that a host reports about itself.

    A host reports them with the diagnostics of each of its servers. The
    diagnostics of one running server are therefore read.

    :returns: the server's diagnostics; empty if no server runs on the host, or
        the host is down.
    """
    asked = [server.uuid for server in observed.servers
             if server.running and not server.moving]
    return (cloud.get_diagnostics(asked[0], observed.host.name)
            if asked and observed.state == 'up' else {})


def make_host_report(observed: observe.HostRecords,
                     reported: Mapping[str, Any] | None = None
                     ) -> dict[str, Any]:
    """Return the output of ``host show`` as a dict for JSON.

    :param observed: records of Placement, Nova and the host itself.
    :param reported: fields that the host reports of itself; None if unknown.
    """
    host, groups = observed.host, observed.host.groups
    return {
        'name': host.name,
        'uuid': host.uuid,
        'state': columns.mark_unknown(observed.state),
        'status': columns.mark_unknown(observed.status),
        'capabilities': columns.MultilineCell(list(host.capabilities)),
        'numa_nodes': NodesCell(list(_yield_node_reports(observed))),
        **{name: make_cell(reported or {})
           for name, make_cell in declared_osc.HOST_COLUMNS},
        'devices_without_node': columns.VfsCell(
            shown.list_vfs_by_pf(host.elsewhere)),
        'control_groups_total': columns.mark_unknown(groups and groups.total),
        'control_groups_reserved': columns.mark_unknown(groups
                                                        and groups.reserved),
        'control_groups_used': columns.mark_unknown(groups and groups.used),
        'control_groups_free': columns.mark_unknown(groups and groups.free),
        'fragmentation_percent':
        columns.mark_unknown(capacity.compute_fragmentation(host)),
        'guests': GuestsCell(list(_yield_guest_reports(observed))),
        'drift': FindingsCell([vars(finding)
                               for finding in observed.findings]),
    }


def _yield_node_reports(seen: observe.HostRecords) -> Iterator[dict[str, Any]]:
    reported = {node.host_node: node for node in seen.reported_nodes}
    for node in seen.host.nodes:
        stock = node.bandwidth
        real = reported.get(-1 if node.number is None else node.number,
                            diagnostics.HostNodeReport(-1))
        yield {
            'node': node.number,
            'total_percent': stock and stock.total,
            'reserved_percent': stock and stock.reserved,
            'used_percent': stock and stock.used,
            'free_percent': stock and stock.free,
            'largest_guarantee_percent': (
                stock and seen.host.get_largest_guarantee(node)),
            'effective_percent': _sum_enforced_guarantees(seen, node.number),
            'measured_bytes_per_second': real.used,
            'capacity_bytes_per_second': real.capacity,
            'bursts': _make_burst_report(node, real),
            **node_classes.make_node_report(node),
            'vcpus_free': node.room and node.room.vcpus_free,
            'dedicated_cpus_free': node.room and node.room.dedicated_free,
            'dedicated_cpus_free_by_l3':
            node.room and node.room.list_free_by_cache(),
            'memory_free_mb': node.room and node.room.memory_free,
            'vfs': shown.list_vfs_by_pf(node.pfs),
        }


def _make_burst_report(
        node: capacity.NodeInventory,
        reported: diagnostics.HostNodeReport) -> dict[str, Any] | None:
    """Return the bandwidth bursts promised on a host NUMA node, for JSON.

    A burst is bandwidth above a guest's guarantee. The guest is promised the
    burst for most of the time, from a pool that guests share.

    :param reported: measurements that the host reports of the node.
    :returns: None if the node has no inventory of bursts.
    """
    stock = node.bursts
    if stock is None:
        return None
    return {
        'kept_percent': stock.total, 'promised_percent': stock.used,
        'free_percent': stock.free, 'short_chance': reported.bursts_chance,
        'periods': reported.bursts_periods,
        'periods_over': reported.bursts_over,
        'periods_short': reported.bursts_short,
        'largest_project_percent': reported.bursts_largest_project}


def _sum_enforced_guarantees(observed: observe.HostRecords,
                             number: int | None) -> int | None:
    """Return the percent of a node's bandwidth that is guaranteed to guests.

    This is the sum of the guarantees that are set in resctrl, which may differ
    from the allocations in Placement.

    :param number: number of the host NUMA node; None if unknown.
    :returns: None if the number or the guarantees are unknown.
    """
    measured = [(server.uuid, server.effective) for server in observed.servers
                if server.effective is not None]
    if number is None or not measured:
        return None
    by_group = {real.group or uuid: real.minimum or 0
                for uuid, of_guest in measured
                for node, real in of_guest.items() if node == number}
    return sum(by_group.values())


def _yield_guest_reports(seen: observe.HostRecords
                         ) -> Iterator[dict[str, Any]]:
    for server in seen.guests:
        held = seen.holdings.get(server.uuid, {})
        yield {
            'server': server.uuid, 'name': server.name,
            'allocated_percent': audit.get_bandwidth_by_node(seen.host, held),
            'allocated_beside': node_classes.sum_allocations_by_node(
                seen.host, held),
            'effective_percent': None if server.effective is None else {
                node: real.minimum
                for node, real in sorted(server.effective.items())},
            'shared_group': next(
                (real.group
                 for real in (server.effective or {}).values() if real.group),
                None), }


class NodesCell(columns.MultilineCell):
    """Table cell with the resources of each NUMA node, one node per line."""

    def line(self, item: Mapping[str, Any]) -> str:
        head = f'node {item["node"]}: '
        if item['total_percent'] is None:
            parts = ['bandwidth cannot be controlled']
        else:
            parts = [f'{item["used_percent"]} % used',
                     f'{item["free_percent"]} % free']
            if item['reserved_percent']:
                parts.append(f'{item["reserved_percent"]} % reserved')
        if item['effective_percent'] is not None:
            parts.append(f'{item["effective_percent"]} % set on the host')
        if item['measured_bytes_per_second'] is not None:
            parts.append(_format_measured_bandwidth(item))
        if item['bursts']:
            parts.append(_format_bursts(item['bursts']))
        parts += node_classes.describe_used_amounts(item)
        if item['vcpus_free'] is not None:
            parts.append(f'{item["vcpus_free"]} vCPUs, '
                         f'{item["dedicated_cpus_free"]} dedicated CPUs and '
                         f'{item["memory_free_mb"]} MiB free')
        if item['dedicated_cpus_free_by_l3']:
            parts.append('dedicated CPUs free by L3: ' + ' '.join(
                map(str, item['dedicated_cpus_free_by_l3'])))
        parts += [f'{pf["pf"]} {pf["free"]}/{pf["total"]} VFs free'
                  for pf in item['vfs']]
        return head + ', '.join(parts)


def _format_measured_bandwidth(item: Mapping[str, Any]) -> str:
    used, most = (item['measured_bytes_per_second'],
                  item['capacity_bytes_per_second'])
    text = f'measured {used / 1e6:.0f} MB/s'
    return f'{text} of {most / 1e6:.0f} MB/s' if most else text


def _format_bursts(item: Mapping[str, Any]) -> str:
    text = (f'{item["promised_percent"]} % of bursts promised, '
            f'{item["kept_percent"]} % kept for bursts, '
            f'{item["free_percent"]} % more can be promised')
    if item['largest_project_percent']:
        text += f', {item["largest_project_percent"]} % are of one project'
    if item['short_chance'] is not None:
        text += f', short in {100 * item["short_chance"]:.2g} % of the time'
    if item['periods']:
        text += (f', all used in {item["periods_over"]} and short in '
                 f'{item["periods_short"]} of {item["periods"]} periods')
    return text


class GuestsCell(columns.MultilineCell):
    """Table cell with the bandwidth of each guest with a policy, one per line.
    """

    def line(self, item: Mapping[str, Any]) -> str:
        text = (
            f'{item["name"]} ({item["server"]}): allocated '
            f'{_format_shares(item["allocated_percent"])}' +
            node_classes.describe_guest_allocations(item['allocated_beside']))
        if item['effective_percent'] is not None:
            text += ', set on the host ' + _format_shares(
                item['effective_percent'])
        if item['shared_group'] is not None:
            text += f' for all in {item["shared_group"]}'
        return text


def _format_shares(shares: Mapping[int, int | None]) -> str:
    return ', '.join(
        f'{"?" if share is None else share} % on node {node}'
        for node, share in shares.items()) or 'nothing'


class FindingsCell(columns.MultilineCell):
    """Table cell with the findings of an audit, each followed by its remedy.
    """

    def line(self, item: Mapping[str, Any]) -> str:
        return (f'{item["kind"]}: {item["subject"]}: {item["text"]}\n'
                f'  {item["remedy"]}')
