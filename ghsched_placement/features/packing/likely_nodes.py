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


"""Host NUMA nodes that Nova will most likely choose for a guest (pure).

nova-compute chooses the nodes in
``nova.virt.hardware.numa_fit_instance_to_host``: it sorts the host's nodes and
takes the first permutation that fits. Calling that function for each host
would be too slow for a weigher. This module returns the same nodes in all
cases that matter to the weigher.
"""

from collections.abc import Sequence
import itertools

from ghsched_placement.features.packing.numa_nodes import DeviceNeed
from ghsched_placement.features.packing.numa_nodes import HostNode
from ghsched_placement.flavor.topology import GuestNode

#: Permutations that are looked at for one host.
MAX_TRIES = 512


def guess_host_nodes(nodes: Sequence[HostNode],
                     guest_nodes: Sequence[GuestNode],
                     needs: Sequence[DeviceNeed] = (),
                     physnets: frozenset[str] = frozenset(),
                     pack: bool = False) -> tuple[HostNode, ...]:
    """Guess which host NUMA node Nova will choose for each guest NUMA node.

    nova-compute makes the real choice when it claims the guest's resources.

    :param nodes: NUMA nodes of the host, in any order.
    :param guest_nodes: NUMA nodes of the guest.
    :param needs: passthrough devices that the guest takes.
    :param physnets: physical networks that the guest's nodes must be near to.
    :param pack: value of
        ``[compute]packing_host_numa_cells_allocation_strategy``.
    :returns: empty if the host has fewer nodes than the guest.
    """
    if not guest_nodes or len(nodes) < len(guest_nodes):
        return ()
    ordered = sorted(nodes, key=lambda node: node.number)
    if len(nodes) > len(guest_nodes):
        ordered = _sort_nodes_like_nova(ordered, bool(guest_nodes[0].pinned),
                                        needs, pack)
    # Nova tries on until it has the networks; we begin with them.
    ordered.sort(key=lambda node: not node.physnets & physnets)
    useful = [node for node in ordered
              if any(map(node.has_capacity_for, guest_nodes))]
    tries = itertools.islice(
        itertools.permutations(useful, len(guest_nodes)), MAX_TRIES)
    fits = (taken for taken in tries
            if _can_place_guest(taken, guest_nodes, needs, physnets))
    return next(fits, tuple(ordered[:len(guest_nodes)]))


def _sort_nodes_like_nova(nodes: Sequence[HostNode], pinned: bool,
                          needs: Sequence[DeviceNeed],
                          pack: bool) -> list[HostNode]:
    """Return the host nodes in the order in which Nova tries them for a guest.

    Nova tries the emptiest nodes first, or the fullest if it is configured to
    pack guests. Nodes with devices come first for guests that ask for devices,
    and last for other guests.

    :param pinned: whether the guest has dedicated CPUs.
    :param needs: passthrough devices that the guest takes.
    :param pack: whether Nova is configured to pack guests.
    """
    ordered = sorted(nodes, key=lambda node: node.memory_free,
                     reverse=not pack)
    if pinned:
        ordered.sort(key=lambda node: node.pinned.free, reverse=not pack)
    else:
        ordered.sort(key=lambda node: node.shared.total - node.shared.free,
                     reverse=pack)
    ordered.sort(key=lambda node: sum(node.devices.values()),
                 reverse=bool(needs))
    return ordered


def _can_place_guest(chosen: Sequence[HostNode], guest: Sequence[GuestNode],
                     needs: Sequence[DeviceNeed],
                     physnets: frozenset[str]) -> bool:
    near = frozenset().union(*(node.physnets for node in chosen))
    return (physnets <= near
            and all(node.has_capacity_for(part)
                    for node, part in zip(chosen, guest, strict=True))
            and all(_has_devices(chosen, need) for need in needs))


def _has_devices(nodes: Sequence[HostNode], request: DeviceNeed) -> bool:
    """Whether host NUMA nodes together have enough free devices for a request.

    This is always so if devices of other nodes are allowed.

    :param nodes: host NUMA nodes that the guest would use.
    """
    counts = {pool: count for node in nodes
              for pool, count in node.devices.items() if pool in request.pools}
    return request.anywhere or sum(counts.values()) >= request.count
