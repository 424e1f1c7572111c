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

"""Claims of nova-compute while a guest moves to other nodes of its host."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

from nova.compute import resource_tracker
from nova import exception
from oslo_concurrency import lockutils
from oslo_log import log as logging

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_placement.fit.cells import GuestCell

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.COMPUTE)

#: Resources that moving guests use on their new host NUMA nodes and that are
#: not in Nova's records yet, by name of the compute node and UUID of the
#: guest.
_MOVING: dict[tuple[str, str], Any] = {}


@seam('nova.compute.resource_tracker.ResourceTracker._update_usage',
      ('self', 'usage', 'nodename', 'sign'),
      called='Counts a moving guest on its new nodes, under the lock of the '
             'resource tracker.')
def count_moving_guests_on_new_nodes(tracker: Any, nodename: str) -> None:
    """Count guests that move between host NUMA nodes on their new nodes, too.

    Their records still name their old nodes. No other guest can then claim the
    old or the new nodes.

    :param tracker: nova-compute's resource tracker, which counts usage from
        the records of its guests with each periodic report.
    """
    for (node, uuid), topology in tuple(_MOVING.items()):
        try:
            if node == nodename:
                tracker._update_usage(_make_usage(topology), nodename)
        except exception.NovaException as error:
            LOG.warning('ghsched: cannot claim the new NUMA nodes of server '
                        '%s during a move between host NUMA nodes; counting '
                        'only the old nodes: %s',
                        uuid, error)


def _make_usage(topology: Any) -> dict[str, Any]:
    """Return the usage of a NUMA topology in Nova's format.

    ``ResourceTracker._update_usage`` expects this format.
    """
    return {'memory_mb': 0, 'numa_topology': topology}


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
        with _get_claim_lock():
            instance.numa_topology = wanted
            # Whoever deletes the guest has read the record of before.
            instance.save(expected_task_state=[instance.task_state])
            del _MOVING[key]
            for topology, sign in ((gained, -1), (before, -1), (wanted, 1)):
                tracker._update_usage(_make_usage(topology), node, sign)

    with _get_claim_lock():
        _check_memory(tracker.compute_nodes[node], gained)
        tracker._update_usage(_make_usage(gained), node)
        _MOVING[key] = gained
    try:
        yield commit
    finally:
        with _get_claim_lock():
            if _MOVING.pop(key, None) is not None:
                # Else it is what a report in between did not count.
                with contextlib.suppress(exception.NovaException):
                    tracker._update_usage(_make_usage(gained), node, -1)


@seam('nova.compute.resource_tracker.COMPUTE_RESOURCE_SEMAPHORE')
def _get_claim_lock() -> Any:
    """Return the lock that Nova's resource tracker holds during a claim.

    All claims of this nova-compute process use the same lock.
    """
    return lockutils.lock(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE,
                          'nova-', fair=True)


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
                              for cell in numa.list_guest_cells(before)))
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
    rooms = numa.list_host_capacities(node)
    for cell in numa.list_guest_cells(gained):
        room = rooms[cell.host_node]
        free = (room.memory_free * 1024 if cell.page_size is None else
                room.pages_free.get(cell.page_size, 0) * cell.page_size)
        if free < cell.memory * 1024:
            raise exception.ComputeResourcesUnavailable(
                reason=f'host NUMA node {cell.host_node} has {free // 1024} '
                       f'MiB free, {cell.memory} MiB are to be moved there')
