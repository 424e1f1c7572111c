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

"""Allocation candidates and the host NUMA nodes that they stand for (pure).

See :mod:`ghsched_placement.node_assignment`, which compares them.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import TypeAlias

from ghsched_placement.lack import Lack
from ghsched_placement import names
from ghsched_placement import node_choice
from ghsched_placement import request

#: Whether CPUs and memory of a host node suffice for a guest node: guest
#: node, host node.
HasRoom: TypeAlias = Callable[[int, int], bool]

#: Cost to others of giving guest nodes these host nodes, in their order; the
#: least is best. Several figures are compared in their order.
Cost: TypeAlias = Callable[[Sequence[int]], tuple[float, ...]]

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
TOO_FAR = Lack(
    None, 'VFs', reason='the VFs would be farther from their guest NUMA nodes '
    'than ghsched:vfs_locality allows')


@dataclass(frozen=True)
class VfRequest:
    """One of Nova's PCI requests that stands for VFs of a guest NUMA node.

    :param request_id: of the InstancePCIRequest.
    """

    guest_node: int
    request_id: str
    count: int

    def suffixes(self) -> list[str]:
        """Request group suffixes that Nova expects, one per VF."""
        return [names.vf_suffix(self.request_id, number)
                for number in range(self.count)]


@dataclass(frozen=True)
class Wanted:
    """Groups of a request whose providers are read from its candidates.

    :param suffixes: suffix of the group whose provider is the host node, by
        guest NUMA node; see :func:`ghsched_placement.request.node_suffixes`.
    :param vfs: the VFs, see :func:`fan_out`.
    :param locality: how far a VF may be, of
        :data:`ghsched_placement.request.LOCALITIES`.
    :param guest_nodes: how many the guest has. Those without a group are
        given host nodes as well, so that they leave alone what others need.
    :param near: whether the other devices, which no candidate puts on a NUMA
        node, have to be on host nodes of the guest.
    """

    suffixes: Mapping[int, str]
    vfs: Sequence[VfRequest] = ()
    locality: str = 'any'
    guest_nodes: int = 0
    near: bool = False

    def ours(self) -> frozenset[str]:
        """Every suffix that :func:`place` looks at."""
        return frozenset(self.suffixes.values()).union(
            *(vf.suffixes() for vf in self.vfs))


@dataclass(frozen=True)
class Host:
    """Where the providers of one host are.

    :param node_of_numa: host NUMA node by UUID of its own provider.
    :param node_of_pf: host NUMA node by UUID of a PF's provider; None when
        the host does not tell.
    :param socket_of: socket by host NUMA node, None when unknown.
    :param busy: cost of host NUMA nodes by their load; those without one
        are all alike.
    """

    node_of_numa: Mapping[str, int]
    node_of_pf: Mapping[str, int | None] = field(default_factory=dict)
    socket_of: Mapping[int, int | None] = field(default_factory=dict)
    busy: Mapping[int, node_choice.Cost] = field(default_factory=dict)

    def distance(self, node: int, other: int | None) -> int:
        """Index into LOCALITIES of how far apart two nodes are."""
        return request.distance(node, other, self.socket_of)


@dataclass(frozen=True)
class Placed:
    """A way to give the guest NUMA nodes host NUMA nodes.

    :param nodes: host NUMA node by guest NUMA node; empty when nothing is
        requested that is on a node.
    :param candidates: of Placement, those with the fewest PFs first. They
        differ in the PFs of VFs only.
    :param others: providers of the other request groups by suffix, such as
        those of ``pci_passthrough:alias``.
    :param far: number of VFs off their node, and off its socket.
    :param wasted: number of guest nodes without VFs on a node with PFs.
    :param sockets: number of sockets that the guest is on.
    :param pfs: UUIDs of the PFs of the first candidate.
    :param cost: cost of the nodes to others, see :data:`Cost`.
    :param busy: load of the nodes, see
        :func:`ghsched_placement.node_choice.together`.
    """

    nodes: Mapping[int, int]
    candidates: Sequence[Mapping[str, Any]]
    others: tuple[Any, ...] = ()
    far: Far = (0, 0)
    wasted: int = 0
    sockets: int = 1
    pfs: tuple[str, ...] = ()
    cost: tuple[float, ...] = ()
    busy: node_choice.Cost = ()

    @property
    def candidate(self) -> Mapping[str, Any]:
        """The candidate with the fewest PFs."""
        return self.candidates[0]

    def order(self) -> tuple[int, ...]:
        """Return the host NUMA node of each guest NUMA node."""
        return tuple(node for _guest, node in sorted(self.nodes.items()))

    @property
    def rank(self) -> tuple[Any, ...]:
        """Order among the ways of a host: Placement's own is arbitrary.

        The nearest VFs first; then ways that leave VFs to others and are on
        few sockets; then the least loaded nodes; then the least cost to
        others, and nodes whose turn it is; then few PFs.
        """
        off_node, off_socket = self.far
        busy, turn = node_choice.parts(self.busy)
        return (off_socket, off_node, self.wasted, self.sockets, busy,
                self.cost, turn, self.order(), len(set(self.pfs)), self.pfs)


def fan_out(candidates: Sequence[Mapping[str, Any]],
            vfs: Sequence[VfRequest]) -> None:
    """Name the PF of each VF, as Nova expects it.

    A group for several VFs has the suffix of the first of them, so the VFs
    that are missing are of the same PF as the one before. The mappings are
    changed in place: conductor and compute read them out of the candidate
    that is claimed.
    """
    for candidate in candidates:
        mappings = candidate['mappings']
        for vf in vfs:
            provider: Any = None
            for suffix in vf.suffixes():
                provider = mappings.get(suffix, provider)
                if provider is not None:
                    mappings[suffix] = list(provider)


def no_room(nodes: Iterable[int]) -> Lack:
    """Return the reason for host nodes without what Nova looks after."""
    numbers = ', '.join(map(str, sorted(set(nodes))))
    return Lack(
        None, 'CPUs, memory, networks or devices', reason='the host NUMA '
        'nodes with the memory bandwidth and VFs lack the CPUs, memory, '
        'networks or other devices that the guest needs with them',
        detail=f'NUMA nodes {numbers}')
