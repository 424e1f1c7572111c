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

"""Processes and threads of a host's guests, read from procfs."""

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import functools
import os
from pathlib import Path

from ghsched_nova.base import qemu
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import tasks
from ghsched_placement.base import decimals

#: Flag of a thread that has no user process (PF_KTHREAD in
#: include/linux/sched.h).
KERNEL_THREAD = 0x00200000


@dataclass
class GuestProcesses:
    """QEMU processes of a host's guests.

    Each file is read when it is first needed, and only once.

    :param proc: mount point of procfs.
    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    :param domains: names of all running domains.
    :param with_vhost: whether vhost kernel threads are threads of a guest.
    """

    proc: Path
    run_path: Path
    domains: frozenset[str]
    with_vhost: bool = False
    _by_domain: dict[str, int] = field(default_factory=dict)
    _found_by_threads: set[int] = field(default_factory=set)

    @functools.cached_property
    def _vhost(self) -> Mapping[int, Mapping[int, str]]:
        """Vhost kernel threads by process id."""
        return read_vhost_threads(self.proc) if self.with_vhost else {}

    def _find_process(self, domain: str) -> int:
        """Return a domain's process id; 0 if libvirt has no pid file."""
        if domain not in self._by_domain:
            self._by_domain[domain] = qemu.find_qemu_process(
                self.run_path, domain) or 0
        return self._by_domain[domain]

    def read_threads(self, guest: model.ResctrlGuest, tids: Iterable[int]
                     ) -> dict[int, int | None]:
        """Return the threads that serve a guest's QEMU process.

        These are the threads of the process, and the kernel threads that work
        for the process.

        :param tids: ids of the threads in the guest's resctrl group. The
            process is found by them if libvirt has no pid file.
        :returns: vCPU number by thread id, None for other threads; empty if
            the process is unknown or has ended.
        """
        vhost = self._vhost
        process = self._find_process(guest.domain.name)
        if not process and not guest.shared:
            process = _find_qemu_process(self.proc, tids, guest.domain.uuid)
            if (process in self._found_by_threads
                    or process in map(self._find_process, self.domains)):
                process = 0
            self._found_by_threads.add(process)
        names = (qemu.read_thread_names(self.proc, process) if process
                 else {})
        if names:
            names.update(vhost.get(process, {}))
        return {tid: qemu.parse_vcpu_number(name)
                for tid, name in names.items()}


def _find_qemu_process(proc: Path, tids: Iterable[int], uuid: str) -> int:
    """Find the QEMU process of a guest by the threads in its resctrl group.

    :param tids: thread ids in the guest's resctrl group.
    :param uuid: guest UUID, which the command line of QEMU must contain.
    :returns: process id; 0 unless exactly one process matches.
    """
    found = {process for tid in tasks.select_vcpu_threads(tids, proc)
             for process in tasks.read_process_ids(proc, tid)}
    number = decimals.parse_decimal(found.pop() if len(found) == 1 else '')
    return number if number and _is_qemu_of_guest(proc, number, uuid) else 0


def _is_qemu_of_guest(proc: Path, process: int, uuid: str) -> bool:
    """Whether a process is a guest's QEMU, by the UUID in its command line."""
    try:
        words = qemu.read_proc_file(
            f'{proc}/{process}/cmdline', 2 ** 20).split('\0')
        return words[words.index('-uuid') + 1] == uuid
    except (OSError, ValueError, IndexError):
        return False


def read_vhost_threads(proc: Path) -> dict[int, dict[int, str]]:
    """Return the vhost kernel threads that serve each QEMU process.

    Up to Linux 6.3 vhost has a kernel thread ``vhost-<process>`` per queue;
    later it runs in a thread of the process.

    :returns: thread names by thread id, by process id.
    """
    found: dict[int, dict[int, str]] = {}
    for tid in _list_process_ids(proc):
        name = tasks.read_thread_name(proc, tid)
        process = (decimals.parse_decimal(name.removeprefix('vhost-'))
                   if name.startswith('vhost-') else None)
        if process is not None and _is_kernel_thread(proc, tid):
            found.setdefault(process, {})[tid] = name
    return found


def _is_kernel_thread(proc: Path, tid: int) -> bool:
    """Whether a thread is a kernel thread, by the flags in its stat file."""
    try:
        text = qemu.read_proc_file(f'{proc}/{tid}/stat')
        fields = text.rpartition(')')[2].split()
        return bool(int(fields[6]) & KERNEL_THREAD)
    except (OSError, ValueError, IndexError):
        return False


def list_running_domains(run_path: Path, proc: Path) -> frozenset[str]:
    """Return the names of libvirt domains whose QEMU process is running.

    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    """
    try:
        names = [name.removesuffix('.pid') for name in os.listdir(run_path)
                 if name.endswith('.pid')]
    except OSError:
        return frozenset()
    return frozenset(
        name for name in names
        if os.path.isdir(proc
                         / str(qemu.find_qemu_process(run_path, name) or '-')))


def _list_process_ids(proc: Path) -> list[int]:
    try:
        numbers = map(decimals.parse_decimal, os.listdir(proc))
        return [number for number in numbers if number is not None]
    except OSError:
        return []
