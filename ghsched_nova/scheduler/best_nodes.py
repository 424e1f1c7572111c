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

"""Limit claims to the best host NUMA nodes, for guests without ghsched keys.

The best nodes are those with which most further guests fit, and of these the
nodes with the lowest cost that features compute, for example from the load.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import itertools
from typing import Any
from typing import TypeAlias

from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler.host_view import HostStateView
from ghsched_nova.scheduler import needed_nodes
from ghsched_nova.scheduler import request_filter
from ghsched_nova.scheduler import unread_reports
from ghsched_placement.providers import names
from ghsched_placement.query.candidates import HostProviders
from ghsched_placement.query.candidates import NodeCost
from ghsched_placement.query import matching
from ghsched_placement.query import node_assignment
from ghsched_placement.query import node_loads

#: Returns the cost of each NUMA node of a host; empty if none is preferred.
ComputeCosts: TypeAlias = Callable[[Any], dict[int, NodeCost]]


def limit_to_best_nodes(state: Any, spec: shared.RequestSpec,
                        compute_costs: ComputeCosts) -> Any:
    """Return a host state that limits a guest to the best NUMA nodes.

    nova-compute claims the guest on these nodes. This is called for each host
    that passed Nova's filter. The host state is returned unchanged if the
    claim on the host cannot be limited to NUMA nodes.

    :param state: Nova's host state of the host.
    :param spec: a request that must not change while the host state is in use.
    :param compute_costs: returns the cost of each NUMA node.
    """
    if not ('numa_topology' in spec and spec.numa_topology
            and state.numa_topology and scheduler.offers_pseudo_networks(
                state.numa_topology, names.make_node_physnet)):
        return state
    return BestNodesView(state, spec, compute_costs)


class BestNodesView(HostStateView):
    """Host state whose NUMA limits allow only the best host nodes for a guest.

    The limits are unchanged if all nodes are equally good. The nodes are
    chosen only when the limits are first read, because most hosts that pass
    the filters are neither selected nor alternates.
    """

    def __init__(self, state: Any, spec: shared.RequestSpec,
                 compute_costs: ComputeCosts) -> None:
        super().__init__(state)
        self._spec, self._compute_costs = spec, compute_costs
        self._settled = False

    @property
    def limits(self) -> dict[str, Any]:
        """NUMA limits of the guest's claim on this host.

        They restrict the claim to the best host NUMA nodes, and are computed
        when they are first read.
        """
        found: dict[str, Any] = self.__dict__['limits']
        if not self._settled:
            self._settled = True
            try:
                self._restrict_limits(found)
            except Exception as error:
                unread_reports.WARNINGS.warn_once(
                    self.host, error, 'not choosing NUMA nodes')
        return found

    def _restrict_limits(self, limits: dict[str, Any]) -> None:
        known = self._compute_costs(self)
        needed = needed_nodes.find_needed_nodes(
            self, self._spec, lambda _provider: {})
        if len(set(known.values())) < 2 and not needed:
            return
        self.allocation_candidates = self.allocation_candidates[:1]
        best = _choose_cheapest_limits(self, self._spec, known, needed)
        if best is not None:
            limits['numa_topology'] = best


def _choose_cheapest_limits(view: HostStateView, spec: shared.RequestSpec,
                            node_costs: dict[int, NodeCost],
                            needed: frozenset[int]) -> Any:
    """Return NUMA limits with the best host nodes that fit a guest.

    :param view: state of the host.
    :param node_costs: cost of each host NUMA node.
    :param needed: host nodes without which fewer other guests fit.
    :returns: the limits; None if the guest fits on none of the combinations of
        nodes that were tried.
    """
    candidates = view.allocation_candidates or [{}]
    requests = spec.pci_requests.requests if spec.pci_requests else []
    for order in itertools.islice(
            yield_host_nodes_by_cost(
                node_costs, [cell.id for cell in view.numa_topology.cells],
                len(spec.numa_topology), needed),
            node_assignment.MOST_TRIED):
        # Without costs the claim may choose the other nodes itself, so that
        # it does not fail where another guest was faster.
        is_free = not node_costs and not (
            request_filter.has_ghsched_extra_specs(spec))
        limits = scheduler.make_numa_limits(
            view, spec, [node for node in order if node in needed]
            if is_free else order, in_order=not is_free)
        if scheduler.fit_guest_topology(view, spec, limits,
                                        candidates[0].get('mappings'),
                                        requests) is not None:
            return limits
    return None


def yield_host_nodes_by_cost(node_costs: Mapping[int, NodeCost],
                             nodes: Collection[int], guest_nodes: int,
                             needed: frozenset[int] = frozenset()
                             ) -> Iterator[tuple[int, ...]]:
    """Yield the ways to place a guest that no candidate limits, best first.

    Nodes that other guests of its kind do not need come last, and of equally
    many the cheapest nodes come first.

    :param node_costs: cost of each host node; empty if none is preferred.
    :param nodes: numbers of the host nodes.
    :param guest_nodes: number of guest nodes.
    :param needed: see :attr:`.HostProviders.needed`.
    :returns: for each way the host node of each guest node.
    """
    steps = matching.Steps(node_assignment.MAX_STEPS)
    loads = node_loads.NodeLoads(HostProviders(
        {str(node): node for node in nodes}, compute_busy=lambda: node_costs),
        guest_nodes, steps)
    unneeded = {node: int(node not in needed) for node in nodes}
    return (order for _key, order in matching.yield_assignments_by_cost(
        [unneeded] * guest_nodes, loads.get_assignment_rank, steps))
