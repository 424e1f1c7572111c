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

"""Measure the processor time of finding out who disturbs a server.

The host is emulated, with guests whose memory traffic is simulated: four are
suspected, and no one disturbs the server, so that each is capped several
times. The time that the simulation takes between two measurements does not
count, that of the emulated kernel within a write does. Prints the processor
time of the whole answer and of recording one report, as parts of the time that
they take on the host (a minute for a report), and the ratio of the answer to
merely opening, reading and closing each file of resctrl once per measurement.

usage: python tools/bench/blame_bench.py [--guests N ...] [--seed TEXT]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Callable
import contextlib
import dataclasses
from pathlib import Path
import time
from typing import Any

import raw_reads

from ghsched_nova.host import blame_session
from ghsched_nova.tests.fixtures import blame_cases
from ghsched_nova.tests.fixtures import blame_hosts
from ghsched_nova.tests.fixtures import shared_memory
from ghsched_placement.policy import NodePolicy

#: Seconds between two reports of nova-compute.
_PERIOD = 60.0

#: Reports that are recorded.
_REPORTS = 5


class Stopwatch:
    """Processor time without that of the simulation."""

    def __init__(self) -> None:
        self._simulated = 0.0
        self._begun = time.process_time()

    def exclude(self, simulate: Callable[[float], None]
                ) -> Callable[[float], None]:
        """Return a function whose processor time does not count."""
        def timed(seconds: float) -> None:
            begun = time.process_time()
            simulate(seconds)
            self._simulated += time.process_time() - begun
        return timed

    def read(self) -> float:
        """Return the seconds since the last reading."""
        now = time.process_time()
        found = now - self._begun - self._simulated
        self._begun, self._simulated = now, 0.0
        return found


def make_case(guests: int) -> blame_cases.Case:
    """Return a host of guests of which four are suspects, and none disturbs.
    """
    tenants = [shared_memory.Tenant(
        'victim' if not number else f'guest-{number}', 2,
        per_instruction=.01 if number <= 4 else .001, footprint=200,
        parallel=4, policy=NodePolicy(minimum=1)) for number in range(guests)]
    return blame_cases.Case(0, tenants, '', 'crowd', False)


def list_files(top: Path) -> list[str]:
    """Return the paths of the files of resctrl that can be read."""
    found = []
    for path in top.rglob('*'):
        if path.is_file():
            with contextlib.suppress(OSError):
                path.read_bytes()
                found.append(str(path))
    return found


def measure(guests: int, seed: str) -> tuple[float, float, float, int]:
    """Measure one host.

    :returns: processor time of one report and of an answer, as parts of the
        time that they take; ratio of the answer to reading the files; number
        of trials.
    """
    case = make_case(guests)
    with contextlib.ExitStack() as stack:
        host = blame_hosts.open_host(case, seed, stack)
        probe: Any = host.probe(case.victim)
        watch = Stopwatch()
        probe.clocks = dataclasses.replace(
            probe.clocks, sleep=watch.exclude(probe.clocks.sleep))
        watch.read()
        record = list(blame_cases.make_record(probe, _REPORTS))
        report = watch.read() / (_REPORTS + 1)
        begun = host.now
        measured = _count_calls(probe)
        found = blame_session.Session(
            case.victim.uuid, record, probe).collect_evidence(True)
        answer, seconds = watch.read(), host.now - begun
        paths = list_files(host.root)
        watch.read()
        raw_reads.read_files(paths)
        once = watch.read()
        return (report / _PERIOD, answer / seconds,
                answer / (once * len(measured)),
                sum(map(len, found.tried.values())))


def _count_calls(probe: Any) -> list[None]:
    """Return a list that grows with each measurement of a probe."""
    calls: list[None] = []
    measure_once = probe.measure

    def count() -> Any:
        calls.append(None)
        return measure_once()
    probe.measure = count
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--guests', type=int, nargs='+', default=[2, 10, 40])
    parser.add_argument('--seed', default='1')
    arguments = parser.parse_args()
    for guests in arguments.guests:
        report, answer, ratio, trials = measure(guests, arguments.seed)
        print(f'{guests} guests: a report {100 * report:.3f} % of a CPU, an '
              f'answer with {trials} trials {100 * answer:.2f} %; ratio: '
              f'{ratio:.1f} of reading the files')


if __name__ == '__main__':
    main()
