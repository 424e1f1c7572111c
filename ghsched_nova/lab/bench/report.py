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

"""Reports and comparisons as documents."""

from collections.abc import Sequence

from ghsched_nova.lab.bench import compare
from ghsched_nova.lab.bench.document import Block
from ghsched_nova.lab.bench.document import Heading
from ghsched_nova.lab.bench.document import Items
from ghsched_nova.lab.bench.document import Paragraph
from ghsched_nova.lab.bench.document import Picture
from ghsched_nova.lab.bench.document import Table
from ghsched_nova.lab.bench import plots
from ghsched_nova.lab.bench.record import Environment
from ghsched_nova.lab.bench.record import Report
from ghsched_nova.lab.bench.record import Result
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import stats


def figure(value: float) -> str:
    """Return a number with four significant digits, and no exponent."""
    if value == 0:
        return '0'
    if abs(value) >= 1000:
        return f'{value:.0f}'
    if abs(value) < 0.001:
        return f'{value:.2g}'
    return f'{value:.4g}'


# -- a report -----------------------------------------------------------------


def document(report: Report, pictures: str | None = None) -> list[Block]:
    """Return a report.

    :param pictures: what the names of its pictures begin with; None for a
        report without pictures.
    :raises BenchError: when pictures cannot be drawn.
    """
    blocks: list[Block] = [Heading('Benchmark report', 1)]
    shown: Environment | None = None
    for number, result in enumerate(report.results, 1):
        blocks.append(Heading(f'{result.scenario}: {result.status}', 2))
        blocks += map(Paragraph, result.reasons)
        if result.status != 'skipped':
            blocks += _body(result, pictures and f'{pictures}-{number}')
        if result.environment == shown:
            blocks.append(Paragraph('Same environment as above.'))
        else:
            blocks += [Heading('Environment', 3),
                       environment(result.environment)]
        shown = result.environment
        blocks += [Heading('Parameters', 3), _parameters(result)]
    return blocks


def _body(result: Result, pictures: str | None) -> list[Block]:
    measured = result.measured
    blocks: list[Block] = []
    if measured.findings:
        blocks.append(Items(tuple(f'{found.name}: {found.text}'
                                  for found in measured.findings)))
    if measured.skipped:
        blocks.append(Items(tuple(f'{part} was not measured: {reason}'
                                  for part, reason in measured.skipped)))
    if pictures:
        blocks += _pictures(result, pictures)
    blocks += paths(measured.series) + arms(measured.series)
    if measured.series:
        blocks += [Heading('Distributions', 3), _explained(measured.series),
                   _distributions(measured.series)]
    blocks.append(Paragraph(f'The run took {result.seconds:.0f} s.'))
    return blocks


def paths(series: Sequence[Series]) -> list[Block]:
    """Return medians by the path from the client to the server (pure).

    :returns: nothing unless series have the condition "path". The ratios are
        to that metric on the path host-host, where that was measured.
    """
    rows: list[tuple[str, ...]] = []
    base: dict[str, float] = {}
    for one in series:
        of = dict(one.conditions)
        if 'path' in of:
            median = stats.quantile(one.samples, 0.5)
            if of['path'] == 'host-host':
                base[one.metric] = median
            known = base.get(one.metric)
            rows.append((of['path'], of.get('flavor', ''), one.metric,
                         one.unit, figure(median),
                         f'{median / known:.2f}' if known else ''))
    return [Heading('From client to server', 3), Table(
        ('Path', 'Flavor', 'Metric', 'Unit', 'Median', 'Of host-host'),
        tuple(rows))] if rows else []


def arms(series: Sequence[Series]) -> list[Block]:
    """Return the median p99 latency by N and arm (pure).

    :returns: nothing unless series have the condition "arm". The ratios are
        to the latency of that arm at N = 1.
    """
    medians: dict[tuple[str, int], float] = {}
    for one in series:
        of = dict(one.conditions)
        if one.metric == 'p99 latency' and 'arm' in of:
            medians[of['arm'], int(of['N'])] = stats.quantile(
                one.samples, 0.5)
    names = list(dict.fromkeys(arm for arm, _n in medians))
    rows = tuple((str(n), *(
        f'{figure(medians[arm, n])} '
        f'({medians[arm, n] / medians[arm, 1]:.2f})'
        if (arm, n) in medians else '' for arm in names))
        for n in sorted({n for _arm, n in medians}))
    return [Heading('p99 latency in ms, and over that at N = 1', 3),
            Table(('N', *names), rows)] if rows else []


def _pictures(result: Result, name: str) -> list[Picture]:
    return [Picture(f'{name}-{number}.svg', plots.svg(plot),
                    f'{plot.title} ({_samples_shown(plot)})')
            for number, plot in enumerate(plots.plots(result), 1)]


def _samples_shown(plot: plots.Plot) -> str:
    """Return the part of a picture's caption that explains its marks."""
    if isinstance(plot, plots.Curve):
        return 'medians, with bars from the least to the greatest sample'
    return 'boxes from the first to the third quartile, points are samples'


def _explained(series: Sequence[Series]) -> Paragraph:
    discarded = sorted({one.warm_up for one in series})
    return Paragraph(
        'n is the number of samples, after a warm-up of '
        + ' or '.join(map(str, discarded))
        + ' that was discarded. Q1 and Q3 are the quartiles. A percentile is '
          'given where n allows it.')


def _distributions(series: Sequence[Series]) -> Table:
    described = [stats.distribution(one.samples) for one in series]
    percents = sorted({percent for one in described
                       for percent, _value in one.percentiles})
    rows = []
    for one, found in zip(series, described, strict=True):
        known = dict(found.percentiles)
        rows.append((
            one.title, one.unit, str(found.n), *map(figure, (
                found.minimum, found.q1, found.median, found.q3,
                found.maximum)),
            *(figure(known[percent]) if percent in known else ''
              for percent in percents)))
    return Table(('Metric', 'Unit', 'n', 'Min', 'Q1', 'Median', 'Q3', 'Max',
                  *(f'p{percent:g}' for percent in percents)), tuple(rows))


def environment(found: Environment) -> Table:
    """Return the environment block."""
    rows = [
        ('CPU', f'{found.cpu_model}, {found.cpus} online'),
        ('Architecture', found.architecture),
        ('NUMA nodes', str(found.numa_nodes)),
        ('Memory', f'{found.memory_mib} MiB'),
        ('Kernel', found.kernel),
        ('Distribution', found.distribution),
        ('Hypervisor', found.virtual),
        ('Frequency governor', found.governors),
        ('Load before', f'{found.load:.2f}'),
        ('Mitigations', '; '.join(
            f'{name}: {state}' for name, state in found.mitigations
            if state != 'Not affected') or 'none'),
        ('Tools', ', '.join(f'{name} {version}'
                            for name, version in found.tools))]
    return Table(('What', 'Value'), tuple(rows))


def _parameters(result: Result) -> Table:
    return Table(('Parameter', 'Value'), tuple(
        (name, _value(value)) for name, value in result.parameters))


def _value(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    return str(value)


# -- a comparison -------------------------------------------------------------


def comparison(pairs: Sequence[compare.Pair], pictures: str | None = None
               ) -> list[Block]:
    """Return pairs side by side.

    :param pictures: as in :func:`document`.
    """
    blocks: list[Block] = [
        Heading(f'{pairs[0].names[0]} and {pairs[0].names[1]}'.capitalize(),
                1)]
    for number, pair in enumerate(pairs, 1):
        blocks += _pair(pair, pictures and f'{pictures}-{number}.svg')
    return blocks


def _pair(pair: compare.Pair, picture: str | None) -> list[Block]:
    blocks: list[Block] = [Heading(pair.scenario, 2)]
    if pair.differences:
        blocks += [
            Paragraph('The two are NOT alike. What differs below may come '
                      'from this and from nothing else:'),
            Items(tuple(found.text for found in pair.differences))]
    blocks.append(Paragraph(_how(pair)))
    if pair.comparisons:
        blocks.append(_comparisons(pair))
    ratios = _ratios(pair)
    if picture and ratios.rows:
        blocks.append(Picture(picture, plots.svg(ratios), ratios.title
                              + ', with the interval of each'))
    if pair.alone:
        blocks.append(Items(tuple(f'{title} is in one of the two only'
                                  for title in pair.alone)))
    for name, result in zip(pair.names, pair.results, strict=True):
        blocks += [Heading(f'Environment of {name}', 3),
                   environment(result.environment)]
    return blocks


def _how(pair: compare.Pair) -> str:
    """Return the method of a comparison of two results, in words."""
    ratios = f'Ratio of medians, {pair.names[1]} over {pair.names[0]}'
    tested = sum(one.p is not None for one in pair.comparisons)
    if not pair.comparisons:
        return 'The two have no metric in common.'
    if not tested:
        return (f'{ratios}. No metric could be tested: the samples are too '
                'few, or all the same.')
    adjusted = (f', adjusted for {tested} comparisons (Holm)' if tested > 1
                else '')
    return (f'{ratios}, with its {compare.COVERAGE:.0%} bootstrap interval. '
            f"p is of Mann and Whitney's test{adjusted}. A difference is "
            f'shown where p is at most {compare.ALPHA} and the interval does '
            'not hold 1.')


def _ratios(pair: compare.Pair) -> plots.Ratios:
    return plots.Ratios(
        f'{pair.scenario}: {pair.names[1]} over {pair.names[0]}',
        'ratio of medians', tuple(
            (one.title, one.low, one.ratio, one.high)
            for one in pair.comparisons if one.ratio is not None
            and one.low is not None and one.high is not None))


def _comparisons(pair: compare.Pair) -> Table:
    head = ('Metric', 'Unit', *(f'{name} (n)' for name in pair.names),
            'Ratio', 'Interval', 'p', 'Shown')
    return Table(head, tuple((
        one.title, one.unit,
        f'{figure(one.medians[0])} ({one.counts[0]})',
        f'{figure(one.medians[1])} ({one.counts[1]})',
        '' if one.ratio is None else f'{one.ratio:.3f}',
        '' if one.low is None or one.high is None
        else f'{one.low:.3f} to {one.high:.3f}',
        '' if one.p is None else f'{one.p:.2g}', one.verdict)
        for one in pair.comparisons))
