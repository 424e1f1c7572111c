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

#: Functions that return the cost of each NUMA node of a host; the result is
#: empty without a preference. The first result that is not empty counts.
NODE_COSTS: tuple[Callable[[Any], dict[int, tuple[float, ...]]], ...] = (
    by_load.compute_node_costs,
)

#: Functions that return the cost function of placements on a host, or None
#: without a preference. The first cost function counts.
PLACEMENT_COSTS: tuple[
    Callable[[Any, shared.RequestSpec], candidates.Cost | None], ...] = (
    fragments.make_fragmentation_cost_function,
)
