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

"""``loaded-latency``: how the latency of memory grows with its use.

A chain of pointers is followed beside a load of bandwidth, in steps from none
to all that the CPUs of a node can move. The result is a curve as the
contention model takes it, for the section ``contention`` of a host file.
"""

from collections.abc import Sequence
import importlib.resources
from pathlib import Path
import re

from ghsched_nova.lab.bench import environment
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import needs
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
from ghsched_placement.base import cpulist

#: Turns of an empty loop after each KiB of the load; -1 is no load.
PAUSES = (-1, 3000, 1500, 800, 400, 200, 100, 50, 0)

#: A machine is too noisy when the latency without a load is spread so far, as
#: a part of its median (from the first to the third quartile).
NOISE = 0.05

_LATENCY, _BANDWIDTH = 'latency of an access', 'bandwidth'
_ANSWER = re.compile(r'([0-9.]+) ([0-9.]+)\n')
_PROGRAM = 'loaded_latency'


def parse(text: str) -> tuple[float, float]:
    """Return nanoseconds of an access and MB/s, as the program prints them.

    :raises BenchError: when that is not what it printed.
    """
    match = _ANSWER.fullmatch(text)
    if match is None:
        raise errors.BenchError(f'{_PROGRAM} printed {text[:80]!r}')
    return float(match[1]), float(match[2])


def _needs(values: Values) -> tuple[Need, ...]:
    found = needs.programs('cc')
    if values.text('memory-node'):
        found += needs.programs('numactl')
    return found


def compile_program(bench: Bench) -> Path:
    """Compile the program, and return its path."""
    source = importlib.resources.files('ghsched_nova.lab.bench').joinpath(
        f'{_PROGRAM}.c').read_text(encoding='utf-8')
    path = bench.work / _PROGRAM
    path.with_suffix('.c').write_text(source, encoding='utf-8')
    bench.machine.check(['cc', '-O2', '-pthread', '-o', str(path),
                         str(path.with_suffix('.c'))], 120)
    return path


def _set_up(bench: Bench) -> None:
    compile_program(bench)


def find_cpus(bench: Bench, wanted: str) -> list[int]:
    """Return the CPUs of a NUMA node, ascending.

    :param wanted: number of the node; empty for the first with CPUs.
    :raises BenchError: if there is no such node with CPUs.
    """
    files = {str(number): f'sys/devices/system/node/node{number}/cpulist'
             for number in environment.nodes(bench.machine)}
    for number, file in (files or {'': 'sys/devices/system/cpu/online'}
                         ).items():
        cpus = cpulist.parse_cpu_list(bench.machine.text(file).strip() or '')
        if cpus and wanted in ('', number):
            return sorted(cpus)
    raise errors.BenchError(f'there is no NUMA node {wanted} with '
                            'CPUs')


def _run(bench: Bench) -> Measured:
    values = bench.values
    cpus = find_cpus(bench, values.text('cpu-node'))
    series: list[Series] = []
    for writes in map(int, values.text('writes').split(',')):
        for step, pause in enumerate(PAUSES):
            taken = bench.repeat(
                f'{writes} % writes, step {step + 1} of {len(PAUSES)}',
                lambda pause=pause, writes=writes: _once(  # type: ignore
                    bench, pause, writes, cpus))
            conditions = (('writes', str(writes)), ('step', str(step)))
            for metric, unit, better, place in (
                    (_LATENCY, 'ns', 'lower', 0),
                    (_BANDWIDTH, 'MB/s', 'higher', 1)):
                series.append(Series(
                    metric, unit, better, tuple(one[place] for one in taken),
                    conditions, values.integer('warm-up')))
    text = curve(series, values.number('peak'))
    if values.text('curve'):
        Path(values.text('curve')).write_text(text, encoding='utf-8')
    return Measured(tuple(series), (Finding('latency_curve', text),))


def _once(bench: Bench, pause: int, writes: int,
          cpus: Sequence[int]) -> tuple[float, float]:
    values, node = bench.values, bench.values.text('memory-node')
    bound = ['numactl', f'--membind={node}'] if node else []
    return parse(bench.machine.check([
        *bound, str(bench.work / _PROGRAM), str(values.integer('size')),
        str(values.number('seconds')), str(pause), str(writes),
        *map(str, cpus)], 60 + 4 * values.number('seconds')))


def points(series: Sequence[Series],
           peak: float) -> dict[int, list[tuple[float, float]]]:
    """Utilisation and latency over that when idle, by percent of writes.

    Medians; those that do not ascend are left out, because a machine at its
    end moves less with more load.

    :param peak: MB/s that are a utilisation of 1; 0 for the most measured.
    """
    median = {(one.metric, one.conditions): stats.quantile(one.samples, 0.5)
              for one in series}
    peak = max(peak, *(value for (metric, _of), value in median.items()
                       if metric == _BANDWIDTH))
    found: dict[int, list[tuple[float, float]]] = {}
    for (metric, of), latency in median.items():
        if metric != _LATENCY:
            continue
        writes, step = (int(dict(of)[name]) for name in ('writes', 'step'))
        if step == 0:
            found[writes], idle = [(0.0, 1.0)], latency
            continue
        used = round(median[_BANDWIDTH, of] / peak, 3)
        grown = round(latency / idle, 3)
        if used > found[writes][-1][0] and grown >= found[writes][-1][1]:
            found[writes].append((used, grown))
    return found


def curve(series: Sequence[Series], peak: float) -> str:
    """Return the curve in the form of a host file's ``latency_curve``."""
    lines = ['latency_curve:', '  basis: measured',
             '  source: ghsched-bench run loaded-latency', '  points:']
    for writes, pairs in points(series, peak).items():
        lines += [f'  - writes: {writes / 100:g}', '    latency:', *(
            f'    - [{used:g}, {latency:g}]' for used, latency in pairs)]
    return '\n'.join(lines) + '\n'


def verify(_values: Values, measured: Measured) -> tuple[str, ...]:
    """Whether the machine was quiet enough."""
    found = []
    for one in measured.series:
        if one.metric != _LATENCY:
            continue
        low, median, high = (stats.quantile(one.samples, part)
                             for part in (0.25, 0.5, 0.75))
        if dict(one.conditions)['step'] == '0' and (
                high - low > NOISE * median):
            found.append(
                f'{one.title}: half of the samples are spread over '
                f'{(high - low) / median:.0%}; the machine is too noisy for '
                'a curve')
    if any(max(latency for _used, latency in pairs) < 1 + NOISE
           for pairs in points(measured.series, 0).values()):
        found.append('no load made the latency grow; are there other CPUs on '
                     'the node?')
    return tuple(found)


SCENARIO = Scenario(
    name='loaded-latency',
    title='latency of memory by its use, as a curve of the contention model',
    parameters=(
        *common(runs=5, warm_up=1),
        Parameter('size', 256, 'of the memory of each CPU in MiB; more than '
                  'the caches hold', minimum=1),
        Parameter('seconds', 1.0, 'of each sample', minimum=0.01),
        Parameter('writes', '0,50', 'percent of the lines of the load that '
                  'are written, several by commas'),
        Parameter('cpu-node', '', 'whose CPUs are used; the first with CPUs '
                  'without it'),
        Parameter('memory-node', '', 'where the memory is, such as a far '
                  'node; where the CPUs are without it'),
        Parameter('peak', 0.0, 'MB/s that are a utilisation of 1, in theory; '
                  'without it the most that is measured'),
        Parameter('curve', '', 'a file for the curve', private=True)),
    tools=lambda _values: ('cc',),
    needs=_needs, set_up=_set_up, run=_run, verify=verify)
