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

"""Resources that prevent one more guest on a host (pure).

:mod:`ghsched_placement.fit.fitting` finds the missing resources;
:mod:`ghsched_placement.features.planner.more` counts the guests that would fit
with more of them.
"""

from dataclasses import dataclass

from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack
from ghsched_placement.providers import tree


def list_shortages(state: FilledHost, need: FlavorNeed) -> tuple[Lack, ...]:
    """Return the reasons why one more guest does not fit on a host.

    If the host as a whole lacks a resource or a trait, its NUMA nodes are not
    examined.

    :param state: used and free resources of the host.
    :param need: resources that the guest needs.
    """
    host, demand = state.fit_host, need.demand
    missing = (tuple(fitting.find_missing_traits(host, demand))
               or tuple(fitting.find_host_shortages(host, demand)))
    if missing:
        return missing
    found = tuple(one for node in host.nodes if node.number is not None
                  for one in _list_node_shortages(node, demand))
    return found or (fitting.make_combination_reason(host, demand),)


def _list_node_shortages(node: capacity.NodeInventory,
                         demand: GuestDemand) -> list[Lack]:
    """Return the shortages of a host NUMA node for one guest NUMA node.

    Of the guest nodes that do not fit, the one with the fewest shortages is
    taken.

    :returns: shortages; empty if each guest node fits alone.
    """
    found = [[*fitting.find_node_shortages(node, demand, guest_node)]
             for guest_node in range(demand.guest_nodes)]
    return min(filter(None, found), key=len, default=[])


# -- fragmentation ------------------------------------------------------------


def count_unused_nodes(state: FilledHost) -> int:
    """Return the number of NUMA nodes of a host that no guest uses."""
    return sum(node.is_entirely_free
               for node in state.list_free_nodes())


# -- use ----------------------------------------------------------------------


@dataclass(frozen=True)
class InventoryUse:
    """Used and total amount of an inventory before and after a plan.

    :param node: number of the host NUMA node; None for the host as a whole.
    :param resource: name of the resource.
    :param capacity: amount that can be allocated in total.
    :param before: amount in use before the plan.
    :param planned: amount that the guests of the plan use in addition.
    """

    node: int | None
    resource: str
    capacity: int
    before: int
    planned: int


def list_inventory_usage(
        state: FilledHost,
        aliases: dict[str, str]) -> tuple[InventoryUse, ...]:
    """Return the used and total amount of each inventory of a host.

    :param state: used and free resources of the host.
    :param aliases: resource class of the VFs, by PCI alias.
    """
    by_class = {name: alias for alias, name in aliases.items()}
    found: dict[tuple[int | None, str], list[int]] = {}
    for place, provider in enumerate(state.host.providers):
        node = state.host.node_by_provider.get(
            place, state.host.node_by_device_provider.get(place))
        for name in provider.inventories:
            word = lack.WORDS.get(name, name)
            if name in by_class:
                word = f'VFs of {by_class[name]}'
            taken = state.taken.get((place, name), 0)
            before = provider.used.get(name, 0)
            total = found.setdefault((node, word), [0, 0, 0])
            total[0] += tree.compute_free_amount(
                state.get_inventory_record((place, name)), 0)
            total[1] += before
            total[2] += taken
    return tuple(InventoryUse(*key, *total) for key, total in found.items())
