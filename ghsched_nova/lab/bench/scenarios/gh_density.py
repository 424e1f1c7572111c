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

"""``gh-density``: how many containers two guests take, by what protects the
observed one.

Containers are placed by :mod:`ghsched_nova.lab.bench.container_plan` and
started by the scripts of :mod:`ghsched_nova.lab.bench.guest_containers`.
"""

from collections.abc import Sequence
import contextlib
from dataclasses import replace
import functools
from pathlib import Path
from typing import Any

from ghsched_nova.lab.bench import clients
from ghsched_nova.lab.bench import container_plan
from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import guest_containers
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench import redis_servers
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench.scenarios import cloud
from ghsched_nova.lab.bench.scenarios import redis_density

#: Seconds for a script in a guest, which may have to load an image.
_SCRIPT_S = 300.0
_STANDIN = Path(__file__).parent.parent / 'standin.py'

_Climb = density.Climb[list[redis_density.Run]]


class _ContainerGuest:
    """A guest that containers are started in.

    :param client: how to run commands there.
    """

    def __init__(self, bench: Bench, address: str, client: clients.Client
                 ) -> None:
        self._bench = bench
        self._client = client
        self.address = address
        self.facts = guest_containers.parse_facts(
            self._run(guest_containers.SURVEY))
        self.engine = guest_containers.choose_engine(
            bench.values.text('container'), self.facts)
        self._vfs: set[str] = set()

    def _run(self, script: str, *argv: str) -> str:
        return self._bench.machine.check(self._client.argv(
            [*argv, 'sh', '-c', script], _SCRIPT_S), _SCRIPT_S)

    def start(self, shape: container_plan.GuestSize,
              container: container_plan.ContainerPlace
              ) -> tuple[redis_servers.Server, list[str]]:
        """Start a container; return its server and deviations from its order.

        :raises FullError: when no VF is left for it.
        """
        order = self._order(shape, container)
        user = self._bench.values.text('ssh-user')
        started = guest_containers.parse_started(self._run(
            guest_containers.start_script(order, _STANDIN.read_text()),
            *(() if user == 'root' else ('sudo',))))
        address = order.address.partition('/')[0] or self.address
        return (redis_servers.Server(container.number, address,
                                     self._port(container)),
                list(guest_containers.find_deviations(order, started)))

    def _port(self, container: container_plan.ContainerPlace) -> int:
        """Return the port of a server; those at one address differ."""
        values = self._bench.values
        return values.integer('port') + (
            0 if values.text('vfs') else container.number - 1)

    def _order(self, shape: container_plan.GuestSize,
               container: container_plan.ContainerPlace
               ) -> guest_containers.ContainerOrder:
        values, vf, address = self._bench.values, '', ''
        irq_cpus: tuple[int, ...] = (container.irq_cpu,)
        irq_nic = ''
        if shape.vfs:
            vf = irq_nic = self._take_vf(container.node)
            address = container_plan.container_address(
                values.text('vf-address'), container.number)
        elif container.number <= container_plan.GUESTS:
            # All containers of the guest use its one device.
            irq_nic = self.facts.main
            irq_cpus = container_plan.irq_cpus(shape)
        return guest_containers.ContainerOrder(
            container, self.engine, values.text('image-of-container'),
            values.text('container-memory'), irq_cpus, irq_nic, vf, address,
            guest_containers.server_command(
                self.engine, self.facts, self._port(container),
                cloud.redis_command(self._port(container))))

    def _take_vf(self, node: int) -> str:
        vf = container_plan.choose_vf(self.facts.nics, self._vfs, node)
        if vf is None:
            raise density.FullError('a guest has no VF for one more container')
        self._vfs.add(vf.name)
        return vf.name


class _Arm:
    """Two guests with what one arm gives them, and their containers."""

    def __init__(self, bench: Bench, shape: container_plan.GuestSize, arm: str
                 ) -> None:
        self._bench = bench
        self._shape = shape
        self._arm = arm
        self.guests: list[_ContainerGuest] = []
        self._servers: list[redis_servers.Server] = []
        self.addresses: list[str] = []
        self.deviations: list[str] = []

    def boot(self, api: Any, stack: contextlib.ExitStack) -> None:
        """Boot the guests; what was made goes with the stack.

        :raises FullError: when no host has room for them.
        """
        values, shape, hosts = self._bench.values, self._shape, set()
        for number, specs in enumerate(container_plan.extra_specs(
                shape, self._arm, *_keys(values)), 1):
            self._bench.say(f'{self._arm}: guest {number}')
            flavor = stack.enter_context(api.flavor(
                f'{self._arm}-{number}', shape.vcpus, shape.memory,
                values.integer('disk'), specs))
            guest = api.boot(flavor)
            stack.callback(api.delete, guest)
            self.addresses.append(guest.address)
            hosts.add(guest.host)
            self.guests.append(_ContainerGuest(
                self._bench, guest.address,
                cloud.wait_for_ssh(self._bench, guest.address)))
        if len(hosts) > 1:
            raise errors.BenchError(
                'the guests are on different hosts; name one with '
                '--availability-zone')

    def grow(self, count: int) -> None:
        """Start containers until there are as many as asked for.

        :raises FullError: when there is no VF for them.
        """
        while len(self._servers) < count:
            number = len(self._servers) + 1
            self._bench.say(f'{self._arm}: container {number}')
            container = container_plan.place_container(self._shape, number)
            server, deviations = self.guests[container.guest].start(
                self._shape, container)
            self.deviations += deviations
            self.addresses.append(server.address)
            machine.wait_until(
                functools.partial(redis_servers.pings, self._bench, server),
                _SCRIPT_S,
                f'the server of container {number} does not answer', 0.5)
            redis_density.fill(self._bench, server)
            self._servers.append(server)

    def take(self, count: int) -> list[redis_density.Run]:
        """Return the runs of the observed container at this N."""
        return redis_density.at(self._bench, self._servers[:count])


# -- a run --------------------------------------------------------------------


def _keys(values: Values) -> tuple[dict[str, str], dict[str, str]]:
    return (container_plan.parse_keys('keys', values.text('keys')),
            container_plan.parse_keys('other-keys',
                                      values.text('other-keys')))


def _shape(values: Values) -> container_plan.GuestSize:
    return container_plan.GuestSize(
        values.integer('vcpus'), values.integer('memory'),
        values.integer('nodes'), values.text('vfs'),
        values.text('page-size'), values.text('cpu-policy'))


def _arms(values: Values) -> list[str]:
    """Return the arms in the order of the parameter.

    :raises BenchError: for one that does not exist.
    """
    arms = values.text('arms').split(',')
    for arm in arms:
        if arm not in container_plan.ARMS:
            raise errors.BenchError(f'arms: {arm!r} is none of '
                                    + ', '.join(container_plan.ARMS))
    return arms


def _set_up(bench: Bench) -> None:
    """Refuse wrong parameters before a guest is booted."""
    values = bench.values
    _arms(values)
    _keys(values)
    if _shape(values).vfs:
        container_plan.container_address(values.text('vf-address'),
                                         values.integer('up-to'))


def _run(bench: Bench) -> Measured:
    values, shape = bench.values, _shape(bench.values)
    api = cloud.connect_cloud(values)
    found: dict[str, _Climb] = {}
    series, findings, skipped = [], list(describe_plan(shape)), []
    emulated = False
    for name in _arms(values):
        arm = _Arm(bench, shape, name)
        with contextlib.ExitStack() as stack, \
                cloud.hide_addresses(arm.addresses):
            try:
                arm.boot(api, stack)
            except density.FullError as full:
                skipped.append((name, f'no room for its guests: {full}'))
                continue
            found[name] = density.climb(
                density.counts(values.integer('up-to'),
                               values.integer('step')),
                arm.grow, arm.take, redis_density.latencies,
                values.number('limit'), values.flag('go-on'), refine=True)
        emulated |= any(guest.facts.emulated for guest in arm.guests)
        findings += [
            describe_guests(name, [(guest.engine, guest.facts)
                                   for guest in arm.guests]),
            *(Finding(f'{name}: not as planned', text)
              for text in arm.deviations),
            *(replace(one, name=f'{name}: {one.name}')
              for one in redis_density.findings(found[name], values))]
        series += [replace(one, conditions=(('arm', name), *one.conditions))
                   for one in redis_density.series_of(
                       bench, found[name].taken)]
    if emulated:
        findings.insert(0, Finding('simulated', _SIMULATED))
    return Measured(tuple(series), (*findings, *compare_arms(found)),
                    tuple(skipped))


# -- what it means ------------------------------------------------------------

_SIMULATED = (
    'the CPUs of the guests are emulated (TCG): the flow is real, the figures '
    'are those of the emulator and hold for no host')

_WORDS = {
    'cgroup': 'control groups (no engine of containers)',
    'taskset': 'processes with taskset (no engine of containers, no control '
               'groups)'}


def describe_plan(shape: container_plan.GuestSize) -> tuple[Finding, ...]:
    """Return the place of the observed container, and from when containers
    share CPUs.
    """
    first = container_plan.place_container(shape, 1)
    number = 1
    while not container_plan.place_container(shape, number).shared:
        number += 1
    return (
        Finding('observed container',
                f'guest 1, node {first.node}, server on vCPU '
                f'{first.server_cpu}, interrupts on vCPU {first.irq_cpu}'),
        Finding('places', f'from N = {number} on, containers share CPUs',
                number - 1, 'containers'))


def describe_guests(arm: str, guests: Sequence[
        tuple[str, guest_containers.GuestFacts]]) -> Finding:
    """Return what containers are in the guests of an arm."""
    texts = dict.fromkeys(
        _WORDS.get(engine, f'containers of {engine}')
        + (' with a stand-in for redis, which the guest does not have'
           if engine in _WORDS and facts.server != 'redis-server'
           else ' with redis-server')
        for engine, facts in guests)
    return Finding(f'{arm}: containers', '; '.join(texts))


def compare_arms(found: dict[str, _Climb]) -> list[Finding]:
    """Return how each arm compares with the first one."""
    if not found:
        return []
    base, *others = found
    first = found[base].judged
    texts = []
    for arm in others:
        judged = found[arm].judged
        # Without a first that fails, the density is not known.
        ratio = (None if first.first_failing is None
                 else judged.last_passing / first.last_passing)
        least = 'at least ' if judged.first_failing is None else ''
        containers = (
            f'no ratio, as no N of {base} fails' if ratio is None else
            f'{least}{ratio:.2f} x as many containers: {least}'
            f'{judged.last_passing} over {first.last_passing}')
        texts.append(Finding(
            f'{arm} over {base}',
            f'{containers}; p99 at N = 1: '
            f'{judged.baseline / first.baseline:.2f} x', ratio))
    return texts


def _needs(values: Values) -> tuple[Need, ...]:
    found = [*cloud.cloud_needs(values), needs.program('ssh'),
             *cloud.redis_needs(values)]
    if values.text('vfs'):
        found.append(needs.given('vf-address', values.text('vf-address'),
                                 'address of the first container, with the '
                                 'prefix of the network of the VFs'))
    return tuple(found)


SCENARIO = Scenario(
    name='gh-density',
    title='containers in two guests of a running cloud, until the observed '
          'one has a p99 latency above the limit, by what protects it',
    parameters=(
        *cloud.GUESTS,
        Parameter('arms', ','.join(container_plan.ARMS),
                  'to measure; the first is what the others are compared '
                  'with'),
        Parameter('vcpus', 160, 'of each guest', minimum=1),
        Parameter('memory', 245760, 'of each guest in MiB', minimum=1),
        Parameter('disk', 0, 'of each guest in GiB'),
        Parameter('nodes', 2, 'NUMA nodes of each guest that is bound',
                  minimum=1),
        Parameter('cpu-policy', 'dedicated', 'of a bound guest',
                  ('dedicated', 'shared')),
        Parameter('page-size', '', 'of a bound guest, e.g. 1GB'),
        Parameter('vfs', '', 'of each guest, e.g. nic:40: alias and number'),
        Parameter('vf-address', '', 'of the first container, e.g. '
                                    '192.0.2.10/24; the others have those '
                                    'after it', private=True),
        Parameter('keys', 'mem_bw_min=40,mem_bw_priority=7',
                  'of the guest, then of the class, of the observed '
                  'container'),
        Parameter('other-keys', '', 'of the other guest, and of the other '
                                    'vCPUs, e.g. mem_bw_max=40'),
        Parameter('container', 'auto', 'what a container is',
                  ('auto', *guest_containers.ENGINES)),
        Parameter('image-of-container', 'redis', 'of an engine'),
        Parameter('container-memory', '8g', 'of a container'),
        Parameter('port', 6379, 'of redis, the first of them', minimum=1),
        Parameter('up-to', 80, 'containers at most', minimum=1),
        Parameter('step', 4, 'containers more each time; then those between '
                             'are measured', minimum=1),
        Parameter('limit', 1.1, 'p99 over p99 at N = 1 that fails',
                  minimum=1),
        Parameter('go-on', False, 'beyond the first N that fails'),
        *common(runs=8, warm_up=1),
        *redis_density.LOAD),
    tools=lambda _values: ('redis-benchmark',),
    needs=_needs, set_up=_set_up, run=_run, verify=redis_density.verify,
    checks=redis_density.CHECKS)
