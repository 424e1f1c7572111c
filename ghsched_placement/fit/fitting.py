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

"""Decide whether, and how often, a guest fits on a host now (pure).

Placement answers for a cloud as a whole; this module judges each host by
itself. It counts the resources of Placement (CPUs and memory of the host as a
whole, bandwidth and VFs by host NUMA node) and, where the host reports them,
CPUs and memory by host NUMA node as Nova counts them
(:mod:`ghsched_placement.fit.node_capacity`). Other checks of Nova (threads of
cores, sockets, server groups, ...) are not made, so a host that fits here may
still refuse the guest.

A guest gets a control group of its own where one is free. Otherwise it may use
host nodes with a group that it can share, as ``nova-scheduler`` requests in
its last try (:func:`ghsched_placement.query.request.build_request`, joining).
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

import os_resource_classes as orc

from ghsched_placement.fit import capacity
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Shortage
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.flavor.topology import PageSize
from ghsched_placement.providers import names
from ghsched_placement.query import request

#: Guests that are counted on one host at most.
MOST = 1000


@dataclass(frozen=True)
class GuestDemand:
    """Resources and traits that one guest needs of a host.

    :param policy: bandwidth, VFs and other things that the flavor's ghsched
        extra specs request.
    :param guest_nodes: number of guest NUMA nodes; 0 for a guest without a
        NUMA topology.
    :param amounts: amounts from the compute node's own provider, by resource
        class.
    :param required: traits that the compute node must have.
    :param forbidden: traits that the compute node must not have.
    :param classes: resource class of the VFs by PCI alias. VFs of aliases that
        are missing here are not counted.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param needs: CPUs and memory of each guest NUMA node; if empty, they are
        not checked for each NUMA node.
    :param page_size: size of the memory pages that the guest requests.
    :param fallback_vcpus: number of VCPU that a guest with dedicated CPUs
        allocates on a host that reports no PCPU; 0 if Nova tries no such host.
    """

    policy: GuestPolicy
    guest_nodes: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    classes: Mapping[str, str] = field(default_factory=dict)
    accounting: Accounting = 'min'
    needs: tuple[GuestNode, ...] = ()
    page_size: PageSize = None
    fallback_vcpus: int = 0

    def uses_fallback_vcpus(self, host: capacity.Host) -> bool:
        """Whether the guest's dedicated CPUs are counted as VCPU on a host.

        Nova counts them so on a host without [compute]cpu_dedicated_set, which
        reports no PCPU.
        """
        return (self.fallback_vcpus > 0
                and orc.PCPU not in host.root.inventories)

    def get_root_amounts(self, host: capacity.Host) -> Mapping[str, int]:
        """Return the amounts that the guest allocates from a compute node.

        The amounts are those of the node's own provider, by resource class.
        """
        if not self.uses_fallback_vcpus(host):
            return self.amounts
        return {**{name: amount for name, amount in self.amounts.items()
                   if name != orc.PCPU}, orc.VCPU: self.fallback_vcpus}

    def count_vfs(self, guest_node: int | None = None) -> dict[str, int]:
        """Return the number of requested VFs by resource class.

        :param guest_node: guest NUMA node whose VFs are counted; None for all.
        """
        found: dict[str, int] = {}
        for need in self.policy.vfs:
            known = self.classes.get(need.alias)
            if known and guest_node in (None, need.guest_node):
                found[known] = found.get(known, 0) + need.count
        return found

    def get_node_amounts(self, guest_node: int) -> dict[str, int]:
        """Return the amounts to allocate for a guest NUMA node.

        :param guest_node: number of the guest NUMA node.
        :returns: amount by resource class, such as percent of bandwidth.
        """
        return self.policy.get_resources_by_node(self.accounting).get(
            guest_node, {})

    def describe_guest_node(self, guest_node: int) -> str:
        """Return in words what a guest NUMA node needs of a host NUMA node."""
        vfs = (self.count_vfs(guest_node)
               if self.policy.vfs_locality == 'node' else {})
        return lack.describe_guest_node(
            self.get_node_amounts(guest_node),
            self.needs[guest_node] if self.needs else GuestNode(), vfs)

    def find_shortages(self, capacity: NodeCapacity | None,
                       guest_node: int) -> list[Shortage]:
        """Return the CPUs and memory that a host node lacks for a guest node.

        :param capacity: CPUs and memory of the host NUMA node; None if the
            host does not report them, which counts as enough.
        :param guest_node: number of the guest NUMA node.
        """
        if capacity is None or not self.needs:
            return []
        return capacity.find_shortages(self.needs[guest_node], self.page_size)


@dataclass(frozen=True)
class Verdict:
    """Result of checking how many guests of one kind fit on a host.

    :param host: name of the host.
    :param nodes: example of the host NUMA node of each guest NUMA node; empty
        if no guest fits.
    :param guests: number of guests that fit, placed one after the other. It is
        a lower bound if the guest NUMA nodes differ or guests share a control
        group.
    :param lacks: reasons why no guest fits; empty if one fits.
    :param sharing: number of these guests that would share a control group of
        other guests because none is free.
    """

    host: str
    nodes: tuple[int, ...] = ()
    guests: int = 0
    lacks: tuple[Lack, ...] = ()
    sharing: int = 0

    @property
    def reason_texts(self) -> tuple[str, ...]:
        """Reasons why the host cannot take the guest, as a list of texts."""
        return tuple(map(str, self.lacks))

    @property
    def needs_shared_group(self) -> bool:
        """Whether the guest fits only if it shares others' control groups."""
        return 0 < self.guests == self.sharing


def check_host_capacity(host: capacity.Host, demand: GuestDemand) -> Verdict:
    """Check how many guests of one kind fit on a host, or why none fits.

    The guests are counted by placing them one after the other.

    :param demand: resources and traits that each guest asks for.
    """
    lacks = tuple(_find_refusal_reasons(host, demand))
    if lacks:
        return Verdict(host.name, lacks=lacks)
    room = _FreeCapacity(host, demand)
    first = room.add_guest()
    if first is None:
        return Verdict(host.name, lacks=(_make_combination_reason(
            host, demand),))
    guests = 1
    while guests < MOST and room.add_guest() is not None:
        guests += 1
    return Verdict(host.name, first, guests, sharing=room.sharing)


def _make_combination_reason(host: capacity.Host, demand: GuestDemand) -> Lack:
    """Return why the guest nodes, each of which fits alone, fit not together.
    """
    must_share = _must_share_control_group(host, demand)
    guest_nodes = range(demand.guest_nodes)
    return lack.make_too_few_nodes_reason(
        [demand.describe_guest_node(number) for number in guest_nodes],
        [[node.number for node in host.nodes if node.number is not None
          and not any(_find_node_obstacles(node, demand, number, must_share))]
         for number in guest_nodes],
        ' with a control group to share' if must_share else '')


def _must_share_control_group(host: capacity.Host,
                              demand: GuestDemand) -> bool:
    """Whether a guest must share a control group with others on a host.

    This is so if the guest needs a resctrl control group and the host has none
    free. Only guests with the same bandwidth policy can share one.
    """
    return demand.policy.needs_control_group and not (host.groups
                                                      and host.groups.free)


def _can_share_control_group(node: capacity.Node, demand: GuestDemand,
                             guest_node: int) -> bool:
    """Whether a host node has a control group that a guest node may share.

    Guests with the same bandwidth policy can share a resctrl control group.
    """
    return node.traits >= request.compute_sharing_traits(demand.policy).get(
        guest_node, frozenset())


# -- what is lacking ---------------------------------------------------------


def _find_refusal_reasons(host: capacity.Host,
                          demand: GuestDemand) -> Iterator[Lack]:
    yield from lack.find_trait_mismatches(host.root.traits, demand.required,
                                          demand.forbidden)
    yield from _check_amounts(host, demand)
    must_share = _must_share_control_group(host, demand)
    if must_share and not _can_share_on_all_guest_nodes(host, demand):
        # What the host nodes have left is listed as for any other guest.
        must_share = False
        yield Lack(None, lack.GROUPS, reason=(
            'no control group is left' if host.groups
            else 'it has no control groups for guests'))
    if demand.guest_nodes > len(host.nodes):
        yield Lack(None, 'NUMA nodes', len(host.nodes), demand.guest_nodes,
                   f'it has {len(host.nodes)} NUMA nodes, the guest has '
                   f'{demand.guest_nodes}')
    if demand.policy.vfs_locality != 'node':
        yield from _check_host_vfs(host, demand)
    for guest_node in range(demand.guest_nodes):
        yield from _find_host_obstacles(host, demand, guest_node, must_share)


def _can_share_on_all_guest_nodes(host: capacity.Host,
                                  demand: GuestDemand) -> bool:
    """Whether each guest node can share a control group on some host node.

    Guests with the same bandwidth policy can share a resctrl control group.
    """
    return all(any(_can_share_control_group(node, demand, guest_node)
                   for node in host.nodes)
               for guest_node in range(len(demand.policy.nodes)))


def _check_amounts(host: capacity.Host, demand: GuestDemand) -> Iterator[Lack]:
    for resource_class, need in sorted(
            demand.get_root_amounts(host).items()):
        stock = host.root.get_inventory(resource_class)
        word = lack.WORDS.get(resource_class, resource_class)
        if stock is not None:
            found = lack.find_resource_shortage(word, need, stock.free,
                                                stock.max_unit)
        elif resource_class == orc.DISK_GB:
            continue    # disks may be of a provider that is shared
        else:
            found = lack.find_resource_shortage(word, need, 0)
        if found:
            yield found


def _check_host_vfs(host: capacity.Host,
                    demand: GuestDemand) -> Iterator[Lack]:
    for resource_class, need in sorted(demand.count_vfs().items()):
        free = sum(pf.stock.free for pf in host.pfs
                   if pf.resource_class == resource_class)
        found = lack.find_resource_shortage(f'VFs of {resource_class}', need,
                                            free,
                                            key=keys.VFS.extra_spec)
        if found:
            yield found


def _find_host_obstacles(host: capacity.Host, demand: GuestDemand,
                         guest_node: int,
                         must_share: bool) -> Iterator[Lack]:
    """Yield the reasons why no NUMA node of a host can take a guest NUMA node.

    Nothing is yielded if at least one host NUMA node can take it.

    :param guest_node: number of the guest NUMA node.
    :param must_share: whether the guest must share the control group of other
        guests.
    """
    misfits = [(node, tuple(_find_node_obstacles(node, demand, guest_node,
                                                 must_share)))
               for node in host.nodes]
    if all(found for _node, found in misfits):
        for node, found in misfits:
            yield replace(found[0], node=node.number, reason=(
                f'NUMA node {_format_node(node)} cannot take guest NUMA node '
                f'{guest_node}: {", ".join(one.text for one in found)}'))


def _format_node(node: capacity.Node) -> str:
    return node.name if node.number is None else str(node.number)


def _find_node_obstacles(node: capacity.Node, demand: GuestDemand,
                         guest_node: int, must_share: bool) -> Iterator[Lack]:
    """Yield the reasons why a host NUMA node cannot take a guest NUMA node.

    :param guest_node: number of the guest NUMA node.
    :param must_share: whether the guest must share the control group of other
        guests.
    """
    if node.number is None:
        yield Lack(None, 'number', reason='it is not known which node it is')
    if must_share and not _can_share_control_group(node, demand, guest_node):
        yield Lack(None, lack.GROUPS, reason='no control group is left and it '
                   'has none that can be shared')
    for name, need in sorted(demand.get_node_amounts(guest_node).items(),
                             key=_make_resource_sort_key):
        yield from _find_inventory_obstacles(name, node.stocks.get(name), need)
    needed = []
    if demand.policy.vfs_locality == 'node':
        vfs = sorted(demand.count_vfs(guest_node).items())
        needed = [(f'VFs of {name}', need, node.count_free_vfs(name))
                  for name, need in vfs]
    lacks = [lack.find_resource_shortage(*short) for short
             in demand.find_shortages(node.room, guest_node)]
    lacks += [lack.find_resource_shortage(*item) for item in needed]
    yield from filter(None, lacks)


def _make_resource_sort_key(item: tuple[str, int]) -> tuple[bool, str]:
    """Return a sort key that puts bandwidth before other resource classes.

    :param item: resource class and amount.
    """
    return item[0] != names.MEM_BW_PCT, item[0]


def _find_inventory_obstacles(name: str, stock: capacity.InventoryUsage | None,
                              needed: int) -> Iterator[Lack]:
    """Yield the reasons why an amount cannot be allocated from an inventory.

    :param name: resource class of the amount.
    :param stock: the inventory; None if the host NUMA node has none.
    :param needed: amount to allocate.
    """
    word = lack.WORDS[name]
    if stock is None:
        yield lack.make_missing_inventory_reason(name, needed)
        return
    if needed <= stock.max_unit and needed % stock.step_size:
        yield Lack(None, word, stock.max_unit, needed,
                   f'it holds multiples of {stock.step_size} {word}, '
                   f'{needed} needed')
    if needed < stock.min_unit:
        yield Lack(None, word, stock.max_unit, needed,
                   f'it holds no less than {stock.min_unit} {word}, {needed} '
                   'needed')
    found = lack.find_resource_shortage(word, needed, stock.max_unit)
    if found:
        yield found


# -- how many -----------------------------------------------------------------


class _FreeCapacity:
    """Free resources of a host while guests are placed on it one by one.

    :ivar sharing: number of guests placed so far that share a control group of
        other guests.
    """

    def __init__(self, host: capacity.Host, demand: GuestDemand) -> None:
        self._wish = demand
        self._local = demand.policy.vfs_locality == 'node'
        self.sharing = 0
        self._groups = host.groups.free if host.groups else 0
        self._joinable = [
            {node.number for node in host.nodes
             if _can_share_control_group(node, demand, guest_node)}
            for guest_node in range(demand.guest_nodes)]
        self._needed = demand.get_root_amounts(host)
        self._amounts = {
            name: stock.free for name in self._needed
            if (stock := host.root.get_inventory(name)) is not None}
        classes = sorted(set(demand.count_vfs()))
        self._vfs = {name: sum(pf.stock.free for pf in host.pfs
                               if pf.resource_class == name)
                     for name in classes}
        self._rooms = {node.number: node.room for node in host.nodes}
        self._stocks = {node.number: node.stocks for node in host.nodes}
        self._nodes = {
            node.number: {
                **dict.fromkeys(names.NODE_CLASSES, 0),
                **{name: stock.free for name, stock in node.stocks.items()},
                **{name: node.count_free_vfs(name) for name in classes}}
            for node in host.nodes if node.number is not None}

    def add_guest(self) -> tuple[int, ...] | None:
        """Allocate the resources of one more guest on this host.

        :returns: host NUMA node of each guest NUMA node; None if the guest
            does not fit.
        """
        needs = [self._sum_node_amounts(node)
                 for node in range(self._wish.guest_nodes)]
        if not self._has_host_resources():
            return None
        joins = self._wish.policy.needs_control_group and self._groups < 1
        nodes = self._choose_host_nodes(needs, joins)
        if nodes is None:
            return None
        for guest_node, node in enumerate(nodes):
            for name, amount in needs[guest_node].items():
                self._nodes[node][name] -= amount
            room = self._rooms[node]
            if room is not None and self._wish.needs:
                self._rooms[node] = room.subtract_guest_node(
                    self._wish.needs[guest_node], self._wish.page_size)
        self._groups -= self._wish.policy.needs_control_group and not joins
        self.sharing += joins
        for name in self._amounts:
            self._amounts[name] -= self._needed[name]
        for name, amount in self._wish.count_vfs().items():
            self._vfs[name] -= amount
        return nodes

    def _has_host_resources(self) -> bool:
        return (all(free >= self._needed[name]
                    for name, free in self._amounts.items())
                and all(self._vfs[name] >= amount
                        for name, amount in self._wish.count_vfs().items()))

    def _sum_node_amounts(self, guest_node: int) -> dict[str, int]:
        needs = dict(self._wish.get_node_amounts(guest_node))
        if self._local:
            needs |= self._wish.count_vfs(guest_node)
        return needs

    def _can_take_guest_node(self, guest_node: int, node: int,
                             needed: Mapping[str, int],
                             shares_group: bool) -> bool:
        return ((not shares_group or node in self._joinable[guest_node])
                and self._allows_amounts(
                    node, self._wish.get_node_amounts(guest_node))
                and not self._wish.find_shortages(self._rooms[node],
                                                  guest_node)
                and all(self._nodes[node][name] >= amount
                        for name, amount in needed.items()))

    def _allows_amounts(self, node: int, amounts: Mapping[str, int]) -> bool:
        """Whether a host node's inventories allow allocations of these sizes.

        Only min_unit and step_size of the inventories are checked. Whether
        enough is free is not checked.

        :param amounts: amount to allocate by resource class.
        """
        stocks = self._stocks[node]
        return all(name in stocks and amount >= stocks[name].min_unit
                   and amount % stocks[name].step_size == 0
                   for name, amount in amounts.items())

    def _choose_host_nodes(self, node_amounts: Sequence[Mapping[str, int]],
                           shares_group: bool) -> tuple[int, ...] | None:
        """Choose a free host NUMA node for each guest NUMA node.

        The emptiest host nodes are tried first. If all suitable host nodes are
        taken by other nodes of the guest, one of those is assigned to a
        different host node if possible (Kuhn's augmenting paths).

        :param node_amounts: amounts of each guest node, by resource class.
        :param shares_group: whether the guest shares a control group of other
            guests.
        :returns: host node of each guest node; None if there is no solution.
        """
        order = sorted(self._nodes, key=lambda node: (
            -self._nodes[node][names.MEM_BW_PCT], node))
        taken: dict[int, int] = {}

        def push(guest_node: int, seen: set[int]) -> bool:
            for node in order:
                if node in seen or not self._can_take_guest_node(
                        guest_node, node, node_amounts[guest_node],
                        shares_group):
                    continue
                seen.add(node)
                if node not in taken or push(taken[node], seen):
                    taken[node] = guest_node
                    return True
            return False

        if not all(push(guest_node, set())
                   for guest_node in range(len(node_amounts))):
            return None
        of_guest = {guest_node: node for node, guest_node in taken.items()}
        return tuple(of_guest[guest_node]
                     for guest_node in range(len(node_amounts)))
