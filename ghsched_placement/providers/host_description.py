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

"""Description of a compute host, for its providers in Placement."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import math


@dataclass(frozen=True)
class HostDescription:
    """Properties of a compute host that its providers in Placement depend on.

    :param nodes: host NUMA nodes whose memory bandwidth can be controlled, in
        ascending order.
    :param numa_nodes: all host NUMA nodes on which guests can be placed, in
        ascending order. A device belongs to its node whether the bandwidth of
        the node can be controlled or not.
    :param control_groups: number of resctrl control groups that guests may
        have, without the kernel's default group.
    :param capabilities: keys of :data:`names.CAPABILITY_TRAITS`.
    :param guarantees: bandwidth guarantees in percent that the host can
        enforce, in ascending order.
    :param kept_share: percent of each host NUMA node that cannot be guaranteed
        to guests, because each control group of the kernel gets a part of it.
    :param l3_ways: number of ways of an L3 cache that guests can have
        exclusively, by host NUMA node; nodes without any are missing.
    :param l3_ways_least: smallest number of ways that one guest can have.
    :param rt_permille: thousandths of a shared CPU that real-time vCPUs may
        use, by host NUMA node; nodes without any are missing.
    :param bursts: percent of bandwidth that may be promised as bursts in
        total, by host NUMA node. For a node that is missing it is the percent
        that is reserved for bursts.
    :param sharing: name of the control group of each guest that shares one, or
        will share one when it is started, by UUID of the guest.
    :param shares: traits of host NUMA nodes that have a control group which
        further guests can share, see :func:`names.make_share_trait`.
    :param nearest: nearest node with CPUs, by node without CPUs.
    """

    nodes: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    control_groups: int = 0
    capabilities: frozenset[str] = frozenset()
    guarantees: tuple[int, ...] = tuple(range(1, 101))
    kept_share: int = 0
    l3_ways: Mapping[int, int] = field(default_factory=dict)
    l3_ways_least: int = 1
    rt_permille: Mapping[int, int] = field(default_factory=dict)
    bursts: Mapping[int, int] = field(default_factory=dict)
    sharing: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[int, frozenset[str]] = field(default_factory=dict)
    nearest: Mapping[int, int] = field(default_factory=dict)

    @property
    def guarantee_step(self) -> int:
        """Step, in percent, of which all guarantees of the host are multiples.

        The hardware can guarantee bandwidth to guests only in steps.
        """
        return math.gcd(*self.guarantees) or 1

    @property
    def has_uniform_guarantee_steps(self) -> bool:
        """Whether the host can enforce every multiple of its guarantee step.

        Some hosts can guarantee bandwidth only in steps of unequal size.
        """
        step = self.guarantee_step
        return len(self.guarantees) * step == max(self.guarantees, default=0)

    def round_up_guarantee(self, percent: int) -> int:
        """Round a percentage up to a guarantee that the host can enforce.

        The hardware can guarantee bandwidth only in steps. The result is 100
        percent if no enforceable guarantee is large enough.
        """
        return next((one for one in self.guarantees if one >= percent), 100)

    def round_down_guarantee(self, percent: int) -> int:
        """Round a percentage down to a guarantee that the host can enforce.

        The hardware can guarantee bandwidth only in steps.
        """
        return max((one for one in self.guarantees if one <= percent),
                   default=0)
