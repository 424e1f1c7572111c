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

"""Predictions of the contention model, and simulated memory (pure).

Both are *simulated*. The model's range is that of all shipped latency curves,
of both places where a guarantee or priority may act, and of all elasticities
of p99. Simulated memory is a recording of DRAMsim3.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import importlib.resources
import json
import math
import re
from typing import Any

from ghsched_nova.lab.bench import bandwidth_groups
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.record import Report
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenarios import bandwidth_keys
from ghsched_nova.lab.contention import ranges
from ghsched_nova.lab.contention import server
from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density import queueing
from ghsched_placement.features.density.share import Claim
from ghsched_placement.features.density import shipped

Span = tuple[float, float]

_KEY = re.compile(r'(mem_bw_(?:max|min|priority))=([0-9]+)')

#: Cells of simulated memory by key, without the name of the memory.
_CELLS = {'mem_bw_min': ('guarantee entrance', 'guarantee controller'),
          'mem_bw_priority': ('priority entrance', 'priority controller')}
_MEMORIES = ('ddr4', 'ddr5')


@dataclass(frozen=True)
class Row:
    """Effect of a setting: measured, predicted and simulated.

    Latencies are relative to the server alone, bandwidths of the streams to
    those without a key.

    :param key: key and value; "none" without a key.
    :param model_p99: lowest and highest prediction of the model.
    :param simulated_p99: lowest and highest of simulated memory; None without
        such a cell.
    """

    key: str
    p99: float
    streams: float
    model_p99: Span
    model_streams: Span
    simulated_p99: Span | None
    simulated_streams: Span | None

    @property
    def is_in_range(self) -> bool:
        """Whether the measured p99 is within the range of the model."""
        return self.model_p99[0] <= self.p99 <= self.model_p99[1]


def compare_with_model(report: Report) -> dict[str, list[Row]]:
    """Return the rows of each measurement of bandwidth keys, by its title.

    :raises BenchError: if the report has no such measurement.
    """
    simulated = load_simulated()
    curves = [shipped.load_shipped_curve(path.stem)
              for path in sorted(shipped.DIRECTORY.iterdir())]
    found = {}
    for result in report.results:
        if result.scenario == 'bandwidth-keys' and result.status == 'done':
            place = 'guests' if dict(result.parameters).get(
                'in-guest') else 'processes'
            found[f'bandwidth-keys, {place}'] = list(
                _list_rows(result.measured.series, curves, simulated))
    if not found:
        raise errors.BenchError('the report has no bandwidth-keys that are '
                                'done')
    return found


def load_simulated() -> dict[str, Any]:
    """Return the recorded runs of simulated memory, by cell."""
    text = importlib.resources.files('ghsched_placement.features.'
                                     'density').joinpath(
        'simulated_memory.json').read_text(encoding='utf-8')
    cells: dict[str, Any] = json.loads(text)['cells']
    return cells


def _list_rows(series: Sequence[Series], curves: Sequence[LatencyCurve],
               simulated: Mapping[str, Any]) -> Iterable[Row]:
    p99 = bandwidth_keys.find_ratios(series, bandwidth_keys.P99,
                                     bandwidth_groups.ALONE)
    moved = bandwidth_keys.find_ratios(series, bandwidth_keys.STREAMS,
                                       bandwidth_groups.NO_KEY)
    demand = _mean(simulated['ddr4 alone'], 'servers')
    for key in p99:
        if key == bandwidth_groups.ALONE:
            continue
        model = predict_effect(key, curves, demand)
        cells = _find_cells(key, simulated)
        yield Row(key, p99[key], moved.get(key, math.nan), *model,
                  simulated_p99=_span(_mean(simulated[cell], 'p99_closed')
                                      for cell in cells),
                  simulated_streams=_span(
                      _mean(simulated[cell], 'streams')
                      / _mean(simulated[f'{cell.split()[0]} want all'],
                              'streams') for cell in cells))


def make_claims(key: str, demand: float) -> tuple[Claim, Claim]:
    """Return the bandwidth claims of the server and of the streams.

    :param key: key and value, or "none".
    :param demand: fraction of the bandwidth in theory that the server needs.
    """
    found = _KEY.fullmatch(key)
    name, value = (found[1], int(found[2])) if found else ('', 0)
    return (
        Claim(demand, minimum=value / 100 if name == 'mem_bw_min' else 0.0,
              priority=value if name == 'mem_bw_priority' else 3),
        Claim(1.0, maximum=value / 100 if name == 'mem_bw_max' else math.inf,
              priority=0 if name == 'mem_bw_priority' else 3))


def predict_effect(key: str, curves: Iterable[LatencyCurve], demand: float
                   ) -> tuple[Span, Span]:
    """Return the model's ranges of p99 and of the streams' bandwidth."""
    latencies, ratios = [], []
    for curve in curves:
        for scope in queueing.SCOPES:
            enforcement = queueing.Enforcement(scope)
            latency, moved = server.predict_mutual_slowdown(
                *make_claims(key, demand), curve, enforcement)
            _latency, most = server.predict_mutual_slowdown(
                *make_claims(bandwidth_groups.NO_KEY, demand), curve,
                enforcement)
            latencies.append(latency)
            ratios.append(moved / most)
    return ((server.get_relative_service_time(ranges.ELASTICITY[0],
                                              min(latencies)),
             server.get_relative_service_time(ranges.ELASTICITY[1],
                                              max(latencies))),
            (min(ratios), max(ratios)))


def _find_cells(key: str, simulated: Mapping[str, Any]) -> list[str]:
    """Return the recorded cells of simulated memory with a key."""
    found = _KEY.fullmatch(key)
    endings = [''] if not found else _CELLS.get(
        found[1], (f'cap {found[2]}%',))
    cells = [f'{memory} want all' + (f', {ending}' if ending else '')
             for memory in _MEMORIES for ending in endings]
    return [cell for cell in cells if cell in simulated
            and 'p99_closed' in simulated[cell][0]]


def _mean(runs: Sequence[Mapping[str, float]], figure: str) -> float:
    return sum(run[figure] for run in runs) / len(runs)


def _span(values: Iterable[float]) -> Span | None:
    found = list(values)
    return (min(found), max(found)) if found else None
