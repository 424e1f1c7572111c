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

"""Measured load of a cloud, as input of a rebalance plan.

Hosts report their load in the diagnostics of their guests. A host without a
running guest reports nothing and counts as idle.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import itertools
import math
from typing import Any

from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import Server
from ghsched_placement.features.live_change import past_moves
from ghsched_placement.features.load import load
from ghsched_placement.features.load import pressure
from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance.affinity_part import AffinityPart
from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.features.rebalance import traffic
from ghsched_placement.fit import capacity
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import observe
from ghsched_placement.providers import names

#: Bytes per second for which a wish to be together counts: 1 Gbit/s.
DECLARED = 125e6


def read_cloud_for_rebalance(
        client: clients.Client, bounds: affinity.Bounds,
        with_vfs: bool = False
) -> tuple[move_plan.Cloud, dict[str, dict[str, Any]]]:
    """Read the hosts and guests of a cloud with their loads, to plan moves.

    :param bounds: size limits of groups of guests that exchange much traffic.
    :param with_vfs: whether guests with VFs can be migrated to another host.
    :returns: the hosts and guests, and Nova's server records by UUID.
    """
    hosts = {host.name: host for host in client.list_hosts()}
    closed = set(client.list_unavailable_nodes())
    records = {record['id']: record for record in client.list_servers()}
    ours = [record for record in records.values()
            if record.get(observe.HYPERVISOR) in hosts]
    servers = client.map_in_parallel(
        lambda record: observe.parse_server_record(
            record, client.get_host_numa_nodes(record['id'])), ours)
    running = [server for server in servers
               if server.running and not server.moving]
    answers = client.map_in_parallel(
        lambda server: client.get_diagnostics(server.uuid, server.host),
        running)
    reports = dict(zip((server.uuid for server in running), answers,
                       strict=True))
    loads = collect_host_loads(running, reports)
    guests = _make_guests(running, reports, with_vfs)
    busy = {server.host for server in servers}
    nodes = [node for name, host in sorted(hosts.items())
             for node in _yield_host_nodes(
                 host, loads.get(name), guests, host.uuid not in closed,
                 name not in busy)]
    members = list(_yield_affinity_members(
        servers, guests, records, _list_soft_affinity_groups(client)))
    ties = affinity.add_server_group_traffic(
        members, _compute_traffic(reports, records), DECLARED)
    return move_plan.Cloud(
        tuple(nodes), tuple(guests), ties,
        affinity.group_guests_by_traffic(members, ties, bounds),
        tuple(list_fixed_guests(running, guests, with_vfs))), records


def _list_soft_affinity_groups(client: clients.Client) -> dict[str, str]:
    """Return the soft-affinity group ID of each server that is in one."""
    # Microversion of the one policy of a server group.
    return {member: group['id'] for group in client.query_nova(
        '/os-server-groups?all_projects=True', '2.64')['server_groups']
        if group['policy'] == 'soft-affinity'
        for member in group['members']}


def _make_guests(servers: Iterable[Server],
                 reports: Mapping[str, Mapping[str, Any]], with_vfs: bool
                 ) -> list[move_plan.Guest]:
    """Return the servers whose load is known as guests of a rebalance plan.

    :param reports: diagnostics of each server, by UUID.
    """
    accounting = observe.get_reported_accounting(filter(None, map(
        diagnostics.parse_guest_diagnostics, reports.values())), 'min')
    return [found for server in servers if (found := make_rebalance_guest(
        server, reports[server.uuid], accounting, with_vfs))]


def collect_host_loads(
        servers: Iterable[Server],
        diagnostics_by_server: Mapping[str, Mapping[str, Any]]
) -> dict[str, load.HostLoad]:
    """Return the latest load that each host has measured, by host name.

    :param diagnostics_by_server: Nova's diagnostics of the servers, by UUID.
    """
    found: dict[str, load.HostLoad] = {}
    for server in servers:
        one = load.parse_load_stats(diagnostics_by_server[server.uuid])
        if one and (server.host not in found
                    or one.time > found[server.host].time):
            found[server.host] = one
    return found


def make_rebalance_guest(
        server: Server, server_diagnostics: Mapping[str, Any],
        accounting: Accounting = 'min', with_vfs: bool = False
) -> move_plan.Guest | None:
    """Convert a server with NUMA nodes to a guest of a rebalance plan.

    A guest of a locked server is marked as not movable, and so is one with
    VFs. A guest with VFs or several NUMA nodes cannot be moved inside its
    host.

    :param server_diagnostics: Nova's diagnostics of the server.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param with_vfs: whether guests with VFs can be migrated to another host.
    :returns: None if the server has no NUMA nodes, or its load is unknown.
    """
    record = load.parse_load_stats(server_diagnostics)
    mine = {one.node: one for one in (record.guests if record else ())
            if one.guest == server.uuid}
    if not server.nodes or mine.keys() != set(range(len(server.nodes))):
        return None
    policy = server.policy or GuestPolicy()
    movable = not server.locked and all(
        one.memory is not None for one in mine.values())
    reported = pressure.FORMAT.parse(server_diagnostics)
    amounts = policy.get_resources_by_node(accounting)
    first, *parts = (
        _make_guest_node(Spot(server.host, host_node), mine[number],
                         amounts.get(number, {}))
        for number, host_node in enumerate(server.nodes))
    return dataclasses.replace(
        first, inside=movable and not parts and not policy.vfs,
        between=movable and (with_vfs or not policy.vfs),
        groups=len(policy.groups), parts=tuple(parts),
        steal=reported.steal if reported else 0.0,
        traits=frozenset(names.CAPABILITY_TRAITS[name]
                         for name in policy.get_needed_capabilities()))


def _make_guest_node(spot: Spot, measured: load.GuestNodeLoad,
                     amounts: Mapping[str, int]) -> move_plan.Guest:
    """Return a guest NUMA node with its load and its amounts in Placement."""
    counted = dict(amounts)
    return move_plan.Guest(
        measured.guest, spot, _count_wanted_cpus(measured),
        measured.bandwidth or 0.0, measured.memory or 0.0,
        counted.pop(names.MEM_BW_PCT, 0), counted=counted)


def list_fixed_guests(servers: Iterable[Server],
                      guests: Iterable[move_plan.Guest], with_vfs: bool
                      ) -> Iterator[move_plan.FixedGuest]:
    """Yield the running guests that no plan moves.

    :param guests: guests of the plan.
    :param with_vfs: whether guests with VFs can be migrated to another host.
    """
    known = {guest.uuid: guest for guest in guests}
    for server in servers:
        guest = known.get(server.uuid)
        if guest is None or not (guest.inside or guest.between):
            yield move_plan.FixedGuest(
                server.uuid, server.host, tuple(server.nodes),
                _explain_fixed_server(server, guest, with_vfs))


def _explain_fixed_server(server: Server, guest: move_plan.Guest | None,
                          with_vfs: bool) -> str:
    if server.locked:
        return 'it is locked'
    if not server.nodes:
        return 'it is bound to no NUMA node; set hw:numa_nodes in its flavor'
    if (guest is not None and not with_vfs and server.policy is not None
            and server.policy.vfs):
        return ('it has VFs; with --with-vfs it is live-migrated, if '
                '[pci]alias has live_migratable')
    return 'its load is unknown'


def _count_busy_cpus(one: load.GuestNodeLoad) -> float | None:
    return (None if one.cpu_load is None or one.vcpus is None
            else one.cpu_load * one.vcpus)


def _count_wanted_cpus(guest_node: load.GuestNodeLoad) -> float | None:
    """Return how many CPUs a guest would use if its vCPUs never had to wait.

    :param guest_node: measured load of the guest on a host NUMA node.
    :returns: number of CPUs; None if unknown.
    """
    busy = _count_busy_cpus(guest_node)
    if busy is None or guest_node.vcpus is None or guest_node.cpu_wait is None:
        return None
    return min(guest_node.vcpus, busy + guest_node.cpu_wait * guest_node.vcpus)


def _yield_host_nodes(
        host: capacity.HostInventory, measured: load.HostLoad | None,
        guests: Sequence[move_plan.Guest], takes: bool, idle: bool
) -> Iterator[move_plan.Node]:
    found = measured.get_nodes_by_number() if measured else {}
    for node in host.nodes:
        if node.number is None:
            continue
        spot = Spot(host.name, node.number)
        left = {name: float(stock.max_unit)
                for name, stock in node.stocks.items()}
        guarantee = left.pop(names.MEM_BW_PCT, 0.0)
        one = found.get(node.number)
        read = (_make_idle_node(host, spot, guarantee, takes)
                if idle and one is None else
                make_rebalance_node(
                    spot, one or load.HostNodeLoad(node.number),
                    [part for guest in guests for part in guest.nodes
                     if part.spot == spot], guarantee, takes))
        yield dataclasses.replace(read, left=left,
                                  groups=_count_free_control_groups(host),
                                  traits=host.root.traits)


def _count_free_control_groups(host: capacity.HostInventory) -> float:
    """Return how many more guests can get a control group on a host.

    The result is infinite if guests on the host share control groups, and 0 if
    the host has no control groups.
    """
    if any(map(names.is_share_trait, itertools.chain.from_iterable(
            node.traits for node in host.nodes))):
        return math.inf
    return host.groups.free if host.groups else 0


def make_rebalance_node(spot: Spot, measured: load.HostNodeLoad,
                        guests: Sequence[move_plan.Guest],
                        free_guarantee: float,
                        accepts_guests: bool) -> move_plan.Node:
    """Convert the load of a host NUMA node to a node of a rebalance plan.

    The load of the given guests is subtracted, because the plan may move them.

    :param spot: name of the host and number of the node.
    :param measured: measured load of the node.
    :param guests: guests on the node that the plan may move.
    :param free_guarantee: percent of bandwidth that can still be guaranteed.
    :param accepts_guests: whether guests may be moved to the node.
    """
    cpu = None
    if measured.cpu_load is not None and measured.cpus:
        cpu = max(0.0, measured.cpu_load * measured.cpus - sum(
            guest.cpu or 0.0 for guest in guests))
    bandwidth = max(0.0, (measured.bandwidth or 0.0) - sum(
        guest.bandwidth for guest in guests))
    return move_plan.Node(
        spot, measured.cpus or 1, cpu,
        measured.capacity if measured.bandwidth is not None else None,
        bandwidth, measured.memory_free or 0.0, free_guarantee,
        bool(measured.bottlenecks), accepts_guests)


def _make_idle_node(host: capacity.HostInventory, spot: Spot,
                    free_guarantee: float,
                    accepts_guests: bool) -> move_plan.Node:
    """Return a host NUMA node without guests as a node of a rebalance plan.

    The node is assumed to have an equal part of the host's CPUs and memory.

    :param spot: name of the host and number of the node.
    :param free_guarantee: percent of bandwidth that can be guaranteed.
    :param accepts_guests: whether guests may be moved to the node.
    """
    def part(*classes: str) -> float:
        stocks = [stock for name in classes
                  for provider in (host.root,)
                  if (stock := provider.get_inventory(name))]
        return sum(stock.total for stock in stocks) / len(host.nodes)
    return move_plan.Node(
        spot, part('VCPU', 'PCPU') or 1, 0.0, None, 0.0, part('MEMORY_MB'),
        free_guarantee, False, accepts_guests)


def _yield_affinity_members(
        servers: Iterable[Server], guests: Iterable[move_plan.Guest],
        records: Mapping[str, Mapping[str, Any]],
        server_groups: Mapping[str, str]) -> Iterator[affinity.Member]:
    known = {guest.uuid: guest for guest in guests}
    for server in servers:
        group = server.policy.get_part(
            AffinityPart).group if server.policy else ''
        name = (f'{records[server.uuid].get("tenant_id", "")} {group}'
                if group else server_groups.get(server.uuid, ''))
        one = known.get(server.uuid)
        nodes = one.nodes if one else ()
        yield affinity.Member(
            server.uuid, sum(part.cpu or 0.0 for part in nodes),
            sum(part.memory for part in nodes), name)


def _compute_traffic(reports: Mapping[str, Mapping[str, Any]],
                     records: Mapping[str, Mapping[str, Any]]
                     ) -> affinity.TrafficAverages:
    """Return the network traffic between each pair of guests, in bytes/s.

    :param reports: diagnostics of each server, by UUID.
    :param records: Nova's record of each server, by UUID.
    """
    return traffic.compute_guest_traffic(
        {uuid: talks for uuid, found in reports.items()
         if (talks := traffic.parse_traffic_diagnostics(found))},
        [port for record in records.values()
         for port in traffic.list_server_ports(record)])


def list_recent_moves(client: clients.Client, cloud: move_plan.Cloud,
                      settings: move_plan.Settings, now: float
                      ) -> tuple[move_plan.Moved, ...]:
    """Return the recent moves of servers, between hosts and within a host.

    A rebalance plan does not move a server again shortly after a move.

    :param cloud: guests whose moves within their hosts are looked up.
    :param settings: settings of the plan. They say how long ago a move may be
        to count as recent.
    :param now: current time in seconds since 1970.
    """
    since = datetime.datetime.fromtimestamp(
        now - max(settings.cool_down, settings.period),
        datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
    inside = client.map_in_parallel(
        lambda guest: [
            move_plan.Moved(guest.uuid, _parse_nova_time(time),
                            frozenset({guest.spot.host}))
            for time in past_moves.list_moves_within_host(
                client, guest.uuid, since)],
        cloud.guests)
    return (*convert_migrations_to_moves(client.list_recent_migrations(since)),
            *itertools.chain(*inside))


def _parse_nova_time(time: str) -> float:
    """Convert a time in the format of Nova's API to seconds since 1970."""
    return datetime.datetime.fromisoformat(time).replace(
        tzinfo=datetime.UTC).timestamp()


def convert_migrations_to_moves(migrations: Iterable[Mapping[str, Any]]
                                ) -> tuple[move_plan.Moved, ...]:
    """Convert Nova's migration records to past moves for a rebalance plan.

    Only live migrations are converted, including failed ones.
    """
    return tuple(move_plan.Moved(
        one['instance_uuid'],
        _parse_nova_time(one['updated_at'] or one['created_at']),
        frozenset(filter(None, (one['source_node'], one['dest_node']))))
        for one in migrations if one['migration_type'] == 'live-migration')
