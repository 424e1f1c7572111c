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


"""Parsers of kernel files about load and pressure (pure).

None of the functions raises: a malformed text or line counts as unknown.
"""

from collections.abc import Mapping
import re
from typing import NamedTuple

from ghsched_placement.base import decimals

_CPU = re.compile(r'^cpu([0-9]{1,5})((?: +[0-9]{1,20})+) *$', re.MULTILINE)
_COUNT = re.compile(r'^(\w{1,64}) ([0-9]{1,20})$', re.MULTILINE)
_SOME = re.compile(r'^some [^\n]*\btotal=([0-9]{1,20})$', re.MULTILINE)
_ON_NODE = re.compile(r'\bN([0-9]{1,5})=([0-9]{1,15})\b')
_PAGE = re.compile(r'\bkernelpagesize_kB=([0-9]{1,9})\b')

#: Fields of memory.numa_stat that count memory of processes.
_OF_PROCESS = ('anon', 'file')


class CpuTicks(NamedTuple):
    """Busy and total clock ticks of a CPU since boot."""

    busy: int
    total: int


class RunTimes(NamedTuple):
    """Nanoseconds for which a thread ran and for which it waited for a CPU.
    """

    running: int
    waiting: int


class DiskTime(NamedTuple):
    """Time in milliseconds that a block device has spent on requests.

    :param busy: time with at least one request in progress.
    :param queued: sum of the times of all requests.
    """

    busy: int
    queued: int


def parse_cpu_times(text: str) -> dict[int, CpuTicks]:
    """Return each CPU's busy and total clock ticks from ``/proc/stat``.

    I/O wait counts as idle. Guest time is part of user time, see proc_stat(5).
    """
    found = {}
    for match in _CPU.finditer(text):
        ticks = [int(one) for one in match[2].split()][:8]
        if len(ticks) >= 5:
            total = sum(ticks)
            found[int(match[1])] = CpuTicks(total - ticks[3] - ticks[4], total)
    return found


def parse_run_times(text: str) -> RunTimes | None:
    """Return how long a thread ran and waited, from its ``schedstat`` file.

    The thread waited for a CPU while it was runnable
    (Documentation/scheduler/sched-stats.rst).

    :returns: nanoseconds; None if the text is malformed.
    """
    words = text.split()
    if len(words) != 3 or not all(map(_is_number, words)):
        return None
    return RunTimes(int(words[0]), int(words[1]))


def parse_last_cpu(text: str) -> int | None:
    """Return the CPU on which a thread ran last, from its ``stat`` file.

    Returns None if the text is malformed.
    """
    # The command name is in parentheses and may contain parentheses.
    words = text.rpartition(')')[2].split()
    return (int(words[36]) if len(words) > 36 and _is_number(words[36])
            else None)


def parse_stall_time(text: str) -> int | None:
    """Return the microseconds in which some task stalled, from a PSI file.

    Files of PSI (pressure stall information) are ``memory.pressure``,
    ``/proc/pressure/memory`` and the like (Documentation/accounting/psi.rst).

    :returns: None if the text is malformed.
    """
    match = _SOME.search(text)
    return int(match[1]) if match else None


def parse_vmstat(text: str) -> dict[str, int]:
    """Return a NUMA node's counters by name, from its ``vmstat`` file."""
    return {match[1]: int(match[2]) for match in _COUNT.finditer(text)}


def count_refaults(vmstat: Mapping[str, int]) -> int | None:
    """Return the number of reclaimed pages that a NUMA node has read in again.

    A high number means that memory is short. Since Linux 5.9, the kernel
    counts anonymous memory and files separately. The result is their sum.

    :param vmstat: counters of the node by name.
    :returns: None if the kernel does not count such pages by node.
    """
    return _sum(vmstat, ('workingset_refault_anon',
                         'workingset_refault_file', 'workingset_refault'))


def count_reclaimed(vmstat: Mapping[str, int]) -> int | None:
    """Return the number of pages that the kernel has reclaimed on a NUMA node.

    A high number means that memory is short.

    :param vmstat: counters of the node by name.
    :returns: None if the kernel is too old to count them by node.
    """
    return _sum(vmstat, ('pgsteal_kswapd', 'pgsteal_direct',
                         'pgsteal_khugepaged', 'pgsteal_proactive'))


def _sum(vmstat: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    found = [vmstat[name] for name in names if name in vmstat]
    return sum(found) if found else None


def parse_diskstats(text: str) -> dict[str, DiskTime]:
    """Return how long each disk was busy, and how long requests were queued.

    See Documentation/admin-guide/iostats.rst.

    :param text: content of ``/proc/diskstats``.
    :returns: times in milliseconds by name of the disk.
    """
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 14 and all(map(_is_number, words[3:14])):
            found[words[2]] = DiskTime(int(words[12]), int(words[13]))
    return found


def parse_memory_numa_stat(text: str) -> dict[int, int] | None:
    """Return a control group's memory in bytes, by NUMA node.

    The control group is of version 2. The memory is the sum of ``anon`` and
    ``file``, which includes ``shmem``. hugetlbfs pages are not counted.

    :param text: content of ``memory.numa_stat``.
    :returns: None if the text has neither ``anon`` nor ``file``.
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


def parse_numa_maps(text: str) -> dict[int, int]:
    """Return a process's mapped bytes by NUMA node, from ``numa_maps``."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        page = _PAGE.search(line)
        if page is None:
            continue
        for node, pages in _ON_NODE.findall(line):
            found[int(node)] = (found.get(int(node), 0)
                                + int(pages) * int(page[1]) * 1024)
    return found


def parse_guest_control_group(text: str) -> str | None:
    """Return a guest's control group, from ``/proc/PID/cgroup`` of its QEMU.

    libvirt puts threads into child groups. The result is the group of the
    whole machine (cgroups(7), unified hierarchy).

    :returns: None if the host has no unified hierarchy.
    """
    for line in text.splitlines():
        if line.startswith('0::/'):
            path = line[3:]
            head, found, _tail = path.partition('.scope/')
            return head + '.scope' if found else path
    return None


def _is_number(word: str) -> bool:
    return decimals.parse_decimal(word) is not None
