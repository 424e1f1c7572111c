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
    :param memory_free: free memory in MiB, in pages of any size.
    :param physnets: physical networks that are near to the node.
    """

    number: int
    pinned: NodeAmount = NodeAmount()
    shared: NodeAmount = NodeAmount()
    memory: NodeAmount = NodeAmount()
    devices: Mapping[str, int] = field(default_factory=dict)
    memory_free: int = 0
    physnets: frozenset[str] = frozenset()

    @property
    def is_entirely_free(self) -> bool:
        """Whether the host NUMA node is free for a guest that needs all of it.

        All its CPUs must be free. Memory is not checked, because every guest
        with a NUMA topology has CPUs on each of its nodes.
        """
        return self.pinned.is_untouched and self.shared.is_untouched

    def has_capacity_for(self, guest: GuestNode) -> bool:
        return (guest.pinned <= max(0, self.pinned.free)
                and guest.shared <= max(0, self.shared.free)
                and guest.memory <= max(0, self.memory.free))
