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

from collections.abc import Iterator
import itertools
import time
from typing import Any

from ghsched_nova import conf
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler.host_view import HostStateView
from ghsched_placement import load
from ghsched_placement import names
from ghsched_placement import node_choice


def get_fresh_load(state: Any) -> load.Load | None:
    """Return the load that a host has reported; None if the report is too old.
    """
    found = load.from_stats(getattr(state, 'stats', None) or {})
    # The clocks of two hosts differ, in both directions.
    if found is None or (abs(time.time() - found.time)
                         > shared.config().ghsched.load_max_age):
        return None
    return found


def count_used_by_host_node(state: Any) -> dict[int, node_choice.Taken]:
    """Return the CPUs and memory that guests use on each host NUMA node.

    Only guests with a NUMA topology are counted.
    """
    topology = state.numa_topology
    return {cell.id: node_choice.Taken(
        cell.cpu_usage + len(cell.pinned_cpus),
        len(cell.cpuset | cell.pcpuset))
        for cell in (topology.cells if topology else ())}


def costs(state: Any) -> dict[int, node_choice.Cost]:
    """Return the cost of each NUMA node of a host, which grows with its load.

    Empty if the nodes do not differ.
    """
    config = shared.config()
    found = get_fresh_load(state) if config.ghsched.load_placement else None
    if found is None:
        return {}
    return node_choice.compute_load_costs(
        found, count_used_by_host_node(state),
        conf.get_bottleneck_limits(config.ghsched),
        config.compute.packing_host_numa_cells_allocation_strategy)


def view_with_load_limits(state: Any, spec: shared.RequestSpec) -> Any:
    """Return a host state whose NUMA limits name the host's least loaded
    nodes.

    The host has passed Nova's filter. A host is returned unchanged if it has
    reported no load, or if its claim cannot be restricted to nodes.

    :param spec: a request that must not change while the host is in use.
    """
    reported = load.KEY in (getattr(state, 'stats', None) or {})
    if not reported or not _topology(spec) or not state.numa_topology or not (
            scheduler.offers_physnets(state.numa_topology,
                                      names.make_node_physnet)):
        return state
    return SteeredView(state, spec)


def copy_request_with_topology(spec: shared.RequestSpec) -> shared.RequestSpec:
    """Copy a request, because Nova changes the NUMA topology of the original.

    Nova does so when it subtracts a guest from a host.
    """
    return spec.obj_clone() if _topology(spec) else spec


def _topology(spec: shared.RequestSpec) -> Any:
    return spec.numa_topology if 'numa_topology' in spec else None


def view_for_next_instance(state: Any) -> Any:
    """Return a copy of a host state for the next instance of a request.

    Nova's filter writes to the limits of the given host state, which may
    belong to an instance that was already placed.
    """
    return (HostStateView(state) if isinstance(state, SteeredView)
            else state)


class SteeredView(HostStateView):
    """A host whose limits hold the claim to the best nodes with room.

    Where its nodes are all alike to us, or nothing is known of them, it is as
    it was. Which nodes are the best takes what the host has reported, and
    fits, and most hosts that pass the filters are neither chosen nor
    alternates: it is found out when the limits are read.
    """

    def __init__(self, state: Any, spec: shared.RequestSpec) -> None:
        super().__init__(state)
        self._spec = spec
        self._settled = False

    @property
    def limits(self) -> dict[str, Any]:
        """NUMA limits of the claim on a host, restricted to least loaded NUMA
        nodes.
        """
        found: dict[str, Any] = self.__dict__['limits']
        if not self._settled:
            self._settled = True
            self._steer(found)
        return found

    def _steer(self, limits: dict[str, Any]) -> None:
        known = costs(self)
        if len(set(known.values())) < 2:
            return
        self.allocation_candidates = self.allocation_candidates[:1]
        best = _choose_cheapest_limits(self, self._spec, known)
        if best is not None:
            limits['numa_topology'] = best


def _choose_cheapest_limits(view: HostStateView, spec: shared.RequestSpec,
                            costs: dict[int, node_choice.Cost]) -> Any:
    """Return limits to the least loaded host NUMA nodes that fit a guest.

    None if Nova's fit accepts no assignment of nodes.
    """
    candidates = view.allocation_candidates or [{}]
    requests = spec.pci_requests.requests if spec.pci_requests else []
    most = shared.config().ghsched.max_candidates_per_host
    for order in itertools.islice(
            _yield_cheapest_orders(costs, len(spec.numa_topology)), most):
        limits = scheduler.numa_limits(view, spec, order, in_order=True)
        if scheduler.fit(view, spec, limits, candidates[0].get('mappings'),
                         requests) is not None:
            return limits
    return None


def _yield_cheapest_orders(costs: dict[int, node_choice.Cost],
                           count: int) -> Iterator[tuple[int, ...]]:
    """Yield assignments of host NUMA nodes to guest NUMA nodes, by ascending
    cost.
    """
    ways = itertools.islice(itertools.permutations(sorted(costs), count),
                            _MOST)
    return iter(sorted(ways, key=lambda way: (
        node_choice.combine_costs(way, costs), way)))


#: Ways that are compared; a host of eight nodes has fewer for four.
_MOST = 2000
