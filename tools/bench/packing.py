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


"""Mixes of guests, and what of their placements counts.

A mix is a list of guests that arrive one after the other. Hosts have what the
project is about: the CPUs and the memory of each NUMA node, its memory
bandwidth, its VFs, and the control groups of each host; the NUMA nodes of a
guest are on nodes of their own on one host. The optimum over all placements is
in packing_optimum.py.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import random

import numpy as np
from scipy import optimize

#: Nodes of the search tree of an answer.
MAX_NODES = 20_000
#: What each NUMA node has.
RESOURCES = ('cpus', 'memory_mb', 'bandwidth', 'vfs')


@dataclass(frozen=True)
class Node:
    """Resources of a NUMA node, or those that a guest needs of one.

    :param bandwidth: percent.
    """

    cpus: int
    memory_mb: int
    bandwidth: int
    vfs: int


@dataclass(frozen=True)
class Shape:
    """Some equal hosts.

    :param nodes: NUMA nodes of each.
    :param node: what each of them has.
    :param groups: control groups for guests of each host.
    """

    hosts: int = 4
    nodes: int = 2
    node: Node = Node(cpus=16, memory_mb=32768, bandwidth=100, vfs=8)
    groups: int = 12


@dataclass(frozen=True)
class Flavor:
    """A kind of guest.

    :param nodes: NUMA nodes.
    :param node: what each of them needs.
    """

    nodes: int
    node: Node

    @property
    def name(self) -> str:
        """Tells everything."""
        node = self.node
        return (f'{self.nodes}x{node.cpus}c{node.memory_mb}m'
                f'{node.bandwidth}b{node.vfs}v')


@dataclass(frozen=True)
class Placed:
    """Placement of a guest.

    :param host: a number.
    :param nodes: host NUMA node of each guest NUMA node.
    :param vfs: host NUMA node of each of its VFs.
    """

    host: int
    nodes: tuple[int, ...]
    vfs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Best:
    """Optimum of a mix of guests.

    :ivar value: of the best that was found.
    :ivar bound: no solution has more; equal where the optimum is proven.
    :ivar guests: how many those of the best are.
    """

    value: float
    bound: float
    guests: int


@dataclass(frozen=True)
class Stay:
    """A guest that comes and goes.

    :ivar value: worth times time that counts; 0 while hosts fill up.
    """

    guest: Flavor
    begin: float
    end: float
    value: float


# -- mixes --------------------------------------------------------------------


def flavors(shape: Shape, rng: random.Random, count: int) -> list[Flavor]:
    """Different kinds of guests, each with a need that stands out or none."""
    found: dict[str, Flavor] = {}
    while len(found) < count:
        node = shape.node
        cpus = rng.choice((1, 2, 2, 4, 4, 6, 8))
        part = cpus / node.cpus * rng.choice((0.5, 1, 1, 1.5))
        one = Flavor(
            1 if shape.nodes == 1 else rng.choice((1, 1, 2)),
            Node(cpus, max(256, int(part * node.memory_mb) // 256 * 256),
                 rng.choice((0, 10, 15, 20, 30, 40, 50, 60)),
                 rng.choice((0, 0, 1, 2, 3, 4))))
        found[one.name] = one
    return list(found.values())


def mix(shape: Shape, seed: int, kinds: int = 6, fill: float = 1.4,
        ) -> list[Flavor]:
    """Guests in the order of their arrival.

    :param kinds: how many flavors there are.
    :param fill: how often all of them would fill the hosts, by the resource
        that they need most of.
    """
    rng = random.Random(seed)  # noqa: S311
    choice = flavors(shape, rng, kinds)
    weights = [rng.uniform(0.2, 1) / worth(shape, one) for one in choice]
    guests: list[Flavor] = []
    while max(_parts(shape, guests)) < fill:
        guests += rng.choices(choice, weights)
    return guests


def _parts(shape: Shape, guests: Sequence[Flavor]) -> list[float]:
    """Return the needs of guests as shares of the totals of all hosts."""
    return [sum(guest.nodes * getattr(guest.node, name) for guest in guests)
            / (shape.hosts * shape.nodes * getattr(shape.node, name))
            for name in RESOURCES]


def worth(shape: Shape, guest: Flavor) -> float:
    """The mean of a guest's parts of all hosts."""
    return sum(_parts(shape, [guest])) / len(RESOURCES)


def need_of(shape: Shape, guests: Sequence[Flavor]) -> float:
    """Return what a guest needs on average, of what is scarcest.

    As a part of what all hosts have.
    """
    return max(_parts(shape, guests)) / len(guests)


def stays(shape: Shape, guests: Sequence[Flavor], seed: int, steps: int,
          load: float) -> Iterator[Stay]:
    """Yield guests that arrive at random and stay for an exponential time.

    :param guests: give the flavors and their frequency.
    :param load: what is asked for at a time, of what is scarcest.
    """
    rng = random.Random(seed)  # noqa: S311
    need, now = need_of(shape, guests), 0.0
    for step in range(steps):
        now += rng.expovariate(1)
        guest, stay = rng.choice(guests), rng.expovariate(need / load)
        yield Stay(guest, now, now + stay,
                   worth(shape, guest) * stay * (step >= steps // 5))


# -- what of placements counts ------------------------------------------------


def is_local(guest: Flavor, placed: Placed) -> bool:
    """Whether each guest node has its VFs from its own host node."""
    return all(placed.vfs.count(node) >= guest.node.vfs
               for node in placed.nodes)


def best(shape: Shape, guests: Sequence[Flavor],
         places: Sequence[Placed | None]) -> Best:
    """Return the most valuable guests that fit together where they are.

    :param places: of each guest; None where it does not count.
    """
    placed = [(guest, place) for guest, place
              in zip(guests, places, strict=True) if place]
    if not placed:
        return Best(0.0, 0.0, 0)
    worths = np.array([worth(shape, guest) for guest, _place in placed])
    rows, limits = _demands(shape, placed)
    found = optimize.milp(
        -worths, integrality=np.ones(len(placed)),
        bounds=optimize.Bounds(0, 1),
        constraints=optimize.LinearConstraint(rows, -np.inf, limits),
        options={'mip_rel_gap': 0, 'node_limit': MAX_NODES})
    taken = np.round(found.x)
    value = float(taken @ worths)
    return Best(value, max(value, -float(found.mip_dual_bound)),
                int(taken.sum()))


def in_turn(shape: Shape, guests: Sequence[Flavor],
            places: Sequence[Placed | None]) -> Best:
    """Return how many guests there are before the first that lacks anything.

    :param places: of each guest; None where it does not count.
    """
    placed: list[tuple[Flavor, Placed]] = []
    for guest, place in zip(guests, places, strict=True):
        if place is None:
            break
        rows, limits = _demands(shape, [*placed, (guest, place)])
        if (rows.sum(axis=1) > limits).any():
            break
        placed.append((guest, place))
    return Best(len(placed), len(placed), len(placed))


def _demands(shape: Shape, placed: Sequence[tuple[Flavor, Placed]],
             ) -> tuple[np.ndarray, np.ndarray]:
    """Return what each guest needs, by column, and what there is, by row.

    A row for each resource of each node, and one for the control groups of
    each host.
    """
    rows, limits = [], []
    for host in range(shape.hosts):
        rows.append([place.host == host and bool(guest.node.bandwidth)
                     for guest, place in placed])
        limits.append(shape.groups)
        for node, name in itertools.product(range(shape.nodes), RESOURCES):
            rows.append([getattr(guest.node, name)
                         * (place.host == host and node in place.nodes)
                         for guest, place in placed])
            limits.append(getattr(shape.node, name))
    return np.array(rows, float), np.array(limits, float)
