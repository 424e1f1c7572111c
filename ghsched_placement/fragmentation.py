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

#: What the parts of a cost weigh that is less than that of a whole node; the
#: sum is 1, so that together they never outweigh one.
HOST_WEIGHT, DEVICE_WEIGHT, ROOM_WEIGHT = 1 / 2, 1 / 3, 1 / 6


@dataclass(frozen=True)
class Share:
    """CPUs, or MiB of memory, of one host NUMA node.

    :param free: may be negative where a host is overcommitted.
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
    """Amounts that one NUMA node of a guest takes.

    :param pinned: dedicated host CPUs.
    :param shared: vCPUs that float over the shared CPUs of the host node.
    :param memory: MiB.
    """

    pinned: int = 0
    shared: int = 0
    memory: int = 0


@dataclass(frozen=True)
class DeviceNeed:
    """Passthrough devices that a guest takes, on whichever of its nodes.

    :param pools: the PCI pools of the host that have such devices.
    :param anywhere: whether devices of other nodes are good enough.
    """

    count: int
    pools: frozenset[str]
    anywhere: bool = False


@dataclass(frozen=True)
class HostNode:
    """A host NUMA node before the guest is placed.

    :param number: number of the host NUMA node.
    :param pinned: CPUs for guests with dedicated CPUs.
    :param shared: vCPUs that may float, with the allocation ratio in.
    :param memory: memory of the page size that the guest asks for.
    :param devices: free passthrough devices by PCI pool. Those of a pool
        that no node is known of are counted on each node.
    :param guarded: whether the guest, placed here, would take a node from
        big guests that have it for themselves. Not so on a host that reports
        no nodes, and not for CPUs that only float beside dedicated ones.
    :param memory_free: MiB of any page size.
    :param physnets: physical networks near to the node.
    """

    number: int
    pinned: Share = Share()
    shared: Share = Share()
    memory: Share = Share()
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


class Part(NamedTuple):
    """A guest NUMA node and the host NUMA node that it is placed on."""

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

    def _pair_cpus(self) -> tuple[tuple[Share, int], ...]:
        return ((self.node.pinned, self.guest.pinned),
                (self.node.shared, self.guest.shared))


@dataclass(frozen=True)
class Score:
    """Costs of a host for a guest, by kind of fragmentation.

    :param value: 0 (worst) to 1.
    :param lost: share of the nodes that the guest takes that were whole.
    :param whole: share of the host's nodes that were whole before.
    :param devices: cost, 0 to 1, of taking CPUs from devices that stay.
    :param stranded: free devices that lose their CPUs; a fraction where the
        guest takes a fraction of the CPUs.
    :param room: share of CPUs and memory that is left on the guest's nodes.
    """

    value: float
    lost: float = 0.0
    whole: float = 0.0
    devices: float = 0.0
    stranded: float = 0.0
    room: float = 0.0


#: For a host that cannot hold the guest as far as is known.
WORST = Score(0.0)


def score_placement(nodes: Collection[HostNode], placed: Sequence[Part],
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


def _compute_device_cost(nodes: Collection[HostNode], placed: Sequence[Part],
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


def _count_remaining_devices(placed: Sequence[Part],
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
