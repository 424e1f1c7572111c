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

"""Fragmentation of hosts by guests, from the data of nova-scheduler.

The mix of guests is learned of the requests that this process weighs hosts
for, see :mod:`ghsched_placement.features.packing.gradient`. Where nobody
weighs so, nothing is learned, and NUMA nodes of a host are chosen by their
number.
"""

from collections.abc import Sequence
from collections import OrderedDict
import threading
from typing import Any

from ghsched_nova.features.packing import host_states
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.scheduler import request_filter
from ghsched_placement.features.index import headroom
from ghsched_placement.features.packing import gradient
from ghsched_placement.features.packing.numa_nodes import HostNode
from ghsched_placement.query import candidates

#: Mix of the guests that were recently requested from this process.
MIX = gradient.Mix()

#: Amount of a resource that is used if the free amount is unknown.
_ENOUGH = 10 ** 9

#: All of a NUMA node's memory bandwidth, in percent.
_WHOLE = 100

#: Maximum number of host NUMA nodes whose devices are remembered.
_MAX_NODES = 100000


class MaxFreeDevices:
    """Largest number of free devices seen so far on each host NUMA node.

    It stands for the number of all devices of the node, because Nova reports
    only the devices that are free. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most: OrderedDict[tuple[str, int], int] = OrderedDict()

    def record_free_devices(self, host: str, node: int, count: int) -> int:
        """Record the number of free devices on a node; return the maximum.

        Nova reports only the devices that are free. The largest number
        recorded so far therefore stands for the number of all devices of the
        node.

        :param count: number of free devices now.
        :returns: the largest number recorded for the node so far.
        """
        key = host, node
        with self._lock:
            most = self._most[key] = max(count, self._most.get(key, 0))
            self._most.move_to_end(key)
            if len(self._most) > _MAX_NODES:
                self._most.popitem(last=False)
        return most


#: Largest numbers of free devices on the hosts that this process has weighed.
MOST_DEVICES = MaxFreeDevices()


def get_guest_demand(spec: shared.RequestSpec) -> gradient.GuestKind | None:
    """Return the resources that each NUMA node of a guest needs.

    The resources are CPUs, memory, memory bandwidth and passthrough devices.
    Returns None for a guest without a NUMA topology.
    """
    topology = spec.numa_topology if 'numa_topology' in spec else None
    if not topology:
        return None
    policy = request_filter.parse_policy(spec)
    demand = policy.get_bandwidth_by_node(
        shared.config().ghsched.bandwidth_accounting) if policy else {}
    devices: dict[int, int] = {}
    wanted = spec.pci_requests if 'pci_requests' in spec else None
    for one in wanted.requests if wanted else ():
        node = pci_requests.get_guest_node(one) or 0
        devices[node] = devices.get(node, 0) + one.count
    return gradient.GuestKind(tuple(
        (node.pinned, node.shared, node.memory, demand.get(number, 0),
         devices.get(number, 0))
        for number, node in enumerate(
            host_nodes.list_guest_node_requirements(topology, 1))),
        bool(policy and policy.needs_control_group))


def get_free_capacity(state: Any,
                      nodes: Sequence[HostNode]) -> gradient.FreeCapacity:
    """Return the free and the total resources of each NUMA node of a host.

    The resources are CPUs, memory, memory bandwidth and passthrough devices.

    :param state: Nova's host state of the host.
    :param nodes: the host's NUMA nodes.
    """
    left = headroom.parse_headroom_stats(getattr(state, 'stats', None) or {})
    free: dict[int, gradient.Amounts] = {}
    total: dict[int, gradient.Amounts] = {}
    for node in nodes:
        devices = sum(node.devices.values())
        most = MOST_DEVICES.record_free_devices(
            str(state.uuid), node.number, devices)
        share = left.bandwidth.get(node.number) if left else None
        free[node.number] = (
            node.pinned.free, node.shared.free, node.memory.free,
            _ENOUGH if share is None else share, devices)
        total[node.number] = (
            node.pinned.total, node.shared.total, node.memory.total,
            0 if share is None else _WHOLE, most)
    return gradient.FreeCapacity(free, total, left.groups if left else None)


def make_fragmentation_cost_function(
        state: Any, spec: shared.RequestSpec) -> candidates.Cost | None:
    """Return a function that computes how much a placement fragments a host.

    The function takes a placement: the host NUMA node of each guest NUMA node.
    The scheduler chooses the placement with the lowest cost.

    :returns: the function; None if the scheduler does not consider
        fragmentation and prefers NUMA nodes with low numbers.
    """
    mix = MIX.get_kind_shares()
    kind = get_guest_demand(spec) if mix else None
    if kind is None or not shared.config().ghsched.gradient_weight_multiplier:
        return None
    room = get_free_capacity(state, host_states.list_host_nodes(
        state, host_states.get_pci_pools(state),
        host_nodes.get_page_size(spec.numa_topology.cells[0])))

    growth = gradient.FragmentationGrowth(room, mix)

    def of_order(order: Sequence[int]) -> tuple[float, ...]:
        # Rounded, so that equal nodes stay in the order of their numbers.
        return (round(growth.compute_fragmentation_growth(kind, order), 9),)
    return of_order
