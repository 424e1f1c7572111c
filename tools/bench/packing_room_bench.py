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

"""Measure what moves on refusal add where guests come and go.

When a guest is refused, the cheapest single move after which it fits is made:
inside a host before between hosts, of the least memory first. Where none
helps, two guests of one host are moved. That is the order of ``openstack
ghsched rebalance plan --for``, which also knows chains of two moves. It moves
guests of one NUMA node and without VFs; with ``--any`` all guests are moved.
``--moves 1`` allows single moves only.

The ceiling is what perfect repacking with any number of moves would have
(packing_optimum.py). Hosts are those of packing_bench.py, and simulated.

usage::

    python tools/bench/packing_room_bench.py [--mixes 35] [--ceilings 8]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Sequence
import itertools
import statistics

import packing
from packing import Flavor
from packing import Shape
import packing_optimum
import packing_policies
from packing_policies import Live
from packing_policies import Table
from packing_policies import Way


class Mover:
    """Makes room for refused guests by moves.

    :param most: moves at most for a refused guest: 1 or 2.
    :param moves_all: whether guests with VFs and of several NUMA nodes are
        moved, too.
    :ivar moves: number of moves that were made.
    """

    def __init__(self, most: int, moves_all: bool) -> None:
        self._most, self._moves_all = most, moves_all
        self.moves = 0

    def make_room(self, table: Table, live: list[Live],
                  refused: Flavor) -> bool:
        """Make the cheapest moves that let a refused guest fit, if any do.

        :param live: running guests; the entries of those moved are replaced.
        """
        order = sorted((place for place, (_end, guest, _way) in enumerate(live)
                        if self._moves_all
                        or guest.nodes == 1 and not guest.node.vfs),
                       key=lambda place: live[place][1].nodes
                       * live[place][1].node.memory_mb)
        for number in range(1, self._most + 1):
            for is_inside in (True, False):
                for places in itertools.combinations(order, number):
                    if self._move(table, live, places, is_inside, refused):
                        return True
        return False

    def _move(self, table: Table, live: list[Live], places: Sequence[int],
              is_inside: bool, refused: Flavor) -> bool:
        """Move some guests of one host if a refused one fits on it then.

        :param is_inside: whether they have to stay on the host.
        """
        (host, _nodes), *others = (live[place][2] for place in places)
        if any(other[0] != host for other in others):
            return False
        moved = [live[place][1:] for place in places]
        for guest, way in moved:
            table.give(guest, way)
        spots = (_find_spots(table, [guest for guest, _way in moved],
                             [host] if is_inside else None, host, refused)
                 if next(table.ways(refused, [host]), None) else None)
        for guest, way in moved:
            table.take(guest, way)
        if spots is None:
            return False
        for guest, way in moved:
            table.give(guest, way)
        for place, spot in zip(places, spots, strict=True):
            end, guest, _way = live[place]
            table.take(guest, spot)
            live[place] = end, guest, spot
        self.moves += len(places)
        return True


def _find_spots(table: Table, guests: Sequence[Flavor],
                hosts: Sequence[int] | None, host: int,
                refused: Flavor) -> list[Way] | None:
    """Return places of guests beside which a refused one fits on a host.

    :param hosts: where the guests may be; None for all hosts.
    """
    if not guests:
        return [] if next(table.ways(refused, [host]), None) else None
    guest, *others = guests
    for spot in table.ways(guest, hosts):
        table.take(guest, spot)
        found = (_find_spots(table, others, hosts, host, refused)
                 if next(table.ways(refused, [host]), None) else None)
        table.give(guest, spot)
        if found is not None:
            return [spot, *found]
    return None


def measure(shape: Shape, seed: int, options: argparse.Namespace
            ) -> tuple[dict[str, float], float]:
    """Return the parts that are served in a mix, and moves per 100 guests."""
    guests = packing.mix(shape, seed, options.kinds, options.fill)
    patterns = packing_optimum.patterns(shape, guests)
    most = packing_optimum.churn_bound(patterns, guests, packing_policies.LOAD)
    chooser, _known = packing_policies.CHOOSERS[options.chooser]
    mover, placed = Mover(options.moves, options.any), [0]

    def make_room(table: Table, live: list[Live], refused: Flavor) -> bool:
        found = mover.make_room(table, live, refused)
        placed[0] -= not found
        return found
    found = {
        'today': packing_policies.churn(
            shape, guests, chooser, seed, options.churn),
        'moves': packing_policies.churn(
            shape, guests, chooser, seed, options.churn,
            make_room=make_room)}
    if seed < options.seed + options.ceilings:
        found['ceiling'] = packing_optimum.churn_ceiling(patterns, [
            *packing.stays(shape, guests, seed, options.churn,
                           packing_policies.LOAD)])
    return ({name: value / most for name, value in found.items()},
            100 * mover.moves / (options.churn + placed[0]))


def show(results: Sequence[tuple[dict[str, float], float]]) -> None:
    gains = [100 * (found['moves'] - found['today'])
             for found, _moves in results]
    error = (1.96 * statistics.stdev(gains) / len(gains) ** .5
             if len(gains) > 1 else float('nan'))
    for name in ('today', 'moves', 'ceiling'):
        values = [found[name] for found, _moves in results if name in found]
        if values:
            print(f'{name:9} median {statistics.median(values):.3f}  mean '
                  f'{statistics.mean(values):.3f} of {len(values)} mixes')
    print(f'with moves: {statistics.mean(gains):+.2f} +- {error:.2f} points, '
          f'better in {sum(x > 1e-9 for x in gains)}, worse in '
          f'{sum(x < -1e-9 for x in gains)}; moves per 100 guests: mean '
          f'{statistics.mean(moves for _found, moves in results):.1f}, most '
          f'{max(moves for _found, moves in results):.1f}', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--mixes', type=int, default=35)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--churn', type=int, default=600,
                        help='how many guests come and go (600)')
    parser.add_argument('--ceilings', type=int, default=8,
                        help='mixes whose repacking ceiling is found (8)')
    parser.add_argument('--hosts', type=int, default=3)
    parser.add_argument('--nodes', type=int, default=2)
    parser.add_argument('--kinds', type=int, default=6)
    parser.add_argument('--fill', type=float, default=1.4)
    parser.add_argument('--chooser', choices=[
        name for name, (_chooser, known)
        in packing_policies.CHOOSERS.items() if not known],
        default=packing_policies.TODAY)
    parser.add_argument('--moves', type=int, choices=(1, 2), default=2,
                        help='moves at most for a refused guest (2)')
    parser.add_argument('--any', action='store_true',
                        help='guests with VFs and of several NUMA nodes '
                             'are moved, too')
    options = parser.parse_args()
    shape = Shape(hosts=options.hosts, nodes=options.nodes)
    results = []
    for seed in range(options.seed, options.seed + options.mixes):
        results.append(measure(shape, seed, options))
        print(seed, results[-1], flush=True)
    show(results)


if __name__ == '__main__':
    main()
