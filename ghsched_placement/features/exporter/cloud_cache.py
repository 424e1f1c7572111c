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

"""State of a cloud, kept up to date with few requests.

Placement increases the generation of a provider when its inventories or traits
change or an allocation is created, and lists the generations of all providers
in one response. It does not increase it when an allocation is deleted
(``placement.objects.allocation.delete_all``). Therefore the hosts of servers
and migrations that have changed in Nova are read again, too. Every other host
is checked once an hour with one request: any guest changes the usage of the
compute node's root provider.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
import datetime
import logging
import threading
import time
from typing import Any

from ghsched_placement.base import decimals
from ghsched_placement.features.exporter import cloud_figures
from ghsched_placement.features.flavor_check import flavor_check as flavors
from ghsched_placement.features.planner import flavor_counts
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit import lack
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import node_capacities
from ghsched_placement.osc import observe

LOG = logging.getLogger(__name__)

#: Seconds after which a host without a known change is checked.
CHECK_INTERVAL_S = 3600.0
#: Maximum number of hosts that one refresh reads; the next reads the rest.
HOSTS_READ = 200
#: Maximum number of hosts that one refresh checks.
HOSTS_CHECKED = 500
#: Maximum number of hosts in the cache.
HOSTS_KEPT = 20000
#: Maximum number of watched flavors.
FLAVORS_WATCHED = 100
#: Seconds that the time of the last refresh is set back, for changes that
#: reach Placement after Nova has recorded them.
_OVERLAP_S = 60.0


class ReadOnlyService:
    """API of an OpenStack service that allows only GET requests.

    :param adapter: adapter of openstacksdk.
    :param count: function that is called for each request, to count it.
    """

    def __init__(self, adapter: Any, count: Callable[[], None]) -> None:
        self._adapter = adapter
        self._count = count

    def get(self, path: str, **arguments: Any) -> Any:
        """Send a GET request to the service and count it; return the response.

        :param path: URL path below the service's endpoint.
        :param arguments: further arguments of the adapter's ``get``.
        """
        self._count()
        return self._adapter.get(path, **arguments)


class ReadOnlyConnection:
    """Connection of openstacksdk that can only read Nova and Placement.

    :param connection: connection of openstacksdk.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._requests = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        """Return ``session`` or ``endpoint_for`` of the wrapped connection.

        All other attributes are missing, so that nothing can be changed.
        """
        if name not in ('session', 'endpoint_for'):
            raise AttributeError(name)
        return getattr(self._connection, name)

    @property
    def placement(self) -> ReadOnlyService:
        return self._make_service('placement')

    @property
    def compute(self) -> ReadOnlyService:
        return self._make_service('compute')

    @property
    def request_counts(self) -> dict[str, int]:
        """Number of requests sent to each service so far, by service."""
        with self._lock:
            return dict(self._requests)

    def _make_service(self, name: str) -> ReadOnlyService:
        def count() -> None:
            with self._lock:
                self._requests[name] += 1
        return ReadOnlyService(getattr(self._connection, name), count)


class CloudClient(clients.Client):
    """Client that reads single hosts of a cloud and lists changed hosts."""

    def list_provider_trees(self) -> dict[str, list[dict[str, Any]]]:
        """Return the resource provider records of all hosts that run ghsched.

        A record includes the provider's generation, which shows whether the
        provider has changed.

        :returns: records by UUID of the compute node.
        """
        ours = self._list_ghsched_compute_nodes()
        found: dict[str, list[dict[str, Any]]] = {}
        for record in self.query_placement(
                '/resource_providers')['resource_providers']:
            root = record['root_provider_uuid']
            if root in ours:
                found.setdefault(root, []).append(record)
        return found

    def read_host_from_records(self, records: Iterable[Mapping[str, Any]]
                               ) -> capacity.HostInventory | None:
        """Read the inventories, usages and traits of a host from Placement.

        :param records: records of the host's resource providers.
        :returns: None if the host no longer exists.
        """
        found = capacity.build_hosts(
            provider for provider in map(self._read_provider, records)
            if provider is not None)
        return found[0] if found else None

    def has_unchanged_usages(self, provider: capacity.Provider) -> bool:
        """Return whether Placement still has the given usages of a provider.

        :param provider: provider as it was read before.
        """
        answer = self.query_placement(
            f'/resource_providers/{provider.uuid}/usages',
            default={'usages': None})
        return bool(answer['usages'] == provider.used)

    def list_changed_hosts(self, since: str) -> set[str]:
        """Return names of compute nodes whose servers changed since a time.

        The source and the destination of a migration both count.

        :param since: earliest time of a change, in ISO 8601 format.
        """
        servers = self._read_pages(
            '/servers/detail', 'servers', '2.47',
            {'all_tenants': '1', 'changes-since': since})
        found = {str(one.get(observe.HYPERVISOR)) for one in servers}
        for one in self.list_recent_migrations(since):
            found |= {str(one.get('source_node')), str(one.get('dest_node'))}
        return found


@dataclass(frozen=True)
class WatchedFlavor:
    """Flavor with the number of guests for which the cloud should have room.

    :param flavor: name of the flavor.
    :param least: number of further guests that should always fit.
    """

    flavor: str
    least: int = 1


def parse_watched_flavor(text: str) -> WatchedFlavor:
    """Parse ``NAME`` or ``NAME=N`` from the command line.

    NAME is a flavor to watch. N is the number of further guests that should
    always fit into the cloud, 1 by default.
    """
    name, _, least = text.rpartition('=')
    number = decimals.parse_decimal(least)
    if name and number is not None:
        return WatchedFlavor(name, min(number, 10 ** 9))
    return WatchedFlavor(text)


@dataclass(frozen=True)
class CloudCacheSettings:
    """Settings of the operator for the metrics of a cloud.

    :param watched: flavors for which to compute how many more guests fit.
    :param accounting: value of ``[ghsched]bandwidth_accounting``.
    :param classes: pairs of a PCI alias and the resource class of its VFs.
    """

    watched: tuple[WatchedFlavor, ...] = ()
    accounting: policies.Accounting = 'min'
    classes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Entry:
    """Cache entry of one host.

    :param host: host as it was read from Placement.
    :param generations: generation of each resource provider, by UUID.
    :param checked: time when the host was last read or found to be unchanged,
        in seconds of the monotonic clock.
    """

    host: capacity.HostInventory
    generations: Mapping[str, int]
    checked: float


class CloudCache:
    """Cache of a cloud's hosts for metrics, refreshed with few requests.

    :param clock: returns the time of the monotonic clock in seconds.
    :ivar cloud: state of the cloud after the last refresh. A refresh replaces
        the whole object, so that other threads can read it.
    """

    def __init__(self, client: CloudClient, settings: CloudCacheSettings,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._changed: set[str] = set()
        self._verdicts: dict[str, _Verdicts] = {}
        self._groups: list[flavor_counts.EqualHosts] = []
        self.cloud = cloud_figures.CloudFigures()

    def refresh(self) -> None:
        """Update the cached cloud with the changes since the last refresh.

        :raises CommandError: when a service refuses a request or does not
            answer.
        """
        now = self._clock()
        if self.cloud.read_at is not None:
            self._changed |= self._client.list_changed_hosts(_format_past_time(
                now - self.cloud.read_at + _OVERLAP_S))
        trees = dict(sorted(self._client.list_provider_trees().items())
                     [:HOSTS_KEPT])
        nodes = self._client.list_compute_nodes()
        self._entries = {root: entry for root, entry in self._entries.items()
                         if root in trees}
        stale = self._list_hosts_to_read(trees)
        stale += self._find_hosts_with_unseen_changes(
            trees.keys() - set(stale), now)
        self._read_hosts(stale[:HOSTS_READ], trees, nodes, now)
        self._changed &= {_get_compute_node_name(trees[root])
                          for root in stale[HOSTS_READ:]}
        self._groups = flavor_counts.group_equal_hosts(
            entry.host for entry in self._entries.values())
        away = self._client.list_unavailable_nodes(nodes)
        self.cloud = cloud_figures.CloudFigures(
            tuple(sorted((entry.host for entry in self._entries.values()),
                         key=lambda host: host.name)),
            frozenset(entry.host.name for root, entry
                      in self._entries.items() if root in away),
            tuple(self._yield_flavor_capacities(away)),
            len(stale[HOSTS_READ:]), now)

    def _list_hosts_to_read(
            self, trees: Mapping[str, Sequence[Mapping[str,
                                                       Any]]]) -> list[str]:
        """Return the UUIDs of compute nodes that are new or have changed.

        A compute node has changed if the generation of one of its resource
        providers has changed, or if a server on it has changed in Nova.

        :param trees: Placement's records of resource providers by compute node
            UUID.
        """
        return [root for root, records in sorted(trees.items())
                if root not in self._entries
                or self._entries[root].generations != _map_generations(records)
                or _get_compute_node_name(records) in self._changed]

    def _find_hosts_with_unseen_changes(self, roots: Iterable[str],
                                        now: float) -> list[str]:
        """Return hosts whose cached usages differ from those in Placement.

        A provider's generation and Nova's list of changed servers do not show
        every change of an allocation. The usages of each host are therefore
        read and compared every :data:`CHECK_INTERVAL_S` seconds. One call
        compares at most :data:`HOSTS_CHECKED` hosts.

        :param roots: UUIDs of the compute nodes for which neither Nova nor
            Placement has shown a change.
        :param now: current time of the monotonic clock.
        :returns: UUIDs of the compute nodes.
        """
        due = sorted((self._entries[root].checked, root) for root in roots
                     if now - self._entries[root].checked >= CHECK_INTERVAL_S)
        asked = [root for _time, root in due[:HOSTS_CHECKED]]
        same = self._client.map_in_parallel(
            lambda root: self._client.has_unchanged_usages(self._entries[root].
                                                           host.root), asked)
        for root, unchanged in zip(asked, same, strict=True):
            entry = self._entries[root]
            self._entries[root] = _Entry(entry.host, entry.generations, now)
            if not unchanged:
                self._changed.add(entry.host.name)
        return [root for root, unchanged in zip(asked, same, strict=True)
                if not unchanged]

    def _read_hosts(self, roots: Sequence[str],
                    trees: Mapping[str, Sequence[Mapping[str, Any]]],
                    nodes: Mapping[str, Mapping[str,
                                                Any]], now: float) -> None:
        """Read hosts from Placement and Nova into the cache.

        Nova reports the free CPUs and memory of the NUMA nodes.

        :param roots: UUIDs of the compute nodes to read.
        :param trees: records of resource providers by compute node UUID.
        :param nodes: Nova's compute node records by UUID.
        :param now: current time of the monotonic clock.
        """
        found = self._client.map_in_parallel(
            lambda root: self._client.read_host_from_records(trees[root]),
            roots)
        there = [host for host in found if host is not None]
        rooms = node_capacities.read_free_node_resources(
            self._client, there, nodes,
            (entry.host for entry in self._entries.values()))
        for host in rooms.add_free_node_resources(there):
            self._entries[host.uuid] = _Entry(
                host, _map_generations(trees[host.uuid]), now)

    def _yield_flavor_capacities(self, unavailable: Mapping[str, str]
                                 ) -> Iterator[flavor_counts.FlavorCapacity]:
        """Yield how many guests of each watched flavor fit into the cloud.

        :param unavailable: reason why a host takes no servers, by UUID.
        """
        watched = self._settings.watched[:FLAVORS_WATCHED]
        records = ({one['name']: one for one in self._client.list_flavors()}
                   if watched else {})
        needs_owner_trait = (bool(watched)
                             and self._client.is_owner_trait_required())
        for one in watched:
            yield flavor_counts.add_up_verdicts(
                one.flavor, self._yield_host_verdicts(
                    one.flavor, records.get(one.flavor), needs_owner_trait,
                    unavailable), one.least)

    def _yield_host_verdicts(
            self, name: str, record: Mapping[str, Any] | None,
            needs_owner_trait: bool,
            unavailable: Mapping[str, str]
    ) -> Iterator[tuple[fitting.Verdict, int]]:
        """Yield how many guests fit on equal hosts, and the number of hosts.

        :param name: name of the guests' flavor.
        :param record: flavor in Nova's API; None if the flavor does not exist.
        :param needs_owner_trait: whether nova-scheduler requires the trait
            OWNER_NOVA.
        :param unavailable: reason why a host takes no servers, by UUID.
        """
        try:
            requirements = self._make_flavor_requirements(
                record, needs_owner_trait)
        except base.CommandRefused as error:
            LOG.warning('cannot compute how many more guests of flavor '
                        '%(name)s fit in the cloud; reporting 0: %(error)s',
                        {'name': name, 'error': error})
            yield _make_flavor_refusal(str(error)), 1
            return
        known = self._verdicts.get(name)
        if known is None or known.requirements != requirements:
            known = self._verdicts[name] = _Verdicts(requirements, {})
        for root in unavailable.keys() & self._entries.keys():
            yield flavors.make_host_refusal(
                self._entries[root].host, unavailable[root]), 1
        for root in known.by_host.keys() - self._entries.keys():
            del known.by_host[root]
        for group in self._groups:
            yield known.count_guests(group), sum(
                host.uuid not in unavailable for host in group)

    def _make_flavor_requirements(
            self, record: Mapping[str, Any] | None,
            needs_owner_trait: bool) -> list[flavors.Requirements]:
        """Return the resources and traits that guests of a flavor require.

        If the scheduler chooses the number of guest NUMA nodes, the result has
        one item for each possible number.

        :param record: flavor in Nova's API; None if the flavor does not exist.
        :param needs_owner_trait: whether nova-scheduler requires the trait
            OWNER_NOVA.
        :raises CommandRefused: if the flavor does not exist or is invalid.
        """
        if record is None:
            raise base.CommandRefused('Nova has no flavor of that name')
        return flavors.list_requirements(
            flavors.get_flavor_record_size(record), record['extra_specs'],
            [entry.host for entry in self._entries.values()],
            dict(self._settings.classes), self._settings.accounting,
            needs_owner_trait)


@dataclass(frozen=True)
class _Verdicts:
    """Cached results of checking how many guests of a flavor fit on each host.

    :param requirements: requirements of the flavor for each number of guest
        NUMA nodes.
    :param by_host: the host as it was counted, and the result, by UUID of the
        compute node.
    """

    requirements: Sequence[flavors.Requirements]
    by_host: dict[str, tuple[capacity.HostInventory, fitting.Verdict]]

    def count_guests(self, group: flavor_counts.EqualHosts
                     ) -> fitting.Verdict:
        """Return how many guests fit on each of equal hosts."""
        found = next((verdict for host in group for counted, verdict in (
            self.by_host.get(host.uuid, (None, None)),)
            if counted is host and verdict), None) or fitting.count_guests(
                group[0], [one.demand for one in self.requirements])
        self.by_host.update((host.uuid, (host, found)) for host in group)
        return found


def _make_flavor_refusal(reason: str) -> fitting.Verdict:
    """Return the result for an invalid flavor: no guest fits on any host.

    :param reason: reason why the flavor is invalid.
    """
    return fitting.Verdict('', lacks=(lack.Lack(None, 'valid flavor',
                                                reason=reason),))


def _map_generations(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the generation of each resource provider, by UUID.

    Placement increases the generation whenever the provider changes.
    """
    return {one['uuid']: one['generation'] for one in records}


def _get_compute_node_name(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the name of a compute node, given its resource provider records.
    """
    return next((str(one['name']) for one in records
                 if one['uuid'] == one['root_provider_uuid']), '')


def _format_past_time(seconds_ago: float) -> str:
    """Return a time in the past as ISO 8601 text.

    :param seconds_ago: seconds between that time and now.
    """
    return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(
        seconds=seconds_ago)).strftime('%Y-%m-%dT%H:%M:%SZ')


#: Errors of services, after which the cloud is asked again later.
ERRORS = (*base.SERVICE_ERRORS, OSError)


def make_cloud_cache(connection: Any, settings: CloudCacheSettings
                     ) -> tuple[CloudCache, ReadOnlyConnection]:
    """Return an empty cache of a cloud and the read-only connection it uses.

    :param connection: connection of openstacksdk.
    :param settings: flavors to watch and other choices of the operator.
    """
    reading = ReadOnlyConnection(connection)
    return CloudCache(CloudClient(reading), settings), reading
