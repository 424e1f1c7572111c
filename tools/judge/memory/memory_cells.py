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

"""Cells of the recorded memory simulations, and where the figures are.

Servers of latency-critical requests ran beside streams that take bandwidth, on
one memory of a simulator, with the bandwidth controls of MPAM. Each cell is
one combination of memory, traffic and controls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import math
from pathlib import Path
import statistics

#: Memories: DDR4-3200 with one channel, with closed pages, with four channels,
#: and DDR5-4800.
MEMORIES = ('ddr4', 'ddr4-closed', 'ddr4-4ch', 'ddr5')
#: Part of a server's time that is busy when alone, with random arrivals.
BUSY = 0.58

_RECORDINGS = (Path(__file__).resolve().parents[3]
               / 'ghsched_placement/features/density')
#: File of the figures of each simulator, by its name.
RECORDINGS: Mapping[str, Path] = {
    'DRAMsim3': _RECORDINGS / 'simulated_memory.json',
    'Ramulator2': _RECORDINGS / 'simulated_memory_ramulator2.json'}


@dataclass(frozen=True)
class Cell:
    """Combination of memory, traffic and bandwidth controls.

    :param memory: of :data:`MEMORIES`.
    :param options: of the simulation, by name; shares of the bandwidth in
        theory.
    """

    name: str
    memory: str = 'ddr4'
    options: Mapping[str, float] = field(default_factory=dict)

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
    for window in (1, 10, 100, 1000):
        yield Cell(f'ddr4 want all, cap 50% in windows of {window} us',
                   'ddr4', {'demand': 4.0, 'stream_cap': .5,
                            'stream_window_us': window})


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


def interval(values):
    """Return the mean of runs and its 95 % interval, as (mean, low, high)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    # Student's t for 1 to 4 degrees of freedom.
    factor = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), 2.6)
    half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half
