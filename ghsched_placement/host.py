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

"""What Placement needs to know of a host, wherever that was learnt."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field


@dataclass(frozen=True)
class HostDescription:
    """One compute host, as far as ghsched's providers depend on it.

    :param nodes: the host NUMA nodes whose memory bandwidth can be
        controlled, ascending.
    :param numa_nodes: all host NUMA nodes that guests can be placed on,
        ascending; devices belong to a node whether its bandwidth can be
        controlled or not.
    :param control_groups: how many resctrl control groups guests may have,
        the kernel's default group not counted.
    :param sharing: the group of each guest that shares one, or will when it
        is started, by the guest's UUID.
    :param shares: traits of host NUMA nodes with a group that further guests
        can share, see :func:`names.shares_trait`.
    :param capabilities: keys of :data:`names.CAPABILITY_TRAITS`.
    :param guarantee_step: the host holds a guaranteed share as a multiple of
        it, percent; 1 where it holds none.
    :param guarantee_least: the least that it holds, percent.
    :param l3_ways: ways of an L3 that guests can have to themselves, by host
        NUMA node; nodes without any are left out.
    :param l3_ways_least: the fewest that one of them can have.
    :param rt_permille: thousandths of a shared CPU that real-time vCPUs may
        take, by host NUMA node; nodes without any are left out.
    :param bursts: percent that may be promised as bursts in all, by host NUMA
        node; of nodes left out as much as is kept for them.
    """

    nodes: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    control_groups: int = 0
    capabilities: frozenset[str] = frozenset()
    guarantee_step: int = 1
    guarantee_least: int = 1
    l3_ways: Mapping[int, int] = field(default_factory=dict)
    l3_ways_least: int = 1
    rt_permille: Mapping[int, int] = field(default_factory=dict)
    bursts: Mapping[int, int] = field(default_factory=dict)

    def held(self, share: int) -> int:
        """What the hardware holds for a guaranteed share."""
        share = max(share, self.guarantee_least)
        return share + -share % self.guarantee_step
    sharing: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[int, frozenset[str]] = field(default_factory=dict)
