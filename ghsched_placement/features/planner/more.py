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

"""Guests that one more unit of a resource makes room for on full hosts."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from ghsched_placement.features.planner.cloud import ignore_progress
from ghsched_placement.features.planner.cloud import Progress
from ghsched_placement.features.planner import fill
from ghsched_placement.features.planner import limits
from ghsched_placement.features.planner.need import Need
from ghsched_placement.features.planner.offer import Offers
from ghsched_placement.features.planner.state import Slot
from ghsched_placement.features.planner.state import State
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


@dataclass(frozen=True)
class _Change:
    node: int | None
    slot: Slot
    resource: str
    amount: int


def count_additional_guests(
        offers: Offers, need: Need, states: Sequence[State],
        progress: Progress = ignore_progress) -> list[tuple[AdditionalGuests,
                                                            ...]]:
    """Return how many more guests would fit on full hosts with more resources.

    The result shows which resource to add. The planner adds one unit to one
    inventory of a host at a time, for example one VF, or 10 percent of the
    bandwidth of a NUMA node, and counts the guests again.

    :param offers: ways to place a guest on the hosts.
    :param need: resources that each of these guests needs.
    :param states: hosts that are already full of guests.
    :param progress: called with the progress, 0 to 1, and a description.
    :returns: for each host, the added units and how many more guests each
        allows.
    """
    changes = [list(_list_changes(state, need)) for state in states]
    gains: dict[tuple[int, int], int] = {}
    asked = [[place for place, change in enumerate(of_host)
              if _may_help(state, need, change)]
             for state, of_host in zip(states, changes, strict=True)]
    turns = max(map(len, asked), default=0)
    for turn in range(turns):
        progress(turn / turns, f'flavor {need.flavor.name}, one more')
        chosen = {number: places[turn] for number, places
                  in enumerate(asked) if turn < len(places)}
        tried = {
            number: _enlarge_inventory(states[number], changes[number][place])
            for number, place in chosen.items()}
        fill.fill_each_host_with_flavor(offers, need, list(tried.values()))
        for number, place in chosen.items():
            gains[number, place] = (tried[number].guests
                                    - states[number].guests)
    return [tuple(AdditionalGuests(
        change.node, states[number].host.providers[change.slot[0]].name,
        change.resource, change.amount, gains.get((number, place), 0))
        for place, change in enumerate(of_host))
        for number, of_host in enumerate(changes)]


def _enlarge_inventory(state: State, change: _Change) -> State:
    return state.copy_with_added_units({change.slot: change.amount})


def _list_changes(state: State, need: Need) -> Iterator[_Change]:
    host = state.host
    if need.policy.needs_control_group and (
            names.RESCTRL_GROUP in host.root.inventories):
        yield _Change(None, (0, names.RESCTRL_GROUP), lack.GROUPS, 1)
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
            yield _Change(node, (place, name), lack.WORDS[name],
                          _MORE.get(name, 1))
        for name in sorted(classes.intersection(inventories)):
            yield _Change(node, (place, name),
                          need.demand.describe_vfs(name), 1)


def _may_help(state: State, need: Need, change: _Change) -> bool:
    short = limits.list_shortages(state, need)
    if any(one.node is None for one in short):
        return {one.resource for one in short} <= {
            change.resource, lack.COMBINATION}
    return any(one.resource == change.resource and one.node == change.node
               for one in short)
