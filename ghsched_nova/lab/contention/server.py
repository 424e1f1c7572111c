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

"""Slowdown of a server beside memory-intensive streams (pure).

Both share the memory of one NUMA node. A part of the time of each request
waits for memory; the rest is computing and stays as it is. All figures are
*simulated*, and relative to those of an idle machine.
"""

import math

from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density import queueing
from ghsched_placement.features.density.share import Claim
from ghsched_placement.features.density.share import share_bandwidth

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


def get_relative_service_time(stalled_fraction: float,
                              latency: float) -> float:
    """Return the time per request of a server whose memory has become slower.

    The time is relative to an idle machine. If each client waits for a
    response before it sends its next request, the p99 latency grows by the
    same factor.

    :param stalled_fraction: fraction of a request's time spent waiting for
        memory on an idle machine.
    :param latency: latency of a memory access, relative to an idle machine.
    """
    return 1 + stalled_fraction * (latency - 1)


def get_relative_open_loop_p99(busy_fraction: float,
                               service_time: float) -> float:
    """Return the p99 latency of a server whose requests arrive at random.

    The latency is relative to an idle machine. It is infinite if the server
    cannot keep up with the requests.

    :param busy_fraction: fraction of the time that the server is busy on an
        idle machine.
    :param service_time: time per request at the server, relative to an idle
        machine.
    """
    free = 1 - busy_fraction * service_time
    return service_time * (1 - busy_fraction) / free if free > 0 else math.inf
