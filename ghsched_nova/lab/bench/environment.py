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

"""The environment block of a result."""

from collections.abc import Sequence
import json
import os
import re

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.record import Environment
from ghsched_placement.base import cpulist

_VULNERABILITIES = 'sys/devices/system/cpu/vulnerabilities'
_VERSION = re.compile(r'[0-9]+(?:\.[0-9]+)+')

#: How a tool tells its version, where it is not with --version.
_VERSION_OPTION = {'cyclictest': '--help', 'mpstat': '-V', 'pidstat': '-V',
                   'sar': '-V', 'ssh': '-V'}
#: Those that do not tell it; their package does.
_MUTE = {'mbw': 'mbw', 'numactl': 'numactl'}


def read(machine: Machine, tools: Sequence[str]) -> Environment:
    """Look at the machine.

    :param tools: programs whose version matters; those that are not there
        are left out.
    """
    facts = lscpu(machine)
    return Environment(
        cpu_model=facts.get('Model name', 'unknown'),
        cpus=_cpus(machine, facts),
        numa_nodes=len(nodes(machine)) or 1,
        memory_mib=memory_mib(machine.text('proc/meminfo')),
        architecture=facts.get('Architecture', os.uname().machine),
        kernel=machine.text('proc/sys/kernel/osrelease') or 'unknown',
        distribution=distribution_name(machine.text('etc/os-release')),
        mitigations=tuple(
            (name, machine.text(f'{_VULNERABILITIES}/{name}'))
            for name in machine.names(_VULNERABILITIES)),
        virtual=_virtual(machine, facts),
        governors=_governors(machine),
        tools=tuple((tool, version(machine, tool)) for tool in tools
                    if machine.which(tool)),
        load=_load(machine.text('proc/loadavg')))


def lscpu(machine: Machine) -> dict[str, str]:
    """Return the facts of lscpu(1); empty if the program is missing or fails.
    """
    if not machine.which('lscpu'):
        return {}
    try:
        return lscpu_facts(machine.check(['lscpu', '-J']))
    except errors.BenchError:
        return {}


def lscpu_facts(text: str) -> dict[str, str]:
    """Return fields of ``lscpu -J``, which nests them since util-linux 2.38.

    :raises ParseError: when it is something else.
    """
    try:
        waiting = list(json.loads(text)['lscpu'])
        facts = {}
        while waiting:
            entry = waiting.pop(0)
            facts[entry['field'].rstrip(':')] = str(entry.get('data') or '')
            waiting += entry.get('children', [])
    except (ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as error:
        raise errors.ParseError('lscpu', f'is no list of fields: {error!r}',
                                text) from None
    return facts


def nodes(machine: Machine) -> tuple[int, ...]:
    """Return numbers of the NUMA nodes that the kernel shows, ascending."""
    return tuple(sorted(
        int(name[4:]) for name in machine.names('sys/devices/system/node')
        if re.fullmatch('node[0-9]{1,5}', name)))


def memory_mib(meminfo: str) -> int:
    """Return the total memory of /proc/meminfo, 0 when it does not say."""
    match = re.search(r'^MemTotal: +([0-9]+) kB$', meminfo, re.MULTILINE)
    return int(match[1]) // 1024 if match else 0


def distribution_name(os_release: str) -> str:
    """PRETTY_NAME of os-release(5)."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', os_release, re.MULTILINE)
    return match[1] if match else 'unknown'


def version(machine: Machine, tool: str) -> str:
    """Return the version of a program; "unknown" if it prints none."""
    try:
        if tool in _MUTE:
            said = _package_version(machine, _MUTE[tool])
        else:
            output = machine.run(
                [tool, _VERSION_OPTION.get(tool, '--version')], 10)
            said = output.stdout + output.stderr
    except errors.BenchError:
        said = ''
    match = _VERSION.search(said)
    return match[0] if match else 'unknown'


def _package_version(machine: Machine, package: str) -> str:
    for query in (['dpkg-query', '-W', '-f', '${Version}', package],
                  ['rpm', '-q', '--qf', '%{VERSION}', package]):
        if machine.which(query[0]):
            output = machine.run(query, 10)
            if not output.status:
                return output.stdout
    return ''


def _cpus(machine: Machine, facts: dict[str, str]) -> int:
    """Return CPUs that are online: the others run nothing."""
    try:
        online = cpulist.parse_cpu_list(
            machine.text('sys/devices/system/cpu/online'))
    except cpulist.CpuListError:
        online = frozenset()
    return len(online) or int(facts.get('CPU(s)', '0'))


def _virtual(machine: Machine, facts: dict[str, str]) -> str:
    """Return the hypervisor; a container is not one."""
    if machine.which('systemd-detect-virt'):
        said = machine.run(['systemd-detect-virt', '--vm'], 10).stdout.strip()
        if said and said != 'none':
            return said
    if 'hypervisor' in facts.get('Flags', '').split():
        return facts.get('Hypervisor vendor', 'yes')
    return 'none' if facts else 'unknown'


def _governors(machine: Machine) -> str:
    found = {machine.text(f'sys/devices/system/cpu/{name}/cpufreq/'
                          'scaling_governor')
             for name in machine.names('sys/devices/system/cpu')
             if re.fullmatch('cpu[0-9]+', name)}
    return ', '.join(sorted(filter(None, found))) or 'none'


def _load(loadavg: str) -> float:
    match = re.match(r'[0-9]+\.[0-9]+', loadavg)
    return float(match[0]) if match else 0.0
