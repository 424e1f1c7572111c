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

"""NUMA nodes and devices of hosts, from Nova's host states, for weighers.

Resources that a host has not reported count as 0.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_placement.features.packing.numa_nodes import DeviceNeed
from ghsched_placement.features.packing.numa_nodes import HostNode
from ghsched_placement.features.packing.numa_nodes import NodeAmount
from ghsched_placement.flavor.topology import PageSize

#: Nova's PCI pools by a name that ghsched gives to each pool.
Pools: TypeAlias = Mapping[str, Mapping[str, Any]]

#: PCI NUMA affinity policies that allow devices on other nodes than the
#: guest's.
_ANYWHERE = frozenset({'preferred', 'socket'})


def list_device_needs(state: Any, spec: shared.RequestSpec,
                      pools: Pools) -> list[DeviceNeed]:
    """Return the devices that a guest needs, each with matching PCI pools.

    A PCI pool is Nova's record of equal free devices on a host. Guests request
    devices by PCI aliases, by the extra spec ``ghsched:vfs``, and by ports.

    :param state: Nova's host state of the host.
    :param pools: the host's pools of free devices.
    """
    wanted = spec.pci_requests if 'pci_requests' in spec else None
    return [DeviceNeed(count=request.count,
                       pools=_list_matching_pools(state, request, pools),
                       anywhere=_get_numa_policy(request) in _ANYWHERE)
            for request in (wanted.requests if wanted else ())]


def _get_numa_policy(request: Any) -> str | None:
    return request.numa_policy if 'numa_policy' in request else None


def _list_matching_pools(state: Any, request: Any,
                         pools: Pools) -> frozenset[str]:
    """Return a host's PCI pools that can satisfy a device request.

    A PCI pool is Nova's record of equal free devices on a host. If the
    allocation candidate names pools for the request, only these are returned.
    """
    candidates = state.allocation_candidates or [{}]
    matching = scheduler.list_matching_pools(state, request,
                                             candidates[0].get('mappings'))
    return frozenset(name for name, pool in pools.items() if pool in matching)


def get_pci_pools(state: Any) -> Pools:
    """Return a host's pools of free passthrough devices, each with a name.

    A pool is Nova's record of equal devices on a host.
    """
    known = state.pci_stats.pools if state.pci_stats else ()
    return {str(number): pool for number, pool in enumerate(known)}


def list_chosen_nodes(state: Any,
                      nodes: Sequence[HostNode]) -> tuple[HostNode, ...]:
    """Return the host NUMA nodes that ghsched's filter chose for the guest.

    The nodes are in the order of the guest's NUMA nodes. The result is empty
    if the filter chose none.

    :param nodes: all NUMA nodes of the host.
    """
    known = {node.number: node for node in nodes}
    order = scheduler.get_chosen_nodes(state) or ()
    return tuple(known[number] for number in order if number in known)


def list_physnets_of_limits(state: Any) -> frozenset[str]:
    """Return the physical networks that a claim's NUMA limits name.

    ghsched's filter limits a claim to host NUMA nodes by adding one artificial
    physical network for each allowed node.
    """
    return numa.get_physnets((state.limits or {}).get('numa_topology'))


def list_host_nodes(state: Any, pools: Pools,
                    page_size: PageSize) -> list[HostNode]:
    """Return total and free resources of each NUMA node of a host.

    :param pools: the host's pools of free passthrough devices.
    :param page_size: memory page size that a guest asks for, in KiB or as a
        word of ``hw:mem_page_size``.
    """
    topology = state.numa_topology
    cells = topology.cells if topology else ()
    floating = _compute_floating_vcpus_per_node(state, cells)
    return [_make_host_node(state, pools, page_size, floating, cell)
            for cell in cells]


def _make_host_node(state: Any, pools: Pools, page_size: PageSize,
                    floating: int, cell: Any) -> HostNode:
    return HostNode(
        number=cell.id,
        pinned=NodeAmount(len(cell.pcpuset), cell.avail_pcpus),
        shared=_count_shared_cpus(state, cell, floating),
        memory=_compute_node_memory(state, cell, page_size),
        devices=_count_node_devices(pools, cell.id),
        memory_free=cell.avail_memory,
        physnets=numa.get_physnets(cell))


def _count_node_devices(pools: Pools, node: int) -> dict[str, int]:
    """Return the number of free devices of a host NUMA node, by PCI pool.

    Devices whose NUMA node is unknown are counted for each node.
    """
    return {name: pool['count'] for name, pool in pools.items()
            if pool.get('numa_node') in (node, None, -1)}


def _count_shared_cpus(state: Any, cell: Any, floating: int) -> NodeAmount:
    """Return total and free shared CPUs of a host NUMA node.

    :param floating: number of vCPUs to subtract for guests without a NUMA
        topology. They are not subtracted on a node that has CPUs only for
        pinned vCPUs.
    """
    total = int(len(cell.cpuset) * (state.cpu_allocation_ratio or 1.0))
    used = cell.cpu_usage + (0 if cell.pcpuset - cell.cpuset else floating)
    return NodeAmount(total, total - used)


def _compute_floating_vcpus_per_node(state: Any,
                                     cells: Collection[Any]) -> int:
    """Return the vCPUs per host NUMA node of guests without a NUMA topology.

    Nova does not know on which NUMA nodes these guests run. Their vCPUs are
    therefore divided evenly among the nodes with shared CPUs and rounded up.

    :param state: Nova's host state.
    :param cells: the host's NUMA nodes (NUMACell).
    """
    homes = sum(bool(cell.cpuset) for cell in cells)
    placed = sum(cell.cpu_usage + len(cell.pinned_cpus) for cell in cells)
    return -(-max(0, (state.vcpus_used or 0) - placed) // (homes or 1))


def _compute_node_memory(state: Any, cell: Any,
                         page_size: PageSize) -> NodeAmount:
    """Return total and free memory (MiB) of a host NUMA node for a page size.
    """
    pages = sorted(cell.mempages, key=lambda pages: pages.size_kb)
    if page_size == 'large':
        pages = pages[1:]
    elif isinstance(page_size, int):
        pages = [one for one in pages if one.size_kb == page_size]
    else:
        return _compute_small_page_memory(state, cell, pages)
    shares = [_compute_pages_memory(one) for one in pages]
    return max(shares, key=lambda share: share.free, default=NodeAmount())


def _compute_small_page_memory(state: Any, cell: Any,
                               pages: Sequence[Any]) -> NodeAmount:
    """Return total and free memory (MiB) of a host NUMA node in small pages.

    Nova counts small pages as used only for guests that ask for a page size.
    The free memory is therefore computed from ``memory_usage``, which counts
    all guests with a NUMA topology.
    """
    total = _compute_pages_memory(pages[0]).total if pages else cell.memory
    total = int(total * (state.ram_allocation_ratio or 1.0))
    in_huge_pages = sum(one.used * one.size_kb // 1024 for one in pages[1:])
    return NodeAmount(total, total - max(0, cell.memory_usage - in_huge_pages))


def _compute_pages_memory(pages: Any) -> NodeAmount:
    usable = max(0, pages.free + pages.used)
    return NodeAmount(usable * pages.size_kb // 1024, pages.free_kb // 1024)
