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
from collections.abc import Sequence
from dataclasses import dataclass

from ghsched_placement.fit.numa_nodes import DeviceNeed
from ghsched_placement.fit.numa_nodes import HostNode
from ghsched_placement.fit.numa_nodes import PlacedGuestNode

#: Weights of the parts of a cost that count less than breaking into a whole
#: host NUMA node. Their sum is 1, so that together they never outweigh one
#: whole node.
HOST_WEIGHT, DEVICE_WEIGHT, ROOM_WEIGHT = 1 / 2, 1 / 3, 1 / 6


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
