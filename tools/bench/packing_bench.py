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


"""Compare the packing of guests of random flavors with the exact optimum.

Two parts: ways to choose hosts, on tables of numbers, for all mixes, and with
guests that come and go; and, with ``--clouds``, whole clouds for the first
mixes.

The optimum knows all guests beforehand and is free to refuse any of them
(packing_optimum.py). No scheduler that takes guests as they come can reach it,
and none may refuse a guest that fits; so ways are compared with the *repacking
ceiling* too, what perfect repacking with any number of migrations would have.
With guests that come and go they are compared with a bound that no scheduler
can exceed, and for the first --ceilings mixes with the repacking ceiling.

The hosts are simulated: each NUMA node has CPUs, memory, memory bandwidth and
VFs, and each host has control groups. Guests of a random mix of flavors
arrive one after the other, in a cloud with ghsched and in two with Nova
alone: as it is by default, and told to pack. All of Nova's services and
Placement are the real ones, in one process; see packing_cloud.py.

A guest counts when it runs, its bandwidth is there for it, and each of its
NUMA nodes has its VFs from its own host node. With ghsched all of them do.
Nova alone takes no notice of bandwidth, and of VFs as far as
``hw:pci_numa_affinity_policy=required`` goes; so of its guests the most
valuable ones are taken that fit, as if somebody had refused the others. That
is hindsight, which nobody has; so there is "strict" as well: only the guests
on NUMA nodes that are not oversubscribed, all of whose guests have what they
asked for. A guest is worth the mean of its parts of all CPUs, memory,
bandwidth and VFs.

Beside the value there is a second figure, "in turn": how many guests there are
before the first that is refused or does not count.

usage::

    python tools/bench/packing_bench.py [--mixes 35] [--clouds 5]
"""

import bench_path  # noqa: F401

import argparse
import collections
from collections.abc import Sequence
from dataclasses import dataclass
import functools
import platform
import statistics

import packing
from packing import Best
from packing import Flavor
from packing import Placed
from packing import Shape
import packing_optimum
import packing_policies

OPTIMUM = 'optimum'


@dataclass(frozen=True)
class Result:
    """Result of one mix of guests under one packing policy.

    :ivar running: how many guests run, whether they count or not.
    :ivar all: of all guests; see :class:`packing.Best`.
    :ivar in_turn: of the guests before the first that is refused.
    :ivar strict: worth of the guests on nodes that are not oversubscribed.
    """

    running: int
    all: Best
    in_turn: Best
    strict: float = 0.0


def count_placements(shape: Shape, guests: Sequence[Flavor],
                     placed: Sequence[Placed | None]) -> Result:
    """Return the figures that count of a scheduler's placements."""
    places = [place if place and packing.is_local(guest, place) else None
              for guest, place in zip(guests, placed, strict=True)]
    return Result(sum(place is not None for place in placed),
                  packing.best(shape, guests, places),
                  packing.in_turn(shape, guests, places),
                  strict(shape, guests, placed))


def strict(shape: Shape, guests: Sequence[Flavor],
           placed: Sequence[Placed | None]) -> float:
    """Worth of the guests that run where nobody lacks anything.

    On nodes whose guarantees add up to no more than there is, with their VFs
    from there, on hosts with a control group for each guarantee.
    """
    there = [(guest, place) for guest, place
             in zip(guests, placed, strict=True) if place]
    share = collections.Counter[tuple[int, int]]()
    groups = collections.Counter[int]()
    for guest, place in there:
        groups[place.host] += bool(guest.node.bandwidth)
        for node in place.nodes:
            share[place.host, node] += guest.node.bandwidth
    return sum(
        packing.worth(shape, guest) for guest, place in there
        if packing.is_local(guest, place) and groups[place.host]
        <= shape.groups and all(share[place.host, node]
                                <= shape.node.bandwidth
                                for node in place.nodes))


def optimum(shape: Shape, guests: Sequence[Flavor]) -> Result:
    """The most that any placements could have."""
    patterns = packing_optimum.patterns(shape, guests)
    best = packing_optimum.best(patterns, guests)
    return Result(best.guests, best, packing_optimum.in_turn(
        patterns, guests), best.value)


def measure(shape: Shape, guests: Sequence[Flavor]) -> dict[str, Result]:
    """The optimum and each kind of cloud, by name."""
    # Nova's functional tests, which no other part needs.
    import packing_cloud
    import simulated_placement
    found = {OPTIMUM: optimum(shape, guests)}
    for name, kind in packing_cloud.KINDS.items():
        # Nova's tests leave threads behind.
        placed = simulated_placement.in_child(functools.partial(
            packing_cloud.place_guests, kind, shape, guests))
        found[name] = count_placements(shape, guests, placed)
    return found


def ratios(results: dict[str, Result], name: str) -> tuple[float, float]:
    """Parts of the optimum, or of its bound: of value, and in turn."""
    most, mine = results[OPTIMUM], results[name]
    return (mine.all.value / most.all.bound,
            mine.in_turn.value / most.in_turn.bound)


def show(results: dict[str, Result]) -> None:
    most = results[OPTIMUM]
    proven = all(round(one.bound - one.value, 6) <= 0
                 for one in (most.all, most.in_turn))
    for name, result in results.items():
        value, in_turn = ratios(results, name)
        told = ('proven' if proven else
                f'bounds {most.all.bound:.3f} and {most.in_turn.bound:.0f}'
                ) if name == OPTIMUM else (
                    f'ratio {value:.3f}, in turn {in_turn:.3f}')
        print(f'  {name:14} {result.running:3} run, {result.all.guests:3} '
              f'count, value {result.all.value:.3f}, in turn '
              f'{result.in_turn.value:3.0f}, strict {result.strict:.3f}  '
              f'{told}', flush=True)


def summary(every: Sequence[dict[str, Result]]) -> None:
    print(f'\nparts of the optimum, {len(every)} mixes, simulated hosts')
    for name in list(every[0])[1:]:
        of_mixes = [(*ratios(results, name), results[name].strict
                     / results[OPTIMUM].all.bound) for results in every]
        for what, values in zip(('value', 'in turn', 'strict'),
                                zip(*of_mixes, strict=True), strict=True):
            print(f'{name:14} {what:8} median '
                  f'{statistics.median(values):.3f}  least '
                  f'{min(values):.3f}  most {max(values):.3f}')


# -- choosing hosts, on tables of numbers -------------------------------------

_CLAIRVOYANT = 'clairvoyant, no refusal'
_CEILING = 'repacking ceiling'

#: Figures of each mix, by way to choose hosts.
Figures = dict[str, list[float]]


def policies(shape: Shape, options: argparse.Namespace) -> None:
    """All mixes, and churn, by each way to choose hosts."""
    values: Figures = {}
    churn: Figures = {}
    proven = 0
    for seed in range(options.seed, options.seed + options.mixes):
        guests = packing.mix(shape, seed, options.kinds, options.fill)
        patterns = packing_optimum.patterns(shape, guests)
        most = packing_optimum.best(patterns, guests)
        proven += most.bound - most.value < 1e-6
        _add(values, most.bound, _arrivals(shape, guests, patterns, seed))
        _add(churn, packing_optimum.churn_bound(
            patterns, guests, packing_policies.LOAD), _comings_and_goings(
                shape, guests, patterns, seed, options))
    print(f'\nparts of the optimum, proven in {proven} of {options.mixes} '
          'mixes, simulated')
    _compare(values)
    print('\nchurn: parts of the worth x time that could be served, '
          f'{options.churn} arrivals each, simulated')
    _compare(churn)


def _add(figures: Figures, most: float, found: dict[str, float]) -> None:
    """Add what one mix has, as parts of what it could have."""
    for name, value in found.items():
        figures.setdefault(name, []).append(value / most)


def _arrivals(shape: Shape, guests: Sequence[Flavor],
              patterns: packing_optimum.Patterns,
              seed: int) -> dict[str, float]:
    """Worth of the guests that find room, by way to choose hosts."""
    found = {name: packing_policies.arrive(shape, guests, chooser, known)
             for name, (chooser, known)
             in packing_policies.CHOOSERS.items()}
    found[_CLAIRVOYANT] = packing_policies.clairvoyant(
        shape, guests, 100, seed)
    found[_CEILING] = packing_optimum.ceiling(patterns, guests)
    return found


def _comings_and_goings(shape: Shape, guests: Sequence[Flavor],
                        patterns: packing_optimum.Patterns, seed: int,
                        options: argparse.Namespace) -> dict[str, float]:
    """Part of the worth x time that is served, by way to choose hosts."""
    found = {name: packing_policies.churn(shape, guests, chooser, seed,
                                          options.churn)
             for name, (chooser, known)
             in packing_policies.CHOOSERS.items() if not known}
    if seed < options.seed + options.ceilings:
        found[_CEILING] = packing_optimum.churn_ceiling(patterns, [
            *packing.stays(shape, guests, seed, options.churn,
                           packing_policies.LOAD)])
    return found


def _compare(values: Figures) -> None:
    """Print each way beside the score, and its part of the ceiling.

    The difference is that of pairs, with its interval of 95 %.
    """
    today, ceiling = values[packing_policies.TODAY], values.get(_CEILING, [])
    for name, mine in values.items():
        more = [100 * (one - other)
                for one, other in zip(mine, today, strict=False)]
        error = (1.96 * statistics.stdev(more) / len(more) ** 0.5
                 if len(more) > 1 else float('nan'))
        part = (statistics.mean(mine[:len(ceiling)])
                / statistics.mean(ceiling) if ceiling else float('nan'))
        print(f'  {name:24} median {statistics.median(mine):.3f}  mean '
              f'{statistics.mean(mine):.3f}  of the ceiling {part:.3f}  '
              f'{statistics.mean(more):+.1f} +- {error:.1f} points, better '
              f'in {sum(x > 1e-9 for x in more)}, worse in '
              f'{sum(x < -1e-9 for x in more)}', flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--mixes', type=int, default=35,
                        help='how many mixes (35)')
    parser.add_argument('--clouds', type=int, default=0,
                        help='how many of them are packed by whole clouds, '
                             'too, which takes minutes for each (0)')
    parser.add_argument('--churn', type=int, default=600,
                        help='how many guests come and go (600)')
    parser.add_argument('--ceilings', type=int, default=8,
                        help='mixes whose repacking ceiling with guests that '
                             'come and go is found, which takes seconds for '
                             'each (8)')
    parser.add_argument('--seed', type=int, default=1,
                        help='of the first mix; the next has the next (1)')
    parser.add_argument('--hosts', type=int, default=3,
                        help='simulated hosts (3)')
    parser.add_argument('--nodes', type=int, default=2,
                        help='NUMA nodes of a host (2)')
    parser.add_argument('--kinds', type=int, default=6,
                        help='flavors of a mix (6)')
    parser.add_argument('--fill', type=float, default=1.4,
                        help='how often all guests of a mix would fill the '
                             'hosts (1.4)')
    return parser.parse_args()


def main() -> None:
    options = _options()
    shape = Shape(hosts=options.hosts, nodes=options.nodes)
    print(f'{shape.hosts} simulated hosts with {shape.groups} control groups '
          f'and {shape.nodes} NUMA nodes, each with {shape.node.cpus} CPUs, '
          f'{shape.node.memory_mb} MB, {shape.node.vfs} VFs; Python '
          f'{platform.python_version()}')
    policies(shape, options)
    every = []
    for seed in range(options.seed, options.seed + options.clouds):
        guests = packing.mix(shape, seed, options.kinds, options.fill)
        print(f'\nmix {seed}: {len(guests)} guests of '
              f'{len(set(guests))} flavors', flush=True)
        every.append(measure(shape, guests))
        show(every[-1])
    if every:
        summary(every)


if __name__ == '__main__':
    main()
