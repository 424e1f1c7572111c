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


"""The weigher that avoids hosts whose NUMA nodes are busy.

Name it beside Nova's own::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,\
ghsched_nova.scheduler.load_weigher.GhschedLoadWeigher

It looks at CPUs, memory and I/O, at load and at waiting, as compute hosts
have measured and reported them, and asks nobody.
"""

from typing import Any

from oslo_log import log as logging

from ghsched_nova import conf
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import by_load
from ghsched_nova.scheduler import option_weigher
from ghsched_placement import node_choice

LOG = logging.getLogger(__name__)

#: Nobody knows whether the host is idle or a bottleneck.
UNKNOWN = -0.5


class GhschedLoadWeigher(option_weigher.OptionWeigher):
    """0 for an idle host, down to -1 for one that is a bottleneck.

    The ends are fixed, so that Nova does not stretch a small difference
    between two hosts to a large one.
    """

    minval = -1.0
    maxval = 0.0
    option = 'load_weight_multiplier'
    failure = 'the load of %(host)s cannot be read'
    unreadable = UNKNOWN

    def score(self, host_state: Any, _spec: Any) -> float:
        return _weigh(host_state)


def _weigh(state: Any) -> float:
    """By the worst of the nodes that are chosen for the guest.

    A guest without such a choice may be anywhere, so it is the mean.
    """
    found = by_load.measured(state)
    if found is None:
        return UNKNOWN
    near = node_choice.nearness(
        found, by_load.taken(state),
        conf.bottleneck_limits(shared.config().ghsched), alike=False)
    order = scheduler.chosen_order(state)
    values = [near[node] for node in order or near if node in near]
    if not values:
        return UNKNOWN
    score = 0.0 - min(1.0, max(values) if order
                      else sum(min(1.0, value) for value in values)
                      / len(values))
    LOG.debug('ghsched: %(host)s scores %(score).2f for load',
              {'host': state.host, 'score': score})
    return score
