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


"""Samples of the load of a host, read from procfs, sysfs and control groups.

Only ``numa_maps`` needs a privilege to be read. A file that cannot be read
leaves its figure unknown. Nothing is written.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import os
from pathlib import Path
import time

from ghsched_nova.base import qemu
from ghsched_nova.features.load import load_files
from ghsched_nova.features.load import load_rates
from ghsched_nova.features.real_time import survey
from ghsched_nova.guest import cells
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement.base import decimals

#: Seconds after which the memory of a guest is read again: reading numa_maps
#: walks its page tables, and the placement of memory changes slowly.
MEMORY_FRESH = 600.0
#: Maximum number of guests whose memory is read in one sample.
MEMORY_MOST = 64
#: Seconds after which devices and NUMA nodes are listed again.
HOST_FRESH = 60.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class RunningGuest:
    """A running guest of libvirt whose load is to be sampled.

    :param id: libvirt's domain ID; each start of the guest gets a new one.
    """

    uuid: str
    id: int
    name: str
    cells: tuple[cells.Cell, ...]


@dataclass(frozen=True)
class Paths:
    """Directories with the files of the kernel and of libvirt.

    :param run: directory with libvirt's files of running domains.
    """

    sysfs: Path = Path('/sys')
    proc: Path = Path('/proc')
    control_groups: Path = Path('/sys/fs/cgroup')
    run: Path = Path('/run/libvirt/qemu')


@dataclass
class _Process:
    """QEMU process of a guest, and its last memory reading.

    :param number: process ID.
    :param threads: thread ID by vCPU.
    :param group: path of the guest's control group (cgroup v2).
    :param memory_read_at: time of the memory reading, in seconds of the
        monotonic clock.
    :param memory: bytes by host NUMA node; None if unknown.
    """

    number: int
    threads: Mapping[int, int]
    group: str
    memory_read_at: float = -MEMORY_FRESH
    memory: Mapping[int, int] | None = None


@dataclass
class _Host:
    """NUMA nodes and disks of this host, which change only by hotplug.

    :param read_at: time at which they were read, in seconds of the monotonic
        clock.
    :param cpus: CPUs by host NUMA node.
    :param disk_node: host NUMA node by name of a block device.
    """

    read_at: float = -HOST_FRESH
    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    disk_node: Mapping[str, int] = field(default_factory=dict)


class LoadReader:
    """Reads samples of the load of a host.

    :param clock: monotonic clock in seconds.
    """

    def __init__(self, paths: Paths | None = None,
                 clock: Clock = time.monotonic) -> None:
        self._paths = paths or Paths()
        self._clock = clock
        self._host = _Host()
        self._processes: dict[tuple[str, int], _Process] = {}
        self._memory_reads = 0

    @property
    def current_time(self) -> float:
        """Time of the monotonic clock of load samples, in seconds."""
        return self._clock()

    def read_load_sample(
            self, guests: Iterable[RunningGuest]) -> load_rates.LoadSample:
        """Read the kernel's load counters of the host and of running guests.

        Counters that cannot be read are left out.
        """
        now = self._clock()
        self._memory_reads = MEMORY_MOST
        self._refresh_host(now)
        proc = self._paths.proc
        found = tuple(self._guest(guest, now) for guest in guests)
        keys = {(guest.uuid, guest.id) for guest in found}
        self._processes = {key: process for key, process
                           in self._processes.items() if key in keys}
        return load_rates.LoadSample(
            self._clock(), dict(self._nodes()),
            load_files.parse_cpu_times(_read_kernel_file(f'{proc}/stat')),
            {name: device for name, device in load_files.parse_diskstats(
                _read_kernel_file(f'{proc}/diskstats')).items()
             if name in self._host.disk_node},
            self._host.disk_node,
            load_files.parse_stall_time(
                _read_kernel_file(f'{proc}/pressure/memory')), found)

    # -- the host -------------------------------------------------------------

    def _refresh_host(self, now: float) -> None:
        if now - self._host.read_at < HOST_FRESH:
            return
        sysfs = self._paths.sysfs
        self._host = _Host(
            now, {node: sysfs_files.read_node_cpus(path)
                  for node, path in sysfs_files.iterate_numa_nodes(sysfs)},
            dict(_list_disk_nodes(sysfs)))

    def _nodes(self) -> Iterator[tuple[int, load_rates.NodeCounters]]:
        for node, cpus in self._host.cpus.items():
            path = sysfs_files.get_node_path(self._paths.sysfs, node)
            memory = sysfs_files.parse_node_memory(
                _read_kernel_file(f'{path}/meminfo'))
            yield node, load_rates.NodeCounters(
                cpus, (memory['MemTotal'], memory['MemFree'])
                if memory.keys() >= {'MemTotal', 'MemFree'} else None,
                load_files.parse_vmstat(_read_kernel_file(f'{path}/vmstat')))

    # -- guests ---------------------------------------------------------------

    def _guest(self, known: RunningGuest, now: float
               ) -> load_rates.GuestCounters:
        process = self._find_qemu_process(known)
        if process is None:
            return load_rates.GuestCounters(known.uuid, known.id, known.cells)
        threads = {}
        top = f'{self._paths.proc}/{process.number}/task'
        # The last CPU of a thread matters only if nothing pins the thread.
        bound = {vcpu for cell in known.cells
                 if cell.host_node is not None for vcpu in cell.vcpus}
        for vcpu, tid in process.threads.items():
            times = load_files.parse_run_times(
                _read_kernel_file(f'{top}/{tid}/schedstat'))
            if times is not None:
                threads[vcpu] = load_rates.ThreadCounters(
                    times, None if vcpu in bound
                    else load_files.parse_last_cpu(
                        _read_kernel_file(f'{top}/{tid}/stat')))
        if len(threads) < len(process.threads):
            self._processes.pop((known.uuid, known.id), None)
        return load_rates.GuestCounters(
            known.uuid, known.id, known.cells, threads,
            self._read_guest_memory(process, now), load_files.parse_stall_time(
                _read_kernel_file(f'{process.group}/memory.pressure')),
            load_files.parse_stall_time(
                _read_kernel_file(f'{process.group}/io.pressure')))

    def _find_qemu_process(self, guest: RunningGuest) -> _Process | None:
        """Find the QEMU process of a guest with its vCPU threads.

        The result is cached until the number of vCPU threads changes.

        :returns: None if the process is not found.
        """
        key = guest.uuid, guest.id
        process = self._processes.get(key)
        wanted = sum(len(cell.vcpus) for cell in guest.cells)
        if process is not None and len(process.threads) == wanted:
            return process
        number = qemu.find_qemu_process(self._paths.run, guest.name)
        if number is None:
            return None
        found = survey.read_qemu_threads(number, self._paths.proc)
        threads = {role.number: thread.tid for role, thread in found.items()
                   if role.kind == 'vcpu'}
        group = load_files.parse_guest_control_group(
            _read_kernel_file(f'{self._paths.proc}/{number}/cgroup'))
        process = _Process(
            number, threads,
            f'{self._paths.control_groups}{group}' if group else '')
        self._processes[key] = process
        return process

    def _read_guest_memory(
            self, process: _Process, now: float) -> Mapping[int, int] | None:
        """Return the bytes of a guest's memory on each host NUMA node.

        A result is cached for MEMORY_FRESH seconds, or longer if the memory of
        MEMORY_MOST guests has been read in this sample. ``numa_maps`` is
        preferred, because the statistics of control groups lack huge pages.

        :param now: time of this sample in seconds (monotonic clock).
        :returns: None if unknown.
        """
        if now - process.memory_read_at >= MEMORY_FRESH and self._memory_reads:
            self._memory_reads -= 1
            process.memory_read_at = now
            maps = _read_kernel_file(
                f'{self._paths.proc}/{process.number}/numa_maps')
            process.memory = load_files.parse_numa_maps(maps) or (
                load_files.parse_memory_numa_stat(
                    _read_kernel_file(f'{process.group}/memory.numa_stat')))
        return process.memory


def _list_disk_nodes(sysfs: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and host NUMA node of each disk of the host.

    A disk has no ``numa_node`` file, but the PCI function above the disk has
    one. Disks whose node is unknown are left out.
    """
    top = sysfs.resolve()
    for entry in sysfs_files.list_directory(sysfs / 'block'):
        path = (entry / 'device').resolve()
        while path not in (top, path.parent):
            node = decimals.parse_decimal(
                sysfs_files.read_text(path / 'numa_node') or '')
            if node is not None:
                yield entry.name, node
                break
            path = path.parent


def _read_kernel_file(path: str) -> str:
    """Return the content of a kernel file.

    The text is empty if the file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ''
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
            if len(part) < 1024:
                break
        return b''.join(parts).decode(errors='replace')
    except OSError:
        return ''
    finally:
        os.close(descriptor)
