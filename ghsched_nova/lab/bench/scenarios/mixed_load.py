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

"""``mixed-load``: behavior of the scheduler under mixed load.

Four phases: a mix of CPU and memory stressors on the whole machine; two tasks
of different nice values on one CPU; a real-time task and another on one CPU;
and wake-ups under the mix.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from pathlib import Path
import re
import time

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.parsers import cyclictest
from ghsched_nova.lab.bench.parsers import procfs
from ghsched_nova.lab.bench.parsers import stress_ng
from ghsched_nova.lab.bench.parsers import sysstat
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench import stats

_CORE = 'utilisation of a CPU'
_ALL = 'utilisation'
_SHARE = 'share of the CPU'

#: Seconds that a machine under load may take beyond the length of a phase.
_PATIENCE_S = 600

#: Weight of a task of nice -20 to 19, kernel/sched/core.c:
#: sched_prio_to_weight. Tasks that compete for a CPU get time in proportion.
_WEIGHTS = (
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916,
    9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277,
    1024, 820, 655, 526, 423, 335, 272, 215, 172, 137,
    110, 87, 70, 56, 45, 36, 29, 23, 18, 15)


def _needs(_values: Values) -> tuple[Need, ...]:
    return (*needs.programs('stress-ng', 'mpstat', 'pidstat', 'sar',
                            'cyclictest', 'taskset', 'chrt', 'nice'),
            needs.root('a negative nice value'), needs.real_time())


def _set_up(bench: Bench) -> None:
    """Refuse unusable parameters before the first phase."""
    niceness(bench.values.text('nice'))


def _run(bench: Bench) -> Measured:
    series = [*_mix(bench), *_niceness(bench), *_real_time(bench),
              *_wake_up(bench)]
    return Measured(tuple(series), findings(series))


# -- the phases ---------------------------------------------------------------


def _mix(bench: Bench) -> list[Series]:
    """The whole machine for some seconds, watched by all three tools."""
    seconds = _seconds(bench.values)
    bench.say(f'mixed load for {seconds} s')
    with _mixed(bench) as (stressors, log_of_mix):
        before = _moment(bench, stressors)
        watching = [bench.start([*command, '1', str(seconds)])
                    for command in (['mpstat', '-P', 'ALL'],
                                    ['pidstat', '-h', '-u', '-r', '-w',
                                     '-C', 'stress-ng'],
                                    ['sar', '-w', '-B'])]
        texts = []
        for process, log in watching:
            process.output(seconds + _PATIENCE_S)
            texts.append(log.read_text(errors='replace'))
        after = _moment(bench, stressors)
    mpstat, pidstat, sar = map(sysstat.parse, texts)
    warm_up = bench.values.integer('warm-up')
    return [*utilisation(mpstat, warm_up), *tasks(pidstat, warm_up),
            *system(sar, warm_up), *memory(before, after),
            *work(log_of_mix.read_text(errors='replace'))]


@contextlib.contextmanager
def _mixed(bench: Bench) -> Iterator[tuple[tuple[int, ...], Path]]:
    """The mix, while a phase lasts.

    :returns: PIDs of the stressors, and the file that has their metrics
        afterwards.
    """
    values = bench.values
    # stress-ng takes 0 instances for one on each CPU.
    mix = [part for name in ('cpu', 'vm') if values.integer(name)
           for part in (f'--{name}', str(values.integer(name)))]
    process, log = bench.start([
        'stress-ng', *mix, '--vm-bytes', values.text('vm-bytes'),
        '--timeout', f'{_seconds(values) + 4 * _PATIENCE_S}s',
        '--metrics-brief'])
    try:
        machine.wait_until(
            lambda: bool(bench.machine.children(process.pid)), _PATIENCE_S,
            'stress-ng starts no stressor')
        yield bench.machine.children(process.pid), log
        machine.wait_until(process.alive, 0, 'stress-ng ended too early: '
                           + log.read_text(errors='replace')[-200:])
    finally:
        process.stop()


def _moment(bench: Bench, stressors: Sequence[int]) -> procfs.Moment:
    text = bench.machine.text
    return procfs.Moment(
        time.monotonic(), procfs.counters(text('proc/vmstat')),
        procfs.stalls(text('proc/pressure/memory')),
        procfs.times((pid, text(f'proc/{pid}/schedstat'))
                     for pid in stressors))


def _niceness(bench: Bench) -> list[Series]:
    """Two tasks that differ in nothing but their nice value."""
    bench.say(f'nice values for {_seconds(bench.values)} s')
    return _shares(bench, {
        f'nice {value}': ['nice', '-n', str(value)]
        for value in reversed(niceness(bench.values.text('nice')))})


def _real_time(bench: Bench) -> list[Series]:
    """Real-time tasks that always run, and another on their CPU.

    The kernel leaves the others a part of each second
    (sched_rt_runtime_us, or the fair server since Linux 6.12).
    """
    count = bench.values.integer('real-time-tasks')
    bench.say(f'{count} real-time tasks for {_seconds(bench.values)} s')
    priority = str(bench.values.integer('priority'))
    if count == 1:
        return _shares(bench, {'beside fifo': [],
                               'fifo': ['chrt', '-f', priority]})
    # With SCHED_FIFO the first of them would never let the others run.
    return _shares(bench, {'beside rr': [], **{
        f'rr {number}': ['chrt', '-r', priority]
        for number in range(1, count + 1)}})


def _shares(bench: Bench, kinds: dict[str, list[str]]) -> list[Series]:
    """Return the shares that tasks get of one CPU.

    :param kinds: how each is started. The strongest must be the last: beside
        it the others would hardly come to their start.
    """
    cpu, wait = bench.values.text('cpu-of-tasks'), _seconds(bench.values)
    started: list[machine.Process] = []
    pids = {}
    try:
        for kind, prefix in kinds.items():
            started.append(bench.start([
                'taskset', '-c', cpu, *prefix, 'stress-ng', '--cpu', '1',
                '--timeout', f'{wait + 4 * _PATIENCE_S}s'])[0])
            pids[kind] = _stressor(bench, started[-1])
        text = bench.machine.check([
            'pidstat', '-h', '-u', '-p', ','.join(map(str, pids.values())),
            '1', str(wait)], wait + _PATIENCE_S)
    finally:
        for process in started:
            process.stop()
    return shares(sysstat.parse(text), pids,
                  bench.values.integer('warm-up'))


def _stressor(bench: Bench, process: machine.Process) -> int:
    """The process of stress-ng that makes the load, a child of the first.

    Policy and nice value are those of its parent.
    """
    machine.wait_until(lambda: bool(bench.machine.children(process.pid)),
                       _PATIENCE_S, 'stress-ng starts no stressor')
    return bench.machine.children(process.pid)[-1]


def _wake_up(bench: Bench) -> list[Series]:
    """Wake-ups of a real-time thread under the mix."""
    values = bench.values
    loops = values.integer('loops')
    found = []
    with _mixed(bench):
        for policy, priority in (('fifo', values.integer('priority')),
                                 ('other', 0)):
            bench.say(f'wake-ups of {policy}')
            runs = [cyclictest.parse(bench.machine.check([
                'cyclictest', '-q', '-m', '-t', '1', f'--policy={policy}',
                '-p', str(priority), '-i', '1000', '-l', str(loops)],
                loops / 1000 * 10 + _PATIENCE_S))[0]
                for _run in range(values.integer('wake-up-runs'))]
            of = (('policy', policy),)
            found += [
                Series('wake-up latency, average', 'us', 'lower',
                       tuple(float(run.average) for run in runs), of),
                Series('wake-up latency, maximum', 'us', 'lower',
                       tuple(float(run.maximum) for run in runs), of)]
    return found


def _seconds(values: Values) -> int:
    """Return the duration of a run in seconds: one per sample."""
    return values.integer('runs') + values.integer('warm-up')


# -- from tables to series ----------------------------------------------------


def utilisation(rows: Sequence[sysstat.Row], warm_up: int) -> list[Series]:
    """Return the busy time of all CPUs together and of each CPU, in percent.
    """
    cpus: dict[str, list[float]] = {}
    for row in sysstat.having(rows, '%idle'):
        cpus.setdefault(row.values['CPU'], []).append(
            100 - row.number('%idle'))
    return [Series(_ALL if cpu == 'all' else _CORE, '%', 'neither',
                   tuple(values[warm_up:]),
                   () if cpu == 'all' else (('CPU', cpu),), warm_up)
            for cpu, values in cpus.items()]


def tasks(rows: Sequence[sysstat.Row], warm_up: int) -> list[Series]:
    """Faults and switches of all stressors together, by second."""
    columns = {'minor faults of the stressors': 'minflt/s',
               'major faults of the stressors': 'majflt/s',
               'voluntary switches of the stressors': 'cswch/s',
               'involuntary switches of the stressors': 'nvcswch/s'}
    return [Series(metric, '1/s', 'neither', tuple(
        _by_time(rows, column)[warm_up:]), (), warm_up)
        for metric, column in columns.items()]


def _by_time(rows: Sequence[sysstat.Row], column: str) -> list[float]:
    sums: dict[str, float] = {}
    for row in sysstat.having(rows, column):
        sums[row.time] = sums.get(row.time, 0.0) + row.number(column)
    return list(sums.values())


def system(rows: Sequence[sysstat.Row], warm_up: int) -> list[Series]:
    """Faults and switches of the whole machine, by second."""
    columns = {'context switches': 'cswch/s', 'faults': 'fault/s',
               'major faults': 'majflt/s'}
    return [Series(metric, '1/s', 'neither', tuple(
        row.number(column)
        for row in sysstat.having(rows, column))[warm_up:], (), warm_up)
        for metric, column in columns.items()]


def memory(before: procfs.Moment, after: procfs.Moment) -> list[Series]:
    """Return the rates of memory reclaim, and the waits of stressors.

    Over the whole phase, the warm-up in it.
    """
    found = [Series(metric, '1/s', 'neither', (value,))
             for metric, value in procfs.reclaim(before, after).items()]
    found += [Series('stalled for memory', '%', 'lower', (value,),
                     (('tasks', kind),))
              for kind, value in procfs.stalled(before, after).items()]
    waits = procfs.waiting(before, after)
    if waits:
        found.append(Series('waiting for a CPU', '%', 'lower',
                            tuple(waits[pid] for pid in sorted(waits))))
    return found


def work(text: str) -> list[Series]:
    """Return the operations per second of each kind of stressor, as stress-ng
    counts them.
    """
    return [Series('bogus operations', '1/s', 'higher', (stressor.rate,),
                   (('stressor', stressor.name),))
            for stressor in stress_ng.parse(text)]


def shares(rows: Sequence[sysstat.Row], pids: dict[str, int], warm_up: int
           ) -> list[Series]:
    """CPU time of tasks in percent of one CPU, by second.

    :param pids: process by kind of task.
    """
    found = []
    for kind, pid in pids.items():
        taken = [row.number('%CPU') for row in sysstat.having(rows, '%CPU')
                 if row.values['PID'] == str(pid)]
        found.append(Series(_SHARE, '%', 'neither', tuple(taken[warm_up:]),
                            (('task', kind),), warm_up))
    return found


# -- what it means ------------------------------------------------------------


def findings(series: Sequence[Series]) -> tuple[Finding, ...]:
    """Peak and balance of the CPUs, and what priorities are worth."""
    cores = {dict(one.conditions)['CPU']: stats.distribution(
        one.samples).mean for one in series if one.metric == _CORE}
    share = {dict(one.conditions)['task']: stats.distribution(
        one.samples).mean for one in series if one.metric == _SHARE}
    whole = [one.samples for one in series if one.metric == _ALL]
    return (*_peak(whole[0] if whole else ()), *_balance(cores),
            *_priorities(share))


def _peak(samples: Sequence[float]) -> list[Finding]:
    if not samples:
        return []
    most, mean = max(samples), stats.distribution(samples).mean
    return [Finding('peak', f'{most:.1f} % of all CPUs in the busiest second, '
                            f'{mean:.1f} % on average', most, '%')]


def _balance(cores: dict[str, float]) -> list[Finding]:
    if not cores:
        return []
    loads = list(cores.values())
    most, least = max(cores, key=cores.__getitem__), min(
        cores, key=cores.__getitem__)
    value = stats.balance(loads)
    return [
        Finding('balance', f'{value:.1%}: mean utilisation of the CPUs over '
                           'that of the busiest', value),
        Finding('spread', f'standard deviation {stats.spread(loads):.1f} %; '
                          f'CPU {most} was busiest with {cores[most]:.1f} %, '
                          f'CPU {least} least with {cores[least]:.1f} %',
                stats.spread(loads), '%')]


def _priorities(share: dict[str, float]) -> list[Finding]:
    nice = {int(task.removeprefix('nice ')): value
            for task, value in share.items() if task.startswith('nice ')}
    found = []
    if nice:
        found.append(priority_ratio((min(nice), nice[min(nice)]),
                                    (max(nice), nice[max(nice)])))
    if 'fifo' in share:
        found.append(Finding('share of a real-time task',
                             f'{share["fifo"]:.1f} % of its CPU',
                             share['fifo'], '%'))
    equals = [value for task, value in share.items()
              if task.startswith('rr ')]
    if equals:
        found.append(Finding(
            f'share of {len(equals)} real-time tasks',
            f'{sum(equals):.1f} % of their CPU together, '
            f'{min(equals):.1f} to {max(equals):.1f} % each', sum(equals),
            '%'))
    return found


def niceness(text: str) -> tuple[int, int]:
    """Two nice values, the stronger (lower) one first.

    :raises BenchError: for other text than like ``-5,5``.
    """
    match = re.fullmatch('(-?[0-9]{1,2}),(-?[0-9]{1,2})', text)
    values = sorted(map(int, match.groups())) if match else []
    if len(set(values)) != 2 or not -20 <= values[0] <= values[1] <= 19:
        raise errors.BenchError(f'nice: {text!r} is not two of the values '
                                'from -20 to 19, like -5,5')
    return values[0], values[1]


def priority_ratio(high: tuple[int, float], low: tuple[int, float]
                   ) -> Finding:
    """Return the ratio of the CPU shares of two tasks, high over low priority.

    Two tasks that get more than one CPU together did not compete for it, and
    their ratio says nothing of priorities.

    :param high: nice value and share in percent of a CPU, as of the other.
    """
    name = f'nice {high[0]} over nice {low[0]}'
    by_weight = _WEIGHTS[high[0] + 20] / _WEIGHTS[low[0] + 20]
    expected = f'by weight {by_weight:.4g} is expected'
    got = f'{high[1]:.1f} % and {low[1]:.1f} % of a CPU'
    if low[1] <= 0:
        return Finding(name, f'{got}, too little to make a ratio of; '
                             f'{expected}')
    ratio = high[1] / low[1]
    apart = ('' if high[1] + low[1] <= 102 else
             f'; that is {high[1] + low[1]:.1f} % together, so they did not '
             'compete for one CPU, and the ratio says nothing of priorities')
    return Finding(name, f'{ratio:.2f} ({got}); {expected}{apart}', ratio)


def _verify(_values: Values, measured: Measured) -> tuple[str, ...]:
    """mpstat counts the machine as a whole and by CPU."""
    whole = [one.samples for one in measured.series if one.metric == _ALL]
    cores = [one.samples for one in measured.series if one.metric == _CORE]
    mean = stats.distribution(whole[0]).mean
    by_core = stats.distribution(
        [stats.distribution(one).mean for one in cores]).mean
    if abs(mean - by_core) > 3:
        return (f'utilisation of the machine is {mean:.1f} %, of its CPUs '
                f'{by_core:.1f} % on average',)
    return ()


SCENARIO = Scenario(
    name='mixed-load',
    title='utilisation, faults, switches, balance, priorities and wake-ups '
          'under CPU and memory load',
    parameters=(
        Parameter('runs', 120, 'seconds of a phase, one sample each',
                  minimum=1),
        Parameter('warm-up', 5, 'seconds before them that are discarded'),
        Parameter('cpu', 8, 'CPU stressors'),
        Parameter('vm', 4, 'memory stressors'),
        Parameter('vm-bytes', '4G', 'of all memory stressors'),
        Parameter('cpu-of-tasks', '0', 'that tasks compete for'),
        Parameter('nice', '-5,5', 'values of the tasks that compete'),
        Parameter('real-time-tasks', 1, 'that compete for one CPU; several '
                  'have SCHED_RR', minimum=1),
        Parameter('priority', 80, 'of real-time tasks', minimum=1),
        Parameter('wake-up-runs', 10, 'of cyclictest, for each policy',
                  minimum=1),
        Parameter('loops', 1000, 'wake-ups of a run, 1 ms apart',
                  minimum=1)),
    tools=lambda _values: ('stress-ng', 'mpstat', 'pidstat', 'sar',
                           'cyclictest'),
    needs=_needs, set_up=_set_up, run=_run, verify=_verify)
