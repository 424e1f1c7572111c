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


"""CPUs, memory and devices of host NUMA nodes, and what a guest takes (pure).

Adapters make these records from Nova's host states or from described hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import NamedTuple

from ghsched_placement.flavor.topology import GuestNode


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
