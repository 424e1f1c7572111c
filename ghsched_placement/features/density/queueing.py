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

"""Waiting time of an access at a memory controller or a link (pure).

An open queue with one server, exponential gaps and exponential service
(M/M/1), whose service time is the idle latency of a local access. All waiting
times are in units of that latency. Classes have priorities, and an access in
service is not interrupted (A. Cobham, Priority Assignment in Waiting Line
Problems, 1954)::

    wait(k) = rho / ((1 - before(k)) * (1 - before(k) - rho(k)))

where ``rho`` is the utilisation by all classes, ``rho(k)`` the utilisation by
class k, and ``before(k)`` the utilisation by all classes of higher priority.
For a single class this is the well known rho / (1 - rho).

The traffic of a control group has up to three classes: traffic below its
guarantee is served first, traffic below its cap by priority, and traffic above
its cap last. The waiting time of the group is the mean over all bandwidth that
it wants, because accesses that are not served wait, too. A mean over the
served accesses alone would grow with a higher priority, if more of a late
class is then served; this mean never does.

If the latency curve of a machine is known (a
:class:`~ghsched_placement.features.density.curve.LatencyCurve`), each
utilisation is replaced by the one at which the queue has this latency. A
single class then has the latency of the curve, and the priorities work as
above. ``rho`` in the numerator is the probability that an access finds another
one in service. Full memory is never idle, so this probability is then 1 for
the first class, whatever the curve. But the first class does not wait longer
for that than it would without priorities.

How a memory controller applies the controls is an :class:`Enforcement`.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from collections import defaultdict
from dataclasses import dataclass
from dataclasses import replace
import math

from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density.share import Claim
from ghsched_placement.features.density.share import share_bandwidth

#: Highest utilisation of a queue that is assumed. A process waits for its own
#: accesses and sends no more in the meantime, so real queues do not grow
#: without limit.
BUSIEST = 0.98

#: Places where guarantees and priorities order accesses: also in the queues of
#: the memory controller, or only in front of it.
CONTROLLER, ENTRANCE = 'controller', 'entrance'
SCOPES = (CONTROLLER, ENTRANCE)


@dataclass(frozen=True)
class Enforcement:
    """Manner in which a memory controller applies bandwidth controls.

    :param scope: where guarantees and priorities order accesses, one of
        :data:`SCOPES`. With ENTRANCE they divide the bandwidth, but save no
        waiting time in the memory controller.
    :param cap_window_us: length in microseconds of the window in which a hard
        cap counts the accesses of a group. In a window the group gets all that
        it can until its cap is used up, and then nothing. 0 if the cap spaces
        the accesses evenly.
    """

    scope: str = CONTROLLER
    cap_window_us: float = 0.0


#: Kind of traffic, priority; the higher goes first.
_Class = tuple[int, int]
_RAISED, _NORMAL, _BEYOND = 2, 1, 0


def get_mean_queueing_delay(utilisation: float) -> float:
    """Return the mean time that an access waits in a queue.

    The unit is the time that the memory needs to serve one access.

    :param utilisation: utilisation of the memory or link, 0 to 1.
    """
    busy = min(utilisation, BUSIEST)
    return busy / (1 - busy)


def get_equivalent_queue_utilisation(
        utilisation: float, curve: LatencyCurve | None) -> float:
    """Return the queue utilisation that gives a memory's measured latency.

    The model treats a memory as a queue, but a measured memory is slower or
    faster than a queue of the same utilisation. A queue with the returned
    utilisation has the latency of the memory.

    :param utilisation: utilisation of the memory, 0 to 1.
    :param curve: measured latency curve; None to return the given utilisation.
    """
    if curve is None:
        return min(utilisation, BUSIEST)
    waiting = curve.get_latency(min(utilisation, 1.0)) - 1
    return waiting / (1 + waiting)


def get_deliverable_bandwidth(capacity: float,
                              curve: LatencyCurve | None) -> float:
    """Return the bandwidth in MB/s that a memory can deliver in practice.

    :param capacity: theoretical bandwidth of the memory, in MB/s.
    :param curve: latency curve of the memory; None to return the theoretical
        bandwidth.
    """
    if curve is None:
        return capacity
    return capacity * curve.get_max_utilisation()


def get_control_group_delays(
        capacity: float, claims: Sequence[Claim], received: Sequence[float],
        curve: LatencyCurve | None = None,
        enforcement: Enforcement = Enforcement()) -> tuple[float, ...]:
    """Return how long accesses of each control group wait for memory.

    The delays are means. Their unit is the time to serve one access.

    :param capacity: theoretical bandwidth of the node, in MB/s.
    :param claims: bandwidth that each control group on the node wants.
    :param received: bandwidth that each control group gets, in MB/s.
    :param curve: latency curve of the memory; None models a queue.
    :param enforcement: how the memory controller applies the controls.
    """
    even = _get_delays_with_even_caps(capacity, claims, received, curve,
                                      enforcement.scope)
    if not enforcement.cap_window_us:
        return even
    windowed = _get_delays_with_windowed_caps(
        capacity, claims, received, curve, enforcement.scope)
    return tuple(map(max, even, windowed))


def _get_delays_with_windowed_caps(
        capacity: float, claims: Sequence[Claim], received: Sequence[float],
        curve: LatencyCurve | None, scope: str) -> list[float]:
    """Return the mean delay of each group if caps apply per time window.

    In each time window, a capped group runs without a cap until its bandwidth
    is used up, and then pauses.

    :param claims: bandwidth that each control group on the node wants.
    :param received: bandwidth that each control group gets, in MB/s.
    """
    capped = [claim.hardlimit and claim.demand > claim.maximum
              for claim in claims]
    running = [replace(claim, maximum=math.inf) if held else claim
               for claim, held in zip(claims, capped, strict=True)]
    paused = [replace(claim, demand=0.0) if held else claim
              for claim, held in zip(claims, capped, strict=True)]
    limit = get_deliverable_bandwidth(capacity, curve)
    at_once = share_bandwidth(limit, running)
    part = min(1.0, _sum_chosen(received, capped)
               / (_sum_chosen(at_once, capped) or math.inf))
    while_running, while_paused = (
        _get_delays_with_even_caps(
            capacity, now, share_bandwidth(limit, now), curve, scope)
        for now in (running, paused))
    return [part * first + (1 - part) * second for first, second
            in zip(while_running, while_paused, strict=True)]


def _sum_chosen(amounts: Sequence[float], chosen: Sequence[bool]) -> float:
    return math.fsum(amount for amount, is_chosen
                     in zip(amounts, chosen, strict=True) if is_chosen)


def _get_delays_with_even_caps(
        capacity: float, claims: Sequence[Claim], received: Sequence[float],
        curve: LatencyCurve | None, scope: str) -> tuple[float, ...]:
    """Return the mean delay of each group if hard caps delay each access.

    A hard cap spaces the accesses of its group evenly in time.

    :param claims: bandwidth that each control group on the node wants.
    :param received: bandwidth that each control group gets, in MB/s.
    :param scope: where guarantees and priorities order accesses, one of
        :data:`SCOPES`.
    """
    parts = [_split_bandwidth_by_priority(claim, amount)
             for claim, amount in zip(claims, received, strict=True)]
    loads: dict[_Class, float] = defaultdict(float)
    for part in parts:
        for kind, amount in part.items():
            loads[kind] += amount / capacity
    by_class = _get_delays_by_class(loads, curve)
    if scope == ENTRANCE:
        busy = get_equivalent_queue_utilisation(math.fsum(loads.values()),
                                                curve)
        by_class = dict.fromkeys(by_class, get_mean_queueing_delay(busy))
    return tuple(_get_mean_delay(claim, by_class) for claim in claims)


def _split_bandwidth_by_priority(
        claim: Claim, received: float) -> dict[_Class, float]:
    """Split the bandwidth of a control group into its priority classes.

    Traffic below the guarantee has the highest priority, traffic above the cap
    the lowest.

    :param claim: bandwidth that the group wants.
    :param received: bandwidth that the group gets, in MB/s.
    :returns: MB/s by priority class.
    """
    raised = min(received, claim.guaranteed_bandwidth)
    normal = min(received, claim.capped_demand) - raised
    return {(_RAISED, 0): raised, (_NORMAL, claim.priority): normal,
            (_BEYOND, claim.priority): received - raised - normal}


def _get_delays_by_class(loads: Mapping[_Class, float],
                         curve: LatencyCurve | None) -> dict[_Class, float]:
    total = math.fsum(loads.values())
    busy = get_equivalent_queue_utilisation(total, curve)
    is_full = total >= get_deliverable_bandwidth(1.0, curve) * (1 - 1e-6)
    last = min((kind for kind in loads if loads[kind]), default=None)
    found = {}
    load, before = 0.0, 0.0
    for kind in sorted(loads, reverse=True):
        load += loads[kind]
        after = get_equivalent_queue_utilisation(load, curve)
        delay = busy / ((1 - before) * (1 - after))
        if is_full and kind != last:
            delay = max(delay, min(get_mean_queueing_delay(busy),
                                   delay * BUSIEST / busy))
        found[kind] = delay
        before = after
    return found


def _get_mean_delay(claim: Claim, by_class: Mapping[_Class, float]) -> float:
    part = _split_bandwidth_by_priority(claim, claim.demand)
    total = math.fsum(part.values())
    if not total:
        # Its first access would be of this class.
        return by_class[(_RAISED, 0) if claim.minimum
                        else (_NORMAL, claim.priority)]
    return math.fsum(amount * by_class[kind]
                     for kind, amount in part.items()) / total
