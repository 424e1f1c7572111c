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

"""Reads what compute hosts report to Nova into the index of hosts.

The source is the cells' databases: all hosts at first and then once a minute,
in between the hosts that have changed, at most once a second.
"""

from collections.abc import Callable
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

from ghsched_nova.nova_seams import scheduler_hosts
from ghsched_nova.scheduler.host_index import Device
from ghsched_nova.scheduler.host_index import Index
from ghsched_nova.scheduler.host_index import NodeRoom
from ghsched_nova.scheduler.host_index import Row
from ghsched_placement.bandwidth import check_integer
from ghsched_placement import headroom
from ghsched_placement import names

LOG = logging.getLogger(__name__)

#: Minimum seconds between two looks at what has changed.
REFRESH = 1.0

#: Allowed delay of a conductor's write, and difference of clocks.
LATE = datetime.timedelta(seconds=2)

#: Seconds between two looks at all hosts. They find hosts that a look at what
#: has changed misses, because a clock is wrong or a record was removed.
FULL = 60.0

#: Seconds for which the index counts as current after a look.
CURRENT = 10.0

#: Seconds to wait for the first look of another thread.
FIRST_LOOK_TIMEOUT_S = 10.0

#: Maximum length of one column of a report, in characters.
MAX_TEXT = 2 ** 20

#: Maximum number of NUMA nodes in a report.
MAX_NODES = 256

#: Maximum of each number in a report.
MAX_NUMBER = 2 ** 53


@dataclass(frozen=True)
class _Look:
    """The answer of one cell.

    :param seen: UUID, ``updated_at`` and ``deleted`` of compute nodes.
    :param reports: columns of those that have changed.
    :param down: names of hosts that are disabled or down.
    :param now: time of the cell's database.
    """

    cell: str
    seen: Sequence[tuple[str, Any, Any]]
    reports: Sequence[Mapping[str, Any]]
    down: set[str]
    now: datetime.datetime


class Feed:
    """Keeps an index up to date; safe for threads.

    :ivar rebuilt: number of looks at all hosts.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.rebuilt = 0
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}    # UUID -> updated_at
        self._since: dict[str, datetime.datetime] = {}    # by cell
        self._ahead: dict[str, frozenset[str]] = {}       # by cell
        self._unread: set[str] = set()
        self._at = self._full_at = self._complete_at = float('-inf')

    @property
    def age(self) -> float:
        """Seconds since the scheduler's index of hosts was last read from the
        databases.
        """
        return time.monotonic() - self._at

    @property
    def is_current(self) -> bool:
        """Whether the index of hosts has just been read from all cell
        databases.
        """
        return time.monotonic() - self._complete_at < CURRENT

    @property
    def ahead(self) -> int:
        """Number of compute hosts whose report has a time in the future."""
        return sum(map(len, self._ahead.values()))

    @property
    def unread(self) -> int:
        """Number of compute hosts whose report in Nova's database is
        malformed.
        """
        return len(self._unread)

    def refresh(self, context: Any, cells: Sequence[Any],
                names_of_down: Callable[[Any], set[str]]) -> None:
        """Read changed compute nodes into the scheduler's index of hosts.

        Nothing is read if the last read was a moment ago, or if another thread
        is reading.

        :param names_of_down: function that returns the names of the hosts of a
            cell that are disabled or down.
        """
        timeout = 0 if self.rebuilt else FIRST_LOOK_TIMEOUT_S
        if not self._lock.acquire(timeout=timeout):
            return
        try:
            if self.age >= REFRESH:
                self._refresh(context, cells, names_of_down)
        finally:
            self._lock.release()

    def _refresh(self, context: Any, cells: Sequence[Any],
                 names_of_down: Callable[[Any], set[str]]) -> None:
        began, now = time.process_time(), time.monotonic()
        full = now - self._full_at >= FULL
        looks = self._query_cells(context, cells, full, names_of_down)
        found = [look for look in looks if look is not None]
        complete = len(found) == len(looks)
        rows, unread = self._parse_reports(found)
        gone = {uuid for look in found for uuid, _updated, deleted
                in look.seen if deleted}
        if full and complete:
            gone |= self._find_missing_hosts(found)
        for uuid in gone:
            self._known.pop(uuid, None)
            self._unread.discard(uuid)
        # A host with a malformed report would keep its last one for ever.
        self.index.report(rows, gone | unread, now)
        self.index.set_unavailable(set().union(
            *(look.down for look in found)))
        self._at = time.monotonic()
        if complete:
            self._complete_at = self._at
        if full:
            self._full_at = self._at
            self.rebuilt += 1
            LOG.log(logging.INFO if self.rebuilt == 1 else logging.DEBUG,
                    'ghsched: index of %(hosts)d hosts: all were read in '
                    '%(cpu).2f s of processor time',
                    {'hosts': len(self.index),
                     'cpu': time.process_time() - began})

    def _query_cells(self, context: Any, cells: Sequence[Any], full: bool,
                     names_of_down: Callable[[Any], set[str]],
                     ) -> list[_Look | None]:
        """Query each cell database for changed compute nodes; None for a
        failed cell.
        """
        def look(in_cell: Any) -> _Look:
            now = scheduler_hosts.database_time(in_cell)
            seen = scheduler_hosts.changed_compute_nodes(
                in_cell, None if full else self._since.get(in_cell.cell_uuid))
            fresh = [uuid for uuid, updated, deleted in seen
                     if not deleted and self._known.get(uuid) != updated]
            return _Look(in_cell.cell_uuid, seen,
                         scheduler_hosts.compute_node_reports(in_cell, fresh),
                         names_of_down(in_cell), now)
        return scheduler_hosts.in_cells(context, cells, look)

    def _parse_reports(
            self, looks: Sequence[_Look]) -> tuple[list[Row], set[str]]:
        """Parse the resource reports of compute nodes.

        :returns: the parsed reports, and the UUIDs of hosts with malformed
            ones.
        """
        rows: list[Row] = []
        unread: set[str] = set()
        for look in looks:
            self._note_times(look)
            for report in look.reports:
                row = self._parse_row(look.cell, report)
                if row is None:
                    unread.add(report['uuid'])
                else:
                    rows.append(row)
        return rows, unread

    def _find_missing_hosts(self, looks: Sequence[_Look]) -> set[str]:
        """Return hosts of the scheduler's index that cell databases no longer
        have.
        """
        return set(self._known).difference(
            uuid for look in looks for uuid, _updated, _deleted in look.seen)

    def _note_times(self, look: _Look) -> None:
        """Store the time from which the next read of a cell asks for changed
        hosts.

        A time in the future is ignored: the clock of the nova-conductor that
        wrote it differs from the database's, and later changes of other hosts
        have earlier times.
        """
        newest = self._since.get(look.cell)
        ahead = set()
        for uuid, updated, deleted in look.seen:
            if not deleted:
                self._known[uuid] = updated
            if updated is None:
                continue
            if updated > look.now + LATE:
                ahead.add(uuid)
            elif newest is None or updated - LATE > newest:
                newest = min(updated, look.now) - LATE
        if newest is not None:
            self._since[look.cell] = newest
        if ahead and not self._ahead.get(look.cell):
            LOG.warning(
                'ghsched: cell %(cell)s: %(count)d compute nodes (such as '
                '%(uuid)s) have reports with a time in the future of the '
                'database; check the clocks of nova-conductor and of the '
                'database', {'cell': look.cell, 'count': len(ahead),
                             'uuid': min(ahead)})
        self._ahead[look.cell] = frozenset(ahead)

    def _parse_row(self, cell: str, report: Mapping[str, Any]) -> Row | None:
        """Parse the resource report of a compute node; None if it is
        malformed.

        A malformed report is logged once.
        """
        uuid = report['uuid']
        try:
            row = parse_compute_node(cell, report)
        except Exception as error:
            if uuid not in self._unread:
                self._unread.add(uuid)
                LOG.warning('ghsched: cannot read the report of host '
                            '%(host)s, leaving the host out of the index: '
                            '%(error).200r',
                            {'host': report.get('host'), 'error': error})
            return None
        self._unread.discard(uuid)
        return row


def parse_compute_node(cell: str, report: Mapping[str, Any]) -> Row:
    """Parse a host's resource report from columns of its compute node record.

    :raises Exception: if the report is not in Nova's format.
    """
    stats = _load_column(report, 'stats') or {}
    document = _load_column(report, 'numa_topology')
    cells = list(map(_get_object_fields, _get_object_fields(document)[
        'cells'])) if document is not None else []
    if len(cells) > MAX_NODES:
        raise ValueError(f'{len(cells)} NUMA nodes (at most {MAX_NODES})')
    devices = _count_free_devices(_load_column(report, 'pci_stats'))
    nodes = tuple(_parse_node_room(one, report, devices) for one in cells)
    return Row(uuid=report['uuid'], name=report['host'], cell=cell,
               updated=report['updated_at'], nodes=nodes,
               guests=_check_number(int(stats.get('num_instances') or 0)),
               steered=bool(cells) and all(map(_runs_ghsched_driver, cells)),
               floating=devices.get(None, {}), left=headroom.from_stats(stats))


def _load_column(report: Mapping[str, Any], column: str) -> Any:
    """Parse the JSON text of a compute node's column; None if the column is
    empty.
    """
    text = report[column]
    if not text:
        return None
    if len(text) > MAX_TEXT:
        raise ValueError(f'column {column} has {len(text)} characters (at '
                         f'most {MAX_TEXT})')
    return json.loads(text)


def _check_number(value: object) -> int:
    """Return an integer from a host's resource report; refuse other values.

    Negative and very large numbers are refused as well.
    """
    return check_integer(value, MAX_NUMBER)


def _check_ratio(value: object) -> float:
    """Return an allocation ratio from a host's resource report; 1.0 if not
    set.
    """
    if not value:
        return 1.0
    if not isinstance(value, float | int) or not 0 < value <= MAX_NUMBER or (
            not math.isfinite(value)):
        raise ValueError(f'{value!r} is not a valid allocation ratio')
    return float(value)


def _check_cpus(value: Any) -> set[int]:
    """Return a list of CPU numbers from a host's resource report as a set."""
    if not isinstance(value, list) or not all(
            type(cpu) is int for cpu in value):
        raise TypeError('not a list of CPU numbers')
    return set(value)


def _get_object_fields(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a serialized versioned object of Nova."""
    found: Mapping[str, Any] = document['nova_object.data']
    return found


def _count_free_devices(pools: Any) -> dict[int | None, Counter[Device]]:
    """Count the free passthrough devices of PCI pools by host NUMA node."""
    found: dict[int | None, Counter[Device]] = {}
    known = () if pools is None else _get_object_fields(pools)['objects']
    for pool in map(_get_object_fields, known):
        node, device = pool.get('numa_node'), (pool['vendor_id'],
                                               pool['product_id'])
        if not all(isinstance(name, str) for name in device):
            raise TypeError('not a vendor and a product')
        number = None if node is None else _check_number(node)
        found.setdefault(number, Counter())[device] += _check_number(
            pool['count'])
    return found


def _parse_node_room(cell: Mapping[str, Any], report: Mapping[str, Any],
                     devices: Mapping[int | None, Mapping[Device, int]],
                     ) -> NodeRoom:
    """Return the free CPUs, memory and devices of a host NUMA node from a
    report.
    """
    node = _check_number(cell['id'])
    pinned = _check_cpus(cell.get('pcpuset') or [])
    pages = dict(map(_parse_free_pages,
                     map(_get_object_fields, cell['mempages'])))
    memory = int(_check_number(cell['memory'])
                 * _check_ratio(report['ram_allocation_ratio']))
    shared = int(len(_check_cpus(cell['cpuset']))
                 * _check_ratio(report['cpu_allocation_ratio']))
    return NodeRoom(
        number=node, cpus=len(pinned),
        pinned=len(pinned - _check_cpus(cell['pinned_cpus'])),
        shared=shared - _check_number(cell['cpu_usage']),
        pages={**pages, 0: memory - _check_number(cell['memory_usage'])},
        devices=devices.get(node, {}))


def _parse_free_pages(pages: Mapping[str, Any]) -> tuple[int, int]:
    """Parse the pages of one size of a host NUMA node.

    :returns: page size in KiB, and free memory in MiB.
    """
    size = _check_number(pages['size_kb'])
    free = (_check_number(pages['total'])
            - _check_number(pages.get('reserved', 0))
            - _check_number(pages['used']))
    return size, free * size // 1024


def _runs_ghsched_driver(cell: Mapping[str, Any]) -> bool:
    """Whether the host of a reported NUMA node runs ghsched's compute driver.
    """
    network = cell.get('network_metadata')
    return network is not None and names.make_node_physnet(
        cell['id']) in _get_object_fields(network)['physnets']
