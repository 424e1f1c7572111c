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

"""Privileged functions that bind and move the memory of QEMU.

move_pages(2) requires CAP_SYS_NICE and CAP_SYS_PTRACE (``kernel_move_pages``
of mm/migrate.c), reading numa_maps the latter.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Iterator
import ctypes
from pathlib import Path
from typing import Annotated

from ghsched_nova.base import bounds
from ghsched_nova.base.bounds import Range
from ghsched_nova.base import kernel_files
from ghsched_nova.base import privsep
from ghsched_nova.base import qemu
from ghsched_nova.base import system_calls
from ghsched_nova.features.live_change import cpusets
from ghsched_nova.features.live_change import numa_maps
from ghsched_placement.base import cpulist

#: Bytes that are moved before the rate is checked.
PIECE = 32 << 20

#: MPOL_MF_MOVE_ALL of <linux/mempolicy.h>: move pages that are shared with
#: other processes, too (vhost-user).
_MOVE_ALL = 4
#: Number of pages per system call.
_AT_ONCE = 4096

#: Name of the domain, and id of its process.
Guest = Annotated[tuple[qemu.DomainName, privsep.Pid],
                  privsep.check_qemu_process]

#: NUMA node; MAX_NUMNODES of include/linux/numa.h is at most 1024.
_Node = Annotated[int, Range(0, 1023)]
#: Address up to TASK_SIZE_MAX with five levels of page tables.
_Address = Annotated[int, Range(0, 2 ** 57)]
#: Page size from 4 KiB to 16 GiB.
_PageSize = Annotated[int, Range(2 ** 12, 2 ** 34)]
#: Fields of memory.Area, in order.
_Area = tuple[int, int, int, int, list[tuple[int, int]]]


def _check_address_range(value: tuple[int, int, int]) -> None:
    """Check that an address range is whole pages, and not too large.

    The privileged helper checks its arguments, as it runs as root. A range has
    at most PIECE bytes, or one page if that is larger.

    :param value: start address, end address, page size in bytes.
    :raises Refused: if the range is invalid.
    """
    first, last, size = value
    if (size & (size - 1) or first % size or last % size
            or not 0 < last - first <= max(PIECE, size)):
        raise bounds.OutOfBounds(
            f'addresses {first:#x} to {last:#x} are not whole pages of {size} '
            'bytes, or too many')


_Piece = Annotated[tuple[_Address, _Address, _PageSize], _check_address_range]


def read_bound_areas(guest: Guest) -> list[numa_maps.Area]:
    """Read the memory areas of a guest that are bound to one NUMA node each.

    The privileged helper reads them as root.

    :raises MemoryMoveError: if there are too many areas.
    """
    return [numa_maps.Area(first, last, node, size, dict(pages))
            for first, last, node, size, pages in _areas(guest)]


def restrict_memory_to_nodes(guest: Guest, nodes: Iterable[int]) -> str:
    """Restrict a guest's memory to host NUMA nodes.

    The privileged helper makes the change as root.

    :returns: error message; empty on success.
    """
    return _allow(guest, sorted(nodes))


def move_guest_pages(
        guest: Guest, start: int, end: int, page_size: int, node: int) -> int:
    """Move a guest's memory pages in an address range to a host NUMA node.

    The range is one of QEMU's addresses. The privileged helper moves the pages
    as root.

    :param start: first address of the range.
    :param end: end of the range, exclusive.
    :param page_size: page size in bytes.
    :param node: the host NUMA node.
    :returns: number of pages that are on the node afterwards.
    """
    return _move(guest, (start, end, page_size), node)


@privsep.entrypoint(privsep.memory, timeout=60.0)
def _areas(guest: Guest) -> list[_Area]:
    _name, process = guest
    return read_bound_areas_of_process(process)


@privsep.entrypoint(privsep.memory, timeout=600.0)
def _allow(guest: Guest, nodes: list[_Node]) -> str:
    _name, process = guest
    return write_cpuset_mems(process, nodes)


@privsep.entrypoint(privsep.memory, timeout=300.0)
def _move(guest: Guest, piece: _Piece, node: _Node) -> int:
    _name, process = guest
    return move_process_pages(process, *piece, node)


def read_bound_areas_of_process(
        pid: int, proc: Path = Path('/proc')) -> list[_Area]:
    """Read the memory areas of a process that are bound to one NUMA node each.

    This is a function of the privileged helper, so the areas are returned as
    plain tuples. The list is empty if the process has ended.
    """
    path = proc / str(pid)
    try:
        with (open(path / 'numa_maps') as lines,
              open(path / 'maps') as maps):
            return [(one.first, one.last, one.node, one.page_size,
                     list(one.pages.items()))
                    for one in numa_maps.parse_bound_areas(lines, maps)]
    except OSError:
        return []


def write_cpuset_mems(
        pid: int, nodes: list[int], root: Path = cpusets.ROOT) -> str:
    """Restrict a process's memory to NUMA nodes, by ``cpuset.mems``.

    This is a function of the privileged helper.

    :returns: error message; empty on success.
    """
    text = cpulist.render_cpu_list(nodes)
    for path in cpusets.find_cpuset_groups(pid, root=root):
        try:
            if cpusets.read_cpuset_mems(path) != frozenset(nodes):
                kernel_files.write_kernel_file(
                    root, [*path.relative_to(root).parts, cpusets.MEMS], text,
                    kernel_files.CGROUPS)
        except OSError as error:
            return f'{path}/{cpusets.MEMS}: {error.strerror}'
    return ''


def move_process_pages(pid: int, start: int, end: int, page_size: int,
                       node: int) -> int:
    """Move a process's memory pages in an address range to a NUMA node.

    This is a function of the privileged helper.

    :param start: first address of the range.
    :param end: end of the range, exclusive.
    :param page_size: page size in bytes.
    :returns: number of pages that are on the node afterwards.
    """
    return sum(_call_move_pages(pid, addresses, node)
               for addresses in _addresses(start, end, page_size))


def _addresses(first: int, last: int, size: int) -> Iterator['array[int]']:
    step = _AT_ONCE * size
    for begin in range(first, last, step):
        yield array('Q', range(begin, min(begin + step, last), size))


def _call_move_pages(process: int, addresses: 'array[int]', node: int) -> int:
    count = len(addresses)
    nodes = array('i', [node]) * count
    status = array('i', [-1]) * count
    system_calls.make_system_call(
        'move_pages', ctypes.c_long(process), ctypes.c_ulong(count),
        *(ctypes.c_void_p(one.buffer_info()[0])
          for one in (addresses, nodes, status)), ctypes.c_long(_MOVE_ALL))
    return status.count(node)
