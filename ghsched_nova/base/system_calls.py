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

"""System calls of Linux that Python does not have.

The numbers are those of arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h.
"""

import ctypes
import errno
import functools
import os
import platform

#: Number of each system call, by machine.
_NUMBERS = {
    'x86_64': {'move_pages': 279, 'perf_event_open': 298,
               'sched_setattr': 314, 'sched_getattr': 315},
    'aarch64': {'move_pages': 239, 'perf_event_open': 241,
                'sched_setattr': 274, 'sched_getattr': 275}}


def make_system_call(name: str, *arguments: object) -> int:
    """Make a Linux system call in this thread, and return its result.

    :param arguments: values of ctypes, or integers that fit into an int.
    :returns: result of the call, 0 or more.
    :raises OSError: the error of the kernel; ENOSYS for an unknown machine.
    """
    number = _NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    result = _load_libc().syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


@functools.cache
def _load_libc() -> ctypes.CDLL:
    """Return the C library, whose ``syscall`` sets ctypes' errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
