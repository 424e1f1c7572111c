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

"""Allocation candidates -> the host NUMA nodes they stand for (pure)."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import itertools
from typing import Any
from typing import TypeAlias

from ghsched_placement.lack import Lack
from ghsched_placement import names
from ghsched_placement import node_choice
from ghsched_placement import request
from ghsched_placement.request import LOCALITIES

#: Whether CPUs and memory of a host node suffice for a guest node: guest
#: node, host node.
HasRoom: TypeAlias = Callable[[int, int], bool]

#: What it costs others to give guest nodes these host nodes, in their order;
#: the least is best. Several reasons are told apart by their place.
Cost: TypeAlias = Callable[[Sequence[int]], tuple[float, ...]]

#: How many VFs are off a node, and off its socket, by host NUMA node.
_Far: TypeAlias = Mapping[int, tuple[int, int]]

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
    """What the candidates of one request have to tell.

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
    """One candidate whose providers are known host NUMA nodes.

    :param nodes: host NUMA node by guest NUMA node; empty when nothing is
        asked for that is on a node.
    :param candidate: as Placement gave it.
    :param far: how many VFs are off their node, and off its socket.
    :param wasted: how many guest nodes without VFs are on a node with free
        ones.
    :param sockets: how many the guest is on.
    :param pfs: UUIDs of the PFs.
    :param cost: of the nodes, see :data:`Cost`.
    :param busy: how busy they are, see
        :func:`ghsched_placement.node_choice.together`.
    """

    nodes: Mapping[int, int]
    candidate: Mapping[str, Any]
    far: tuple[int, int] = (0, 0)
    wasted: int = 0
    sockets: int = 1
    pfs: tuple[str, ...] = ()
    cost: tuple[float, ...] = ()
    busy: node_choice.Cost = ()

    def order(self) -> tuple[int, ...]:
        """Host NUMA node of each guest NUMA node."""
        return tuple(node for _guest, node in sorted(self.nodes.items()))

    @property
    def rank(self) -> tuple[Any, ...]:
        """Order among candidates of a host: Placement's own is arbitrary.

        The nearest VFs first; then what leaves VFs to others and is on few
        sockets; then the nodes that have most to give; then what costs
        others least, and takes turns; then few PFs.
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


def _always(_guest_node: int, _node: int) -> bool:
    return True


def place(candidates: Sequence[Mapping[str, Any]], wanted: Wanted,
          host: Host, has_room: HasRoom | None = None,
          cost: Cost | None = None) -> tuple[list[Placed], Lack | None]:
    """Candidates worth a try, in order, and why there is none.

    :param candidates: ``{'allocations': ..., 'mappings': {suffix: [rp]}}``,
        after :func:`fan_out`.
    :param has_room: left out, every host node has.
    :param cost: left out, the nodes with the lowest numbers come first.
    """
    most = max(1, MAX_PLACED // max(1, len(candidates)))
    placed: list[Placed] = []
    refusals: Counter[Lack] = Counter()
    for candidate in candidates:
        found = _place(candidate, wanted, host, has_room or _always)
        if isinstance(found, Lack):
            refusals[found] += 1
        else:
            placed.extend(itertools.islice(found, most))
    orders = {item.order() for item in placed} if cost is not None else ()
    if cost is not None and len(orders) <= MAX_COSTED:
        costs = {order: cost(order) for order in orders}
        placed = [replace(item, cost=costs[item.order()]) for item in placed]
    placed.sort(key=lambda item: item.rank)
    if placed:
        return placed, None
    if not refusals:
        return [], UNKNOWN_NODES
    return [], min(refusals, key=lambda refusal: (
        _TELLING.index(refusal) if refusal in _TELLING else -1,
        -refusals[refusal], refusal.reason))


#: Most that is looked at of one host; there is more where neither bandwidth
#: nor locality says on which of many nodes a guest node is.
MAX_PLACED = 20000

#: Most ways to give guest nodes their host nodes that are compared by what
#: they cost others. Where there are more, as for a guest of four nodes on a
#: host of eight, the numbers of the nodes decide.
MAX_COSTED = 100

#: The one to tell first says most about the request; what is not in here
#: (nodes that are full) says even more.
_TELLING = (TOO_FAR, ONE_NODE_FOR_TWO, UNKNOWN_DEVICES, UNKNOWN_NODES)


def no_room(nodes: Iterable[int]) -> Lack:
    """Host nodes that have all but what Nova looks after."""
    numbers = ', '.join(map(str, sorted(set(nodes))))
    return Lack(
        None, 'CPUs, memory, networks or devices', reason='the host NUMA '
        'nodes with the memory bandwidth and VFs lack the CPUs, memory, '
        'networks or other devices that the guest needs with them',
        detail=f'NUMA nodes {numbers}')


def _place(candidate: Mapping[str, Any], wanted: Wanted, host: Host,
           has_room: HasRoom) -> Iterator[Placed] | Lack:
    mappings = candidate['mappings']
    nodes = _nodes(mappings, wanted, host.node_of_numa)
    if nodes is None:
        return UNKNOWN_NODES
    pfs = {vf: [mappings.get(suffix, ('',))[0] for suffix in vf.suffixes()]
           for vf in wanted.vfs}
    of_vfs = tuple(itertools.chain.from_iterable(pfs.values()))
    if not host.node_of_pf.keys() >= set(of_vfs):
        return UNKNOWN_DEVICES
    choices: dict[int, _Far] = {
        guest_node: _choices(known, host, wanted.locality, Counter(
            host.node_of_pf[pf] for vf, found in pfs.items()
            if vf.guest_node == guest_node for pf in found))
        for guest_node, known in nodes.items()}
    if not all(choices.values()):
        return TOO_FAR
    for guest_node, near in choices.items():
        choices[guest_node] = {node: far for node, far in near.items()
                               if has_room(guest_node, node)}
        if not choices[guest_node]:
            return no_room(near)
    ways = _assign(choices)
    first = next(ways, None)
    if first is None:
        return ONE_NODE_FOR_TWO
    plain = {guest for guest in choices
             if guest not in {vf.guest_node for vf in wanted.vfs}}
    with_vfs = set(host.node_of_pf.values())
    return (_placed(dict(zip(choices, taken, strict=True)), candidate,
                    _sum(choices.values(), taken), of_vfs, host,
                    sum(1 for guest, node in zip(choices, taken, strict=True)
                        if guest in plain and node in with_vfs))
            for taken in itertools.chain([first], ways))


def _placed(nodes: Mapping[int, int], candidate: Mapping[str, Any],
            far: tuple[int, int], pfs: tuple[str, ...], host: Host,
            wasted: int) -> Placed:
    sockets = {host.socket_of.get(node) for node in nodes.values()}
    return Placed(nodes, candidate, far, wasted, len(sockets), pfs,
                  busy=node_choice.together(nodes.values(), host.busy))


def _nodes(mappings: Mapping[str, Sequence[str]], wanted: Wanted,
           node_of_numa: Mapping[str, int]
           ) -> dict[int, Collection[int]] | None:
    """Host NUMA nodes that each guest node may be on, as Placement has it.

    One, unless there is no group that names it, because the guest node has
    only VFs, or nothing of ours.
    """
    nodes: dict[int, Collection[int]] = {}
    if not wanted.suffixes:
        return nodes
    for guest_node in sorted({*range(wanted.guest_nodes),
                              *wanted.suffixes}):
        suffix = wanted.suffixes.get(guest_node)
        providers = mappings.get(suffix or names.node_suffix(guest_node))
        if providers is None and suffix in (None,
                                            names.node_suffix(guest_node)):
            nodes[guest_node] = node_of_numa.values()
        elif not providers or providers[0] not in node_of_numa:
            return None
        else:
            nodes[guest_node] = (node_of_numa[providers[0]],)
    return nodes


def _choices(nodes: Collection[int], host: Host, locality: str,
             devices: Counter[int | None]) -> _Far:
    """Those of some nodes that VFs are near enough to, the nearest first.

    :param devices: how many VFs, by their host node.
    """
    most = LOCALITIES.index(locality)
    found = {}
    for node in nodes:
        far = [0, 0, 0]
        for device_node, count in devices.items():
            far[host.distance(node, device_node)] += count
        if not any(far[most + 1:]):
            found[node] = far[1] + far[2], far[2]
    return dict(sorted(found.items(),
                       key=lambda item: (item[1][::-1], item[0])))


def _assign(choices: Mapping[int, _Far],
            taken: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Ways to give each guest node a host node of its own."""
    if len(taken) == len(choices):
        yield taken
        return
    for node in tuple(choices.values())[len(taken)]:
        if node not in taken:
            yield from _assign(choices, (*taken, node))


def _sum(choices: Iterable[_Far], taken: Sequence[int]) -> tuple[int, int]:
    far = [of_node[node]
           for of_node, node in zip(choices, taken, strict=True)]
    return sum(node for node, _ in far), sum(socket for _, socket in far)


def by_nodes(placed: Sequence[Placed],
             wanted: Wanted) -> Iterator[list[Placed]]:
    """Candidates with the same host nodes and the same other providers.

    In the order in which the first of each comes.
    """
    ours = wanted.ours()
    groups: dict[Any, list[Placed]] = {}
    for item in placed:
        key = item.order(), other_groups(item, ours)
        groups.setdefault(key, []).append(item)
    yield from groups.values()


def other_groups(placed: Placed, ours: frozenset[str]) -> Any:
    """What distinguishes candidates of equal nodes: the other providers.

    Devices of pci_passthrough:alias are groups of their own, so two
    candidates on the same nodes can still differ in what Nova has to fit.
    VFs of ours do not count: which of the nodes' PFs they are of is all one
    to the fit, and there may be very many ways.
    """
    return tuple(sorted(
        (suffix, tuple(providers))
        for suffix, providers in placed.candidate['mappings'].items()
        if suffix and suffix not in ours))
