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

"""Division of the bandwidth of a memory controller or link among its users
(pure).

The rules are those of the openEuler kernel's manual of MPAM
(Documentation/arch/arm64/mpam.md of OLK-6.6):

#. Guarantees are served first: the priority of a group is raised while it uses
   less than its ``MBMIN``. If the guarantees exceed the bandwidth, all are
   reduced in the same proportion.
#. Then groups with a higher ``MBPRI`` are served first, up to their caps.
#. Bandwidth that is still free goes to groups with ``MBHDL`` 0, beyond their
   caps, again by priority.

Groups of equal priority get bandwidth in proportion to their demand, as in a
queue that is served in the order of arrival. The guaranteed bandwidth counts
towards this part, so a guarantee below the part changes nothing. Hence the
manual's advice to guarantee more than 100/n to one of n equal guests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

#: ``MBPRI`` of a group that nobody gave one.
DEFAULT_PRIORITY = 3


@dataclass(frozen=True)
class Claim:
    """Bandwidth that one control group wants from a memory, in MB/s.

    :param demand: bandwidth that it would use without a cap if no other group
        used any.
    :param minimum: guaranteed bandwidth.
    :param maximum: cap.
    :param hardlimit: whether the cap holds even if bandwidth is idle.
    :param priority: priority for bandwidth above the guarantee; the highest
        number is served first.
    """

    demand: float
    minimum: float = 0.0
    maximum: float = math.inf
    hardlimit: bool = True
    priority: int = DEFAULT_PRIORITY

    @property
    def capped_demand(self) -> float:
        """MB/s that the control group wants, limited to its cap."""
        return min(self.demand, self.maximum)

    @property
    def max_bandwidth(self) -> float:
        """MB/s that the control group uses if all other groups are idle.

        This may be more than the cap, if the cap is not a hard limit.
        """
        return self.capped_demand if self.hardlimit else self.demand

    @property
    def guaranteed_bandwidth(self) -> float:
        """MB/s of the control group's demand that are guaranteed."""
        return min(self.capped_demand, self.minimum)


@dataclass(frozen=True)
class _ShareBounds:
    """Bounds and weight of a control group when free bandwidth is divided.

    :param index: index of the group.
    :param floor: MB/s that the group has already.
    :param top: largest MB/s that the group may have.
    :param weight: weight of the group.
    """

    index: int
    floor: float
    top: float
    weight: float


def share_bandwidth(
        capacity: float, claims: Sequence[Claim]) -> tuple[float, ...]:
    """Divide a host NUMA node's memory bandwidth among its control groups.

    Guarantees are served first. Bandwidth up to the caps follows, in the order
    of priority. The rest goes to groups without a hard limit.

    :param capacity: bandwidth of the node, in MB/s.
    :param claims: bandwidth that each group wants, and its limits.
    :returns: bandwidth of each group in MB/s; the sum is less than the
        capacity if the groups want less.
    """
    got = [0.0] * len(claims)
    _divide_free_bandwidth(capacity, got, [
        (number, claim.guaranteed_bandwidth, claim.guaranteed_bandwidth)
        for number, claim in enumerate(claims)])
    ranks = sorted({claim.priority for claim in claims}, reverse=True)
    for beyond in (False, True):
        for rank in ranks:
            _divide_free_bandwidth(capacity, got, [
                (number,
                 claim.max_bandwidth if beyond else claim.capped_demand,
                 claim.demand) for number, claim in enumerate(claims)
                if claim.priority == rank])
    return tuple(got)


def _divide_free_bandwidth(capacity: float, received: list[float],
                           shares: Sequence[tuple[int, float, float]]) -> None:
    """Divide the free bandwidth of a node among some of its control groups.

    The total bandwidth of each group becomes proportional to its weight, but
    neither smaller than before nor larger than its maximum.

    :param capacity: bandwidth of the node, in MB/s.
    :param received: bandwidth of each control group in MB/s, changed in place.
    :param shares: for each group that takes part, its index in ``received``,
        its maximum in MB/s, and its weight.
    """
    needs = [_ShareBounds(index, received[index], top, weight)
             for index, top, weight in shares if top > received[index]]
    left = max(0.0, capacity - math.fsum(received))
    if math.fsum(need.top - need.floor for need in needs) <= left:
        for need in needs:
            received[need.index] = need.top
        return
    level = _find_bandwidth_per_weight_unit(left, needs)
    for need in needs:
        received[need.index] = min(need.top,
                                   max(need.floor, level * need.weight))


def _find_bandwidth_per_weight_unit(bandwidth: float,
                                    needs: Sequence[_ShareBounds]) -> float:
    """Return how many MB/s of bandwidth each unit of weight receives.

    Control groups share a bandwidth in proportion to their weights. Each group
    also has a lower and an upper bound.

    :param bandwidth: bandwidth to divide, in MB/s.
    :param needs: bounds and weight of each group.
    """
    steps = sorted([(need.floor / need.weight, need.weight)
                    for need in needs]
                   + [(need.top / need.weight, -need.weight)
                      for need in needs])
    level = used = slope = 0.0
    for at, change in steps:
        more = (at - level) * slope
        if used + more >= bandwidth and slope > 0:
            break
        used, level, slope = used + more, at, slope + change
    return level + (bandwidth - used) / slope if slope > 0 else level
