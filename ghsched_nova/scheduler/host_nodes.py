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

"""CPUs, memory and pages that a request needs of host NUMA nodes.

All data is in Nova's ``RequestSpec`` and ``HostState``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nova.virt import hardware

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared
from ghsched_placement.fit.lack import Lack
from ghsched_placement.fit import node_capacity
from ghsched_placement.flavor import topology as topologies
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.flavor.topology import PageSize

#: Page sizes of guest NUMA nodes that stand for several sizes.
_PAGE_SIZES: Mapping[int, PageSize] = {
    hardware.MEMPAGES_SMALL: 'small', hardware.MEMPAGES_LARGE: 'large',
    hardware.MEMPAGES_ANY: 'any'}


# -- the guest ---------------------------------------------------------------


def list_guest_node_requirements(topology: Any,
                                 threads: int) -> list[GuestNode]:
    """Return the CPUs and memory that each guest NUMA node needs on a host.

    :param threads: number of hardware threads per core of a host. With
        ``hw:cpu_thread_policy=isolate``, one vCPU takes all threads of a core.
    """
    nodes = []
    for number, cell in enumerate(topology.cells):
        each = threads if cell.cpu_thread_policy == 'isolate' else 1
        extra = int(number == 0
                    and bool(topology.emulator_threads_isolated))
        nodes.append(GuestNode(pinned=(len(cell.pcpuset) + extra) * each,
                               shared=len(cell.cpuset), memory=cell.memory))
    return nodes


def list_sized_guest_nodes(
        topology: Any, threads: int = 1) -> list[tuple[GuestNode, PageSize]]:
    """Return the CPUs and memory of each guest NUMA node, with its page size.

    :param threads: as in :func:`list_guest_node_requirements`. With 1, a host
        may lack whole cores.
    """
    return [(part, get_page_size(cell)) for cell, part in zip(
        topology.cells, list_guest_node_requirements(topology, threads),
        strict=True)]


def get_page_size(cell: Any) -> PageSize:
    """Return the memory page size that a guest NUMA node asks for.

    :param cell: guest NUMA node in Nova's notation (InstanceNUMACell).
    """
    size: int | None = cell.pagesize
    return None if size is None else _PAGE_SIZES.get(size, size)


# -- the host ----------------------------------------------------------------


def count_threads_per_core(state: Any) -> int:
    """Return the number of hardware threads per core of a host.

    If cores differ, the largest number is returned.
    """
    topology = state.numa_topology
    return max((len(siblings) for cell in (topology.cells if topology else ())
                for siblings in cell.siblings), default=1)


def find_page_shortage(state: Any, topology: Any) -> Lack | None:
    """Return the refusal reason of a host with too few huge pages for a guest.

    :param state: Nova's host state.
    :param topology: NUMA topology of the guest; may be None.
    :returns: None if for each guest NUMA node, some host NUMA node has enough
        free pages of the size that the guest requests.
    """
    for part, size in list_sized_guest_nodes(topology) if topology else ():
        if not node_capacity.needs_huge_pages(size) or (
                isinstance(size, int) and part.memory * 1024 % size):
            continue
        best = {room.node: room.find_freest_pages(part, size) for room
                in numa.list_node_capacities(state.numa_topology, state)}
        if max(pages.free_mb for pages in best.values()) >= part.memory:
            continue
        word, unit_kb = 'MB of memory in huge pages', 1024
        if isinstance(size, int):
            word, unit_kb = node_capacity.make_pages_word(size), size
        needed = part.memory * 1024 // unit_kb
        free = {node: pages.free * pages.size_kb // unit_kb
                for node, pages in best.items()}
        return Lack(
            None, word, max(free.values()), needed, f'no NUMA node has '
            f'{needed} {word} free (hw:mem_page_size)', detail=', '.join(
                f'{free[node]} of {pages.usable * pages.size_kb // unit_kb} '
                f'free on NUMA node {node}' for node, pages in best.items()))
    return None


def find_cache_shortage(state: Any, spec: shared.RequestSpec) -> Lack | None:
    """Return the refusal reason of a host with too few CPUs of few L3 caches.

    :param state: Nova's host state.
    :returns: None if for each guest NUMA node, some host NUMA node has CPUs of
        as few caches as the flavor requires, or if all have too few CPUs.
        hw:cpu_thread_policy is not looked at.
    """
    wish = topologies.parse_cpu_cache(spec.flavor.extra_specs)
    rooms = numa.list_node_capacities(state.numa_topology, state)
    for part, _page_size in list_sized_guest_nodes(
            spec.numa_topology, count_threads_per_core(state)):
        found = [one for one in (room.make_cache_shortage(
            replace(part, cpu_cache=wish)) for room in rooms) if one.needed]
        best = max(found, key=lambda one: one.free, default=None)
        if best and best.free < best.needed:
            return Lack(
                None, best.resource, best.free, best.needed,
                f'no NUMA node has {best.needed} {best.resource} free '
                '(ghsched:cpu_cache=require)', f'the most free is {best.free}',
                'ghsched:cpu_cache=prefer takes CPUs of more caches')
    return None
