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


"""What files of the kernel say of load and waiting (pure).

A text that makes no sense, or a line of it, says nothing: the figure is not
known then. None of these functions raises.
"""

from collections.abc import Mapping
import re
from typing import NamedTuple

_CPU = re.compile(r'^cpu([0-9]{1,5})((?: +[0-9]{1,20})+) *$', re.MULTILINE)
_COUNT = re.compile(r'^(\w{1,64}) ([0-9]{1,20})$', re.MULTILINE)
_SOME = re.compile(r'^some [^\n]*\btotal=([0-9]{1,20})$', re.MULTILINE)
_ON_NODE = re.compile(r'\bN([0-9]{1,5})=([0-9]{1,15})\b')
_PAGE = re.compile(r'\bkernelpagesize_kB=([0-9]{1,9})\b')
_MEMORY = re.compile(
    r'^Node [0-9]+ (MemTotal|MemFree):\s*([0-9]{1,15}) kB$', re.MULTILINE)

#: Fields of memory.numa_stat that are memory of a process.
_OF_PROCESS = ('anon', 'file')


class Times(NamedTuple):
    """Of a CPU: clock ticks, of which it was busy for some."""

    busy: int
    total: int


class Run(NamedTuple):
    """Of a thread: nanoseconds on a CPU, and ready but not on one."""

    running: int
    waiting: int


class Device(NamedTuple):
    """Of a block device: milliseconds with a request under way, and the sum
    over all requests of those that they were.
    """

    busy: int
    queued: int


def cpu_times(text: str) -> dict[int, Times]:
    """``/proc/stat``, by CPU; proc_stat(5).

    Time of guests is in that of users already. Waiting for I/O is idle.
    """
    found = {}
    for match in _CPU.finditer(text):
        ticks = [int(one) for one in match[2].split()][:8]
        if len(ticks) >= 5:
            total = sum(ticks)
            found[int(match[1])] = Times(total - ticks[3] - ticks[4], total)
    return found


def run_times(text: str) -> Run | None:
    """``/proc/PID/task/TID/schedstat``: run time, run_delay, slices.

    Documentation/scheduler/sched-stats.rst.
    """
    words = text.split()
    if len(words) != 3 or not all(map(_is_number, words)):
        return None
    return Run(int(words[0]), int(words[1]))


def last_cpu(text: str) -> int | None:
    """The CPU in ``/proc/PID/task/TID/stat``, field 39 of proc_pid_stat(5).
    """
    # The name is in parentheses, and may have some itself.
    words = text.rpartition(')')[2].split()
    return (int(words[36]) if len(words) > 36 and _is_number(words[36])
            else None)


def stalled(text: str) -> int | None:
    """Microseconds that some task waited: ``memory.pressure`` and the like.

    Documentation/accounting/psi.rst.
    """
    match = _SOME.search(text)
    return int(match[1]) if match else None


def counts(text: str) -> dict[str, int]:
    """``vmstat`` of a NUMA node: a name and a number on each line."""
    return {match[1]: int(match[2]) for match in _COUNT.finditer(text)}


def refaults(vmstat: Mapping[str, int]) -> int | None:
    """Pages that were read again; one counter of both kinds until 5.9."""
    return _sum(vmstat, ('workingset_refault_anon',
                         'workingset_refault_file', 'workingset_refault'))


def reclaimed(vmstat: Mapping[str, int]) -> int | None:
    """Pages that were taken back; counted by node in newer kernels only."""
    return _sum(vmstat, ('pgsteal_kswapd', 'pgsteal_direct',
                         'pgsteal_khugepaged', 'pgsteal_proactive'))


def _sum(vmstat: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    found = [vmstat[name] for name in names if name in vmstat]
    return sum(found) if found else None


def devices(text: str) -> dict[str, Device]:
    """``/proc/diskstats`` by name; Documentation/admin-guide/iostats.rst."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 14 and all(map(_is_number, words[3:14])):
            found[words[2]] = Device(int(words[12]), int(words[13]))
    return found


def node_memory(text: str) -> tuple[int, int] | None:
    """KiB in all and free: ``meminfo`` of a NUMA node."""
    found = dict(_MEMORY.findall(text))
    if len(found) != 2:
        return None
    return int(found['MemTotal']), int(found['MemFree'])


def group_memory(text: str) -> dict[int, int] | None:
    """Bytes by NUMA node: ``memory.numa_stat`` of a control group, v2.

    Huge pages of hugetlbfs are not in it. ``shmem`` is part of ``file``.

    :returns: None when it is none.
    """
    found: dict[int, int] = {}
    known = False
    for line in text.splitlines():
        name, _space, rest = line.partition(' ')
        if name in _OF_PROCESS:
            known = True
            for node, amount in _ON_NODE.findall(rest):
                found[int(node)] = found.get(int(node), 0) + int(amount)
    return found if known else None


def mapped_memory(text: str) -> dict[int, int]:
    """Bytes by NUMA node: ``/proc/PID/numa_maps``, proc_pid_numa_maps(5)."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        page = _PAGE.search(line)
        if page is None:
            continue
        for node, pages in _ON_NODE.findall(line):
            found[int(node)] = (found.get(int(node), 0)
                                + int(pages) * int(page[1]) * 1024)
    return found


def group_of(text: str) -> str | None:
    """The path in the unified hierarchy: ``/proc/PID/cgroup``, cgroups(7).

    libvirt puts threads into groups below that of the machine; what is read
    is the machine's.
    """
    for line in text.splitlines():
        if line.startswith('0::/'):
            path = line[3:]
            head, found, _tail = path.partition('.scope/')
            return head + '.scope' if found else path
    return None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20
