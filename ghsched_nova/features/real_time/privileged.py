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

"""Privileged functions that set the scheduling class and CPUs of QEMU threads.

They require CAP_SYS_NICE.
"""

from collections.abc import Callable
from collections.abc import Iterable
import functools
import os
from pathlib import Path
import signal
import threading
import time
from typing import Annotated

from oslo_config import cfg

from ghsched_nova.base import bounds
from ghsched_nova.base.bounds import Range
from ghsched_nova.base import privsep
from ghsched_nova.base import qemu
from ghsched_nova.features.real_time import deadline
from ghsched_nova.features.real_time.model import Kind
from ghsched_nova.features.real_time.model import Role
from ghsched_nova.features.real_time.model import ThreadChange
from ghsched_nova.features.real_time import survey
from ghsched_placement.base import cpulist
from ghsched_placement.features.real_time.scheduling import DEADLINE
from ghsched_placement.features.real_time.scheduling import REALTIME
from ghsched_placement.features.real_time.scheduling import Scheduling

_NUMBERS = {'other': os.SCHED_OTHER, 'fifo': os.SCHED_FIFO,
            'rr': os.SCHED_RR, 'batch': os.SCHED_BATCH,
            'idle': os.SCHED_IDLE}

#: Deadline parameters of a trial: 1 % of a CPU.
_TRIAL = Scheduling('deadline', None, 1000, 100000, 100000)

#: Seconds within which a child process has to try a class.
_TRIAL_TIMEOUT = 10.0
#: Sets of CPUs in one call at most, and seconds until all are tried: the
#: caller gives up then, so a further trial would serve nobody.
_MAX_TRIALS = 2048
_TRIALS_TIMEOUT = 60.0

_PROC = Path('/proc')

_Cpus = list[Annotated[int, Range(0, cpulist.MAX_CPUS - 1)]]
_Microseconds = Annotated[int, Range(0, 2 ** 32)]


def _check_guest_thread(value: tuple[str, Kind, int, int, int]) -> None:
    """Refuse a thread ID that does not belong to the named guest thread.

    The thread is, for example, vCPU 3 of a running guest. The privileged
    helper checks its arguments, as it runs as root.

    :param value: name of the domain, kind, number, thread id, start time.
    """
    name, kind, number, tid, _start = value
    process = qemu.find_qemu_process(privsep.get_qemu_pid_directory(), name)
    if process is None or not (_PROC / str(process) / 'task'
                               / str(tid)).is_dir():
        raise bounds.OutOfBounds(
            f'thread {tid} does not belong to domain {name}')
    vcpus = (qemu.read_vcpu_threads(privsep.get_qemu_pid_directory(), name)
             if kind == 'vcpu' else None)
    role = (
        Role(kind, number) if (vcpus or {}).get(number) == tid else None
        if vcpus else survey.read_thread_role(_PROC, process, tid))
    if role != Role(kind, number):
        raise bounds.OutOfBounds(f'thread {tid} of domain {name} is not its '
                                 f'{Role(kind, number)}')


def _check_scheduling_class(value: tuple[str, int, int, int, int]) -> None:
    """Refuse a scheduling class that guest threads must not have.

    The options of the privileged helper say which classes are permitted.

    :param value: class, priority, runtime, deadline, period.
    """
    scheduler, priority, *times = value
    section = cfg.CONF.ghsched
    if scheduler not in (*_NUMBERS, DEADLINE):
        raise bounds.OutOfBounds(f'{scheduler} is not a scheduling class')
    if bool(priority) != (scheduler in REALTIME):
        raise bounds.OutOfBounds(f'class {scheduler} cannot have priority '
                                 f'{priority}')
    if all(times) != any(times) or bool(times[0]) != (scheduler == DEADLINE):
        raise bounds.OutOfBounds(f'class {scheduler} cannot have the times '
                                 f'{times}')
    if priority > section.realtime_priority_max:
        raise bounds.OutOfBounds(
            f'priority {priority} is above [ghsched]realtime_priority_max in '
            'the configuration of the privileged helper')
    if scheduler == DEADLINE and not section.deadline_guests:
        raise bounds.OutOfBounds('[ghsched]deadline_guests is off in the '
                                 'configuration of the privileged helper')


def _check_number_of_trials(places: list[list[int]]) -> None:
    """Refuse a test of more sets of CPUs than a host can have."""
    if len(places) > _MAX_TRIALS:
        raise bounds.OutOfBounds(f'{len(places)} sets of CPUs are more than '
                                 f'{_MAX_TRIALS}')


_Thread = Annotated[tuple[qemu.DomainName, Kind,
                          Annotated[int, Range(0, 2 ** 16)],
                          privsep.Pid, privsep.StartTime], _check_guest_thread]
_Class = Annotated[tuple[Annotated[str, bounds.Text('[a-z]+', 16)],
                         Annotated[int, Range(0, 99)],
                         _Microseconds, _Microseconds, _Microseconds],
                   _check_scheduling_class]


def apply_thread_change(action: ThreadChange) -> str:
    """Apply a planned change of a thread's scheduling class or CPUs.

    The privileged helper applies the change as root.

    :param action: the planned change.
    :returns: error message; empty on success.
    """
    thread = (action.domain, action.role.kind, action.role.number,
              action.thread.tid, action.thread.start)
    wanted = action.scheduling
    try:
        if action.cpus:
            return _pin(thread, sorted(action.cpus))
        return _set(thread, (wanted.scheduler, wanted.priority or 0,
                             wanted.runtime_us or 0, wanted.deadline_us or 0,
                             wanted.period_us or 0))
    except (bounds.OutOfBounds, privsep.HelperTimeout) as error:
        return str(error)


def apply_thread_change_as_root(action: ThreadChange) -> str:
    """Set the scheduling class or CPUs of a thread; the caller must be root.

    :returns: error message; empty on success.
    """
    if action.cpus:
        return set_thread_cpus(
            action.thread.tid, action.thread.start, action.cpus)
    return apply_scheduling_class(
        action.thread.tid, action.thread.start, action.scheduling)


def probe_realtime_scheduling() -> str:
    """Test whether the kernel allows real-time scheduling (class fifo).

    The test runs in a child process.

    :returns: reason why the kernel refuses it, e.g. no real-time budget of the
        control group (RT_GROUP_SCHED); empty if the kernel allows it.
    """
    return _try()


@privsep.entrypoint(privsep.threads, timeout=30.0)
def _set(thread: _Thread, wanted: _Class) -> str:
    *_role, tid, start = thread
    scheduler, priority, *times = wanted
    return apply_scheduling_class(tid, start, Scheduling(
        scheduler, priority or None, *(time or None for time in times)))


@privsep.entrypoint(privsep.threads, timeout=30.0)
def _pin(thread: _Thread, cpus: _Cpus) -> str:
    *_role, tid, start = thread
    return set_thread_cpus(tid, start, cpus)


def probe_deadline_scheduling(cpu_sets: Iterable[Iterable[int]]) -> str:
    """Test whether the kernel allows deadline scheduling on sets of CPUs.

    The test runs in a child process.

    :param cpu_sets: sets of CPUs to try: one CPU of a vCPU, or the shared CPUs
        of a NUMA node.
    :returns: reason why the kernel refuses it; empty if the kernel allows it.
    """
    return _try_deadline(sorted(map(sorted, cpu_sets)))


@privsep.entrypoint(privsep.threads, timeout=_TRIALS_TIMEOUT)
def _try_deadline(
        places: Annotated[list[_Cpus], _check_number_of_trials]) -> str:
    end = time.monotonic() + _TRIALS_TIMEOUT
    for cpus in places:
        if time.monotonic() > end:
            return f'not all CPUs were tried within {_TRIALS_TIMEOUT:g} s'
        reason = _run_in_child_process(functools.partial(_own_deadline, cpus))
        if reason:
            return reason
    return ''


@privsep.entrypoint(privsep.threads, timeout=30.0)
def _try() -> str:
    return _try_here()


def _try_here() -> str:
    return _run_in_child_process(functools.partial(_own_class, os.SCHED_FIFO))


def _run_in_child_process(test: Callable[[], int]) -> str:
    """Run a test of a scheduling class in a child process.

    In this process, a thread without CPU time could keep the Python
    interpreter lock.

    :param test: function that returns an errno, or 0.
    :returns: error text; empty on success.
    """
    child = os.fork()
    if child == 0:
        error = 1
        try:
            error = test()
        finally:
            os._exit(error)
    end = time.monotonic() + _TRIAL_TIMEOUT
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            error = os.waitstatus_to_exitcode(status)
            return deadline.explain_scheduling_errno(error) if error else ''
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    # It needs CPU time to end, too, so the helper does not wait for it.
    threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()
    return f'it got no CPU time within {_TRIAL_TIMEOUT:g} seconds'


def set_thread_cpus(tid: int, start_time: int, cpus: Iterable[int]) -> str:
    """Set the CPUs of a thread, unless its ID has been reused.

    A different start time shows that the thread ID belongs to another thread
    now.

    :param start_time: start time of the thread in clock ticks since boot.
    :returns: error message; empty on success.
    """
    try:
        if _start(tid) != start_time:
            return f'thread {tid} has ended'
        os.sched_setaffinity(tid, cpus)
    except (OSError, ValueError, IndexError) as error:
        return f'thread {tid}: {error}'
    return ''


def apply_scheduling_class(
        tid: int, start_time: int, scheduling: Scheduling) -> str:
    """Set the scheduling class of a thread, unless its ID has been reused.

    A different start time shows that the thread ID belongs to another thread
    now. New threads of a real-time thread do not inherit its class.

    :param start_time: start time of the thread in clock ticks since boot.
    :returns: error message; empty on success.
    """
    try:
        if _start(tid) != start_time:
            return f'thread {tid} has ended'
        if scheduling.runtime_us:
            return deadline.set_deadline_scheduling(tid, scheduling)
        flag = (survey.RESET_ON_FORK if scheduling.realtime else
                os.sched_getscheduler(tid) & survey.RESET_ON_FORK)
        os.sched_setscheduler(tid, _NUMBERS[scheduling.scheduler] | flag,
                              os.sched_param(scheduling.priority or 0))
    except (OSError, ValueError, IndexError) as error:
        return f'thread {tid}: {error}'
    return ''


def _start(tid: int) -> int:
    with open(f'/proc/{tid}/stat', errors='replace') as file:
        return survey.parse_start_time(file.read())


def _own_deadline(cpus: Iterable[int]) -> int:
    try:
        os.sched_setaffinity(0, cpus)
        return deadline.try_deadline_scheduling(0, _TRIAL)
    except OSError as error:
        return error.errno or 1


def _own_class(number: int) -> int:
    try:
        os.sched_setscheduler(0, number, os.sched_param(1))
    except OSError as error:
        return error.errno or 1
    return 0
