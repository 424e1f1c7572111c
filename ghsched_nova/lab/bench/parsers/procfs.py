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

"""Parsers of the kernel's counters of memory and of waiting tasks (pure).

Formats: Documentation/filesystems/proc.rst and accounting/psi.rst of Linux;
``/proc/PID/schedstat`` is in scheduler/sched-stats.rst.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import re

_TOTAL = re.compile(r'^(some|full) .*\btotal=([0-9]{1,20})$', re.M)
_COUNT = re.compile(r'^(\w+) ([0-9]{1,20})$', re.M)

#: What is shown of /proc/vmstat, by the counters whose sum it is. Kernels have
#: more of them, which are parts of these.
RECLAIM: Mapping[str, tuple[str, ...]] = {
    'pages scanned for reclaim': (
        'pgscan_kswapd', 'pgscan_direct', 'pgscan_khugepaged',
        'pgscan_proactive'),
    'pages reclaimed': (
        'pgsteal_kswapd', 'pgsteal_direct', 'pgsteal_khugepaged',
        'pgsteal_proactive'),
    'refaults': ('workingset_refault_anon', 'workingset_refault_file',
                 'workingset_refault'),
    'pages swapped in': ('pswpin',),
    'pages swapped out': ('pswpout',),
}


@dataclass(frozen=True)
class Moment:
    """Counters at one time.

    :param when: seconds.
    :param counted: of /proc/vmstat.
    :param stalled: microseconds in which some tasks, or all, waited for
        memory; empty where the kernel has no PSI.
    :param waited: of tasks by their PID: nanoseconds on a CPU, and on a run
        queue.
    """

    when: float
    counted: Mapping[str, int]
    stalled: Mapping[str, int] = field(default_factory=dict)
    waited: Mapping[int, tuple[int, int]] = field(default_factory=dict)


def counters(text: str) -> dict[str, int]:
    """/proc/vmstat; lines of another form are left out."""
    return {name: int(value) for name, value in _COUNT.findall(text)}


def stalls(text: str) -> dict[str, int]:
    """/proc/pressure/memory."""
    return {kind: int(total) for kind, total in _TOTAL.findall(text)}


def times(texts: Iterable[tuple[int, str]]) -> dict[int, tuple[int, int]]:
    """/proc/PID/schedstat by PID, without tasks that are gone."""
    found = {}
    for pid, text in texts:
        numbers = text.split()
        if len(numbers) == 3 and all(
                one.isascii() and one.isdigit() for one in numbers):
            found[pid] = int(numbers[0]), int(numbers[1])
    return found


def reclaim(before: Moment, after: Moment) -> dict[str, float]:
    """Return pages per second, of what the kernel counts."""
    seconds = after.when - before.when
    return {word: sum(after.counted[name] - before.counted[name]
                      for name in known) / seconds
            for word, names in RECLAIM.items()
            if (known := [name for name in names if name in after.counted
                          and name in before.counted])}


def stalled(before: Moment, after: Moment) -> dict[str, float]:
    """Return the percent of the time, for some tasks and for all."""
    micro = (after.when - before.when) * 10 ** 6
    return {kind: 100 * (total - before.stalled[kind]) / micro
            for kind, total in after.stalled.items()
            if kind in before.stalled}


def waiting(before: Moment, after: Moment) -> dict[int, float]:
    """Percent of the time that a task could run in which it waited to."""
    found = {}
    for pid, (ran, waited) in after.waited.items():
        if pid in before.waited:
            ran -= before.waited[pid][0]
            waited -= before.waited[pid][1]
            if ran + waited > 0:
                found[pid] = 100 * waited / (ran + waited)
    return found
