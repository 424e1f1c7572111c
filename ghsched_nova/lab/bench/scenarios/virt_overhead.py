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

"""``virt-overhead``: figures of a machine, for comparison with another.

Run it on a host and in a guest of it, and compare the two reports. Each part
has needs of its own; one that is missing leaves out that part.
"""

from collections.abc import Callable
from dataclasses import dataclass
import functools
from pathlib import Path

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.parsers import fio
from ghsched_nova.lab.bench.parsers import iperf
from ghsched_nova.lab.bench.parsers import mbw
from ghsched_nova.lab.bench.parsers import unixbench
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values


@dataclass(frozen=True)
class _Part:
    """A tool, what it needs and how it measures."""

    name: str
    needs: Callable[[Values], tuple[Need, ...]]
    measure: Callable[[Bench], list[Series]]


def _unixbench_needs(values: Values) -> tuple[Need, ...]:
    where = values.text('unixbench')
    wanted = needs.given('unixbench', where, 'the directory with its script '
                         'Run (UnixBench is not packaged: clone '
                         'byte-unixbench and run make)')
    return (wanted, *needs.programs('perl'), *(
        [needs.program(f'{where}/Run')] if where else []))


def _unixbench(bench: Bench) -> list[Series]:
    """Run UnixBench many times with one sample of each test, to measure the
    spread.
    """
    where = bench.values.text('unixbench')

    def run() -> unixbench.Run:
        return unixbench.parse(bench.machine.check(
            [f'{where}/Run', '-c', '1', '-i', '1',
             *bench.values.text('unixbench-tests').split()], 3600,
            Path(where)))[0]

    return unixbench_series(bench.repeat('UnixBench', run),
                            bench.values.integer('warm-up'))


def unixbench_series(runs: list[unixbench.Run], warm_up: int
                     ) -> list[Series]:
    """Return the scores of runs; more is better of each."""
    return [Series(score.test, score.unit, 'higher', tuple(
        run.score(score.test).value for run in runs),
        (('tool', 'UnixBench'), ('copies', str(runs[0].copies))), warm_up)
        for score in runs[0].scores]


def _mbw(bench: Bench) -> list[Series]:
    warm_up = bench.values.integer('warm-up')
    bench.say('mbw')
    text = bench.machine.check([
        'mbw', '-n', str(bench.values.integer('runs') + warm_up),
        str(bench.values.integer('mbw-size'))], 3600)
    return mbw_series(text, warm_up)


def mbw_series(text: str, warm_up: int) -> list[Series]:
    """Return the copies of a run of mbw but the first, whose pages are new."""
    return [Series(f'memory copy {method}', 'MiB/s', 'higher',
                   values[warm_up:], (('tool', 'mbw'),), warm_up)
            for method, values in mbw.parse(text).items()]


def _fio(bench: Bench) -> list[Series]:
    values = bench.values
    found = []
    directory = values.text('fio-directory') or str(bench.work)
    for pattern in ('read', 'write', 'randread', 'randwrite'):
        command = ['fio', '--name', pattern, '--rw', pattern,
                   '--filename', f'{directory}/ghsched-bench-fio.data',
                   '--size', f'{values.integer("fio-size")}M',
                   '--bs', '4k' if pattern.startswith('rand') else '1M',
                   '--direct', '1' if values.flag('fio-direct') else '0',
                   '--runtime', str(values.integer('seconds')),
                   '--time_based', '--unlink', '1',
                   '--output-format', 'json']
        taken = bench.repeat(f'fio {pattern}', functools.partial(
            _fio_run, bench, command))
        found += fio_series(pattern, taken, values.integer('warm-up'))
    return found


def _fio_run(bench: Bench, command: list[str]) -> fio.Direction:
    return fio.parse(bench.machine.check(
        command, bench.values.integer('seconds') + 300))[0]


def fio_series(pattern: str, taken: list[fio.Direction], warm_up: int
               ) -> list[Series]:
    """Operations, bytes and completion latency of one pattern's runs."""
    of = (('tool', 'fio'), ('pattern', pattern))
    return [
        Series('IO operations', '1/s', 'higher',
               tuple(run.iops for run in taken), of, warm_up),
        Series('IO bandwidth', 'MB/s', 'higher',
               tuple(run.bandwidth / 1e6 for run in taken), of, warm_up),
        Series('IO latency p99', 'us', 'lower',
               tuple(run.p99 / 1e3 for run in taken), of, warm_up)]


def _iperf_needs(values: Values) -> tuple[Need, ...]:
    return (needs.program('iperf3'), needs.given(
        'iperf-server', values.text('iperf-server'),
        'a second host that runs iperf3 -s'))


def _iperf(bench: Bench) -> list[Series]:
    values = bench.values
    taken = bench.repeat('iperf3', lambda: iperf.parse(bench.machine.run(
        ['iperf3', '--json', '-c', values.text('iperf-server'),
         '-p', str(values.integer('iperf-port')),
         '-t', str(values.integer('seconds'))],
        values.integer('seconds') + 60).stdout))
    return [Series('TCP throughput', 'Gbit/s', 'higher',
                   tuple(run.received / 1e9 for run in taken),
                   (('tool', 'iperf3'),), values.integer('warm-up'))]


_PARTS = {part.name: part for part in (
    _Part('unixbench', _unixbench_needs, _unixbench),
    _Part('mbw', lambda _values: needs.programs('mbw'), _mbw),
    _Part('fio', lambda _values: needs.programs('fio'), _fio),
    _Part('iperf3', _iperf_needs, _iperf))}


def _parts(values: Values) -> list[_Part]:
    names = values.text('parts').split(',')
    for name in names:
        if name not in _PARTS:
            raise errors.BenchError(f'parts: {name!r} is not one of '
                                    + ', '.join(_PARTS))
    return [_PARTS[name] for name in names]


def _missing(machine: Machine, part: _Part, values: Values
             ) -> str:
    """Return the reasons why a part cannot be measured; empty if it can."""
    reasons = (need.missing(machine) for need in part.needs(values))
    return '; '.join(filter(None, reasons))


def _needs(values: Values) -> tuple[Need, ...]:
    """Return the need of at least one part that can be measured."""
    parts = _parts(values)

    def missing(machine: Machine) -> str:
        reasons = [_missing(machine, part, values) for part in parts]
        return '; '.join(reasons) if all(reasons) else ''
    return (Need('one of ' + ', '.join(part.name for part in parts),
                 missing),)


def _run(bench: Bench) -> Measured:
    series: list[Series] = []
    skipped = []
    for part in _parts(bench.values):
        reason = _missing(bench.machine, part, bench.values)
        if reason:
            skipped.append((part.name, reason))
        else:
            series += part.measure(bench)
    return Measured(tuple(series), skipped=tuple(skipped))


def _verify(_values: Values, measured: Measured) -> tuple[str, ...]:
    return tuple(f'{series.title}: a sample is not above 0'
                 for series in measured.series if min(series.samples) <= 0)


SCENARIO = Scenario(
    name='virt-overhead',
    title='processor, memory, disk and network of a machine, to compare a '
          'guest with its host',
    parameters=(
        *common(runs=10, warm_up=1),
        Parameter('parts', ','.join(_PARTS), 'to measure'),
        Parameter('seconds', 10, 'of a run of fio and iperf3', minimum=1),
        Parameter('unixbench', '', 'directory of UnixBench'),
        Parameter('unixbench-tests', 'dhry2reg whetstone-double fsdisk '
                                     'syscall execl', 'to run'),
        Parameter('mbw-size', 512, 'of the array in MiB', minimum=1),
        Parameter('fio-directory', '', 'on the disk to measure; below '
                                       '/var/tmp if not given'),
        Parameter('fio-size', 1024, 'of its file in MiB', minimum=1),
        Parameter('fio-direct', True, 'past the page cache'),
        Parameter('iperf-server', '', 'address of a host with iperf3 -s',
                  private=True),
        Parameter('iperf-port', 5201, 'of that server', minimum=1)),
    tools=lambda _values: ('mbw', 'fio', 'iperf3', 'perl'),
    needs=_needs, run=_run, verify=_verify)
