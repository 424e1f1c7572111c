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

"""Hosts with a guest more or less than Placement and Nova have on record.

Pure. Guests with VFs are not supported: no record says of which PF they are.
"""

from collections.abc import Mapping
from dataclasses import replace

from ghsched_placement import capacity
from ghsched_placement import fitting
from ghsched_placement import names
from ghsched_placement.node_room import NodeRoom


def add_guest(host: capacity.Host, wish: fitting.GuestDemand,
              nodes: tuple[int, ...]) -> capacity.Host:
    """Return a host with the resources of one more guest counted as used.

    :param wish: resources that the guest takes.
    :param nodes: host NUMA node of each guest NUMA node.
    """
    return _changed(host, wish, nodes, 1)


def remove_guest(host: capacity.Host, wish: fitting.GuestDemand,
                 nodes: tuple[int, ...]) -> capacity.Host:
    """Return a host with the resources of one guest counted as free.

    :param wish: resources that the guest has.
    :param nodes: host NUMA node of each guest NUMA node.
    """
    return _changed(host, wish, nodes, -1)


def _changed(host: capacity.Host, wish: fitting.GuestDemand,
             nodes: tuple[int, ...], sign: int) -> capacity.Host:
    by_number = {node.number: node for node in host.nodes}
    for guest_node, number in enumerate(nodes):
        by_number[number] = _node(by_number[number], wish, guest_node, sign)
    groups = int(wish.policy.controlled)
    amounts = {**wish.amounts, names.RESCTRL_GROUP: groups}
    used = {**host.root.used, **{
        name: host.root.used.get(name, 0) + sign * amount
        for name, amount in amounts.items()}}
    return replace(
        host, root=replace(host.root, used=used),
        groups=host.groups and replace(
            host.groups, used=host.groups.used + sign * groups),
        nodes=tuple(by_number[node.number] for node in host.nodes))


def _node(node: capacity.Node, wish: fitting.GuestDemand, guest_node: int,
          sign: int) -> capacity.Node:
    counted: Mapping[str, int] = wish.get_node_amounts(guest_node)
    stocks = {
        name: replace(stock, used=stock.used + sign * counted.get(name, 0))
        for name, stock in node.stocks.items()}
    return replace(
        node, stocks=stocks, room=_room(node.room, wish, guest_node, sign),
        bandwidth=stocks.get(names.MEM_BW_PCT),
        bursts=stocks.get(names.MEM_BW_BURST_PCT))


def _room(room: NodeRoom | None, wish: fitting.GuestDemand, guest_node: int,
          sign: int) -> NodeRoom | None:
    if room is None or not wish.needs:
        return room
    need = wish.needs[guest_node]
    return (room.take_guest_node(need, wish.page_size) if sign > 0
            else room.release_guest_node(need, wish.page_size))
