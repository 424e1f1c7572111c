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

"""Compare guests that fit a node by measured use and by declared peak.

Simulated: one host NUMA node whose guests are promised a hard part and a
burst. Each guest is idle or busy, in turns of ten minutes on average; for a
part of its turns it is busy when all others are (*correlation*), and over a
day its share of busy turns swells and falls (*diurnal*). Busy, it wants its
hard part and 50 to 100 % of its burst. For ten days the node is filled up to
what ghsched_placement.burst and burst_projects allow, hour by hour; then
guests live for further days, and the periods are counted in which bursts want
more than what is kept for them, or guarantees in the kernel add up to more
than the node. Rows of ``bold`` have burst_correlation 0.1 and burst_safety
1.1.

Each guest is of a project of its own, except in rows of ``replicas``: there
guests are replicas of so many services, each service in a project of its own.
All replicas of a service do the same up to ten minutes later. A service is
idle or busy for times of a Pareto distribution (shape 1.3, at least 20
minutes, at most three days), the form of heavy-tailed on/off load. In rows of
``event`` 70 % of the guests of the row are busy for half an hour each day,
whatever their projects are.

With --traces guests replay files, as replicas of services and each for
itself. A file has the load of one guest, a number of percent for each five
minutes: so are the traces of PlanetLab that CloudSim has. No package of PyPI
or Debian ships such traces, so none are used unless a folder is named.

usage:
    python tools/bench/burst_bench.py [--days 4] [--seeds 3]
        [--kinds independent varied replicas event] [--traces FOLDER]
        [--json FILE]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
import itertools
import json
import math
from pathlib import Path
import random
import statistics
import sys
from typing import Any

from burst_crowds import crowd_of
from burst_crowds import DAY
from burst_crowds import Kind
from burst_crowds import Traces

from ghsched_placement import burst
from ghsched_placement import burst_record

#: Percent of the node that is kept for bursts.
POOL = 60
#: Percent of each guest's guarantee, and of its burst.
HARD, PEAK = 1, 6
#: Days until a node is full.
_FILLING = 10

DUTIES = (0.1, 0.2, 0.4)
CORRELATIONS = (0.0, 0.1, 0.3)
#: Numbers of services that the guests of a node are replicas of.
SERVICES = (1, 2, 3, 6)


@dataclass(frozen=True)
class Outcome:
    """Result of filling a node.

    :param guests: how many it took.
    :param short: part of the periods in which bursts had less than they
        wanted.
    :param hard_short: periods in which a guest had less than its guarantee.
    """

    guests: int
    short: float
    hard_short: int


def run(kind: Kind, limits: burst.Limits, days: int, seed: int) -> Outcome:
    """Fill a node, and count short periods on the days after that."""
    crowd = crowd_of(kind, random.Random(seed))  # noqa: S311
    record = burst_record.Record()
    crowd.grow(POOL // PEAK)
    short = hard_short = periods = 0
    filling = _FILLING * DAY
    for minute in range(filling + days * DAY):
        wants = crowd.minute(minute)
        if minute < filling:
            record = burst_record.add_period_to_record(
                record, minute // 60, _period(wants, crowd.projects), limits)
            if minute % 60 == 0:
                crowd.grow(record.offered // PEAK)
            continue
        periods += 1
        short += sum(wants) * PEAK > POOL
        hard_short += not _hard_parts_held(wants, limits)
    return Outcome(len(crowd.levels), short / periods, hard_short)


def _period(wants: list[float], projects: list[str]) -> burst_record.Period:
    return burst_record.Period(
        [burst.GuestBurst(PEAK, PEAK * want, project) for want, project
         in zip(wants, projects, strict=True)], POOL)


def _hard_parts_held(wants: list[float], limits: burst.Limits) -> bool:
    """Whether all guarantees of the kernel can be had at the same time.

    A guest has priority as long as it uses less than its guarantee, so it
    gets all of that where the guarantees fit into the node.
    """
    promised = [HARD + math.floor(PEAK / limits.ratio)] * len(wants)
    others = 100 - POOL - HARD * len(wants)
    return others >= 0 and sum(promised) <= HARD * len(wants) + POOL


def kinds(traces: tuple[Path, ...] = ()) -> Iterator[tuple[str, Kind]]:
    """Group and kind of guests, in the order of the table."""
    for swing, duty, correlation in itertools.product(
            (0.0, 0.8), DUTIES, CORRELATIONS):
        yield 'independent', Kind(duty, correlation, swing)
    for correlation in CORRELATIONS:
        yield 'varied', Kind(0.0, correlation, 0.8, varied=True)
    yield 'event', Kind(0.1, 0.1, event=True)
    for services in SERVICES:
        yield 'replicas', Kind(0.2, services=services)
    for services in (*SERVICES, Traces.MOST) if traces else ():
        yield 'traces', Kind(0.0, services=services, traces=traces)


def rows(days: int, seeds: int, every: Iterable[tuple[str, Kind]],
         ) -> Iterator[dict[str, Any]]:
    """Measure each kind with the default limits and with bold ones."""
    for group, kind in every:
        for name, limits in (
                ('default', burst.Limits()),
                ('bold', burst.Limits(correlation=0.1, safety=1.1))):
            yield {'group': group, 'duty': kind.duty,
                   'correlation': kind.correlation,
                   'diurnal': bool(kind.swing), 'services': kind.services,
                   'limits': name,
                   **_summed([run(kind, limits, days, seed)
                              for seed in range(seeds)])}


def _summed(found: list[Outcome]) -> dict[str, Any]:
    declared = POOL // PEAK
    guests = statistics.mean(one.guests for one in found)
    short = [100 * one.short for one in found]
    return {'gain': round(guests / declared, 2),
            'short_percent': round(statistics.mean(short), 2),
            'worst_percent': round(max(short), 2),
            'hard_short': sum(one.hard_short for one in found)}


def _text(row: dict[str, Any]) -> str:
    """Return the line of a row."""
    load = {'varied': 'varied', 'replicas': f'{row["services"]} services',
            'traces': f'{row["services"]} traces'}.get(
                row['group'], f'duty {row["duty"]:.0%}')
    kind = ('event' if row['group'] == 'event'
            else 'diurnal' if row['diurnal'] else 'steady')
    return (f'{kind:8} {load:11} correlation {row["correlation"]:.1f}'
            f' {row["limits"]:8} x {row["gain"]:.2f}'
            f'  short {row["short_percent"]:5.2f} %'
            f' (worst {row["worst_percent"]:5.2f} %)'
            f'  hard part {row["hard_short"]}')


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = list(dict.fromkeys(group for group, _kind in kinds((Path(),))))
    options.add_argument('--days', type=int, default=4)
    options.add_argument('--seeds', type=int, default=3)
    options.add_argument('--kinds', nargs='+', choices=groups, default=groups,
                         help='guests to simulate (all)')
    options.add_argument('--traces', type=Path, metavar='FOLDER',
                         help='files of load to replay')
    options.add_argument('--json', type=Path)
    return options.parse_args()


def main() -> int:
    arguments = _options()
    traces = tuple(sorted(
        path for path in (arguments.traces.rglob('*')
                          if arguments.traces else ()) if path.is_file()))
    found = []
    print('simulated; guests of a node against declared peaks, percent of '
          'periods short')
    every = [(group, kind) for group, kind in kinds(traces)
             if group in arguments.kinds]
    for row in rows(arguments.days, arguments.seeds, every):
        found.append(row)
        print(_text(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + '\n')
    return int(any(row['hard_short'] for row in found))


if __name__ == '__main__':
    sys.exit(main())
