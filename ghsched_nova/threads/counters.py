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

"""Performance counters of a guest's vCPU threads (perf_event_open(2)).

Event numbers, flags and the layout of ``struct perf_event_attr`` are those of
include/uapi/linux/perf_event.h, the system call numbers those of
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
Counting threads of another user requires CAP_PERFMON. Before Linux 5.13 the
kernel asks for CAP_SYS_PTRACE, too, which the helper does not have
(``perf_check_permission`` of kernel/events/core.c).
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import ctypes
from dataclasses import dataclass
import errno
import os
from pathlib import Path
import platform
import struct
import time
from typing import Annotated

from ghsched_nova import bounds
from ghsched_nova import privsep
from ghsched_nova import qemu
from ghsched_nova.threads import survey

#: Maximum length of one measurement, in milliseconds.
LONGEST_MS = 10_000
#: Maximum number of threads that are counted; each needs a descriptor per
#: event, and a process has 1024 by default.
MOST_THREADS = 64

#: System call number of perf_event_open by machine.
_CALLS = {'x86_64': 298, 'aarch64': 241}
#: type, size, config, sample_period, sample_type, read_format, flags,
#: wakeup_events, bp_type, config1: the first version of the structure.
_ATTR = struct.Struct('=IIQQQQQIIQ')
#: Value, time enabled and time running, by the read format below.
_READING = struct.Struct('=QQQ')
#: PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING.
_READ_FORMAT = 1 | 2
#: PERF_FLAG_FD_CLOEXEC.
_CLOEXEC = 8
#: The CPU, or its virtual machine, does not have the event.
_NOT_SUPPORTED = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV)


@dataclass(frozen=True)
class Event:
    """Event that the kernel counts: PERF_TYPE and PERF_COUNT number."""

    kind: int
    number: int


#: Events by name. The first one is the CPU time of a thread in nanoseconds,
#: which every kernel counts.
EVENTS = {'cpu_ns': Event(1, 1), 'instructions': Event(0, 1),
          'cycles': Event(0, 0), 'cache_misses': Event(0, 3),
          'stalled_cycles': Event(0, 8)}


def scale_count(value: int, enabled: int, running: int) -> float | None:
    """Return the count of an event, extrapolated to the time it was enabled.

    A CPU counts few events at once, and takes turns if there are more.

    :param enabled: nanoseconds for which the thread ran.
    :param running: nanoseconds of these in which the event was counted.
    :returns: None if the event was never counted although the thread ran.
    """
    if running:
        return value * (enabled / running)
    return None if enabled else 0.0


def count_events(tids: Iterable[int], seconds: float,
                 events: Mapping[str, Event] = EVENTS,
                 sleep: Callable[[float], None] = time.sleep
                 ) -> dict[str, float]:
    """Count events of threads for some seconds.

    :param tids: thread ids; threads that have ended count nothing.
    :returns: sum over the threads by name of the event. An event that the CPU
        does not have, or that could not be counted, is left out.
    :raises OSError: if the kernel refuses to count events of a thread.
    """
    with contextlib.ExitStack() as closing:
        opened: dict[str, list[int] | None] = {name: [] for name in events}
        for tid in tids:
            for name, event in events.items():
                fds = opened[name]
                if fds is None:
                    continue
                fd = _open_counter(tid, event)
                if fd is None:
                    opened[name] = None
                elif fd >= 0:
                    closing.callback(os.close, fd)
                    fds.append(fd)
        sleep(seconds)
        return dict(_sum_counts(opened))


def _sum_counts(opened: Mapping[str, list[int] | None]
                ) -> Iterator[tuple[str, float]]:
    for name, fds in opened.items():
        counts = [scale_count(*_READING.unpack(os.read(fd, _READING.size)))
                  for fd in fds or ()]
        known = [count for count in counts if count is not None]
        if counts and len(known) == len(counts):
            yield name, sum(known)


def _open_counter(tid: int, event: Event) -> int | None:
    """Open a counter of a thread's event, which counts from now on.

    :returns: file descriptor; -1 if the thread has ended, None if the CPU
        does not have the event.
    :raises OSError: if the kernel refuses.
    """
    attr = ctypes.create_string_buffer(_ATTR.pack(
        event.kind, _ATTR.size, event.number, 0, 0, _READ_FORMAT, 0, 0, 0, 0),
        _ATTR.size)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    number = _CALLS.get(platform.machine())
    fd = -1 if number is None else libc.syscall(
        ctypes.c_long(number), attr, ctypes.c_int(tid), ctypes.c_int(-1),
        ctypes.c_int(-1), ctypes.c_ulong(_CLOEXEC))
    if fd >= 0:
        return int(fd)
    error = errno.ENOSYS if number is None else ctypes.get_errno()
    if error == errno.ESRCH:
        return -1
    if error in _NOT_SUPPORTED:
        return None
    raise OSError(error, f'perf_event_open: {os.strerror(error)}')


def count_guest_events(run_path: Path, name: str, pid: int,
                       milliseconds: int) -> dict[str, float]:
    """Count events of a guest's vCPU threads, as :func:`count_events`.

    At most :data:`MOST_THREADS` threads are counted. All threads of QEMU are
    counted if it has no thread per vCPU.

    :param run_path: directory with libvirt's files of running domains.
    :param name: name of the domain.
    :param pid: process of the domain.
    """
    vcpus = (qemu.read_vcpu_threads(run_path, name)
             or {role.number: thread.tid for role, thread
                 in survey.read_qemu_threads(pid).items()
                 if role.kind == 'vcpu'})
    mine = sorted(int(tid) for tid in os.listdir(Path('/proc', str(pid),
                                                      'task')))
    chosen = [tid for tid in mine if not vcpus or tid in vcpus.values()]
    return count_events(chosen[:MOST_THREADS], milliseconds / 1000)


@privsep.entrypoint(privsep.counters, timeout=60.0)
def _count(process: Annotated[tuple[privsep.DomainName, privsep.Pid],
                              privsep.check_qemu_process],
           milliseconds: Annotated[int, bounds.Range(1, LONGEST_MS)]
           ) -> dict[str, float]:
    return count_guest_events(privsep.get_qemu_pid_directory(), *process,
                              milliseconds)


def count_guest_events_as_root(name: str, pid: int,
                               milliseconds: int) -> dict[str, float]:
    """Run :func:`count_guest_events` in the privileged helper."""
    return _count((name, pid), milliseconds)
