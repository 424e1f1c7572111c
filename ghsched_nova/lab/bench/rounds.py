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

"""Scripts that guests run, and the parsing of their output (pure).

A guest repeats a load, and prints what the program said after each run. Each
line carries the number of its run and that it is ours, because the kernel and
cloud-init of the guest write to the same console; the last line of a run tells
how many lines it has, because Nova keeps the end of a console only.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
import re
import shlex

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.parsers import fio
from ghsched_nova.lab.bench.parsers import redis
from ghsched_nova.lab.bench.parsers import stress_ng

_LINE = re.compile(r'ghsched-bench ([0-9]{1,9})\| ?(.*)')
_END = re.compile(r'ghsched-bench ([0-9]{1,9}) ended ([0-9]{1,3}) '
                  r'([0-9]{1,9})')
_PROBLEM = re.compile(r'ghsched-bench problem: (.*)')

#: For sh, busybox's as well. %(program)s and %(command)s are of a load.
_NEEDS = '''command -v %(program)s >/dev/null || {
  echo "ghsched-bench problem: the image has no %(program)s"
  exit 1
}
'''
# Files are not in /tmp, which may be memory.
_REPEAT = '''cd /var/tmp 2>/dev/null
number=0
while :; do
  number=$((number + 1))
  said=$(%(command)s 2>&1)
  status=$?
  printf '%%s\\n' "$said" | tr '\\r' '\\n' | sed "s/^/ghsched-bench $number| /"
  lines=$(printf '%%s\\n' "$said" | tr '\\r' '\\n' | wc -l)
  echo "ghsched-bench $number ended $status" $lines
done
'''

#: To the console, from user data; over ssh all goes to standard output.
CONSOLE = '#!/bin/sh\nexec >/dev/console 2>&1\n'


@dataclass(frozen=True)
class Round:
    """A run of a load in a guest, with its output.

    :param number: from 1 on, as the guest counts.
    :param status: exit status.
    """

    number: int
    status: int
    text: str


@dataclass(frozen=True)
class Figures:
    """Latency and rate of one run of a load.

    :param latency: ms; what the line is drawn at.
    :param rate: operations per second.
    """

    latency: float
    rate: float


@dataclass(frozen=True)
class Load:
    """A load that a guest repeats.

    :param argv: one run.
    :param title: of its latency.
    :param read: what a run printed.
    """

    argv: tuple[str, ...]
    title: str
    read: Callable[[str], Figures]


def served(argv: Sequence[str]) -> str:
    """Return the script of a guest that serves until it is deleted."""
    return _NEEDS % {'program': shlex.quote(argv[0])} + (
        f'exec {shlex.join(argv)}\n')


def repeated(argv: Sequence[str]) -> str:
    """Return the script of a guest that repeats a load until it is deleted."""
    return (_NEEDS + _REPEAT) % {'program': shlex.quote(argv[0]),
                                 'command': shlex.join(argv)}


def rounds(output: str) -> tuple[Round, ...]:
    """Return the runs that are there in full, in their order."""
    lines: dict[int, list[str]] = {}
    found = {}
    for line in _lines(output):
        said, ended = _LINE.fullmatch(line), _END.fullmatch(line)
        if said:
            lines.setdefault(int(said[1]), []).append(said[2])
        elif ended and len(lines.get(int(ended[1]), ())) == int(ended[3]):
            number = int(ended[1])
            found[number] = Round(number, int(ended[2]),
                                  '\n'.join(lines[number]))
    return tuple(found[number] for number in sorted(found))


def _lines(output: str) -> list[str]:
    """Return the lines of a terminal's output, without carriage returns."""
    return [line.rstrip('\r') for line in output.split('\n')]


def problem(output: str) -> str:
    """Return the reason why a guest does not run its load; empty if it does.
    """
    for line in _lines(output):
        match = _PROBLEM.fullmatch(line)
        if match:
            return match[1].strip()
    return ''


def last(output: str) -> int:
    """Return the number of the last completed run; 0 if there is none."""
    return max((one.number for one in rounds(output)), default=0)


def fresh(found: Sequence[Round], since: int, warm_up: int, runs: int
          ) -> tuple[Round, ...] | None:
    """Return the runs that count.

    :param since: the last that had ended when all load was on. The one after
        it began before, so that it does not count.
    :returns: None while there are too few.
    :raises BenchError: when one that counts has failed.
    """
    kept = [one for one in found
            if one.number > since + 1 + warm_up][:runs]
    for one in kept:
        if one.status:
            raise errors.BenchError(
                f'the load in a guest ended with {one.status}: '
                f'{" ".join(one.text.split())[-200:]}')
    return tuple(kept) if len(kept) == runs else None


# -- the loads ----------------------------------------------------------------


def _stress(text: str) -> Figures:
    """Return the mean of stress-ng's operations; it prints no distribution."""
    rate = stress_ng.parse(text)[0].rate
    if rate <= 0:
        raise errors.ParseError('stress-ng', 'no operation ended', text)
    return Figures(1000 / rate, rate)


def _fio(text: str) -> Figures:
    found = fio.parse(text)[0]
    return Figures(found.p99 / 1e6, found.iops)


def _redis(text: str) -> Figures:
    found = redis.parse(text)[0]
    return Figures(found.p99, found.throughput)


def inside(workload: str, seconds: int, stressor: str) -> Load:
    """Return the loads that need no client.

    :param workload: "stress" or "fio".
    :param seconds: of a run.
    :param stressor: of stress-ng.
    """
    if workload == 'stress':
        return Load(('stress-ng', f'--{stressor}', '1', '--timeout',
                     f'{seconds}s', '--metrics-brief'),
                    'time of an operation', _stress)
    return Load(('fio', '--name', 'randread', '--rw', 'randread', '--bs',
                 '4k', '--size', '256M', '--filename',
                 'ghsched-bench-fio.data', '--direct', '1',
                 '--runtime', str(seconds), '--time_based',
                 '--output-format', 'json'), 'p99 latency', _fio)


def client(argv: Sequence[str]) -> Load:
    """redis-benchmark, in a guest."""
    return Load(tuple(argv), 'p99 latency', _redis)


def contained(engine: str, image: str, argv: Sequence[str]
              ) -> tuple[str, ...]:
    """Return a command in a container of the guest.

    :param engine: "docker", "podman", or "none" for no container.
    """
    if engine == 'none':
        return tuple(argv)
    return (engine, 'run', '--rm', '--network', 'host', image, *argv)
