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

"""Allocation candidates -> the host NUMA nodes they stand for (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ghsched_nova.scheduler.refusals import Refusal

ONE_NODE_FOR_TWO = Refusal(
    'the memory bandwidth of two guest NUMA nodes would come from one host '
    'NUMA node')
UNKNOWN_NODES = Refusal(
    'Placement answered with NUMA providers that the host does not have; '
    'its nova-compute may not have reported its topology yet')


@dataclass(frozen=True)
class Placed:
    """One candidate whose providers are known host NUMA nodes.

    :param nodes: host NUMA node by guest NUMA node, for guest nodes whose
        bandwidth is counted.
    :param candidate: as Placement gave it.
    """

    nodes: Mapping[int, int]
    candidate: Mapping[str, Any]

    @property
    def rank(self) -> tuple[int, ...]:
        """Order among candidates of a host: Placement's own is arbitrary."""
        return tuple(node for _guest, node in sorted(self.nodes.items()))


def place(candidates: Sequence[Mapping[str, Any]],
          suffixes: Mapping[int, str],
          node_of_provider: Mapping[str, int],
          ) -> tuple[list[Placed], Refusal | None]:
    """Candidates worth a try, in order, and why there is none.

    :param candidates: ``{'allocations': ..., 'mappings': {suffix: [rp]}}``.
    :param suffixes: request group suffix by guest NUMA node.
    :param node_of_provider: the host's NUMA node by provider UUID.
    """
    placed = []
    refusal: Refusal | None = UNKNOWN_NODES
    for candidate in candidates:
        nodes = _nodes(candidate['mappings'], suffixes, node_of_provider)
        if nodes is None:
            continue
        if len(set(nodes.values())) < len(nodes):
            refusal = ONE_NODE_FOR_TWO
            continue
        placed.append(Placed(nodes, candidate))
    placed.sort(key=lambda item: item.rank)
    return placed, None if placed else refusal


def _nodes(mappings: Mapping[str, Sequence[str]],
           suffixes: Mapping[int, str],
           node_of_provider: Mapping[str, int]) -> dict[int, int] | None:
    nodes = {}
    for guest_node, suffix in suffixes.items():
        providers = mappings.get(suffix)
        if not providers or providers[0] not in node_of_provider:
            return None
        nodes[guest_node] = node_of_provider[providers[0]]
    return nodes


def by_nodes(placed: Sequence[Placed],
             suffixes: Mapping[int, str]) -> Iterator[list[Placed]]:
    """Candidates on one set of host nodes, with the same other providers.

    In the order in which the first of each comes.
    """
    groups: dict[Any, list[Placed]] = {}
    for item in placed:
        key = frozenset(item.nodes.values()), other_groups(item, suffixes)
        groups.setdefault(key, []).append(item)
    yield from groups.values()


def other_groups(placed: Placed, suffixes: Mapping[int, str]) -> Any:
    """What distinguishes candidates of equal nodes: the other providers.

    PCI devices of the flavor are groups of their own, so two candidates with
    the same bandwidth providers can still differ in what Nova has to fit.
    """
    ours = set(suffixes.values())
    return tuple(sorted(
        (suffix, tuple(providers))
        for suffix, providers in placed.candidate['mappings'].items()
        if suffix and suffix not in ours))
