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

"""Measure what one move on refusal adds where guests come and go.

When a guest is refused, the cheapest single move after which it fits is made:
inside a host before between hosts, of the least memory first. That is the
order of ``openstack ghsched rebalance plan --for`` with at most one move. It
moves guests of one NUMA node and without VFs; with ``--any`` all guests are
moved.

The ceiling is what perfect repacking with any number of moves would have
(packing_optimum.py). Hosts are those of packing_bench.py, and simulated.

usage::

    python tools/bench/packing_room_bench.py [--mixes 35] [--ceilings 8]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Sequence
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
    """Makes room for refused guests by one move.

    :param moves_all: whether guests with VFs and of several NUMA nodes are
        moved, too.
    :ivar inside: number of moves inside a host.
    :ivar between: number of moves between hosts.
    """

    def __init__(self, moves_all: bool) -> None:
        self._moves_all = moves_all
        self.inside = self.between = 0

    def make_room(self, table: Table, live: list[Live],
                  refused: Flavor) -> bool:
        """Make the cheapest move that lets a refused guest fit, if any does.

        :param live: running guests; the entry of the moved one is replaced.
        """
        order = sorted(range(len(live)),
                       key=lambda place: live[place][1].nodes
                       * live[place][1].node.memory_mb)
        for is_inside in (True, False):
            for place in order:
                end, guest, way = live[place]
                if not self._moves_all and (guest.nodes > 1
                                            or guest.node.vfs):
                    continue
                found = _find_spot(table, guest, way, is_inside, refused)
                if found:
                    live[place] = end, guest, found
                    self.inside += is_inside
                    self.between += not is_inside
                    return True
        return False


def _find_spot(table: Table, guest: Flavor, way: Way, is_inside: bool,
               refused: Flavor) -> Way | None:
    """Move a guest so that a refused one fits on its host.

    :returns: the guest's new place; None, and nothing is moved, if no place
        helps.
    """
    host, nodes = way
    table.give(guest, way)
    if next(table.ways(refused, [host]), None):
        # Without the guest the refused one fits.
        others = [number for number in range(len(table.rooms))
                  if number != host]
        for spot in table.ways(guest, [host] if is_inside else others):
            if spot[1] == nodes and is_inside:
                continue
            table.take(guest, spot)
            if next(table.ways(refused, [host]), None):
                return spot
            table.give(guest, spot)
    table.take(guest, way)
    return None


def measure(shape: Shape, seed: int, options: argparse.Namespace
            ) -> tuple[dict[str, float], float]:
    """Return the parts that are served in a mix, and moves per 100 guests."""
    guests = packing.mix(shape, seed, options.kinds, options.fill)
    patterns = packing_optimum.patterns(shape, guests)
    most = packing_optimum.churn_bound(patterns, guests, packing_policies.LOAD)
    chooser, _known = packing_policies.CHOOSERS[options.chooser]
    mover, placed = Mover(options.any), [0]

    def make_room(table: Table, live: list[Live], refused: Flavor) -> bool:
        found = mover.make_room(table, live, refused)
        placed[0] -= not found
        return found
    found = {
        'today': packing_policies.churn(
            shape, guests, chooser, seed, options.churn),
        'one move': packing_policies.churn(
            shape, guests, chooser, seed, options.churn,
            make_room=make_room)}
    if seed < options.seed + options.ceilings:
        found['ceiling'] = packing_optimum.churn_ceiling(patterns, [
            *packing.stays(shape, guests, seed, options.churn,
                           packing_policies.LOAD)])
    moves = mover.inside + mover.between
    return ({name: value / most for name, value in found.items()},
            100 * moves / (options.churn + placed[0]))


def show(results: Sequence[tuple[dict[str, float], float]]) -> None:
    gains = [100 * (found['one move'] - found['today'])
             for found, _moves in results]
    error = (1.96 * statistics.stdev(gains) / len(gains) ** .5
             if len(gains) > 1 else float('nan'))
    for name in ('today', 'one move', 'ceiling'):
        values = [found[name] for found, _moves in results if name in found]
        if values:
            print(f'{name:9} median {statistics.median(values):.3f}  mean '
                  f'{statistics.mean(values):.3f} of {len(values)} mixes')
    print(f'one move: {statistics.mean(gains):+.2f} +- {error:.2f} points, '
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
