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

"""Scripts that start containers in a guest, and what they print (pure).

Guests run what a tenant has put into them, so their output is taken by exact
patterns, up to fixed sizes, and never as a command.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
import re
import shlex

from ghsched_nova.lab.bench import container_plan
from ghsched_nova.lab.bench import errors
from ghsched_placement.base import cpulist

#: Ways to have a container, the best first. The last two are no container of
#: an engine: a control group, and nothing but the CPUs of a process.
ENGINES = ('podman', 'docker', 'cgroup', 'taskset')
#: Servers of a guest, the best first.
_SERVERS = ('redis-server', 'python3')
#: Characters of a guest's output that are read.
_LONGEST = 65536
_MOST_NICS = 512
_STANDIN = '/var/tmp/ghsched-bench-standin.py'  # noqa: S108

_FACT = re.compile(r'ghsched-bench (engine|server|cpus|emulated) '
                   r'([a-z0-9,-]{1,200})')
_NIC = re.compile(r'ghsched-bench nic ([A-Za-z0-9][A-Za-z0-9_.-]{0,14}) '
                  r'(-1|[0-9]{1,4}) (main|free)')
_STARTED = re.compile(r'ghsched-bench started ([0-9]{1,9}) cpus '
                      r'([0-9,-]{1,200}) irqs((?: [0-9]{1,9}:[0-9,-]{1,200})'
                      r'{0,512})')

SURVEY = r'''
say() { echo "ghsched-bench $*"; }
for engine in podman docker taskset; do
    command -v $engine >/dev/null && say engine $engine
done
grep -qw cpuset /sys/fs/cgroup/cgroup.controllers 2>/dev/null &&
    command -v taskset >/dev/null && say engine cgroup
for server in redis-server python3; do
    command -v $server >/dev/null && say server $server
done
say cpus "$(cat /sys/devices/system/cpu/online)"
grep -q '^model name.*QEMU' /proc/cpuinfo && say emulated yes
set -- $SSH_CONNECTION
main=$(ip -o address show to "$3" | awk '{ print $2; exit }')
for path in /sys/class/net/*; do
    [ -e "$path/device" ] || continue
    nic=${path##*/} role=free
    [ "$nic" != "$main" ] || role=main
    say nic $nic "$(cat "$path/device/numa_node" 2>/dev/null || echo -1)" $role
done
'''

_START = r'''
say() { echo "ghsched-bench $*"; }
network=host alone= device=
if [ -n "$vf" ]; then
    network=none alone='unshare -n'
fi
[ -z "$irq_nic" ] || device=$(readlink -f "/sys/class/net/$irq_nic/device")
# Its interrupts are those of the PCI device that a virtio device is on.
case ${device##*/} in
virtio*) device=${device%/*} ;;
esac
case $engine in
podman|docker)
    "$engine" run -d --name "$name" --network "$network" \
        --cpuset-cpus "$cpus" --cpus "$count" --memory "$memory" \
        "$image" "$@" >/dev/null
    pid=$("$engine" inspect -f '{{.State.Pid}}' "$name")
    taskset -acp "$cpu" "$pid" >/dev/null
    ;;
cgroup)
    group=/sys/fs/cgroup/$name
    echo '+cpuset +memory' >/sys/fs/cgroup/cgroup.subtree_control
    mkdir "$group"
    echo "$cpus" >"$group/cpuset.cpus"
    echo "$memory" >"$group/memory.max"
    setsid sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" \
        $alone taskset -c "$cpu" "$@" >/dev/null 2>&1 </dev/null &
    pid=$!
    ;;
taskset)
    setsid $alone taskset -c "$cpu" "$@" >/dev/null 2>&1 </dev/null &
    pid=$!
    ;;
esac
if [ -n "$vf" ]; then
    # A process that has just begun may not be in its namespace yet.
    until [ "$(readlink "/proc/$pid/ns/net")" != \
        "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
    ip link set "$vf" netns "$pid"
    for end in "address add $address dev $vf" "link set $vf up" \
        'link set lo up'; do
        nsenter -t "$pid" -n ip $end
    done
fi
irqs= rest=
[ -z "$device" ] ||
    for file in "$device"/msi_irqs/*; do
        [ -e "$file" ] || continue
        irq=/proc/irq/${file##*/}
        [ -n "$rest" ] || rest=$irq_cpus,
        [ ! -e "$irq/smp_affinity_list" ] || {
            echo "${rest%%,*}" >"$irq/smp_affinity_list" || :
            irqs="$irqs ${irq##*/}:$(cat "$irq/smp_affinity_list")"
        } 2>/dev/null
        rest=${rest#*,}
    done
allowed() {
    awk '$1 == "Cpus_allowed_list:" { print $2 }' "/proc/$pid/status"
}
# The process may not have run taskset yet.
for _try in 1 2 3 4 5; do
    [ "$(allowed)" != "$cpu" ] || break
    sleep 1
done
say started "$number" cpus "$(allowed)" "irqs$irqs"
'''


@dataclass(frozen=True)
class GuestFacts:
    """Programs, CPUs and network devices of a guest.

    :param engines: those of :data:`ENGINES` that it has, the best first.
    :param server: the best server that it has outside of containers; empty
        without any.
    :param emulated: whether its CPU is emulated (TCG).
    :param main: network device that it is reached by; empty if unknown.
    :param nics: its other network devices.
    """

    engines: tuple[str, ...]
    server: str
    cpus: frozenset[int]
    emulated: bool
    main: str
    nics: tuple[container_plan.GuestNic, ...]


@dataclass(frozen=True)
class StartedContainer:
    """Container that runs.

    :param cpus: of its server.
    :param irqs: (number, CPUs) of the interrupts that were to be moved.
    """

    number: int
    cpus: frozenset[int]
    irqs: tuple[tuple[int, frozenset[int]], ...]


@dataclass(frozen=True)
class ContainerOrder:
    """Order to start a container.

    :param engine: one of :data:`ENGINES`.
    :param image: for an engine of containers.
    :param memory: limit, e.g. 8g.
    :param irq_cpus: for the interrupts of a network device, in turn.
    :param irq_nic: that device; empty for none.
    :param vf: network device that becomes the container's own; empty for
        none.
    :param address: of that device, with its prefix.
    :param server: command line of the server.
    """

    container: container_plan.ContainerPlace
    engine: str
    image: str
    memory: str
    irq_cpus: tuple[int, ...]
    irq_nic: str
    vf: str
    address: str
    server: tuple[str, ...]


def _lines(output: str) -> list[str]:
    return [line.strip() for line in output[:_LONGEST].splitlines()]


def parse_facts(output: str) -> GuestFacts:
    """Return what the survey of a guest has printed.

    :raises ParseError: when it does not tell the CPUs of the guest.
    """
    facts: dict[str, list[str]] = {}
    nics: dict[str, tuple[int, str]] = {}
    for line in _lines(output):
        fact, nic = _FACT.fullmatch(line), _NIC.fullmatch(line)
        if fact:
            facts.setdefault(fact[1], []).append(fact[2])
        elif nic and len(nics) < _MOST_NICS:
            nics.setdefault(nic[1], (int(nic[2]), nic[3]))
    return GuestFacts(
        engines=tuple(one for one in ENGINES
                      if one in facts.get('engine', ())),
        server=next((one for one in _SERVERS
                     if one in facts.get('server', ())), ''),
        cpus=_cpus(facts.get('cpus', [''])[0], output),
        emulated='emulated' in facts,
        main=next((name for name, (_node, role) in nics.items()
                   if role == 'main'), ''),
        nics=tuple(container_plan.GuestNic(name, node)
                   for name, (node, role) in nics.items() if role == 'free'))


def _cpus(text: str, output: str) -> frozenset[int]:
    try:
        found = cpulist.parse_cpu_list(text)
    except cpulist.CpuListError:
        found = frozenset()
    if not found:
        raise errors.ParseError('a guest', f'{text!r} is no list of CPUs',
                                output[:_LONGEST])
    return found


def parse_started(output: str) -> StartedContainer:
    """Return the container that a script has started.

    :raises ParseError: when it has not started one.
    """
    for line in _lines(output):
        match = _STARTED.fullmatch(line)
        if match:
            irqs = [part.split(':') for part in match[3].split()]
            return StartedContainer(
                int(match[1]), _cpus(match[2], output),
                tuple((int(irq), _cpus(cpus, output)) for irq, cpus in irqs))
    raise errors.ParseError('a guest', 'no container was started',
                            output[:_LONGEST])


def find_deviations(start: ContainerOrder, started: StartedContainer
                    ) -> Iterator[str]:
    """Yield how a container differs from its order, in words."""
    number, cpu = start.container.number, start.container.server_cpu
    if started.number != number:
        yield f'container {number}: the guest started {started.number}'
    if started.cpus != {cpu}:
        yield (f'container {number}: its server has CPUs '
               f'{cpulist.render_cpu_list(started.cpus)}, not {cpu}')
    astray = [str(irq) for irq, cpus in started.irqs
              if not cpus <= set(start.irq_cpus)]
    if astray:
        yield (f'container {number}: interrupts {", ".join(astray)} are not '
               f'on CPUs {cpulist.render_cpu_list(start.irq_cpus)}')
    if start.irq_nic and not started.irqs:
        yield f'container {number}: no interrupt of its device was found'


def choose_engine(asked: str, facts: GuestFacts) -> str:
    """Return the way to have containers in a guest.

    :param asked: one of :data:`ENGINES`, or "auto" for the best.
    :raises BenchError: when the guest has no such.
    """
    found = [one for one in facts.engines if asked in ('auto', one)]
    if not found:
        raise errors.BenchError(
            f'the guest cannot have containers by '
            f'{" or ".join(ENGINES) if asked == "auto" else asked}')
    return found[0]


def server_command(engine: str, facts: GuestFacts, port: int,
                   redis: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of the server of a container.

    :param redis: that of redis-server.
    :raises BenchError: when the guest has no server.
    """
    if engine in ('podman', 'docker') or facts.server == 'redis-server':
        return tuple(redis)
    if facts.server == 'python3':
        return 'python3', _STANDIN, str(port)
    raise errors.BenchError('the guest has neither redis-server nor python3')


def start_script(start: ContainerOrder, standin: str) -> str:
    """Return the script that starts a container.

    :param standin: program of the stand-in for redis-server.
    """
    one = start.container
    values = {
        'number': one.number, 'name': f'ghsched-bench-{one.number}',
        'engine': start.engine, 'image': start.image,
        'memory': start.memory, 'count': len(one.cpus),
        'cpus': cpulist.render_cpu_list(one.cpus), 'cpu': one.server_cpu,
        'irq_cpus': ','.join(map(str, start.irq_cpus)),
        'irq_nic': start.irq_nic, 'vf': start.vf, 'address': start.address}
    head = ['set -eu', *(f'{name}={shlex.quote(str(value))}'
                         for name, value in values.items())]
    if _STANDIN in start.server:
        head.append(f"cat >{_STANDIN} <<'END'\n{standin}END")
    return '\n'.join([*head, f'set -- {shlex.join(start.server)}']) + _START
