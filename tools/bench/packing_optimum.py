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

"""Exact optimum of packing, by patterns of a host.

A pattern is how many guests of each flavor one host holds. Hosts are alike,
so what all of them hold is a number of hosts for each pattern: a mixed integer
program with few variables, which HiGHS proves in milliseconds. With a variable
for each guest and place it is not proven in minutes.

The optimum refuses cheap guests for dear ones. What can be had by refusing
none that fits is less: the repacking ceiling takes each guest if it and all
that are there can be packed at all, by as many migrations as that takes.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
import itertools

import numpy as np
from packing import Best
from packing import Flavor
from packing import need_of
from packing import Node
from packing import RESOURCES
from packing import Shape
from packing import Stay
from packing import worth
from scipy import optimize

#: Fillings and patterns that are looked at, at most.
MAX_STEPS = 1_000_000
#: Nodes of the search tree of an answer.
MAX_NODES = 20_000

_Free = tuple[int, ...]


class TooManyPatterns(Exception):
    """A mix whose patterns are too many to be listed."""


@dataclass(frozen=True)
class Patterns:
    """Sets of guests that one host can hold.

    :param flavors: of the columns.
    :param counts: the greatest patterns, a row for each: no other holds as
        many of each flavor.
    :param worths: of a guest of each flavor.
    """

    shape: Shape
    flavors: tuple[Flavor, ...]
    counts: np.ndarray
    worths: np.ndarray

    def numbers(self, guests: Sequence[Flavor]) -> np.ndarray:
        """Return how many of some guests are of each flavor."""
        found = Counter(guests)
        return np.array([found[flavor] for flavor in self.flavors], float)


def patterns(shape: Shape, guests: Sequence[Flavor]) -> Patterns:
    """Return the patterns of a host for the flavors of some guests.

    :raises TooManyPatterns: where there are more than :data:`MAX_STEPS`.
    """
    flavors = tuple(dict.fromkeys(guests))
    steps = _Steps()
    found = []
    for wide, free in set(_wide(shape, flavors, steps)):
        rows = np.array([wide])
        for node in free:
            filled = np.array([*_fillings(flavors, node, steps)])
            steps.take(len(rows) * len(filled))
            rows = _greatest((rows[:, None] + filled[None]).reshape(
                -1, len(flavors)))
        found.append(rows)
    return Patterns(shape, flavors, _greatest(_within_groups(
        shape, flavors, _greatest(np.concatenate(found)), steps)),
        np.array([worth(shape, flavor) for flavor in flavors]))


class _Steps:
    """Counts what is looked at, and ends where it is too much."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, number: int = 1) -> None:
        self._left -= number
        if self._left < 0:
            raise TooManyPatterns(
                'there are too many patterns of a host: take fewer flavors '
                '(--kinds) or NUMA nodes (--nodes)')


def _amounts(node: Node) -> _Free:
    return tuple(getattr(node, name) for name in RESOURCES)


def _less(free: _Free, need: _Free) -> _Free | None:
    """Return what a guest node leaves; None where it has no room."""
    left = tuple(have - want for have, want in zip(free, need, strict=True))
    return left if min(left) >= 0 else None


def _wide(shape: Shape, flavors: Sequence[Flavor], steps: _Steps,
          ) -> Iterator[tuple[tuple[int, ...], tuple[_Free, ...]]]:
    """Yield guests of several nodes, and what they leave of each node.

    Nodes are alike, so what is left is in ascending order.
    """
    state = (0,) * len(flavors), (_amounts(shape.node),) * shape.nodes
    seen, open_ = {state}, [state]
    while open_:
        counts, free = state = open_.pop()
        yield state
        for number, flavor in enumerate(flavors):
            if flavor.nodes == 1:
                continue
            for nodes in itertools.combinations(range(shape.nodes),
                                                flavor.nodes):
                steps.take()
                left = [_less(have, _amounts(flavor.node))
                        if node in nodes else have
                        for node, have in enumerate(free)]
                if None in left:
                    continue
                more = tuple(count + (place == number)
                             for place, count in enumerate(counts))
                new = more, tuple(sorted(left))
                if new not in seen:
                    seen.add(new)
                    open_.append(new)


def _fillings(flavors: Sequence[Flavor], free: _Free,
              steps: _Steps) -> Iterator[list[int]]:
    """Yield guests of one node that fill it: no other has room beside."""
    narrow = [(number, _amounts(flavor.node))
              for number, flavor in enumerate(flavors) if flavor.nodes == 1]

    def fill(place: int, left: _Free, counts: list[int]
             ) -> Iterator[list[int]]:
        steps.take()
        if place == len(narrow):
            if all(_less(left, need) is None for _number, need in narrow):
                yield counts
            return
        number, need = narrow[place]
        rest: _Free | None = left
        count = 0
        while rest is not None:
            yield from fill(place + 1, rest, [
                *counts[:number], count, *counts[number + 1:]])
            rest, count = _less(rest, need), count + 1
    return fill(0, free, [0] * len(flavors))


def _within_groups(shape: Shape, flavors: Sequence[Flavor],
                   rows: np.ndarray, steps: _Steps) -> np.ndarray:
    """Return patterns with no more guests than there are control groups."""
    controlled = np.array([bool(flavor.node.bandwidth) for flavor in flavors])
    done, open_ = [], [tuple(map(int, row)) for row in rows]
    seen = set(open_)
    while open_:
        row = open_.pop()
        steps.take()
        if sum(itertools.compress(row, controlled)) <= shape.groups:
            done.append(row)
            continue
        for number in np.flatnonzero(controlled):
            fewer = tuple(count - (place == number)
                          for place, count in enumerate(row))
            if min(fewer) >= 0 and fewer not in seen:
                seen.add(fewer)
                open_.append(fewer)
    return np.array(done)


def _greatest(rows: np.ndarray) -> np.ndarray:
    """Return the rows that no other row is at least equal to."""
    rows = np.unique(rows, axis=0)
    rows = rows[np.argsort(-rows.sum(axis=1), kind='stable')]
    kept = np.empty_like(rows)
    number = 0
    for row in rows:
        if not (kept[:number] >= row).all(axis=1).any():
            kept[number] = row
            number += 1
    return kept[:number]


# -- answers ------------------------------------------------------------------


def best(of: Patterns, guests: Sequence[Flavor]) -> Best:
    """Return the most valuable guests that can be packed together."""
    found = _taken(of, of.numbers(guests), integrality=1)
    taken = np.round(found.x[len(of.counts):])
    return Best(float(taken @ of.worths), max(
        float(taken @ of.worths), -float(found.mip_dual_bound)),
        int(taken.sum()))


def churn_bound(of: Patterns, guests: Sequence[Flavor],
                load: float) -> float:
    """Return the part of worth times time that no scheduler can exceed.

    :param guests: give the flavors and their frequency.
    :param load: what is asked for at a time, of what is scarcest.
    """
    asked = of.numbers(guests) / len(guests) * load / need_of(
        of.shape, guests)
    found = _taken(of, asked, integrality=0)
    return float(-found.fun / (asked @ of.worths))


def _taken(of: Patterns, asked: np.ndarray,
           integrality: int) -> optimize.OptimizeResult:
    """Choose patterns for all hosts, and guests of those asked for."""
    hosts, flavors = len(of.counts), len(of.flavors)
    fits = optimize.LinearConstraint(
        np.hstack([-of.counts.T, np.eye(flavors)]), -np.inf, 0)
    enough = optimize.LinearConstraint(
        np.concatenate([np.ones(hosts), np.zeros(flavors)])[None],
        0, of.shape.hosts)
    return optimize.milp(
        np.concatenate([np.zeros(hosts), -of.worths]),
        constraints=[fits, enough], integrality=np.full(
            hosts + flavors, integrality),
        bounds=optimize.Bounds(0, np.concatenate(
            [np.full(hosts, of.shape.hosts), asked])),
        options={'mip_rel_gap': 0, 'node_limit': MAX_NODES})


class Repacking:
    """Hosts that repack all their guests at each arrival."""

    def __init__(self, of: Patterns) -> None:
        self._of = of
        self._numbers = np.zeros(len(of.flavors))
        self._held = np.zeros(len(of.flavors))

    def take(self, guest: Flavor) -> bool:
        """Take a guest if it and all others can be packed."""
        self._numbers[self._of.flavors.index(guest)] += 1
        if self.packable(self._numbers):
            return True
        self.give(guest)
        return False

    def give(self, guest: Flavor) -> None:
        """Release the resources of a guest."""
        self._numbers[self._of.flavors.index(guest)] -= 1

    def packable(self, numbers: np.ndarray) -> bool:
        """Whether so many guests of each flavor can be packed together."""
        if (self._held >= numbers).all():
            return True
        of = self._of
        found = optimize.milp(
            np.zeros(len(of.counts)), integrality=np.ones(len(of.counts)),
            constraints=[
                optimize.LinearConstraint(of.counts.T, numbers, np.inf),
                optimize.LinearConstraint(np.ones((1, len(of.counts))), 0,
                                          of.shape.hosts)],
            bounds=optimize.Bounds(0, of.shape.hosts),
            options={'node_limit': MAX_NODES})
        if found.x is None:
            return False
        self._held = np.round(found.x) @ of.counts
        return True


def in_turn(of: Patterns, guests: Sequence[Flavor]) -> Best:
    """Return how many guests there may be before the first without a place.
    """
    hosts, number = Repacking(of), 0
    while number < len(guests) and hosts.take(guests[number]):
        number += 1
    return Best(number, number, number)


def ceiling(of: Patterns, guests: Sequence[Flavor]) -> float:
    """Return the worth of guests with repacking, as parts of all hosts."""
    hosts = Repacking(of)
    return sum(worth(of.shape, guest) for guest in guests
               if hosts.take(guest))


def churn_ceiling(of: Patterns, stays: Sequence[Stay]) -> float:
    """Return the part of the worth times time that is served by repacking.

    :param stays: guests that come and go.
    """
    hosts, served, asked = Repacking(of), 0.0, 0.0
    live: list[tuple[float, Flavor]] = []
    for stay in stays:
        for end, guest in live:
            if end <= stay.begin:
                hosts.give(guest)
        live = [one for one in live if one[0] > stay.begin]
        asked += stay.value
        if hosts.take(stay.guest):
            live.append((stay.end, stay.guest))
            served += stay.value
    return served / asked
