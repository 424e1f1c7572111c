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

"""Claims of the new host NUMA nodes of a guest that moves on its host."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

from nova import exception

from ghsched_nova.features.live_change import nova_cells
from ghsched_nova.nova_seams import compute_moves
from ghsched_placement.fit.cells import GuestCell


@contextlib.contextmanager
def claiming_new_nodes(
        virtapi: Any, instance: Any,
        after: Sequence[GuestCell]) -> Iterator[Callable[[], None]]:
    """Within this context, a moving guest has its new host NUMA nodes claimed.

    The guest is counted on its old nodes as well. The context yields a
    function that writes only the new nodes into the guest's record, and that
    fails if the guest's task state has changed.

    :param virtapi: ``ComputeVirtAPI``, which has nova-compute's manager.
    :param after: the guest's NUMA nodes after the move.
    :raises NovaException: if another guest uses a CPU or the memory.
    """
    tracker: Any = virtapi._compute.rt
    before, node = instance.numa_topology, instance.node
    wanted = _copy_topology_to_nodes(before, after)
    gained, key = _make_claim_topology(before, wanted), (node, instance.uuid)

    def commit() -> None:
        with compute_moves.get_claim_lock():
            instance.numa_topology = wanted
            # Whoever deletes the guest has read the record of before.
            instance.save(expected_task_state=[instance.task_state])
            del compute_moves.MOVING[key]
            compute_moves.count_usage(tracker, node, (gained, -1),
                                      (before, -1), (wanted, 1))

    with compute_moves.get_claim_lock():
        _check_memory(tracker.compute_nodes[node], gained)
        compute_moves.count_usage(tracker, node, (gained, 1))
        compute_moves.MOVING[key] = gained
    try:
        yield commit
    finally:
        with compute_moves.get_claim_lock():
            if compute_moves.MOVING.pop(key, None) is not None:
                # Else it is what a report in between did not count.
                with contextlib.suppress(exception.NovaException):
                    compute_moves.count_usage(tracker, node, (gained, -1))


def _copy_topology_to_nodes(topology: Any,
                            cells: Sequence[GuestCell]) -> Any:
    """Return a copy of a NUMA topology on other host NUMA nodes and CPUs.

    :param topology: NUMA topology of an instance.
    :param cells: host NUMA node and CPUs of each guest NUMA node of the copy.
    """
    wanted = topology.obj_clone()
    for cell, place in zip(wanted.cells, cells, strict=True):
        cell.id = place.host_node
        if cell.cpu_pinning:
            cell.cpu_pinning = dict(place.pins)
        if cell.cpuset_reserved:
            cell.cpuset_reserved = set(place.reserved)
    return wanted


def _make_claim_topology(before: Any, after: Any) -> Any:
    """Return the NUMA topology that a move between host nodes has to claim.

    It has only those guest NUMA nodes that move to another host node, and none
    of the host CPUs that the guest uses already.

    :param before: NUMA topology of the instance before the move.
    :param after: NUMA topology of the instance after the move.
    """
    gained = after.obj_clone()
    had = frozenset().union(*(cell.dedicated_cpus
                              for cell in nova_cells.list_guest_cells(before)))
    gained.cells = [new for old, new in zip(before.cells, gained.cells,
                                            strict=True) if old.id != new.id]
    for cell in gained.cells:
        if cell.cpu_pinning:
            cell.cpu_pinning = {vcpu: cpu for vcpu, cpu
                                in cell.cpu_pinning.items()
                                if cpu not in had}
        if cell.cpuset_reserved:
            cell.cpuset_reserved = set(cell.cpuset_reserved) - had
    return gained


def _check_memory(node: Any, gained: Any) -> None:
    rooms = nova_cells.map_host_cells(node)
    for cell in nova_cells.list_guest_cells(gained):
        room = rooms[cell.host_node]
        free = (room.memory_free * 1024 if cell.page_size is None else
                room.pages_free.get(cell.page_size, 0) * cell.page_size)
        if free < cell.memory * 1024:
            raise exception.ComputeResourcesUnavailable(
                reason=f'host NUMA node {cell.host_node} has {free // 1024} '
                       f'MiB free, {cell.memory} MiB are to be moved there')
