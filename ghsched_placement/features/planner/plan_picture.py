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

"""A plan as a picture: SVG, PNG or PDF, drawn by matplotlib.

From top to bottom: the number of guests of each flavor that still fit; the
usage of the NUMA nodes when the hosts are full; and the p99 latency by number
of containers, which is *simulated*. Each part has its legend.
"""

from collections.abc import Callable
from collections.abc import Sequence
from collections.abc import Set
import functools
import io
from typing import Any

from ghsched_placement.features.density.density import Curve
from ghsched_placement.features.density.density import LINE
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner.density import DensityPlan
from ghsched_placement.features.planner.density import SCENARIOS
from ghsched_placement.features.planner.limits import InventoryUse
from ghsched_placement.features.planner.plan import CapacityPlan
from ghsched_placement.fit.lack import WORDS

FORMATS = ('svg', 'png', 'pdf')

#: Inches.
_WIDTH, _BAR, _CHART, _FRAME = 10.0, 0.25, 3.5, 1.3

#: Colours that people who see no red or green can tell apart (Okabe, Ito).
_COLOURS = {'none': '#d55e00', 'static': '#e69f00', 'ghsched': '#0072b2'}
#: And those who see no colours at all.
_DASHES = {'none': ':', 'static': '--', 'ghsched': '-'}
_PLANNED, _BEFORE, _FREE = '#0072b2', '#999999', '#e8e8e8'

#: Units of amounts whose resource has none in its name.
_UNITS = {WORDS['MEMORY_MB']: ' MiB', WORDS['DISK_GB']: ' GiB'}

#: Height of a part of the picture, and what draws it.
_Part = tuple[float, Callable[[Any], None]]


def draw_plan(plan: CapacityPlan, densities: Sequence[DensityPlan],
              file_format: str = 'svg') -> bytes:
    """Draw a capacity plan; return the content of the picture file.

    :param densities: predictions of how many containers run well on machines.
    :param file_format: format of the file, one of FORMATS.
    :raises PlannerError: if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib import figure
    except ImportError:
        raise PlannerError('matplotlib, which draws pictures, is not '
                           "installed: pip install 'ghsched[plan]'") from None
    parts = _list_charts(plan, densities)
    content = io.BytesIO()
    with matplotlib.rc_context({
            'svg.hashsalt': 'ghsched', 'svg.fonttype': 'none',
            'text.parse_math': False, 'font.size': 10}):
        heights = [height for height, _draw in parts]
        picture = figure.Figure((_WIDTH, sum(heights)), layout='constrained')
        rows = picture.subplots(len(parts), height_ratios=heights,
                                squeeze=False)
        for (_height, draw_part), (axes,) in zip(parts, rows, strict=True):
            draw_part(axes)
        # Without a date, equal plans are equal files.
        picture.savefig(content, format=file_format, metadata={
            'svg': {'Date': None}, 'png': None,
            'pdf': {'CreationDate': None}}[file_format])
    return content.getvalue()


def _list_charts(plan: CapacityPlan, densities: Sequence[DensityPlan]
                 ) -> list[_Part]:
    """Return the charts in the picture of a capacity plan, top to bottom."""
    guests = [(flavor.flavor.name, flavor.guests) for flavor in plan.flavors]
    if plan.mix:
        guests += [(f'{name}, in the mix', count)
                   for name, count in plan.mix.guests.items()]
    title = (f'Guests that still fit on {plan.hosts} '
             + ('host' if plan.hosts == 1 else 'hosts'))
    parts: list[_Part] = [(_FRAME + _BAR * len(guests), functools.partial(
        _draw_guest_chart, title=title, guests=guests))]
    for flavor in plan.flavors:
        host = max(flavor.hosts, key=lambda one: len(one.hosts))
        lacking = {(reason.node, reason.resource) for reason in host.lacks}
        uses = sorted((use for use in host.uses if use.before or use.planned
                       or (use.node, use.resource) in lacking),
                      key=lambda use: (use.node is None, use.resource,
                                       use.node or 0))
        if uses:
            parts.append((_FRAME + _BAR * len(uses), functools.partial(
                _draw_inventory_chart, uses=uses, lacking=lacking,
                title=f'{host.hosts[0]} full of {flavor.flavor.name}')))
    return parts + [(_CHART + _FRAME, functools.partial(
        _draw_latency_chart, plan=density)) for density in densities]


def _draw_guest_chart(axes: Any, title: str,
                      guests: Sequence[tuple[str, int]]) -> None:
    """Draw a bar chart of the number of guests of each flavor."""
    bars = axes.barh(range(len(guests)), [count for _name, count in guests],
                     color=_PLANNED)
    axes.bar_label(bars, padding=4)
    _label_bars(axes, title, [name for name, _count in guests])


def _draw_inventory_chart(axes: Any, title: str,
                          uses: Sequence[InventoryUse],
                          lacking: Set[tuple[int | None, str]]) -> None:
    """Draw a bar chart of the used part of each inventory of a host.

    :param lacking: node and resource of which the next guest lacks some.
    """
    rows = range(len(uses))
    totals = [max(use.capacity, use.before + use.planned) or 1 for use in uses]
    free = [max(0, use.capacity - use.before - use.planned) for use in uses]
    ends = [0.0 for _use in uses]
    for amounts, colour, label in (
            ([use.before for use in uses], _BEFORE, 'in use now'),
            ([use.planned for use in uses], _PLANNED, 'guests that still fit'),
            (free, _FREE, 'left')):
        widths = [amount / total
                  for amount, total in zip(amounts, totals, strict=True)]
        bars = axes.barh(rows, widths, left=ends, color=colour, label=label)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.bar_label(bars, [
        f'{amount}{_UNITS.get(use.resource, "")} left'
        + (', too little for one more' if (use.node, use.resource) in lacking
           else '')
        for amount, use in zip(free, uses, strict=True)], padding=4)
    _label_bars(axes, title, [
        ('host' if use.node is None else f'node {use.node}')
        + f', {use.resource}' for use in uses])
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, 0), ncols=3,
                frameon=False)


def _label_bars(axes: Any, title: str, labels: Sequence[str]) -> None:
    """Label the bars of a horizontal bar chart, from top to bottom."""
    axes.set_title(title, loc='left', weight='bold')
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.margins(x=0.12)
    axes.spines[:].set_visible(False)


def _draw_latency_chart(axes: Any, plan: DensityPlan) -> None:
    """Draw a line chart of predicted p99 latency by number of containers.

    There is a line for each scenario, with and without bandwidth control.
    """
    for curve in plan.report.curves:
        colour = _COLOURS[curve.scenario]
        axes.plot(
            [point.n for point in curve.points],
            [point.p99 for point in curve.points], color=colour,
            linestyle=_DASHES[curve.scenario],
            label=_format_curve_legend(curve))
        last = curve.points[curve.density - 1]
        axes.plot(last.n, last.p99, 'o', color=colour)
    axes.axhline(LINE, color='#000000', linestyle='-.', linewidth=1, label=(
        f'latency line: from {LINE:.2f} on a number of containers fails'))
    axes.set_title(f'p99 with n containers, {plan.subject} on '
                   f'{plan.report.machine} (simulated)', loc='left',
                   weight='bold')
    # What matters is at the line; beyond that a curve leaves the picture.
    axes.set_ylim(1, 1 + 3 * (LINE - 1))
    axes.set_xlabel('containers; p99 of one alone is 1')
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.18),
                frameon=False)


def _format_curve_legend(curve: Curve) -> str:
    """Return the legend text of one line in a chart of predicted latency."""
    return (f'{SCENARIOS[curve.scenario]}: density {curve.density}'
            + ('' if curve.first_failing else
               ', and there is room for no more'))
