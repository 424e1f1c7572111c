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


def get_service_growth(stalled: float, latency: float) -> float:
    """Return the relative time of a request at the server.

    In a closed loop, where each client waits for its answer before it sends
    again, p99 grows by the same factor.

    :param stalled: fraction of a request's time that waits for memory when
        the machine is idle.
    :param latency: latency of a memory access; 1 on an idle machine.
    """
    return 1 + stalled * (latency - 1)


def get_open_growth(busy: float, growth: float) -> float:
    """Return the relative p99 of a server that requests reach at random.

    Infinite where the server can no longer serve all requests.

    :param busy: fraction of the time that the server is busy when the machine
        is idle.
    :param growth: relative time of a request at the server.
    """
    free = 1 - busy * growth
    return growth * (1 - busy) / free if free > 0 else math.inf
