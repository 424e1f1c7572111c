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


"""What needs CAP_SYS_NICE: to set the class of a thread of another user."""

from collections.abc import Callable
from collections.abc import Iterable
import functools
import os

from ghsched_nova import privsep
from ghsched_nova.threads import deadline
from ghsched_nova.threads.model import Action
from ghsched_nova.threads import survey
from ghsched_placement.scheduling import Scheduling

_NUMBERS = {'other': os.SCHED_OTHER, 'fifo': os.SCHED_FIFO,
            'rr': os.SCHED_RR, 'batch': os.SCHED_BATCH,
            'idle': os.SCHED_IDLE}

#: 1 % of a CPU, to see whether the kernel would give it.
_TRIAL = Scheduling('deadline', None, 1000, 100000, 100000)


def set_class(action: Action) -> str:
    """Give a thread its class or its CPUs, if it is still that thread.

    :returns: why it could not be done; empty when it was.
    """
    wanted = action.scheduling
    if action.cpus:
        return _pin(action.thread.tid, action.thread.start,
                    sorted(action.cpus))
    return _set(action.thread.tid, action.thread.start, wanted.scheduler,
                wanted.priority or 0, wanted.runtime_us or 0,
                wanted.deadline_us or 0, wanted.period_us or 0)


def perform(action: Action) -> str:
    """:func:`set_class` in a process that may; see there."""
    if action.cpus:
        return pin(action.thread.tid, action.thread.start, action.cpus)
    return apply(action.thread.tid, action.thread.start, action.scheduling)


def realtime_refused() -> str:
    """Try fifo on a child of the privileged process.

    :returns: why the kernel refuses it, e.g. no real-time budget of a control
        group of CPUs (RT_GROUP_SCHED); empty when it does not.
    """
    return _try()


@privsep.threads.entrypoint
def _set(tid: int, start: int, scheduler: str, priority: int, runtime: int,
         end: int, period: int) -> str:
    return apply(tid, start, Scheduling(
        scheduler, priority or None, runtime or None, end or None,
        period or None))


@privsep.threads.entrypoint
def _pin(tid: int, start: int, cpus: list[int]) -> str:
    return pin(tid, start, cpus)


def deadline_refused(places: Iterable[Iterable[int]]) -> str:
    """Try deadline on a child that may run on some CPUs alone.

    :param places: CPUs that a vCPU may run on: one, or those that are shared
        on a NUMA node.
    :returns: as :func:`realtime_refused`.
    """
    return _try_deadline(sorted(map(sorted, places)))


@privsep.threads.entrypoint
def _try_deadline(places: list[list[int]]) -> str:
    return next(filter(None, (
        _in_child(functools.partial(_own_deadline, cpus))
        for cpus in places)), '')


@privsep.threads.entrypoint
def _try() -> str:
    return _try_here()


def _try_here() -> str:
    return _in_child(functools.partial(_own_class, os.SCHED_FIFO))


def _in_child(attempt: Callable[[], int]) -> str:
    """What an attempt of a child of this process comes to.

    :param attempt: gives an errno, or 0.
    """
    child = os.fork()
    if child == 0:
        os._exit(attempt())
    _child, status = os.waitpid(child, 0)
    error = os.waitstatus_to_exitcode(status)
    return deadline.explained(error) if error else ''


def pin(tid: int, start: int, cpus: Iterable[int]) -> str:
    """Say which CPUs a thread may run on, if it is still that thread."""
    try:
        if _start(tid) != start:
            return f'thread {tid} has ended'
        os.sched_setaffinity(tid, cpus)
    except (OSError, ValueError, IndexError) as error:
        return f'thread {tid}: {error}'
    return ''


def apply(tid: int, start: int, scheduling: Scheduling) -> str:
    """Give a thread its class, if it is still that thread."""
    try:
        if _start(tid) != start:
            return f'thread {tid} has ended'
        if scheduling.runtime_us:
            return deadline.write(tid, scheduling)
        flag = os.sched_getscheduler(tid) & survey.RESET_ON_FORK
        os.sched_setscheduler(tid, _NUMBERS[scheduling.scheduler] | flag,
                              os.sched_param(scheduling.priority or 0))
    except (OSError, ValueError, IndexError) as error:
        return f'thread {tid}: {error}'
    return ''


def _start(tid: int) -> int:
    with open(f'/proc/{tid}/stat', errors='replace') as file:
        return survey.start_of(file.read())


def _own_deadline(cpus: Iterable[int]) -> int:
    try:
        os.sched_setaffinity(0, cpus)
        return deadline.write_errno(0, _TRIAL)
    except OSError as error:
        return error.errno or 1


def _own_class(number: int) -> int:
    try:
        os.sched_setscheduler(0, number, os.sched_param(1))
    except OSError as error:
        return error.errno or 1
    return 0
