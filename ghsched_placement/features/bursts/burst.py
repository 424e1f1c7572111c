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

"""Percent of a host NUMA node's bandwidth to promise as bursts (pure).

A part of each node, the pool, is reserved for bursts. More bursts than the
pool are promised to the guests together, because they rarely use them at the
same time. In each period, the used fraction of all promised bursts is
measured, from 0 to 1. Its distribution is modeled as a beta distribution with
the measured mean and variance. This is exact for a single guest that is either
idle or busy, close to normal for many guests, and limited to 0 to 1. The more
guests there are, the smaller is the variance, as far as they are independent
of each other::

    variance of the used fraction = v * (correlation + (1 - correlation) / n)

where v is the variance of the used fraction of one guest and n the effective
number of guests (square of the sum divided by the sum of the squares).

A window contains few of the times at which many guests are busy together, and
its measurements vary by chance. Nodes that look idle by chance would be filled
with guests that stay. Therefore the offered percent is the lowest that was
allowed in any hour of the last window.

The allowed percent is the largest one with which the pool is too small in at
most the configured fraction of the periods. It limits the bursts that
Placement allocates to new guests. It does not change the guarantees of guests
in the kernel, and does not follow the load from period to period.
"""

import bisect
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
import functools
import math
import operator

#: Part of the hours of a window that must have been measured.
_COVERED = 0.9

#: Factor by which the promised percent may grow beyond the average of the
#: window: the use of few guests does not predict that of many, so growth is
#: measured step by step.
_GROWTH = 1.5

#: Part by which an allowed percent must exceed the offered one to be offered,
#: so that small variations are not written to Placement.
_RAISE = 0.1

#: Relative error at which the evaluation of the continued fraction ends.
_EXACT = 1e-12


@dataclass(frozen=True)
class BurstLimits:
    """Limits that the operator sets on overcommitting bursts.

    A burst is bandwidth above a guest's guarantee. The pool is the bandwidth
    that is reserved for the bursts of all guests of a host NUMA node.

    :param window: number of hours whose measurements are used.
    :param percentile: percent of the periods in which the pool must suffice.
    :param correlation: smallest correlation, 0 to 1, between the bursts of
        different guests that is assumed.
    :param safety: factor by which the measured mean use is multiplied.
    :param ratio: maximum bandwidth promised as bursts, relative to the pool.
    """

    window: int = 24
    percentile: float = 99.0
    correlation: float = 0.3
    safety: float = 1.2
    ratio: float = 3.0


#: Correlation and safety by the risk that an operator takes.
_RISKS = {'low': (0.5, 1.5), 'medium': (0.3, 1.2), 'high': (0.1, 1.1)}


def make_limits_for_risk(risk: str, window: int, ratio: float) -> BurstLimits:
    """Return the burst overcommitment limits for a risk: low, medium or high.

    A burst is bandwidth above a guest's guarantee, which the guest gets nearly
    all of the time. The risk is that guests want more bursts at the same time
    than the host has reserved bandwidth for.

    :param window: hours for which measurements count.
    :param ratio: how many times the bandwidth that is reserved for bursts may
        be promised to guests.
    """
    correlation, safety = _RISKS[risk]
    return BurstLimits(window=window, correlation=correlation, safety=safety,
                       ratio=ratio)


@dataclass(frozen=True)
class GuestBurst:
    """Promised and used burst of one guest in one period.

    :param promised: percent of the host NUMA node's bandwidth.
    :param used: percent of the host NUMA node's bandwidth.
    :param project: UUID of the guest's project; empty if unknown.
    """

    promised: int
    used: float
    project: str = ''


@dataclass(frozen=True)
class BurstHour:
    """Use of a host NUMA node's bursts in one hour, summed over its periods.

    The used fraction of a period is the bandwidth that all bursts used,
    divided by the bandwidth that was promised to them.

    :param number: hours since 1970.
    :param periods: number of measured periods.
    :param promised: sum of the percent of the node's bandwidth that was
        promised.
    :param mean: sum of the used fractions.
    :param square: sum of the squares of the used fractions.
    :param own: sum of the mean squares of the used fractions of single guests,
        weighted by the percent that each guest is promised.
    :param guests: sum of the effective numbers of guests.
    :param over: number of periods in which bursts used the whole pool, or
        more.
    :param short: number of those periods in which the node could deliver no
        more bandwidth and a guest got less than its burst.
    """

    number: int
    periods: int = 0
    promised: int = 0
    mean: float = 0.0
    square: float = 0.0
    own: float = 0.0
    guests: float = 0.0
    over: int = 0
    short: int = 0

    def add_record(self, other: 'BurstHour') -> 'BurstHour':
        """Return the sum of this record of burst use and another one.

        A burst is bandwidth above a guest's guarantee. The sum has the hour of
        this record.
        """
        return BurstHour(self.number, *map(
            operator.add, list(vars(self).values())[1:],
            list(vars(other).values())[1:]))


@dataclass(frozen=True)
class BurstUse:
    """Use of bursts by the guests of a host NUMA node over a window.

    The used fraction is used bandwidth divided by promised bandwidth.

    :param promised: mean percent of the node's bandwidth that is promised.
    :param mean: mean of the used fraction of all guests together.
    :param variance: variance of the used fraction of one guest.
    :param correlation: correlation between the used fractions of the guests.
    :param guests: effective number of guests: the number of guests with equal
        bursts that would have the same variance.
    :param over: fraction of the periods in which bursts used the whole pool.
    """

    promised: float
    mean: float
    variance: float
    correlation: float
    guests: float
    over: float = 0.0


def make_hour_from_period(number: int, shares: Sequence[GuestBurst],
                          pool: float,
                          full: bool) -> BurstHour:
    """Return an hourly record of burst use that contains one measured period.

    A burst is bandwidth above a guest's guarantee. A period is the time
    between two measurements of nova-compute. A period in which no guest has a
    burst is not counted.

    :param number: number of the hour, in hours since 1970.
    :param shares: use of each guest's burst in the period.
    :param pool: percent of the host NUMA node that was available for bursts.
    :param full: whether the node could deliver no more bandwidth.
    """
    promised = sum(share.promised for share in shares)
    if not promised:
        return BurstHour(number)
    used = sum(min(share.used, share.promised) for share in shares)
    part = min(1.0, used / promised)
    own = sum(share.promised / promised
              * min(1.0, share.used / share.promised) ** 2
              for share in shares if share.promised)
    over = used >= pool
    return BurstHour(
        number, 1, promised, part, part ** 2, own,
        promised ** 2 / sum(share.promised ** 2 for share in shares),
        int(over), int(over and full and used < promised))


def add_period_to_burst_hours(hours: Iterable[BurstHour], new: BurstHour,
                              window: int) -> tuple[BurstHour, ...]:
    """Add a measured period to the hourly records of a host node's burst use.

    A burst is bandwidth above a guest's guarantee. A period is the time
    between two measurements of nova-compute.

    :param hours: records until now; those older than the window are dropped.
    :param new: record of the new period, see :func:`make_hour_from_period`.
    :param window: length of the window in hours.
    :returns: the records with the new period.
    """
    kept = [hour for hour in hours
            if new.number - window < hour.number <= new.number]
    if kept and kept[-1].number == new.number:
        kept[-1] = kept[-1].add_record(new)
    elif new.periods:
        kept.append(new)
    return tuple(kept)


def summarize_burst_hours(hours: Sequence[BurstHour],
                          limits: BurstLimits) -> BurstUse | None:
    """Summarize how much of their bursts the guests of a host NUMA node use.

    A burst is bandwidth above a guest's guarantee. The hourly records must
    cover a whole window (such as a day), because a shorter time could miss a
    load that occurs once a day.

    :param hours: hourly records, the oldest first.
    :param limits: limits on overcommitting bursts, with the window.
    :returns: None if the records do not cover a whole window yet.
    """
    known = [hour for hour in hours if hour.periods]
    if (len(known) < _COVERED * limits.window
            or known[-1].number - known[0].number < limits.window - 2):
        return None
    total = functools.reduce(BurstHour.add_record, known)
    count = total.periods
    mean, guests = total.mean / count, total.guests / count
    own = max(0.0, total.own / count - mean ** 2)
    together = max(0.0, total.square / count - mean ** 2)
    correlation = 1.0
    if own and guests > 1:
        correlation = (together / own - 1 / guests) / (1 - 1 / guests)
    return BurstUse(
        total.promised / count, mean, own,
        min(1.0, max(limits.correlation, correlation)) if guests > 1
        else limits.correlation, guests, total.over / count)


def estimate_shortage_probability(measured: BurstUse, promised: float,
                                  pool: float, limits: BurstLimits) -> float:
    """Estimate how often bursts exceed the bandwidth reserved for them.

    A burst is bandwidth above a guest's guarantee. More bursts may be promised
    than are reserved, because guests rarely use them at the same time.

    :param measured: measured burst use of a host NUMA node.
    :param promised: percent of the host NUMA node that is promised as bursts
        to all guests.
    :param pool: percent of the node that is reserved for bursts.
    :returns: fraction of the time, from 0 to 1.
    """
    if promised <= pool:
        return 0.0
    mean = min(1.0, measured.mean * limits.safety)
    spread = measured.mean * (1 - measured.mean)
    if not 0 < mean < 1 or not spread:
        return float(mean * promised > pool)
    # Scale the measured variance to the assumed mean.
    one = measured.variance * mean * (1 - mean) / spread
    guests = max(1.0, measured.guests * promised / measured.promised)
    variance = one * (measured.correlation
                      + (1 - measured.correlation) / guests)
    return _compute_beta_tail(mean, variance, pool / promised)


def compute_burst_limit(hours: Sequence[BurstHour], pool: float,
                        limits: BurstLimits) -> int:
    """Return the percent of a host NUMA node that may be promised as bursts.

    A burst is bandwidth above a guest's guarantee. More may be promised than
    is reserved, because guests rarely use their bursts at the same time. Until
    a whole window of hours is measured, no more than the reserved percent is
    returned.

    :param hours: hourly records of burst use, the oldest first.
    :param pool: percent of the node that is reserved for bursts.
    """
    base = max(0, math.floor(pool))
    found = summarize_burst_hours(hours, limits)
    if found is None:
        return base
    chance = 1 - limits.percentile / 100
    # Where the pool has been too small, promise no more, whatever the model
    # allows.
    growth = _GROWTH if found.over <= chance else 1
    most = math.floor(min(pool * limits.ratio,
                          max(pool, found.promised * growth)))
    # The more is promised, the likelier it is too much.
    return base + bisect.bisect(
        range(base + 1, most + 1), chance,
        key=lambda promised: estimate_shortage_probability(found, promised,
                                                           pool, limits))


def add_limit_to_hourly_minima(minima: Sequence[tuple[int, int]], hour: int,
                               limit: int,
                               window: int) -> tuple[tuple[int, int], ...]:
    """Add a newly computed burst limit to the lowest limits by hour.

    The burst limit is the percent of a host NUMA node that may be promised to
    guests as bandwidth above their guarantees. Placement is offered the lowest
    limit of the whole window.

    :param minima: pairs of the number of an hour and its lowest burst limit,
        the oldest first; those older than the window are dropped.
    :param hour: number of the current hour.
    :param limit: the newly computed limit.
    :param window: length of the window in hours.
    :returns: the pairs with the new limit.
    """
    kept = [one for one in minima if hour - window < one[0] <= hour]
    if kept and kept[-1][0] == hour:
        kept[-1] = hour, min(kept[-1][1], limit)
    else:
        kept.append((hour, limit))
    return tuple(kept)


def smooth_burst_offer(offered: int, allowed: int) -> int:
    """Return the percent of a host NUMA node to offer to Placement as bursts.

    A burst is bandwidth above a guest's guarantee. A lower percentage is
    offered at once. A higher percentage is offered only if the increase is at
    least 10 percent, so that small changes cause no writes to Placement.

    :param offered: percent offered until now.
    :param allowed: percent that the measurements allow now.
    """
    if offered <= allowed < offered * (1 + _RAISE):
        return offered
    return allowed


def _compute_beta_tail(mean: float, variance: float, value: float) -> float:
    """Return the probability that a beta-distributed variable exceeds a value.

    :param value: the bound, between 0 and 1, both excluded.
    """
    most = mean * (1 - mean)
    if variance <= most * 1e-9:
        return float(mean > value)
    if variance >= most * (1 - 1e-9):
        return mean         # nothing but 0 and 1
    shape = most / variance - 1
    # As the share of what is unused: no cancellation at the upper end.
    return _compute_incomplete_beta(shape * (1 - mean), shape * mean,
                                    1 - value)


def _compute_incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b).

    It is evaluated as a continued fraction (DLMF 8.17.22,
    https://dlmf.nist.gov/8.17#v) by the modified Lentz method.
    """
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _compute_incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)) / a
    lower = 1.0 / _avoid_zero(1.0 - (a + b) * x / (a + 1.0))
    upper, value = 1.0, lower
    for step in range(2, 600):
        term = _compute_beta_numerator(a, b, x, step)
        lower = 1.0 / _avoid_zero(1.0 + term * lower)
        upper = _avoid_zero(1.0 + term / upper)
        value *= lower * upper
        if abs(lower * upper - 1.0) < _EXACT:
            break
    return min(1.0, front * value)


def _compute_beta_numerator(a: float, b: float, x: float, step: int) -> float:
    """Return a numerator of the incomplete beta function's continued fraction.

    :param step: index of the numerator.
    """
    half, odd = divmod(step, 2)
    if odd:
        return (-(a + half) * (a + b + half) * x
                / ((a + 2 * half) * (a + 2 * half + 1)))
    return half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))


def _avoid_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
