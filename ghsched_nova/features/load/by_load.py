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


"""Use of reported host load by nova-scheduler."""

import time
from typing import Any

from ghsched_nova.nova_seams import shared
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load import load
from ghsched_placement.features.load import node_choice
from ghsched_placement.query.candidates import NodeCost


def get_fresh_load(state: Any) -> load.HostLoad | None:
    """Return the load that a host last reported to nova-scheduler.

    Returns None if the host has reported no load, or if its report is older
    than the option ``[ghsched]load_max_age`` allows.
    """
    found = load.parse_load_stats(getattr(state, 'stats', None) or {})
    # The clocks of two hosts differ, in both directions.
    if found is None or (abs(time.time() - found.time)
                         > shared.config().ghsched.load_max_age):
        return None
    return found


def count_used_and_total_cpus(
        state: Any) -> dict[int, node_choice.ClaimedResources]:
    """Return the used and the total CPUs of each NUMA node of a host.

    Only CPUs of guests with a NUMA topology count as used.
    """
    topology = state.numa_topology
    return {cell.id: node_choice.ClaimedResources(
        cell.cpu_usage + len(cell.pinned_cpus),
        len(cell.cpuset | cell.pcpuset))
        for cell in (topology.cells if topology else ())}


def compute_node_costs(state: Any) -> dict[int, NodeCost]:
    """Return the load cost of each NUMA node of a host.

    The cost of a node grows with its load. nova-scheduler limits a guest to
    the nodes with the lowest costs. The result is empty if load-based
    placement is off, or if the host's load is unknown.
    """
    config = shared.config()
    found = get_fresh_load(state) if config.ghsched.load_placement else None
    if found is None:
        return {}
    return node_choice.compute_load_costs(
        found, count_used_and_total_cpus(state),
        bottleneck.make_bottleneck_limits(
            config.ghsched.bottleneck_thresholds),
        config.compute.packing_host_numa_cells_allocation_strategy)
