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


"""Weigher that avoids hosts with busy NUMA nodes.

Name it beside Nova's own::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,\
ghsched_nova.features.load.load_weigher.GhschedLoadWeigher

It looks at CPUs, memory and I/O, at load and at waiting, as compute hosts
have measured and reported them, and asks nobody.
"""

import statistics
from typing import Any

from oslo_log import log as logging

from ghsched_nova.features.load import by_load
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import option_weigher
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load import node_choice

LOG = logging.getLogger(__name__)

#: Score of a host whose load is unknown.
UNKNOWN = -0.5


class GhschedLoadWeigher(option_weigher.OptionWeigher):
    """Weigher that prefers hosts with little load.

    The score is 0 for an idle host, and -1 for a host that is a bottleneck.
    Both limits are constant, so that Nova's normalization does not magnify a
    small difference between two hosts.
    """

    minval = -1.0
    maxval = 0.0
    option = 'load_weight_multiplier'
    measure = 'load'
    unreadable = UNKNOWN

    def compute_score(self, host_state: Any, _spec: Any) -> float:
        nearness = self._compute_bottleneck_nearness(host_state)
        if nearness is None:
            return self.unreadable
        score = 0.0 - min(1.0, nearness)
        LOG.debug('ghsched: host %(host)s: score %(score).2f from weigher '
                  '%(weigher)s',
                  {'host': host_state.host, 'score': score,
                   'weigher': type(self).__name__})
        return score

    def _compute_bottleneck_nearness(self, state: Any) -> float | None:
        """Return a host's load as a fraction of the load of a bottleneck.

        The fraction is 1 for a load at which a NUMA node counts as overloaded.

        The load is that of the busiest host NUMA node among those chosen for
        the guest, or the mean of all nodes if none were chosen. Returns None
        if the load is unknown.
        """
        found = by_load.get_fresh_load(state)
        if found is None:
            return None
        limits = bottleneck.make_bottleneck_limits(
            shared.config().ghsched.bottleneck_thresholds)
        nodes = node_choice.compute_relative_load(
            found, by_load.count_used_and_total_cpus(state),
            limits, comparable_only=False)
        order = scheduler.get_chosen_nodes(state)
        values = [nodes[node] for node in order or nodes if node in nodes]
        if not values:
            return None
        return max(values) if order else statistics.fmean(
            min(1.0, value) for value in values)
