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

"""Rule for the number of guests that a machine takes, without running any
(pure).

A number of instances N passes while the observed one's p99 latency is below a
limit times what it was alone, as in the published tests. The density is the
last N that passes before the first that fails; N = 1 always passes.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic
from typing import TypeVar

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import stats

_Taken = TypeVar('_Taken')


class FullError(Exception):
    """No further instance can be started; the text is the reason."""


@dataclass(frozen=True)
class Point:
    """p99 latencies of the observed instance among n, in any one unit."""

    n: int
    p99: tuple[float, ...]

    @property
    def median(self) -> float:
        return stats.quantile(self.p99, 0.5)


@dataclass(frozen=True)
class Density:
    """Density that a ramp of instances has measured.

    :param ratios: (n, p99 over p99 at 1), ascending.
    :param last_passing: the greatest N measured before the first that fails.
    :param first_failing: None when the ramp ended before one did. Whatever
        lies between the two was not measured.
    """

    baseline: float
    ratios: tuple[tuple[int, float], ...]
    last_passing: int
    first_failing: int | None

    @property
    def text(self) -> str:
        """The density in a sentence."""
        if self.first_failing is None:
            return f'N = {self.last_passing} passes, and no N that was ' \
                   'measured fails: the density is at least ' \
                   f'{self.last_passing}'
        between = self.first_failing - self.last_passing - 1
        gap = f'; the {between} between were not measured' if between else ''
        return f'N = {self.last_passing} is the last that passes, ' \
               f'N = {self.first_failing} the first that fails' + gap


def fails(p99: float, baseline: float, limit: float) -> bool:
    """Return the stop rule.

    :param limit: e.g. 1.1 for 10 % above the baseline; that itself fails.
    """
    return p99 >= baseline * limit


def judge(points: Sequence[Point], limit: float) -> Density:
    """Apply the rule to a ramp.

    :raises BenchError: when it has no N = 1, or a p99 of nothing there.
    """
    ordered = sorted(points, key=lambda point: point.n)
    if not ordered or ordered[0].n != 1:
        raise errors.BenchError('a density needs the latency at N = 1')
    baseline = ordered[0].median
    if baseline <= 0:
        raise errors.BenchError('the latency at N = 1 is not above 0')
    passing, failing = 1, None
    for point in ordered[1:]:
        if fails(point.median, baseline, limit):
            failing = point.n
            break
        passing = point.n
    return Density(
        baseline=baseline, last_passing=passing, first_failing=failing,
        ratios=tuple((point.n, point.median / baseline)
                     for point in ordered))


def halve_gap(judged: Density) -> int | None:
    """Return the N halfway between the last that passes and the first that
    fails; None if there is none.
    """
    if judged.first_failing is None:
        return None
    halfway = (judged.last_passing + judged.first_failing) // 2
    return halfway if halfway > judged.last_passing else None


def noise(point: Point) -> float:
    """Return the spread of the runs at one N: (max - min) / median."""
    return (max(point.p99) - min(point.p99)) / point.median


def counts(up_to: int, step: int) -> tuple[int, ...]:
    """The numbers of instances of a ramp: 1, then multiples of the step."""
    return tuple(sorted({1, *range(step, up_to + 1, step)}))


@dataclass(frozen=True)
class Climb(Generic[_Taken]):
    """Measurements of a ramp, and the density judged from them.

    :param taken: by the number of instances, ascending.
    :param full: why there was no further instance; nothing when all that
        were wanted could be had, or the limit came first.
    """

    taken: dict[int, _Taken]
    judged: Density
    full: str = ''

    @property
    def text(self) -> str:
        """Return a sentence with the density and why the ramp ended."""
        return self.judged.text + (
            f'; there is no place for one more: {self.full}'
            if self.full else '')


def climb(steps: Sequence[int], grow: Callable[[int], None],
          take: Callable[[int], _Taken],
          latencies: Callable[[_Taken], tuple[float, ...]], limit: float,
          go_on: bool = False, refine: bool = False) -> Climb[_Taken]:
    """Increase N up to the first that fails, or to the largest that has room.

    :param steps: ascending, from 1 on; see :func:`counts`.
    :param grow: has that many instances run; raises :class:`FullError`.
    :param take: the samples at this N.
    :param latencies: of samples.
    :param go_on: beyond the first N that fails.
    :param refine: then measure the N between, until the first that fails is
        the one after the last that passes.
    :raises BenchError: as :func:`judge`, and without a single instance.
    """
    taken: dict[int, _Taken] = {}
    judged: Density | None = None

    def measure(count: int) -> Density:
        taken[count] = take(count)
        return judge([Point(n, latencies(one))
                      for n, one in taken.items()], limit)
    for count in steps:
        try:
            grow(count)
        except FullError as full:
            if judged is None:
                raise errors.BenchError(
                    f'there is no place for one: {full}') from None
            return Climb(taken, judged, str(full))
        judged = measure(count)
        if judged.first_failing and not go_on:
            break
    if judged is None:
        raise errors.BenchError('a density needs the latency at N = 1')
    while refine and (halfway := halve_gap(judged)):
        judged = measure(halfway)
    return Climb(dict(sorted(taken.items())), judged)
