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

"""redis and its client on one NUMA node, on two, and where the kernel likes.

What numa-icon shows: redis-server and redis-benchmark over loopback, with one
request at a time and with many on their way. The best that a scheduler of NUMA
nodes can reach is the best bind; what it can gain is the distance to that.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import functools

from ghsched_nova.lab.bench import machine as machines
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.parsers import redis
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench.scenarios import numa_locality
from ghsched_nova.lab.bench import stats

_THROUGHPUT = 'throughput'
_FREE = 'not bound'
_COMMANDS = ('set', 'get')


@dataclass(frozen=True)
class Place:
    """Nodes of the server and of the client; None leaves it to the kernel."""

    server: int | None = None
    client: int | None = None

    @property
    def name(self) -> str:
        if self.server is None:
            return _FREE
        return (f'both on node {self.server}' if self.server == self.client
                else f'nodes {self.server} and {self.client}')


def places(nodes: Sequence[int]) -> tuple[Place, ...]:
    """Not bound, each node alone, and two nodes."""
    return (Place(), *(Place(node, node) for node in nodes),
            Place(nodes[0], nodes[1]))


def bound(argv: Sequence[str], node: int | None) -> list[str]:
    """Return a command line on a node, with its memory."""
    return [*argv] if node is None else [
        'numactl', f'--cpunodebind={node}', f'--membind={node}', *argv]


def _needs(_values: Values) -> tuple[Need, ...]:
    return (needs.numa_nodes(2), *needs.programs(
        'numactl', 'redis-server', 'redis-benchmark', 'redis-cli'))


def _run(bench: Bench) -> Measured:
    """Return every place in turn, so that drift meets them all."""
    nodes = [node for node in numa_locality.with_cpus(bench.machine)
             if node in numa_locality.with_memory(bench.machine)]
    todo = places(nodes)
    servers = {place.server: _server(bench, number, place.server)
               for number, place in enumerate(todo)
               if place.server == place.client}
    found = []
    for depth in (1, bench.values.integer('pipeline')):
        rounds = bench.repeat(
            f'{depth} requests at a time',
            functools.partial(_round, bench, servers, todo, depth))
        found += [
            Series(_THROUGHPUT, 'requests/s', 'higher',
                   tuple(taken[place][command] for taken in rounds),
                   (('place', place.name), ('command', command),
                    ('at a time', str(depth))),
                   bench.values.integer('warm-up'))
            for place in todo for command in _COMMANDS]
    return Measured(tuple(found), findings(found))


def _round(bench: Bench, servers: Mapping[int | None, int],
           todo: Sequence[Place], depth: int
           ) -> dict[Place, dict[str, float]]:
    return {place: _requests(bench, servers[place.server], place.client,
                             depth) for place in todo}


def _server(bench: Bench, number: int, node: int | None) -> int:
    """Start a server; returns its port when it answers."""
    port = bench.values.integer('port') + number
    bench.start(bound([
        'redis-server', '--port', str(port), '--bind', '127.0.0.1',
        '--dir', str(bench.work), '--save', '', '--appendonly', 'no'], node))

    def answers() -> bool:
        return bench.machine.run(['redis-cli', '-p', str(port), 'PING'],
                                 10).stdout.strip() == 'PONG'
    machines.wait_until(answers, 20, f'no redis-server on port {port}')
    return port


def _requests(bench: Bench, port: int, node: int | None,
              depth: int) -> dict[str, float]:
    """Return requests per second, by command."""
    output = bench.machine.check(bound([
        'redis-benchmark', '-p', str(port), '-t', ','.join(_COMMANDS),
        '-n', str(bench.values.integer('requests')), '-P', str(depth)], node),
        bench.values.number('timeout'))
    return {one.name.lower(): one.throughput for one in redis.parse(output)}


def findings(series: Sequence[Series]) -> tuple[Finding, ...]:
    """Return the gain of the best bind of client and server over every other
    placement.
    """
    medians: dict[tuple[str, str], dict[str, float]] = {}
    for one in series:
        of = dict(one.conditions)
        medians.setdefault((of['command'], of['at a time']), {})[
            of['place']] = stats.quantile(one.samples, 0.5)
    found = []
    for (command, depth), by_place in medians.items():
        name, most = max(((name, value) for name, value in by_place.items()
                          if name.startswith('both')),
                         key=lambda item: item[1])
        for other, value in by_place.items():
            if not other.startswith('both'):
                gain = most / value - 1
                found.append(Finding(
                    f'{command}, {depth} at a time, {other}',
                    f'{gain:+.1%} by {name}', gain))
    return tuple(found)


def _verify(_values: Values, measured: Measured) -> tuple[str, ...]:
    return tuple(f'{series.title}: a sample is not above 0'
                 for series in measured.series if min(series.samples) <= 0)


SCENARIO = Scenario(
    name='numa-icon',
    title='redis and its client on one NUMA node, on two, and not bound',
    parameters=(
        *common(runs=10, warm_up=1),
        Parameter('requests', 1000000, 'of a run', minimum=1),
        Parameter('pipeline', 16, 'requests at a time, beside 1', minimum=2),
        Parameter('port', 6379, 'of the first server', minimum=1),
        Parameter('timeout', 600.0, 'of a run in seconds', minimum=1)),
    tools=lambda _values: ('redis-server', 'redis-benchmark', 'numactl'),
    needs=_needs, run=_run, verify=_verify)
