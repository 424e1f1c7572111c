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

"""Queries of the commands to Nova and Glance."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
import logging
import threading
from typing import Any
from typing import TypeVar
from urllib import parse

from openstack import exceptions as sdk_exceptions
from osc_lib import exceptions

from ghsched_placement.audit import diagnostics
from ghsched_placement.audit import host_records
from ghsched_placement.osc import http

LOG = logging.getLogger(__name__)

T = TypeVar('T')
R = TypeVar('R')

#: Nova: UUIDs of compute nodes.
_HYPERVISORS = '2.53'
#: Nova: the flavor is in the server, with its extra specs.
_SERVERS = '2.47'
#: Nova: extra specs are in the flavor.
_FLAVORS = '2.61'
#: Nova: host NUMA nodes of a server.
_TOPOLOGY = '2.78'
#: Nova: UUIDs of migrations, and paging.
_MIGRATIONS = '2.59'
#: All but those that a migration ends with, which Nova's database leaves out
#: (migration_get_in_progress_by_host_and_node in nova/db/main/api.py).
_IN_PROGRESS = (
    'accepted', 'queued', 'preparing', 'running', 'pre-migrating',
    'migrating', 'post-migrating', 'finished', 'confirming', 'reverting')
#: Nova: the last one before diagnostics are the same for all drivers.
_DIAGNOSTICS = '2.47'

#: Status of a question about a guest that its host does not run
#: (``nova.compute.manager.ComputeManager.get_diagnostics``).
_NOT_RUNNING = 409

#: Name of the whole answer, where it cannot be read.
_ANSWER = 'diagnostics'
#: Maximum length of the diagnostics of a server, in bytes.
_LONGEST_ANSWER = 4 * 2 ** 20

#: Requests at the same time.
WORKERS = 8


def _parse_diagnostics(response: Any) -> dict[str, Any] | None:
    """Return the diagnostics of a server, as nova-compute has sent them.

    :returns: None if they are not a JSON object, or too long.
    """
    try:
        if len(response.content) > _LONGEST_ANSWER:
            return None
        found = response.json()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class _SilentHosts:
    """Hosts that have not answered in time and are therefore skipped.

    :param most: number of hosts that may fail to answer one after another. At
        this number all hosts are skipped, because the message bus is probably
        down.
    """

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._hosts: set[str] = set()
        self._in_a_row: set[str] = set()

    def is_host_skipped(self, host: str) -> bool:
        """Return whether to skip a host because it is not likely to answer.

        The host has not answered before, or too many hosts in a row have not
        answered.
        """
        with self._lock:
            return host in self._hosts or len(self._in_a_row) >= self._most

    def add_silent_host(self, host: str, server: str) -> None:
        """Record that a host did not answer; log it for the first such host.

        :param server: UUID of the server that the host was asked about.
        """
        with self._lock:
            first = not self._hosts
            self._hosts.add(host or server)
            self._in_a_row.add(host or server)
        if first:
            LOG.warning(
                'nova-compute did not answer within %d s for server %s%s; '
                'values that only the host reports are missing. Check '
                'nova-compute and the message bus.',
                http.HOST_TIMEOUT_S, server,
                f' on {host}' if host else '')

    def reset_silent_hosts_in_a_row(self) -> None:
        """Reset the number of hosts in a row that did not answer to 0."""
        with self._lock:
            self._in_a_row.clear()


class NovaReader:
    """Reader of servers, hosts, flavors and migrations in Nova.

    :param connection: connection of openstacksdk.
    :param workers: number of parallel requests; with 1, no thread starts.
    """

    def __init__(self, connection: Any, workers: int = WORKERS) -> None:
        self.connection = connection
        self._workers = workers
        self._silence = _SilentHosts(workers)

    def list_compute_nodes(self) -> dict[str, dict[str, Any]]:
        """Return Nova's compute node records by UUID."""
        return {str(one['id']): one for one in self._read_pages(
            '/os-hypervisors/detail', 'hypervisors', _HYPERVISORS)}

    def list_unavailable_nodes(
        self, nodes: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, str]:
        """Return why compute nodes take no servers now, by compute node UUID.

        Compute nodes that take servers are left out.

        :param nodes: compute nodes by UUID; None to read them from Nova.
        """
        nodes = self.list_compute_nodes() if nodes is None else nodes
        return {uuid: f'nova-compute is {why}'
                for uuid, one in nodes.items()
                if (why := 'down' if one['state'] != 'up' else
                    'disabled' if one['status'] != 'enabled' else '')}

    def list_servers(self, service_host: str | None = None
                     ) -> list[dict[str, Any]]:
        """Return the detailed records of servers of all projects from Nova.

        :param service_host: host whose servers to return; None for all.
        """
        asked = {'all_tenants': '1'}
        if service_host:
            asked['host'] = service_host
        return list(self._read_pages(
            '/servers/detail', 'servers', _SERVERS, asked))

    def list_active_servers(self, service_host: str, limit: int) -> list[str]:
        """Return the UUIDs of some ACTIVE servers on a host.

        :param service_host: host of the nova-compute service.
        :param limit: maximum number of servers to return.
        """
        query = parse.urlencode({'all_tenants': '1', 'host': service_host,
                                 'status': 'ACTIVE', 'limit': limit})
        return [one['id'] for one in self.query_nova(
            f'/servers?{query}', _SERVERS)['servers']]

    def get_server(self, uuid: str) -> dict[str, Any] | None:
        """Return the record of a server in Nova; None if it does not exist."""
        answer = self.query_nova(f'/servers/{uuid}', _SERVERS, default={})
        return dict(answer['server']) if answer else None

    def find_server(self, name: str) -> dict[str, Any]:
        """Return Nova's record of a server with a given name or UUID.

        :raises CommandError: if no server, or more than one, has this name.
        """
        found = self.get_server(
            self._find(self._find_server_in_projects, 'server', name).id)
        if found is None:
            raise exceptions.CommandError(f'server {name} no longer exists')
        return found

    def _find_server_in_projects(self, name: str, ignore_missing: bool) -> Any:
        """Find a server in the user's project, then in others if permitted.

        :param ignore_missing: whether to return None if there is no such
            server, instead of raising an error.
        """
        with http.translate_unreachable(self.connection, 'compute'):
            find = self.connection.compute.find_server
            found = find(name)
        if found is not None:
            return found
        try:
            return find(name, ignore_missing, all_projects=True)
        except sdk_exceptions.ForbiddenException:
            return find(name, ignore_missing)

    def get_host_numa_nodes(self, uuid: str) -> tuple[int | None, ...]:
        """Return the host NUMA node of each guest NUMA node of a server.

        A host NUMA node is None if Nova does not show it to the user.

        :returns: empty for a deleted server or a server without a NUMA
            topology.
        """
        return tuple(cell.get('host_node')
                     for cell in self._list_guest_cells(uuid))

    def get_dedicated_cpus(self, uuid: str) -> frozenset[int]:
        """Return the dedicated host CPUs of a server.

        :returns: empty if it has none, or if Nova does not show them to the
            user.
        """
        return frozenset(cpu for cell in self._list_guest_cells(uuid)
                         for cpu in cell.get('cpu_pinning', {}).values())

    def _list_guest_cells(self, uuid: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.query_nova(
            f'/servers/{uuid}/topology', _TOPOLOGY,
            default={'nodes': []})['nodes']
        return found

    def list_migrations_in_progress(self) -> dict[str, str]:
        """Map the UUID of each migration in progress to its server's UUID."""
        # One by one, in the order in which a migration has them: one that
        # goes on meanwhile is in the next answer.
        return {one['uuid']: one['instance_uuid']
                for status in _IN_PROGRESS for one in self._read_pages(
                    '/os-migrations', 'migrations', _MIGRATIONS,
                    {'status': status}, 'uuid')}

    def list_migrations_of_server(self, uuid: str) -> set[str]:
        """Return the UUIDs of a server's migrations, past and present."""
        return {one['uuid'] for one in self._read_pages(
            '/os-migrations', 'migrations', _MIGRATIONS,
            {'instance_uuid': uuid}, 'uuid')}

    def get_server_report(self, uuid: str,
                          host: str = '') -> diagnostics.GuestReport | None:
        """Return the bandwidth limits and traffic of a server from its host.

        :param host: host of the server; skipped if it was silent before.
        :returns: None if the host reports nothing.
        """
        response = self._request_diagnostics(uuid, host)
        if response is not None and response.status_code == _NOT_RUNNING:
            return diagnostics.GuestReport(runs=False)
        if response is None or response.status_code != 200:
            return None
        fields = _parse_diagnostics(response)
        return (diagnostics.make_malformed_report([_ANSWER])
                if fields is None else host_records.parse_report(fields))

    def get_diagnostics(self, uuid: str, host: str = '') -> dict[str, Any]:
        """Return Nova's diagnostics of a server; empty if unavailable.

        :param host: the server's host, to skip a host that did not answer.
        """
        response = self._request_diagnostics(uuid, host)
        return (_parse_diagnostics(response) or {} if response is not None
                and response.status_code == 200 else {})

    def _request_diagnostics(self, uuid: str, host: str) -> Any:
        """Request a server's diagnostics from nova-api; return the response.

        :returns: None if there is none within :data:`http.HOST_TIMEOUT_S`
            seconds.
        """
        if self._silence.is_host_skipped(host):
            return None
        try:
            response = http.send_request(
                self.connection, 'compute', 'get',
                f'/servers/{uuid}/diagnostics', microversion=_DIAGNOSTICS,
                timeout=http.HOST_TIMEOUT_S, connect_retries=0)
        except http.Unreachable:
            self._silence.add_silent_host(host, uuid)
            return None
        self._silence.reset_silent_hosts_in_a_row()
        return response

    def list_recent_migrations(self, since: str) -> list[dict[str, Any]]:
        """Return the migrations of any status that changed since a time.

        :param since: time in ISO 8601 format.
        """
        return list(self._read_pages('/os-migrations', 'migrations',
                                     _MIGRATIONS,
                                     {'changes-since': since}, 'uuid'))

    def get_flavor(self, name: str) -> Any:
        """Return the flavor with a given name or ID, with its extra specs."""
        with http.translate_unreachable(self.connection, 'compute'):
            return self._find(
                lambda name, **how: self.connection.compute.find_flavor(
                    name, get_extra_specs=True, **how), 'flavor', name)

    def list_flavors(self) -> list[dict[str, Any]]:
        """Return all flavors, also those that are not public."""
        return list(self._read_pages('/flavors/detail', 'flavors', _FLAVORS,
                                     {'is_public': 'None'}))

    def get_image_properties(self, name: str) -> dict[str, str]:
        """Return all properties of the image with a given name or ID."""
        with http.translate_unreachable(self.connection, 'image'):
            image = self._find(self.connection.image.find_image, 'image',
                               name)
        answer = http.get_json(self.connection, 'image',
                               f'/images/{image.id}', None)
        return {key: value for key, value in answer.items()
                if isinstance(value, str)}

    def _find(self, find: Callable[..., Any], kind: str, name: str) -> Any:
        try:
            return find(name, ignore_missing=False)
        except sdk_exceptions.NotFoundException:
            raise exceptions.CommandError(f'no {kind} {name}') from None
        except sdk_exceptions.DuplicateResource:
            raise exceptions.CommandError(
                f'more than one {kind} has the name {name}; pass its '
                'UUID') from None

    def query_nova(self, path: str, microversion: str,
                   default: Any = None) -> Any:
        """Return the JSON document of a GET request to nova-api.

        :param path: URL path, with the query.
        :param default: result if there is no such document (404); None raises
            the error.
        """
        return http.get_json(self.connection, 'compute', path, microversion,
                             default)

    def _read_pages(self, path: str, list_key: str, microversion: str,
                    query_parameters: Mapping[str, str] | None = None,
                    marker: str = 'id') -> Iterator[dict[str, Any]]:
        """Yield all entries of a list that Nova's API returns page by page.

        :param path: URL path of the list.
        :param list_key: key of the list in the JSON document.
        :param query_parameters: further query parameters.
        :param marker: field of an entry that identifies it in a request for
            the next page.
        """
        asked = dict(query_parameters or {})
        while True:
            query = f'?{parse.urlencode(asked)}' if asked else ''
            answer = self.query_nova(path + query, microversion)
            yield from answer[list_key]
            if not answer.get(f'{list_key}_links') or not answer[list_key]:
                return
            asked['marker'] = str(answer[list_key][-1][marker])

    def map_in_parallel(self, function: Callable[[T], R],
                        items: Iterable[T]) -> list[R]:
        """Call a function with each item in parallel threads.

        :returns: the results, in the order of the items.
        """
        if self._workers == 1:
            return list(map(function, items))
        with futures.ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(function, items))
