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

It is read off what Placement has left, and what Nova has by NUMA node: a
resource of which less is free than the guest needs. What one more of it would
buy, :mod:`ghsched_placement.features.planner.more` tries.
"""

from collections.abc import Iterator
from collections import Counter
from dataclasses import dataclass

from ghsched_placement.features.planner.need import Need
from ghsched_placement.features.planner.state import State
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers import names
from ghsched_placement.providers import tree


def list_shortages(state: State, need: Need) -> tuple[Lack, ...]:
    """Return the reasons why one more guest does not fit on a host.

    If the host as a whole lacks a resource or a trait, its NUMA nodes are not
    examined.

    :param state: used and free resources of the host.
    :param need: resources that the guest needs.
    """
    need = need.adapt_to_host(state.host.root)
    missing = tuple(_yield_trait_lacks(state, need)) or tuple(
        yield_host_shortages(state, need))
    if missing:
        return missing
    found = tuple(one for node in _list_nodes(state)
                  for one in list_node_shortages(state, need, node))
    return found or (Lack(None, lack.COMBINATION),)


def _yield_trait_lacks(state: State, need: Need) -> Iterator[Lack]:
    asked = dict(need.make_planner_query('any', {})).get('root_required', '')
    traits = set(filter(None, asked.split(',')))
    forbidden = {trait for trait in traits if trait.startswith('!')}
    traits -= {names.CAPABILITY_TRAITS[BESIDE_BANDWIDTH[name].capability]
               for name in state.host.unstated}
    return lack.find_trait_mismatches(state.host.root.traits,
                                      traits - forbidden,
                                      (trait[1:] for trait in forbidden))


def yield_host_shortages(state: State, need: Need) -> Iterator[Lack]:
    """Yield each resource that a host has too little of for a guest.

    Only resources of the whole host are checked, not those of a NUMA node, and
    the number of its NUMA nodes.
    """
    needed = []
    for name, amount in need.root_provider_amounts.items():
        most = (int(state.get_inventory_record((0, name))['max_unit'])
                if name in state.host.root.inventories else None)
        needed.append((lack.WORDS.get(name, name), amount,
                       state.get_free_amount((0, name)), most))
    if need.policy.vfs_locality != 'node':
        counts: Counter[str] = Counter()
        for (_node, name), count in need.vf_counts.items():
            counts[name] += count
        needed += [(describe_vfs(need, name), count,
                    sum(state.get_free_amount((place, name))
                        for place in state.host.node_by_device_provider),
                    None) for name, count in counts.items()]
    for item in needed:
        found = lack.find_resource_shortage(*item)
        if found:
            yield found
    too_few = lack.find_node_count_shortage(len(_list_nodes(state)),
                                            len(need.guest.cells))
    if too_few:
        yield too_few


def _list_nodes(state: State) -> list[int]:
    return sorted({*state.host.node_by_provider.values(),
                   *(cell.node for cell in state.host.cells)})


def list_node_shortages(state: State, need: Need, node: int) -> list[Lack]:
    """Return what a host NUMA node has too little of for guest NUMA nodes.

    The shortages are those of a single guest node: of the guest nodes that do
    not fit, the one that lacks the fewest resources.

    :param node: number of the host NUMA node.
    :returns: empty if each guest node fits.
    """
    found = [list_guest_node_shortages(state, need, guest_node, node)
             for guest_node in range(len(need.guest.cells))]
    return min(filter(None, found), key=len, default=[])


def list_guest_node_shortages(state: State, need: Need, guest_node: int,
                              node: int) -> list[Lack]:
    """Return what a host NUMA node has too little of for a guest NUMA node.

    :param guest_node: number of the guest NUMA node.
    :param node: number of the host NUMA node.
    """
    amounts = need.node_amounts.get(guest_node, {})
    unstated = [lack.make_unstated_reason(name, amounts[name], key, node)
                for name, key in state.host.unstated.items()
                if name in amounts]
    if unstated:
        return unstated
    needed: list[tuple[str, int, int, int | None]] = [
        (lack.WORDS[name], amount, get_free_amount(state, node, name),
         _get_max_allocation_of_node(state, node, name))
        for name, amount in amounts.items()]
    if need.policy.vfs_locality == 'node':
        needed += [(describe_vfs(need, name), count,
                    count_free_vfs(state, node, name), None)
                   for (owner, name), count in need.vf_counts.items()
                   if owner == guest_node]
    needed += state.find_shortages(node, need.guest.needs[guest_node],
                                   need.guest.page_size)
    found = (lack.find_resource_shortage(*item, node=node) for item in needed)
    return [one for one in found if one]


def describe_vfs(need: Need, resource_class: str) -> str:
    aliases = {vfs.alias for vfs in need.policy.vfs
               if need.aliases[vfs.alias] == resource_class}
    return f'VFs of {" and ".join(sorted(aliases))}'


def get_free_amount(state: State, node: int, resource_class: str) -> int:
    """Return how much of a resource class is free on a host NUMA node."""
    return sum(state.get_free_amount((place, resource_class))
               for place, number in state.host.node_by_provider.items()
               if number == node)


def _get_max_allocation_of_node(
        state: State, node: int, resource_class: str) -> int | None:
    """Return the largest amount that one allocation can get from a host node.

    This is the largest ``max_unit`` of the inventories of the resource class.

    :param node: number of the host NUMA node.
    :returns: None if the host node has no inventory of the resource class.
    """
    return max(
        (int(state.get_inventory_record((place, resource_class))['max_unit'])
         for place, number in state.host.node_by_provider.items()
         if number == node
         and resource_class in state.host.providers[place].inventories),
        default=None)


def count_free_vfs(state: State, node: int, resource_class: str) -> int:
    return sum(state.get_free_amount((place, resource_class))
               for place, number in state.host.node_by_device_provider.items()
               if number == node)


# -- fragmentation ------------------------------------------------------------


def count_unused_nodes(state: State) -> int:
    """Return the number of NUMA nodes of a host that no guest uses."""
    return sum(node.is_entirely_free
               for node in state.list_free_nodes())


def count_guests_without_numa_limits(state: State, need: Need) -> int:
    """Return how many guests would fit if a host had only a single NUMA node.

    The number of guests that really fit is lower if the host is fragmented.

    :param state: used and free resources of the host.
    """
    need = need.adapt_to_host(state.host.root)
    if any(_yield_trait_lacks(state, need)):
        return 0
    rooms = [state.get_free_amount((0, name)) // amount
             for name, amount in need.root_provider_amounts.items() if amount]
    rooms += [
        sum(get_free_amount(state, node, name) for node in _list_nodes(state))
        // amount for name, amount in _sum_needs_of_guest_nodes(need).items()]
    counts: dict[str, int] = {}
    for (_node, name), count in need.vf_counts.items():
        counts[name] = counts.get(name, 0) + count
    rooms += [sum(state.get_free_amount((place, name))
                  for place in state.host.node_by_device_provider) // count
              for name, count in counts.items()]
    return min(rooms)


def _sum_needs_of_guest_nodes(need: Need) -> Counter[str]:
    """Return the sum of what all NUMA nodes of a guest need, without VFs.

    :returns: amount by resource class.
    """
    found: Counter[str] = Counter()
    for amounts in need.node_amounts.values():
        found.update(amounts)
    return found


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
        state: State, aliases: dict[str, str]) -> tuple[InventoryUse, ...]:
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
