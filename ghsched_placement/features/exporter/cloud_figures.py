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

"""Figures of a cloud's hosts, and how many guests of flavors fit (pure)."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections import Counter
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting


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
class FlavorCapacity:
    """Number of further guests of a flavor that fit into a cloud.

    :param flavor: name of the flavor.
    :param least: number of further guests for which there should be room.
    :param guests: number of further guests that fit now, over all hosts.
    :param hosts: number of hosts on which at least one guest fits.
    :param lacking: number of hosts on which no guest fits, by missing
        resource; a host that lacks several resources is counted for each of
        them.
    """

    flavor: str
    least: int
    guests: int = 0
    hosts: int = 0
    lacking: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Cloud:
    """Hosts of a cloud at one time, and how many guests fit.

    :param hosts: hosts with their inventories and usages.
    :param unavailable: names of hosts that accept no servers now.
    :param flavors: number of further guests that fit, for each watched flavor.
    :param unread: number of hosts that have changed and have not been read
        again yet.
    :param read_at: time of the last refresh, in seconds of the monotonic
        clock; None before the first refresh.
    """

    hosts: tuple[capacity.Host, ...] = ()
    unavailable: frozenset[str] = frozenset()
    flavors: tuple[FlavorCapacity, ...] = ()
    unread: int = 0
    read_at: float | None = None


def list_host_amounts(host: capacity.Host) -> Iterator[Amount]:
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


def _sum_vf_amounts(host: capacity.Host, node: int | None,
                    pfs: Iterable[capacity.Pf]) -> Iterator[Amount]:
    """Yield capacity and usage of the VFs of some PFs, by resource class.

    The VFs of all PFs with the same resource class are added up.

    :param node: host NUMA node of the PFs; None for the whole host.
    """
    found: dict[str, list[capacity.InventoryUsage | None]] = {}
    for pf in pfs:
        found.setdefault(pf.resource_class, []).append(pf.stock)
    for name, stocks in sorted(found.items()):
        yield from _sum_inventories(host, node, name, stocks)


def _sum_inventories(host: capacity.Host, node: int | None, name: str,
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


def count_fitting_guests(flavor: str, wanted_guests: int,
                         verdicts: Iterable[fitting.Verdict]
                         ) -> FlavorCapacity:
    """Return how many further guests of a flavor fit into a cloud.

    The result also counts the hosts that lack a resource, by resource.

    :param flavor: name of the flavor.
    :param wanted_guests: number of guests for which there should be room.
    :param verdicts: for each host, how many guests fit, or why none does.
    """
    found = list(verdicts)
    lacking = Counter(resource for verdict in found if not verdict.guests
                      for resource in {one.resource for one in verdict.lacks})
    return FlavorCapacity(flavor, wanted_guests,
                          sum(one.guests for one in found),
                          sum(one.guests > 0 for one in found), dict(lacking))
