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

"""Columns and texts for resources of NUMA nodes other than bandwidth."""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from ghsched_placement.fit import capacity
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH

#: All but bandwidth.
BESIDE = tuple(BESIDE_BANDWIDTH.values())

#: Classes that have no columns of their own kind.
PLAIN = tuple(resource for resource in BESIDE if resource.offer)

_FIGURES = ('Total', 'Used', 'Free')


#: Columns of :func:`yield_l3_and_cpu_amounts`.
COLUMNS = tuple(one.make_column_heading(figure) for one in PLAIN
                for figure in _FIGURES)


def yield_l3_and_cpu_amounts(node: capacity.NodeInventory
                             ) -> Iterator[int | None]:
    """Yield the amounts of L3 cache ways and real-time CPU of a host node.

    First come the total, used and free L3 cache ways, then the total, used and
    free real-time CPU. The amounts of a resource class that the node does not
    have are None.
    """
    for one in PLAIN:
        stock = node.stocks.get(one.name)
        yield from ((None,) * len(_FIGURES) if stock is None else
                    (stock.total, stock.used, stock.free))


def make_node_report(node: capacity.NodeInventory) -> dict[str, Any]:
    """Return L3 cache ways and real-time CPU time of a host node, for JSON.

    The value of a resource class that the node does not have is None.
    """
    return {one.field: None if stock is None else {
        'total': stock.total, 'reserved': stock.reserved, 'used': stock.used,
        'free': stock.free} for one in PLAIN
        for stock in (node.stocks.get(one.name),)}


def describe_used_amounts(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts with the used L3 cache and real-time CPU time of a node.

    :param report: amounts of the node, from :func:`make_node_report`.
    """
    for one in PLAIN:
        if report[one.field]:
            yield (f'{report[one.field]["used"]} of '
                   f'{report[one.field]["total"]} {one.word} used')


def describe_guest_allocations(
        allocations: Mapping[int, Mapping[str, int]]) -> str:
    """Return a text with a guest's allocations on each host NUMA node.

    The text does not include bandwidth.

    :param allocations: amount by JSON field name, by host NUMA node.
    """
    words = {one.field: one.word for one in BESIDE}
    return ''.join(f', {amount} {words[field]} on node {node}'
                   for node, amounts in allocations.items()
                   for field, amount in amounts.items())


def sum_allocations_by_node(
        host: capacity.HostInventory,
        allocations: Mapping[str, Mapping[str,
                                          int]]) -> dict[int, dict[str, int]]:
    """Return the amounts that a consumer has allocated from host NUMA nodes.

    The amounts are burst bandwidth, L3 cache ways and real-time CPU.
    Guaranteed or capped bandwidth is left out.

    :param allocations: amount by resource class, by provider UUID.
    :returns: amount by JSON field name, by host NUMA node.
    """
    found: dict[int, dict[str, int]] = {}
    for node in host.nodes:
        amounts = allocations.get(node.uuid, {})
        mine = {one.field: amounts[one.name] for one in BESIDE
                if amounts.get(one.name)}
        if mine and node.number is not None:
            found[node.number] = mine
    return found
