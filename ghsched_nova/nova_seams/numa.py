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

"""NUMA nodes of hosts and guests, as Nova records and fits them."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from nova import objects

from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams.shared import InstanceNUMATopology
from ghsched_nova.nova_seams.shared import NUMATopology
from ghsched_placement import names
from ghsched_placement import node_move

seam = registry.in_processes(registry.SCHEDULER, registry.COMPUTE)


def host_cells(topology: InstanceNUMATopology | None) -> Sequence[int]:
    """Host NUMA node of each guest NUMA node of a claimed instance.

    After the claim ``InstanceNUMACell.id`` is the host's cell number.
    """
    if topology is None:
        return ()
    return [cell.id for cell in topology.cells]


def guest_cells(topology: InstanceNUMATopology | None
                ) -> tuple[node_move.GuestCell, ...]:
    """The NUMA nodes of a claimed instance."""
    return tuple(node_move.GuestCell(
        cell.id, frozenset(cell.cpuset), dict(cell.cpu_pinning or {}),
        frozenset(cell.cpuset_reserved or ()), cell.memory, cell.pagesize,
        cell.cpu_thread_policy or 'prefer')
        for cell in (topology.cells if topology else ()))


def host_rooms(node: Any) -> dict[int, node_move.HostCell]:
    """What the NUMA nodes of a host have, by number.

    :param node: Nova's ComputeNode; its topology has what guests take.
    """
    topology: Any = (objects.NUMATopology.obj_from_db_obj(node.numa_topology)
                     if node.numa_topology else None)
    return {cell.id: node_move.HostCell(
        frozenset(cell.free_pcpus), _cores(cell), frozenset(cell.cpuset),
        max(0, cell.avail_memory),
        {pages.size_kb: max(0, pages.total - pages.used - pages.reserved)
         for pages in cell.mempages})
        for cell in (topology.cells if topology else ())}


def _cores(cell: Any) -> tuple[frozenset[int], ...]:
    """Dedicated CPUs by core; Nova names no siblings without SMT."""
    cores = [frozenset(core & cell.pcpuset) for core in cell.siblings]
    alone = cell.pcpuset.difference(*cores)
    return (*filter(None, cores), *(frozenset((cpu,)) for cpu in alone))


@seam('nova.virt.hardware.numa_fit_instance_to_host',
      ('host_topology', 'instance_topology', 'provider_mapping', 'limits',
       'pci_requests', 'pci_stats'))
def steer_fit() -> None:
    """Let limits say on which host cell each guest cell goes.

    ``nova.compute.claims`` and ``nova.scheduler.host_manager`` look
    ``nova.virt.hardware.numa_fit_instance_to_host`` up in its module. It
    takes host cells as they come when there are no more of them than guest
    cells, so it is given those that the limits name, in their order.
    """
    def steered(original: Callable[..., Any], host_topology: Any,
                instance_topology: Any, provider_mapping: Any,
                limits: Any = None, pci_requests: Any = None,
                pci_stats: Any = None) -> Any:
        order = limits_order(limits)
        if order is not None and host_topology and instance_topology:
            host_topology = in_order(host_topology, order)
            limits = _without_order(limits)
        fitted = original(host_topology, instance_topology, provider_mapping,
                          limits=limits, pci_requests=pci_requests,
                          pci_stats=pci_stats)
        # With the first order failing Nova tries the others.
        follows = order is None or tuple(host_cells(fitted)) == order
        return fitted if follows else None
    registry.replace('nova.virt.hardware.numa_fit_instance_to_host', steered)


def limits_order(limits: Any) -> tuple[int, ...] | None:
    """Host node of each guest node in limits of ours."""
    for physnet in physnets(limits):
        order = names.order_of(physnet)
        if order is not None:
            return order
    return None


def physnets(known: Any) -> frozenset[str]:
    """The physical networks that limits name, or that a host cell has."""
    if not known or 'network_metadata' not in known:
        return frozenset()
    metadata = known.network_metadata
    return frozenset(metadata.physnets if 'physnets' in metadata else ())


def in_order(topology: NUMATopology, order: Sequence[int]) -> NUMATopology:
    cells = {cell.id: cell for cell in topology.cells}
    return objects.NUMATopology(
        cells=[cells[node] for node in order if node in cells])


def _without_order(limits: Any) -> Any:
    limits = limits.obj_clone()
    limits.network_metadata.physnets = {
        physnet for physnet in limits.network_metadata.physnets
        if names.order_of(physnet) is None}
    return limits


def make_limits(node: Any, physnets: set[str], tunneled: bool) -> Any:
    return objects.NUMATopologyLimits(
        cpu_allocation_ratio=node.cpu_allocation_ratio,
        ram_allocation_ratio=node.ram_allocation_ratio,
        network_metadata=objects.NetworkMetadata(
            physnets=physnets, tunneled=tunneled))
