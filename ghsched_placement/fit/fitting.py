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

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import TypeAlias

import os_resource_classes as orc

from ghsched_placement.fit import capacity
from ghsched_placement.fit import counting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack
from ghsched_placement.fit import model
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers import names

#: Note on a count that is a lower bound.
MORE_MAY_FIT = ('more guests may fit: their NUMA nodes differ, and the search '
                'has ended at its limit of steps')


#: Function that yields what a host NUMA node lacks for a guest NUMA node.
#: Arguments: the host node, the demand, the number of the guest node, and
#: whether the guest must share the control group of other guests.
FindShortages: TypeAlias = Callable[
    [capacity.NodeInventory, GuestDemand, int, bool], Iterable[Lack]]


@dataclass(frozen=True)
class Verdict:
    """Result of checking how many guests of one kind fit on a host.

    :param host: name of the host.
    :param nodes: example of the host NUMA node of each guest NUMA node; empty
        if no guest fits.
    :param guests: number of guests that fit at the same time. It is a lower
        bound if some of them share a control group.
    :param lacks: reasons why no guest fits; empty if one fits.
    :param sharing: number of these guests that would share a control group of
        other guests because none is free.
    :param is_exact: whether the search for ways to place the guests has come
        to its end. If not, more guests may fit.
    :param binding: names of the resources and traits that one guest more
        lacks.
    """

    host: str
    nodes: tuple[int, ...] = ()
    guests: int = 0
    lacks: tuple[Lack, ...] = ()
    sharing: int = 0
    is_exact: bool = True
    binding: frozenset[str] = frozenset()

    @property
    def reason_texts(self) -> tuple[str, ...]:
        """Reasons why the host cannot take the guest, as a list of texts.

        If guests fit, this is empty, unless more than the counted ones may.
        """
        if self.guests and not self.is_exact:
            return (MORE_MAY_FIT,)
        return tuple(map(str, self.lacks))

    @property
    def missing(self) -> frozenset[str]:
        """Names of the resources and traits that one guest more lacks."""
        return self.binding or frozenset(one.resource for one in self.lacks)

    @property
    def needs_shared_group(self) -> bool:
        """Whether the guest fits only if it shares others' control groups."""
        return 0 < self.guests == self.sharing


def check_host_capacity(host: capacity.HostInventory, *demands: GuestDemand
                        ) -> Verdict:
    """Check how many guests of one kind fit on a host, or why none fits.

    :param demands: demand of one guest for each number of guest NUMA nodes
        that is tried, see :func:`count_guests`. If no guest fits, the reasons
        are those for the first demand.
    """
    verdict, demand = count_guests(host, demands), demands[0]
    if verdict.guests:
        return replace(verdict, nodes=next(filter(None, (
            counting.choose_host_nodes(host.amounts, one.make_need(
                host, verdict.needs_shared_group)) for one in demands)), ()))
    return replace(verdict, lacks=find_refusal_reasons(host, demand) or (
        make_combination_reason(host, demand),))


def find_refusal_reasons(host: capacity.HostInventory, demand: GuestDemand,
                         find_shortages: FindShortages | None = None
                         ) -> tuple[Lack, ...]:
    """Return the reasons why a host as a whole or its nodes refuse a guest.

    :param find_shortages: see :func:`find_node_shortages`, which it is by
        default.
    :returns: empty if the host has enough and each guest NUMA node fits on
        some host node.
    """
    # Where no group can be shared, what the host nodes have left is listed as
    # for any other guest.
    must_share = (_must_share_control_group(host, demand)
                  and _can_share_on_all_guest_nodes(host, demand))
    return (*find_missing_traits(host, demand),
            *find_host_shortages(host, demand, must_share),
            *_find_host_obstacles(host, demand, must_share,
                                  find_shortages or find_node_shortages))


def count_guests(host: capacity.HostInventory,
                 demands: Sequence[GuestDemand]) -> Verdict:
    """Count the guests of one kind that fit on a host at the same time.

    Guests get a control group of their own as long as one is free; further
    guests share one.

    :param demands: resources and traits that one guest asks for. If the
        scheduler chooses the number of guest NUMA nodes, there is one demand
        for each number, the smallest first: the scheduler tries the next one
        if no further guest with the smaller number fits on any host.
    :returns: number of guests. The host nodes and the reasons are empty.
    """
    free, found = host.amounts, Verdict(host.name)
    for demand in demands:
        need = demand.make_need(host)
        more = _count_guests(host, free, demand, need)
        found = more if demand is demands[0] else replace(
            more, guests=found.guests + more.guests,
            is_exact=found.is_exact and more.is_exact)
        if found.sharing or demand is demands[-1]:
            break
        free, _placed = counting.place_guests(free, need, more.guests)
    return found


def _count_guests(host: capacity.HostInventory, free: model.Host,
                  demand: GuestDemand,
                  need: model.Need) -> Verdict:
    """Return how many guests of one number of NUMA nodes fit on a host.

    :param free: free amounts of the host.
    :param need: amounts that each guest needs.
    """
    missing = frozenset([one.resource for one
                         in find_missing_traits(host, demand)])
    if missing:
        return Verdict(host.name, binding=missing)
    own, sharing = counting.count_guests(free, need), model.Count(0)
    if 0 in own.of_host and _can_share_on_all_guest_nodes(host, demand):
        sharing = counting.count_guests(
            counting.place_guests(free, need, own.guests)[0],
            demand.make_need(host, shares_group=True))
    return Verdict(
        host.name, guests=own.guests + sharing.guests, sharing=sharing.guests,
        is_exact=own.is_exact and sharing.is_exact,
        binding=demand.name_used_up_resources(
            host, sharing if sharing.guests else own))


def make_combination_reason(host: capacity.HostInventory, demand: GuestDemand,
                            find_shortages: FindShortages | None = None
                            ) -> Lack:
    """Return why the guest nodes, each of which fits alone, fit not together.
    """
    find_shortages = find_shortages or find_node_shortages
    must_share = _must_share_control_group(host, demand)
    guest_nodes = range(demand.guest_nodes)
    return lack.make_too_few_nodes_reason(
        [demand.describe_guest_node(number) for number in guest_nodes],
        [[node.number for node in host.nodes if node.number is not None
          and not any(find_shortages(node, demand, number, must_share))]
         for number in guest_nodes],
        ''.join((' with a control group to share' if must_share else '',
                 ' and the VFs in its socket' if demand.count_vfs()
                 and demand.policy.vfs_locality == 'socket' else '')))


def _must_share_control_group(host: capacity.HostInventory,
                              demand: GuestDemand) -> bool:
    """Whether a guest must share a control group with others on a host.

    This is so if the guest needs a resctrl control group and the host has none
    free. Only guests with the same bandwidth policy can share one.
    """
    free = host.groups.free if host.groups else 0
    return len(demand.policy.groups) > free


def _can_share_control_group(node: capacity.NodeInventory, demand: GuestDemand,
                             guest_node: int) -> bool:
    """Whether a host node has a control group that a guest node may share.

    Guests with the same bandwidth policy can share a resctrl control group.
    """
    return node.traits >= demand.sharing_traits.get(guest_node, frozenset())


# -- what is lacking ---------------------------------------------------------


def find_missing_traits(host: capacity.HostInventory,
                        demand: GuestDemand) -> Iterator[Lack]:
    """Yield each trait that a host should have, or should not have.

    A trait is not missed if the host file does not say how much the host has
    of its resource: that is the reason of the NUMA nodes.
    """
    unstated = {names.CAPABILITY_TRAITS[resource.capability]
                for node in host.nodes
                for name, resource in BESIDE_BANDWIDTH.items()
                if name in node.unstated}
    return lack.find_trait_mismatches(
        host.root.traits, demand.required - unstated, demand.forbidden)


def find_host_shortages(host: capacity.HostInventory, demand: GuestDemand,
                        may_share_group: bool = False) -> Iterator[Lack]:
    """Yield the resources that a host as a whole lacks for a guest.

    :param may_share_group: whether the control group of another guest will do.
    """
    yield from filter(None, _find_amount_shortages(host, demand))
    if _must_share_control_group(host, demand) and not may_share_group:
        yield _make_group_lack(host, len(demand.policy.groups))
    too_few = lack.find_node_count_shortage(len(host.nodes),
                                            demand.guest_nodes)
    if too_few:
        yield too_few
    if demand.policy.vfs_locality != 'node':
        yield from filter(None, _find_vf_shortages(host, demand))


def _make_group_lack(host: capacity.HostInventory, needed: int) -> Lack:
    """Return the reason that a host has too few control groups for a guest."""
    groups = host.groups or capacity.NO_STOCK
    return Lack(None, lack.GROUPS, groups.free, needed, '' if needed
                <= groups.capacity else
                f'{groups.capacity} {lack.GROUPS} in all, {needed} needed')


def _can_share_on_all_guest_nodes(host: capacity.HostInventory,
                                  demand: GuestDemand) -> bool:
    """Whether each guest node can share a control group on some host node.

    Guests with the same bandwidth policy can share a resctrl control group.
    """
    return demand.policy.can_share_group and all(
        any(_can_share_control_group(node, demand, guest_node)
            for node in host.nodes)
        for guest_node in range(len(demand.policy.nodes)))


def _find_amount_shortages(host: capacity.HostInventory,
                           demand: GuestDemand) -> Iterator[Lack | None]:
    """Yield what each resource lacks that a guest takes of the whole host.

    None stands for a resource of which the host has enough.
    """
    for name, need in sorted(demand.get_root_amounts(host).items()):
        stock = host.root.get_inventory(name)
        if stock is None and name == orc.DISK_GB:
            continue    # disks may be of a provider that is shared
        yield lack.find_resource_shortage(
            lack.WORDS.get(name, name), need, stock.free if stock else 0,
            stock.max_unit if stock else None)


def _find_vf_shortages(host: capacity.HostInventory,
                       demand: GuestDemand) -> Iterator[Lack | None]:
    """Yield what each kind of VF lacks on all nodes of a host together.

    None stands for VFs of which the host has enough.
    """
    for name, need in sorted(demand.count_vfs().items()):
        free = sum(pf.stock.free for pf in host.pfs
                   if pf.resource_class == name)
        yield lack.find_resource_shortage(
            demand.describe_vfs(name), need, free, key=keys.VFS.extra_spec)


def _find_host_obstacles(host: capacity.HostInventory, demand: GuestDemand,
                         must_share: bool,
                         find_shortages: FindShortages) -> Iterator[Lack]:
    """Yield the reasons why no NUMA node of a host can take a guest NUMA node.

    Host nodes that lack the same for the same guest nodes have one reason.

    :param must_share: whether the guest must share the control group of other
        guests.
    """
    guest_nodes: dict[tuple[str, str], list[int]] = {}
    first: dict[str, Lack] = {}
    for guest_node in range(demand.guest_nodes):
        misfits: dict[str, list[capacity.NodeInventory]] = {}
        for node in host.nodes:
            found = tuple(find_shortages(node, demand, guest_node,
                                         must_share))
            if not found:
                break
            text = ', '.join(one.text for one in found)
            misfits.setdefault(text, []).append(node)
            first.setdefault(text, found[0])
        else:
            for text, nodes in misfits.items():
                guest_nodes.setdefault((_format_nodes(nodes), text),
                                       []).append(guest_node)
    for (host_nodes, text), numbers in guest_nodes.items():
        yield replace(first[text], reason=(
            f'{host_nodes} cannot take guest '
            f'{lack.format_numa_nodes(numbers)}: {text}'))


def _format_nodes(nodes: Sequence[capacity.NodeInventory]) -> str:
    """Return "NUMA node" or "NUMA nodes" with the numbers of host nodes.

    If a number is not known, the names of the providers are in their place.
    """
    numbers = [node.number for node in nodes if node.number is not None]
    if len(numbers) < len(nodes):
        return f'NUMA node {", ".join(node.name for node in nodes)}'
    return lack.format_numa_nodes(numbers)


def find_node_shortages(node: capacity.NodeInventory, demand: GuestDemand,
                        guest_node: int,
                        must_share: bool = False) -> Iterator[Lack]:
    """Yield what a host NUMA node lacks for a guest NUMA node.

    :param guest_node: number of the guest NUMA node.
    :param must_share: whether the guest must share the control group of other
        guests.
    """
    if node.number is None:
        yield Lack(None, 'number', reason='it is not known which node it is')
    if must_share and not _can_share_control_group(node, demand, guest_node):
        yield Lack(node.number, lack.GROUPS, reason='no control group is left '
                   'and it has none that can be shared')
    amounts = demand.get_node_amounts(guest_node)
    for name in capacity.NODE_CLASSES:
        if name in amounts and name in node.unstated:
            yield lack.make_unstated_reason(
                name, amounts[name], node.unstated[name], node.number)
        elif name in amounts:
            yield from _find_inventory_shortages(
                name, node.stocks.get(name), amounts[name], node.number)
    lacks = [lack.find_resource_shortage(*item, node=node.number)
             for item in demand.find_shortages(node.room, guest_node)]
    locality = demand.policy.vfs_locality
    vfs = {} if locality == 'any' else demand.count_vfs(guest_node)
    lacks += [lack.find_resource_shortage(
        demand.describe_vfs(name), need, node.count_free_vfs(name)
        if locality == 'node' else node.near.get(name, need),
        node=node.number) for name, need in sorted(vfs.items())]
    yield from filter(None, lacks)


def _find_inventory_shortages(name: str, stock: capacity.InventoryUsage | None,
                              needed: int, node: int | None
                              ) -> Iterator[Lack]:
    """Yield the reasons why an amount cannot be allocated from an inventory.

    :param name: resource class of the amount.
    :param stock: the inventory; None if the host NUMA node has none.
    :param needed: amount to allocate.
    :param node: number of the host NUMA node.
    """
    word = lack.WORDS[name]
    if stock is None:
        yield replace(lack.make_missing_inventory_reason(name, needed),
                      node=node)
        return
    if needed % stock.step_size:
        yield Lack(node, word, stock.max_unit, needed,
                   f'it holds multiples of {stock.step_size} {word}, '
                   f'{needed} needed')
    if needed < stock.min_unit:
        yield Lack(node, word, stock.max_unit, needed,
                   f'it holds no less than {stock.min_unit} {word}, {needed} '
                   'needed')
    found = lack.find_resource_shortage(
        word, needed, stock.free, int(stock.record['max_unit']), node)
    if found:
        yield found


# -- guests that come and go --------------------------------------------------


def take_guest(host: capacity.HostInventory, demand: GuestDemand,
               nodes: Sequence[int]) -> capacity.HostInventory:
    """Return a host with the resources of one more guest in use.

    VFs are not counted as used.

    :param nodes: host NUMA node of each guest NUMA node.
    """
    return _change_usage(host, demand, nodes, 1)


def give_guest(host: capacity.HostInventory, demand: GuestDemand,
               nodes: Sequence[int],
               by_cache: Sequence[Sequence[int]] = ()
               ) -> capacity.HostInventory:
    """Return a host with the resources of one of its guests free.

    VFs are not freed: no record says of which PF they are.

    :param nodes: host NUMA node of each guest NUMA node.
    :param by_cache: number of the dedicated CPUs that each guest node has of
        each L3 cache, see :func:`count_taken_by_cache`; empty if unknown.
    """
    return _change_usage(host, demand, nodes, -1, by_cache)


def count_taken_by_cache(before: capacity.HostInventory,
                         after: capacity.HostInventory,
                         nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return how many dedicated CPUs of each L3 cache a guest has taken.

    :param before: the host before :func:`take_guest`, and after.
    :param nodes: host NUMA node of each guest NUMA node.
    :returns: number of CPUs of each L3 cache for each guest NUMA node.
    """
    was, now = ({node.number: node.room.caches for node in host.nodes
                 if node.room} for host in (before, after))
    return [tuple(new.used - old.used for old, new in zip(
        was.get(node, ()), now.get(node, ()), strict=True)) for node in nodes]


def _change_usage(host: capacity.HostInventory, demand: GuestDemand,
                  nodes: Sequence[int], sign: int,
                  by_cache: Sequence[Sequence[int]] = ()
                  ) -> capacity.HostInventory:
    guest_nodes = {node: number for number, node in enumerate(nodes)}
    amounts = {**demand.get_root_amounts(host),
               names.RESCTRL_GROUP: len(demand.policy.groups)}
    return replace(
        host, root=replace(host.root, used={**host.root.used, **{
            name: host.root.used.get(name, 0) + sign * amount
            for name, amount in amounts.items()}}),
        nodes=tuple(
            node if node.number is None or node.number not in guest_nodes
            else _change_node_usage(node, demand, guest_nodes[node.number],
                                    sign, by_cache) for node in host.nodes))


def _change_node_usage(node: capacity.NodeInventory, demand: GuestDemand,
                       guest_node: int, sign: int,
                       by_cache: Sequence[Sequence[int]]
                       ) -> capacity.NodeInventory:
    amounts = demand.get_node_amounts(guest_node)
    room = node.room
    if room is not None and demand.needs:
        need = demand.needs[guest_node], demand.page_size
        room = (room.subtract_guest_node(*need) if sign > 0
                else room.release_guest_node(
                    *need, by_cache[guest_node] if by_cache else ()))
    return replace(node, room=room, stocks={
        name: replace(stock, used=stock.used + sign * amounts.get(name, 0))
        for name, stock in node.stocks.items()})


# -- how many -----------------------------------------------------------------


def find_needed_nodes(host: capacity.HostInventory,
                      demand: GuestDemand) -> frozenset[int]:
    """Return the host nodes that a guest should take so that most others fit.

    :returns: empty if any host nodes will do, or if the NUMA nodes of the
        guest differ.
    """
    if not 1 < demand.guest_nodes < len(host.nodes):
        return frozenset()
    free, need = host.amounts, demand.make_need(host)
    if len(set(need.nodes)) > 1:
        return frozenset()
    return counting.find_needed_nodes(
        {node.number: node.count_guest_nodes(need.nodes[0])
         for node in free.nodes}, len(need.nodes),
        free.count_without_nodes(need),
        free.list_socket_amounts(need.nodes[0]))
