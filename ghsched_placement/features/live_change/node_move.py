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


"""Plan a move of a running guest to other NUMA nodes of its host (pure).

The plan has the new host CPU of each vCPU of the moved guest nodes. If the
guest cannot be moved, the reason is raised. Nothing is changed.

A guest with passthrough devices cannot be moved: the kernel pins the memory
that a device accesses (VFIO).
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from ghsched_placement.fit.cells import CpuChoice
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.fit.cells import ThreadPolicy

#: Names in Nova's server actions: the action, and its event.
ACTION, EVENT = 'ghsched', 'ghsched_move_nodes'


class NotMovable(Exception):  # noqa: N818
    """Raised if a guest cannot be moved, with the reason for an admin."""


@dataclass(frozen=True)
class NodeMove:
    """Planned move of a guest to other NUMA nodes of its host.

    :param before: NUMA nodes of the guest before the move.
    :param after: NUMA nodes of the guest after the move. A node that does not
        move is the same object in both.
    """

    before: tuple[GuestCell, ...]
    after: tuple[GuestCell, ...]

    @property
    def nodes_moved(self) -> dict[int, tuple[int, int]]:
        """Old and new host NUMA node of each guest NUMA node that moves."""
        return {number: (old.host_node, new.host_node)
                for number, (old, new) in enumerate(
                    zip(self.before, self.after, strict=True))
                if old.host_node != new.host_node}

    @property
    def is_needed(self) -> bool:
        """Whether any guest NUMA node moves to another host NUMA node."""
        return bool(self.nodes_moved)

    def make_reverse_plan(self) -> 'NodeMove':
        """Return the plan of moving the guest back to its old NUMA nodes."""
        return NodeMove(self.after, self.before)


def plan_node_move(guest: Sequence[GuestCell],
                   host_nodes: Mapping[int, HostCell],
                   targets: Mapping[int, int],
                   devices: Iterable[str] = (),
                   choose_cpus: CpuChoice | None = None) -> NodeMove:
    """Plan how a guest moves to other NUMA nodes and CPUs of the same host.

    :param guest: all NUMA nodes of the guest.
    :param host_nodes: free CPUs and memory by host NUMA node; those of the
        guest itself count as used.
    :param targets: new host NUMA node by guest NUMA node.
    :param devices: PCI addresses of passthrough devices of the guest.
    :param choose_cpus: choice of the dedicated CPUs on a host node; None for
        any of them.
    :raises NotMovable: when the guest cannot be moved in this way.
    """
    after = list(guest)
    _check_targets(guest, host_nodes, targets)
    moving = {number: node for number, node in targets.items()
              if guest[number].host_node != node}
    if not moving:
        return NodeMove(tuple(guest), tuple(guest))
    _check_devices(devices)
    for number, node in sorted(moving.items()):
        room = _add_freed_cpus(host_nodes[node], node, guest, moving)
        _check_memory(guest[number], room, node)
        after[number] = _assign_cell_to_node(
            guest[number], room, node,
            host_nodes[guest[number].host_node].cores,
            choose_cpus or _choose_any)
    return NodeMove(tuple(guest), tuple(after))


def _check_targets(guest: Sequence[GuestCell],
                   host_nodes: Mapping[int, HostCell],
                   targets: Mapping[int, int]) -> None:
    for number, node in targets.items():
        if not 0 <= number < len(guest):
            raise NotMovable(f'the guest has no NUMA node {number}')
        if node not in host_nodes:
            raise NotMovable(f'the host has no NUMA node {node}')
    lost = {cell.host_node for cell in guest} - host_nodes.keys()
    if lost:
        raise NotMovable('the host does not report the NUMA nodes '
                         f'{sorted(lost)}, on which the guest is')
    nodes = [targets.get(number, cell.host_node)
             for number, cell in enumerate(guest)]
    for node in nodes:
        if nodes.count(node) > 1:
            raise NotMovable('two NUMA nodes of the guest would be on host '
                             f'NUMA node {node}')


def _check_devices(devices: Iterable[str]) -> None:
    found = sorted(devices)
    if found:
        raise NotMovable(
            'memory that is pinned for the passthrough devices '
            f'{", ".join(found)} cannot be moved while the server runs')


def _add_freed_cpus(cell: HostCell, node: int, guest: Sequence[GuestCell],
                    moving: Mapping[int, int]) -> HostCell:
    """Add the CPUs that moving guest nodes will free to a host node.

    Memory is not added, because it is in use until it has been moved.

    :param cell: free CPUs and memory of the host NUMA node.
    :param node: number of the host NUMA node.
    :param guest: all NUMA nodes of the guest.
    :param moving: new host NUMA node of each guest NUMA node that moves.
    """
    left = [guest[number].dedicated_cpus for number in moving
            if guest[number].host_node == node]
    known = frozenset().union(*cell.cores)
    return replace(cell, free=cell.free.union(*left) & known)


def _check_memory(cell: GuestCell, target: HostCell, node: int) -> None:
    if cell.page_size is None:
        if target.memory_free < cell.memory:
            raise NotMovable(
                f'host NUMA node {node} has {target.memory_free} MiB of '
                f'memory free, {cell.memory} MiB are to be moved there')
        return
    needed = -(-cell.memory * 1024 // cell.page_size)
    free = target.pages_free.get(cell.page_size, 0)
    if free < needed:
        raise NotMovable(
            f'host NUMA node {node} has {free} pages of {cell.page_size} KiB '
            f'free, {needed} are to be moved there')


# -- CPUs ---------------------------------------------------------------------


def _choose_any(target: HostCell, _needed: int,
                _threads: ThreadPolicy) -> Iterator[frozenset[int]]:
    yield frozenset().union(*target.cores)


def _assign_cell_to_node(cell: GuestCell, target: HostCell, node: int,
                         cores: Sequence[frozenset[int]],
                         choose_cpus: CpuChoice) -> GuestCell:
    """Return a guest NUMA node that is placed on another host NUMA node.

    Its CPUs are chosen among those that are free there.

    :param cell: guest NUMA node before the move.
    :param target: free CPUs of the new host NUMA node.
    :param node: number of the new host NUMA node.
    :param cores: sets of sibling threads of the old host NUMA node.
    :param choose_cpus: choice of the dedicated CPUs on the new host node.
    :raises NotMovable: when the new host NUMA node has too few CPUs.
    """
    if cell.vcpus and not target.shared:
        raise NotMovable(f'host NUMA node {node} has no CPUs for guests '
                         'without dedicated ones')
    needed = len(cell.dedicated_cpus)
    found = (_choose_new_cpus(cell, _copy_with_cpus(target, cpus), cores)
             for cpus in choose_cpus(target, needed, cell.threads))
    taken = next((one for one in found if one is not None), None)
    if needed and taken is None:
        raise NotMovable(
            f'host NUMA node {node} has {len(target.free)} dedicated CPUs '
            f'free, {needed} are needed there'
            + ('' if cell.threads == 'prefer' else ', in cores as '
               f'hw:cpu_thread_policy={cell.threads} asks for')
            + ('' if choose_cpus is _choose_any else ', chosen as keys of '
               'the flavor ask for (ghsched:cpu_cache)'))
    taken = taken or {}
    return replace(
        cell, host_node=node,
        pins={vcpu: taken[cpu] for vcpu, cpu in cell.pins.items()},
        reserved=frozenset(taken[cpu] for cpu in cell.reserved))


def _copy_with_cpus(target: HostCell, cpus: frozenset[int]) -> HostCell:
    """Return a host NUMA node with some of its dedicated CPUs."""
    return replace(target, free=target.free & cpus,
                   cores=tuple(core & cpus for core in target.cores))


def _choose_new_cpus(cell: GuestCell, target: HostCell,
                     cores: Iterable[frozenset[int]]) -> dict[int, int] | None:
    """Choose a new host CPU for each old host CPU of a guest NUMA node.

    vCPUs that share a core share one again, because the guest sees them as
    threads of one core. With the thread policy ``prefer`` they do so only if
    possible.

    :param cell: guest NUMA node before the move.
    :param target: free CPUs of the new host NUMA node.
    :param cores: cores of the host NUMA node that the guest node leaves.
    :returns: new by old host CPU; None if too few CPUs are free.
    """
    whole = cell.threads == 'isolate'
    left = [core & target.free for core in target.cores
            if not whole or core <= target.free]
    found: dict[int, int] = {}
    groups = [sorted(cell.dedicated_cpus & core) for core in cores]
    for group in sorted(groups, key=len, reverse=True):
        parts = [group]
        if cell.threads == 'prefer' and all(len(core) < len(group)
                                            for core in left):
            parts = [[cpu] for cpu in group]
        for part in parts:
            core = _choose_core(left, len(part))
            if core is None:
                return None
            chosen = sorted(core)[:len(part)]
            found.update(zip(part, chosen, strict=True))
            gone = core if whole else frozenset(chosen)
            left = [one - gone for one in left]
    return found if found.keys() == cell.dedicated_cpus else None


def _choose_core(cores: Iterable[frozenset[int]],
                 count: int) -> frozenset[int] | None:
    """Return the free CPUs of the core that the needed CPUs fill best.

    Of the cores with enough free CPUs, it is the one with the fewest.

    :param cores: free CPUs of each core.
    :param count: number of CPUs that are needed.
    :returns: None if no core has enough.
    """
    return min((core for core in cores if len(core) >= count),
               key=lambda core: (len(core), sorted(core)), default=None)
