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


"""The weigher that keeps whole NUMA nodes and VFs for guests that need them.

Name it beside Nova's own::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,\
ghsched_nova.features.packing.weighers.GhschedFragmentationWeigher

It works for every guest, with keys of ours or without. It reads what the
scheduler knows of a host already and asks nobody.
"""

from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import host_nodes as read
from ghsched_nova.scheduler import option_weigher
from ghsched_placement.features.packing import fragmentation
from ghsched_placement.features.packing.fragmentation import Score
from ghsched_placement.features.packing.likely_nodes import guess_host_nodes
from ghsched_placement.fit.numa_nodes import DeviceNeed
from ghsched_placement.fit.numa_nodes import HostNode
from ghsched_placement.fit.numa_nodes import PlacedGuestNode
from ghsched_placement.flavor.topology import GuestNode

LOG = logging.getLogger(__name__)


class PackingWeigher(option_weigher.OptionWeigher):
    """Base class of weighers that score how a guest would fragment a host."""

    measure = 'fragmentation'

    def weigh_objects(self, weighed_obj_list: Any,
                      weight_properties: Any) -> list[float]:
        """Weigh hosts by how a guest would fragment their CPUs and memory.

        All weights are 0 if the weigher's multiplier is 0 for all hosts.
        """
        if not any(self.weight_multiplier(one.obj) for one in weighed_obj_list
                   ) or not self.can_measure(weight_properties):
            return [0.0] * len(weighed_obj_list)
        return list(super().weigh_objects(weighed_obj_list,
                                          weight_properties))

    def can_measure(self, spec: shared.RequestSpec) -> bool:
        """Return whether this weigher can score hosts for a request.

        If not, all hosts get the weight 0.
        """
        return True


def read_host_and_guest_nodes(state: Any, spec: shared.RequestSpec) -> tuple[
        list[HostNode], list[GuestNode], list[DeviceNeed],
        tuple[HostNode, ...]]:
    """Return the NUMA nodes of a host and of a guest that would run there.

    The guest must have a NUMA topology. If the filter of ghsched has not
    chosen the host nodes of the guest, those that nova-compute will probably
    claim are returned.

    :param state: Nova's host state of the host.
    :returns: tuple of four lists: the host's NUMA nodes with their resources,
        the guest's NUMA nodes with their needs, the devices that the guest
        needs, and the host node of each guest node. The last one is empty if
        the guest does not fit.
    """
    topology, pools = spec.numa_topology, read.get_pci_pools(state)
    nodes = read.list_host_nodes(state, pools, topology.cells[0].pagesize)
    guest = read.list_guest_node_requirements(
        topology, read.count_threads_per_core(state))
    needs = read.list_device_needs(state, spec, pools)
    taken = read.list_chosen_nodes(state, nodes) or guess_host_nodes(
        nodes, guest, needs, read.list_physnets_of_limits(state),
        shared.config().compute.packing_host_numa_cells_allocation_strategy)
    return nodes, guest, needs, taken


class GhschedFragmentationWeigher(PackingWeigher):
    """Weigher that prefers hosts on which a guest wastes the least capacity.

    Capacity is wasted if later guests cannot use it, see
    :mod:`ghsched_placement.features.packing.fragmentation`.
    """

    option = 'fragmentation_weight_multiplier'
    unreadable = fragmentation.WORST.value

    def compute_score(self, host_state: Any,
                      spec: shared.RequestSpec) -> float:
        return _compute_placement_score(host_state, spec).value


def _compute_placement_score(state: Any, spec: shared.RequestSpec) -> Score:
    if 'numa_topology' in spec and spec.numa_topology:
        nodes, guest, needs, taken = read_host_and_guest_nodes(
            state, spec)
        parts = [PlacedGuestNode(*pair)
                 for pair in zip(taken, guest, strict=False)]
        size = len(guest)
    else:
        pools = read.get_pci_pools(state)
        needs = read.list_device_needs(state, spec, pools)
        nodes = read.list_nodes_of_floating_guests(state, pools)
        parts, size = read.split_floating_guest(nodes, spec), 1
    score = fragmentation.score_placement(nodes, parts, needs, size)
    _log_score(state, parts, score)
    return score


def _log_score(state: Any, parts: Sequence[PlacedGuestNode],
               score: Score) -> None:
    LOG.debug(
        'ghsched: host %(host)s: fragmentation score %(value).3f on host NUMA '
        'nodes %(nodes)s: %(lost).0f %% of them empty (whole host: '
        '%(whole).0f %%), %(stranded).1f devices left without free CPUs (cost '
        '%(devices).2f), %(room).0f %% of CPUs and memory left free',
        {'host': state.host, 'value': score.value,
         'nodes': ', '.join(str(part.node.number) for part in parts) or '-',
         'lost': 100 * score.lost, 'whole': 100 * score.whole,
         'stranded': score.stranded, 'devices': score.devices,
         'room': 100 * score.room})
