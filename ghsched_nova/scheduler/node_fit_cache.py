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


"""Whether NUMA nodes of a guest fit on NUMA nodes of a host, by Nova's fit."""

from collections.abc import Mapping
from collections.abc import Sequence
import functools

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.scheduler.host_view import HostStateView
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit import room as rooms
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.flavor.topology import PageSize


class NodeFitCache:
    """Cache of whether the guest NUMA nodes fit on the NUMA nodes of a host.

    Guest nodes with equal requirements share a result, so that Nova's fit is
    computed only once for them.
    """

    def __init__(self, view: HostStateView, spec: shared.RequestSpec) -> None:
        self._view, self._spec = view, spec
        self._kinds = numa.map_to_first_equal_guest_node(spec.numa_topology)
        self._known: dict[tuple[int, int], bool] = {}
        self._free: dict[tuple[int, int], bool] = {}

    def may_have_room(self, guest_node: int, host_node: int) -> bool:
        """Return whether a host NUMA node may have room for a guest NUMA node.

        The amounts of CPUs and memory are compared. Nova's own fit, which
        compares the threads of cores as well, takes much longer.
        """
        pair = self._kinds[guest_node], host_node
        if pair not in self._free:
            part, page_size = self._parts[pair[0]]
            self._free[pair] = host_node in self._rooms and (
                rooms.count_guest_nodes(self._rooms[host_node], part,
                                        page_size) > 0)
        return self._free[pair]

    @functools.cached_property
    def _rooms(self) -> Mapping[int, NodeCapacity]:
        return {one.node: one for one in numa.list_node_capacities(
            self._view.numa_topology, self._view)}

    @functools.cached_property
    def _parts(self) -> Sequence[tuple[GuestNode, PageSize]]:
        return host_nodes.list_sized_guest_nodes(self._spec.numa_topology)

    def has_capacity(self, guest_node: int, host_node: int) -> bool:
        """Return whether a guest NUMA node fits on a host NUMA node.

        Only CPUs and memory are compared, by Nova's own fit.
        """
        pair = self._kinds[guest_node], host_node
        if pair not in self._known:
            self._known[pair] = self.may_have_room(*pair) and (
                scheduler.has_node_capacity(self._view, self._spec, *pair))
        return self._known[pair]
