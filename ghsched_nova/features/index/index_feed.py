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

"""Read the reports of compute hosts into the index of hosts.

The cells' databases are queried: all hosts at first and then once a minute,
and in between, at most once a second, the hosts that have changed.

Most changes are measured loads, which the index does not use. Therefore the
database computes a digest of the fields that the index uses, and a host's
report is read only if its digest has changed.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
import datetime
import json
import math
import threading
import time
from typing import Any

from oslo_log import log as logging
from oslo_utils import uuidutils

from ghsched_nova.features.index.host_capacity import Device
from ghsched_nova.features.index.host_capacity import PfCapacity
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_index import Index
from ghsched_nova.features.index import nova_seams
from ghsched_placement.base import wire
from ghsched_placement.features.index import headroom
from ghsched_placement.fit.node_capacity import make_cache_cpus
from ghsched_placement.providers import names

LOG = logging.getLogger(__name__)

#: Minimum seconds between two queries for changed compute nodes.
REFRESH = 1.0

#: Maximum delay of nova-conductor's write to the database, and maximum
#: difference of their clocks.
LATE = datetime.timedelta(seconds=2)

#: Seconds between two queries for all compute nodes. They find changes that a
#: query for changed compute nodes misses, because a clock is wrong or a record
#: was removed.
FULL = 60.0

#: Seconds for which an update from all cells makes the index current.
CURRENT = 2 * REFRESH

#: Seconds after which a cell that cannot be read has no host in the index.
SILENT = 60.0

#: Seconds to wait for the first update of the index by another thread.
FIRST_LOOK_TIMEOUT_S = 10.0

#: Maximum length of one column of a report, in characters.
MAX_TEXT = 2 ** 20

#: Maximum number of NUMA nodes in a report.
MAX_NODES = 256

#: Maximum of each number in a report.
MAX_NUMBER = 2 ** 53

#: Keys of a compute node's stats that the index uses.
_STATS_KEYS = ('num_instances', headroom.KEY)


@dataclass(frozen=True)
class _Answer:
    """Results of the queries of one cell's database for changed hosts.

    :param cell: UUID of the cell.
    :param seen: compute nodes that were found, by update time and digest. A
        later entry of a compute node replaces an earlier one.
    :param counts: number of compute nodes and sum of their IDs by update time,
        since the time of the last query.
    :param reports: columns of the reports that have changed.
    :param down: names of hosts whose nova-compute is disabled or down.
    :param now: time of the cell's database before the queries.
    """

    cell: str
    seen: Sequence[nova_seams.ComputeNodes]
    counts: Mapping[datetime.datetime, tuple[int, int]]
    reports: Sequence[Mapping[str, Any]]
    down: set[str]
    now: datetime.datetime


class Feed:
    """Updater of the index of hosts from the cells' databases; thread-safe.

    :ivar rebuilt: number of times that all compute nodes were queried.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.rebuilt = 0
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}    # UUID -> updated_at
        # UUID -> digest of the report that was read last
        self._digests: dict[str, str | None] = {}
        self._since: dict[str, datetime.datetime] = {}    # by cell
        self._ahead: dict[str, int] = {}                  # by cell
        # By cell: compute nodes by update time, of seconds that have passed
        self._counts: dict[str, dict[datetime.datetime, tuple[int, int]]] = {}
        self._unread: set[str] = set()
        self._read_at: dict[str, float] = {}              # by cell
        self._at = self._full_at = self._complete_at = float('-inf')

    @property
    def age(self) -> float:
        """Seconds since the index was last updated from all cell databases.

        Infinite if it has not been yet.
        """
        return time.monotonic() - self._complete_at

    @property
    def is_current(self) -> bool:
        """Whether the index was recently updated from all cell databases.

        The index holds the free resources of all hosts in nova-scheduler's
        memory.
        """
        return self.age < CURRENT

    @property
    def hosts_with_future_reports(self) -> int:
        """Number of compute hosts whose last report is dated in the future.

        Such a date means that the clocks of the cloud's services differ.
        """
        return sum(self._ahead.values())

    @property
    def unreadable_hosts(self) -> int:
        """Number of compute hosts with a malformed report in Nova's database.
        """
        return len(self._unread)

    def refresh(self, context: Any, cells: Sequence[Any],
                list_down_hosts: Callable[[Any], set[str]]) -> None:
        """Update the scheduler's index of hosts from the cell databases.

        Nothing is done if the last update is less than a second old, or if
        another thread is updating the index.

        :param cells: cells whose databases are queried.
        :param list_down_hosts: function that takes a connection to a cell's
            database and returns the names of the hosts that are disabled or
            down.
        """
        timeout = 0 if self.rebuilt else FIRST_LOOK_TIMEOUT_S
        if not self._lock.acquire(timeout=timeout):
            return
        try:
            if time.monotonic() - self._at >= REFRESH:
                self._refresh(context, cells, list_down_hosts)
        finally:
            self._lock.release()

    def _refresh(self, context: Any, cells: Sequence[Any],
                 list_down_hosts: Callable[[Any], set[str]]) -> None:
        began, now = time.process_time(), time.monotonic()
        full = now - self._full_at >= FULL
        answers = self._query_changed_compute_nodes(context, cells, full,
                                                    list_down_hosts)
        found = [answer for answer in answers if answer is not None]
        complete = len(found) == len(answers)
        rows, unread = self._parse_reports(found)
        gone = {uuid for answer in found for nodes in answer.seen
                if nodes.deleted for uuid in nodes.digests}
        gone |= self._forget_silent_cells(found, now)
        if full and complete:
            gone |= self._find_missing_hosts(found)
        for uuid in gone:
            self._known.pop(uuid, None)
            self._digests.pop(uuid, None)
            self._unread.discard(uuid)
        # A host with a malformed report would keep its last one for ever.
        self.index.update_hosts(rows, gone | unread, now)
        self.index.set_unavailable_hosts(set().union(
            *(answer.down for answer in found)))
        self._at = time.monotonic()
        if complete:
            self._complete_at = self._at
        if full:
            self.index.drop_old_changes(now)
            self._full_at = self._at
            self.rebuilt += 1
            LOG.log(logging.INFO if self.rebuilt == 1 else logging.DEBUG,
                    'ghsched: built the index of %(hosts)d hosts for '
                    'nova-scheduler from the Nova database in %(cpu).2f s of '
                    'CPU time',
                    {'hosts': len(self.index),
                     'cpu': time.process_time() - began})

    def _forget_silent_cells(self, answers: Sequence[_Answer],
                             now: float) -> set[str]:
        """Forget the reports of cells that could not be read for a minute.

        Guests would otherwise be placed by outdated reports. The next query of
        such a cell reads all of its hosts.

        :param answers: answers of the cells that could be read.
        :returns: UUIDs of the hosts of these cells.
        """
        self._read_at.update(dict.fromkeys(
            (answer.cell for answer in answers), now))
        silent = {cell for cell, read_at in self._read_at.items()
                  if now - read_at >= SILENT}
        for cell in silent:
            del self._read_at[cell]
            self._since.pop(cell, None)
            LOG.warning('ghsched: could not read the database of cell '
                        '%(cell)s for %(seconds)d s; excluding its hosts from '
                        'the index of hosts until it can be read',
                        {'cell': cell, 'seconds': SILENT})
        return {view.row.uuid for view in self.index.list_views()
                if view.row.cell in silent} if silent else set()

    def _query_changed_compute_nodes(
        self, context: Any, cells: Sequence[Any], all_hosts: bool,
        list_down_hosts: Callable[[Any], set[str]],
    ) -> list[_Answer | None]:
        """Query each cell database for compute nodes that have changed.

        :param all_hosts: whether to query all compute nodes instead.
        :returns: the answer of each cell; None for a cell that could not be
            queried.
        """
        def query_cell(in_cell: Any) -> _Answer:
            with nova_seams.connect_to_database(in_cell) as connection:
                return query_database(in_cell.cell_uuid, connection)

        def query_database(cell: str, connection: Any) -> _Answer:
            now = nova_seams.get_database_time(connection)
            since = self._since.get(cell)
            seen = nova_seams.list_compute_nodes(connection) if (
                all_hosts or since is None) else []
            changed = {uuid for nodes in seen for uuid in nodes.digests
                       if self._known.get(uuid) != nodes.updated}
            counts = {}
            if since is not None:
                found = nova_seams.count_updates_by_second(connection, since)
                counts = {second: count for second, count in found.items()
                          if second is not None}
                unchanged = dict(counts.items()
                                 & self._counts.get(cell, {}).items())
                # In a cloud at rest all seconds are unchanged.
                recent = nova_seams.list_compute_nodes(
                    connection, since, list(unchanged),
                    _STATS_KEYS) if unchanged != found else []
                changed = self._find_changed_reports(changed, recent)
                seen += recent
            reports = nova_seams.read_compute_node_reports(
                connection, list(changed), _STATS_KEYS)
            return _Answer(cell, seen, counts, reports,
                           list_down_hosts(connection), now)
        return nova_seams.call_in_cells(context, cells, query_cell)

    def _find_changed_reports(
            self, changed: set[str],
            recent: Sequence[nova_seams.ComputeNodes]) -> set[str]:
        """Return the hosts whose reports must be read from the database.

        :param changed: UUIDs of the hosts with a changed update time.
        :param recent: compute nodes that were updated recently; of these, the
            digest decides.
        """
        changed = set(changed)
        for nodes in recent:
            changed.difference_update(nodes.digests)
            if not nodes.deleted:
                changed.update(
                    uuid for uuid, digest in nodes.digests.items()
                    if self._is_report_changed(uuid, digest))
        return changed

    def _is_report_changed(self, uuid: str, digest: str | None) -> bool:
        """Return whether a host's report must be read from the database.

        This is so if its content has changed. It is also so if the host is not
        in the index, because its report was malformed or updating it failed.

        :param uuid: UUID of the host.
        :param digest: checksum of the content of the host's report in the
            database; None if unknown.
        """
        return (digest is None or digest != self._digests.get(uuid)
                or not self.index.has_host(uuid))

    def _parse_reports(
            self,
            answers: Sequence[_Answer]) -> tuple[list[ReportedHost], set[str]]:
        """Parse the resource reports of compute nodes.

        :param answers: answers of the cell databases.
        :returns: the parsed reports, and UUIDs of hosts with malformed
            reports.
        """
        rows: list[ReportedHost] = []
        unread: set[str] = set()
        for answer in answers:
            self._record_update_times(answer)
            for report in answer.reports:
                uuid = report['uuid']
                self._digests[uuid] = report['digest']
                row = self._try_parse_report(answer.cell, report)
                if row is None:
                    unread.add(uuid)
                else:
                    rows.append(row)
        return rows, unread

    def _find_missing_hosts(self, answers: Sequence[_Answer]) -> set[str]:
        """Return UUIDs of hosts that the cell databases no longer contain."""
        return set(self._known).difference(
            uuid for answer in answers for nodes in answer.seen
            for uuid in nodes.digests)

    def _record_update_times(self, answer: _Answer) -> None:
        """Record the time since which the next query looks for changes.

        A host's update time that is in the future is ignored: the clock of the
        nova-conductor that wrote it is ahead of the database's clock, and
        later changes of other hosts have earlier times. Reports of the current
        second are read again by the next query: the database stores whole
        seconds, so that another report within the second has the same time.

        :param answer: the cell's answer, with the update time of each host.
        """
        cell, limit = answer.cell, answer.now + LATE
        this_second = answer.now.replace(microsecond=0)
        self._counts[cell] = {
            second: count for second, count in answer.counts.items()
            if not this_second <= second <= limit}
        for updated, deleted, digests in answer.seen:
            if not deleted:
                self._known.update(dict.fromkeys(digests, updated))
            if updated is not None and updated <= limit:
                since = min(updated, answer.now) - LATE
                self._since[cell] = max(since, self._since.get(cell, since))
        ahead = {second: count for second, (count, _ids)
                 in answer.counts.items() if second > limit}
        if ahead and not self._ahead.get(cell):
            LOG.warning(
                'ghsched: cell %(cell)s: %(count)d compute nodes (such as '
                '%(uuid)s) have update times ahead of the database clock; '
                'synchronize the clocks of nova-conductor and the database',
                {'cell': cell, 'count': sum(ahead.values()), 'uuid': min(
                    (uuid for nodes in answer.seen if nodes.updated in ahead
                     for uuid in nodes.digests), default=None)})
        self._ahead[cell] = sum(ahead.values())

    def _try_parse_report(self, cell: str,
                          report: Mapping[str, Any]) -> ReportedHost | None:
        """Parse the resource report of a compute node.

        Returns None if the report is malformed. A malformed report is logged
        once.
        """
        uuid = report['uuid']
        try:
            row = parse_compute_node(cell, report)
        except Exception as error:
            if uuid not in self._unread:
                self._unread.add(uuid)
                LOG.warning('ghsched: cannot parse the compute node record of '
                            'host %(host)s; excluding the host from the index '
                            'of hosts: %(error).200r',
                            {'host': report.get('host'), 'error': error})
            return None
        self._unread.discard(uuid)
        return row


def parse_compute_node(cell: str, report: Mapping[str, Any]) -> ReportedHost:
    """Parse a host's resource report from its compute node record.

    :param cell: UUID of the host's cell.
    :param report: columns of the record in Nova's database.
    :raises Exception: if the report is not in Nova's format.
    """
    stats = _parse_json_column(report, 'stats') or {}
    document = _parse_json_column(report, 'numa_topology')
    cells = list(map(_get_object_fields, _get_object_fields(document)[
        'cells'])) if document is not None else []
    if len(cells) > MAX_NODES:
        raise ValueError(f'{len(cells)} NUMA nodes (at most {MAX_NODES})')
    pools = _parse_json_column(report, 'pci_stats')
    devices = _add_devices_to_nearest_nodes(_count_free_devices(pools), cells)
    nodes = tuple(_parse_node_capacity(one, report, devices) for one in cells)
    return ReportedHost(uuid=report['uuid'],
                        name=report['host'],
                        cell=cell,
                        updated=report['updated_at'],
                        nodes=nodes,
                        guests=_parse_count(int(stats.get('num_instances')
                                                or 0)),
                        # The driver reports a network for each node.
                        has_driver=bool(cells) and all(
                            names.make_node_physnet(one['id'])
                            in _list_physnets(one) for one in cells),
                        floating=devices.get(None, {}),
                        pfs=tuple(_iterate_pfs(pools)),
                        placement_headroom=headroom.parse_headroom_stats(
                            stats),
                        vcpus=_count_free_units(report, 'vcpus',
                                                'cpu_allocation_ratio'),
                        memory=_count_free_units(report, 'memory_mb',
                                                 'ram_allocation_ratio'))


def _count_free_units(report: Mapping[str, Any], column: str,
                      ratio: str) -> int:
    """Return the free amount of a resource of a compute node.

    :param column: column of the total amount; the column with the suffix
        ``_used`` has the used amount.
    :param ratio: column of the allocation ratio.
    """
    return (int(_parse_count(report[column])
                * _parse_allocation_ratio(report[ratio]))
            - _parse_count(report[f'{column}_used']))


def _parse_json_column(report: Mapping[str, Any], column: str) -> Any:
    """Parse the JSON text in a column of a compute node record.

    Returns None if the column is empty.
    """
    text = report[column] or 'null'
    if len(text) > MAX_TEXT:
        raise ValueError(f'column {column} has {len(text)} characters (at '
                         f'most {MAX_TEXT})')
    return json.loads(text)


def _parse_count(value: object) -> int:
    """Return a value of a host's report if it is a non-negative integer.

    :raises Exception: if it is not, or if it is above a fixed maximum.
    """
    return wire.check_integer(value, MAX_NUMBER)


def _parse_allocation_ratio(value: object) -> float:
    """Return an allocation ratio in a host's report, or 1.0 if none is set."""
    if not value:
        return 1.0
    if not isinstance(value, float | int) or not 0 < value <= MAX_NUMBER or (
            not math.isfinite(value)):
        raise ValueError(f'{value!r} is not a valid allocation ratio')
    return float(value)


def _parse_cpus(value: Any) -> set[int]:
    """Parse a list of CPU numbers in a host's report."""
    if not isinstance(value, list) or not all(
            type(cpu) is int for cpu in value):
        raise TypeError('not a list of CPU numbers')
    return set(value)


def _get_object_fields(document: Mapping[str, Any]) -> Any:
    """Return the fields of a serialized Nova versioned object."""
    return document['nova_object.data']


def _count_free_devices(pools: Any) -> dict[int | None, Counter[Device]]:
    """Count the free devices in a host's PCI pools by NUMA node."""
    found: dict[int | None, Counter[Device]] = {}
    known = () if pools is None else _get_object_fields(pools)['objects']
    for pool in map(_get_object_fields, known):
        node, device = pool.get('numa_node'), (pool['vendor_id'],
                                               pool['product_id'])
        if not all(isinstance(name, str) for name in device):
            raise TypeError('not a vendor and a product')
        number = None if node is None else _parse_count(node)
        found.setdefault(number, Counter())[device] += _parse_count(
            pool['count'])
    return found


def _iterate_pfs(pools: Any) -> Iterator[PfCapacity]:
    """Yield the PFs in a host's PCI pools that have free VFs.

    PFs without a resource provider in Placement or without a NUMA node are
    left out.
    """
    known = () if pools is None else _get_object_fields(pools)['objects']
    for pool in map(_get_object_fields, known):
        tags, node = pool.get('tags') or {}, pool.get('numa_node')
        provider = str(tags.get('rp_uuid'))
        if node is None or tags.get('dev_type') != 'type-VF' or not (
                uuidutils.is_uuid_like(provider)):
            continue
        yield PfCapacity(provider, _parse_count(node),
                         (pool['vendor_id'], pool['product_id']),
                         _parse_count(pool['count']))


def _add_devices_to_nearest_nodes(devices: dict[int | None, Counter[Device]],
                                  cells: Iterable[Mapping[str, Any]],
                                  ) -> dict[int | None, Counter[Device]]:
    """Add devices of host nodes without CPUs to the nearest node with CPUs.

    Guests of some flavors may use the devices from there. For other flavors
    the index may count too many devices, but its proposals are checked later.

    :param devices: number of free devices by host NUMA node; changed in place.
    :param cells: serialized NUMA cells of the host.
    """
    found = dict(devices)
    for cell in cells:
        for physnet in _list_physnets(cell):
            if (node := names.parse_cpuless_node_physnet(physnet)) is not None:
                found[cell['id']] = (found.get(cell['id'], Counter())
                                     + devices.get(node, Counter()))
    return found


def _parse_node_capacity(
    cell: Mapping[str, Any],
    report: Mapping[str, Any],
    devices: Mapping[int | None, Mapping[Device, int]],
) -> ReportedNode:
    """Parse the free CPUs, memory and devices of a host NUMA node.

    :param cell: the NUMA node in the host's report.
    :param report: columns of the host's compute node record.
    :param devices: number of free devices by NUMA node and device type.
    """
    node = _parse_count(cell['id'])
    pinned = _parse_cpus(cell.get('pcpuset') or [])
    used = _parse_cpus(cell['pinned_cpus'])
    pages = dict(map(_parse_free_pages,
                     map(_get_object_fields, cell['mempages'])))
    memory = int(_parse_count(cell['memory'])
                 * _parse_allocation_ratio(report['ram_allocation_ratio']))
    shared = int(len(_parse_cpus(cell['cpuset']))
                 * _parse_allocation_ratio(report['cpu_allocation_ratio']))
    return ReportedNode(
        number=node,
        pinned=len(pinned - used),
        shared=shared - _parse_count(cell['cpu_usage']),
        pages={**pages, 0: memory - _parse_count(cell['memory_usage'])},
        devices=devices.get(node, {}),
        caches=make_cache_cpus(pinned, used, names.parse_cache_physnets(
            _list_physnets(cell))))


def _parse_free_pages(pages: Mapping[str, Any]) -> tuple[int, int]:
    """Parse the free memory pages of one size of a host NUMA node.

    :returns: page size in KiB, and free memory in MiB.
    """
    size = _parse_count(pages['size_kb'])
    free = (_parse_count(pages['total'])
            - _parse_count(pages.get('reserved', 0))
            - _parse_count(pages['used']))
    return size, free * size // 1024


def _list_physnets(cell: Mapping[str, Any]) -> Sequence[str]:
    network = cell.get('network_metadata')
    return _get_object_fields(network)['physnets'] if network else ()
