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

"""Whether a host can take a guest now, why not, and how many (pure).

Placement says of a cloud that it has a place or none. This goes through the
hosts one by one. It knows what Placement knows: CPUs and memory of the host
as a whole, bandwidth and VFs by host NUMA node. What Nova looks at beyond
that (CPUs and memory by NUMA node, sockets, server groups, ...) is not in
here, so a host that fits here may still refuse.

A guest has a control group of its own where there is one. Where none is left
it may go to the host nodes on which it can share one, as ``nova-scheduler``
asks for in its last try (:func:`ghsched_placement.request.build`, joining).
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

import os_resource_classes as orc
import os_traits

from ghsched_placement import capacity
from ghsched_placement import keys
from ghsched_placement import names
from ghsched_placement.policy import Accounting
from ghsched_placement.policy import GuestPolicy
from ghsched_placement import request
from ghsched_placement import shortage

#: Guests that are counted on one host at most.
MOST = 1000


@dataclass(frozen=True)
class Wish:
    """What one guest asks for.

    :param guest_nodes: 0 for a guest without a NUMA topology.
    :param amounts: what it takes of the compute node's own provider, by
        resource class.
    :param required: traits that the compute node must have.
    :param forbidden: traits that it must not have.
    :param classes: resource class of the VFs of each alias; an alias that is
        missing is not looked at.
    """

    policy: GuestPolicy
    guest_nodes: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    classes: Mapping[str, str] = field(default_factory=dict)
    accounting: Accounting = 'min'

    def vfs(self, guest_node: int | None = None) -> dict[str, int]:
        """VFs by resource class, of one guest NUMA node or of all."""
        found: dict[str, int] = {}
        for need in self.policy.vfs:
            known = self.classes.get(need.alias)
            if known and guest_node in (None, need.guest_node):
                found[known] = found.get(known, 0) + need.count
        return found


@dataclass(frozen=True)
class Verdict:
    """What became of a wish on a host.

    :param nodes: host NUMA node of each guest NUMA node, one way to do it;
        empty when the guest is refused.
    :param guests: how many such guests have room, one after the other; at
        least, where the guest NUMA nodes differ or some guests share.
    :param sharing: how many of them, the last ones, would share a control
        group that is there, because none is left.
    :param reasons: why there is no room for one.
    """

    host: str
    nodes: tuple[int, ...] = ()
    guests: int = 0
    reasons: tuple[str, ...] = ()
    sharing: int = 0

    @property
    def joins(self) -> bool:
        """Whether already the first guest would share a control group."""
        return 0 < self.guests == self.sharing


def check(host: capacity.Host, wish: Wish) -> Verdict:
    """Whether a host can take a guest, and how many of its kind."""
    reasons = tuple(_reasons(host, wish))
    if reasons:
        return Verdict(host.name, reasons=reasons)
    room = _Room(host, wish)
    first = room.take()
    if first is None:
        return Verdict(host.name, reasons=(
            f'the {wish.guest_nodes} guest NUMA nodes need a host NUMA node '
            'each, and too few have room for them'
            + (' and a control group to share' if _must_join(host, wish)
               else ''),))
    guests = 1
    while guests < MOST and room.take() is not None:
        guests += 1
    return Verdict(host.name, first, guests, sharing=room.sharing)


def _must_join(host: capacity.Host, wish: Wish) -> bool:
    """Whether a guest needs a control group, and none is left for it."""
    return wish.policy.controlled and not (host.groups and host.groups.free)


def _can_join(node: capacity.Node, wish: Wish, guest_node: int) -> bool:
    """Whether a host node has a group that a guest node can share."""
    return node.traits >= request.shares(wish.policy).get(
        guest_node, frozenset())


# -- reasons ------------------------------------------------------------------


def _reasons(host: capacity.Host, wish: Wish) -> Iterator[str]:
    if os_traits.COMPUTE_STATUS_DISABLED in host.root.traits:
        yield 'the compute service is disabled'
    yield from _traits(host, wish)
    yield from _amounts(host, wish)
    joining = _must_join(host, wish)
    if joining and not _is_shared(host, wish):
        # What the host nodes have left is told as for any other guest.
        joining = False
        yield ('no control group is left' if host.groups
               else 'it has no control groups for guests')
    if wish.guest_nodes > len(host.nodes):
        yield (f'it has {len(host.nodes)} NUMA nodes, the guest has '
               f'{wish.guest_nodes}')
    if wish.policy.vfs_locality != 'node':
        yield from _distant_vfs(host, wish)
    for guest_node in range(wish.guest_nodes):
        yield from _nodes(host, wish, guest_node, joining)


def _is_shared(host: capacity.Host, wish: Wish) -> bool:
    """Whether each guest node has a host node with a group to share."""
    return all(any(_can_join(node, wish, guest_node) for node in host.nodes)
               for guest_node in range(len(wish.policy.nodes)))


def _traits(host: capacity.Host, wish: Wish) -> Iterator[str]:
    held = {names.CAPABILITY_TRAITS[name]: key
            for name, key in shortage.HELD_BY_KEY.items()}
    for trait in sorted(wish.required - host.root.traits):
        if trait in held:
            yield f'it cannot hold {held[trait].extra_spec} (trait {trait})'
        else:
            yield f'it lacks the trait {trait}'
    for trait in sorted(wish.forbidden & host.root.traits
                        - {os_traits.COMPUTE_STATUS_DISABLED}):
        yield f'it has the trait {trait}'


def _amounts(host: capacity.Host, wish: Wish) -> Iterator[str]:
    for resource_class, need in sorted(wish.amounts.items()):
        stock = host.root.stock(resource_class)
        if stock is None:
            # Disks may be of a provider that is shared.
            if resource_class != orc.DISK_GB:
                yield f'it has no {resource_class}, {need} are needed'
        elif need > stock.free:
            yield f'{resource_class}: {stock.free} free, {need} needed'
        elif need > stock.at_once:
            yield (f'{resource_class}: at most {stock.at_once} for one '
                   f'guest, {need} needed')


def _distant_vfs(host: capacity.Host, wish: Wish) -> Iterator[str]:
    for resource_class, need in sorted(wish.vfs().items()):
        free = sum(pf.stock.free for pf in host.pfs
                   if pf.resource_class == resource_class)
        if free < need:
            yield (f'{free} VFs of {resource_class} free, {need} needed '
                   f'({keys.VFS.extra_spec})')


def _nodes(host: capacity.Host, wish: Wish, guest_node: int,
           joining: bool) -> Iterator[str]:
    """Why no host NUMA node can take a guest NUMA node; node by node."""
    misfits = [(node, tuple(_misfits(node, wish, guest_node, joining)))
               for node in host.nodes]
    if all(found for _node, found in misfits):
        for node, found in misfits:
            yield (f'NUMA node {_called(node)} cannot take guest NUMA node '
                   f'{guest_node}: {", ".join(found)}')


def _called(node: capacity.Node) -> str:
    return node.name if node.number is None else str(node.number)


def _misfits(node: capacity.Node, wish: Wish, guest_node: int,
             joining: bool) -> Iterator[str]:
    if node.number is None:
        yield 'it is not known which node it is'
    if joining and not _can_join(node, wish, guest_node):
        yield 'no control group is left and it has none that can be shared'
    share = wish.policy.demand(wish.accounting).get(guest_node, 0)
    if share and node.bandwidth is None:
        yield 'its bandwidth cannot be controlled'
    elif node.bandwidth is not None and share > node.bandwidth.at_once:
        yield (f'{node.bandwidth.at_once} % of its bandwidth free, {share} % '
               'needed')
    elif node.bandwidth is not None and share % node.bandwidth.step:
        yield (f'it holds multiples of {node.bandwidth.step} % of its '
               f'bandwidth, {share} % needed')
    if wish.policy.vfs_locality == 'node':
        for resource_class, need in sorted(wish.vfs(guest_node).items()):
            free = node.vfs(resource_class)
            if free < need:
                yield f'{free} VFs of {resource_class} free, {need} needed'


# -- how many -----------------------------------------------------------------


class _Room:
    """What is left of a host while guests are put on it.

    :ivar sharing: guests that share a control group that was there before.
    """

    def __init__(self, host: capacity.Host, wish: Wish) -> None:
        self._wish = wish
        self._local = wish.policy.vfs_locality == 'node'
        self.sharing = 0
        self._groups = host.groups.free if host.groups else 0
        self._joinable = [
            {node.number for node in host.nodes
             if _can_join(node, wish, guest_node)}
            for guest_node in range(wish.guest_nodes)]
        self._amounts = {
            name: stock.free for name in wish.amounts
            if (stock := host.root.stock(name)) is not None}
        classes = sorted(set(wish.vfs()))
        self._vfs = {name: sum(pf.stock.free for pf in host.pfs
                               if pf.resource_class == name)
                     for name in classes}
        self._steps = {node.number: node.bandwidth.step
                       for node in host.nodes if node.bandwidth}
        self._nodes = {
            node.number: {
                names.MEM_BW_PCT: (node.bandwidth.free if node.bandwidth
                                   else 0),
                **{name: node.vfs(name) for name in classes}}
            for node in host.nodes if node.number is not None}

    def take(self) -> tuple[int, ...] | None:
        """Put a guest there; its host NUMA nodes, or None without room."""
        needs = [self._needs(node) for node in range(self._wish.guest_nodes)]
        if not self._has_room():
            return None
        joins = self._wish.policy.controlled and self._groups < 1
        nodes = self._match(needs, joins)
        if nodes is None:
            return None
        for need, node in zip(needs, nodes, strict=True):
            for name, amount in need.items():
                self._nodes[node][name] -= amount
        self._groups -= self._wish.policy.controlled and not joins
        self.sharing += joins
        for name in self._amounts:
            self._amounts[name] -= self._wish.amounts[name]
        for name, amount in self._wish.vfs().items():
            self._vfs[name] -= amount
        return nodes

    def _has_room(self) -> bool:
        return (all(free >= self._wish.amounts[name]
                    for name, free in self._amounts.items())
                and all(self._vfs[name] >= amount
                        for name, amount in self._wish.vfs().items()))

    def _needs(self, guest_node: int) -> dict[str, int]:
        needs = {names.MEM_BW_PCT: self._wish.policy.demand(
            self._wish.accounting).get(guest_node, 0)}
        if self._local:
            needs |= self._wish.vfs(guest_node)
        return needs

    def _fits(self, guest_node: int, node: int, need: Mapping[str, int],
              joins: bool) -> bool:
        return ((not joins or node in self._joinable[guest_node])
                and need[names.MEM_BW_PCT] % self._steps.get(node, 1) == 0
                and all(self._nodes[node][name] >= amount
                        for name, amount in need.items()))

    def _match(self, needs: Sequence[Mapping[str, int]],
               joins: bool) -> tuple[int, ...] | None:
        """A host NUMA node for each guest NUMA node, the emptiest first.

        Which of the nodes have one and the same group Placement does not
        tell; nova-compute sees to that.

        Augmenting paths (Kuhn): a guest node that finds all its host nodes
        taken pushes another one aside if that has somewhere else to go.
        """
        order = sorted(self._nodes, key=lambda node: (
            -self._nodes[node][names.MEM_BW_PCT], node))
        taken: dict[int, int] = {}

        def push(guest_node: int, seen: set[int]) -> bool:
            for node in order:
                if node in seen or not self._fits(
                        guest_node, node, needs[guest_node], joins):
                    continue
                seen.add(node)
                if node not in taken or push(taken[node], seen):
                    taken[node] = guest_node
                    return True
            return False

        if not all(push(guest_node, set())
                   for guest_node in range(len(needs))):
            return None
        of_guest = {guest_node: node for node, guest_node in taken.items()}
        return tuple(of_guest[guest_node]
                     for guest_node in range(len(needs)))
