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

"""Measure what nova-scheduler reads of hosts whose load changes all the time.

The hosts are simulated: each reports once a minute, and a scheduler looks at
what has changed once a second. Prints bytes and processor time per second of
one scheduler process, for hosts that report each measurement and a scheduler
that reads each report (``whole``), and for hosts and a scheduler as they are
(``delta``), and the ratio of the two. Without ``--mariadb`` the database is
simulated, too, and its client takes no time. With it, bytes are those that a
MariaDB sent, and the processor time is that of the scheduler with its client,
and that of MariaDB. ``--index`` adds the indexes that the manual names.

usage: python tools/bench/feed_bench.py [--hosts N] [--seconds N]
           [--noise PERCENT,...] [--guests N] [--mariadb [--index]]
"""

import bench_path  # noqa: F401
import scheduler_bench  # isort: skip

import argparse
import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
import gc
import hashlib
import json
import math
import random
import tempfile
import time
from typing import Any
from unittest import mock

from nova.db.main import models
from nova import objects
import sqlalchemy as sa

from ghsched_nova.nova_seams import scheduler_hosts
from ghsched_nova.scheduler import host_index
from ghsched_nova.scheduler import index_feed
from ghsched_placement import headroom
from ghsched_placement import load
from ghsched_placement import report_delta
import scheduler_cloud as clouds

_PERIOD = 60
_SMOOTHING = math.exp(-_PERIOD / 120.)
_START = datetime.datetime(2026, 11, 1)
_WHOLE = ('uuid', 'host', 'updated_at', 'numa_topology', 'pci_stats', 'stats',
          'cpu_allocation_ratio', 'ram_allocation_ratio')

#: Seconds after which a scheduler ignores a load.
_MAX_AGE = 180


class Cloud:
    """Hosts that measure their load, and what a scheduler reads of them.

    :ivar read: bytes that the scheduler has read.
    """

    def __init__(self, options: argparse.Namespace, noise: float,
                 delta: bool) -> None:
        self._chance = random.Random(1)  # noqa: S311
        self._noise, self._delta = noise / 100, delta
        self._guests = options.guests * _PERIOD / 86400
        self._forms = list(_make_forms(self._chance))
        self.rows: list[dict[str, Any]] = []
        self._loads: list[load.Load] = []
        self._reported: list[load.Load] = []
        self.read, self.now = 0, 0
        self.changed: list[dict[str, Any]] = []
        self._recent: collections.deque[list[dict[str, Any]]] = (
            collections.deque(maxlen=10))
        for number in range(options.hosts):
            self._add_host(number)

    def _add_host(self, number: int) -> None:
        form, means = self._chance.choice(self._forms), _list_means(number)
        measured = load.Load(0., _PERIOD, tuple(load.HostNode(
            node, cpus=clouds.CPUS, vcpus=24, memory=clouds.MEMORY,
            memory_free=9000, cpu_load=means[node], cpu_wait=.01,
            memory_load=means[node] / 2, memory_wait=0., io_load=.1,
            io_wait=.2, bandwidth=1e10, capacity=2e10, bottlenecks=())
            for node in range(4)))
        self._loads.append(measured)
        # Each host reports in its second of a minute.
        self._reported.append(dataclasses.replace(
            measured, time=float(number % _PERIOD
                                 - self._chance.choice((1, 2)) * _PERIOD)))
        updated = _START + datetime.timedelta(
            seconds=self._reported[number].time)
        self.rows.append({**form, 'uuid': f'u{number:035}',
                          'host': f'h{number:06}', 'updated_at': updated})
        self._write_stats(number)

    def _write_stats(self, number: int) -> None:
        row, guests = self.rows[number], self.rows[number]['running_vms']
        row['stats'] = json.dumps({
            **headroom.to_stats(headroom.Headroom(
                0. if self._delta else float(self.now), guests, 30 - guests,
                dict.fromkeys(range(4), 100 - 5 * guests), 'f' * 32)),
            **load.to_stats(self._reported[number]),
            'num_instances': str(guests), 'io_workload': '0',
            'failed_builds': '0', 'num_vm_active': str(guests),
            'num_proj_' + 'f' * 32: str(guests), 'num_task_None': str(guests),
            'num_os_type_None': str(guests)})

    def report(self) -> None:
        """Report the hosts whose turn it is in this second."""
        self.now += 1
        self.changed = []
        self._recent.append(self.changed)
        for number in range(self.now % _PERIOD, len(self.rows), _PERIOD):
            measured = self._loads[number] = self._measure(number)
            before, row = self._reported[number], self.rows[number]
            changed = not self._delta
            if self._chance.random() < self._guests:
                row.update(self._chance.choice(self._forms))
                changed = True
            self._reported[number] = (
                report_delta.choose_load_report(before, measured, _MAX_AGE)
                if self._delta else measured)
            if changed or self._reported[number] is not before:
                # A look is in the midst of a second.
                row['updated_at'] = _START + datetime.timedelta(
                    seconds=self.now - self._chance.choice((0, 1)))
                self._write_stats(number)
                self.changed.append(row)

    def _measure(self, number: int) -> load.Load:
        """Return the smoothed load after a noisy measurement."""
        def smooth(before: float, mean: float) -> float:
            raw = min(1., max(0., self._chance.gauss(mean, self._noise)))
            return raw + (before - raw) * _SMOOTHING
        known, means = self._loads[number], _list_means(number)
        return dataclasses.replace(known, time=float(self.now), nodes=tuple(
            dataclasses.replace(
                node, cpu_load=smooth(node.cpu_load or 0, means[node.node]),
                memory_load=smooth(node.memory_load or 0,
                                   means[node.node] / 2),
                io_load=smooth(node.io_load or 0, .1))
            for node in known.nodes))

    # -- what the scheduler reads ---------------------------------------------

    def count_updates(self, _context: Any, since: datetime.datetime,
                      ) -> dict[datetime.datetime, tuple[int, int]]:
        found: collections.Counter[datetime.datetime] = collections.Counter()
        ids: collections.Counter[datetime.datetime] = collections.Counter()
        for number in self._list_numbers(since):
            updated = self.rows[number]['updated_at']
            found[updated] += 1
            ids[updated] += number
        self.read += 50 * len(found)
        return {updated: (count, ids[updated])
                for updated, count in found.items()}

    def list_nodes(self, _context: Any, since: Any = None,
                   omitted: Sequence[datetime.datetime] = (),
                   keys: Sequence[str] = ()) -> list[Any]:
        found: dict[datetime.datetime, dict[str, str | None]] = {}
        for number in self._list_numbers(since):
            row = self.rows[number]
            if row['updated_at'] not in omitted:
                found.setdefault(row['updated_at'], {})[row['uuid']] = (
                    _make_digest(row, keys)
                    if since is not None and self._delta else None)
                self.read += 46 if since is None else 106
        return [scheduler_hosts.ComputeNodes(updated, 0, digests)
                for updated, digests in found.items()]

    def _list_numbers(self, since: Any) -> Iterable[int]:
        """Return the numbers of hosts that have changed since a time."""
        if since is None:
            return range(len(self.rows))
        last = {int(row['uuid'][1:]) for rows in self._recent for row in rows}
        return [number for number in sorted(last)
                if self.rows[number]['updated_at'] >= since]

    def read_reports(self, _context: Any, uuids: Sequence[str],
                     keys: Sequence[str]) -> list[Mapping[str, Any]]:
        found = []
        for uuid in uuids:
            row = self.rows[int(uuid[1:])]
            found.append({**{name: row[name] for name in _WHOLE}, 'digest':
                          _make_digest(row, keys) if self._delta else None})
            self.read += sum(len(str(row[name])) for name in _WHOLE)
        return found

    def get_time(self, _context: Any) -> datetime.datetime:
        """Return a time at which no report is of the same second, or some are.
        """
        return _START + datetime.timedelta(
            seconds=self.now + (0 if self._delta else 1))


def _make_digest(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    stats = json.loads(row['stats'])
    return hashlib.sha256(repr((
        row['numa_topology'], row['pci_stats'],
        [stats[key] for key in keys])).encode()).hexdigest()


class Database:
    """Records of the hosts in a MariaDB, and what it sends and takes."""

    def __init__(self, server: scheduler_bench.Server, rows: Sequence[
            Mapping[str, Any]], index: bool) -> None:
        self._server = server
        url = f'mysql+pymysql://root@localhost/?unix_socket={server.socket}'
        with sa.create_engine(url).begin() as connection:
            for text in ('DROP DATABASE IF EXISTS feed',
                         'CREATE DATABASE feed CHARACTER SET utf8mb3'):
                connection.execute(sa.text(text))
        self.engine = sa.create_engine(url.replace('/?', '/feed?'))
        self._table = models.ComputeNode.__table__
        models.BASE.metadata.create_all(self.engine, tables=[self._table])
        with self.engine.begin() as connection:
            for first in range(0, len(rows), 500):
                connection.execute(self._table.insert(), [
                    {**_OTHER_COLUMNS, **row,
                     'hypervisor_hostname': row['host']}
                    for row in rows[first:first + 500]])
            for column in ('updated_at', 'deleted_at') if index else ():
                connection.execute(sa.text(
                    f'CREATE INDEX compute_nodes_{column}_idx '
                    f'ON compute_nodes ({column})'))
        self._sent = self.engine.connect()

    def close(self) -> None:
        self._sent.close()
        self.engine.dispose()

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the records that have changed."""
        table = self._table
        query = table.update().where(
            table.c.uuid == sa.bindparam('known')).values({
                name: sa.bindparam(name) for name in (
                    *_WHOLE[2:], 'vcpus_used', 'memory_mb_used',
                    'running_vms')})
        if rows:
            with self.engine.begin() as connection:
                connection.execute(query, [
                    {**row, 'known': row['uuid']} for row in rows])

    def read_use(self) -> tuple[float, float]:
        """Return bytes sent, and CPU seconds taken, since the start."""
        (_name, sent), = self._sent.execute(sa.text(
            "SHOW GLOBAL STATUS LIKE 'Bytes_sent'"))
        return float(sent), self._server.cpu()


_OTHER_COLUMNS = {
    'deleted': 0, 'vcpus': 128, 'memory_mb': 524288, 'local_gb': 1000,
    'local_gb_used': 0, 'hypervisor_type': 'QEMU', 'hypervisor_version': 1,
    'cpu_info': '{}'}


def _list_means(number: int) -> list[float]:
    """Return the mean load of each NUMA node of a host."""
    return [.2 + (number * 7 + node * 3) % 10 / 20 for node in range(4)]


def _make_forms(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yield columns of hosts that hold some guests."""
    objects.register_all()
    for _form in range(40):
        nodes = [clouds.Node(number, vfs=number % 2 * 40 or None, pf='f' * 36)
                 for number in range(4)]
        for node in nodes:
            taken = chance.randrange(0, 32, 8)
            node.pinned = set(range(node.number * 32,
                                    node.number * 32 + taken))
            node.memory = taken * 2048
        host = clouds.Host('h', 'u', 0, nodes)
        cpus = sum(len(node.pinned) for node in nodes)
        yield {'numa_topology': clouds.topology(host)._to_json(),
               'pci_stats': clouds.pools(host), 'vcpus_used': cpus,
               'memory_mb_used': cpus * 2048, 'running_vms': cpus // 8,
               'cpu_allocation_ratio': 1., 'ram_allocation_ratio': 1.}


def measure(options: argparse.Namespace, noise: float, delta: bool,
            server: scheduler_bench.Server | None) -> tuple[float, ...]:
    """Return MB, and CPU seconds of scheduler and database, per second."""
    cloud = Cloud(options, noise, delta)
    fakes: dict[str, Any] = {'get_database_time': cloud.get_time}
    database = None
    if server is not None:
        database = Database(server, cloud.rows, options.index)
    else:
        fakes |= {'list_compute_nodes': cloud.list_nodes,
                  'count_updates_by_second': cloud.count_updates,
                  'read_compute_node_reports': cloud.read_reports}
    if not delta:
        fakes |= {'count_updates_by_second': lambda *_args: {}}
    spent = [0.]
    fakes = {name: _count_time(fake, spent) for name, fake in fakes.items()}
    fakes['call_in_cells'] = lambda _context, cells, look: [
        look(cell) for cell in cells]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(scheduler_hosts, **fakes))
        stack.enter_context(mock.patch.object(
            index_feed, 'time', mock.Mock(
                monotonic=lambda: float(cloud.now),
                process_time=time.process_time)))
        if not delta:
            stack.enter_context(mock.patch.object(
                scheduler_hosts, '_make_digest_expression',
                lambda *_args: scheduler_hosts._NO_DIGEST))
        if database is not None:
            stack.callback(database.close)
            stack.enter_context(mock.patch.object(
                scheduler_hosts.main_db, 'get_engine',
                lambda context: database.engine))
        return _measure_looks(cloud, database, options.seconds, spent)


def _measure_looks(cloud: Cloud, database: Database | None, seconds: int,
                   spent: list[float]) -> tuple[float, ...]:
    feed = index_feed.Feed(host_index.Index())
    cell = mock.Mock(cell_uuid='c')
    sums = [0., 0., 0.]
    for second in range(1 + seconds):
        cloud.report()
        if database is not None:
            database.write(cloud.changed)
        before = (cloud.read, 0.) if database is None else database.read_use()
        began, spent[0] = time.process_time(), 0.
        feed.refresh(None, [cell], lambda _cell: set())
        took = time.process_time() - began - spent[0]
        after = (cloud.read, 0.) if database is None else database.read_use()
        if not second:
            # All hosts have been read. No look is to free what that has left.
            gc.collect()
        else:
            sums = [sums[0] + (after[0] - before[0]) / 1e6, sums[1] + took,
                    sums[2] + after[1] - before[1]]
    return tuple(one / seconds for one in sums)


def _count_time(function: Any, spent: list[float]) -> Any:
    def timed(*args: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args)
        finally:
            spent[0] += time.process_time() - began
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--hosts', type=int, default=100_000)
    parser.add_argument('--seconds', type=int, default=60)
    parser.add_argument('--noise', default='3,10',
                        help='standard deviation of a measurement, in percent '
                        'of a CPU or of bandwidth')
    parser.add_argument('--guests', type=float, default=24,
                        help='guests that come or go on a host in a day')
    parser.add_argument('--mariadb', action='store_true',
                        help='have the records in a MariaDB of our own')
    parser.add_argument('--index', action='store_true',
                        help='with indexes on updated_at and deleted_at')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = scheduler_bench.Server(directory) if options.mariadb else None
        try:
            for noise in map(float, options.noise.split(',')):
                _compare(options, noise, server)
        finally:
            if server is not None:
                server.stop()


def _compare(options: argparse.Namespace, noise: float,
             server: scheduler_bench.Server | None) -> None:
    found = {'whole': measure(options, noise, False, server),
             'delta': measure(options, noise, True, server)}
    for name, (read, cpu, database) in found.items():
        print(f'{options.hosts} simulated hosts, noise {noise:g} %, {name}: '
              f'{read:.2f} MB/s, {cpu:.4f} CPU-s per second of the scheduler, '
              f'{database:.4f} of the database', flush=True)
    whole, delta = found['whole'], found['delta']
    print(f'ratio: {whole[0] / delta[0]:.1f} of bytes, '
          f'{whole[1] / delta[1]:.1f} of CPU time', flush=True)


if __name__ == '__main__':
    main()
