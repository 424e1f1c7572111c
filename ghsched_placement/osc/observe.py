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

"""Records of Nova and Placement about hosts, prepared for the audit."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import dataclasses
from dataclasses import dataclass
import functools
from typing import Any

from osc_lib import exceptions

from ghsched_placement.audit import audit
from ghsched_placement.audit import audit_host
from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import AllocationsByConsumer
from ghsched_placement.audit.findings import Finding
from ghsched_placement.audit.findings import OtherConsumers
from ghsched_placement.audit.findings import Server
from ghsched_placement.fit import capacity
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import client as clients
from ghsched_placement.query.requested_classes import find_requested_classes

#: States in which what a server holds may be of either host or flavor.
_MOVING = ('BUILD', 'MIGRATING', 'RESIZE', 'REVERT_RESIZE', 'VERIFY_RESIZE')

_POWER = 'OS-EXT-STS:power_state'
#: nova.objects.fields.InstancePowerState: what the host can report about.
_RUNNING = 1

HYPERVISOR = 'OS-EXT-SRV-ATTR:hypervisor_hostname'


@dataclass(frozen=True)
class HostRecords:
    """Records of Placement, of Nova and of a host itself about the host.

    :param host: host with its inventories in Placement.
    :param servers: servers of the host, with and without a bandwidth policy.
    :param holdings: allocations from the host's providers, by consumer.
    :param findings: differences between the records.
    :param state: ``up`` or ``down``; None if Nova does not know the host.
    :param status: ``enabled`` or ``disabled``; None if unknown.
    :param reported_nodes: NUMA nodes as the host itself reports them; empty if
        the host was not asked, or has no guest with which it could report
        them.
    :param unchecked: comparisons that failed because the host did not answer.
    :param accounting: ``[ghsched]bandwidth_accounting`` of the host, or the
        caller's default if the host was not asked.
    :param is_accounting_known: whether the host has reported the accounting or
        the caller has given it.
    """

    host: capacity.HostInventory
    servers: tuple[Server, ...]
    holdings: AllocationsByConsumer
    findings: tuple[Finding, ...]
    state: str | None = None
    status: str | None = None
    reported_nodes: tuple[diagnostics.HostNodeReport, ...] = ()
    unchecked: tuple[Finding, ...] = ()
    accounting: policies.Accounting = 'min'
    is_accounting_known: bool = True

    @property
    def guests(self) -> tuple[Server, ...]:
        """Servers on the host that have any ghsched extra spec."""
        return tuple(server for server in self.servers
                     if server.policy is not None or server.problem)


#: First words of the fault of a server for which Nova has found no host.
_NO_VALID_HOST = 'No valid host'


def parse_server_record(record: Mapping[str, Any],
                        nodes: Sequence[int | None]) -> Server:
    """Convert a server record of Nova's API to a server that can be audited.

    :param record: server record that includes the flavor.
    :param nodes: host NUMA node of each guest NUMA node.
    """
    specs = get_flavor_extra_specs(record)
    policy, problem = None, '; '.join(map(str, find_requested_classes(specs)))
    try:
        policy = policies.parse_policy(specs,
                                       len(nodes),
                                       int(record['flavor'].get('vcpus', 0)))
    except policies.PolicyError as error:
        problem = str(error)
    return Server(
        record['id'], record['name'], str(record.get(HYPERVISOR)),
        policy=policy, problem=problem,
        nodes=tuple(node for node in nodes if node is not None),
        moving=is_server_moving(record),
        running=record.get(_POWER) == _RUNNING,
        active=record['status'] == 'ACTIVE' and not is_server_moving(record),
        locked=is_server_locked(record))


def describe_missing_host(record: Mapping[str, Any]) -> str:
    """Return a sentence that a server is on no host, with the reason.

    :param record: server record of Nova's API.
    :returns: empty if the server is on a host, or Nova does not show it.
    """
    failed = record['status'] == 'ERROR'
    if record.get(HYPERVISOR) or not failed and HYPERVISOR not in record:
        return ''
    fault = str(record.get('fault', {}).get('message', '')).strip()
    if HYPERVISOR not in record:
        # Nova shows a tenant no host; only the scheduler's fault is certain.
        return (f'{record["name"]} is on no host: {fault}'
                if fault.startswith(_NO_VALID_HOST) else '')
    reason = fault if failed and fault else (
        f'its status is {record["status"]}')
    return f'{record["name"]} is on no host: {reason}'


def get_flavor_extra_specs(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the extra specs of the flavor in a server record.

    :param record: server record of Nova's API.
    :raises CommandError: if Nova does not show extra specs to the user.
    """
    found = record['flavor'].get('extra_specs')
    if found is None:
        raise exceptions.CommandError(
            'Nova does not let you see the extra specs of flavors (policy '
            'os_compute_api:os-flavor-extra-specs:index)')
    return dict(found)


def is_server_moving(record: Mapping[str, Any]) -> bool:
    """Return whether Nova is migrating or resizing a server.

    The result is also True during any other task of Nova on the server, such
    as a reboot.

    :param record: server record of Nova's API.
    """
    return (record['status'] in _MOVING
            or record.get('OS-EXT-STS:task_state') is not None)


def is_server_locked(record: Mapping[str, Any]) -> bool:
    """Return whether a server is locked against changes (``server lock``).

    :param record: server record of Nova's API.
    """
    return bool(record.get('locked'))


def is_on_recorded_host(record: Mapping[str, Any]) -> bool:
    """Return whether a server really is on the host that Nova has recorded.

    A shelved and offloaded server may still be recorded on its former host.

    :param record: server record of Nova's API.
    """
    return is_server_moving(record) or record['status'] != 'SHELVED_OFFLOADED'


def collect_host_records(
        client: clients.Client, host_names: Sequence[str] = (),
        ask_hosts: bool = False,
        accounting: policies.Accounting | None = None) -> list[HostRecords]:
    """Read the records of hosts in Placement, Nova and on the hosts.

    :param host_names: names of the hosts; empty for all hosts.
    :param ask_hosts: whether to read the limits that each host has set; this
        takes a call to nova-compute for each guest.
    :param accounting: bandwidth that Placement counts on hosts that do not
        report it, the guarantee (``min``) or the cap (``max``). None: it is
        not known, and the guarantee is assumed.
    """
    # What holds something and is not among the servers is looked at again,
    # because it may have come or gone meanwhile.
    hosts = client.list_hosts(host_names)
    nodes = client.list_compute_nodes()
    records = _group_servers_by_compute_node(client, hosts, nodes)
    # Most clouds need not be asked for them at all.
    migrations = functools.cache(client.list_migrations_in_progress)
    return [
        _collect_records_of_host(client, host, records.get(host.name, []),
                                 nodes.get(host.uuid, {}), migrations,
                                 ask_hosts, accounting) for host in hosts]


def _collect_records_of_host(
        client: clients.Client, host: capacity.HostInventory,
        records: Sequence[Mapping[str, Any]], node: Mapping[str, Any],
        migrations: Callable[[], Mapping[str, str]], ask_host: bool,
        accounting: policies.Accounting | None) -> HostRecords:
    """Read what Placement, Nova and the host itself record of a host's guests.

    The audit compares these records with each other.

    :param records: server records of Nova's API for the host.
    :param node: compute node record of Nova's API; empty if it does not exist.
    :param migrations: function that returns the server of each migration in
        progress.
    :param ask_host: whether to read the limits that the host has set.
    :param accounting: bandwidth that Placement counts if the host does not
        report it, the guarantee (``min``) or the cap (``max``); None if it
        is not known.
    """
    servers = client.map_in_parallel(
        functools.partial(_parse_server_with_nodes, client),
        list(filter(is_on_recorded_host, records)))
    state = node.get('state')
    reports: list[diagnostics.GuestReport] = []
    if ask_host and state == 'up':
        servers, reports = _read_effective_limits(client, servers)
    known = accounting is not None or any(
        report.accounting in ('min', 'max') for report in reports)
    accounting = get_reported_accounting(reports, accounting or 'min')
    holdings = client.list_host_allocations(host)
    others = _find_other_consumers(client, host, servers, holdings, migrations)
    return HostRecords(
        host, tuple(servers), holdings,
        (*audit.audit_host_allocations(host, servers, holdings, others,
                                       accounting),
         *audit_host.find_leftover_domains_and_groups(host, servers, reports),
         *audit_host.find_malformed_reports(host, reports)),
        state, node.get('status'),
        max((report.host for report in reports), key=len, default=()),
        tuple(audit_host.find_unreported_servers(host, servers, state))
        if ask_host else (), accounting, known)


def get_reported_accounting(
        reports: Iterable[diagnostics.GuestReport],
        default: policies.Accounting) -> policies.Accounting:
    """Return whether Placement counts guarantees or caps of a host's guests.

    The result is ``min`` for guarantees and ``max`` for caps. It depends on
    the configuration of nova-compute.

    :param reports: reports of nova-compute on the host's servers.
    :param default: result if no report contains it.
    """
    settings = {report.accounting for report in reports}
    if 'max' in settings:
        return 'max'
    return 'min' if 'min' in settings else default


def select_confirmed_findings(observed: HostRecords,
                              before: HostRecords) -> HostRecords:
    """Keep only the findings of an audit that an earlier audit had as well.

    All other findings are due to changes in progress.

    :param observed: host with the findings of the later audit.
    :param before: the same host with the findings of the earlier audit.
    """
    known = {(one.kind, one.subject) for one in before.findings}
    return dataclasses.replace(observed, findings=tuple(
        one for one in observed.findings if (one.kind, one.subject) in known))


def _group_servers_by_compute_node(
    client: clients.Client, hosts: Sequence[capacity.HostInventory],
    nodes: Mapping[str, Mapping[str, Any]],
) -> dict[str, list[dict[str, Any]]]:
    """Return Nova's server records by the name of their compute node.

    :param hosts: hosts whose servers are needed. The result may also contain
        the servers of other hosts.
    :param nodes: Nova's compute node records by UUID.
    """
    service = None
    if len(hosts) == 1 and hosts[0].uuid in nodes:
        service = str(nodes[hosts[0].uuid]['service']['host'])
    found: dict[str, list[dict[str, Any]]] = {}
    for record in client.list_servers(service):
        found.setdefault(str(record.get(HYPERVISOR)), []).append(record)
    return found


def _read_effective_limits(client: clients.Client, servers: Sequence[Server]
                           ) -> tuple[list[Server],
                                      list[diagnostics.GuestReport]]:
    """Read the bandwidth limits that hosts have really set for their servers.

    :returns: the servers with these limits, and the reports of nova-compute.
    """
    # Nova takes the power state of a guest that is gone for another one.
    running = [server for server in servers
               if server.policy is not None and not server.moving
               and (server.running or server.active)]
    answers = client.map_in_parallel(lambda server: client.get_server_report(
        server.uuid, server.host), running)
    reports = dict(zip((server.uuid for server in running), answers,
                       strict=True))
    return ([_add_report(server, reports[server.uuid])
             if server.uuid in reports else server for server in servers],
            [report for report in reports.values()
             if report and report.runs])


def _parse_server_with_nodes(client: clients.Client,
                             record: dict[str, Any]) -> Server:
    """Convert a server record to a server that can be audited.

    The server's host NUMA nodes are read from Nova if the flavor has ghsched
    extra specs.
    """
    ours = policies.has_ghsched_keys(get_flavor_extra_specs(record))
    return parse_server_record(
        record,
        client.get_host_numa_nodes(record['id']) if ours else ())


def _add_report(server: Server,
                report: diagnostics.GuestReport | None) -> Server:
    if report is None:
        return dataclasses.replace(
            server, silent='it runs, but its host reports nothing about it')
    if not report.runs:
        return dataclasses.replace(server, absent=server.active)
    server = dataclasses.replace(server, not_held=report.not_held,
                                 missing_devices=report.missing_devices,
                                 silent=report.problem)
    if report.problem:
        return server
    return dataclasses.replace(server,
                               effective=report.get_limits_by_host_node())


def _find_other_consumers(
        client: clients.Client, host: capacity.HostInventory,
        servers: Iterable[Server],
        by_consumer: AllocationsByConsumer,
        migrations: Callable[[], Mapping[str, str]]) -> OtherConsumers:
    """Return the consumers of a host's resources that are not its servers.

    They may be migrations, servers on other hosts, or deleted servers that can
    still be restored. A consumer that is none of these is left out.

    :param by_consumer: allocations from the host's providers, by consumer.
    :param migrations: function that returns the server of each migration in
        progress.
    """
    unknown = by_consumer.keys() - {server.uuid for server in servers}
    moved = migrations() if unknown else {}
    known = {one for one in unknown & moved.keys()
             if _is_still_moving(client.get_server(moved[one]), host.name)}
    places = {}
    for uuid in unknown - known:
        record = client.get_server(uuid)
        # One that is there, is on its way, or is gone by now.
        place = ''
        if record is not None and is_on_recorded_host(record):
            place = str(record.get(HYPERVISOR) or '')
        if (record is not None and
            (is_server_moving(record) or place == host.name)
                or not client.get_consumer_allocations(uuid)):
            known.add(uuid)
        elif record is not None:
            places[uuid] = place
    left = unknown - known - places.keys()
    return OtherConsumers(
        frozenset(known), places,
        _map_migrations_to_servers(client, left, [
            one.uuid for one in servers
            if one.policy and not one.moving and one.uuid not in by_consumer])
        if left else {})


def _is_still_moving(record: Mapping[str, Any] | None, host: str) -> bool:
    """Return whether a server's migration away from a host has not ended yet.

    :param record: server record of Nova's API; None if the server does not
        exist.
    :param host: name of the compute node from which the migration has an
        allocation.
    """
    return record is not None and (
        is_server_moving(record) or record.get(HYPERVISOR) != host)


def _map_migrations_to_servers(client: clients.Client, consumers: Set[str],
                               servers: Iterable[str]) -> dict[str, str]:
    """Return which consumers are migrations of given servers.

    During a migration, the migration's UUID may be the consumer of the
    resources on the source host.

    :param consumers: UUIDs of consumers in Placement.
    :param servers: UUIDs of servers whose migrations are looked up.
    :returns: UUID of the server by UUID of the migration.
    """
    return {consumer: uuid for uuid in servers
            for consumer in client.list_migrations_of_server(uuid) & consumers}
