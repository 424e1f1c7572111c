#!/usr/bin/env python3
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
"""Simulate memory cycle by cycle and compare the contention model with it.

Servers of latency-critical requests run beside streams that take bandwidth,
on one memory of a simulator, with the bandwidth controls of MPAM. Each cell is
one combination of memory, traffic and controls.

usage: memory_judge.py all TREE DIRECTORY [OPTION]...
       memory_judge.py run DIRECTORY [OPTION]...
       memory_judge.py table [FILE]

"all" builds the simulation in DIRECTORY from TREE, a checkout of DRAMsim3 (see
memory_build.py) or of Ramulator2 (see ramulator2.py), simulates every cell and
compares the model with the result. "run" simulates with what was built before,
and "table" compares a recording.

  --ramulator2 TREE "all" does the same with Ramulator2 after DRAMsim3, in
                    DIRECTORY/ramulator2, and adds "_ramulator2" to the
                    recording's name
  --simulator NAME  dramsim3 (default) or ramulator2
  --cells REGEX     only the cells whose names match; default: all of them
  --seeds NUMBER    runs of each cell; default: 3
  --out FILE        recording to write; default: that of the simulator, beside
                    the contention model
  --short           one seed and a third of the cycles
"""

import argparse
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass
from dataclasses import field
import itertools
import json
import math
import os
from pathlib import Path
import random
import re
import statistics
import subprocess  # noqa: S404
import sys
import tempfile

import simulators
import toolchain

RECORDED = simulators.SIMULATORS['dramsim3'].recording
_DDR4_CYCLE_NS = 0.63

CYCLES = 1_500_000
SEEDS = 3
TIMEOUT_S = 1800

#: Requests that one server has at hand in a closed loop.
CLIENTS = 20
#: Fewest requests of each server in a run for a p99 of a closed loop.
CLOSED_REQUESTS = 2 * CLIENTS
#: Part of a server's time that is busy when alone, with random arrivals.
BUSY = 0.58
#: Drawn sequences of random arrivals for each run.
ARRIVALS = 20


@dataclass(frozen=True)
class Cell:
    """Combination of memory, traffic and bandwidth controls.

    :param memory: of :data:`simulators.MEMORIES`.
    :param options: of the simulation, by name; shares of the bandwidth in
        theory.
    :param cycles: of a run, as a multiple of :data:`CYCLES`.
    """

    name: str
    memory: str = 'ddr4'
    options: Mapping[str, float] = field(default_factory=dict)
    cycles: float = 1.0

    def option(self, name, otherwise=0.0):
        """Return an option of the simulation, by name."""
        return self.options.get(name, otherwise)


def _cells():
    """Yield every cell, the unloaded one of each memory first."""
    first = {'server_priority': 5}
    inside = first | {'inside': 1}
    yield from _memory('ddr4', first, inside)
    yield from _further_keys(inside)
    yield from _kinds(inside)
    for memory in ('ddr4-closed', 'ddr5', 'ddr4-4ch'):
        yield from _memory(memory, first, inside)


def _memory(memory, first, inside):
    """Yield the cells of one memory with streams of every demand."""
    yield Cell(f'{memory} alone', memory, {'streams': 0})
    for want in (.25, .5, .75, 4.0):
        part = 'all' if want > 1 else f'{want:.0%}'
        yield Cell(f'{memory} want {part}', memory, {'demand': want})
    for name, keys in (('cap 50%', {'stream_cap': .5}),
                       ('priority entrance', first),
                       ('priority controller', inside)):
        yield Cell(f'{memory} want all, {name}', memory,
                   {'demand': 4.0} | keys)


def _further_keys(inside):
    """Yield the cells of one DDR4 channel with more keys."""
    guarantee = {'server_guarantee': .1}
    for name, keys in (
            ('cap 25%', {'stream_cap': .25}),
            ('cap 70%', {'stream_cap': .7}),
            ('guarantee entrance', guarantee),
            ('guarantee controller', guarantee | {'inside': 1}),
            ('guarantee 2% controller', {'server_guarantee': .02,
                                         'inside': 1}),
            ('guarantee controller, cap 50%',
             guarantee | {'inside': 1, 'stream_cap': .5})):
        yield Cell(f'ddr4 want all, {name}', 'ddr4', {'demand': 4.0} | keys)
    for want in (.5, .75):
        yield Cell(f'ddr4 want {want:.0%}, priority controller', 'ddr4',
                   {'demand': want} | inside)
    yield Cell('ddr4 want 75%, priority entrance', 'ddr4',
               {'demand': .75, 'server_priority': 5})
    for window, cycles in ((1, 1.0), (10, 1.0), (100, 1.5), (1000, 4.0)):
        yield Cell(f'ddr4 want all, cap 50% in windows of {window} us',
                   'ddr4', {'demand': 4.0, 'stream_cap': .5,
                            'stream_window_us': window}, cycles)


def _kinds(inside):
    """Yield the cells of one DDR4 channel with other kinds of traffic."""
    for kind, options in (('random', {'random': 1.0}),
                          ('write-heavy', {'writes': .5})):
        for want in (.25, .5, 4.0):
            part = 'all' if want > 1 else f'{want:.0%}'
            yield Cell(f'ddr4 {kind} want {part}', 'ddr4',
                       {'demand': want} | options)
        for name, keys in (('cap 50%', {'stream_cap': .5}),
                           ('priority controller', inside)):
            yield Cell(f'ddr4 {kind} want all, {name}', 'ddr4',
                       {'demand': 4.0} | options | keys)


CELLS = tuple(_cells())


def command(cell, program, path, seed, cycles):
    """Return the arguments that simulate a cell once."""
    settings = simulators.MEMORIES[cell.memory]
    channels = settings.get('channels', 1)
    # A server or a stream takes the same part of any memory.
    counts = {name: cell.option(name, 8) * channels
              for name in ('servers', 'streams')}
    # Every memory is simulated for the same time.
    cycles *= _DDR4_CYCLE_NS / settings.get('tCK', _DDR4_CYCLE_NS)
    options = {**cell.options, **counts, 'channels': channels,
               'seed': seed, 'cycles': round(cycles * cell.cycles)}
    return [str(program), str(path),
            *(f'{name}={value:g}' for name, value in options.items())]


def simulate(simulator, cell, directory, seed, cycles=CYCLES):
    """Simulate a cell once and return what it printed, as a mapping."""
    with tempfile.TemporaryDirectory() as work:
        path = simulator.write_configuration(cell, directory, work)
        done = subprocess.run(
            command(cell, directory / 'memory', path, seed, cycles),
            cwd=work, check=True, capture_output=True, text=True,
            timeout=TIMEOUT_S)
    return json.loads(done.stdout)


def percentile(values, percent):
    """Return a percentile by the nearest rank; 0 of no values."""
    ordered = sorted(values)
    place = min(len(ordered) - 1, int(percent / 100 * len(ordered)))
    return ordered[place] if ordered else 0.0


def closed_p99(services):
    """Return the p99 of a server whose clients each send after an answer."""
    found = []
    for one in services:
        sums = [0.0, *itertools.accumulate(one)]
        found += [sums[end] - sums[end - CLIENTS]
                  for end in range(CLIENTS, len(sums))]
    return percentile(found, 99)


def open_p99(services, gap_ns, seed):
    """Return the p99 of servers that requests reach at random."""
    draw = random.Random(seed)  # noqa: S311
    found = []
    for _ in range(ARRIVALS):
        for one in services:
            waiting = 0.0
            for service in one:
                found.append(waiting + service)
                waiting = max(0.0, waiting + service
                              - draw.expovariate(1 / gap_ns))
    return percentile(found, 99)


def figures(printed, alone, seed):
    """Return a run's figures, over those of the same memory without streams.
    """
    gap = mean_service(alone) / BUSY
    found = {
        'latency': printed['latency_ns'] / alone['latency_ns'],
        'servers': printed['servers'], 'streams': printed['streams'],
        'service': mean_service(printed) / mean_service(alone),
    }
    if all(has_closed_p99(one['services_ns']) for one in (printed, alone)):
        found['p99_closed'] = (closed_p99(printed['services_ns'])
                               / closed_p99(alone['services_ns']))
    found['p99_open'] = (open_p99(printed['services_ns'], gap, seed)
                         / open_p99(alone['services_ns'], gap, seed))
    return found


def has_closed_p99(services):
    """Whether each server had enough requests for a p99 of a closed loop."""
    return min(map(len, services)) >= CLOSED_REQUESTS


def mean_service(printed):
    """Return the mean time of a request at the server, in ns."""
    return statistics.fmean(itertools.chain(*printed['services_ns']))


def choose_cells(simulator, chosen):
    """Return the cells of a simulator's memories whose names match, and the
    unloaded cells of these memories.
    """
    cells = [cell for cell in CELLS if cell.memory in simulator.memories]
    memories = {cell.memory for cell in cells if chosen.search(cell.name)}
    return [cell for cell in cells if chosen.search(cell.name)
            or cell.name.endswith(' alone') and cell.memory in memories]


def run(simulator, directory, chosen, seeds, cycles, out):
    """Simulate cells, one on each CPU, and write their figures after each one.
    """
    recorded = {'busy': BUSY, 'cycles': cycles, 'cells': {}}
    runs = list(itertools.product(range(1, seeds + 1),
                                  choose_cells(simulator, chosen)))
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        printing = [pool.submit(simulate, simulator, cell, directory, seed,
                                cycles)
                    for seed, cell in runs]
        alone = {}
        for (seed, cell), future in zip(runs, printing, strict=True):
            printed = future.result()
            unloaded = cell.name.endswith(' alone')
            if unloaded:
                alone[seed, cell.memory] = printed
            found = figures(printed, alone[seed, cell.memory], seed)
            if unloaded:
                found['latency_ns'] = printed['latency_ns']
                found['stalled'] = stalled(printed)
            recorded['cells'].setdefault(cell.name, []).append(
                {name: round(value, 4) for name, value in found.items()})
            print(seed, cell.name, recorded['cells'][cell.name][-1],
                  flush=True)
            out.write_text(render_recording(recorded))


def render_recording(recorded):
    """Return a recording as JSON text, with one line for each cell."""
    cells = ',\n '.join(f'{json.dumps(name)}: {json.dumps(runs)}'
                        for name, runs in recorded['cells'].items())
    rest = json.dumps({name: value for name, value in recorded.items()
                       if name != 'cells'})
    return f'{rest[:-1]}, "cells": {{\n {cells}\n}}}}\n'


def stalled(printed):
    """Return the part of a request that waits for memory."""
    return 30 * printed['latency_ns'] / mean_service(printed)


def interval(values):
    """Return the mean of runs and its 95 % interval, as (mean, low, high)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    # Student's t for 1 to 4 degrees of freedom.
    factor = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), 2.6)
    half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def arguments(given):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        usage=__doc__.partition('usage: ')[2], description=None)
    parser.add_argument('action', choices=('run', 'all', 'table'))
    parser.add_argument('paths', nargs='*', type=Path)
    parser.add_argument('--cells', default='', type=re.compile)
    parser.add_argument('--seeds', default=SEEDS, type=int)
    parser.add_argument('--simulator', default='dramsim3',
                        choices=simulators.SIMULATORS)
    parser.add_argument('--ramulator2', type=Path, metavar='TREE')
    parser.add_argument('--out', type=Path)
    parser.add_argument('--short', action='store_true')
    options = parser.parse_args(given)
    if options.ramulator2 and (options.action, options.simulator) != (
            'all', 'dramsim3'):
        parser.error('--ramulator2 is only for "all" with DRAMsim3')
    return options


def list_judged(options):
    """Return the simulators that the options choose, as tuples of simulator,
    source tree, directory and recording.
    """
    simulator = simulators.SIMULATORS[options.simulator]
    directory = options.paths[-1].resolve()
    path = options.out or simulator.recording
    judged = [(simulator, options.paths[0], directory, path)]
    if options.ramulator2:
        judged.append((simulators.SIMULATORS['ramulator2'],
                       options.ramulator2, directory / 'ramulator2',
                       path.with_stem(f'{path.stem}_ramulator2')))
    return judged


def compare(path, reference=None):
    """Print a recording beside the model and return the exit status.

    :param reference: recording of DRAMsim3 whose means are printed too.
    """
    import memory_compare
    return memory_compare.show(
        json.loads(path.read_text()),
        json.loads(reference.read_text()) if reference else None)


def main(given=None):
    options = arguments(given)
    if options.action == 'table':
        path = (options.paths[0] if options.paths else options.out
                or simulators.SIMULATORS[options.simulator].recording)
        sys.exit(compare(path, None if options.simulator == 'dramsim3'
                         else RECORDED))
    judged = list_judged(options)
    if options.action == 'all':
        # Before the first run, which takes minutes: a build may be refused.
        for simulator, tree, directory, _path in judged:
            simulator.build(tree, directory)
    for simulator, _tree, directory, path in judged:
        run(simulator, directory, options.cells,
            1 if options.short else options.seeds,
            CYCLES // 3 if options.short else CYCLES, path)
    if options.action == 'all':
        reference = (RECORDED if options.simulator == 'ramulator2'
                     else judged[0][-1])
        errors = [compare(path, None if simulator.title == 'DRAMsim3'
                          else reference)
                  for simulator, _tree, _directory, path in judged]
        sys.exit('; '.join(filter(None, errors)) or None)


if __name__ == '__main__':
    try:
        main()
    except toolchain.ToolchainError as error:
        sys.exit(f'memory_judge.py: {error}')
