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

"""Resources that hosts of a cloud have in all, for the words of a refusal.

That nothing is *left* is true only where there once was enough. Placement's
answers about free amounts do not say which: its provider summaries do.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import NamedTuple

import os_traits

from ghsched_placement.providers import names
from ghsched_placement.providers.placement_client import PlacementClient

#: Number of hosts whose totals are read at most.
MAX_HOSTS = 100


class Stock(NamedTuple):
    """Amount of a resource class that a provider has in all, and its usage."""

    capacity: int
    used: int


@dataclass(frozen=True)
class HostTotals:
    """Inventories of a host, by resource class.

    :param root: inventories of the compute node's own provider.
    :param nodes: inventories of each host NUMA node.
    """

    root: Mapping[str, Stock] = field(default_factory=dict)
    nodes: tuple[Mapping[str, Stock], ...] = ()


@dataclass(frozen=True)
class CloudTotals:
    """Inventories of hosts of a cloud.

    :param is_complete: whether these are all hosts of the cloud.
    """

    hosts: tuple[HostTotals, ...] = ()
    is_complete: bool = False

    def describe_root_shortage(self, resource_class: str, needed: int,
                               what: str) -> str:
        """Return a clause that no host has an amount of a resource.

        :param what: the amount in words, such as "3 vCPUs".
        """
        return self._describe('no host', [
            host.root[resource_class] for host in self.hosts
            if resource_class in host.root], needed, what)

    def find_most_on_root(self, resource_class: str) -> int | None:
        """Return the largest amount of a resource that a host has in all.

        :returns: None if not all hosts of the cloud are known.
        """
        return max((host.root[resource_class].capacity for host in self.hosts
                    if resource_class in host.root),
                   default=0) if self.is_complete else None

    def describe_node_shortage(self, resource_class: str, needed: int,
                               what: str) -> str:
        """Return a clause that no host NUMA node has an amount of a resource.

        :param what: the amount in words, such as "60 % of its memory
            bandwidth".
        """
        return self._describe('no host NUMA node', [
            node[resource_class] for host in self.hosts for node in host.nodes
            if resource_class in node], needed, what)

    def _describe(self, subject: str, stocks: Iterable[Stock], needed: int,
                  what: str) -> str:
        found = list(stocks)
        if any(one.capacity - one.used >= needed for one in found):
            # Placement refuses an amount that is free: by max_unit or others.
            return f'{subject} gives one guest {what}'
        if any(one.capacity >= needed for one in found):
            return f'{subject} has {what} left'
        word = 'in all' if self.is_complete else 'free'
        return f'{subject} has {what} {word}'

    def lacks_hosts_with_nodes(self, count: int) -> bool:
        """Whether no host of the cloud has as many NUMA nodes."""
        return self.is_complete and all(
            len(host.nodes) < count for host in self.hosts)

    def describe_nodes_shortage(self, resource_class: str,
                                needed: Sequence[int], what: str) -> str:
        """Return a clause that no host has enough NUMA nodes for a guest.

        :param needed: amount that each guest NUMA node needs.
        :param what: the resource in words.
        """
        count = len(needed)
        if self.lacks_hosts_with_nodes(count):
            return f'no host has {count} NUMA nodes'
        once = any(can_fit_on_separate_nodes(needed, sorted((
            node[resource_class].capacity for node in host.nodes
            if resource_class in node), reverse=True)) for host in self.hosts)
        word = ('left' if once else
                'in all' if self.is_complete else 'free')
        return f'no host has {count} NUMA nodes with enough {what} {word}'


def can_fit_on_separate_nodes(counts: Iterable[int],
                              free_amounts: Sequence[int]) -> bool:
    """Whether each amount fits on a host NUMA node of its own.

    :param counts: amounts that the guest NUMA nodes need.
    :param free_amounts: free amount of each host NUMA node, the largest first.
    """
    needed = sorted(counts, reverse=True)
    return len(needed) <= len(free_amounts) and all(
        count <= node for count,
        node in zip(needed, free_amounts, strict=False))


def read_cloud_totals(client: PlacementClient) -> CloudTotals:
    """Return what hosts of the cloud have in all, free or not.

    Of a large cloud, only some hosts are read.

    :raises PlacementError: when Placement refuses or does not answer.
    """
    found = client.get_allocation_candidates([('resources', 'MEMORY_MB:1')],
                                             MAX_HOSTS + 1)
    known = (client.count_providers_with_trait(os_traits.COMPUTE_NODE)
             if len(found['allocation_requests']) <= MAX_HOSTS else 0)
    return parse_provider_summaries(found['provider_summaries'], known)


def parse_provider_summaries(summaries: Mapping[str, Any],
                             compute_nodes: int) -> CloudTotals:
    """Parse the inventories of hosts from Placement's provider summaries.

    :param summaries: ``provider_summaries`` of microversion 1.29 or later.
    :param compute_nodes: number of compute nodes of the cloud.
    """
    roots: dict[str, Mapping[str, Stock]] = {}
    nodes: dict[str, list[Mapping[str, Stock]]] = {}
    for uuid, summary in summaries.items():
        stocks = {name: Stock(int(one['capacity']), int(one['used']))
                  for name, one in summary['resources'].items()}
        root = summary['root_provider_uuid']
        if uuid == root:
            roots[root] = stocks
        elif names.NUMA_NODE_TRAIT in summary['traits']:
            nodes.setdefault(root, []).append(stocks)
    return CloudTotals(
        tuple(HostTotals(stocks, tuple(nodes.get(root, ())))
              for root, stocks in roots.items()),
        len(roots) >= compute_nodes > 0)
