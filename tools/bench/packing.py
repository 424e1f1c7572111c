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


"""Mixes of guests, and the best that could be done with them.

A mix is a list of guests that arrive one after the other. What a set of
placements is worth, and the optimum over all placements, come of one model,
which OR-tools' CP-SAT solves. It has what the project is about: the CPUs and
the memory of each host NUMA node, its memory bandwidth, its VFs, and the
control groups of each host; the NUMA nodes of a guest are on nodes of their
own on one host.
"""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import random

from ortools.sat.python import cp_model

#: A guest is worth its part of all hosts, in millionths.
_UNIT = 10 ** 6
_RESOURCES = ('cpus', 'memory_mb', 'bandwidth', 'vfs')


@dataclass(frozen=True)
class Node:
    """What a NUMA node has, or what a guest needs of one.

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
    """Where a guest is.

    :param host: a number.
    :param nodes: host NUMA node of each guest NUMA node.
    :param vfs: host NUMA node of each of its VFs.
    """

    host: int
    nodes: tuple[int, ...]
    vfs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Best:
    """What is the most that can be had.

    :ivar value: of the best that was found.
    :ivar bound: no solution has more; equal where the optimum is proven.
    :ivar guests: how many those of the best are.
    """

    value: float
    bound: float
    guests: int


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
    """What guests need, as parts of what all hosts have."""
    return [sum(guest.nodes * getattr(guest.node, name) for guest in guests)
            / (shape.hosts * shape.nodes * getattr(shape.node, name))
            for name in _RESOURCES]


def worth(shape: Shape, guest: Flavor) -> float:
    """The mean of a guest's parts of all hosts."""
    return sum(_parts(shape, [guest])) / len(_RESOURCES)


# -- the model ----------------------------------------------------------------


def everywhere(shape: Shape, guest: Flavor) -> Iterator[Placed]:
    """All ways to place a guest, with its VFs where they belong."""
    for host in range(shape.hosts):
        for nodes in itertools.permutations(range(shape.nodes), guest.nodes):
            yield Placed(host, nodes, tuple(
                node for node in nodes for _vf in range(guest.node.vfs)))


def is_local(guest: Flavor, placed: Placed) -> bool:
    """Whether each guest node has its VFs from its own host node."""
    return all(placed.vfs.count(node) >= guest.node.vfs
               for node in placed.nodes)


def best(shape: Shape, guests: Sequence[Flavor],
         options: Sequence[Sequence[Placed]], limit: float = 30.0) -> Best:
    """The most valuable guests that can be where they may be, all together.

    :param options: where each guest may be.
    :param limit: seconds.
    :raises RuntimeError: when nothing at all was found in this time.
    """
    model, taken = _model(shape, guests, options)
    model.maximize(sum(
        round(_UNIT * worth(shape, guest)) * one
        for guest, one in zip(guests, taken, strict=True)))
    solver, status = _solve(model, limit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise RuntimeError(f'CP-SAT: {solver.status_name(status)}')
    # Adding 0 makes 0 of CP-SAT's -0.
    return Best(solver.objective_value / _UNIT + 0.0,
                solver.best_objective_bound / _UNIT + 0.0,
                sum(solver.value(one) for one in taken))


def in_turn(shape: Shape, guests: Sequence[Flavor],
            options: Sequence[Sequence[Placed]],
            limit: float = 30.0) -> Best:
    """How many guests there may be before the first that has no place.

    The value is their number. Whether so many can be placed is asked of one
    number after the other, by halves; it is much easier to answer than to
    find the most.

    :param limit: seconds for each answer.
    """
    most, proven, least_open = 0, len(guests) + 1, len(guests) + 1
    while most + 1 < least_open:
        number = (most + least_open) // 2
        model, taken = _model(shape, guests[:number], options)
        for one in taken:
            model.add(one == 1)
        _solver, status = _solve(model, limit)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            most = number
        else:
            least_open = number
            if status == cp_model.INFEASIBLE:
                proven = number
    return Best(most, proven - 1, most)


def _model(shape: Shape, guests: Sequence[Flavor],
           options: Sequence[Sequence[Placed]],
           ) -> tuple[cp_model.CpModel, list[cp_model.LinearExprT]]:
    """The model, and for each guest whether it is placed, 0 or 1."""
    model = cp_model.CpModel()
    chosen = [[(place, model.new_bool_var('')) for place in places]
              for _guest, places in zip(guests, options, strict=False)]
    taken = [cp_model.LinearExpr.sum(
        [variable for _place, variable in choice]) for choice in chosen]
    for choice in chosen:
        model.add_at_most_one(variable for _place, variable in choice)
    _respect(model, shape, guests, chosen)
    return model, taken


def _solve(model: cp_model.CpModel,
           limit: float) -> tuple[cp_model.CpSolver, int]:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 1
    return solver, solver.solve(model)


_Chosen = Sequence[Sequence[tuple[Placed, cp_model.IntVar]]]


def _respect(model: cp_model.CpModel, shape: Shape,
             guests: Sequence[Flavor], chosen: _Chosen) -> None:
    """Nothing is given out twice."""
    on_node = collections.defaultdict(list)
    on_host = collections.defaultdict(list)
    for guest, choice in zip(guests, chosen, strict=True):
        for place, variable in choice:
            for node in place.nodes:
                on_node[place.host, node].append((guest.node, variable))
            if guest.node.bandwidth:
                on_host[place.host].append(variable)
    for there in on_node.values():
        for name in _RESOURCES:
            model.add(sum(getattr(need, name) * variable
                          for need, variable in there)
                      <= getattr(shape.node, name))
    for variables in on_host.values():
        model.add(sum(variables) <= shape.groups)
