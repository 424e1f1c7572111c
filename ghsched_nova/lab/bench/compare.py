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

"""Two reports side by side: before and after, or host and guest.

A pair is only compared when it is alike in what decides about the figures;
what differs must be named by whoever wants to see it all the same, and is
said in the result.

Two samples differ when both tests say so: Mann and Whitney's (two-sided,
exact for small samples; p values adjusted by Holm's method for the number of
comparisons), and a bootstrap interval of the ratio of medians that does not
hold 1 (percentile method). Metrics that only check a run are not compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import itertools
import math
from typing import Any

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.record import Environment
from ghsched_nova.lab.bench.record import Report
from ghsched_nova.lab.bench.record import Result
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import scenario_list
from ghsched_nova.lab.bench import stats

#: What pairs must have in common, and how it is read from a result.
ASPECTS = ('cpus', 'cpu-model', 'kernel', 'mitigations', 'parameters')

#: Greatest p value, and coverage of the interval.
ALPHA, COVERAGE = 0.05, 0.95

#: Samples on each side without which no interval is made. The percentile
#: method is short of its coverage with fewer: 4 give 93 % for a ratio of 1.
FEWEST = 5

_RESAMPLES = 9999

#: Ways to deal samples to two sides that are gone through one by one, where
#: ties leave no other exact test: those of 8 and 8.
_DEALS = math.comb(16, 8)

#: Parameters that say how often or where something is measured, not what.
_HARMLESS = ('runs', 'warm-up', 'timeout', 'up-to', 'go-on', 'port',
             'fio-directory', 'unixbench', 'iperf-port', 'thresholds')


@dataclass(frozen=True)
class Difference:
    """Something in which a pair is not alike."""

    aspect: str
    first: str
    second: str

    @property
    def text(self) -> str:
        return f'{self.aspect}: {self.first} against {self.second}'


@dataclass(frozen=True)
class Comparison:
    """Comparison of one metric of two results.

    :param ratio: second over first median; None when the first is 0.
    :param low: of the interval of the ratio, as ``high``; None for samples
        that are too few to resample.
    :param p: after Holm's adjustment; None without a test.
    :param verdict: in words.
    """

    title: str
    unit: str
    better: str
    counts: tuple[int, int]
    medians: tuple[float, float]
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: str = ''


@dataclass(frozen=True)
class Pair:
    """Two results of one scenario.

    :param names: of the sides, e.g. ("host", "guest").
    :param differences: in which they are not alike; allowed all of them.
    :param alone: titles of metrics that one side only has.
    """

    scenario: str
    names: tuple[str, str]
    differences: tuple[Difference, ...]
    comparisons: tuple[Comparison, ...]
    alone: tuple[str, ...]
    results: tuple[Result, Result]


def pairs(first: Report, second: Report, names: tuple[str, str],
          allowed: Sequence[str] = ()) -> tuple[Pair, ...]:
    """Compare the scenarios that both reports have.

    :param allowed: aspects (:data:`ASPECTS`) that may differ.
    :raises BenchError: when nothing can be compared, or when a pair differs
        in something that is not allowed.
    """
    results = [{result.scenario: result for result in report.results
                if result.status == 'done'} for report in (first, second)]
    common = [name for name in results[0] if name in results[1]]
    if not common:
        raise errors.BenchError('the two reports have no scenario in common '
                                'that both have done')
    return tuple(_pair(results[0][name], results[1][name], names, allowed)
                 for name in common)


def _pair(first: Result, second: Result, names: tuple[str, str],
          allowed: Sequence[str]) -> Pair:
    found = differences(first, second)
    refused = [d for d in found if d.aspect not in allowed]
    if refused:
        raise errors.BenchError(
            f'{first.scenario}: {names[0]} and {names[1]} are not alike: '
            + '; '.join(d.text for d in refused)
            + '. To compare them all the same, and have that said in the '
              'result: '
            + ' '.join(f'--allow {aspect}' for aspect in dict.fromkeys(
                d.aspect for d in refused)))
    one, two = map(_metrics, (first, second))
    return Pair(
        scenario=first.scenario, names=names, differences=found,
        comparisons=with_verdicts([compare(one[title], two[title])
                                   for title in one if title in two]),
        alone=tuple(sorted(set(one) ^ set(two))), results=(first, second))


def _metrics(result: Result) -> dict[str, Series]:
    """Return the series of a result by title, without those that only check
    the run.
    """
    checks = next((scenario.checks for scenario in scenario_list.ALL
                   if scenario.name == result.scenario), ())
    return {series.title: series for series in result.measured.series
            if series.metric not in checks}


# -- whether they are alike ---------------------------------------------------


def differences(first: Result, second: Result) -> tuple[Difference, ...]:
    """Return the differences between the environments and parameters of two
    results.
    """
    sides = [_aspects(result.environment) for result in (first, second)]
    found = [Difference(aspect, sides[0][aspect], sides[1][aspect])
             for aspect in sides[0] if sides[0][aspect] != sides[1][aspect]]
    found += _mitigations(first.environment, second.environment)
    one, two = dict(first.parameters), dict(second.parameters)
    found += [Difference('parameters', f'{name} {one.get(name)}',
                         f'{name} {two.get(name)}')
              for name in sorted({*one, *two} - set(_HARMLESS))
              if one.get(name) != two.get(name)]
    return tuple(found)


def _aspects(environment: Environment) -> dict[str, str]:
    return {'cpus': f'{environment.cpus} CPUs',
            'cpu-model': environment.cpu_model,
            'kernel': environment.kernel}


def _mitigations(first: Environment, second: Environment
                 ) -> list[Difference]:
    """Return the mitigations in which two kernels differ."""
    one, two = dict(first.mitigations), dict(second.mitigations)
    if not one and not two:
        return [Difference('mitigations', 'not known', 'not known')]
    return [Difference('mitigations', f'{name} {one.get(name, "not known")}',
                       f'{name} {two.get(name, "not known")}')
            for name in sorted({*one, *two}) if one.get(name) != two.get(name)]


# -- what the samples say -----------------------------------------------------


def compare(first: Series, second: Series) -> Comparison:
    """Compare samples of one metric; without a verdict yet."""
    medians = (stats.quantile(first.samples, 0.5),
               stats.quantile(second.samples, 0.5))
    low, high = interval(first.samples, second.samples)
    return Comparison(
        title=first.title, unit=first.unit, better=first.better,
        counts=(len(first.samples), len(second.samples)), medians=medians,
        ratio=medians[1] / medians[0] if medians[0] else None,
        low=low, high=high, p=p_value(first.samples, second.samples))


def least_p(first: int, second: int) -> float:
    """Return the least p value that two samples of these sizes can give.

    Two over the number of ways to deal all samples to the two sides.
    """
    return 2 / math.comb(first + second, first)


def too_few(first: int, second: int, tests: int = 1) -> bool:
    """Whether no two samples of these sizes can show a difference.

    :param tests: that p is adjusted for, all of samples of these sizes.
    """
    return min(first, second) < FEWEST or (
        least_p(first, second) * tests > ALPHA)


def enough(tests: int) -> int:
    """Return the fewest samples on each side that can show a difference."""
    return next(n for n in itertools.count(FEWEST)
                if not too_few(n, n, tests))


def p_value(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Mann and Whitney's two-sided test.

    :returns: None when the samples are too few to show anything, or when
        there is nothing to show because all are the same.
    """
    different = len({*first, *second})
    if too_few(len(first), len(second)) or different == 1:
        return None
    library = _scipy()
    ties = different < len(first) + len(second)
    deals = math.comb(len(first) + len(second), len(first))
    test = library.mannwhitneyu(
        first, second, alternative='two-sided',
        method=library.PermutationMethod(n_resamples=_DEALS)
        if ties and deals <= _DEALS else 'auto')
    # The normal approximation of more samples with ties may be below it.
    return max(float(test.pvalue), least_p(len(first), len(second)))


def interval(first: Sequence[float], second: Sequence[float]
             ) -> tuple[float | None, float | None]:
    """Bootstrap interval of the ratio of medians, second over first.

    The generator has a fixed seed: the same samples give the same interval.

    :returns: None, None for samples that are too few, or with a median of 0.
    """
    if too_few(len(first), len(second)):
        return None, None
    numpy = _numpy()
    random = numpy.random.default_rng(0)
    medians = [
        numpy.median(random.choice(samples, (_RESAMPLES, len(samples))),
                     axis=1) for samples in (first, second)]
    if (medians[0] == 0).any():
        return None, None
    edge = 100 * (1 - COVERAGE) / 2
    low, high = numpy.percentile(medians[1] / medians[0], [edge, 100 - edge])
    return float(low), float(high)


def holm(values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number (Holm, 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, values[place] * (len(values) - rank))
        adjusted[place] = min(1.0, highest)
    return adjusted


def with_verdicts(comparisons: Sequence[Comparison]
                  ) -> tuple[Comparison, ...]:
    """Adjust the p values for their number, and add verdicts."""
    values = [c.p for c in comparisons if c.p is not None]
    adjusted = iter(holm(values))
    found = [replace(c, p=next(adjusted) if c.p is not None else None)
             for c in comparisons]
    return tuple(replace(c, verdict=verdict(c, len(values))) for c in found)


def verdict(comparison: Comparison, tests: int) -> str:
    """Return the result of a comparison in words.

    :param tests: that p is adjusted for.
    """
    sure = comparison.low is not None and comparison.high is not None and not (
        comparison.low <= 1 <= comparison.high)
    if comparison.ratio is None or comparison.p is None or not sure or (
            comparison.p > ALPHA):
        return _not_shown(*comparison.counts, tests)
    change = f'{abs(comparison.ratio - 1):.1%} ' \
             f'{"more" if comparison.ratio > 1 else "less"}'
    if comparison.better == 'neither':
        return change
    good = (comparison.ratio > 1) == (comparison.better == 'higher')
    return f'{change}: {"better" if good else "worse"}'


def _not_shown(first: int, second: int, tests: int) -> str:
    few = f'n = {first} and {second} are too few '
    if too_few(first, second):
        return few + 'to show a difference'
    if too_few(first, second, tests):
        return few + f'for {tests} comparisons: take {enough(tests)} or more'
    return 'no difference shown'


def _scipy() -> Any:
    """Import scipy.stats, which only comparisons need."""
    try:
        from scipy import stats as scipy_stats
    except ImportError:
        raise _no_extra('scipy') from None
    return scipy_stats


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise _no_extra('numpy') from None
    return numpy


def _no_extra(name: str) -> errors.BenchError:
    return errors.BenchError(
        f'{name} is not installed: pip install ghsched[bench]')
