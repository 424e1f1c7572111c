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

"""Capacity and usage of a cloud's hosts, as input of metrics (pure)."""

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass

from ghsched_placement.features.planner.flavor_counts import FlavorCapacity
from ghsched_placement.fit import capacity


@dataclass(frozen=True)
class Amount:
    """Inventory of one resource class on a host, or on one of its NUMA nodes.

    :param host: name of the host.
    :param node: number of the host NUMA node; None for the host as a whole.
    :param capacity: amount that can be allocated in total.
    :param allocated: amount that is allocated in Placement.
    :param free: amount that can still be allocated.
    """

    host: str
    node: int | None
    resource_class: str
    capacity: int
    allocated: int
    free: int


@dataclass(frozen=True)
class CloudFigures:
    """Hosts of a cloud at one time, and how many guests fit.

    :param hosts: hosts with their inventories and usages.
    :param unavailable: names of hosts that accept no servers now.
    :param flavors: number of further guests that fit, for each watched flavor.
    :param unread: number of hosts that have changed and have not been read
        again yet.
    :param read_at: time of the last refresh, in seconds of the monotonic
        clock; None before the first refresh.
    """

    hosts: tuple[capacity.HostInventory, ...] = ()
    unavailable: frozenset[str] = frozenset()
    flavors: tuple[FlavorCapacity, ...] = ()
    unread: int = 0
    read_at: float | None = None


def list_host_amounts(host: capacity.HostInventory) -> Iterator[Amount]:
    """Yield capacity and usage of each resource class of a host and its nodes.
    """
    for name in sorted(host.root.inventories):
        yield from _sum_inventories(host, None, name,
                                    [host.root.get_inventory(name)])
    for node in host.nodes:
        for name, stock in sorted(node.stocks.items()):
            yield from _sum_inventories(host, node.number, name, [stock])
        yield from _sum_vf_amounts(host, node.number, node.pfs)
    yield from _sum_vf_amounts(host, None, host.elsewhere)


def _sum_vf_amounts(host: capacity.HostInventory, node: int | None,
                    pfs: Iterable[capacity.PfInventory]) -> Iterator[Amount]:
    """Yield capacity and usage of the VFs of some PFs, by resource class.

    The VFs of all PFs with the same resource class are added up.

    :param node: host NUMA node of the PFs; None for the whole host.
    """
    found: dict[str, list[capacity.InventoryUsage | None]] = {}
    for pf in pfs:
        found.setdefault(pf.resource_class, []).append(pf.stock)
    for name, stocks in sorted(found.items()):
        yield from _sum_inventories(host, node, name, stocks)


def _sum_inventories(host: capacity.HostInventory, node: int | None, name: str,
                     stocks: Iterable[capacity.InventoryUsage | None]
                     ) -> Iterator[Amount]:
    """Yield capacity and usage of one resource class, summed over inventories.

    Nothing is yielded if none of the inventories exists.

    :param node: host NUMA node of the inventories; None for the whole host.
    :param name: resource class.
    :param stocks: inventories of the class; None for one that does not exist.
    """
    there = [stock for stock in stocks if stock is not None]
    if there:
        yield Amount(host.name, node, name,
                     sum(stock.capacity for stock in there),
                     sum(stock.used for stock in there),
                     sum(max(0, stock.free) for stock in there))
