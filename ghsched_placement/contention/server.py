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

"""Latency of a single-threaded server by the latency of its memory (pure).

A part of the time of each request waits for memory; the rest is computing and
stays as it is. All results are relative to those of an idle machine.
"""

import math


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
