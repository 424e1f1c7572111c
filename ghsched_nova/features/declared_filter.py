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

"""Functions of features for the filter of nova-scheduler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ghsched_nova.features.load import by_load
from ghsched_nova.features.numa_auto import numa_choice
from ghsched_nova.features.packing import fragments
from ghsched_nova.nova_seams import shared
from ghsched_placement.query import candidates

#: Functions that limit a host that passed Nova's own filter for a guest, in
#: this order. They return the host state, or one that replaces it.
HOST_LIMITS: tuple[Callable[[Any, shared.RequestSpec], Any], ...] = (
    numa_choice.limit_to_chosen_numa_count,
)


@dataclass(frozen=True)
class NodeCost:
    """Preference of a feature among host NUMA nodes.

    :param rank_nodes: function that returns the cost of each node of a host
        for new guests; empty if it prefers none. The first result that is
        not empty counts.
    :param make_placement_cost: function that returns the cost of placements
        of a guest on a host; None if it prefers none.
    """

    rank_nodes: Callable[[Any], dict[int, tuple[float, ...]]] = lambda _: {}
    make_placement_cost: Callable[
        [Any, shared.RequestSpec], candidates.Cost | None] = lambda *_: None


NODE_COSTS: tuple[NodeCost, ...] = (
    NodeCost(rank_nodes=by_load.compute_node_costs),
    NodeCost(make_placement_cost=fragments.make_fragmentation_cost_function),
)
