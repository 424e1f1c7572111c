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

"""Allocation candidates, and the host NUMA nodes that they allocate (pure).

See :mod:`ghsched_placement.query.node_assignment`, which compares them.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import functools
import math
from typing import Any
from typing import TypeAlias

from ghsched_placement.fit.lack import Lack
from ghsched_placement.flavor import keys
from ghsched_placement.providers import cpuless_nodes
from ghsched_placement.providers import names

#: Whether CPUs and memory of a host node suffice for a guest node: guest
#: node, host node.
HasCapacity: TypeAlias = Callable[[int, int], bool]

#: Cost to others of giving guest nodes these host nodes, in their order; the
#: least is best. Several figures are compared in their order.
Cost: TypeAlias = Callable[[Sequence[int]], tuple[float, ...]]

#: Cost of placing a guest on a host node, or on several; less is better, and
#: empty where nothing is known. Figures are compared in their order. The last
#: one decides between host nodes that are alike otherwise.
NodeCost: TypeAlias = tuple[float, ...]

#: Number of VFs off a node, and off its socket.
Far: TypeAlias = tuple[int, int]

ONE_NODE_FOR_TWO = Lack(
    None, 'host NUMA nodes', reason='two guest NUMA nodes would get their '
    'memory bandwidth or VFs from one host NUMA node')
UNKNOWN_NODES = Lack(
    None, 'host NUMA nodes', reason='Placement answered with NUMA '
    'providers that the host does not have',
    cure='its nova-compute may not have reported its topology yet')
UNKNOWN_DEVICES = Lack(
    None, 'PCI devices', reason='Placement answered with PCI devices that '
    'the host has not reported',
    cure='are they in its [pci]device_spec, and is [pci]report_in_placement '
    'on?')
UNKNOWN_DEVICE_NODE = Lack(
    None, 'VFs', reason='the host does not know the NUMA node of the device, '
    'which ghsched:vfs_locality needs',
    cure='/sys/bus/pci/devices/*/numa_node is -1 there: the firmware must '
    'name the node')
TOO_FAR = Lack(
    None, 'VFs', reason='the VFs would be farther from their guest NUMA nodes '
    'than ghsched:vfs_locality allows')


@dataclass(frozen=True)
class VfRequest:
    """Nova's PCI request for VFs of one guest NUMA node.

    :param guest_node: number of the guest NUMA node.
    :param request_id: ID of Nova's InstancePCIRequest.
    :param count: number of VFs.
    """

    guest_node: int
    request_id: str
    count: int

    def list_vf_group_suffixes(self) -> list[str]:
        """Return the request group suffix of each VF of a PCI request.

        A suffix names a granular request group of an allocation candidates
        query.
        """
        return [names.make_vf_suffix(self.request_id, number)
                for number in range(self.count)]


@dataclass(frozen=True)
class NodeRequestGroups:
    """Request groups of a query that decide the host NUMA nodes of a guest.

    :param suffixes: by guest NUMA node, suffix of the request group whose
        provider is the host NUMA node; see
        :func:`ghsched_placement.query.request.list_node_suffixes`.
    :param vfs: VFs that the guest requests, see :func:`map_vfs_to_pfs`.
    :param locality: how far a VF may be from its guest node, one of
        :data:`ghsched_placement.query.request.LOCALITIES`.
    :param guest_nodes: number of guest NUMA nodes. Those without a request
        group are assigned host nodes as well, so that they do not use host
        nodes that other guest nodes need.
    :param near: whether devices for which Placement chooses no NUMA node must
        be on host nodes of the guest.
    :param device_numa: value of ``ghsched:device_numa``.
    """

    suffixes: Mapping[int, str]
    vfs: Sequence[VfRequest] = ()
    locality: str = 'any'
    guest_nodes: int = 0
    near: bool = False
    device_numa: str = keys.NONE

    def list_all_group_suffixes(self) -> frozenset[str]:
        """Return the request group suffixes of all guest NUMA nodes and VFs.

        A suffix names a granular request group of an allocation candidates
        query.
        """
        return frozenset(self.suffixes.values()).union(
            *(vf.list_vf_group_suffixes() for vf in self.vfs))


@dataclass(frozen=True)
class HostProviders:
    """NUMA node and socket of each resource provider of one host.

    :param node_of_numa: host NUMA node by UUID of the node's own provider.
    :param node_of_pf: host NUMA node by UUID of a PF's provider; None if the
        host does not report it.
    :param socket_of: socket by host NUMA node; None if unknown.
    :param compute_busy: returns the cost of placing a guest on each host NUMA
        node, computed from the load of the node. If empty, all nodes have the
        same cost.
    :param nearest: nearest node with CPUs, by host NUMA node without CPUs.
    :param needed: host NUMA nodes that a guest should take so that most other
        guests of its kind fit, see
        :func:`ghsched_placement.fit.counting.find_needed_nodes`. If empty, all
        nodes are equally good.
    :param shows_device_cells: whether guests see NUMA nodes without CPUs for
        their devices.
    """

    node_of_numa: Mapping[str, int]
    node_of_pf: Mapping[str, int | None] = field(default_factory=dict)
    socket_of: Mapping[int, int | None] = field(default_factory=dict)
    compute_busy: Callable[[], Mapping[int, NodeCost]] = dict
    nearest: Mapping[int, int] = field(default_factory=dict)
    needed: frozenset[int] = frozenset()
    shows_device_cells: bool = False

    @functools.cached_property
    def busy(self) -> Mapping[int, NodeCost]:
        """Cost of each host NUMA node, computed when a guest may fit."""
        return self.compute_busy()

    def map_pfs_to_nodes(self, device_numa: str) -> Mapping[str, int | None]:
        """Return the host NUMA node to which the VFs of each PF belong.

        :param device_numa: value of ``ghsched:device_numa``.
        :returns: host NUMA node by UUID of the PF's provider; None if unknown.
        """
        return {pf: cpuless_nodes.get_device_node(
            node, self.nearest, device_numa, self.shows_device_cells)
            for pf, node in self.node_of_pf.items()}

    def get_node_distance(self, node: int, other: int | None) -> int:
        """Return the distance between two NUMA nodes of a host, from 0 to 2.

        It is 0 for the same node, 1 for nodes of the same socket, and 2 for
        nodes that are farther apart or unknown.

        :param other: second host NUMA node; None if unknown.
        """
        if node == other:
            return 0
        socket = self.socket_of.get(node)
        is_near = (other is not None and socket is not None
                   and socket == self.socket_of.get(other))
        return 1 if is_near else 2


@dataclass(frozen=True)
class NodeAssignment:
    """Assignment of a guest's NUMA nodes to host NUMA nodes.

    :param nodes: host NUMA node by guest NUMA node; empty if the guest
        requests nothing of a host NUMA node.
    :param candidates: Placement's allocation candidates that allow the
        assignment, those with the fewest PFs first. They differ only in the
        PFs of VFs.
    :param others: providers of request groups that ghsched has not added, by
        suffix, such as those of ``pci_passthrough:alias``.
    :param far: number of VFs that are on another host node than their guest
        node, and number of those that are on another socket.
    :param unneeded: number of guest nodes on host nodes other than the
        :attr:`HostProviders.needed` ones; 0 if there are none.
    :param wasted: number of guest nodes without VFs on host nodes with PFs.
    :param sockets: number of sockets of the host nodes.
    :param pfs: UUIDs of the PFs of the first candidate.
    :param cost: cost to other guests of using these host nodes, see
        :data:`Cost`.
    :param busy: load of the host nodes, see :func:`combine_node_costs`.
    """

    nodes: Mapping[int, int]
    candidates: Sequence[Mapping[str, Any]]
    others: tuple[Any, ...] = ()
    far: Far = (0, 0)
    unneeded: int = 0
    wasted: int = 0
    sockets: int = 1
    pfs: tuple[str, ...] = ()
    cost: tuple[float, ...] = ()
    busy: NodeCost = ()

    @property
    def candidate(self) -> Mapping[str, Any]:
        """Allocation candidate that takes the guest's VFs from the fewest PFs.
        """
        return self.candidates[0]

    def get_host_node_order(self) -> tuple[int, ...]:
        """Return the host node of each guest node, in guest node order."""
        return tuple(node for _guest, node in sorted(self.nodes.items()))

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key of a guest's assignments to host nodes; the lowest is best.

        Assignments are compared first by the host nodes that guests of the
        same kind do not need, so that as many boot as are promised. Next come
        the number of VFs that are far from their guest nodes, PFs wasted on
        guest nodes without VFs, the number of sockets, the load of the host
        nodes, and the cost to other guests.
        """
        off_node, off_socket = self.far
        busy, turn = split_node_cost(self.busy)
        return (self.unneeded, off_socket, off_node, self.wasted,
                self.sockets, busy,
                self.cost, turn, self.get_host_node_order(),
                len(set(self.pfs)), self.pfs)


def combine_node_costs(nodes: Iterable[int],
                       costs: Mapping[int, NodeCost]) -> NodeCost:
    """Combine the costs of several host nodes into one cost.

    Combined costs are compared by the highest cost of a node first, then by
    the sum. The result is empty if the cost of a node is unknown.

    :param nodes: host NUMA nodes that a guest would use, in any order.
    :param costs: cost by host NUMA node.
    """
    parts = [costs.get(node) for node in nodes]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return ()
    worst, whole = ([function(values) for values in zip(*known, strict=True)]
                    for function in (max, math.fsum))
    return (*worst[:-1], *whole[:-1], worst[-1], whole[-1])


def split_node_cost(cost: NodeCost) -> tuple[NodeCost, NodeCost]:
    """Split the combined cost of host nodes into main part and tie-breaker.

    :param cost: cost of several host nodes, see :func:`combine_node_costs`.
    """
    return cost[:-2], cost[-2:]


def map_vfs_to_pfs(candidates: Sequence[Mapping[str, Any]],
                   vfs: Sequence[VfRequest]) -> None:
    """Add the PF of each VF to the provider mappings of allocation candidates.

    Nova reads from these mappings which PF each VF is taken from. Placement
    maps a request group for several VFs only once, under the suffix of the
    first VF, so that the other VFs get the PF of the VF before them. The
    candidates are changed in place.

    :param candidates: allocation candidates of Placement.
    :param vfs: VFs that the guest requests.
    """
    for candidate in candidates:
        mappings = candidate['mappings']
        for vf in vfs:
            provider: Any = None
            for suffix in vf.list_vf_group_suffixes():
                provider = mappings.get(suffix, provider)
                if provider is not None:
                    mappings[suffix] = list(provider)


def make_node_capacity_reason(nodes: Iterable[int]) -> Lack:
    """Return the refusal reason for host nodes with too few CPUs or memory.

    The host NUMA nodes have the bandwidth and VFs that a guest needs, but not
    the CPUs, memory, networks or other devices.

    :param nodes: numbers of the host NUMA nodes.
    """
    numbers = ', '.join(map(str, sorted(set(nodes))))
    return Lack(
        None, 'CPUs, memory, networks or devices', reason='the host NUMA '
        'nodes with the memory bandwidth and VFs lack the CPUs, memory, '
        'networks or other devices that the guest needs with them',
        detail=f'NUMA nodes {numbers}')
