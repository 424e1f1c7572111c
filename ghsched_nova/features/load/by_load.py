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

from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler.host_view import HostStateView
from ghsched_nova.scheduler import unread_reports
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load import load
from ghsched_placement.features.load import node_choice
from ghsched_placement.providers import names
from ghsched_placement.query.candidates import combine_node_costs
from ghsched_placement.query.candidates import NodeCost
from ghsched_placement.query import node_assignment


def get_fresh_load(state: Any) -> load.Load | None:
    """Return the load that a host last reported to nova-scheduler.

    Returns None if the host has reported no load, or if its report is older
    than the option ``[ghsched]load_max_age`` allows.
    """
    found = load.from_stats(getattr(state, 'stats', None) or {})
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


def limit_to_least_loaded_nodes(state: Any, spec: shared.RequestSpec) -> Any:
    """Return a host state that limits a guest to the least loaded NUMA nodes.

    nova-compute claims the guest on these nodes. This is called for each host
    that passed Nova's filter. The host state is returned unchanged if the host
    has reported no load, or if the claim on the host cannot be limited to NUMA
    nodes.

    :param state: Nova's host state of the host.
    :param spec: a request that must not change while the host state is in use.
    """
    reported = load.KEY in (getattr(state, 'stats', None) or {})
    if not reported or not _get_topology(
            spec) or not state.numa_topology or not (
                scheduler.offers_pseudo_networks(state.numa_topology,
                                                 names.make_node_physnet)):
        return state
    return LeastLoadedView(state, spec)


def _get_topology(spec: shared.RequestSpec) -> Any:
    return spec.numa_topology if 'numa_topology' in spec else None


class LeastLoadedView(HostStateView):
    """Host state whose NUMA limits allow only the least loaded host nodes.

    The limits are unchanged if all nodes have the same load, or if the load is
    unknown. The nodes are chosen only when the limits are first read, because
    most hosts that pass the filters are neither selected nor alternates.
    """

    def __init__(self, state: Any, spec: shared.RequestSpec) -> None:
        super().__init__(state)
        self._spec = spec
        self._settled = False

    @property
    def limits(self) -> dict[str, Any]:
        """NUMA limits of the guest's claim on this host.

        They restrict the claim to the host's least loaded NUMA nodes, and are
        computed when they are first read.
        """
        found: dict[str, Any] = self.__dict__['limits']
        if not self._settled:
            self._settled = True
            try:
                self._restrict_limits(found)
            except Exception as error:
                unread_reports.WARNINGS.warn_once(
                    self.host, error, 'not choosing nodes by their load')
        return found

    def _restrict_limits(self, limits: dict[str, Any]) -> None:
        known = compute_node_costs(self)
        if len(set(known.values())) < 2:
            return
        self.allocation_candidates = self.allocation_candidates[:1]
        best = _choose_cheapest_limits(self, self._spec, known)
        if best is not None:
            limits['numa_topology'] = best


def _choose_cheapest_limits(view: HostStateView, spec: shared.RequestSpec,
                            node_costs: dict[int, NodeCost]) -> Any:
    """Return NUMA limits with the least loaded host nodes that fit a guest.

    :param view: state of the host.
    :param node_costs: cost of each host NUMA node, which grows with its load.
    :returns: the limits; None if the guest fits on none of the combinations of
        nodes that were tried.
    """
    candidates = view.allocation_candidates or [{}]
    requests = spec.pci_requests.requests if spec.pci_requests else []
    for order in itertools.islice(
            _iterate_assignments_by_cost(node_costs, len(spec.numa_topology)),
            node_assignment.MOST_TRIED):
        limits = scheduler.make_numa_limits(view, spec, order, in_order=True)
        if scheduler.fit_guest_topology(view, spec, limits,
                                        candidates[0].get('mappings'),
                                        requests) is not None:
            return limits
    return None


def _iterate_assignments_by_cost(node_costs: dict[int, NodeCost],
                                 guest_nodes: int
                                 ) -> Iterator[tuple[int, ...]]:
    """Iterate over assignments of guest to host NUMA nodes, cheapest first.

    Each assignment names a host NUMA node for each guest NUMA node.

    :param node_costs: cost of each host NUMA node, which grows with its load.
    :param guest_nodes: number of NUMA nodes of the guest.
    """
    ways = itertools.islice(
        itertools.permutations(sorted(node_costs), guest_nodes), _MOST)
    return iter(sorted(ways, key=lambda way: (
        combine_node_costs(way, node_costs), way)))


#: Maximum number of assignments of guest to host NUMA nodes that are compared.
#: A guest with four nodes has fewer on a host with eight.
_MOST = 2000
