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

"""``numa-locality``: cost of memory and devices of another node."""

from collections.abc import Sequence
import functools
import itertools

from ghsched_nova.lab.bench import environment
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.parsers import fio
from ghsched_nova.lab.bench.parsers import mbw
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench import stats

_MEMORY = 'memory copy'
_DEVICE = 'device reads'


def _needs(values: Values) -> tuple[Need, ...]:
    found = [needs.numa_nodes(2), *needs.programs('numactl', 'mbw')]
    if values.text('device'):
        found += [needs.program('fio'), needs.root('reading a disk')]
    return tuple(found)


def pairs(cpu_nodes: Sequence[int], memory_nodes: Sequence[int]
          ) -> list[tuple[int, int]]:
    """Return all pairs of a NUMA node with CPUs and one with memory."""
    return list(itertools.product(cpu_nodes, memory_nodes))


def with_cpus(machine: Machine) -> tuple[int, ...]:
    """Return nodes that have CPUs; others are memory only."""
    return tuple(
        node for node in environment.nodes(machine)
        if machine.text(f'sys/devices/system/node/node{node}/cpulist'))


def with_memory(machine: Machine) -> tuple[int, ...]:
    """Return nodes that have memory."""
    meminfo = 'sys/devices/system/node/node{0}/meminfo'
    return tuple(
        node for node in environment.nodes(machine)
        if ' MemTotal: 0 kB' not in ' '.join(
            machine.text(meminfo.format(node)).split()))


def device_node(machine: Machine, device: str) -> int | None:
    """Return the NUMA node of a block device; None if it is unknown."""
    name = device.removeprefix('/dev/')
    for place in ('device', 'device/device'):
        text = machine.text(f'sys/block/{name}/{place}/numa_node')
        if text.isdecimal():
            return int(text)
    return None


def _run(bench: Bench) -> Measured:
    series = _memory(bench)
    skipped: tuple[tuple[str, str], ...] = ()
    if bench.values.text('device'):
        series += _device(bench)
    else:
        skipped = (('device', '--device is not given'),)
    return Measured(tuple(series), findings(series), skipped)


def _memory(bench: Bench) -> list[Series]:
    """Return every pair in turn, so that drift meets them all."""
    todo = pairs(with_cpus(bench.machine), with_memory(bench.machine))
    rounds = bench.repeat('memory of each node', lambda: {
        pair: _copy(bench, *pair) for pair in todo})
    return [_series(bench, _MEMORY, 'MiB/s', pair,
                    [taken[pair] for taken in rounds]) for pair in todo]


def _copy(bench: Bench, cpus: int, memory: int) -> float:
    """Copies per second; mbw's first run, whose pages are new, is left."""
    text = bench.machine.check([
        'numactl', f'--cpunodebind={cpus}', f'--membind={memory}',
        'mbw', '-t0', '-n', '3', str(bench.values.integer('size'))], 600)
    return stats.quantile(mbw.parse(text)['MEMCPY'][1:], 0.5)


def _device(bench: Bench) -> list[Series]:
    device = bench.values.text('device')
    home = device_node(bench.machine, device)
    if home is None:
        raise errors.BenchError(f'{device}: the kernel knows no NUMA node of '
                                'it')
    todo = pairs(with_cpus(bench.machine), [home])
    rounds = bench.repeat(f'{device} from each node', lambda: {
        pair: _read(bench, device, pair[0]) for pair in todo})
    return [_series(bench, _DEVICE, '1/s', pair,
                    [taken[pair] for taken in rounds]) for pair in todo]


def _read(bench: Bench, device: str, cpus: int) -> float:
    seconds = bench.values.integer('seconds')
    return fio.parse(bench.machine.check([
        'numactl', f'--cpunodebind={cpus}', f'--membind={cpus}',
        'fio', '--name', 'read', '--rw', 'randread', '--bs', '4k',
        '--filename', device, '--readonly', '--direct', '1',
        '--ioengine', 'libaio', '--iodepth', '32',
        '--runtime', str(seconds), '--time_based',
        '--output-format', 'json'], seconds + 60))[0].iops


def _series(bench: Bench, metric: str, unit: str, pair: tuple[int, int],
            samples: Sequence[float]) -> Series:
    cpus, home = pair
    return Series(metric, unit, 'higher', tuple(samples), (
        ('CPUs of node', str(cpus)), ('at node', str(home)),
        ('access', 'local' if cpus == home else 'remote')),
        bench.values.integer('warm-up'))


def findings(series: Sequence[Series]) -> tuple[Finding, ...]:
    """Return the loss of each remote access against the local access of the
    same CPUs.

    A device is local to one node only, so its remote accesses lose against
    that one.
    """
    found = []
    for remote in series:
        if dict(remote.conditions)['access'] != 'remote':
            continue
        local = next(filter(functools.partial(_is_local_to, remote), series),
                     None)
        if local is None:
            continue
        loss = stats.overhead(stats.quantile(local.samples, 0.5),
                              stats.quantile(remote.samples, 0.5))
        of = dict(remote.conditions)
        found.append(Finding(
            f'{remote.metric} of node {of["at node"]} from node '
            f'{of["CPUs of node"]}', f'{loss:.1%} less than local', loss))
    return tuple(found)


def _is_local_to(remote: Series, other: Series) -> bool:
    key = 'at node' if remote.metric == _DEVICE else 'CPUs of node'
    one, two = dict(remote.conditions), dict(other.conditions)
    return (other.metric == remote.metric and two['access'] == 'local'
            and one[key] == two[key])


def _verify(_values: Values, measured: Measured) -> tuple[str, ...]:
    return tuple(f'{series.title}: a sample is not above 0'
                 for series in measured.series if min(series.samples) <= 0)


SCENARIO = Scenario(
    name='numa-locality',
    title='local against remote memory, and a device from each node',
    parameters=(
        *common(runs=10, warm_up=1),
        Parameter('size', 512, 'of the array in MiB', minimum=1),
        Parameter('device', '', 'a disk to read from, e.g. /dev/nvme0n1'),
        Parameter('seconds', 10, 'of a run of fio', minimum=1)),
    tools=lambda _values: ('numactl', 'mbw', 'fio'),
    needs=_needs, run=_run, verify=_verify)
