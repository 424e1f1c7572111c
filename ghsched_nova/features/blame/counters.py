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

"""Performance counters of guests' vCPU threads (perf_event_open(2)).

Event numbers, flags and the layout of ``struct perf_event_attr`` are those of
include/uapi/linux/perf_event.h.
Counting threads of another user requires CAP_PERFMON. Before Linux 5.13 the
kernel asks for CAP_SYS_PTRACE, too, which the helper does not have
(``perf_check_permission`` of kernel/events/core.c).
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import ctypes
from dataclasses import dataclass
import errno
import os
from pathlib import Path
import struct
import time
from typing import Annotated

from ghsched_nova.base import bounds
from ghsched_nova.base import privsep
from ghsched_nova.base import qemu
from ghsched_nova.base import system_calls
from ghsched_nova.features.real_time import survey

#: Maximum length of one measurement, in milliseconds.
LONGEST_MS = 10_000
#: Maximum number of threads of a server, and of all other guests together,
#: that are counted. Each needs a descriptor per event, a process has 1024 by
#: default, and two servers may be investigated at a time.
MOST_THREADS = 64
MOST_OTHER_THREADS = 128
#: Maximum number of other guests that are counted.
MOST_OTHERS = 64

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
    """Event that the kernel counts, as in perf_event_open(2).

    :param kind: type of the event, e.g. PERF_TYPE_HARDWARE.
    :param number: number of the event, e.g. PERF_COUNT_HW_INSTRUCTIONS.
    """

    kind: int
    number: int


#: Events by name. The first one is the CPU time of a thread in nanoseconds,
#: which every kernel counts.
EVENTS = {'cpu_ns': Event(1, 1), 'instructions': Event(0, 1),
          'cycles': Event(0, 0), 'cache_misses': Event(0, 3),
          'stalled_cycles': Event(0, 8)}
#: Events from which the speed of a server is computed.
SPEED_EVENTS = {name: EVENTS[name] for name in ('cpu_ns', 'instructions')}
#: Events that are counted of guests beside the server.
OTHERS_EVENTS = {'cache_misses': EVENTS['cache_misses']}

#: Thread ids, and the events by name that are counted of them.
Group = tuple[Iterable[int], Mapping[str, Event]]
#: Name of a domain and process ID of its QEMU.
Process = tuple[str, int]


def scale_count(count: int, enabled: int, running: int) -> float | None:
    """Return the count of an event, extrapolated to the time it was enabled.

    A CPU counts few events at once, and takes turns if there are more.

    :param count: number of counted events.
    :param enabled: nanoseconds for which the thread ran.
    :param running: nanoseconds of these in which the event was counted.
    :returns: None if the event was never counted although the thread ran.
    """
    if running:
        return count * (enabled / running)
    return None if enabled else 0.0


def count_events(groups: Sequence[Group], seconds: float,
                 sleep: Callable[[float], None] = time.sleep
                 ) -> list[dict[str, float]]:
    """Count events of several groups of threads during the same period.

    A thread that has ended adds nothing to the counts.

    :param groups: thread IDs of each group, and the events to count of them.
    :param seconds: length of the period.
    :param sleep: function that waits for the seconds.
    :returns: for each group, the number of events of all its threads together,
        by name of the event. An event that the CPU does not have, or that
        could not be counted, is left out.
    :raises OSError: if the kernel refuses to count events of a thread.
    """
    with contextlib.ExitStack() as closing:
        opened = [_open_counters(*group, closing) for group in groups]
        sleep(seconds)
        return [dict(_sum_counts(one)) for one in opened]


def _open_counters(tids: Iterable[int], events: Mapping[str, Event],
                   closing: contextlib.ExitStack
                   ) -> dict[str, list[int] | None]:
    """Open one counter per thread for each of some events.

    :param tids: thread IDs.
    :param events: events by name.
    :param closing: stack that closes the counters when it ends.
    :returns: by name of the event, the file descriptors of the counters of all
        threads; None if the CPU does not have the event.
    """
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
    return opened


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
    attr = _ATTR.pack(event.kind, _ATTR.size, event.number, 0, 0,
                      _READ_FORMAT, 0, 0, 0, 0)
    try:
        return _perf_event_open(attr, tid)
    except ProcessLookupError:
        return -1
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return None
        raise


def _perf_event_open(attr: bytes, tid: int) -> int:
    """Return the file descriptor of a new counter of a thread on any CPU.

    :param attr: ``struct perf_event_attr``.
    :raises OSError: if there is no such counter.
    """
    return system_calls.make_system_call(
        'perf_event_open', ctypes.create_string_buffer(attr, len(attr)),
        ctypes.c_int(tid), ctypes.c_int(-1), ctypes.c_int(-1),
        ctypes.c_ulong(_CLOEXEC))


def count_guest_events(run_path: Path, server: Process,
                       others: Sequence[Process], only_speed: bool,
                       milliseconds: int) -> list[dict[str, float]]:
    """Count events of the vCPU threads of a server and of other guests.

    At most :data:`MOST_THREADS` threads of the server are counted. Of the
    other guests only cache misses are counted, and those whose threads exceed
    :data:`MOST_OTHER_THREADS` are not.

    :param run_path: directory with libvirt's files of running domains.
    :param server: domain and process of the server.
    :param others: domains and processes of other guests.
    :param only_speed: whether to count only :data:`SPEED_EVENTS` of the
        server, which needs fewer system calls.
    :returns: number of events by name, see :func:`count_events`, of the server
        and of each of the other guests.
    """
    groups: list[Group] = [
        (_list_vcpu_threads(run_path, server)[:MOST_THREADS],
         SPEED_EVENTS if only_speed else EVENTS)]
    left = MOST_OTHER_THREADS
    for other in others:
        tids: list[int] = []
        # A guest may end meanwhile.
        with contextlib.suppress(OSError):
            tids = _list_vcpu_threads(run_path, other)
        if len(tids) > left:
            tids = []
        left -= len(tids)
        groups.append((tids, OTHERS_EVENTS))
    return count_events(groups, milliseconds / 1000)


def _list_vcpu_threads(run_path: Path, process: Process) -> list[int]:
    """Return the thread ids of a guest's vCPUs.

    All threads of QEMU are returned if it has no thread per vCPU.
    """
    name, pid = process
    vcpus = (qemu.read_vcpu_threads(run_path, name)
             or {role.number: thread.tid for role, thread
                 in survey.read_qemu_threads(pid).items()
                 if role.kind == 'vcpu'})
    mine = sorted(int(tid) for tid in os.listdir(Path('/proc', str(pid),
                                                      'task')))
    return [tid for tid in mine if not vcpus or tid in vcpus.values()]


def _check_number_of_guests(processes: Sequence[object]) -> None:
    if len(processes) > MOST_OTHERS:
        raise bounds.OutOfBounds(f'{len(processes)} guests, at most '
                                 f'{MOST_OTHERS} are counted')


_Process = Annotated[tuple[qemu.DomainName, privsep.Pid],
                     privsep.check_qemu_process]


@privsep.entrypoint(privsep.counters, timeout=20.0)
def _count(process: _Process,
           others: Annotated[Sequence[_Process], _check_number_of_guests],
           only_speed: bool,
           milliseconds: Annotated[int, bounds.Range(1, LONGEST_MS)]
           ) -> list[dict[str, float]]:
    return count_guest_events(privsep.get_qemu_pid_directory(), process,
                              others, only_speed, milliseconds)


def count_guest_events_as_root(server: Process,
                               others: Sequence[Process], only_speed: bool,
                               milliseconds: int) -> list[dict[str, float]]:
    """Run :func:`count_guest_events` in the privileged helper."""
    return _count(server, others, only_speed, milliseconds)
