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

from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.providers import names


def copy_with_guest(host: capacity.Host, demand: fitting.GuestDemand,
                    nodes: tuple[int, ...]) -> capacity.Host:
    """Return a copy of a host with the resources of one more guest in use.

    :param demand: resources that the guest takes.
    :param nodes: host NUMA node of each guest NUMA node.
    """
    return _change_host_usage(host, demand, nodes, 1)


def copy_without_guest(host: capacity.Host, demand: fitting.GuestDemand,
                       nodes: tuple[int, ...]) -> capacity.Host:
    """Return a copy of a host with the resources of one guest freed.

    :param demand: resources that the guest has.
    :param nodes: host NUMA node of each guest NUMA node.
    """
    return _change_host_usage(host, demand, nodes, -1)


def _change_host_usage(host: capacity.Host, demand: fitting.GuestDemand,
                       nodes: tuple[int, ...], sign: int) -> capacity.Host:
    by_number = {node.number: node for node in host.nodes}
    for guest_node, number in enumerate(nodes):
        by_number[number] = _change_node_usage(by_number[number], demand,
                                               guest_node, sign)
    groups = int(demand.policy.needs_control_group)
    amounts = {**demand.get_root_amounts(host), names.RESCTRL_GROUP: groups}
    used = {**host.root.used, **{
        name: host.root.used.get(name, 0) + sign * amount
        for name, amount in amounts.items()}}
    return replace(
        host, root=replace(host.root, used=used),
        groups=host.groups and replace(
            host.groups, used=host.groups.used + sign * groups),
        nodes=tuple(by_number[node.number] for node in host.nodes))


def _change_node_usage(node: capacity.Node, demand: fitting.GuestDemand,
                       guest_node: int, sign: int) -> capacity.Node:
    counted: Mapping[str, int] = demand.get_node_amounts(guest_node)
    stocks = {
        name: replace(stock, used=stock.used + sign * counted.get(name, 0))
        for name, stock in node.stocks.items()}
    return replace(
        node, stocks=stocks,
        room=_change_capacity_usage(node.room, demand, guest_node, sign),
        bandwidth=stocks.get(names.MEM_BW_PCT),
        bursts=stocks.get(names.MEM_BW_BURST_PCT))


def _change_capacity_usage(capacity_of_node: NodeCapacity | None,
                           demand: fitting.GuestDemand, guest_node: int,
                           sign: int) -> NodeCapacity | None:
    if capacity_of_node is None or not demand.needs:
        return capacity_of_node
    need = demand.needs[guest_node]
    return (capacity_of_node.subtract_guest_node(need, demand.page_size)
            if sign > 0
            else capacity_of_node.release_guest_node(need, demand.page_size))
