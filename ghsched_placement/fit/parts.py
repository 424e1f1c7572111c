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

"""Amounts that are taken from as few of several stocks as possible (pure).

The stocks are, for instance, the dedicated CPUs of each L3 cache of a host
NUMA node.
"""

import bisect
from collections.abc import Iterable
from collections.abc import Sequence
import itertools


def count_least_parts(totals: Iterable[int], amount: int) -> int:
    """Return the fewest stocks that hold an amount if nothing is used.

    :param totals: amount of each stock.
    :returns: 0 if all of them together are too small.
    """
    sums = itertools.accumulate(sorted(totals, reverse=True))
    return next((parts for parts, total in enumerate(sums, 1)
                 if total >= amount), 0)


def choose_parts(free: Sequence[int], amount: int,
                 parts: int) -> tuple[int, ...]:
    """Choose the stocks from which an amount is taken.

    They are those with most left, except the last, which has the least left
    that suffices, so that unused stocks are kept for others. Of equal stocks
    the first is chosen.

    :param free: amount left of each stock.
    :param parts: number of stocks.
    :returns: positions of the stocks; empty if so few do not suffice.
    """
    largest = sorted(range(len(free)), key=lambda place: -free[place])
    chosen, others = largest[:parts - 1], largest[parts - 1:]
    rest = amount - sum([free[place] for place in chosen])
    last = min((place for place in others if free[place] >= rest),
               key=lambda place: free[place], default=None)
    return () if last is None else (*chosen, last)


def take_amounts(free: Sequence[int], amount: int, parts: int,
                 times: int = 1) -> tuple[int, ...]:
    """Return what is left of each stock after an amount is taken.

    Less is taken if so few stocks do not suffice.

    :param free: amount left of each stock.
    :param parts: maximum number of stocks for each time.
    :param times: number of times that the amount is taken.
    """
    left = list(free)
    for _time in range(times if amount else 0):
        chosen = next(filter(None, (
            choose_parts(left, amount, number)
            for number in range(1, parts + 1))), ())
        rest = amount
        for place in chosen:
            taken = min(left[place], rest)
            left[place] -= taken
            rest -= taken
        if rest:
            break
    return tuple(left)


def count_amounts(free: Sequence[int], amount: int, parts: int) -> int:
    """Return how often an amount can be taken.

    :param free: amount left of each stock.
    :param parts: maximum number of stocks for each time.
    """
    if parts == 1:
        return sum([max(0, left) // amount for left in free])
    left, times = sorted(filter(None, free)), 0
    while amount and _take_from_sorted(left, amount, parts):
        times += 1
    return times


def _take_from_sorted(left: list[int], amount: int, parts: int) -> bool:
    """Take an amount as :func:`take_amounts` does, from sorted stocks.

    :param left: amounts that are left, in ascending order; changed in place.
    :returns: whether so few stocks suffice.
    """
    for others in range(len(left) - 1, max(-1, len(left) - 1 - parts), -1):
        place = bisect.bisect_left(left, amount, 0, others + 1)
        if place <= others:
            rest = left.pop(place) - amount
            del left[others:]
            if rest:
                bisect.insort(left, rest)
            return True
        amount -= left[others]
    return False
