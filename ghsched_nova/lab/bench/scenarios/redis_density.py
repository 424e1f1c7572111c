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

"""``redis-density``: how many redis servers until the observed one suffers."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
import functools
import time

from ghsched_nova.lab.bench import clients
from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.parsers import redis
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import redis_servers
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values

_SERVED = 'requests served'
_OTHERS = 'load of the others'
_IDLEST = 'least load of another'

#: Metrics that tell whether a run is right.
CHECKS = (_SERVED, _IDLEST)

#: Runs without which nothing is known of their spread.
_FEWEST = 3

#: Commands that redis-benchmark has a test for and redis counts by that name.
_COMMANDS = ('get', 'set', 'incr', 'lpush', 'rpush', 'lpop', 'rpop', 'sadd',
             'hset', 'spop')


@dataclass(frozen=True)
class Run:
    """Figures of one run of the observed client, and of the servers meanwhile.

    :param served: requests that the observed server counted meanwhile.
    :param others: the same of each other server, per second.
    """

    benchmark: redis.Benchmark
    served: int
    others: tuple[float, ...]


def _needs(values: Values) -> tuple[Need, ...]:
    backend = values.text('backend')
    found = list(needs.programs('redis-benchmark', 'redis-cli'))
    if backend == 'process':
        found.append(needs.program('redis-server'))
    else:
        found.append(needs.program(backend))
        found.append(needs.answers(f'{backend} works', backend, 'ps'))
    if values.text('pin') and backend == 'process':
        found.append(needs.program('taskset'))
    return (*found, *client_needs(values))


def client_needs(values: Values) -> list[Need]:
    """Return the needs of load generators on other machines."""
    observed, others = _clients(values)
    remote = [client for client in dict.fromkeys([observed, *others])
              if client.target]
    return [*([needs.program('ssh')] if remote else []), *(
        needs.answers(f'client {number} runs redis-benchmark over ssh',
                      *client.argv(['redis-benchmark', '--version'], 30))
        for number, client in enumerate(remote, 1))]


def _tools(values: Values) -> tuple[str, ...]:
    """Return the programs that a run needs here; a container brings its own
    redis.
    """
    backend = values.text('backend')
    return ('redis-benchmark',
            'redis-server' if backend == 'process' else backend)


def _clients(values: Values
             ) -> tuple[clients.Client, tuple[clients.Client, ...]]:
    """Return the client of the observed server, and those of the others."""
    options = values.text('ssh-options')
    observed = clients.parse(values.text('observed-client'), options)
    if len(observed) != 1:
        raise errors.BenchError('observed-client: only one can observe')
    return observed[0], clients.parse(values.text('clients'), options)


def _set_up(bench: Bench) -> None:
    problem = redis_servers.check_pins(bench.values.text('pin'))
    if problem:
        raise errors.BenchError(problem)


def command_line(values: Values, server: redis_servers.Server) -> list[str]:
    """Return the command line of the load."""
    return ['redis-benchmark', '-h', server.address, '-p', str(server.port),
            '-c', str(values.integer('connections')),
            '-d', str(values.integer('size')),
            '-n', str(values.integer('requests')),
            '-r', str(values.integer('keyspace')),
            '-t', values.text('command'),
            '--threads', str(values.integer('threads'))]


def _run(bench: Bench) -> Measured:
    values = bench.values
    servers: list[redis_servers.Server] = []

    def grow(count: int) -> None:
        while len(servers) < count:
            servers.append(redis_servers.start(bench, len(servers) + 1))
            fill(bench, servers[-1])
    found = density.climb(
        density.counts(values.integer('up-to'), values.integer('step')),
        grow, lambda _count: at(bench, servers), latencies,
        values.number('limit'), values.flag('go-on'))
    return Measured(series_of(bench, found.taken), findings(found, values))


def fill(bench: Bench, server: redis_servers.Server) -> None:
    """Write keys to a server, if the parameters ask for it."""
    if bench.values.flag('fill'):
        bench.say(f'filling server {server.number}')
        observed, _others = _clients(bench.values)
        command = command_line(bench.values, server)
        command[command.index('-t') + 1] = 'set'
        seconds = bench.values.number('timeout')
        bench.machine.check(observed.argv(command, seconds), seconds)


def at(bench: Bench, servers: Sequence[redis_servers.Server]) -> list[Run]:
    """Return the runs at one N, while all the other servers are under load."""
    _observed, others = _clients(bench.values)
    loads = []
    for place, server in enumerate(servers[1:]):
        client = others[place % len(others)]
        loads.append(bench.start(client.argv(
            [*command_line(bench.values, server), '-l'], None))[0])
    try:
        _wait_for_load(bench, servers[1:])
        return bench.repeat(f'N = {len(servers)}',
                            lambda: _observe(bench, servers))
    finally:
        for load in loads:
            load.stop()


def _wait_for_load(bench: Bench,
                   others: Sequence[redis_servers.Server]) -> None:
    command = bench.values.text('command')
    for server in others:
        served = redis_servers.counter(bench, server, command)
        machine.wait_until(functools.partial(_above_zero, served), 60,
                           f'server {server.number} gets no load')


def _above_zero(count: Callable[[], int]) -> bool:
    return count() > 0


def _observe(bench: Bench, servers: Sequence[redis_servers.Server]) -> Run:
    command = bench.values.text('command')
    served, *others = [redis_servers.counter(bench, server, command)
                       for server in servers]
    begin = time.monotonic()
    observed, _others = _clients(bench.values)
    timeout = bench.values.number('timeout')
    output = bench.machine.check(observed.argv(
        command_line(bench.values, servers[0]), timeout), timeout)
    seconds = time.monotonic() - begin
    return Run(redis.parse(output)[0], served(),
               tuple(other() / seconds for other in others))


# -- what it means ------------------------------------------------------------


def latencies(runs: Sequence[Run]) -> tuple[float, ...]:
    """p99 of each run in ms."""
    return tuple(run.benchmark.p99 for run in runs)


def series_of(bench: Bench, ramp: dict[int, list[Run]]
              ) -> tuple[Series, ...]:
    """Latency, throughput and what servers counted, by N."""
    warm_up = bench.values.integer('warm-up')

    def series(metric: str, unit: str, better: str, n: int,
               samples: Sequence[float]) -> Series:
        return Series(metric, unit, better, tuple(samples),
                      (('N', str(n)),), warm_up)

    found = []
    for n, runs in ramp.items():
        marks = [run.benchmark for run in runs]
        found += [
            series('p99 latency', 'ms', 'lower', n, [m.p99 for m in marks]),
            series('p50 latency', 'ms', 'lower', n, [m.p50 for m in marks]),
            series('throughput', 'requests/s', 'higher', n,
                   [m.throughput for m in marks]),
            series(_SERVED, 'requests', 'neither', n,
                   [run.served for run in runs])]
        if n > 1:
            # One sample a run: the servers of a run are not independent.
            found += [
                series(_OTHERS, 'requests/s', 'neither', n,
                       [sum(run.others) for run in runs]),
                series(_IDLEST, 'requests/s', 'neither', n,
                       [min(run.others) for run in runs])]
    return tuple(found)


def findings(climbed: density.Climb[list[Run]], values: Values
             ) -> tuple[Finding, ...]:
    """Return the density, its rule, and the latency at each N."""
    limit, judged = values.number('limit'), climbed.judged
    alone = density.Point(1, latencies(climbed.taken[1]))
    noise = density.noise(alone)
    found = [
        Finding('density', climbed.text, judged.last_passing, 'instances'),
        Finding('rule', f'passes: median p99 below {limit:g} x '
                        f'{judged.baseline:.3f} ms, the value at N = 1',
                judged.baseline * limit, 'ms')]
    found += [Finding(f'p99 at N = {n}', f'{ratio:.2f} x that at N = 1',
                      ratio, '') for n, ratio in judged.ratios if n > 1]
    if len(alone.p99) < _FEWEST:
        found.append(Finding(
            'noise', f'fewer than {_FEWEST} runs at N = 1 do not tell how far '
                     'they lie apart: take more before you trust the density'
        ))
    elif noise > limit - 1:
        found.append(Finding(
            'noise', f'the runs at N = 1 differ by {noise:.0%} already, more '
                     f'than the limit of {limit - 1:.0%}: take more or '
                     'longer runs before you trust the density', noise))
    return tuple(found)


def verify(values: Values, measured: Measured) -> tuple[str, ...]:
    """redis' own counts are the second source.

    A connection may send one request more than it was asked for.
    """
    asked = values.integer('requests')
    most = asked + values.integer('connections')
    problems = []
    for series in measured.series:
        if series.metric == _SERVED and not all(
                asked <= served <= most for served in series.samples):
            problems.append(
                f'{series.title}: redis-benchmark was asked for {asked} '
                f'requests, redis counted {min(series.samples):.0f} to '
                f'{max(series.samples):.0f}')
        if series.metric == _IDLEST and min(series.samples) <= 0:
            problems.append(f'{series.title}: a server had no load')
    return tuple(problems)


#: Parameters of the load and of the machines that make it.
LOAD = (
    Parameter('clients', 'local', 'of the other instances in turn, e.g. '
                                  'ssh:one,ssh:root@two', private=True),
    Parameter('observed-client', 'local', 'of the observed instance',
              private=True),
    Parameter('ssh-options', '', 'e.g. "-i KEY -p 2222"', private=True),
    Parameter('connections', 40, 'of a load generator', minimum=1),
    Parameter('size', 3, 'of a value in bytes', minimum=1),
    Parameter('requests', 2000000, 'of a run', minimum=1),
    Parameter('keyspace', 10000000, 'number of random keys', minimum=1),
    Parameter('command', 'get', 'that is sent', _COMMANDS),
    Parameter('threads', 50, 'of a load generator', minimum=1),
    Parameter('fill', False, 'write keys first; without, a get finds '
                             'nothing'),
    Parameter('timeout', 600.0, 'of a run in seconds', minimum=1))

SCENARIO = Scenario(
    name='redis-density',
    title='instances of redis until the observed one has a p99 latency above '
          'the limit',
    parameters=(
        Parameter('up-to', 64, 'instances at most', minimum=1),
        Parameter('step', 1, 'instances more each time', minimum=1),
        Parameter('limit', 1.1, 'p99 over p99 at N = 1 that fails',
                  minimum=1),
        Parameter('go-on', False, 'beyond the first N that fails'),
        # As many as can show a difference in the four metrics of each N.
        *common(runs=8, warm_up=1),
        Parameter('backend', 'process', 'what an instance is',
                  ('process', 'docker', 'podman')),
        Parameter('image', 'redis', 'of a container'),
        Parameter('container-cpus', '2', 'of a container'),
        Parameter('container-memory', '8g', 'of a container'),
        Parameter('pin', '', 'CPUs of the instances in turn, e.g. 2;3;4-5'),
        Parameter('address', '127.0.0.1', 'of the processes', private=True),
        Parameter('port', 6379, 'of the first process', minimum=1),
        *LOAD),
    tools=_tools,
    needs=_needs, set_up=_set_up, run=_run, verify=verify,
    checks=CHECKS)
