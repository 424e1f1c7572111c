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

import os

from ghsched_nova import privsep
from ghsched_nova.threads.model import Action
from ghsched_nova.threads import survey
from ghsched_placement.scheduling import Scheduling

_NUMBERS = {'other': os.SCHED_OTHER, 'fifo': os.SCHED_FIFO,
            'rr': os.SCHED_RR, 'batch': os.SCHED_BATCH,
            'idle': os.SCHED_IDLE}


def set_class(action: Action) -> str:
    """Give a thread its class, if it is still that thread.

    :returns: why it could not be done; empty when it was.
    """
    return _set(action.thread.tid, action.thread.start,
                action.scheduling.scheduler, action.scheduling.priority or 0)


def realtime_refused() -> str:
    """Try fifo on a child of the privileged process.

    :returns: why the kernel refuses it, e.g. no real-time budget of a control
        group of CPUs (RT_GROUP_SCHED); empty when it does not.
    """
    return _try()


@privsep.threads.entrypoint
def _set(tid: int, start: int, scheduler: str, priority: int) -> str:
    return apply(tid, start, Scheduling(scheduler, priority or None))


@privsep.threads.entrypoint
def _try() -> str:
    return _own_class_in_child()


def _own_class_in_child() -> str:
    child = os.fork()
    if child == 0:
        os._exit(_own_class(os.SCHED_FIFO))
    _child, status = os.waitpid(child, 0)
    error = os.waitstatus_to_exitcode(status)
    return os.strerror(error) if error else ''


def apply(tid: int, start: int, scheduling: Scheduling) -> str:
    """:func:`set_class` in a process that may; see there."""
    path = f'/proc/{tid}/stat'
    try:
        with open(path, errors='replace') as file:
            now = survey.start_of(file.read())
        if now != start:
            return f'thread {tid} has ended'
        flag = os.sched_getscheduler(tid) & survey.RESET_ON_FORK
        os.sched_setscheduler(tid, _NUMBERS[scheduling.scheduler] | flag,
                              os.sched_param(scheduling.priority or 0))
    except (OSError, ValueError, IndexError) as error:
        return f'thread {tid}: {error}'
    return ''


def _own_class(number: int) -> int:
    try:
        os.sched_setscheduler(0, number, os.sched_param(1))
    except OSError as error:
        return error.errno or 1
    return 0
