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


"""Reading samples of a host from procfs, sysfs and control groups.

Without a privilege: all but ``numa_maps`` is there for everybody to read.
What cannot be read is not known. Nothing is written.
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

from ghsched_nova.guest import cells
from ghsched_nova.monitor import load_files
from ghsched_nova.monitor import load_rates
from ghsched_nova import qemu
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_nova.threads import survey

#: Seconds after which the memory of a guest is looked for again: numa_maps
#: walks its page tables, and nobody moves memory about by the second.
MEMORY_FRESH = 600.0
#: Guests whose memory is looked for in one sample, at most.
MEMORY_MOST = 64
#: Seconds after which devices and NUMA nodes are looked for again.
HOST_FRESH = 60.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class Known:
    """A guest that runs, as libvirt has it.

    :param id: libvirt's number; a new one with each start.
    """

    uuid: str
    id: int
    name: str
    cells: tuple[cells.Cell, ...]


@dataclass(frozen=True)
class Paths:
    """Where the kernel and libvirt have their files."""

    sysfs: Path = Path('/sys')
    proc: Path = Path('/proc')
    control_groups: Path = Path('/sys/fs/cgroup')
    run: Path = Path('/run/libvirt/qemu')


@dataclass
class _Process:
    """What stays the same while a guest runs.

    :param threads: id by vCPU.
    :param looked: when its memory was looked for.
    """

    number: int
    threads: Mapping[int, int]
    group: str
    looked: float = -MEMORY_FRESH
    memory: Mapping[int, int] | None = None


@dataclass
class _Host:
    """What changes when hardware is plugged in.

    :param cpus: by host NUMA node.
    :param disk_node: host NUMA node by name of a block device.
    """

    looked: float = -HOST_FRESH
    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    disk_node: Mapping[str, int] = field(default_factory=dict)


class LoadReader:
    """Reads samples.

    :param clock: seconds; must never go back.
    """

    def __init__(self, paths: Paths | None = None,
                 clock: Clock = time.monotonic) -> None:
        self._paths = paths or Paths()
        self._clock = clock
        self._host = _Host()
        self._processes: dict[tuple[str, int], _Process] = {}
        self._looks = 0

    @property
    def now(self) -> float:
        """Seconds, as a sample has them."""
        return self._clock()

    def sample(self, guests: Iterable[Known]) -> load_rates.Sample:
        """The host and these guests now; what cannot be read is left out."""
        now = self._clock()
        self._looks = MEMORY_MOST
        self._look(now)
        proc = self._paths.proc
        found = tuple(self._guest(guest, now) for guest in guests)
        keys = {(guest.uuid, guest.id) for guest in found}
        self._processes = {key: process for key, process
                           in self._processes.items() if key in keys}
        return load_rates.Sample(
            self._clock(), dict(self._nodes()),
            load_files.cpu_times(_text(f'{proc}/stat')),
            {name: device for name, device in load_files.devices(
                _text(f'{proc}/diskstats')).items()
             if name in self._host.disk_node},
            self._host.disk_node,
            load_files.stalled(_text(f'{proc}/pressure/memory')), found)

    # -- the host -------------------------------------------------------------

    def _look(self, now: float) -> None:
        if now - self._host.looked < HOST_FRESH:
            return
        sysfs = self._paths.sysfs
        self._host = _Host(
            now, {node: sysfs_files.cpus_of(path)
                  for node, path in sysfs_files.nodes(sysfs)},
            dict(_disk_nodes(sysfs)))

    def _nodes(self) -> Iterator[tuple[int, load_rates.Node]]:
        for node, cpus in self._host.cpus.items():
            path = sysfs_files.node_path(self._paths.sysfs, node)
            yield node, load_rates.Node(
                cpus, load_files.node_memory(_text(f'{path}/meminfo')),
                load_files.counts(_text(f'{path}/vmstat')))

    # -- guests ---------------------------------------------------------------

    def _guest(self, known: Known, now: float) -> load_rates.Guest:
        process = self._process(known)
        if process is None:
            return load_rates.Guest(known.uuid, known.id, known.cells)
        threads = {}
        top = f'{self._paths.proc}/{process.number}/task'
        # Where a thread ran matters only where nothing binds it.
        bound = {vcpu for cell in known.cells
                 if cell.host_node is not None for vcpu in cell.vcpus}
        for vcpu, tid in process.threads.items():
            times = load_files.run_times(_text(f'{top}/{tid}/schedstat'))
            if times is not None:
                threads[vcpu] = load_rates.Thread(
                    times, None if vcpu in bound else load_files.last_cpu(
                        _text(f'{top}/{tid}/stat')))
        if len(threads) < len(process.threads):
            self._processes.pop((known.uuid, known.id), None)
        return load_rates.Guest(
            known.uuid, known.id, known.cells, threads,
            self._memory(process, now), load_files.stalled(
                _text(f'{process.group}/memory.pressure')))

    def _process(self, known: Known) -> _Process | None:
        """Looked for once, and again when a thread has gone or come."""
        key = known.uuid, known.id
        process = self._processes.get(key)
        wanted = sum(len(cell.vcpus) for cell in known.cells)
        if process is not None and len(process.threads) == wanted:
            return process
        number = qemu.process_of(self._paths.run, known.name)
        if number is None:
            return None
        threads = {role.number: thread.tid for role, thread in survey.threads(
            number, self._paths.proc).items() if role.kind == 'vcpu'}
        group = load_files.group_of(
            _text(f'{self._paths.proc}/{number}/cgroup'))
        process = _Process(
            number, threads,
            f'{self._paths.control_groups}{group}' if group else '')
        self._processes[key] = process
        return process

    def _memory(self, process: _Process,
                now: float) -> Mapping[int, int] | None:
        """The control group says it for little; huge pages are not in it."""
        if now - process.looked >= MEMORY_FRESH and self._looks:
            self._looks -= 1
            process.looked = now
            maps = _text(f'{self._paths.proc}/{process.number}/numa_maps')
            process.memory = load_files.mapped_memory(maps) or (
                load_files.group_memory(
                    _text(f'{process.group}/memory.numa_stat')))
        return process.memory


def _disk_nodes(sysfs: Path) -> Iterator[tuple[str, int]]:
    """Whole block devices of which the NUMA node is known.

    A disk tells nothing itself; the PCI function that it hangs on does.
    """
    top = sysfs.resolve()
    for entry in sysfs_files.entries(sysfs / 'block'):
        path = (entry / 'device').resolve()
        while path not in (top, path.parent):
            word = (sysfs_files.text(path / 'numa_node') or '').strip()
            if word.isdecimal():
                yield entry.name, int(word)
                break
            path = path.parent


def _text(path: str) -> str:
    """A file of the kernel; empty when it cannot be read.

    os.read instead of a file object: thousands are read each time.
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
