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

"""The weigher that leaves least that the next guests cannot use.

Name it beside Nova's own, in place of GhschedFragmentationWeigher::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,\
ghsched_nova.scheduler.gradient_weigher.GhschedGradientWeigher

It learns what guests come of the requests that it weighs hosts for. With it
on, NUMA nodes within a host are chosen in the same way. It asks nobody.
"""

from typing import Any

from oslo_log import log as logging

from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import fragments
from ghsched_nova.scheduler import host_nodes as read
from ghsched_nova.scheduler import option_weigher
from ghsched_placement import gradient
from ghsched_placement.likely_nodes import guess_host_nodes
from ghsched_placement.policy import PolicyError

LOG = logging.getLogger(__name__)

#: Nodes of a host, each with all that counts; more than any guest can waste.
_MOST = 64


class GhschedGradientWeigher(option_weigher.OptionWeigher):
    """Weigher that prefers hosts where fragmentation grows least.

    See gradient.py for the measure.
    """

    option = 'gradient_weight_multiplier'
    failure = 'cannot compute the fragmentation'
    unreadable = -float(_MOST)

    def weigh_objects(self, weighed_obj_list: Any,
                      weight_properties: Any) -> list[float]:
        """Weigh hosts by how much a guest would fragment their free capacity.

        All weights are 0 if the weigher's multiplier is 0 for all hosts.
        """
        if self.has_zero_weight(weighed_obj_list):
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
    pools = read.get_pci_pools(state)
    nodes = read.list_host_nodes(state, pools,
                                 spec.numa_topology.cells[0].pagesize)
    taken = read.list_chosen_nodes(state, nodes) or guess_host_nodes(
        nodes,
        read.list_guest_node_requirements(spec.numa_topology,
                                          read.count_threads_per_core(state)),
        read.list_device_needs(state, spec, pools),
        read.list_physnets_of_limits(state),
        shared.config().compute.packing_host_numa_cells_allocation_strategy)
    if not taken:
        return -float(_MOST)
    grows = gradient.Growth(
        fragments.get_free_capacity(state, nodes),
        fragments.MIX.get_kind_shares()).get_growth(
            kind, [node.number for node in taken])
    LOG.debug('ghsched: host %(host)s: the guest would increase fragmentation '
              'by %(grows).3f NUMA nodes',
              {'host': state.host, 'grows': grows})
    return 0.0 - round(grows, 9)
