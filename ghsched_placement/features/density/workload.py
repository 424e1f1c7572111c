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

"""Guests with containers, and their memory traffic (pure).

Three scenarios:

``none``
    No control: the kernel spreads threads and pages over all nodes equally.
``static``
    The best static binding: each guest node has its CPUs and its memory on one
    host node. The guest does not know the nodes of its VFs, so the buffers of
    a VF are on any of the guest's nodes.
``ghsched``
    The same binding, and the bandwidth policy of a flavor. With
    ``ghsched:device_numa`` the guest knows the node of a VF that is on one of
    its own host nodes, and has its buffers there.

Containers of guests without VFs cause the same memory traffic from their CPUs,
but no traffic of devices and buffers.

If the flavor has vCPU classes, a container is in the class of its first vCPU.
Each container of a guest NUMA node has the next vCPUs of the node.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from collections import defaultdict
from dataclasses import dataclass
import itertools

from ghsched_placement.features.density.machine import CONTROLS
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density.machine import MachineNode
from ghsched_placement.features.density.traffic import BandwidthControl
from ghsched_placement.features.density.traffic import Controls
from ghsched_placement.features.density.traffic import MemoryFlow
from ghsched_placement.flavor.policy import GuestPolicy

SCENARIOS = ('none', 'static', 'ghsched')

#: Groups of those who are not guests of the workload, and of all guests where
#: nobody controls them: equals need not be told apart.
DEVICES, NEIGHBOURS, GUESTS = 'devices', 'neighbours', 'guests'


@dataclass(frozen=True)
class Workload:
    """Guests of the same size, and the load of their containers.

    Containers are placed in the guests in turn. The defaults are those of the
    published test: two guests with 160 vCPUs, 240 GB, two NUMA nodes and 40
    VFs, with containers of 2 vCPUs and 8 GB.

    :param guests: number of guests.
    :param vcpus: number of vCPUs of a guest.
    :param memory_mb: memory of a guest in MiB.
    :param nodes: number of NUMA nodes of a guest.
    :param vfs: number of VFs of a guest, one for each container. 0 if
        containers use the network through the host; the memory traffic of the
        host for this is not modelled.
    :param container_vcpus: number of vCPUs of a container.
    :param container_memory_mb: memory of a container in MiB.
    :param neighbour_mb: MB/s that other processes without bandwidth control
        want on each host node.
    :param guests_without: number of guests in scenarios without bandwidth
        control, in which more may fit; None for the value of ``guests``.
    :param elasticity: relative growth of p99 for a relative growth of the
        memory latency. 1 is the largest effect that is possible; a request
        that spends 27 % of its time waiting for memory has 0.24 to 0.27.
    :param own_buffers: whether a container and the interrupts of its VF are on
        the same CPUs. The guest's driver then has the network buffers on the
        container's own node, wherever the VF is. This does not apply to the
        scenario without binding, in which a container has no node of its own.
    """

    guests: int = 2
    vcpus: int = 160
    memory_mb: int = 240 * 1024
    nodes: int = 2
    vfs: int = 40
    container_vcpus: int = 2
    container_memory_mb: int = 8 * 1024
    neighbour_mb: float = 0.0
    guests_without: int | None = None
    elasticity: float = 1.0
    own_buffers: bool = False

    def count_guests(self, scenario: str) -> int:
        """Return how many guests the workload has in a scenario.

        :param scenario: how guests run: unbound (``none``), bound to NUMA
            nodes (``static``), or bound with a bandwidth policy (``ghsched``).
        """
        if scenario == 'ghsched' or self.guests_without is None:
            return self.guests
        return self.guests_without

    def count_containers_by_resource(self) -> dict[str, int]:
        """Return how many containers each resource of a guest allows.

        The resources are vCPUs, memory and VFs. The smallest number is the
        limit.
        """
        found = {
            'guest memory': self.memory_mb // self.container_memory_mb,
            'guest vCPUs': self.vcpus // self.container_vcpus}
        return {**found, 'guest VFs': self.vfs} if self.vfs else found


#: The published test.
REFERENCE = Workload()


@dataclass(frozen=True)
class TrafficPath:
    """Part of a container's memory traffic, from one NUMA node to another.

    :param group: control group of the container's guest.
    :param origin: node of the CPUs.
    :param memory: node of the memory.
    :param part: fraction of all accesses of the container, 0 to 1.
    """

    group: str
    origin: int
    memory: int
    part: float


def find_container_limit(machine: Machine, workload: Workload,
                         scenario: str) -> tuple[int, str]:
    """Return how many containers fit on a machine and what limits them.

    :raises ValueError: if not even one guest fits the host.
    """
    limit, binds = min((count, name) for name, count
                       in workload.count_containers_by_resource().items())
    guests = len(place_guests(machine, workload, scenario))
    if not guests:
        raise ValueError(f'{machine.name}: no guest of {workload.vcpus} '
                         f'vCPUs, {workload.memory_mb} MiB and '
                         f'{workload.nodes} NUMA nodes fits the host')
    if guests < workload.count_guests(scenario):
        binds = 'host CPUs or memory'
    return guests * limit, binds


def place_guests(machine: Machine, workload: Workload,
                 scenario: str) -> tuple[tuple[int, ...], ...]:
    """Choose the host NUMA nodes of as many guests as fit on a machine.

    A guest gets the nodes with the most free memory, in one socket if
    possible. In the scenario without binding (``none``), each guest uses all
    nodes.

    :returns: host nodes of each guest, one for each guest NUMA node.
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
        return (everywhere,) * min(fit, workload.count_guests(scenario))
    need = -(-workload.vcpus // parts), -(-workload.memory_mb // parts)
    found: list[tuple[int, ...]] = []
    while len(found) < workload.count_guests(scenario):
        fits = [node for node in machine.nodes
                if free[node.id][0] >= need[0]
                and free[node.id][1] >= need[1]]
        if len(fits) < parts:
            break
        chosen = _choose_nodes(fits, parts, free)
        for number in chosen:
            free[number][0] -= need[0]
            free[number][1] -= need[1]
        found.append(chosen)
    return tuple(found)


def _choose_nodes(fits: Sequence[MachineNode], parts: int,
                  free: dict[int, list[int]]) -> tuple[int, ...]:
    sockets = Counter(node.socket for node in fits)

    def rank(node: MachineNode) -> tuple[bool, int, int, int]:
        return (sockets[node.socket] < parts, -free[node.id][1], node.socket,
                node.id)

    return tuple(sorted(node.id for node in sorted(fits, key=rank)[:parts]))


@dataclass(frozen=True)
class GuestNodeTraffic:
    """vCPU class on a guest NUMA node, with the traffic of one container.

    A guest without vCPU classes is one class.

    :param guest: index of the guest.
    :param guests: number of guests.
    :param position: index of the guest NUMA node.
    :param positions: number of NUMA nodes of the guest.
    :param paths: memory accesses of the container, by pair of host nodes.
    :param flows: memory traffic of the container and of its VF.
    :param members: indexes of the node's containers that are in the class.
    :param is_rest: whether ``members`` are those that are not in the class.
    """

    guest: int
    guests: int
    position: int
    positions: int
    paths: tuple[TrafficPath, ...]
    flows: tuple[MemoryFlow, ...]
    members: frozenset[int] = frozenset()
    is_rest: bool = True

    def count_containers(self, containers: int) -> int:
        """Return how many of all containers run in this class and guest node.

        :param containers: number of containers in all guests.
        """
        of_guest = len(range(self.guest, containers, self.guests))
        of_node = len(range(self.position, of_guest, self.positions))
        count = sum(number < of_node for number in self.members)
        return of_node - count if self.is_rest else count


def list_guest_nodes(machine: Machine, workload: Workload, scenario: str,
                     keys: GuestPolicy | None) -> tuple[GuestNodeTraffic, ...]:
    """Return the NUMA nodes of all guests on a machine, guest by guest.

    Without vCPU classes a guest node has one entry, with the memory traffic of
    one container. With classes it has an entry for each class that has
    containers on the node; the class of the first container comes first.

    :param workload: guests, and the load of their containers.
    :param scenario: scenario of the comparison; ``none`` for guests that are
        not bound to NUMA nodes.
    :param keys: bandwidth policy of the guests.
    """
    found = []
    guests = place_guests(machine, workload, scenario)
    device_mb = machine['dma_mb'] if workload.vfs else 0.0
    for (guest, nodes), position in itertools.product(
            enumerate(guests), range(workload.nodes)):
        origins = nodes if scenario == 'none' else (nodes[position],)
        buffers = {origin: _list_network_buffer_nodes(
            machine, keys, nodes, origin, workload.own_buffers
            and scenario != 'none') if device_mb else ()
            for origin in origins}
        for class_name, members, is_rest in _list_containers_by_class(
                workload, keys, position):
            group = (GUESTS if class_name is None
                     else make_group_name(guest, class_name))
            paths = tuple(
                _yield_container_memory_traffic(
                    machine, scenario, nodes, buffers, group, device_mb))
            own = tuple(MemoryFlow(path.group, path.origin, path.memory,
                                   path.part * machine['demand_mb'])
                        for path in paths)
            found.append(GuestNodeTraffic(
                guest, len(guests), position, workload.nodes, paths,
                own + tuple(_yield_dma_flows(machine, buffers, device_mb)),
                members, is_rest))
    return tuple(found)


def _list_containers_by_class(
        workload: Workload, keys: GuestPolicy | None, position: int
) -> list[tuple[str | None, frozenset[int], bool]]:
    """Return the vCPU classes of a guest NUMA node, and their containers.

    The last class has all containers that are in no other class.

    :param position: index of the guest NUMA node.
    :returns: name of each class, None if it has no control group; and the
        ``members`` and ``is_rest`` of its :class:`GuestNodeTraffic`.
    """
    if keys is None or not keys.nodes:
        return [(None, frozenset(), True)]
    if not keys.classes:
        return [('', frozenset(), True)]
    of_node = workload.vcpus // workload.nodes
    first_vcpus = range(0, of_node, workload.container_vcpus)
    found: list[tuple[str | None, frozenset[int], bool]] = []
    named = frozenset[int]()
    for one in keys.classes:
        members = frozenset(
            number for number, vcpu in enumerate(first_vcpus)
            if position * of_node + vcpu in (one.vcpus or ()))
        is_rest = one is keys.classes[-1]
        found.append((one.name if one.nodes else None,
                      named if is_rest else members, is_rest))
        named |= members
    return sorted(found, key=lambda one: (0 in one[1]) is one[2])


def _yield_container_memory_traffic(
        machine: Machine, scenario: str, nodes: Sequence[int],
        buffers: Mapping[int, Sequence[int]], group: str,
        device_mb: float) -> Iterator[TrafficPath]:
    """Yield the parts of a container's memory traffic by pair of host nodes.

    A pair has the host node of the CPUs and the host node of the memory.

    :param scenario: how guests run, one of :data:`SCENARIOS`.
    :param nodes: host NUMA nodes of the guest.
    :param buffers: host nodes with the network buffers of the container's VF,
        by the host node on which the container runs.
    :param group: control group of the guest.
    :param device_mb: bandwidth of the VF, in MB/s.
    """
    device_part = device_mb / machine['demand_mb']
    weight = 1 / len(buffers)
    for origin, having in buffers.items():
        memories = nodes if scenario == 'none' else (origin,)
        for memory in memories:
            yield TrafficPath(group, origin, memory,
                              weight * (1 - device_part) / len(memories))
        for memory in having:
            yield TrafficPath(group, origin, memory,
                              weight * device_part / len(having))


def _list_network_buffer_nodes(machine: Machine, keys: GuestPolicy | None,
                               nodes: Sequence[int], origin: int,
                               is_local: bool) -> tuple[int, ...]:
    """Return the host NUMA nodes with the network buffers of a container's VF.

    :param keys: bandwidth policy of the guest; None for no policy.
    :param nodes: host NUMA nodes of the guest.
    :param origin: host NUMA node on which the container runs.
    :param is_local: whether the buffers are always on the container's node.
    """
    if is_local:
        return (origin,)
    known = [node for node in machine.nics if node in nodes]
    if keys is None or keys.device_numa == 'none' or not known:
        return tuple(nodes)
    return (origin,) if origin in known else (known[0],)


def make_group_name(guest: int, class_name: str = '') -> str:
    return f'guest{guest}' + (f'.{class_name}' if class_name else '')


def _yield_dma_flows(machine: Machine, buffers: Mapping[int, Sequence[int]],
                     device_mb: float) -> Iterator[MemoryFlow]:
    """Yield the memory traffic between a container's VF and its buffers.

    :param buffers: nodes with the buffers of the VF, by container node.
    :param device_mb: bandwidth of the VF, in MB/s.
    """
    for having in buffers.values():
        for memory in having:
            for nic in machine.nics:
                yield MemoryFlow(DEVICES, nic, memory,
                                 device_mb / (len(buffers) * len(having)
                                              * len(machine.nics)))


def list_memory_flows(machine: Machine, workload: Workload,
                      slots: Sequence[GuestNodeTraffic],
                      containers: int) -> tuple[MemoryFlow, ...]:
    """Return the memory traffic of all containers and their VFs on a machine.

    :param slots: guest NUMA nodes on the machine.
    :param containers: number of containers in all guests.
    """
    amounts: dict[tuple[str, int, int], float] = defaultdict(float)
    for slot in slots:
        count = slot.count_containers(containers)
        for flow in slot.flows:
            amounts[flow.group, flow.origin, flow.memory] += (
                count * flow.demand)
    if workload.neighbour_mb:
        for node in machine.nodes:
            amounts[NEIGHBOURS, node.id, node.id] += workload.neighbour_mb
    return tuple(MemoryFlow(*where, amount)
                 for where, amount in sorted(amounts.items()))


def make_bandwidth_controls(machine: Machine, workload: Workload,
                            keys: GuestPolicy | None) -> Controls:
    """Return the limits of each guest or vCPU class on each host NUMA node.

    :param keys: bandwidth policy of each guest; None for none.
    :raises ValueError: when the host cannot enforce the policy.
    """
    if keys is None or not keys.nodes:
        return {}
    if len(keys.nodes) != workload.nodes:
        raise ValueError(f'the policy is for a guest with {len(keys.nodes)} '
                         f'NUMA nodes, but the guests have {workload.nodes}')
    missing = (
        keys.get_needed_capabilities() & set(CONTROLS)) - machine.controls
    if missing:
        raise ValueError(f'{machine.name}: the host cannot enforce '
                         + ', '.join(sorted(missing)))
    return {
        (make_group_name(guest, one.name), node):
            BandwidthControl.from_policy(one.nodes[position])
        for guest, nodes in enumerate(
            place_guests(machine, workload, 'ghsched'))
        for one in keys.groups for position, node in enumerate(nodes)}
