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

"""Compare plans with pairs of moves to plans of single moves in full clouds.

The clouds are those of numa_icon_bench.py, filled to 70, 85 and 100 %. Plans
of single moves fill a NUMA node up to 20 % below the limit of a bottleneck;
plans with pairs up to the default of :class:`.move_plan.Settings`.

* snapshots: bottlenecks before and after all moves that either plan finds;
* two days: CPU that guests wait for, through churn, with the limits of moves.

Nothing here is measured.

usage::

    python tools/bench/rebalance_full_bench.py [--seeds 6] [--days-seeds 3]
"""

import bench_path  # noqa: F401

import argparse
import dataclasses
import statistics

import numa_icon_bench as bench

from ghsched_placement.rebalance import affinity_policy
from ghsched_placement.rebalance import move_plan

FILLS = (0.7, 0.85, 1.0)
WAITING = 'CPU that is waited for, % of wanted'
#: Step at which a snapshot is taken: after most of a day.
STEP = 100
#: Rounds after which a plan that still moves guests is given up.
ROUNDS = 60

WAYS = {
    'single moves': (affinity_policy.Affinity(0), dataclasses.replace(
        bench.SETTINGS, hysteresis=bench.HOST_HYSTERESIS)),
    'with pairs': (affinity_policy.Affinity(), bench.SETTINGS)}


class Run(bench.Run):
    """A cloud whose guests are moved by one of the plans."""

    def __init__(self, way: str, seed: int, name: str) -> None:
        super().__init__(way, seed)
        self.policy, self.settings = WAYS[name]

    def snapshot(self) -> move_plan.Cloud:
        """Return the cloud as it is at the step of snapshots."""
        for step in range(min(self.coming), STEP):
            self._churn(step)
            self._count(step)
        return self._seen(STEP)


@dataclasses.dataclass
class Rest:
    """Result of all moves of a snapshot."""

    before: int = 0
    after: int = 0
    moves: int = 0
    returns: int = 0
    is_worse: bool = False


def _full(state: move_plan.State) -> dict[move_plan.Spot, float]:
    """Return the pressure of each NUMA node that is a bottleneck."""
    return {spot: state.get_relative_load(spot) for spot in state.nodes
            if state.get_relative_load(spot) >= 1}


def rest(cloud: move_plan.Cloud, name: str) -> Rest:
    """Make the moves of plan after plan until there are none."""
    policy, settings = WAYS[name]
    settings = dataclasses.replace(settings, moves=10 ** 6,
                                   per_host=10 ** 6, cool_down=0.0)
    host = dataclasses.replace(settings, hysteresis=bench.HOST_HYSTERESIS)
    state = move_plan.State(cloud, host)
    start = _full(state)
    found = Rest(len(start))
    been = {(guest.uuid, guest.spot) for guest in cloud.guests}
    for _round in range(ROUNDS):
        moves = policy.plan(cloud, settings)
        if not moves:
            break
        for move in moves:
            found.moves += 1
            found.returns += (move.guest, move.destination) in been
            been.add((move.guest, move.destination))
            state.apply_move(move)
        cloud = dataclasses.replace(
            cloud, guests=tuple(state.guests.values()),
            nodes=tuple(dataclasses.replace(
                node, memory=state.memory[spot],
                bottleneck=state.is_overloaded(spot))
                for spot, node in state.nodes.items()))
        state = move_plan.State(cloud, host)
    end = _full(state)
    found.after = len(end)
    found.is_worse = any(pressure > start.get(spot, 0.0) + 1e-9
                         for spot, pressure in end.items())
    return found


def snapshots(seeds: int) -> None:
    for name in WAYS:
        found = []
        for fill in FILLS:
            bench.FILL = fill
            found += [rest(Run('placed by load', seed, name).snapshot(), name)
                      for seed in range(seeds)]
        print(f'{len(found)} snapshots, {name}: bottlenecks '
              f'{sum(one.before for one in found)} -> '
              f'{sum(one.after for one in found)}, '
              f'moves {sum(one.moves for one in found)}, '
              f'returns {sum(one.returns for one in found)}, '
              f'with a fuller bottleneck '
              f'{sum(one.is_worse for one in found)}')


def days(seeds: int) -> None:
    for fill in FILLS:
        bench.FILL = fill
        waits = {}
        for name in WAYS:
            shown = [Run('ours', seed, name).run().shown()
                     for seed in range(seeds)]
            mean = {key: statistics.fmean(one[key] for one in shown)
                    for key in shown[0]}
            waits[name] = mean.pop(WAITING)
            print(f'\nfilled {fill:.0%}, {name}: {WAITING} '
                  f'{waits[name]:.3f}')
            for key, value in mean.items():
                print(f'  {key:38} {value:8.3f}')
        single, pairs = waits.values()
        print('  waiting, ratio '
              + (f'{pairs / single:.2f}' if single else 'undefined'))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--seeds', type=int, default=6)
    parser.add_argument('--days-seeds', type=int, default=3)
    args = parser.parse_args()
    snapshots(args.seeds)
    days(args.days_seeds)


if __name__ == '__main__':
    main()
