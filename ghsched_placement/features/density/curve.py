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

"""Measured curves of memory latency by utilisation (pure).

A curve gives the latency of an access by the utilisation of the memory,
relative to an idle machine, for one or several fractions of writes. Like every
parameter of the model, it has its source. A host file without a curve gets the
published curve closest to the host
(:mod:`ghsched_placement.features.density.shipped`). A machine without any
curve is modeled as a queue (M/M/1,
:mod:`ghsched_placement.features.density.queueing`), whose latency is far
steeper than that of any measured machine.
"""

from bisect import bisect_right
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
from typing import Any

#: Sources of a curve: measured on the machine, published for this or another
#: machine, or assumed.
BASES = ('measured', 'published', 'assumed')

#: Default fraction of writes: redis reads more than it writes.
WRITES = 0.2


class CurveError(ValueError):
    """Raised for a latency curve that is malformed."""


@dataclass(frozen=True)
class LatencyLine:
    """Memory latency by utilisation, for one proportion of writes.

    :param writes: fraction of the accesses that are writes, 0 to 1.
    :param points: pairs of the memory's utilisation and its latency relative
        to the idle latency. Both are ascending; the first utilisation is 0.
    """

    writes: float
    points: tuple[tuple[float, float], ...]

    def get_latency(self, utilisation: float) -> float:
        """Return the memory latency at a utilisation of the memory.

        The latency is relative to an idle machine. It is interpolated between
        measured points.

        :param utilisation: utilisation of the memory, 0 to 1.
        """
        number = bisect_right([point[0] for point in self.points],
                              utilisation)
        number = min(max(number, 1), len(self.points) - 1)
        (low, first), (high, second) = self.points[number - 1:number + 1]
        return first + (second - first) * (utilisation - low) / (high - low)


@dataclass(frozen=True)
class LatencyCurve:
    """Memory latency by utilisation, for several proportions of writes.

    :param basis: how the curve was obtained, one of :data:`BASES`.
    :param source: description of the source for the user.
    :param lines: latency for each proportion of writes.
    """

    basis: str
    source: str
    lines: tuple[LatencyLine, ...]

    @classmethod
    def from_mapping(cls, mapping: Any) -> 'LatencyCurve':
        """Build a memory latency curve from a mapping, such as parsed YAML.

        Each item of ``points`` has the keys ``writes`` and ``latency``. The
        latter is a list of pairs of utilisation and latency.

        :raises CurveError: if a field is missing, unknown or wrong.
        """
        if not isinstance(mapping, Mapping) or (
                set(mapping) != {'basis', 'source', 'points'}):
            raise CurveError('must be a mapping of basis, source and points')
        if mapping['basis'] not in BASES:
            raise CurveError(f'basis: {mapping["basis"]!r} is not one of '
                             + ', '.join(BASES))
        if not isinstance(mapping['source'], str) or (
                not mapping['source'].strip()):
            raise CurveError('source: must say where the curve comes from')
        given = mapping['points']
        if not isinstance(given, Sequence) or isinstance(given, str) or (
                not given):
            raise CurveError('points: must be a list that is not empty')
        lines = sorted(itertools.starmap(_parse_line, enumerate(given)),
                       key=lambda line: line.writes)
        if len({line.writes for line in lines}) < len(lines):
            raise CurveError('points: a part of writes is given twice')
        return cls(mapping['basis'], mapping['source'].strip(), tuple(lines))

    def get_latency(self, utilisation: float, writes: float = WRITES) -> float:
        """Return the latency of a memory access, relative to an idle machine.

        :param utilisation: utilisation of the memory, 0 to 1.
        :param writes: fraction of the accesses that are writes.
        """
        number = bisect_right([line.writes for line in self.lines], writes)
        low = self.lines[max(0, number - 1)]
        high = self.lines[min(number, len(self.lines) - 1)]
        first = low.get_latency(utilisation)
        if high.writes <= low.writes:
            return max(1.0, first)
        part = (writes - low.writes) / (high.writes - low.writes)
        return max(1.0, first + part * (high.get_latency(utilisation) - first))

    def get_max_utilisation(self, writes: float = WRITES) -> float:
        """Return the highest memory utilisation that was measured, 0 to 1.

        This is the fraction of its theoretical bandwidth that the memory can
        deliver.

        :param writes: fraction of the accesses that are writes; a fraction
            outside of the measured range counts as the nearest measured one.
        """
        ends = [line.points[-1][0] for line in self.lines]
        number = bisect_right([line.writes for line in self.lines], writes)
        low, high = max(0, number - 1), min(number, len(ends) - 1)
        if high == low:
            return ends[low]
        first, last = self.lines[low].writes, self.lines[high].writes
        part = max(0.0, writes - first) / (last - first)
        return ends[low] + part * (ends[high] - ends[low])


def _parse_line(number: int, given: Any) -> LatencyLine:
    where = f'points[{number}]'
    if not isinstance(given, Mapping) or set(given) != {'writes', 'latency'}:
        raise CurveError(f'{where}: must be a mapping of writes and latency')
    writes = _parse_number(f'{where}.writes', given['writes'])
    if not 0 <= writes <= 1:
        raise CurveError(f'{where}.writes: must be from 0 to 1')
    pairs = given['latency']
    if not isinstance(pairs, Sequence) or isinstance(pairs, str) or (
            len(pairs) < 2):
        raise CurveError(f'{where}.latency: must be two pairs or more')
    points = []
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or (
                len(pair) != 2):
            raise CurveError(f'{where}.latency: {pair!r} is not a pair')
        points.append((_parse_number(f'{where}.latency', pair[0]),
                       _parse_number(f'{where}.latency', pair[1])))
    _check_points(where, points)
    return LatencyLine(writes, tuple(points))


def _check_points(where: str, points: Sequence[tuple[float, float]]) -> None:
    if points[0] != (0, 1):
        raise CurveError(f'{where}.latency: must begin with [0, 1]')
    for (low, first), (high, second) in itertools.pairwise(points):
        if not low < high <= 1 or second < first:
            raise CurveError(f'{where}.latency: must ascend, with a '
                             'utilisation of 1 at most')


def _parse_number(where: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or (
            not 0 <= value < 1e6):
        raise CurveError(f'{where}: {value!r} is not a number from 0 on')
    return float(value)
