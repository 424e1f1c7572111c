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

"""The observed redis server and the memory streams, as processes or guests."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from pathlib import Path
from typing import Protocol

from ghsched_nova.lab.bench import bandwidth_groups
from ghsched_nova.lab.bench import guest
from ghsched_nova.lab.bench.machine import Process
from ghsched_nova.lab.bench.machine import wait_until
from ghsched_nova.lab.bench import redis_servers
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench.scenarios import loaded_latency

#: Seconds in which the streams end and print what they moved.
_STOP_TIMEOUT_S = 30.0

#: Seconds after which a program in a guest must have answered.
_GUEST_TIMEOUT_S = 120.0

#: MiB of a guest's memory besides that of its streams.
_GUEST_MEMORY_MIB = 512


class Loads(Protocol):
    """The observed server and the streams beside it."""

    def start_streams(self) -> None:
        """Start the streams."""

    def stop_streams(self) -> float:
        """Stop the streams, and return the MB/s that they moved."""

    def list_threads(self) -> dict[str, list[int]]:
        """Return the thread IDs of the server and of the streams, by the name
        of their control group.
        """

    def run_benchmark(self) -> str:
        """Return the output of redis-benchmark against the server."""

    def stop(self) -> None:
        """End the server."""


def benchmark_command(values: Values, port: int, test: str = 'get'
                      ) -> list[str]:
    """Return the command line of redis-benchmark on the server's machine."""
    return ['redis-benchmark', '-p', str(port),
            '-c', str(values.integer('connections')),
            '-d', str(values.integer('value-size')),
            '-n', str(values.integer('requests')),
            '-r', str(values.integer('keyspace')), '-t', test]


def streams_command(values: Values, program: str, cpus: Sequence[int]
                    ) -> list[str]:
    """Return the command line of the streams, one on each CPU.

    A chain of pointers, which the program follows too, is on the first CPU.
    """
    return [program, str(values.integer('memory')),
            str(values.number('timeout')), '0', str(values.integer('writes')),
            str(cpus[0]), *map(str, cpus)]


def find_child_threads(bench: Bench, process: int) -> list[int]:
    """Return the thread IDs of a process."""
    return sorted(map(int, bench.machine.names(f'proc/{process}/task')))


class Processes:
    """Server and streams as processes of the host.

    :param program: path of the compiled streams.
    :param cpus: CPUs of the node; the first is the server's.
    """

    def __init__(self, bench: Bench, program: Path, cpus: Sequence[int]
                 ) -> None:
        self._bench = bench
        self._program = program
        self._cpus = cpus
        self._port = bench.values.integer('port')
        self._server, _log = bench.start([
            'taskset', '-c', str(cpus[0]), 'redis-server', '--port',
            str(self._port), '--bind', '127.0.0.1', '--dir', str(bench.work),
            *redis_servers.NO_DISK])
        self._streams: tuple[Process, Path] | None = None
        server = redis_servers.Server(1, '127.0.0.1', self._port)
        wait_until(lambda: redis_servers.pings(bench, server), 20,
                   'redis-server does not answer')
        bench.machine.check(benchmark_command(bench.values, self._port, 'set'),
                            bench.values.number('timeout'))

    def start_streams(self) -> None:
        self._streams = self._bench.start(streams_command(
            self._bench.values, str(self._program), self._cpus[1:]))
        # A thread each, and that of the chain.
        wait_until(lambda: len(self._list_streams()) == len(self._cpus),
                   _STOP_TIMEOUT_S, 'the streams did not start')

    def stop_streams(self) -> float:
        assert self._streams is not None  # noqa: S101
        process, log = self._streams
        process.stop()
        self._streams = None
        return loaded_latency.parse(log.read_text())[1]

    def list_threads(self) -> dict[str, list[int]]:
        return {bandwidth_groups.SERVER: find_child_threads(
            self._bench, self._server.pid),
            bandwidth_groups.STREAMS: self._list_streams()}

    def run_benchmark(self) -> str:
        return self._bench.machine.check(
            benchmark_command(self._bench.values, self._port),
            self._bench.values.number('timeout'))

    def stop(self) -> None:
        self._server.stop()

    def _list_streams(self) -> list[int]:
        return (find_child_threads(self._bench, self._streams[0].pid)
                if self._streams else [])


class Guests:
    """Server and streams in a guest each.

    :param program: path of the compiled streams.
    :param cpus: CPUs of the node; the first are the server's: two where that
        leaves two for the streams, else one.
    """

    def __init__(self, bench: Bench, program: Path, cpus: Sequence[int]
                 ) -> None:
        self._bench = bench
        image = Path(bench.values.text('guest-image'))
        own = 2 if len(cpus) > 3 else 1
        number = len(cpus) - own
        redis_programs = [bench.machine.which(name) for name in (
            'redis-server', 'redis-benchmark', 'redis-cli')]
        self._server = self._boot(
            'server', image, redis_programs, _GUEST_MEMORY_MIB, cpus[:own])
        self._streams = self._boot(
            'streams', image, [str(program)], _GUEST_MEMORY_MIB
            + (number + 1) * bench.values.integer('memory'), cpus[own:])
        self._command = ' '.join(streams_command(
            bench.values, program.name, range(number)))
        self._server.run(
            'redis-server --save "" --appendonly no --daemonize yes > /log; '
            'until redis-cli ping > /dev/null; do sleep .1; done',
            _GUEST_TIMEOUT_S)
        self._run_benchmark('set')

    def _boot(self, name: str, image: Path, programs: Sequence[str],
              memory: int, cpus: Sequence[int]) -> guest.ConsoleGuest:
        booted = guest.ConsoleGuest(self._bench.machine,
                                    self._bench.work / name,
                                    image, programs, memory, len(cpus),
                                    self._bench.values.text('accelerator'))
        self._bench.undo.callback(booted.stop)
        self._bench.machine.check(['taskset', '-a', '-c', '-p', ','.join(
            map(str, cpus)), str(booted.pid)])
        return booted

    def start_streams(self) -> None:
        self._streams.run(f'{self._command} > /out 2>&1 &', _GUEST_TIMEOUT_S)

    def stop_streams(self) -> float:
        printed = self._streams.run('kill $!; wait $!; cat /out',
                                    _GUEST_TIMEOUT_S)
        return loaded_latency.parse(printed.split('\n', 1)[-1].replace(
            '\r', ''))[1]

    def list_threads(self) -> dict[str, list[int]]:
        return {name: find_child_threads(self._bench, booted.pid)
                for name, booted in (
                    (bandwidth_groups.SERVER, self._server),
                    (bandwidth_groups.STREAMS, self._streams))}

    def run_benchmark(self) -> str:
        return self._run_benchmark('get')

    def stop(self) -> None:
        self._server.stop()
        self._streams.stop()

    def _run_benchmark(self, test: str) -> str:
        return self._server.run(
            ' '.join(benchmark_command(self._bench.values, 6379, test)),
            self._bench.values.number('timeout'))


@contextlib.contextmanager
def hold_streams(loads: Loads) -> Iterator[list[float]]:
    """Within this context, the streams run; then their MB/s are in the list.
    """
    moved: list[float] = []
    loads.start_streams()
    try:
        yield moved
    finally:
        moved.append(loads.stop_streams())
