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


"""Costs of splitting whole NUMA nodes and devices of a host for a guest
(pure).

A guest of several NUMA nodes needs host nodes that no other guest has a part
of, and all of them on one host. A guest that needs devices near to it needs
CPUs and memory on the nodes of the devices. The score of a host says how much
of both is left when a guest was placed on given nodes of it: 1 is best, 0 is
worst.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import NamedTuple

#: Weights of the parts of a cost that count less than breaking into a whole
#: host NUMA node. Their sum is 1, so that together they never outweigh one
#: whole node.
HOST_WEIGHT, DEVICE_WEIGHT, ROOM_WEIGHT = 1 / 2, 1 / 3, 1 / 6


@dataclass(frozen=True)
class NodeAmount:
    """Total and free amount of CPUs, or of memory in MiB, of a host NUMA node.

    :param free: free amount; negative if the node is overcommitted.
    """

    total: int = 0
    free: int = 0

    @property
    def is_untouched(self) -> bool:
        return self.free >= self.total

    def get_free_fraction(self, taken: int = 0) -> float:
        """Return the fraction of CPUs or memory that is free, from 0 to 1.

        :param taken: number of CPUs, or MiB of memory, to count as used, too.
        """
        if self.total <= 0:
            return 0.0
        return min(1.0, max(0, self.free - taken) / self.total)


@dataclass(frozen=True)
class GuestNode:
    """CPUs and memory that one NUMA node of a guest needs.

    :param pinned: number of dedicated host CPUs.
    :param shared: number of vCPUs that run on the shared CPUs of the host
        node.
    :param memory: memory in MiB.
    """

    pinned: int = 0
    shared: int = 0
    memory: int = 0


@dataclass(frozen=True)
class DeviceNeed:
    """Passthrough devices that a guest takes from any of its host NUMA nodes.

    :param count: number of devices.
    :param pools: names of the host's PCI pools that have suitable devices.
    :param anywhere: whether devices of other host NUMA nodes are allowed, too.
    """

    count: int
    pools: frozenset[str]
    anywhere: bool = False


@dataclass(frozen=True)
class HostNode:
    """Free and total resources of a host NUMA node before a guest is placed.

    :param number: number of the host NUMA node.
    :param pinned: CPUs for guests with dedicated CPUs.
    :param shared: vCPUs that may share the host CPUs, allocation ratio
        included.
    :param memory: memory in pages of the size that the guest requests.
    :param devices: number of free passthrough devices by PCI pool. Devices of
        a pool whose NUMA node is unknown are counted on each node.
    :param guarded: whether the node can be kept free for a guest that needs a
        whole node. It is False if the host reports no NUMA nodes, or if the
        guest would only use shared CPUs of a node with dedicated CPUs.
    :param memory_free: free memory in MiB, in pages of any size.
    :param physnets: physical networks that are near to the node.
    """

    number: int
    pinned: NodeAmount = NodeAmount()
    shared: NodeAmount = NodeAmount()
    memory: NodeAmount = NodeAmount()
    devices: Mapping[str, int] = field(default_factory=dict)
    guarded: bool = True
    memory_free: int = 0
    physnets: frozenset[str] = frozenset()

    @property
    def is_entirely_free(self) -> bool:
        """Whether the host NUMA node is free for a guest that needs all of it.

        All its CPUs must be free. Memory is not checked, because every guest
        with a NUMA topology has CPUs on each of its nodes.
        """
        return (self.guarded and self.pinned.is_untouched
                and self.shared.is_untouched)

    def has_capacity_for(self, guest: GuestNode) -> bool:
        return (guest.pinned <= max(0, self.pinned.free)
                and guest.shared <= max(0, self.shared.free)
                and guest.memory <= max(0, self.memory.free))


class PlacedGuestNode(NamedTuple):
    """A guest NUMA node and the host NUMA node on which it is placed."""

    node: HostNode
    guest: GuestNode

    def get_free_cpu_fraction(self, placed: bool) -> float:
        """Return the free fraction of the host CPUs that the guest could use.

        They are the dedicated or the shared CPUs of the host node, whichever
        the guest node asks for. If it asks for both, the smaller fraction is
        returned. If it asks for none, the result is 1.

        :param placed: whether the guest node's own CPUs count as taken.
        """
        return min((share.get_free_fraction(taken if placed else 0)
                    for share, taken in self._pair_cpus() if taken),
                   default=1.0)

    def get_mean_free_fraction(self) -> float:
        """Return the mean free fraction of the host node's CPUs and memory.

        The guest NUMA node counts as already placed on the host node.
        """
        memory = self.node.memory.get_free_fraction(self.guest.memory)
        return (self.get_free_cpu_fraction(True) + memory) / 2

    def _pair_cpus(self) -> tuple[tuple[NodeAmount, int], ...]:
        return ((self.node.pinned, self.guest.pinned),
                (self.node.shared, self.guest.shared))


@dataclass(frozen=True)
class Score:
    """Score of a placement of a guest on a host, with the parts of its cost.

    A host NUMA node is whole if no guest uses any of its CPUs. A free device
    is stranded if its host node has no CPUs left for a guest that would use
    it.

    :param value: score from 0 (worst) to 1.
    :param lost: fraction of the guest's host nodes that were whole before.
    :param whole: fraction of all nodes of the host that were whole before.
    :param devices: cost, 0 to 1, of taking CPUs near devices that stay free.
    :param stranded: number of devices that the guest strands. If the guest
        takes a part of a node's CPUs, that part of the node's devices is
        counted.
    :param room: fraction of CPUs and memory that stays free on the guest's
        host nodes.
    """

    value: float
    lost: float = 0.0
    whole: float = 0.0
    devices: float = 0.0
    stranded: float = 0.0
    room: float = 0.0


#: Score of a host on which the guest probably does not fit.
WORST = Score(0.0)


def score_placement(nodes: Collection[HostNode],
                    placed: Sequence[PlacedGuestNode],
                    needs: Sequence[DeviceNeed], guest_nodes: int) -> Score:
    """Score how little a new guest would fragment a host, from 0 (worst) to 1.

    Breaking into a whole host NUMA node costs most. Among placements that
    break into equally many, hosts with fewer whole nodes are better. Next,
    hosts are better where fewer devices become useless because their node has
    no CPUs left. Finally, fuller host nodes are better.

    :param nodes: all NUMA nodes of the host.
    :param placed: guest NUMA nodes, each with its host NUMA node.
    :param needs: passthrough devices that the guest takes.
    :param guest_nodes: number of guest NUMA nodes; must be the same for all
        hosts that are compared.
    """
    if not placed:
        return WORST
    lost = sum(part.node.is_entirely_free for part in placed) / len(placed)
    whole = _get_untouched_fraction(nodes)
    devices, stranded = _compute_device_cost(nodes, placed, needs)
    room = sum(part.get_mean_free_fraction() for part in placed) / len(placed)
    rest = (HOST_WEIGHT * (whole if lost else 0.0)
            + DEVICE_WEIGHT * devices + ROOM_WEIGHT * room)
    cost = (guest_nodes * lost + rest) / (guest_nodes + 1)
    return Score(value=min(1.0, max(0.0, 1 - cost)), lost=lost, whole=whole,
                 devices=devices, stranded=stranded, room=room)


def _get_untouched_fraction(nodes: Collection[HostNode]) -> float:
    if not nodes:
        return 0.0
    return sum(node.is_entirely_free for node in nodes) / len(nodes)


def _compute_device_cost(nodes: Collection[HostNode],
                         placed: Sequence[PlacedGuestNode],
                         needs: Sequence[DeviceNeed]) -> tuple[float, float]:
    """Return the cost of taking CPUs near devices, and the stranded devices.

    A free device is stranded if its host node has no CPUs left for a guest
    that would use it. It counts in part if some CPUs are left: 8 VFs of a node
    with a quarter of its CPUs taken count as 2. Only devices that this guest
    strands are counted, without those that it takes.

    The cost of a guest node is the stranded fraction of its host node's
    devices. For a guest that takes no devices, the cost is the mean of 1 and
    this fraction; or 0.25 if only other nodes of the host have devices.

    :param nodes: all NUMA nodes of the host.
    :param placed: guest NUMA nodes, each with its host NUMA node.
    :param needs: passthrough devices that the guest takes.
    :returns: mean cost of the guest nodes, from 0 to 1, and number of stranded
        devices.
    """
    beside = 0.25 if any(sum(node.devices.values()) for node in nodes) else 0.0
    cost = stranded = 0.0
    for part, after in zip(placed, _count_remaining_devices(placed, needs),
                           strict=True):
        before = sum(part.node.devices.values())
        if before <= 0:
            cost += 0.0 if needs else beside
            continue
        more = max(0.0, after * (1 - part.get_free_cpu_fraction(True))
                   - before * (1 - part.get_free_cpu_fraction(False)))
        stranded += more
        share = min(1.0, more / before)
        cost += share if needs else (1 + share) / 2
    return cost / len(placed), stranded


def _count_remaining_devices(placed: Sequence[PlacedGuestNode],
                             needs: Sequence[DeviceNeed]) -> list[int]:
    """Return how many devices stay free on each host node that a guest uses.

    The guest's devices are taken from its host nodes in turn, which is how
    ``ghsched:vfs`` requests them.

    :param placed: guest NUMA nodes, each with its host NUMA node.
    :param needs: passthrough devices that the guest takes.
    """
    left = [dict(part.node.devices) for part in placed]
    for need in needs:
        pools, count = sorted(need.pools), need.count
        while count > 0:
            wanted = count
            for devices in left:
                count -= count > 0 and _take_device(devices, pools)
            if count == wanted:
                break
    return [sum(devices.values()) for devices in left]


def _take_device(devices: dict[str, int], pools: Sequence[str]) -> bool:
    for pool in pools:
        if devices.get(pool, 0) > 0:
            devices[pool] -= 1
            return True
    return False
