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

"""Needs that several scenarios have."""

from ghsched_nova.lab.bench import environment
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.scenario import Need

#: Where a program comes from when it is not called like its package.
_PACKAGES = {
    'cyclictest': 'rt-tests', 'mpstat': 'sysstat', 'pidstat': 'sysstat',
    'sar': 'sysstat', 'redis-benchmark': 'redis-tools',
    'redis-cli': 'redis-tools', 'taskset': 'util-linux',
    'chrt': 'util-linux', 'ssh': 'openssh-client'}


def program(name: str) -> Need:
    """Return a program in the search path."""
    def missing(machine: Machine) -> str:
        if machine.which(name):
            return ''
        return (f'{name} is not installed (package '
                f'{_PACKAGES.get(name, name)})')
    return Need(f'the program {name}', missing)


def programs(*names: str) -> tuple[Need, ...]:
    return tuple(map(program, names))


def root(why: str) -> Need:
    """Return the rights of root.

    :param why: what needs them, e.g. "a negative nice value".
    """
    def missing(machine: Machine) -> str:
        return '' if machine.is_root() else f'{why} needs root'
    return Need(f'root, for {why}', missing)


def real_time() -> Need:
    """Return the need for the right to real-time scheduling.

    Root may not in a control group without real-time bandwidth of its own
    (CONFIG_RT_GROUP_SCHED), so it is tried.
    """
    def missing(machine: Machine) -> str:
        if not machine.which('chrt'):
            return 'chrt is not installed (package util-linux)'
        output = machine.run(['chrt', '-f', '1', 'true'], 10)
        return '' if not output.status else (
            'no process may have a real-time policy here: '
            + ' '.join(output.stderr.split()))
    return Need('real-time scheduling policies', missing)


def numa_nodes(count: int) -> Need:
    """Return NUMA nodes that the kernel shows."""
    def missing(machine: Machine) -> str:
        found = len(environment.nodes(machine))
        return '' if found >= count else (
            f'the machine has {found} NUMA node{"s" * (found != 1)}, '
            f'{count} are needed')
    return Need(f'{count} NUMA nodes', missing)


def answers(what: str, *argv: str) -> Need:
    """Return a command that ends well.

    :param what: it shows, e.g. "the docker daemon answers".
    """
    def missing(machine: Machine) -> str:
        try:
            machine.check(argv, 30)
        except errors.BenchError as error:
            return f'not so: {what}: {error}'
        return ''
    return Need(what, missing)


def given(parameter: str, value: str, why: str) -> Need:
    """Return a parameter that has no default.

    :param why: it is needed, e.g. "a second host runs iperf3 -s".
    """
    return Need(f'the parameter {parameter}', lambda _machine: (
        '' if value else f'--{parameter} is not given: {why}'))
