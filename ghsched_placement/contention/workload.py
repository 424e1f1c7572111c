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

"""Guests full of containers, and the traffic that they make (pure).

Three scenarios:

``none``
    No control: the kernel runs every thread and puts every page where it
    likes, which is all nodes alike.
``static``
    The best bind by hand: each guest node has its CPUs and its memory on one
    host node. The guest is not told where its VFs are, so the buffers of a VF
    are on any of the guest's nodes.
``ghsched``
    Bound likewise, and held by the keys of a flavor. With
    ``ghsched:device_numa`` the guest knows the node of a VF that is on one of
    its own host nodes, and has its buffers there.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from collections import Counter
from collections import defaultdict
from dataclasses import dataclass

from ghsched_placement.contention.machine import CONTROLS
from ghsched_placement.contention.machine import Machine
from ghsched_placement.contention.machine import Node
from ghsched_placement.contention.traffic import Control
from ghsched_placement.contention.traffic import Controls
from ghsched_placement.contention.traffic import Flow
from ghsched_placement.policy import GuestPolicy

SCENARIOS = ('none', 'static', 'ghsched')

#: Groups of those who are not guests of the workload.
DEVICES, NEIGHBOURS = 'devices', 'neighbours'


@dataclass(frozen=True)
class Workload:
    """Equal guests with equal containers, filled in turn.

    The defaults are the published test: two guests of 160 vCPUs, 240 GB, two
    NUMA nodes and 40 VFs, with containers of 2 vCPUs and 8 GB.

    :param memory_mb: of a guest, MiB; and likewise of a container.
    :param nodes: NUMA nodes of a guest.
    :param neighbour_mb: MB/s that others, whom nobody controls, want of each
        host node.
    """

    guests: int = 2
    vcpus: int = 160
    memory_mb: int = 240 * 1024
    nodes: int = 2
    vfs: int = 40
    container_vcpus: int = 2
    container_memory_mb: int = 8 * 1024
    neighbour_mb: float = 0.0

    def per_guest(self) -> dict[str, int]:
        """How many containers a guest takes by each of its resources."""
        return {
            'guest memory': self.memory_mb // self.container_memory_mb,
            'guest VFs': self.vfs,
            'guest vCPUs': self.vcpus // self.container_vcpus}


#: The published test.
REFERENCE = Workload()


@dataclass(frozen=True)
class Path:
    """A part of the accesses of one container.

    :param group: control group of its guest.
    :param part: of all accesses, 0 to 1.
    """

    group: str
    origin: int
    memory: int
    part: float


def room(machine: Machine, workload: Workload,
         scenario: str) -> tuple[int, str]:
    """How many containers there is room for, and what limits them.

    :raises ValueError: not even one guest fits the host.
    """
    limit, binds = min((count, name) for name, count
                       in workload.per_guest().items())
    guests = len(places(machine, workload, scenario))
    if not guests:
        raise ValueError(f'{machine.name}: no guest of {workload.vcpus} '
                         f'vCPUs, {workload.memory_mb} MiB and '
                         f'{workload.nodes} NUMA nodes fits the host')
    if guests < workload.guests:
        binds = 'host CPUs or memory'
    return guests * limit, binds


def places(machine: Machine, workload: Workload,
           scenario: str) -> tuple[tuple[int, ...], ...]:
    """Host nodes of each guest that fits, in the order of its own nodes.

    A guest goes to the nodes with the most free memory, those of one socket
    if that is possible. Without control a guest is on all nodes.
    """
    free = {node.id: [node.threads, node.memory_mb]
            for node in machine.nodes}
    parts = workload.nodes
    if scenario == 'none':
        everywhere = tuple(free)
        fit = min(sum(threads for threads, _memory in free.values())
                  // workload.vcpus,
                  sum(memory for _threads, memory in free.values())
                  // workload.memory_mb)
        return (everywhere,) * min(fit, workload.guests)
    need = -(-workload.vcpus // parts), -(-workload.memory_mb // parts)
    found: list[tuple[int, ...]] = []
    while len(found) < workload.guests:
        fits = [node for node in machine.nodes
                if free[node.id][0] >= need[0]
                and free[node.id][1] >= need[1]]
        if len(fits) < parts:
            break
        chosen = _choose(fits, parts, free)
        for number in chosen:
            free[number][0] -= need[0]
            free[number][1] -= need[1]
        found.append(chosen)
    return tuple(found)


def _choose(fits: Sequence[Node], parts: int,
            free: dict[int, list[int]]) -> tuple[int, ...]:
    sockets = Counter(node.socket for node in fits)

    def rank(node: Node) -> tuple[bool, int, int, int]:
        return (sockets[node.socket] < parts, -free[node.id][1], node.socket,
                node.id)

    return tuple(sorted(node.id for node in sorted(fits, key=rank)[:parts]))


def paths(machine: Machine, workload: Workload, scenario: str,
          keys: GuestPolicy | None, guest: int,
          position: int) -> Iterator[Path]:
    """Where the accesses of a container go.

    :param guest: number of its guest.
    :param position: guest NUMA node that it is on.
    """
    nodes = places(machine, workload, scenario)[guest]
    device_part = machine['dma_mb'] / machine['demand_mb']
    group = group_name(guest)
    origins = nodes if scenario == 'none' else (nodes[position],)
    for origin in origins:
        weight = 1 / len(origins)
        memories = nodes if scenario == 'none' else (origin,)
        for memory in memories:
            yield Path(group, origin, memory,
                       weight * (1 - device_part) / len(memories))
        buffers = _buffers(machine, keys, nodes, origin)
        for memory in buffers:
            yield Path(group, origin, memory,
                       weight * device_part / len(buffers))


def _buffers(machine: Machine, keys: GuestPolicy | None,
             nodes: Sequence[int], origin: int) -> tuple[int, ...]:
    """Nodes that have the buffers of a container's VF."""
    known = [node for node in machine.nics if node in nodes]
    if keys is None or keys.device_numa == 'none' or not known:
        return tuple(nodes)
    return (origin,) if origin in known else (known[0],)


def group_name(guest: int) -> str:
    return f'guest{guest}'


def flows(machine: Machine, workload: Workload, scenario: str,
          keys: GuestPolicy | None, containers: int) -> tuple[Flow, ...]:
    """The traffic of so many containers and of their devices."""
    amounts: dict[tuple[str, int, int], float] = defaultdict(float)
    guests = len(places(machine, workload, scenario))
    demand = machine['demand_mb']
    for guest in range(guests):
        for position in range(workload.nodes):
            count = _count(containers, guests, workload.nodes, guest,
                           position)
            for path in paths(machine, workload, scenario, keys, guest,
                              position):
                amounts[path.group, path.origin, path.memory] += (
                    count * path.part * demand)
            nodes = places(machine, workload, scenario)[guest]
            for nic, memory, part in _dma(machine, keys, nodes, position,
                                          scenario):
                amounts[DEVICES, nic, memory] += (
                    count * part * machine['dma_mb'])
    if workload.neighbour_mb:
        for node in machine.nodes:
            amounts[NEIGHBOURS, node.id, node.id] += workload.neighbour_mb
    return tuple(Flow(*where, amount)
                 for where, amount in sorted(amounts.items()))


def _dma(machine: Machine, keys: GuestPolicy | None, nodes: Sequence[int],
         position: int, scenario: str) -> Iterator[tuple[int, int, float]]:
    """NIC, memory and part of what a container's VF moves."""
    origins = nodes if scenario == 'none' else (nodes[position],)
    for origin in origins:
        buffers = _buffers(machine, keys, nodes, origin)
        for memory in buffers:
            for nic in machine.nics:
                yield nic, memory, 1 / (len(origins) * len(buffers)
                                        * len(machine.nics))


def _count(containers: int, guests: int, nodes: int, guest: int,
           position: int) -> int:
    """Containers on a guest node: guests take turns, then their nodes."""
    of_guest = len(range(guest, containers, guests))
    return len(range(position, of_guest, nodes))


def controls(machine: Machine, workload: Workload,
             keys: GuestPolicy | None) -> Controls:
    """What holds for each guest on each of its host nodes.

    :raises ValueError: when the host can not hold it.
    """
    if keys is None or not keys.nodes:
        return {}
    if len(keys.nodes) != workload.nodes:
        raise ValueError(f'the keys are of a guest with {len(keys.nodes)} '
                         f'NUMA nodes, the guests have {workload.nodes}')
    missing = (keys.capabilities() & set(CONTROLS)) - machine.controls
    if missing:
        raise ValueError(f'{machine.name}: the host can not hold '
                         + ', '.join(sorted(missing)))
    return {(group_name(guest), node): Control.of(keys.nodes[position])
            for guest, nodes in enumerate(
                places(machine, workload, 'ghsched'))
            for position, node in enumerate(nodes)}
