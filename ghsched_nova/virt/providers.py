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

"""Writes the desired providers into Nova's ProviderTree.

Nova's report client compares the tree with its copy of Placement and writes
only the differences, so writing the same values again costs nothing.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Self

from nova import objects

from ghsched_nova.nova_seams import registry
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers import tree

seam = registry.make_seam_decorator(registry.COMPUTE)

#: Provider UUID -> usage by resource class; called only if an inventory
#: shrinks.
Usages = Callable[[str], Mapping[str, int]]

#: Provider UUID and resource class -> amount by consumer; called only if
#: guests share control groups, or guarantees have a step.
Holders = Callable[[str, str], Mapping[str, int]]


def count_offered_control_groups(provider_tree: Any, nodename: str) -> int:
    """Return how many control groups a compute node offers in Placement.

    :param nodename: name of the compute node's provider.
    """
    record = provider_tree.data(nodename).inventory.get(names.RESCTRL_GROUP)
    return int(record['total']) if record else 0


def get_traits_and_classes(provider_tree: Any, nodename: str
                           ) -> tuple[frozenset[str], frozenset[str]]:
    """Return a compute node's traits and the classes of its inventories.

    :param provider_tree: tree that was last reported to Placement; None before
        nova-compute's first report.
    :param nodename: name of the compute node's provider.
    :returns: empty sets if the tree does not have the compute node.
    """
    if provider_tree is None or not provider_tree.exists(nodename):
        return frozenset(), frozenset()
    found = provider_tree.data(nodename)
    return frozenset(found.traits), frozenset(found.inventory)


def update_inventories(provider_tree: Any, nodename: str,
                       host: HostDescription, config: tree.Config,
                       groups_before: int, usages: Usages,
                       holders: Holders) -> tuple[tree.WantedProvider, ...]:
    """Write a host's bandwidth and control groups to Nova's provider tree.

    :param provider_tree: tree of Nova's libvirt driver; changed in place.
    :param nodename: name of the compute node's provider.
    :param config: ghsched's configuration of the providers.
    :param groups_before: number of control groups in the last report, which
        the libvirt driver has just removed from the tree.
    :param usages: function that returns the used amounts of a provider.
    :param holders: function that returns the allocated amounts by consumer.
    :returns: the written providers, the compute node first.
    """
    root_uuid = provider_tree.data(nodename).uuid
    current = {}
    if host.sharing:
        units = holders(root_uuid, names.RESCTRL_GROUP)
        current[root_uuid] = tree.CurrentInventory(
            total=groups_before, used=sum(units.values()),
            holders=frozenset(units))
    elif groups_before > host.control_groups:
        current[root_uuid] = tree.CurrentInventory(
            total=groups_before,
            used=usages(root_uuid).get(names.RESCTRL_GROUP, 0))
    current.update(_find_current_bandwidth(provider_tree, root_uuid, host,
                                           config, usages, holders))
    shrinking = _find_shrinking_resources(provider_tree, root_uuid, host,
                                          config, usages)
    wanted = tree.build_providers(root_uuid, nodename, host, config, current,
                                  shrinking)
    for provider in wanted:
        _put_provider(provider_tree, provider)
    _put_group_resources(provider_tree, wanted[0])
    _remove_providers_of_lost_nodes(provider_tree, wanted, usages)
    return wanted


def _get_inventory(provider_tree: Any, uuid: str) -> Mapping[str, Any]:
    """Return a provider's inventory; empty if there is no such provider."""
    return (provider_tree.data(uuid).inventory
            if provider_tree.exists(uuid) else {})


def _get_foreign_inventory(data: Any) -> dict[str, Any]:
    """Return the part of a provider's inventory that is not of ghsched."""
    return {name: record for name, record in data.inventory.items()
            if name not in names.OUR_CLASSES}


def _find_current_bandwidth(
        provider_tree: Any, root_uuid: str, host: HostDescription,
        config: tree.Config, usages: Usages,
        holders: Holders) -> Iterator[tuple[str, tree.CurrentInventory]]:
    """Yield present amounts that limit the bandwidth inventory of NUMA nodes.

    These are total and used bandwidth if the host can no longer limit the
    bandwidth of guests on the node, the allocated guarantees if it may have to
    round them up, and the used bandwidth if it will offer less than now.
    Placement is asked for nothing else.

    :param usages: function that returns the used amounts of a provider.
    :param holders: function that returns the allocated amounts by consumer.
    :returns: iterator of pairs of the UUID of a NUMA provider and its amounts.
    """
    least = host.round_up_guarantee(1)
    for node in {*host.nodes, *host.numa_nodes}:
        uuid = names.make_numa_provider_uuid(root_uuid, node)
        record = _get_inventory(provider_tree, uuid).get(names.MEM_BW_PCT)
        if not record:
            continue
        if node not in host.nodes:
            yield uuid, tree.CurrentInventory(
                total=int(record['total']),
                used=usages(uuid).get(names.MEM_BW_PCT, 0))
            continue
        found = tree.CurrentInventory()
        # With the step and the minimum of the host, Placement refuses
        # guarantees between two steps.
        if not host.has_uniform_guarantee_steps or least != 1 and (
                record['step_size'], record['min_unit']) != (
                    host.guarantee_step, least):
            found = tree.CurrentInventory(amounts=tuple(sorted(
                holders(uuid, names.MEM_BW_PCT).values())))
        offered = tree.make_bandwidth_inventory(node, host, config, found)
        if (tree.compute_free_amount(record, 0)
                > tree.compute_free_amount(offered, 0)):
            found = dataclasses.replace(
                found, used=usages(uuid).get(names.MEM_BW_PCT, 0))
        yield uuid, found


def _find_shrinking_resources(
        provider_tree: Any, root_uuid: str, host: HostDescription,
        config: tree.Config,
        usages: Usages) -> Mapping[tuple[str, str], tree.CurrentInventory]:
    """Return the resources of which a host will offer less than now.

    :param usages: function that returns the used amounts of a provider.
    :returns: current total and usage, by provider UUID and resource class.
    """
    found = {}
    for node in {*host.nodes, *host.numa_nodes}:
        uuid = names.make_numa_provider_uuid(root_uuid, node)
        inventory = _get_inventory(provider_tree, uuid)
        offered = {name: amount for name, (amount, _least)
                   in tree.get_offered_amounts(host, node).items()}
        offered[names.MEM_BW_BURST_PCT] = tree.get_promisable_burst_percent(
            node, host, config)
        for name, amount in offered.items():
            record = inventory.get(name)
            if record and max(record['total'],
                              tree.compute_free_amount(record, 0)) > amount:
                found[uuid, name] = tree.CurrentInventory(
                    total=int(record['total']),
                    used=usages(uuid).get(name, 0))
    return found


def _put_provider(provider_tree: Any, provider: tree.WantedProvider) -> None:
    if not provider_tree.exists(provider.uuid):
        provider_tree.new_child(provider.name, provider.parent_uuid,
                                uuid=provider.uuid)
    data = provider_tree.data(provider.uuid)
    others = _get_foreign_inventory(data)
    provider_tree.update_inventory(
        provider.uuid, {**others, **provider.inventories})
    gone = {trait for trait in data.traits - provider.traits
            if names.is_ghsched_trait(trait)}
    if gone:
        provider_tree.remove_traits(provider.uuid, *sorted(gone))
    if provider.traits:
        provider_tree.add_traits(provider.uuid, *sorted(provider.traits))


class ResourceSet(set[Any]):
    """Set of Nova's ``Resource`` objects; a deep copy shares the objects.

    Nova's ProviderTree copies all resources of a provider whenever the
    provider is read, ten times per report, and changes no ``Resource``.
    """

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return type(self)(self)


@seam('nova.compute.provider_tree.ProviderTree.update_resources',
      ('self', 'name_or_uuid', 'resources'))
def _put_group_resources(provider_tree: Any,
                         root: tree.WantedProvider) -> None:
    """Add a named resource for each control group to Nova's provider tree.

    From these ``Resource`` objects, Nova's resource tracker assigns a control
    group to each guest, as it does for virtual persistent memory.

    :param root: provider of the compute node, with the number of groups.
    """
    resources = dict(provider_tree.data(root.uuid).resources)
    record = root.inventories.get(names.RESCTRL_GROUP)
    resources.pop(names.RESCTRL_GROUP, None)
    if record is not None:
        resources[names.RESCTRL_GROUP] = ResourceSet(
            objects.Resource(provider_uuid=root.uuid,
                             resource_class=names.RESCTRL_GROUP,
                             identifier=names.make_control_group_name(number))
            for number in range(1, int(record['total']) + 1))
    provider_tree.update_resources(root.uuid, resources)


def _remove_providers_of_lost_nodes(
        provider_tree: Any, current: Sequence[tree.WantedProvider],
        usages: Usages) -> None:
    """Remove the providers of NUMA nodes that a host no longer has.

    A provider that guests still use is kept, but its whole inventory is
    reserved.

    :param current: providers of the compute node and of its current NUMA
        nodes, the compute node first.
    :param usages: function that returns the used amounts of a provider.
    """
    kept = {provider.uuid for provider in current}
    for uuid in provider_tree.get_provider_uuids(current[0].uuid):
        if uuid in kept:
            continue
        data = provider_tree.data(uuid)
        if names.NUMA_NODE_TRAIT not in data.traits:
            continue
        used = {name: amount for name, amount in usages(uuid).items()
                if amount and name in names.OUR_CLASSES}
        if used:
            _put_provider(provider_tree, _reserve_inventory(data, used))
        else:
            _remove_provider(provider_tree, data)


def _reserve_inventory(data: Any,
                       used: Mapping[str, int]) -> tree.WantedProvider:
    totals = {name: int(data.inventory.get(name, {'total': amount})['total'])
              for name, amount in used.items()}
    return tree.WantedProvider(
        uuid=data.uuid, name=data.name, parent_uuid=data.parent_uuid,
        traits=frozenset({names.NUMA_NODE_TRAIT, names.NUMA_ROOT_TRAIT,
                          names.OWNER_TRAIT}),
        inventories={name: tree.make_closed_inventory(
            tree.CurrentInventory(total=totals[name], used=amount))
            for name, amount in used.items()})


def _remove_provider(provider_tree: Any, data: Any) -> None:
    """Remove a NUMA node's provider from Nova's provider tree.

    If other software uses the provider, only ghsched's inventories are
    removed.

    :param data: the provider in the tree.
    """
    others = _get_foreign_inventory(data)
    if others or len(provider_tree.get_provider_uuids(data.uuid)) > 1:
        provider_tree.update_inventory(data.uuid, others)
        provider_tree.remove_traits(data.uuid, names.NUMA_NODE_TRAIT)
    else:
        provider_tree.remove(data.uuid)
