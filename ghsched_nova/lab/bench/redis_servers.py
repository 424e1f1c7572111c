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

"""redis servers, as plain processes or in containers."""

from collections.abc import Callable
from dataclasses import dataclass
import os
from pathlib import Path
import re

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench.parsers import redis
from ghsched_nova.lab.bench.scenario import Bench

#: Nothing is written to a disk, which would be measured as well.
NO_DISK = ('--save', '', '--appendonly', 'no')

_ADDRESSES = ('{{range .NetworkSettings.Networks}}{{.IPAddress}}\n{{end}}'
              '{{.NetworkSettings.IPAddress}}')
_ADDRESS = re.compile(r'[0-9]+(?:\.[0-9]+){3}|[0-9a-f:]*:[0-9a-f:]+')


@dataclass(frozen=True)
class Server:
    """A running redis server."""

    number: int
    address: str
    port: int


def start(bench: Bench, number: int) -> Server:
    """Start the server with a number (from 1 on) and wait for it.

    :raises BenchError: when it does not answer, or ends.
    """
    backend = bench.values.text('backend')
    if backend == 'process':
        server, running = _process(bench, number)
    else:
        server, running = _container(bench, number, backend), None

    def answers() -> bool:
        if running:
            _check_alive(number, *running)
        return pings(bench, server)
    machine.wait_until(answers, 20, f'redis-server {number} does not answer')
    return server


def _check_alive(number: int, process: machine.Process, log: Path) -> None:
    if not process.alive():
        said = log.read_text(errors='replace').splitlines()
        raise errors.BenchError(
            f'redis-server {number} has ended: '
            f'{said[-1].strip() if said else "it said nothing"}')


def pin(pins: str, number: int) -> str:
    """Return the CPUs of a server from a list like ``2;3;4-5``, in turn."""
    lists = pins.split(';')
    return lists[(number - 1) % len(lists)]


def check_pins(pins: str) -> str:
    """Return the error in a list of pins; empty if there is none."""
    if re.fullmatch('|[0-9,-]+(;[0-9,-]+)*', pins):
        return ''
    return f'pin: {pins!r} is not of the form 2;3;4-5'


def _process(bench: Bench, number: int
             ) -> tuple[Server, tuple[machine.Process, Path]]:
    """Return a server, and what runs with the file of its output."""
    values = bench.values
    server = Server(number, values.text('address'),
                    values.integer('port') + number - 1)
    if pings(bench, server):
        raise errors.BenchError(
            f'a redis-server that is not ours answers on port {server.port}; '
            'choose others with --port')
    cpus = pin(values.text('pin'), number)
    running = bench.start([
        *(['taskset', '-c', cpus] if cpus else []),
        'redis-server', '--port', str(server.port), '--bind', server.address,
        '--protected-mode', 'no', '--dir', str(bench.work), *NO_DISK])
    return server, running


def _container(bench: Bench, number: int, engine: str) -> Server:
    values, name = bench.values, f'ghsched-bench-{os.getpid()}-{number}'
    cpus = pin(values.text('pin'), number)
    bench.undo.callback(bench.machine.run, [engine, 'rm', '-f', name], 60)
    bench.machine.check([
        engine, 'run', '-d', '--name', name,
        '--cpus', values.text('container-cpus'),
        '--memory', values.text('container-memory'),
        *(['--cpuset-cpus', cpus] if cpus else []), values.text('image'),
        'redis-server', '--protected-mode', 'no', *NO_DISK], 300)
    found = bench.machine.check([engine, 'inspect', '-f', _ADDRESSES, name])
    return Server(number, address(found), 6379)


def address(inspected: str) -> str:
    """Return the first address of a container.

    :raises BenchError: when it has none.
    """
    for line in inspected.split():
        if _ADDRESS.fullmatch(line):
            return line
    raise errors.BenchError('the container has no address of its own; does '
                            'it use the network of the host?')


def _cli(bench: Bench, server: Server, *command: str) -> machine.Output:
    return bench.machine.run([
        'redis-cli', '-h', server.address, '-p', str(server.port), *command],
        10)


def pings(bench: Bench, server: Server) -> bool:
    """Whether a server answers."""
    return _cli(bench, server, 'PING').stdout.strip() == 'PONG'


def called(bench: Bench, server: Server, command: str) -> int:
    """Return the number of calls of a command that a server has counted."""
    said = _cli(bench, server, 'INFO', 'commandstats').stdout
    return redis.calls(said).get(command, 0)


def counter(bench: Bench, server: Server, command: str
            ) -> Callable[[], int]:
    """Return a function that counts the calls of a command from now on."""
    before = called(bench, server, command)
    return lambda: called(bench, server, command) - before
