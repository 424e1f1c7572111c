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


"""Choice of the host NUMA nodes for a guest by measured load (pure).

The best node is farthest from being a bottleneck. Nodes with nearly equal load
are used in turn. The choice is only a preference among nodes with enough free
resources for the guest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import math

from ghsched_placement.features.load.bottleneck import LoadLimits
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.features.load.load import RESOURCES
from ghsched_placement.query.candidates import NodeCost

#: Nodes whose nearness to a bottleneck is in the same tenth are alike: a
#: guest that idles uses as much.
STEPS = 10


@dataclass(frozen=True)
class ClaimedResources:
    """CPUs of a host NUMA node, and vCPUs that Nova has placed on them.

    :param vcpus: number of vCPUs of guests that are bound to the host node.
    :param cpus: number of CPUs of the host node.
    """

    vcpus: int
    cpus: int


def compute_relative_load(load: HostLoad,
                          claimed: Mapping[int, ClaimedResources],
                          limits: LoadLimits,
                          comparable_only: bool = True) -> dict[int, float]:
    """Return each host NUMA node's load relative to its bottleneck threshold.

    At 1, a resource of the node reaches its threshold. The resource nearest to
    its threshold counts. vCPUs placed since the measurement count as busy.
    Nodes of unknown load are left out.

    :param load: measured load of the host.
    :param claimed: CPUs of each host NUMA node, and vCPUs that Nova has placed
        on them.
    :param limits: thresholds at which a node becomes a bottleneck.
    :param comparable_only: whether to leave out a resource that was not
        measured on all nodes, so that the loads can be compared with each
        other.
    """
    nodes = [_add_expected_load(node, claimed.get(node.node))
             for node in load.nodes]
    names = [name for name in RESOURCES if name in limits.begin]
    if comparable_only:
        names = [name for name in names if all(
            getattr(node, name) is not None for node in nodes)]
    found = {}
    for node in nodes:
        figures = node.get_loads_by_resource()
        parts = [figures[name] / limits.begin[name]
                 for name in names if name in figures]
        if limits.begin.keys() & set(node.bottlenecks or ()):
            parts.append(1.0)
        if parts:
            found[node.node] = max(parts)
    return found


def _add_expected_load(node: HostNodeLoad,
                       claimed: ClaimedResources | None) -> HostNodeLoad:
    if (claimed is None or node.cpu_load is None or node.vcpus is None
            or not claimed.cpus):
        return node
    fresh = max(0, claimed.vcpus - node.vcpus)
    return HostNodeLoad(**{**vars(node), 'cpu_load': min(
        1.0, node.cpu_load + fresh / claimed.cpus)})


def compute_load_costs(load: HostLoad, claimed: Mapping[int, ClaimedResources],
                       limits: LoadLimits,
                       pack: bool = False) -> dict[int, NodeCost]:
    """Return the cost of placing a guest on each host node, from its load.

    The cost of a node has three parts, compared in this order: whether the
    node is a bottleneck, its load in steps, and its number of placed vCPUs per
    CPU. The scheduler prefers nodes of low cost. The result is empty if the
    load of a node is unknown.

    :param load: measured load of the host.
    :param claimed: CPUs of each host NUMA node, and vCPUs that Nova has placed
        on them.
    :param limits: thresholds at which a node becomes a bottleneck.
    :param pack: whether to leave out the last part, so that equally loaded
        nodes are filled one after the other.
    """
    near = compute_relative_load(load, claimed, limits)
    if not near or near.keys() != claimed.keys():
        return {}
    return {node: (float(value >= 1),
                   float(min(STEPS, math.floor(value * STEPS + 1e-9))),
                   0.0 if pack else _get_allocated_vcpu_ratio(claimed[node]))
            for node, value in near.items()}


def _get_allocated_vcpu_ratio(claimed: ClaimedResources) -> float:
    return claimed.vcpus / claimed.cpus if claimed.cpus else 0.0
