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


"""Threads of a running QEMU, read from procfs and the scheduler.

No privilege is needed: sched_getscheduler(2) works for every thread.
"""

import os
from pathlib import Path
import re

from ghsched_nova.base import qemu
from ghsched_nova.features.real_time import deadline
from ghsched_nova.features.real_time.model import Role
from ghsched_nova.features.real_time.model import ScheduledThread
from ghsched_placement.base import cpulist
from ghsched_placement.features.real_time.scheduling import DEADLINE
from ghsched_placement.features.real_time.scheduling import Scheduling

_CLASSES = {os.SCHED_OTHER: 'other', os.SCHED_FIFO: 'fifo',
            os.SCHED_RR: 'rr', os.SCHED_BATCH: 'batch',
            os.SCHED_IDLE: 'idle', deadline.NUMBER: DEADLINE}

#: Flag that is combined with the class, see sched(7).
RESET_ON_FORK = 0x40000000

_REALTIME = frozenset({os.SCHED_FIFO, os.SCHED_RR})

#: Name of an I/O thread of QEMU (``iothread.c``).
_IOTHREAD = re.compile(r'IO iothread([0-9]{1,6})')


def read_online_cpus(sysfs: Path = Path('/sys')) -> frozenset[int]:
    """Read the online CPUs of the host.

    The result is empty if they are unknown.
    """
    return cpulist.read_cpu_list(
        sysfs / 'devices/system/cpu/online') or frozenset()


def read_qemu_threads(
        pid: int, proc: Path = Path('/proc')) -> dict[Role, ScheduledThread]:
    """Read the threads of a QEMU process by role, such as vCPU 3.

    Threads without a known role are left out. If two threads have the same
    name, the older one is returned, because a new thread has its creator's
    name until QEMU renames it.
    """
    found: dict[Role, ScheduledThread] = {}
    try:
        tids = [int(name) for name in os.listdir(proc / str(pid) / 'task')]
    except OSError:
        return found
    for tid in sorted(tids):
        thread = _thread(proc / str(pid) / 'task' / str(tid), tid)
        if thread is not None:
            role = _role(thread[0], tid, pid)
            if role is not None and (
                    role not in found
                    or thread[1].start < found[role].start):
                found[role] = thread[1]
    return found


def read_thread_role(proc: Path, pid: int, tid: int) -> Role | None:
    """Read the role of a QEMU thread, such as vCPU 3, from the thread's name.

    Returns None if the thread has no known role.
    """
    thread = _thread(proc / str(pid) / 'task' / str(tid), tid)
    return None if thread is None else _role(thread[0], tid, pid)


def _thread(path: Path, tid: int) -> tuple[str, ScheduledThread] | None:
    try:
        text = (path / 'stat').read_text(errors='replace')
        return (
            text.partition('(')[2].rpartition(')')[0],
            ScheduledThread(
                tid, parse_start_time(text), read_thread_scheduling(tid),
                frozenset(os.sched_getaffinity(tid)),
                bool(os.sched_getscheduler(tid) & RESET_ON_FORK)))
    except (OSError, ValueError, IndexError):
        return None


def parse_start_time(stat_text: str) -> int:
    """Return a thread's start time in clock ticks since boot.

    :param stat_text: content of the thread's ``stat`` file.
    :raises ValueError: if the text is malformed.
    :raises IndexError: if the text is too short.
    """
    # "4711 (CPU 0/KVM) S 1 ...": the name may contain any characters.
    return int(stat_text.rpartition(')')[2].split()[19])


def read_thread_scheduling(tid: int) -> Scheduling:
    """Read the scheduling class and parameters of a thread.

    :raises OSError: if the thread does not exist.
    """
    number = os.sched_getscheduler(tid) & ~RESET_ON_FORK
    name = _CLASSES.get(number, f'class {number}')
    if name == DEADLINE:
        return deadline.read_deadline_scheduling(tid)
    if number not in _REALTIME:
        return Scheduling(name)
    return Scheduling(name, os.sched_getparam(tid).sched_priority)


def _role(name: str, tid: int, process: int) -> Role | None:
    if tid == process:
        return Role('emulator')
    if (number := qemu.parse_vcpu_number(name)) is not None:
        return Role('vcpu', number)
    match = _IOTHREAD.fullmatch(name)
    return Role('iothread', int(match[1])) if match else None
