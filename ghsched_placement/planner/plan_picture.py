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

"""A plan as a picture (SVG).

From top to bottom: how many guests of each flavor still fit; what is used on
the NUMA nodes when the hosts are full; and p99 against the number of
containers, which is *simulated*. Each part has its legend.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lxml import etree

from ghsched_placement.contention.density import Curve
from ghsched_placement.contention.density import LINE
from ghsched_placement.planner.density import DensityPlan
from ghsched_placement.planner.density import SCENARIOS
from ghsched_placement.planner.limits import Use
from ghsched_placement.planner.plan import FlavorPlan
from ghsched_placement.planner.plan import Plan

_SVG = 'http://www.w3.org/2000/svg'

WIDTH, MARGIN, LABEL = 760, 20, 240
_ROW, _BAR = 20, 14
_CHART = 220
#: How wide a letter is at most, on average.
_LETTER = 7

#: Colours that people who see no red or green can tell apart (Okabe, Ito).
_COLOURS = {'none': '#d55e00', 'static': '#e69f00', 'ghsched': '#0072b2'}
#: And those who see no colours at all.
_DASHES = {'none': '1 3', 'static': '8 4', 'ghsched': 'none'}
_PLANNED, _BEFORE, _FREE = '#0072b2', '#999999', '#e8e8e8'


@dataclass(frozen=True)
class _Scale:
    """Scale from values to coordinates of the picture."""

    first: float
    last: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        width = (self.last - self.first) or 1
        share = (value - self.first) / width
        return self.start + share * (self.end - self.start)


class _Canvas:
    """Elements from top to bottom.

    :ivar y: where the next one goes.
    """

    def __init__(self) -> None:
        self.root = etree.Element(
            f'{{{_SVG}}}svg',
            nsmap={None: _SVG})  # type: ignore[dict-item]
        self.y = float(MARGIN)
        self._background = self.add('rect', x=0, y=0, width=WIDTH,
                                    fill='#ffffff')

    def add(self, tag: str, text: str | None = None,
            **attributes: object) -> etree._Element:
        element = etree.SubElement(self.root, f'{{{_SVG}}}{tag}', {
            name.replace('_', '-'): (f'{value:.1f}'
                                     if isinstance(value, float)
                                     else str(value))
            for name, value in attributes.items()})
        element.text = text
        return element

    def text(self, x: float, y: float, text: str, **attributes: object,
             ) -> None:
        self.add('text', text, x=float(x), y=float(y), **attributes)

    def heading(self, text: str) -> None:
        self.y += _ROW
        self.text(MARGIN, self.y, text, font_size=14, font_weight='bold')
        self.y += _ROW / 2

    def document(self) -> str:
        height = round(self.y + MARGIN)
        self._background.set('height', str(height))
        for name, value in (('width', WIDTH), ('height', height),
                            ('viewBox', f'0 0 {WIDTH} {height}'),
                            ('font-family', 'sans-serif'),
                            ('font-size', 12)):
            self.root.set(name, str(value))
        return etree.tostring(self.root, encoding='unicode',
                              pretty_print=True)


def draw(plan: Plan, densities: Sequence[DensityPlan]) -> str:
    """Return the picture of a plan: an SVG document."""
    canvas = _Canvas()
    _draw_guests(canvas, plan)
    for flavor in plan.flavors:
        _draw_nodes(canvas, flavor)
    for one in densities:
        _draw_curves(canvas, one)
    return canvas.document()


# -- guests -------------------------------------------------------------------


def _draw_guests(canvas: _Canvas, plan: Plan) -> None:
    canvas.heading(f'Guests that still fit on {plan.hosts} '
                   + ('host' if plan.hosts == 1 else 'hosts'))
    rows = [(flavor.flavor.name, flavor.guests) for flavor in plan.flavors]
    if plan.mix:
        rows += [(f'{name}, in the mix', count)
                 for name, count in plan.mix.guests.items()]
    scale = _Scale(0, max(count for _name, count in rows) or 1, LABEL,
                   WIDTH - 4 * MARGIN)
    for name, count in rows:
        _bar(canvas, name, [(count, _PLANNED)], scale, str(count))


def _bar(canvas: _Canvas, label: str, parts: Sequence[tuple[float, str]],
         scale: _Scale, told: str) -> None:
    canvas.text(LABEL - 8, canvas.y + _BAR - 3, label, text_anchor='end')
    done = 0.0
    for amount, colour in parts:
        canvas.add('rect', x=scale(done), y=canvas.y,
                   width=scale(done + amount) - scale(done), height=_BAR,
                   fill=colour)
        done += amount
    canvas.text(scale(done) + 6, canvas.y + _BAR - 3, told)
    canvas.y += _ROW


# -- nodes --------------------------------------------------------------------


def _draw_nodes(canvas: _Canvas, flavor: FlavorPlan) -> None:
    host = max(flavor.hosts, key=lambda one: len(one.hosts))
    uses = sorted(filter(_is_shown, host.uses), key=lambda use: (
        use.node is None, use.resource, use.node or 0))
    if not uses:
        return
    canvas.heading(f'{host.hosts[0]} full of {flavor.flavor.name}')
    _legend(canvas)
    scale = _Scale(0, 1, LABEL, WIDTH - 6 * MARGIN)
    for use in uses:
        free = max(0, use.capacity - use.before - use.planned)
        total = max(use.capacity, use.before + use.planned) or 1
        where = 'host' if use.node is None else f'node {use.node}'
        _bar(canvas, f'{where}, {use.resource}',
             [(use.before / total, _BEFORE), (use.planned / total, _PLANNED),
              (free / total, _FREE)], scale, f'{free} left')


def _legend(canvas: _Canvas) -> None:
    """Draw the legend of the colours of the nodes' bars."""
    x = float(LABEL)
    for colour, text in ((_BEFORE, 'in use now'),
                         (_PLANNED, 'guests that still fit'),
                         (_FREE, 'left')):
        canvas.add('rect', x=x, y=canvas.y, width=_BAR, height=_BAR,
                   fill=colour)
        canvas.text(x + _BAR + 6, canvas.y + _BAR - 3, text)
        x += _BAR + 28 + _LETTER * len(text)
    canvas.y += _ROW


def _is_shown(use: Use) -> bool:
    """Whether the picture shows an inventory: those of nodes, and those of the
    host that guests take.
    """
    return use.node is not None or bool(use.planned)


# -- curves -------------------------------------------------------------------


def _draw_curves(canvas: _Canvas, plan: DensityPlan) -> None:
    canvas.heading(f'p99 with n containers, {plan.subject} on '
                   f'{plan.report.machine} (simulated)')
    curves = plan.report.curves
    most = max(len(curve.points) for curve in curves)
    # Beyond that a curve leaves the picture; what matters is at the line.
    high = 1 + 3 * (LINE - 1)
    right = WIDTH - MARGIN
    x = _Scale(1, most, 3.0 * MARGIN, right)
    y = _Scale(1, high, canvas.y + _CHART, canvas.y)
    _axes(canvas, x, y, most, high)
    for curve in curves:
        _curve(canvas, curve, x, y, high)
    canvas.y += _CHART + 2 * _ROW
    canvas.text((x.start + x.end) / 2, canvas.y - 4,
                'containers; p99 of one alone is 1', text_anchor='middle')
    _key(canvas, curves)


def _key(canvas: _Canvas, curves: Sequence[Curve]) -> None:
    """Draw the legend of a chart's lines below it."""
    rows: list[tuple[str, dict[str, Any], str | None]] = [
        (f'{SCENARIOS[curve.scenario]}: density {curve.density}'
         + ('' if curve.first_failing else ', and there is room for no more'),
         _line(_COLOURS[curve.scenario], _DASHES[curve.scenario]),
         _COLOURS[curve.scenario]) for curve in curves]
    rows.append((f'latency line: from {LINE:.2f} on a number of containers '
                 'fails', _LIMIT, None))
    for text, line, dot in rows:
        middle, left = canvas.y + _BAR / 2, 3.0 * MARGIN
        canvas.add('line', x1=left, x2=left + 40, y1=middle, y2=middle,
                   **line)
        if dot:
            canvas.add('circle', cx=left + 20, cy=middle, r=4, fill=dot)
        canvas.text(left + 50, canvas.y + _BAR - 3, text)
        canvas.y += _ROW


def _line(colour: str, dashes: str) -> dict[str, Any]:
    """Return the attributes of the line of a curve."""
    return {'stroke': colour, 'stroke_width': 2, 'stroke_dasharray': dashes}


_LIMIT: dict[str, Any] = {'stroke': '#000000', 'stroke_dasharray': '4 3'}


def _curve(canvas: _Canvas, curve: Curve, x: _Scale, y: _Scale,
           high: float) -> None:
    points = [(x(point.n), y(point.p99)) for point in curve.points
              if point.p99 <= high]
    colour = _COLOURS[curve.scenario]
    canvas.add('polyline', fill='none',
               **_line(colour, _DASHES[curve.scenario]),
               points=' '.join(f'{left:.1f},{top:.1f}'
                               for left, top in points))
    last = curve.points[curve.density - 1]
    canvas.add('circle', cx=x(last.n), cy=y(last.p99), r=4, fill=colour)


def _axes(canvas: _Canvas, x: _Scale, y: _Scale, most: int,
          high: float) -> None:
    canvas.add('path', fill='none', stroke='#bbbbbb',
               d=f'M {x(1)} {y(high)} V {y(1)} H {x(most)}')
    canvas.add('line', x1=x(1), x2=x(most), y1=y(LINE), y2=y(LINE),
               **_LIMIT)
    for value in (1.0, LINE, high):
        canvas.text(x(1) - 6, y(value) + 4, f'{value:.2f}',
                    text_anchor='end')
    for number in _ticks(most):
        canvas.text(x(number), y(1) + 16, str(number), text_anchor='middle')


def _ticks(most: int) -> Iterator[int]:
    step = max(1, -(-most // 80) * 10 if most > 10 else 1)
    yield 1
    yield from range(step if step > 1 else 2, most + 1, step)
