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
ghsched_nova.features.packing.gradient_weigher.GhschedGradientWeigher

It learns what guests come of the requests that it weighs hosts for. With it
on, NUMA nodes within a host are chosen in the same way. It asks nobody.
"""

from typing import Any

from oslo_log import log as logging

from ghsched_nova.features.packing import fragments
from ghsched_nova.features.packing import weighers
from ghsched_nova.nova_seams import shared
from ghsched_placement.features.packing import gradient
from ghsched_placement.flavor.policy import PolicyError

LOG = logging.getLogger(__name__)

#: Fragmentation that is assumed for a host on which the guest does not fit; it
#: is larger than any that a guest can cause.
_MOST = 64


class GhschedGradientWeigher(weighers.PackingWeigher):
    """Weigher that prefers hosts whose fragmentation a guest raises least.

    The fragmentation of a host is the capacity that recently requested kinds
    of guests cannot use, see
    :mod:`ghsched_placement.features.packing.gradient`.
    """

    option = 'gradient_weight_multiplier'
    unreadable = -float(_MOST)

    def can_measure(self, spec: shared.RequestSpec) -> bool:
        """Return whether the guest of a request has a NUMA topology.

        If so, the resources that it needs are recorded. The weigher computes
        the fragmentation of hosts for the recently requested kinds of guests.
        """
        try:
            kind = fragments.get_guest_demand(spec)
        except PolicyError:     # whoever refuses the request says why
            kind = None
        if kind is not None:
            fragments.MIX.add_request(kind)
        return kind is not None

    def compute_score(self, host_state: Any,
                      spec: shared.RequestSpec) -> float:
        return _compute_score(host_state, spec)


def _compute_score(state: Any, spec: shared.RequestSpec) -> float:
    kind = fragments.get_guest_demand(spec)
    assert kind is not None  # noqa: S101
    nodes, _guest, _needs, taken = weighers.read_host_and_guest_nodes(
        state, spec)
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
