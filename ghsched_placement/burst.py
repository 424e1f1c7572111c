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

"""How much bandwidth a host NUMA node may promise as bursts (pure).

A part of each node, the pool, is kept for bursts. Guests are promised more of
it in all than there is, because they seldom want it at the same time. How
seldom is measured: in each period, what all guests of the node use of their
bursts is a share of what they are promised, from 0 to 1. Its distribution is
taken for a beta distribution with the mean and the variance that have been
measured: that is right for a single guest which is either idle or busy (its
limit has two points), and near to normal for many guests, and it never leaves
0 to 1. With more guests the variance falls, as far as they are independent of
each other::

    variance of the sum's share = v * (correlation + (1 - correlation) / n)

where v is the variance of one guest's share and n the number of guests, that
of equal ones with the same variance (sum squared over sum of squares).

A window shows few of the times at which many guests are busy together, and
what it shows varies by chance: nodes that happen to look idle would be filled,
and their guests stay. So what is offered is the least that was allowed in any
hour of the last window.

What is allowed is the most that is promised so that the pool is too small in
no more than the allowed part of the periods. This decides what Placement may
give to guests that come. What the kernel holds for a guest does not depend on
it, and nothing follows the load from period to period.
"""

import bisect
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
import functools
import math
import operator

#: The node is full when this part of what it can deliver is used.
FULL = 0.95

#: Part of the hours of a window that must have been measured.
_COVERED = 0.9

#: How many times what was promised over the window may be promised: a few
#: guests say little of many, and what many do together is measured before
#: there are still more.
_GROWTH = 1.5

#: By what part an allowed amount must exceed the one before to be offered, so
#: that a figure which wavers is not written to Placement each time.
_RAISE = 0.1

_HOUR = 3600

#: Where the continued fraction ends.
_EXACT = 1e-12


@dataclass(frozen=True)
class Limits:
    """What an admin decides.

    :param window: hours that are looked back on.
    :param percentile: percent of the periods in which the pool suffices.
    :param correlation: what guests have in common at least, 0 to 1.
    :param safety: how many times as busy as measured guests are taken to be.
    :param ratio: how many times the pool is promised at most.
    """

    window: int = 24
    percentile: float = 99.0
    correlation: float = 0.3
    safety: float = 1.2
    ratio: float = 3.0


@dataclass(frozen=True)
class Share:
    """Use of a guest's burst in one period.

    :param promised: percent of the node.
    :param used: percent of the node.
    :param project: UUID of the guest's project; empty where it is unknown.
    """

    promised: int
    used: float
    project: str = ''


@dataclass(frozen=True)
class Hour:
    """Sums over the periods of one hour.

    :param number: hours since 1970.
    :param periods: how many.
    :param promised: percent, summed.
    :param mean: shares of what is promised that are used, summed.
    :param square: squares of these, summed.
    :param own: squares of the guests' own shares, by what each is promised,
        summed.
    :param guests: how many equal guests they are like, summed.
    :param over: periods in which bursts used all of the pool, or more.
    :param short: those of them in which the node was full besides, and some
        guest had less than its burst.
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

    def plus(self, other: 'Hour') -> 'Hour':
        """Both together, with the number of this one."""
        return Hour(self.number, *map(
            operator.add, list(vars(self).values())[1:],
            list(vars(other).values())[1:]))


@dataclass(frozen=True)
class Measured:
    """Of the guests of a node over a window.

    :param promised: percent, on average.
    :param mean: share of it that is used.
    :param variance: of one guest's share.
    :param correlation: of the guests with each other.
    :param guests: how many equal guests they are like.
    :param over: part of the periods in which they used all of the pool.
    """

    promised: float
    mean: float
    variance: float
    correlation: float
    guests: float
    over: float = 0.0


def period(number: int, shares: Sequence[Share], pool: float,
           full: bool) -> Hour:
    """What one period adds to its hour; nothing where nobody has a burst.

    :param number: of the hour, see :class:`Hour`.
    :param pool: percent of the node that is really there for bursts.
    :param full: whether the node can deliver no more.
    """
    promised = sum(share.promised for share in shares)
    if not promised:
        return Hour(number)
    used = sum(min(share.used, share.promised) for share in shares)
    part = min(1.0, used / promised)
    own = sum(share.promised / promised
              * min(1.0, share.used / share.promised) ** 2
              for share in shares if share.promised)
    over = used >= pool
    return Hour(
        number, 1, promised, part, part ** 2, own,
        promised ** 2 / sum(share.promised ** 2 for share in shares),
        int(over), int(over and full and used < promised))


def added(hours: Iterable[Hour], one: Hour, window: int) -> tuple[Hour, ...]:
    """The hours of the window with one more period, the oldest first."""
    kept = [hour for hour in hours
            if one.number - window < hour.number <= one.number]
    if kept and kept[-1].number == one.number:
        kept[-1] = kept[-1].plus(one)
    elif one.periods:
        kept.append(one)
    return tuple(kept)


def hour_of(now: float) -> int:
    """Number of the hour of a time in seconds since 1970."""
    return int(now // _HOUR)


def measured(hours: Sequence[Hour], limits: Limits) -> Measured | None:
    """What is known of a window; None before all of it has been seen.

    A load that comes once a day is not in what was measured for less.
    """
    known = [hour for hour in hours if hour.periods]
    if (len(known) < _COVERED * limits.window
            or known[-1].number - known[0].number < limits.window - 2):
        return None
    total = functools.reduce(Hour.plus, known)
    count = total.periods
    mean, guests = total.mean / count, total.guests / count
    own = max(0.0, total.own / count - mean ** 2)
    together = max(0.0, total.square / count - mean ** 2)
    correlation = 1.0
    if own and guests > 1:
        correlation = (together / own - 1 / guests) / (1 - 1 / guests)
    return Measured(
        total.promised / count, mean, own,
        min(1.0, max(limits.correlation, correlation)) if guests > 1
        else limits.correlation, guests, total.over / count)


def short_chance(found: Measured, promised: float, pool: float,
                 limits: Limits) -> float:
    """Part of the periods in which a pool is too small (0 to 1).

    :param promised: percent, in all.
    :param pool: percent.
    """
    if promised <= pool:
        return 0.0
    mean = min(1.0, found.mean * limits.safety)
    spread = found.mean * (1 - found.mean)
    if not 0 < mean < 1 or not spread:
        return float(mean * promised > pool)
    # As unsteady as measured, for a mean of its own.
    one = found.variance * mean * (1 - mean) / spread
    guests = max(1.0, found.guests * promised / found.promised)
    variance = one * (found.correlation + (1 - found.correlation) / guests)
    return _beta_above(mean, variance, pool / promised)


def allowed(hours: Sequence[Hour], pool: float, limits: Limits) -> int:
    """Percent that may be promised as bursts, in all.

    The pool itself, as if no burst were oversubscribed, where too little is
    known.
    """
    base = max(0, math.floor(pool))
    found = measured(hours, limits)
    if found is None:
        return base
    chance = 1 - limits.percentile / 100
    # Whatever the model says: where it has been too much, there is no more.
    growth = _GROWTH if found.over <= chance else 1
    most = math.floor(min(pool * limits.ratio,
                          max(pool, found.promised * growth)))
    # The more is promised, the likelier it is too much.
    return base + bisect.bisect(
        range(base + 1, most + 1), chance,
        key=lambda promised: short_chance(found, promised, pool, limits))


def lowest(before: Sequence[tuple[int, int]], hour: int, now: int,
           window: int) -> tuple[tuple[int, int], ...]:
    """The least that was allowed in each hour of a window, the oldest first.

    :param before: number of the hour and percent, without the last period.
    :param now: percent that the last period allows.
    """
    kept = [one for one in before if hour - window < one[0] <= hour]
    if kept and kept[-1][0] == hour:
        kept[-1] = hour, min(kept[-1][1], now)
    else:
        kept.append((hour, now))
    return tuple(kept)


def settled(before: int, now: int) -> int:
    """What to offer: less at once, more only when it is clearly more."""
    return now if now < before or now >= before * (1 + _RAISE) else before


def _beta_above(mean: float, variance: float, value: float) -> float:
    """Chance that a beta distributed quantity exceeds a value.

    :param value: between 0 and 1, both excluded.
    """
    most = mean * (1 - mean)
    if variance <= most * 1e-9:
        return float(mean > value)
    if variance >= most * (1 - 1e-9):
        return mean         # nothing but 0 and 1
    shape = most / variance - 1
    # As the share of what is unused: no cancellation at the upper end.
    return _beta_below(shape * (1 - mean), shape * mean, 1 - value)


def _beta_below(a: float, b: float, x: float) -> float:
    """Regularized incomplete beta function, by its continued fraction.

    DLMF 8.17.22 (https://dlmf.nist.gov/8.17#v), evaluated from the front
    (modified Lentz method).
    """
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_below(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)) / a
    lower = 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    upper, value = 1.0, lower
    for step in range(2, 600):
        term = _term(a, b, x, step)
        lower = 1.0 / _not_zero(1.0 + term * lower)
        upper = _not_zero(1.0 + term / upper)
        value *= lower * upper
        if abs(lower * upper - 1.0) < _EXACT:
            break
    return min(1.0, front * value)


def _term(a: float, b: float, x: float, step: int) -> float:
    """Numerator of the continued fraction, from the second on."""
    half, odd = divmod(step, 2)
    if odd:
        return (-(a + half) * (a + b + half) * x
                / ((a + 2 * half) * (a + 2 * half + 1)))
    return half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
