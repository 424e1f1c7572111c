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

"""Number of guests that fit on full hosts with one more unit of a resource."""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.planner.state import Slot
from ghsched_placement.fit import fitting
from ghsched_placement.fit import lack
from ghsched_placement.providers import names

#: Percent of bandwidth that is added to a node.
POINTS = 10

#: Amount that is added to a node, by resource class; 1 for all other classes.
_MORE = {names.MEM_BW_PCT: POINTS, names.MEM_BW_BURST_PCT: POINTS}


@dataclass(frozen=True)
class AdditionalGuests:
    """Number of further guests that fit if a host has more of one resource.

    :param node: number of the host NUMA node; None for the host as a whole.
    :param provider: name of the resource provider to which the amount is
        added.
    :param resource: name of the resource.
    :param amount: added amount.
    :param guests: number of further guests that fit with the added amount.
    """

    node: int | None
    provider: str
    resource: str
    amount: int
    guests: int


def count_additional_guests(
        state: FilledHost, need: FlavorNeed) -> tuple[AdditionalGuests, ...]:
    """Count the further guests that fit on a full host with more resources.

    One unit is added to one inventory of the host at a time, for example one
    VF, or 10 percent of the bandwidth of a NUMA node. The result has an item
    for each inventory.

    :param state: host that is already full of guests.
    :param need: resources that each of these guests needs.
    """
    demands = [one.demand for one in (need, *need.larger)]
    found = []
    for node, slot, resource in _yield_inventories(state, need):
        amount = _MORE.get(slot[1], 1)
        found.append(AdditionalGuests(
            node, state.host.providers[slot[0]].name, resource, amount,
            fitting.count_guests(state.make_fit_host({slot: amount}),
                                 demands).guests))
    return tuple(found)


def _yield_inventories(state: FilledHost, need: FlavorNeed
                       ) -> Iterator[tuple[int | None, Slot, str]]:
    """Yield the inventories of a host from which guests allocate resources.

    Each item has the number of the host NUMA node (None for the whole host),
    the inventory, and the displayed name of the resource.
    """
    host = state.host
    if need.policy.needs_control_group and (
            names.RESCTRL_GROUP in host.root.inventories):
        yield None, (0, names.RESCTRL_GROUP), lack.GROUPS
    nodes: Mapping[int, int | None] = {
        **host.node_by_provider, **host.node_by_device_provider}
    classes = {name for _node, name in need.vf_counts}
    counted = {
        name for node in range(need.demand.guest_nodes)
        for name in need.demand.get_node_amounts(node)}
    for place, node in sorted(nodes.items(),
                              key=lambda item: (str(item[1]), item[0])):
        inventories = host.providers[place].inventories
        for name in sorted(counted.intersection(inventories)):
            yield node, (place, name), lack.WORDS[name]
        for name in sorted(classes.intersection(inventories)):
            yield node, (place, name), need.demand.describe_vfs(name)
