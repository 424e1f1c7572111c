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
"""Compare the contention model's ranges with a recorded memory simulation.

The range of the model is what the shipped latency curves of measured machines
give, and the simulated memory's own curve, which is that of its cells without
controls: whole machines add their queues to those of the memory. The range is
widened by the largest error with which measured machines predict each other.
No rule for a control is fitted: a cell gives its demands and controls, and the
unloaded cell of its memory the part of a request that waits for memory.
"""

from dataclasses import dataclass
import itertools
import math
from pathlib import Path
import re
import sys

import memory_cells

TOP = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP))

from ghsched_nova.lab.contention import leave_one_out  # noqa: E402
from ghsched_nova.lab.contention import server  # noqa: E402
from ghsched_placement.features.density import curve as curves  # noqa: E402
from ghsched_placement.features.density import queueing  # noqa: E402
from ghsched_placement.features.density.share import Claim  # noqa: E402
from ghsched_placement.features.density import shipped  # noqa: E402

#: Streams that get less than they want by more than this factor have all that
#: the memory delivers.
_SATURATED = 1.02

#: Figures of a cell, and their titles.
FIGURES = {'latency': 'latency', 'streams': 'streams get',
           'p99_closed': 'p99 closed', 'p99_open': 'p99 open'}


@dataclass(frozen=True)
class Row:
    """Figure of a cell: the simulation's runs and the model's range."""

    cell: str
    figure: str
    mean: float
    interval: tuple[float, float]
    model: tuple[float, float]

    @property
    def agrees(self):
        """Whether the interval of the runs meets the range of the model."""
        return (self.interval[0] <= self.model[1]
                and self.model[0] <= self.interval[1])

    @property
    def holds(self):
        """Whether the mean of the runs is in the range of the model."""
        return self.model[0] <= self.mean <= self.model[1]


def claims(cell, demand):
    """Return the model's claims of the servers and of the streams.

    :param demand: bandwidth of the servers without streams.
    """
    return [Claim(demand, minimum=cell.option('server_guarantee'),
                  priority=int(cell.option('server_priority', 3))),
            Claim(min(cell.option('demand', 1), 1.0)
                  if cell.option('streams', 1) else 0.0,
                  maximum=cell.option('stream_cap', math.inf))]


def predict(cell, curve, demand):
    """Return the servers' memory latency and the streams' bandwidth.

    Bandwidth is a fraction of the bandwidth in theory.
    """
    enforcement = queueing.Enforcement(
        queueing.CONTROLLER if cell.option('inside') else queueing.ENTRANCE,
        cell.option('stream_window_us'))
    return server.predict_mutual_slowdown(
        *claims(cell, demand), curve, enforcement)


def measured():
    """Return the shipped latency curves of measured machines, by name."""
    return {path.stem: shipped.load_shipped_curve(path.stem)
            for path in sorted(shipped.DIRECTORY.iterdir())}


def largest_error(machines):
    """Return the largest relative error of machines that others predict."""
    return max(abs(one.error) for compared in
               leave_one_out.predict_latency_from_other_machines(
                   machines).values() for one in compared)


def simulated(memory, recorded):
    """Return the latency curve of a simulated memory; None if it lacks cells.

    As in the model, servers want as much when they are slow as when alone.
    """
    cells = recorded['cells']
    points = {0.0: 1.0}
    for cell in memory_cells.CELLS:
        if cell.name in cells and re.fullmatch(f'{memory} want (all|..%)',
                                               cell.name):
            wanted = min(cell.option('demand'),
                         mean(cells[cell.name], 'streams') * _SATURATED)
            points[wanted + mean(cells[f'{memory} alone'], 'servers')] = max(
                1.0, mean(cells[cell.name], 'latency'))
    if len(points) < 2:
        return None
    line = curves.LatencyLine(curves.WRITES, tuple(sorted(points.items())))
    return curves.LatencyCurve('measured', 'simulated', (line,))


def mean(runs, figure):
    """Return the mean of a figure over the runs of a cell."""
    return memory_cells.interval([run[figure] for run in runs])[0]


def ranges(cell, alone, known, error):
    """Return the model's range of each figure of a cell.

    :param alone: mean figures of the unloaded cell of the same memory.
    :param known: latency curves that may be those of the memory.
    :param error: relative error of a predicted figure.
    """
    predicted = [predict(cell, curve, alone['servers']) for curve in known]
    latencies, streams = zip(*predicted, strict=True)
    lowest = max(1.0, min(latencies) * (1 - error))
    highest = max(latencies) * (1 + error)
    low, high = (server.get_relative_service_time(alone['stalled'], latency)
                 for latency in (lowest, highest))
    return {
        'latency': (lowest, highest),
        'streams': (min(streams) * (1 - error), max(streams) * (1 + error)),
        'p99_closed': (low, high),
        'p99_open': (low, server.get_relative_open_loop_p99(
            memory_cells.BUSY, high))}


def rows(recorded):
    """Yield a row for each figure of each recorded cell with streams."""
    found = recorded['cells']
    machines = measured()
    error = largest_error(machines)
    own = {memory: simulated(memory, recorded)
           for memory in memory_cells.MEMORIES}
    for cell in memory_cells.CELLS:
        if cell.name not in found or not cell.option('streams', 1):
            continue
        alone = {name: mean(found[f'{cell.memory} alone'], name)
                 for name in ('servers', 'stalled')}
        model = ranges(cell, alone, [
            *machines.values(), *filter(None, [own[cell.memory]])], error)
        # Runs with few requests have no p99 of a closed loop.
        for figure in (name for name in FIGURES if all(
                name in run for run in found[cell.name])):
            middle, *ends = memory_cells.interval(
                [run[figure] for run in found[cell.name]])
            yield Row(cell.name, figure, middle, tuple(ends), model[figure])


def render(title, recorded, reference=None):
    """Render the comparison as a table in reStructuredText.

    :param title: name of the simulator.
    :param reference: recording of DRAMsim3 whose means are given too.
    """
    lines = ['.. Written by tools/contention-tables.', '',
             f'.. list-table:: Memory of {title} and the range of '
             'the model (both simulated)',
             '   :header-rows: 1', '', '   * - Cell']
    lines += [f'     - {name.capitalize()}' for name in FIGURES.values()]
    for name, group in itertools.groupby(rows(recorded),
                                         key=lambda row: row.cell):
        lines.append(f'   * - {name}')
        of_cell = {row.figure: _cell(row, reference) for row in group}
        lines += [f'     - {of_cell.get(figure, "")}'.rstrip()
                  for figure in FIGURES]
    return '\n'.join(lines) + '\n'


def _cell(row, reference):
    """Return a figure of a cell with the model's range, as text."""
    other = get_reference(row, reference)
    low, high = (f'{end:.2f}' if math.isfinite(end) else 'no limit'
                 for end in row.model)
    spread = (row.interval[1] - row.interval[0]) / 2
    return (f'{row.mean:.2f} ± {spread:.2f} ({low} to {high}'
            + ('' if other is None else f'; DRAMsim3 {other:.2f}') + ')'
            + ('' if row.holds else ' \\*'))


def get_reference(row, reference):
    """Return the mean of a row's figure in another recording, or None."""
    runs = (reference or {'cells': {}})['cells'].get(row.cell)
    if not runs or any(row.figure not in run for run in runs):
        return None
    return mean(runs, row.figure)
