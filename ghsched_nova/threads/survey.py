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


"""The threads of a running QEMU, read from procfs and the scheduler.

Needs no privilege: sched_getscheduler(2) answers for every thread.
"""

import os
from pathlib import Path

from ghsched_nova import qemu
from ghsched_nova.threads import deadline
from ghsched_nova.threads.model import Role
from ghsched_nova.threads.model import Thread
from ghsched_placement import cpulist
from ghsched_placement.scheduling import DEADLINE
from ghsched_placement.scheduling import Scheduling

_CLASSES = {os.SCHED_OTHER: 'other', os.SCHED_FIFO: 'fifo',
            os.SCHED_RR: 'rr', os.SCHED_BATCH: 'batch',
            os.SCHED_IDLE: 'idle', deadline.NUMBER: DEADLINE}

#: A flag beside the class, see sched(7).
RESET_ON_FORK = 0x40000000

_REALTIME = frozenset({os.SCHED_FIFO, os.SCHED_RR})


def online(sysfs: Path = Path('/sys')) -> frozenset[int]:
    """The CPUs that threads can run on; empty when that is not known."""
    try:
        return cpulist.parse(
            (sysfs / 'devices/system/cpu/online').read_text().strip())
    except (OSError, ValueError):
        return frozenset()


def threads(process: int, proc: Path = Path('/proc')) -> dict[Role, Thread]:
    """The threads of a QEMU that have a role; others are left out.

    A thread that ends meanwhile is left out, too. QEMU names its threads when
    it makes them, so of two that have the name of a role the older one has
    it.
    """
    found: dict[Role, Thread] = {}
    try:
        tids = [int(name) for name in os.listdir(proc / str(process) / 'task')]
    except OSError:
        return found
    for tid in sorted(tids):
        thread = _thread(proc / str(process) / 'task' / str(tid), tid)
        if thread is not None:
            role = _role(thread[0], tid, process)
            if role is not None and (
                    role not in found
                    or thread[1].start < found[role].start):
                found[role] = thread[1]
    return found


def role_of(proc: Path, process: int, tid: int) -> Role | None:
    """Return the role of a thread by its name; None for one without a role."""
    thread = _thread(proc / str(process) / 'task' / str(tid), tid)
    return None if thread is None else _role(thread[0], tid, process)


def _thread(path: Path, tid: int) -> tuple[str, Thread] | None:
    try:
        text = (path / 'stat').read_text(errors='replace')
        return (text.partition('(')[2].rpartition(')')[0],
                Thread(tid, start_of(text), scheduling(tid),
                       frozenset(os.sched_getaffinity(tid)),
                       bool(os.sched_getscheduler(tid) & RESET_ON_FORK)))
    except (OSError, ValueError, IndexError):
        return None


def start_of(stat: str) -> int:
    """The start time in the text of a ``stat`` file, see :class:`Thread`.

    :raises ValueError: when it is no such text.
    :raises IndexError: likewise.
    """
    # "4711 (CPU 0/KVM) S 1 ...": the name may hold anything.
    return int(stat.rpartition(')')[2].split()[19])


def scheduling(tid: int) -> Scheduling:
    """How the kernel schedules a thread.

    :raises OSError: when there is no such thread.
    """
    number = os.sched_getscheduler(tid) & ~RESET_ON_FORK
    name = _CLASSES.get(number, f'class {number}')
    if name == DEADLINE:
        return deadline.read(tid)
    if number not in _REALTIME:
        return Scheduling(name)
    return Scheduling(name, os.sched_getparam(tid).sched_priority)


def _role(name: str, tid: int, process: int) -> Role | None:
    if tid == process:
        return Role('emulator')
    if (number := qemu.vcpu_of(name)) is not None:
        return Role('vcpu', number)
    if (number := qemu.iothread_of(name)) is not None:
        return Role('iothread', number)
    return None
