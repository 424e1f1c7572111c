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

"""Selection and drawing of the pictures of a result.

matplotlib draws them; it comes with the extra ``bench``. The same data give
the same SVG, so that a report can be kept under version control.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import io
from typing import Any

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.record import Result
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import stats

#: Lines and boxes, distinguishable without colours by their markers too.
_COLOURS = ('#1f4e79', '#c55a11', '#548235', '#7030a0', '#7f7f7f')
_MARKERS = ('o', 's', '^', 'D', 'v')

#: More boxes than this in a picture cannot be read.
_MOST = 32


@dataclass(frozen=True)
class Line:
    """Medians along x with the range of all samples.

    :param points: (x, least, median, greatest).
    """

    name: str
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True)
class Curve:
    """A picture of lines.

    :param limit: where a horizontal line is, with the text beside it.
    """

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    limit: tuple[float, str] | None = None


@dataclass(frozen=True)
class Boxes:
    """A picture of distributions side by side.

    :param boxes: (name, samples).
    """

    title: str
    x: str
    boxes: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True)
class Ratios:
    """A picture of ratios with their intervals.

    :param rows: (name, low, ratio, high).
    """

    title: str
    x: str
    rows: tuple[tuple[str, float, float, float], ...]


Plot = Curve | Boxes | Ratios


def plots(result: Result) -> list[Plot]:
    """Return the pictures of a result.

    A metric that was measured along N is a curve, others are boxes. Metrics
    that are only there to check others are left out.
    """
    curves = [s for s in result.measured.series if along(s) is not None]
    rest = [s for s in result.measured.series
            if along(s) is None and len(s.samples) > 1]
    return [*_curves(result, curves), *_boxes(rest)]


def along(series: Series) -> int | None:
    """Return the N of a series; None if the series has none."""
    text = dict(series.conditions).get('N', '')
    return int(text) if text.isdecimal() else None


def _curves(result: Result, series: Sequence[Series]) -> list[Plot]:
    """Return metrics of one unit in one picture, as p50 and p99."""
    units: dict[str, dict[str, list[Series]]] = {}
    for one in series:
        if one.better != 'neither':
            units.setdefault(one.unit, {}).setdefault(
                _line(one), []).append(one)
    return [Curve(
        title=f'{result.scenario}: ' + ', '.join(metrics), x='N', y=unit,
        lines=tuple(Line(metric, tuple(map(_point, sorted(
            found, key=lambda one: along(one) or 0))))
            for metric, found in metrics.items()),
        limit=_limit(result, unit)) for unit, metrics in units.items()]


def _line(series: Series) -> str:
    """Return the metric, with what sets it apart from others beside N."""
    return ', '.join([series.metric, *(
        f'{name} {value}' for name, value in series.conditions
        if name != 'N')])


def _point(series: Series) -> tuple[float, float, float, float]:
    return (float(along(series) or 0), min(series.samples),
            stats.quantile(series.samples, 0.5), max(series.samples))


def _limit(result: Result, unit: str) -> tuple[float, str] | None:
    for found in result.measured.findings:
        if found.name == 'rule' and found.unit == unit and found.value:
            return found.value, f'limit {found.value:.3g} {unit}'
    return None


def _boxes(series: Sequence[Series]) -> list[Plot]:
    metrics: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        metrics.setdefault((one.metric, one.unit), []).append(one)
    return [Boxes(metric, unit, tuple(
        (', '.join(f'{name} {value}' for name, value in one.conditions)
         or metric, one.samples) for one in found))
        for (metric, unit), found in metrics.items() if len(found) <= _MOST]


# -- drawing ------------------------------------------------------------------


def svg(plot: Plot) -> str:
    """Draw a picture.

    :raises BenchError: when matplotlib is not installed.
    """
    figure = _figure(plot)
    text = io.StringIO()
    figure.savefig(text, format='svg', metadata={'Date': None})
    # matplotlib leaves blanks at the ends of lines.
    return '\n'.join(line.rstrip() for line in
                     text.getvalue().splitlines()) + '\n'


def _figure(plot: Plot) -> Any:
    try:
        import matplotlib
        from matplotlib import figure
    except ImportError:
        raise errors.BenchError('matplotlib, which draws the pictures, is '
                                'not installed: pip install ghsched[bench]'
                                ) from None
    matplotlib.rcParams.update({
        'svg.hashsalt': 'ghsched', 'svg.fonttype': 'none', 'font.size': 10})
    made = figure.Figure(figsize=(7, _height(plot)), layout='constrained')
    axes = made.add_subplot()
    if isinstance(plot, Curve):
        _draw_curve(axes, plot)
    elif isinstance(plot, Boxes):
        _draw_boxes(axes, plot)
    else:
        _draw_ratios(axes, plot)
    axes.set_title(plot.title)
    axes.grid(color='#dddddd')
    axes.set_axisbelow(True)
    _add_legend(made, axes)
    return made


def _add_legend(made: Any, axes: Any) -> None:
    """Below, where it hides no samples; what is dashed comes last."""
    entries = sorted(
        zip(*axes.get_legend_handles_labels(), strict=True),
        key=lambda entry: getattr(entry[0], 'is_dashed', bool)())
    made.legend(*zip(*entries, strict=True), loc='outside lower center',
                ncols=3, frameon=False)


def _height(plot: Plot) -> float:
    """Inches; as many as the rows need, and the legend."""
    if isinstance(plot, Curve):
        return 4.2
    return 1.6 + (0.5 * len(plot.boxes) if isinstance(plot, Boxes)
                  else 0.3 * len(plot.rows))


def _draw_curve(axes: Any, curve: Curve) -> None:
    for place, line in enumerate(curve.lines):
        x, least, median, greatest = zip(*line.points, strict=True)
        axes.errorbar(
            x, median, label=f'{line.name}, median', capsize=4,
            marker=_MARKERS[place % len(_MARKERS)],
            color=_COLOURS[place % len(_COLOURS)],
            yerr=([m - s for m, s in zip(median, least, strict=True)],
                  [g - m for m, g in zip(median, greatest, strict=True)]))
    if curve.limit:
        axes.axhline(curve.limit[0], color='black', linestyle='--',
                     linewidth=1, label=curve.limit[1])
    axes.set_xticks(sorted({point[0] for line in curve.lines
                            for point in line.points}))
    axes.set_xlabel(curve.x)
    axes.set_ylabel(curve.y)
    axes.set_ylim(bottom=0)


def _draw_boxes(axes: Any, boxes: Boxes) -> None:
    """Quartiles as boxes, and every sample as a point."""
    places = range(len(boxes.boxes), 0, -1)
    drawn = axes.boxplot([samples for _name, samples in boxes.boxes],
                         positions=list(places), orientation='horizontal',
                         showfliers=False, widths=0.6,
                         medianprops={'color': _COLOURS[1]})
    drawn['medians'][0].set_label('median')
    drawn['boxes'][0].set_label('quartiles')
    for place, (_name, samples) in zip(places, boxes.boxes, strict=True):
        (points,) = axes.plot(samples, [place] * len(samples), 'o',
                              markersize=3, alpha=0.5, color=_COLOURS[0])
    points.set_label('samples')
    axes.set_yticks(list(places), [name for name, _samples in boxes.boxes])
    axes.set_xlabel(boxes.x)
    axes.set_xlim(left=0)


def _draw_ratios(axes: Any, plot: Ratios) -> None:
    places = list(range(len(plot.rows), 0, -1))
    names, lows, ratios, highs = zip(*plot.rows, strict=True)
    # The interval of medians need not hold the ratio of the medians itself.
    axes.hlines(places, lows, highs, color=_COLOURS[0], label='interval')
    axes.plot(ratios, places, 'o', color=_COLOURS[0], label='ratio')
    axes.axvline(1, color='black', linestyle='--', linewidth=1,
                 label='no difference')
    axes.set_yticks(places, names)
    axes.set_xlabel(plot.x)
