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

"""Hosts of a capacity plan, with their resource providers (pure)."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from typing import Any

from ghsched_placement.fit import capacity
from ghsched_placement.fit.capacity import Provider
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.query import candidates


@dataclass(frozen=True)
class PlannedHost:
    """Compute host with its resource providers, for the planner.

    :param providers: the provider of the compute node first, and every other
        provider after its parent.
    :param cells: CPUs and memory of the host's NUMA nodes, in ascending order
        of the nodes; empty if unknown.
    :param unstated: key of the host file that would give the amount of a
        resource class, for each class that the file does not give.
    :param shows_device_cells: whether guests see NUMA nodes without CPUs for
        their devices.
    """

    name: str
    providers: tuple[Provider, ...]
    cells: tuple[NodeCapacity, ...] = ()
    unstated: Mapping[str, str] = field(default_factory=dict)
    shows_device_cells: bool = False

    @property
    def root(self) -> Provider:
        return self.providers[0]

    @cached_property
    def node_by_provider(self) -> dict[int, int]:
        """Number of each host NUMA node, by index of its resource provider.
        """
        return {
            place: number for place, provider in enumerate(self.providers)
            if (number := _get_node_number(self.root, provider)) is not None}

    @cached_property
    def node_by_device_provider(self) -> dict[int, int | None]:
        """Host NUMA node of each device provider, by index of the provider.

        A device provider is, for example, a PF. The value is None if the
        provider belongs to no NUMA node.
        """
        nodes = self.node_by_provider
        return {place: nodes.get(above)
                for place, above in self.parent_by_provider.items()
                if place not in nodes}

    @cached_property
    def parent_by_provider(self) -> dict[int, int]:
        """Index of each resource provider's parent, by index of the provider.

        The root provider has no entry.
        """
        places = {provider.uuid: place
                  for place, provider in enumerate(self.providers)}
        return {place: places[provider.parent]
                for place, provider in enumerate(self.providers)
                if provider.parent}

    @property
    def nearest_node_with_cpus(self) -> dict[int, int]:
        """Nearest NUMA node with CPUs, by host NUMA node without CPUs.

        In Placement, the provider of a node without CPUs is below the provider
        of the nearest node with CPUs.
        """
        nodes = self.node_by_provider
        return {node: nodes[above] for place, node in nodes.items()
                if (above := self.parent_by_provider.get(place)) in nodes}

    @property
    def socket_by_node(self) -> dict[int, int | None]:
        """Socket number of each host NUMA node; None if unknown."""
        return {cell.node: cell.socket for cell in self.cells}

    def make_ranking_input(
            self, get_uuid: Callable[[int], str]) -> candidates.HostProviders:
        """Convert the host to the input for ranking allocation candidates.

        The input has the NUMA node of each provider and the socket of each
        NUMA node.

        :param get_uuid: function that returns a provider's UUID by its index.
        """
        return candidates.HostProviders(
            node_of_numa={
                get_uuid(place): node
                for place, node in self.node_by_provider.items()}, node_of_pf={
                    get_uuid(place): node
                    for place, node in self.node_by_device_provider.items()},
            socket_of=self.socket_by_node, nearest=self.nearest_node_with_cpus,
            shows_device_cells=self.shows_device_cells)

    def make_comparison_key(self) -> Any:
        """Return a key that is equal for hosts with equal resources.

        The key contains inventories, usages and traits of the providers, but
        no names.
        """
        return (self.cells, self.shows_device_cells,
                _make_provider_key(self, self.root))


@dataclass(frozen=True)
class EqualHosts:
    """Hosts that have equal inventories, usages and traits.

    :param host: one of the hosts.
    :param names: names of all hosts of the group, in the order of the hosts.
    """

    host: PlannedHost
    names: tuple[str, ...]


def group_equal_hosts(hosts: Iterable[PlannedHost]) -> tuple[EqualHosts, ...]:
    """Group hosts with equal inventories, usages and traits.

    The planner needs to examine only one host of each group.
    """
    groups: dict[Any, list[PlannedHost]] = {}
    for host in hosts:
        groups.setdefault(host.make_comparison_key(), []).append(host)
    return tuple(EqualHosts(members[0], tuple(host.name for host in members))
                 for members in groups.values())


def sort_providers_parents_first(
        providers: Sequence[Provider], root: str) -> tuple[Provider, ...]:
    """Sort a host's resource providers so that each follows its parent.

    :param root: UUID of the root provider.
    """
    found = [provider for provider in providers if provider.uuid == root]
    for parent in found:
        found.extend(sorted((one for one in providers
                             if one.parent == parent.uuid),
                            key=lambda one: one.name))
    return tuple(found)


def _get_node_number(root: Provider, provider: Provider) -> int | None:
    return capacity.parse_numa_node_number(root.uuid, provider.uuid,
                                           provider.name)


def _make_provider_key(host: PlannedHost, provider: Provider) -> Any:
    below = sorted((_make_provider_key(host, one) for one in host.providers
                    if one.parent == provider.uuid), key=repr)
    return (_get_node_number(host.root, provider),
            tuple(sorted((name, tuple(sorted(record.items())))
                         for name, record in provider.inventories.items())),
            tuple(sorted((name, used) for name, used
                         in provider.used.items() if used)),
            tuple(sorted(provider.traits)), tuple(below))
