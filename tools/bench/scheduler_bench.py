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

"""Measure the cost of scheduling a guest, in clouds of several sizes.

Three schedulers take turns on one cloud, each in a process of its own: stock
Nova, ours by the whole search (``whole``) and ours with the index of hosts
(``index``). The hosts are generated, see scheduler_cloud.py; scheduler and
Placement are real. What is compared is processor time, with that of the
database server, because walls depend on what else the machine does.

Modes are also ``index+first``, the index that has no refusal to remember,
``index+each``, the index that asks Placement about each host that it proposes,
``gradient``: the whole search with the weigher against fragmentation,
``stock@32``: Nova with 32 max_placement_results, and
``static``: Nova with guests that have as large a part of a node's CPUs as of
its bandwidth. The ratio compares each with the first.

The benchmark ends with an error if the index cannot read what hosts report.

With --keep, databases stay in the directory and are used again: those of
10,000 hosts take minutes to make.
"""

import argparse
from collections.abc import Iterator
import contextlib
import json
import multiprocessing
import os
from pathlib import Path
import statistics
import subprocess
import time
from typing import Any

import ratios
import scheduler_lab as labs

from ghsched_nova.nova_seams import shared
import scheduler_cloud as clouds

_FORK = multiprocessing.get_context('fork')
_DROP = 'drop'
_EACH = 8          # guests of each rival


class Server:
    """A MariaDB of our own, on a socket.

    :ivar socket: its path.
    """

    def __init__(self, directory: str) -> None:
        data = f'{directory}/data'
        self.socket = f'{directory}/socket'
        if not os.path.exists(data):
            subprocess.run(
                ['mariadb-install-db', '--no-defaults', '--user=root',
                 '--auth-root-authentication-method=normal',
                 f'--datadir={data}'],
                check=True, stdout=subprocess.DEVNULL)
        self._process = subprocess.Popen(
            ['mariadbd', '--no-defaults', '--user=root', f'--datadir={data}',
             f'--socket={self.socket}', '--skip-networking',
             '--skip-log-bin', '--innodb-flush-log-at-trx-commit=0',
             '--innodb-buffer-pool-size=1G', '--max-connections=400'],
            stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not os.path.exists(self.socket):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError('mariadbd does not start')
            time.sleep(.2)

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        stat = Path(f'/proc/{self._process.pid}/stat').read_text()
        fields = stat.rpartition(')')[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Child:
    """A scheduler process; it answers each kind of request that it is sent.

    Forked, so that Nova is imported once.
    """

    def __init__(self, urls: dict[str, str], mode: str) -> None:
        self.mode = mode
        self._pipe, other = _FORK.Pipe()
        self._process = _FORK.Process(target=child, args=(mode, urls, other),
                                      daemon=True)
        self._process.start()
        other.close()

    def send(self, kind: str, keep: int = 0) -> None:
        """Schedule a guest, or several that stay for now."""
        self._pipe.send((kind, keep))

    def receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError as error:
            raise RuntimeError(
                f'the scheduler "{self.mode}" has ended') from error

    def stop(self) -> None:
        # Other children have this end of the pipe as well, so closing it
        # says nothing.
        self._process.terminate()
        self._process.join()


def child(mode: str, urls: dict[str, str], pipe: Any) -> None:
    lab = labs.Lab(urls, mode)
    pipe.send(mode)
    kept: list[str] = []
    while True:
        kind, keep = pipe.recv()
        if kind == _DROP:
            for instance in kept:
                lab.placement.delete(f'/allocations/{instance}')
            pipe.send(None)
        elif keep:
            found = [lab.once(kind, keep=True) for _ in range(keep)]
            kept += [one['instance'] for one in found if one['found']]
            pipe.send(found)
        else:
            pipe.send(lab.once(kind))


@contextlib.contextmanager
def children(urls: dict[str, str], modes: list[str]) -> Iterator[list[Child]]:
    found: list[Child] = []
    try:
        for mode in modes:
            # One after the other: each Placement writes traits when it
            # starts, and SQLite refuses a second writer.
            found.append(Child(urls, mode))
            found[-1].receive()
        yield found
    finally:
        for one in found:
            one.stop()


def measure(urls: dict[str, str], options: argparse.Namespace,
            server: Server | None) -> Iterator[dict[str, Any]]:
    """Rows of the table, kind by kind.

    All but the index get ``slow`` requests; they are warmed up with the first
    kind only if they get fewer.
    """
    modes, kinds = options.modes.split(','), options.kinds.split(',')
    repeat, slow = options.repeat, options.slow or options.repeat
    with children(urls, modes) as found:
        for kind in kinds:
            runs: dict[str, list[dict[str, Any]]] = {}
            for number in range(-1, repeat):   # the first is a warm-up
                for one in found:
                    if one.mode != 'index' and slow < repeat and (
                            number >= slow
                            or number < 0 and kind != kinds[0]):
                        continue
                    before = server.cpu() if server else 0.
                    one.send(kind)
                    run = one.receive()
                    run['cpu'] += (server.cpu() if server else 0.) - before
                    if number >= 0:
                        runs.setdefault(one.mode, []).append(run)
            yield from _rows(kind, runs)


def _rows(kind: str, runs: dict[str, list[dict[str, Any]]]
          ) -> Iterator[dict[str, Any]]:
    for mode, of_mode in runs.items():
        last = of_mode[-1]
        yield {
            'kind': kind, 'row': mode,
            'cpu': [run['cpu'] for run in of_mode],
            'wall': statistics.median(run['wall'] for run in of_mode),
            'requests': last['requests'],
            'rows': int(statistics.median(run['rows'] for run in of_mode)),
            'conflicts': sum(run['conflicts'] for run in of_mode),
            'rss': max(run['rss'] for run in of_mode),
            'found': sum(run['found'] for run in of_mode),
            'alternates': last['alternates'],
            'reason': last['reason']}


def rivals(urls: dict[str, str], kind: str, options: argparse.Namespace,
           server: Server | None) -> Iterator[dict[str, Any]]:
    """Several schedulers at the same time, each way by itself."""
    modes, count = options.modes.split(','), options.rivals
    for mode in modes:
        with children(urls, [mode] * count) as found:
            before = server.cpu() if server else 0.
            begin = time.perf_counter()
            for one in found:
                one.send(kind, _EACH)
            runs = [run for one in found for run in one.receive()]
            wall = time.perf_counter() - begin
            cpu = (server.cpu() if server else 0.) - before + sum(
                run['cpu'] for run in runs)
            conflicts = sum(run['conflicts'] for run in runs)
            for one in found:
                one.send(_DROP)
                one.receive()
            yield {'kind': kind, 'row': mode, 'rivals': count,
                   'boots': len(runs), 'conflicts': conflicts,
                   'per_boot': conflicts / len(runs), 'wall': wall,
                   'cpu': cpu / len(runs),
                   'found': sum(run['found'] for run in runs),
                   'hosts': len({run['host'] for run in runs})}


def show(row: dict[str, Any], base: list[float]) -> str:
    """Return a line of the table.

    :param base: processor times of the first mode.
    """
    if 'rivals' in row:
        return (f'{row["kind"]:8}{row["row"]:9}{row["rivals"]} schedulers: '
                f'{row["found"]} of {row["boots"]} boots, '
                f'{row["conflicts"]} conflicts ({row["per_boot"]:.2f} per '
                f'boot), {row["cpu"]:.2f} CPU s per boot, '
                f'{row["hosts"]} hosts, wall {row["wall"]:.1f} s')
    return ratios.format_row(
        f'{row["kind"]} {row["row"]}', row['cpu'], base,
        f'  wall {row["wall"]:.3f} s  requests {row["requests"]}  rows '
        f'{row["rows"]}  409 {row["conflicts"]}  {row["rss"]} MiB  found '
        f'{row["found"]}')


def _load() -> str:
    return (f'load {" ".join(f"{one:.2f}" for one in os.getloadavg())} on '
            f'{os.cpu_count()} CPUs')


def _build(urls: dict[str, str], hosts: int) -> None:
    """Build the cloud in a process of its own, which then frees its memory."""
    builder = _FORK.Process(target=clouds.build, args=(urls, hosts))
    builder.start()
    builder.join()
    if builder.exitcode:
        raise RuntimeError('the cloud cannot be made')


@contextlib.contextmanager
def cloud(options: argparse.Namespace, hosts: int
          ) -> Iterator[tuple[dict[str, str], Server | None]]:
    """Databases of a cloud, made unless they have been kept."""
    with contextlib.ExitStack() as stack:
        if options.keep:
            directory = f'{options.keep}/{options.database}-{hosts}'
            os.makedirs(directory, exist_ok=True)
        else:
            directory = stack.enter_context(
                labs.make_database_directory(options.database))
        server = None
        if options.database == 'mariadb':
            server = Server(directory)
            stack.callback(server.stop)
        urls = clouds.databases(options.database,
                                server.socket if server else directory)
        made = Path(directory) / 'made'
        if not made.exists():
            _build(urls, hosts)
            made.touch()
        yield urls, server


def run(options: argparse.Namespace, hosts: int, urls: dict[str, str],
        server: Server | None) -> None:
    def say(text: str) -> None:
        if not options.json:
            print(text, flush=True)
    say(f'\n{hosts} hosts, {options.database}; {_load()}; '
        + ratios.describe_conditions(options.repeat, 1))
    kinds, modes = options.kinds.split(','), options.modes.split(',')
    cpu: dict[tuple[str, str], list[float]] = {}
    found = measure(urls, options, server)
    if options.rivals:
        found = (row for some in (found, *(
            rivals(urls, kind, options, server) for kind in kinds
            if not kind.startswith('no_'))) for row in some)
    for row in found:
        if options.json:
            print(json.dumps({'hosts': hosts, 'load': os.getloadavg()[0],
                              'database': options.database, **row}),
                  flush=True)
        if 'rivals' not in row:
            cpu[row['kind'], row['row']] = row['cpu']
        say(show(row, cpu[row['kind'], modes[0]]))
    for kind, mode in cpu:
        plain = kind.replace('auto', 'plain')
        if plain != kind and (plain, mode) in cpu:
            say(ratios.format_row(f'{kind} to {plain}, {mode}',
                                  cpu[kind, mode], cpu[plain, mode]))
    say(_load())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--hosts', type=int, nargs='+', default=[100])
    parser.add_argument('--database', choices=('sqlite', 'mariadb'),
                        default='sqlite')
    parser.add_argument('--kinds', default=','.join(labs.KINDS))
    parser.add_argument('--modes', default=','.join(labs.MODES))
    parser.add_argument('--repeat', type=int, default=5)
    parser.add_argument('--slow', type=int, default=0,
                        help='requests of stock and whole, when they are to '
                        'get fewer')
    parser.add_argument('--keep', metavar='DIRECTORY',
                        help='where databases stay, to be used again')
    parser.add_argument('--rivals', type=int, default=0,
                        help='schedulers at the same time')
    parser.add_argument('--json', action='store_true',
                        help='a JSON document for each row')
    options = parser.parse_args()
    for asked, known in ((options.kinds, labs.KINDS),
                         (options.modes, {*labs.MODES, *labs.WEIGHERS,
                                          labs.STATIC, labs.INDEX_EACH,
                                          labs.INDEX_FIRST})):
        unknown = {one.partition('@')[0]
                   for one in asked.split(',')} - set(known)
        if unknown:
            parser.error(f'not known: {", ".join(sorted(unknown))}')
    shared.config()
    labs.objects.register_all()
    for hosts in options.hosts:
        with cloud(options, hosts) as (urls, server):
            run(options, hosts, urls, server)
