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

"""``cloud``: how many guests of a flavor a running cloud takes.

redis is served in guests and asked from elsewhere; stress-ng and fio run in
the guests, which print what they measured. See
:mod:`ghsched_nova.lab.bench.rounds`.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
from dataclasses import replace
import functools
import importlib
import importlib.util
import shlex
from typing import Any

from ghsched_nova.lab.bench import clients
from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import redis_servers
from ghsched_nova.lab.bench import rounds
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench.scenarios import redis_density
from ghsched_placement.features.load import load

#: Seconds between two looks at a guest.
_LOOK = 2.0
#: Guests are new each time, and have addresses that others had before.
_NEW_HOST = ('-o', 'StrictHostKeyChecking=no',
             '-o', 'UserKnownHostsFile=/dev/null', '-o', 'LogLevel=ERROR')


@dataclass(frozen=True)
class _Seat:
    """A guest, and how to read what its script prints."""

    guest: Any
    output: Callable[[], str]

    def check(self) -> None:
        problem = rounds.problem(self.output())
        if problem:
            raise errors.BenchError(problem)


@contextlib.contextmanager
def hide_addresses(addresses: Sequence[str]) -> Iterator[None]:
    """Keep addresses of guests out of what a report says."""
    try:
        yield
    except errors.BenchError as error:
        text = str(error)
        for address in sorted(addresses, key=len, reverse=True):
            text = text.replace(address, '(a guest)')
        raise errors.BenchError(text) from None


def wait_for_ssh(bench: Bench, address: str) -> clients.Client:
    """Wait until a guest answers by ssh, and return how to reach it."""
    values = bench.values
    client = clients.Client(
        f'{values.text("ssh-user")}@{address}',
        (*shlex.split(values.text('ssh-options')), *_NEW_HOST))
    _wait(bench, lambda: not bench.machine.run(
        client.argv(['true'], 20), 60).status, 'ssh of a guest')
    return client


def _wait(bench: Bench, condition: Callable[[], bool], what: str) -> None:
    machine.wait_until(condition, bench.values.number('boot-timeout'),
                       f'{what} does not answer', _LOOK)


class _Flavor:
    """The guests of one flavor; they go when it is closed."""

    def __init__(self, bench: Bench, cloud: Any, flavor: str,
                 stack: contextlib.ExitStack) -> None:
        self._bench = bench
        self._cloud = cloud
        self._flavor = flavor
        self._stack = stack
        self._load = _load(bench.values)
        self._seats: list[_Seat] = []
        self.addresses: list[str] = []
        self.series: list[Series] = []

    def grow(self, count: int) -> None:
        """Boot guests until there are as many as asked for.

        :raises FullError: when there is no room for them.
        """
        values = self._bench.values
        while len(self._seats) < count:
            self._bench.say(f'{self._flavor}: guest {len(self._seats) + 1}')
            seat = self._boot(self._flavor, _script(values))
            self._seats.append(seat)
            if self._load is None:
                server = self._server(seat, len(self._seats))
                _wait(self._bench, functools.partial(
                    _answers, self._bench, seat, server), 'redis in a guest')
                redis_density.fill(self._bench, server)

    def take(self, count: int) -> list[rounds.Figures]:
        """Return the runs of the observed guest at this N."""
        if self._load is not None:
            found = _rounds(self._bench, self._seats, self._load)
            self.series += _series(self._bench.values, self._load.title,
                                   found, ('N', str(count)))
        else:
            found = self._served(count)
        self.series += _bandwidth(self._cloud, self._seats, count)
        return found

    def _served(self, count: int) -> list[rounds.Figures]:
        runs = redis_density.at(self._bench, self._servers())
        self.series += redis_density.series_of(self._bench, {count: runs})
        found = [rounds.Figures(run.benchmark.p99, run.benchmark.throughput)
                 for run in runs]
        if count == 1:
            self.series += _path(self._bench.values, 'guest-host', found)
        return found

    def guest_guest(self, flavor: str) -> None:
        """Ask the first guest from another one.

        :raises FullError: when there is no room for that.
        """
        argv = redis_density.command_line(self._bench.values,
                                          self._servers()[0])
        seat = self._boot(flavor, rounds.repeated(argv))
        found = _rounds(self._bench, [seat], rounds.client(argv))
        self.series += _path(self._bench.values, 'guest-guest', found)

    def _servers(self) -> list[redis_servers.Server]:
        return [self._server(seat, number)
                for number, seat in enumerate(self._seats, 1)]

    def _server(self, seat: _Seat, number: int) -> redis_servers.Server:
        return redis_servers.Server(number, seat.guest.address,
                                    self._bench.values.integer('port'))

    def _boot(self, flavor: str, script: str) -> _Seat:
        """Return a guest that runs a script, by its user data or over ssh."""
        values = self._bench.values
        console = values.text('access') == 'console'
        guest = self._cloud.boot(flavor,
                                 rounds.CONSOLE + script if console else '')
        self._stack.callback(self._cloud.delete, guest)
        self.addresses.append(guest.address)
        if console:
            return _Seat(guest, lambda: str(self._cloud.console(guest)))
        client = wait_for_ssh(self._bench, guest.address)
        _running, log = self._bench.start(
            client.argv(['sh', '-c', script], None))
        return _Seat(guest, lambda: log.read_text(errors='replace'))


def _answers(bench: Bench, seat: _Seat, server: redis_servers.Server
             ) -> bool:
    if redis_servers.pings(bench, server):
        return True
    seat.check()
    return False


def _rounds(bench: Bench, seats: Sequence[_Seat], load_of: rounds.Load
            ) -> list[rounds.Figures]:
    """Return the runs of the first guest, once all guests have ended one."""
    values = bench.values
    runs, warm_up = values.integer('runs'), values.integer('warm-up')

    def begun() -> bool:
        for seat in seats:
            seat.check()
        return all(rounds.last(seat.output()) for seat in seats)
    machine.wait_until(begun, values.number('boot-timeout'),
                       'a guest has no run of its load', _LOOK)
    since = rounds.last(seats[0].output())
    kept: list[rounds.Round] = []

    def enough() -> bool:
        kept[:] = rounds.fresh(rounds.rounds(seats[0].output()), since,
                               warm_up, runs) or ()
        return bool(kept)
    machine.wait_until(
        enough, values.number('timeout') * (runs + warm_up + 2),
        'the observed guest has too few runs', _LOOK)
    return [load_of.read(one.text) for one in kept]


def _load(values: Values) -> rounds.Load | None:
    """Return the load that guests repeat; None if clients outside of them make
    the load.
    """
    if values.text('workload') == 'redis':
        return None
    return rounds.inside(values.text('workload'), values.integer('seconds'),
                         values.text('stressor'))


def redis_command(port: int) -> tuple[str, ...]:
    """Return the command line of a server in a guest."""
    return ('redis-server', '--port', str(port), '--protected-mode', 'no',
            *redis_servers.NO_DISK)


def _script(values: Values) -> str:
    load_of = _load(values)
    argv = rounds.contained(
        values.text('container'), values.text('image-of-container'),
        load_of.argv if load_of else redis_command(values.integer('port')))
    return rounds.repeated(argv) if load_of else rounds.served(argv)


# -- a run --------------------------------------------------------------------


def connect_cloud(values: Values) -> Any:
    """Return the cloud that parameters name."""
    # openstacksdk is no need of the other scenarios.
    module = importlib.import_module('ghsched_nova.lab.bench.cloud')
    return module.connect(values.text('os-cloud'), module.Order(
        image=values.text('image'), network=values.text('network'),
        key=values.text('key'),
        security_group=values.text('security-group'),
        availability_zone=values.text('availability-zone'),
        seconds=values.number('boot-timeout')))


def _run(bench: Bench) -> Measured:
    values = bench.values
    cloud = connect_cloud(values)
    series = list(_host_host(bench))
    findings, skipped = [], []
    for flavor in values.text('flavors').split(','):
        with contextlib.ExitStack() as stack:
            part = _Flavor(bench, cloud, flavor, stack)
            with hide_addresses(part.addresses):
                found = _climb(bench, part)
                skipped += _guest_guest(bench, part, flavor)
            findings += _findings(flavor, found, values.number('limit'))
            series += [replace(one, conditions=(('flavor', flavor),
                                                *one.conditions))
                       for one in part.series]
    if not any(one.metric == _BANDWIDTH for one in series):
        skipped.append((_BANDWIDTH, 'no host told it: it needs a host with '
                                    'monitoring, and a user who is admin'))
    return Measured(tuple(series), tuple(findings), tuple(skipped))


def _climb(bench: Bench, part: _Flavor
           ) -> density.Climb[list[rounds.Figures]]:
    values = bench.values
    return density.climb(
        density.counts(values.integer('up-to'), values.integer('step')),
        part.grow, part.take,
        lambda found: tuple(one.latency for one in found),
        values.number('limit'), values.flag('go-on'))


def _host_host(bench: Bench) -> Iterator[Series]:
    """redis on a host, asked by the client that asks the guests."""
    values = bench.values
    if not values.text('host') or values.text('workload') != 'redis':
        return
    host, = clients.parse(values.text('host'), values.text('ssh-options'))
    server = redis_servers.Server(1, values.text('host-address'),
                                  values.integer('port'))
    with contextlib.ExitStack() as stack:
        running, _log = bench.start(host.argv(
            [*redis_command(server.port), '--bind', server.address], None))
        stack.callback(running.stop)
        machine.wait_until(lambda: redis_servers.pings(bench, server), 60,
                           'redis on the host does not answer')
        redis_density.fill(bench, server)
        runs = redis_density.at(bench, [server])
    yield from _path(values, 'host-host', [
        rounds.Figures(run.benchmark.p99, run.benchmark.throughput)
        for run in runs])


def _guest_guest(bench: Bench, part: _Flavor, flavor: str
                 ) -> list[tuple[str, str]]:
    """Measure with the client in a guest; return the part that was skipped and
    why, if any.
    """
    client = bench.values.text('client-flavor')
    if bench.values.text('workload') != 'redis' or not client:
        return []
    try:
        part.guest_guest(client)
    except density.FullError as full:
        return [(f'guest-guest of {flavor}', f'no room for a client: {full}')]
    return []


# -- what it means ------------------------------------------------------------

_BANDWIDTH = 'bandwidth of a node'


def _series(values: Values, title: str, found: Sequence[rounds.Figures],
            condition: tuple[str, str]) -> list[Series]:
    warm_up = values.integer('warm-up')
    return [
        Series(title, 'ms', 'lower', tuple(one.latency for one in found),
               (condition,), warm_up),
        Series('throughput', 'operations/s', 'higher',
               tuple(one.rate for one in found), (condition,), warm_up)]


def _path(values: Values, path: str, found: Sequence[rounds.Figures]
          ) -> list[Series]:
    return _series(values, 'p99 latency', found, ('path', path))


def _bandwidth(cloud: Any, seats: Sequence[_Seat], count: int
               ) -> list[Series]:
    """Return used bandwidth of the nodes of the hosts that guests are on."""
    hosts = {seat.guest.host: seat.guest for seat in seats}
    return list(bandwidth([cloud.load(guest) for guest in hosts.values()],
                          count))


def bandwidth(loads: Sequence[load.HostLoad | None], count: int
              ) -> Iterator[Series]:
    """Yield the bandwidth that hosts have measured at one N (pure); hosts are
    numbered.
    """
    for host, one in enumerate(loads, 1):
        for node in one.nodes if one else ():
            if node.bandwidth is not None:
                yield Series(_BANDWIDTH, 'GB/s', 'neither',
                             (node.bandwidth / 1e9,),
                             (('N', str(count)), ('host', str(host)),
                              ('node', str(node.node))))


def _findings(flavor: str,
              found: density.Climb[list[rounds.Figures]], limit: float
              ) -> list[Finding]:
    judged = found.judged
    first = density.Point(1, tuple(one.latency for one in found.taken[1]))
    texts = [Finding(f'density of {flavor}', found.text,
                     judged.last_passing, 'guests'),
             Finding(f'rule of {flavor}', f'passes: the median is below '
                     f'{limit:g} x {judged.baseline:.3f} ms, the value at '
                     'N = 1', judged.baseline * limit, 'ms')]
    noise = density.noise(first)
    if noise > limit - 1:
        texts.append(Finding(
            f'noise of {flavor}', f'the runs at N = 1 differ by {noise:.0%} '
            f'already, more than the limit of {limit - 1:.0%}', noise))
    return texts


def _needs(values: Values) -> tuple[Need, ...]:
    found = [*cloud_needs(values), needs.given(
        'flavors', values.text('flavors'), 'which flavors to measure')]
    if values.text('access') == 'ssh':
        found.append(needs.program('ssh'))
    if values.text('workload') == 'redis':
        found += redis_needs(values)
        if values.text('host'):
            found.append(needs.given('host-address',
                                     values.text('host-address'),
                                     'where redis on the host is reached'))
    return tuple(found)


def cloud_needs(values: Values) -> list[Need]:
    """Return the needs of guests in a cloud."""
    return [_library('openstack', 'openstacksdk'),
            _library('osc_lib', 'osc-lib'), *(
                needs.given(name, values.text(name), why) for name, why in (
                    ('image', 'what guests boot'),
                    ('network', 'where guests are reached')))]


def redis_needs(values: Values) -> list[Need]:
    """Return the needs of clients of redis."""
    return [*needs.programs('redis-benchmark', 'redis-cli'),
            *redis_density.client_needs(values)]


def _library(module: str, package: str) -> Need:
    return Need(f'the library {package}', lambda _machine: (
        '' if importlib.util.find_spec(module) else
        f'{package} is not installed (pip install ghsched[osc])'))


#: Parameters of guests in a cloud.
GUESTS = (
    Parameter('image', '', 'of the guests'),
    Parameter('network', '', 'of the guests'),
    Parameter('ssh-user', 'root', 'of guests'),
    Parameter('key', '', 'pair of Nova for ssh'),
    Parameter('security-group', '', 'of the guests'),
    Parameter('availability-zone', '', 'of the guests; zone:host for an '
                                       'admin', private=True),
    Parameter('boot-timeout', 600.0, 'of a guest in seconds', minimum=1),
    Parameter('os-cloud', '', 'of clouds.yaml; that of the environment if '
                              'not given', private=True))

SCENARIO = Scenario(
    name='cloud',
    title='guests of flavors on a running cloud, until the observed one has '
          'a latency above the limit',
    parameters=(
        Parameter('flavors', '', 'to measure, e.g. small,large'),
        *GUESTS,
        Parameter('workload', 'redis', 'in the guests',
                  ('redis', 'stress', 'fio')),
        Parameter('up-to', 8, 'guests at most', minimum=1),
        Parameter('step', 1, 'guests more each time', minimum=1),
        Parameter('limit', 1.1, 'latency over that at N = 1 that fails',
                  minimum=1),
        Parameter('go-on', False, 'beyond the first N that fails'),
        *common(runs=8, warm_up=1),
        Parameter('seconds', 10, 'of a run of stress-ng or fio', minimum=1),
        Parameter('stressor', 'stream', 'of stress-ng'),
        Parameter('container', 'none', 'that the load runs in',
                  ('none', 'docker', 'podman')),
        Parameter('image-of-container', 'redis', 'of that container'),
        Parameter('access', 'console', 'to guests', ('console', 'ssh')),
        Parameter('client-flavor', '', 'of a guest that is a client of '
                                       'redis, for guest-guest'),
        Parameter('host', '', 'with a redis-server, for host-host, e.g. '
                              'ssh:one', private=True),
        Parameter('host-address', '', 'of that server', private=True),
        Parameter('port', 6379, 'of redis', minimum=1),
        *redis_density.LOAD),
    tools=lambda values: (('redis-benchmark',)
                          if values.text('workload') == 'redis' else ()),
    needs=_needs, run=_run, verify=redis_density.verify,
    checks=redis_density.CHECKS)
