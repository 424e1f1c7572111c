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

"""Moves the memory of a running QEMU; needs CAP_SYS_NICE and CAP_SYS_PTRACE.

move_pages(2) asks for both (``kernel_move_pages`` of mm/migrate.c), numa_maps
for the latter.
"""

from array import array
from collections.abc import Iterator
import ctypes
import os
from pathlib import Path
import platform
import time

from ghsched_nova import privsep
from ghsched_nova import qemu
from ghsched_nova.threads import memory
from ghsched_placement import cpulist

#: Number of move_pages in the kernel's tables of system calls.
_MOVE_PAGES = {'x86_64': 279, 'aarch64': 239}
#: Of <linux/mempolicy.h>: pages that other processes have, too (vhost-user).
_MOVE_ALL = 4
#: Bytes that are moved between two looks at the clock.
_PIECE = 32 << 20
#: Pages that the kernel is asked for at once.
_AT_ONCE = 4096
#: How often pages that could not be moved are tried; QEMU's own input and
#: output keeps some where they are for a moment.
_TRIES = 10
_MIB = 1 << 20


class Memory:
    """The memory of the guests of this host.

    :param run_path: where libvirt has ``<domain name>.pid``.
    :param rate: MiB that are moved in a second; 0 for no limit.
    """

    def __init__(self, run_path: Path, rate: int) -> None:
        self._run_path, self._rate = run_path, rate

    def refusal(self, name: str) -> str:
        """Why the memory of a domain cannot be moved; empty when it can."""
        process = qemu.process_of(self._run_path, name)
        if process is None:
            return 'the process of the domain is not known'
        if not cpusets(process):
            return ('QEMU is in no cpuset control group of its own, so its '
                    'memory cannot be bound to other NUMA nodes; see '
                    'cgroup_controllers in qemu.conf of libvirt')
        return ''

    def allowed(self, name: str) -> frozenset[int] | None:
        """Nodes that memory of a domain may be on; None: not known."""
        process = qemu.process_of(self._run_path, name)
        found = cpusets(process) if process else []
        try:
            return cpulist.parse((found[0] / 'cpuset.mems').read_text()
                                 .strip()) if found else None
        except (OSError, ValueError):
            return None

    def move(self, name: str, moved: dict[int, int],
             nodes: list[int]) -> None:
        """Bind and move the memory of a domain; what is there already stays.

        :param moved: new host node by old one.
        :param nodes: host nodes of the guest before, all of them.
        :raises NotBound: when pages stay where they are.
        """
        process = qemu.process_of(self._run_path, name)
        if process is None or not cpusets(process):
            raise memory.NotBound(self.refusal(name))
        steps = memory.sequence(moved, nodes)
        new = steps[-1]
        if not any(_mems(path) == new for path in cpusets(process)):
            for step in steps[:-1]:
                _checked(_allow(process, sorted(step)))
            if len(steps) > 1:
                self._move_pages(process, moved, new)
        _checked(_allow(process, sorted(new)))
        self._settle(process)

    def _move_pages(self, process: int, moved: dict[int, int],
                    new: frozenset[int]) -> None:
        """While both are allowed; policies are those of before."""
        for area in _areas(process):
            target = (min(new) if len(new) == 1
                      else moved.get(area.node, area.node))
            self._move_area(process, area, target)

    def _move_area(self, process: int, area: memory.Area,
                   target: int) -> None:
        for first, last in memory.pieces(area, _PIECE):
            begun = time.monotonic()
            count = _move(process, first, last, area.page_size, target)
            if self._rate:
                due = count * area.page_size / (self._rate * _MIB)
                time.sleep(max(0.0, begun + due - time.monotonic()))

    def _settle(self, process: int) -> None:
        """Move what is still elsewhere than its policy says."""
        for _turn in range(_TRIES):
            left = [area for area in _areas(process) if area.strays]
            if not left:
                return
            for area in left:
                self._move_area(process, area, area.node)
            time.sleep(0.1)
        left = [area for area in _areas(process) if area.strays]
        if left:
            raise memory.NotBound(
                f'{sum(area.strays for area in left)} pages of its memory '
                'cannot be moved: the kernel keeps them where they are')


def cpusets(process: int, proc: Path = Path('/proc'),
            root: Path = Path('/sys/fs/cgroup')) -> list[Path]:
    """The directories of control groups that say where memory may be.

    Those of all threads; none where QEMU has only a part in one of others.
    """
    found: dict[Path, None] = {}
    try:
        tasks = sorted((proc / str(process) / 'task').iterdir())
    except OSError:
        return []
    for task in tasks:
        path = _cpuset(task, root)
        if path is not None:
            found[path] = None
    return list(found)


def _cpuset(task: Path, root: Path) -> Path | None:
    try:
        lines = (task / 'cgroup').read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _number, controllers, name = line.split(':', 2)
        if controllers in ('', 'cpuset') and len(Path(name).parts) > 2:
            path = root / controllers / name.lstrip('/')
            if (path / 'cpuset.mems').exists() and '..' not in path.parts:
                return path
    return None


def _mems(path: Path) -> frozenset[int] | None:
    try:
        return cpulist.parse((path / 'cpuset.mems').read_text().strip())
    except (OSError, ValueError):
        return None


def _areas(process: int) -> list[memory.Area]:
    return memory.areas(*_maps(process))


def _checked(problem: str) -> None:
    if problem:
        raise memory.NotBound(problem)


# -- as root ------------------------------------------------------------------


@privsep.memory.entrypoint
def _maps(process: int) -> tuple[str, str]:
    return read_maps(process)


@privsep.memory.entrypoint
def _allow(process: int, nodes: list[int]) -> str:
    return allow(process, nodes)


@privsep.memory.entrypoint
def _move(process: int, first: int, last: int, size: int,
          node: int) -> int:
    return move(process, first, last, size, node)


def read_maps(process: int) -> tuple[str, str]:
    """``numa_maps`` and ``maps`` of a process; empty when it has ended."""
    path = Path('/proc') / str(process)
    try:
        return ((path / 'numa_maps').read_text(),
                (path / 'maps').read_text())
    except OSError:
        return '', ''


def allow(process: int, nodes: list[int]) -> str:
    """Let memory of a process be on these nodes alone.

    :returns: why that could not be; empty when it is so.
    """
    text = cpulist.render(nodes)
    for path in cpusets(process):
        try:
            if _mems(path) != frozenset(nodes):
                (path / 'cpuset.mems').write_text(text)
        except OSError as error:
            return f'{path}/cpuset.mems: {error.strerror}'
    return ''


def move(process: int, first: int, last: int, size: int, node: int) -> int:
    """Move the pages between two addresses to a node.

    :param size: of a page, in bytes.
    :returns: how many of them are there.
    """
    return sum(_moved(process, addresses, node)
               for addresses in _addresses(first, last, size))


def _addresses(first: int, last: int, size: int) -> Iterator['array[int]']:
    step = _AT_ONCE * size
    for begin in range(first, last, step):
        yield array('Q', range(begin, min(begin + step, last), size))


def _moved(process: int, addresses: 'array[int]', node: int) -> int:
    count = len(addresses)
    nodes = array('i', [node]) * count
    status = array('i', [-1]) * count
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(
        ctypes.c_long(_MOVE_PAGES[platform.machine()]),
        ctypes.c_long(process), ctypes.c_ulong(count),
        *(ctypes.c_void_p(one.buffer_info()[0])
          for one in (addresses, nodes, status)), ctypes.c_long(_MOVE_ALL))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return status.count(node)
