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


"""System calls for SCHED_DEADLINE, which Python does not have.

The layout of ``struct sched_attr`` and the flags are those of
include/uapi/linux/sched/types.h.
"""

import ctypes
import errno
import os
import struct

from ghsched_nova.base import system_calls
from ghsched_placement.features.real_time.scheduling import DEADLINE
from ghsched_placement.features.real_time.scheduling import Scheduling

#: SCHED_DEADLINE.
NUMBER = 6

#: size, policy, flags, nice, priority, runtime, deadline, period (in ns).
_ATTR = struct.Struct('=IIQiIQQQ')
#: SCHED_FLAG_RESET_ON_FORK; without it, fork fails with EAGAIN under deadline.
_RESET_ON_FORK = 1

_WHY = {
    errno.EPERM: 'no CAP_SYS_NICE, or the thread may not run on all CPUs of '
                 'its root domain, which deadline needs: give the CPUs of '
                 'guests an exclusive cpuset, see sched(7) and cpuset(7)',
    errno.EBUSY: 'the kernel has admitted as much to deadline on these CPUs '
                 'as sched_rt_runtime_us leaves',
}


def set_deadline_scheduling(tid: int, scheduling: Scheduling) -> str:
    """Put a thread under the kernel's SCHED_DEADLINE scheduling class.

    :param tid: thread id; 0 for the calling thread.
    :param scheduling: runtime, deadline and period.
    :returns: reason why the kernel refused it; empty on success.
    """
    error = try_deadline_scheduling(tid, scheduling)
    return f'thread {tid}: {explain_scheduling_errno(error)}' if error else ''


def try_deadline_scheduling(tid: int, scheduling: Scheduling) -> int:
    """Put a thread under SCHED_DEADLINE; return the kernel's error number.

    :param tid: thread id; 0 for the calling thread.
    :param scheduling: runtime, deadline and period.
    :returns: error number (errno) of the kernel; 0 on success.
    """
    attr = ctypes.create_string_buffer(_ATTR.pack(
        _ATTR.size, NUMBER, _RESET_ON_FORK, 0, 0,
        *(1000 * (time or 0) for time in (
            scheduling.runtime_us, scheduling.deadline_us,
            scheduling.period_us))), _ATTR.size)
    try:
        return system_calls.make_system_call('sched_setattr', tid, attr, 0)
    except OSError as error:
        return error.errno or errno.EIO


def read_deadline_scheduling(tid: int) -> Scheduling:
    """Read a thread's SCHED_DEADLINE runtime, deadline and period.

    :raises OSError: if the thread does not exist.
    """
    attr = ctypes.create_string_buffer(_ATTR.size)
    system_calls.make_system_call('sched_getattr', tid, attr, _ATTR.size, 0)
    times = _ATTR.unpack(attr.raw)[5:]
    return Scheduling(DEADLINE, None, *(time // 1000 for time in times))


def explain_scheduling_errno(error: int) -> str:
    """Return a text that explains why the kernel refuses a scheduling class.

    :param error: error number (errno) of the kernel.
    """
    why = _WHY.get(error)
    return os.strerror(error) + (f' ({why})' if why else '')
