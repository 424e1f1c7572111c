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

"""Weigher that prefers hosts that a guest fragments least.

Name it beside Nova's own::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,\
ghsched_nova.features.packing.gradient_weigher.GhschedGradientWeigher

It learns what guests come of the requests that it weighs hosts for. With it
on, NUMA nodes within a host are chosen in the same way. It asks nobody.
"""

from typing import Any

from oslo_log import log as logging

from ghsched_nova.features.packing import fragments
from ghsched_nova.features.packing import host_states
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.scheduler import option_weigher
from ghsched_placement.features.packing import gradient
from ghsched_placement.features.packing.likely_nodes import guess_host_nodes
from ghsched_placement.features.packing.numa_nodes import HostNode
from ghsched_placement.flavor.policy import PolicyError

LOG = logging.getLogger(__name__)

#: Fragmentation that is assumed for a host on which the guest does not fit; it
#: is larger than any that a guest can cause.
_MOST = 64


class GhschedGradientWeigher(option_weigher.OptionWeigher):
    """Weigher that prefers hosts whose fragmentation a guest raises least.

    The fragmentation of a host is the capacity that recently requested kinds
    of guests cannot use, see
    :mod:`ghsched_placement.features.packing.gradient`.
    """

    option = 'gradient_weight_multiplier'
    measure = 'fragmentation'
    unreadable = -float(_MOST)

    def weigh_objects(self, weighed_obj_list: Any,
                      weight_properties: Any) -> list[float]:
        """Weigh hosts by how a guest would fragment their CPUs and memory.

        All weights are 0 if the weigher's multiplier is 0 for all hosts, or
        for a guest without a NUMA topology. The resources that other guests
        need are recorded: the weigher computes the fragmentation of hosts for
        the recently requested kinds of guests.
        """
        if not any(self.weight_multiplier(one.obj)
                   for one in weighed_obj_list):
            return [0.0] * len(weighed_obj_list)
        try:
            kind = fragments.get_guest_demand(weight_properties)
        except PolicyError:     # whoever refuses the request says why
            kind = None
        if kind is None:
            return [0.0] * len(weighed_obj_list)
        fragments.MIX.add_request(kind)
        return list(super().weigh_objects(weighed_obj_list,
                                          weight_properties))

    def compute_score(self, host_state: Any,
                      spec: shared.RequestSpec) -> float:
        return _compute_score(host_state, spec)


def _compute_score(state: Any, spec: shared.RequestSpec) -> float:
    kind = fragments.get_guest_demand(spec)
    assert kind is not None  # noqa: S101
    nodes, taken = _list_host_and_chosen_nodes(state, spec)
    if not taken:
        return -float(_MOST)
    grows = gradient.FragmentationGrowth(
        fragments.get_free_capacity(state, nodes),
        fragments.MIX.get_kind_shares()).compute_fragmentation_growth(
            kind, [node.number for node in taken])
    LOG.debug('ghsched: host %(host)s: the guest would increase fragmentation '
              'by %(grows).3f NUMA nodes',
              {'host': state.host, 'grows': grows})
    return 0.0 - round(grows, 9)


def _list_host_and_chosen_nodes(
        state: Any, spec: shared.RequestSpec
) -> tuple[list[HostNode], tuple[HostNode, ...]]:
    """Return the NUMA nodes of a host, and those that a guest would take.

    If the filter of ghsched has not chosen the host nodes of the guest, those
    that nova-compute will probably claim are returned. The result has no
    chosen nodes if the guest does not fit.

    :param state: Nova's host state of the host.
    :param spec: request for a guest with a NUMA topology.
    """
    topology, pools = spec.numa_topology, host_states.get_pci_pools(state)
    nodes = host_states.list_host_nodes(
        state, pools, host_nodes.get_page_size(topology.cells[0]))
    chosen = host_states.list_chosen_nodes(state, nodes)
    return nodes, chosen or guess_host_nodes(
        nodes, host_nodes.list_guest_node_requirements(
            topology, host_nodes.count_threads_per_core(state)),
        host_states.list_device_needs(state, spec, pools),
        host_states.list_physnets_of_limits(state),
        shared.config().compute.packing_host_numa_cells_allocation_strategy)
