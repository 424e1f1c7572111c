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


"""Wake-up latency inside guests whose threads have different classes.

Boots small guests of plain QEMU with TCG, without a cloud: what the classes
of QEMU's threads do to a guest under load is the same, and its size is not
that of a guest with KVM. The vCPU thread runs on one CPU, beside a program
that computes there, and QEMU's main thread on another, as a flavor with
``hw:emulator_threads_policy`` has it. Classes are set as
:mod:`ghsched_nova.features.real_time` sets them, when the guest has booted.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
from pathlib import Path
import re
import subprocess  # noqa: S404
import time

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import guest
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench import stats

#: (policy, whether QEMU's memory is locked, whether there is a hog)
Setting = tuple[str, bool, bool]

#: What the first process of the guest does; each wake-up is printed.
_INIT = guest.PROLOGUE + '''echo GUEST-READY
read -r word
for run in $(seq RUNS); do
    cyclictest -v -t1 -p80 -i INTERVAL -l LOOPS > /out
    awk -F : 'NF == 3 { print $3 + 0 }' /out | sort -n | awk '
        { us[NR] = $1; sum += $1 }
        END { print "GUEST-RUN", us[1], us[int((NR + 1) / 2)],
                    int(sum / NR), us[NR] }'
done
echo GUEST-DONE
while :; do sleep 3600; done
'''
_RUN = re.compile(r'GUEST-RUN (\d+) (\d+) (\d+) (\d+)')
_METRICS = ('minimum latency', 'median latency', 'average latency',
            'maximum latency')
_BOOT_SECONDS = 300

#: What it takes beside cyclictest.
PROGRAMS = (*guest.PROGRAMS, 'taskset')


def run(bench: Bench, todo: Sequence[Setting]) -> Measured:
    """Measure each setting in a guest of its own, one after the other."""
    kernel = Path(bench.values.text('guest-image'))
    initrd = guest.make_ramdisk(
        bench.machine, bench.work, init(bench.values),
        [bench.machine.which('cyclictest')])
    series = []
    for setting in todo:
        bench.say('guest with ' + ', '.join(
            f'{name} {value}' for name, value in conditions(setting)))
        found = _guest(bench, kernel, initrd, setting)
        series += [
            Series(metric, 'us', 'lower', tuple(float(row[place])
                                                for row in found),
                   conditions(setting), bench.values.integer('warm-up'))
            for place, metric in enumerate(_METRICS)]
    return Measured(tuple(series), findings(series))


def conditions(setting: Setting) -> tuple[tuple[str, str], ...]:
    policy, locked, hog = setting
    return (('guest', 'TCG'), ('policy', policy),
            ('memory of QEMU locked', 'yes' if locked else 'no'),
            ('hog', 'yes' if hog else 'no'))


def findings(series: Sequence[Series]) -> tuple[Finding, ...]:
    """Return, for each setting, the median of the runs' medians and the worst
    run.
    """
    medians = [one for one in series if one.metric == _METRICS[1]]
    worst = {one.conditions: max(one.samples) for one in series
             if one.metric == _METRICS[3]}
    return tuple(
        Finding('median wake-up delay, ' + ', '.join(
            f'{name} {value}' for name, value in one.conditions),
            f'{stats.quantile(one.samples, 0.5):g} us, worst run '
            f'{worst[one.conditions]:g} us',
            stats.quantile(one.samples, 0.5), 'us') for one in medians)


def init(values: Values) -> str:
    """Return the first process of the guest, a shell script."""
    words = {'RUNS': values.integer('runs') + values.integer('warm-up'),
             'INTERVAL': values.integer('interval'),
             'LOOPS': values.integer('loops')}
    return re.sub('|'.join(words), lambda match: str(words[match[0]]), _INIT)


def _guest(bench: Bench, image: Path, initrd: Path,
           setting: Setting) -> list[tuple[int, ...]]:
    """Minimum, median, average and maximum of each run that is kept."""
    values = bench.values
    runs = values.integer('runs') + values.integer('warm-up')
    expected = values.integer('interval') * values.integer('loops') / 1e6
    with _booted(bench, image, initrd, setting) as (process, console):
        _wait(console, 'GUEST-READY', _BOOT_SECONDS)
        with _arranged(process.pid, setting):
            assert process.stdin is not None  # noqa: S101
            process.stdin.write(b'go\n')
            process.stdin.flush()
            text = _wait(console, 'GUEST-DONE',
                         runs * (expected * 4 + 30) + 60)
    found = [tuple(map(int, row)) for row in _RUN.findall(text)]
    if len(found) != runs:
        raise errors.BenchError(f'the guest has done {len(found)} of {runs} '
                                f'runs: {text[-300:]}')
    return found[values.integer('warm-up'):]


@contextlib.contextmanager
def _booted(bench: Bench, image: Path, initrd: Path, setting: Setting
            ) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    console = bench.work / 'console'
    argv = [*guest.qemu_command(image, initrd, 256, 1, 'tcg'),
            '-name', 'rt,debug-threads=on', '-overcommit',
            f'mem-lock={"on" if setting[1] else "off"}']
    with console.open('wb') as stream, subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=stream,
            stderr=subprocess.STDOUT) as process:
        try:
            yield process, console
        finally:
            process.kill()


@contextlib.contextmanager
def _arranged(pid: int, setting: Setting) -> Iterator[None]:
    """Class and CPUs of the guest's threads, and what disturbs it."""
    policy, _locked, hog = setting
    cpus = sorted(os.sched_getaffinity(0))
    mine, others = cpus[-1], set(cpus[:-1]) or set(cpus)
    for tid in map(int, os.listdir(f'/proc/{pid}/task')):
        name = Path(f'/proc/{pid}/task/{tid}/comm').read_text()
        vcpu = name.startswith('CPU ')
        os.sched_setaffinity(tid, {mine} if vcpu else others)
        if policy != 'other' and (vcpu or tid == pid):
            number = {'fifo': os.SCHED_FIFO, 'rr': os.SCHED_RR}[policy]
            os.sched_setscheduler(tid, number, os.sched_param(10))
    if not hog:
        yield
        return
    with subprocess.Popen(['taskset', '-c', str(mine), 'sh', '-c',
                           'while :; do :; done']) as busy:
        try:
            yield
        finally:
            busy.kill()


def _wait(console: Path, word: str, seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = console.read_text(errors='replace')
        if word in text:
            return text
        time.sleep(0.2)
    raise errors.BenchError(f'the guest does not say {word}: '
                            + console.read_text(errors='replace')[-300:])
