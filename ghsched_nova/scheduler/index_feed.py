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

"""What compute hosts report to Nova -> the index of hosts.

Read from the cells' databases: all hosts once, then those that have changed,
at most once a second.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
import datetime
import json
import threading
import time
from typing import Any

from oslo_log import log as logging

from ghsched_nova import compat
from ghsched_nova.scheduler.host_index import Device
from ghsched_nova.scheduler.host_index import Index
from ghsched_nova.scheduler.host_index import NodeRoom
from ghsched_nova.scheduler.host_index import Row
from ghsched_placement import headroom
from ghsched_placement import names

LOG = logging.getLogger(__name__)

#: Seconds between two looks at what has changed.
REFRESH = 1.0

#: What a conductor may write later than its clock had it, or than others.
LATE = datetime.timedelta(seconds=2)

#: Seconds between two counts of the hosts. Another number than is known
#: makes the next look one at all of them.
COUNT = 60.0

#: Seconds between two looks at all hosts in any case.
FULL = 600.0


class Feed:
    """Keeps an index up to date.

    :ivar rebuilt: how often all hosts were looked at.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.rebuilt = 0
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}    # UUID -> when it was updated
        self._latest: dict[str, Any] = {}   # the newest of that, by cell
        self._at = self._full_at = self._counted_at = -FULL

    @property
    def age(self) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._at

    def refresh(self, context: Any, cells: Sequence[Any],
                names_of_down: Any) -> None:
        """Look at what has changed, if the last look is not of now.

        :param names_of_down: gives the names of the hosts of a cell that
            are disabled or down, with its context.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._at < REFRESH:
                return
            if now - self._counted_at >= COUNT:
                self._count(context, cells)
            full = now - self._full_at >= FULL
            began = time.process_time()
            rows, gone, down = self._read(context, cells, full, names_of_down)
            self.index.report(rows, gone, now)
            self.index.set_unavailable(down)
            self._at = time.monotonic()
            if full:
                self._full_at = self._at
                self.rebuilt += 1
                LOG.info('ghsched: the index has %(hosts)d hosts; all were '
                         'looked at in %(cpu).2f s of processor time',
                         {'hosts': len(self.index.hosts),
                          'cpu': time.process_time() - began})

    def _count(self, context: Any, cells: Sequence[Any]) -> None:
        """Look at all hosts if there are more or fewer than are known."""
        self._counted_at = time.monotonic()
        counts = compat.in_cells(context, cells, compat.count_compute_nodes)
        if None not in counts and sum(counts) != len(self._known):
            self._full_at = -FULL

    def _read(self, context: Any, cells: Sequence[Any], full: bool,
              names_of_down: Any) -> tuple[list[Row], set[str], set[str]]:
        def look(in_cell: Any) -> Any:
            latest = None if full else self._latest.get(in_cell.cell_uuid)
            seen = compat.changed_compute_nodes(
                in_cell, latest and latest - LATE)
            fresh = [uuid for uuid, updated, deleted in seen
                     if not deleted and self._known.get(uuid) != updated]
            return (in_cell.cell_uuid, seen,
                    compat.compute_node_reports(in_cell, fresh),
                    names_of_down(in_cell))
        rows: list[Row] = []
        gone: set[str] = set()
        down: set[str] = set()
        there: set[str] = set()
        missing = False
        for answer in compat.in_cells(context, cells, look):
            if answer is None:
                missing = True
                continue
            cell, seen, reports, of_cell = answer
            down |= of_cell
            for uuid, updated, deleted in seen:
                if deleted:
                    gone.add(uuid)
                    self._known.pop(uuid, None)
                else:
                    there.add(uuid)
                    self._note(cell, uuid, updated)
            rows.extend(_rows(cell, reports))
        if full and not missing:
            gone |= set(self._known) - there
            for uuid in set(self._known) - there:
                del self._known[uuid]
        return rows, gone, down

    def _note(self, cell: str, uuid: str, updated: Any) -> None:
        self._known[uuid] = updated
        if updated is not None and (cell not in self._latest
                                    or updated > self._latest[cell]):
            self._latest[cell] = updated


def _rows(cell: str, reports: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for report in reports:
        try:
            yield read(cell, report)
        except Exception as error:
            LOG.debug('ghsched: the report of %(host)s is not read: '
                      '%(error)r', {'host': report.get('host'),
                                    'error': error})


def read(cell: str, report: Mapping[str, Any]) -> Row:
    """A host, of the columns of its compute node.

    :raises Exception: when the report is not as Nova writes it.
    """
    stats = json.loads(report['stats'] or '{}')
    document = json.loads(report['numa_topology'] or 'null')
    cells = [_data(one) for one in _data(document)['cells']
             ] if document else []
    devices = _devices(report['pci_stats'])
    nodes = tuple(_room(one, report, devices) for one in cells)
    return Row(uuid=report['uuid'], name=report['host'], cell=cell,
               updated=report['updated_at'], nodes=nodes,
               guests=int(stats.get('num_instances') or 0),
               steered=bool(cells) and all(map(_steered, cells)),
               left=headroom.read(stats))


def _data(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a versioned object."""
    found: Mapping[str, Any] = document['nova_object.data']
    return found


def _devices(pools: str | None) -> dict[int | None, Counter[Device]]:
    """Free passthrough devices by host NUMA node."""
    found: dict[int | None, Counter[Device]] = {}
    if pools:
        for pool in map(_data, _data(json.loads(pools))['objects']):
            found.setdefault(pool.get('numa_node'), Counter())[
                pool['vendor_id'], pool['product_id']] += pool['count']
    return found


def _room(cell: Mapping[str, Any], report: Mapping[str, Any],
          devices: Mapping[int | None, Mapping[Device, int]]) -> NodeRoom:
    pinned = set(cell.get('pcpuset') or ())
    pages = {one['size_kb']: (one['total'] - one.get('reserved', 0)
                              - one['used']) * one['size_kb'] // 1024
             for one in map(_data, cell['mempages'])}
    memory = int(cell['memory'] * (report['ram_allocation_ratio'] or 1))
    return NodeRoom(
        number=cell['id'], cpus=len(pinned),
        pinned=len(pinned - set(cell['pinned_cpus'])),
        shared=int(len(cell['cpuset']) * (report['cpu_allocation_ratio'] or 1)
                   ) - cell['cpu_usage'],
        pages={**pages, 0: memory - cell['memory_usage']},
        devices=devices.get(cell['id'], {}))


def _steered(cell: Mapping[str, Any]) -> bool:
    """Whether our driver offers the network that stands for the node."""
    network = cell.get('network_metadata')
    return network is not None and names.node_physnet(
        cell['id']) in _data(network)['physnets']
