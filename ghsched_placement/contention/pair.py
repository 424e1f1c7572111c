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

"""Bandwidth and memory latency of a server beside streams (pure).

Both share the memory of one NUMA node. All figures are *simulated*.
"""

from ghsched_placement.contention.curve import LatencyCurve
from ghsched_placement.contention import queueing
from ghsched_placement.contention.share import Claim
from ghsched_placement.contention.share import share_bandwidth

_CONTROLLER = queueing.Enforcement()


def predict_mutual_slowdown(server: Claim, streams: Claim, curve: LatencyCurve,
                            enforcement: queueing.Enforcement = _CONTROLLER
                            ) -> tuple[float, float]:
    """Predict how a server and memory-intensive streams slow each other down.

    Both compete for the bandwidth of one memory. All bandwidths are fractions
    of the memory's theoretical bandwidth.

    :param server: bandwidth that the server needs, whatever the latency.
    :param streams: bandwidth that all streams together want.
    :param curve: latency curve of the memory.
    :param enforcement: how the memory controller applies bandwidth controls.
    :returns: the server's memory latency, relative to an idle machine, and the
        bandwidth that the streams get.
    """
    claims = server, streams
    received = share_bandwidth(
        queueing.get_deliverable_bandwidth(1.0, curve), claims)
    delays = queueing.get_control_group_delays(
        1.0, claims, received, curve, enforcement)
    return (1 + delays[0]) * server.demand / received[0], received[1]
