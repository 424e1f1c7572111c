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


"""The weigher that avoids hosts whose memory bandwidth is nearly used up.

Name it beside Nova's own::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,\
ghsched_nova.scheduler.bandwidth_weigher.GhschedBandwidthWeigher

Guarantees are Placement's business. This is about guests without one, and
about guests that use more than they are guaranteed. It reads what compute
hosts have reported with their stats, and asks nobody.
"""

from collections.abc import Mapping
import time
from typing import Any

from oslo_log import log as logging

from ghsched_nova.monitor import stats
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import option_weigher

LOG = logging.getLogger(__name__)


class GhschedBandwidthWeigher(option_weigher.OptionWeigher):
    """0 for hosts with bandwidth to spare, down to -1 for one without.

    The ends are fixed, so that Nova does not stretch a small difference
    between two hosts to a large one.
    """

    minval = -1.0
    maxval = 0.0
    option = 'bandwidth_weight_multiplier'
    failure = 'the use of bandwidth of %(host)s cannot be told'
    unreadable = 0.0

    def score(self, host_state: Any, _spec: Any) -> float:
        return _weigh(host_state, time.time())


def _weigh(state: Any, now: float) -> float:
    section = shared.config().ghsched
    measured = stats.from_stats(getattr(state, 'stats', None) or {}, now)
    if measured is None:
        return 0.0
    # The clocks of two hosts differ, in both directions.
    if abs(measured.age) > section.bandwidth_weight_max_age:
        LOG.debug('ghsched: the use of bandwidth of %(host)s is %(age).0f s '
                  'old and is not heard',
                  {'host': state.host, 'age': measured.age})
        return 0.0
    threshold = section.bandwidth_weight_threshold / 100
    share = _share(state, measured.reliable_shares(threshold))
    score = 0.0 - min(1.0, max(0.0, (share - threshold) / (1 - threshold)))
    LOG.debug('ghsched: %(host)s scores %(score).2f for bandwidth: %(share)'
              '.0f %% were used %(age).0f s ago',
              {'host': state.host, 'score': score, 'share': 100 * share,
               'age': measured.age})
    return score


def _share(state: Any, share: Mapping[int, float]) -> float:
    """The part of the bandwidth in use where the guest would be.

    That is the busiest of the nodes that our filter has chosen for it. A
    guest without such a choice may be anywhere, so it is the mean.

    :param share: by node, of those that are known.
    """
    order = scheduler.chosen_order(state)
    if order:
        return max((share[node] for node in order if node in share),
                   default=0.0)
    return sum(share.values()) / len(share) if share else 0.0
