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

"""NUMA nodes of a guest and of its host as Nova has recorded them."""

from typing import Any

from nova import objects

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams.shared import InstanceNUMATopology
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.fit.cells import HostCell


def list_guest_cells(topology: InstanceNUMATopology | None,
                     ) -> tuple[GuestCell, ...]:
    """Return CPUs, memory and host node of each NUMA node of an instance.

    :param topology: the instance's NUMA topology after the claim.
    """
    return tuple(GuestCell(
        cell.id, frozenset(cell.cpuset), dict(cell.cpu_pinning or {}),
        frozenset(cell.cpuset_reserved or ()), cell.memory, cell.pagesize,
        cell.cpu_thread_policy or 'prefer')
        for cell in (topology.cells if topology else ()))


def map_host_cells(node: Any) -> dict[int, HostCell]:
    """Return the free CPUs and memory of a host, by NUMA node.

    :param node: Nova's ComputeNode; its topology counts the usage of guests.
    """
    topology: Any = (objects.NUMATopology.obj_from_db_obj(node.numa_topology)
                     if node.numa_topology else None)
    return {cell.id: numa.make_host_cell(cell)
            for cell in (topology.cells if topology else ())}
