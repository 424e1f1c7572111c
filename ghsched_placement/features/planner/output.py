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

"""Text output of ``ghsched plan``.

The keys of the JSON are stable: none is renamed or removed.

hosts, kinds
    How many hosts there are, and how many of them differ.
notes
    What is not counted, for people.
flavors
    One per flavor: ``flavor``, ``guests`` (how many more fit in all) and
    ``hosts``, one per kind of host: ``names``, ``guests`` (on each), the
    same ``by_flavor``,
    ``pooled`` (how many would fit without NUMA nodes; null in a mix),
    ``nodes`` and how many of them are whole, ``whole_before`` and
    ``whole_after``; ``lacks``, what refuses the next guest, with ``node``
    (null for the host as a whole), ``resource``, ``free`` and ``needed``;
    ``uses`` with ``node``, ``resource``, ``capacity``, ``before`` and
    ``planned``; ``more`` with ``node``, ``provider``, ``resource``,
    ``amount`` and ``guests``, which is what it buys on one such host.
mix
    Null, or ``mix``, ``guests`` by flavor, ``stopped_by`` (the flavor whose
    next guest found no host) and ``hosts`` as above.
densities
    *Simulated.* One per machine and kind of guest: ``simulated`` (true),
    ``machine``, ``subject``, ``keys``; ``notes`` on these figures; ``curves``
    with ``scenario``, ``guests`` (how many there are), ``density``,
    ``first_failing``, ``binds``, ``latency_density`` and ``points`` (``n``,
    ``p99``); ``ratios`` with ``against``, ``line``, ``line_is``
    (``density``), ``value`` and ``latency_value``;
    ``fitted`` with ``machine``, ``parameter``, ``value`` and
    ``source``; ``sensitivity`` with ``machine``, ``parameter``, ``factor`` and
    ``ratios``; ``search``, null or ``keys``, ``density``, ``tried`` and
    ``guests`` (that Placement has room for on such a host; null where it was
    not asked).
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
import json
import textwrap
from typing import Any

from ghsched_placement.base import cpulist
from ghsched_placement.base.text_table import render_table
from ghsched_placement.features.density.density import Ratio
from ghsched_placement.features.planner import density
from ghsched_placement.features.planner.density import DensityPlan
from ghsched_placement.features.planner.plan import CapacityPlan
from ghsched_placement.features.planner.plan import HostPlan
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack

#: Kinds of hosts that a table shows at most.
MOST_KINDS = 12


# -- json ---------------------------------------------------------------------


def render_plan_as_json(plan: CapacityPlan, densities: Sequence[DensityPlan]
                        ) -> str:
    """Render a capacity plan with its container densities as JSON.

    :param densities: predictions of how many containers run well on machines.
    """
    return json.dumps({
        'hosts': plan.hosts, 'kinds': plan.kinds, 'notes': list(plan.notes),
        'flavors': [{'flavor': flavor.flavor.name, 'guests': flavor.guests,
                     'hosts': list(map(_make_host_object, flavor.hosts))}
                    for flavor in plan.flavors],
        'mix': plan.mix and {
            'mix': dict(plan.mix.mix), 'guests': dict(plan.mix.guests),
            'stopped_by': plan.mix.stopped_by,
            'hosts': list(map(_make_host_object, plan.mix.hosts))},
        'densities': list(map(_make_density_object, densities))}, indent=2)


def make_lack_object(one: lack.Lack) -> dict[str, int | str | None]:
    """Return a refusal reason for output as JSON.

    It has the host NUMA node, the resource, the free and the needed amount,
    and the reason as text.
    """
    return {'node': one.node, 'resource': one.resource,
            'free': one.free, 'needed': one.needed, 'text': one.text}


def _make_host_object(host: HostPlan) -> dict[str, Any]:
    return {
        'names': list(host.hosts), 'guests': host.guests,
        'by_flavor': dict(host.by_flavor), 'pooled': host.pooled,
        'nodes': host.nodes, 'whole_before': host.whole_before,
        'whole_after': host.whole_after,
        'lacks': list(map(make_lack_object, host.lacks)),
        **{key: [asdict(one) for one in getattr(host, key)]
           for key in ('uses', 'more')}}


def _make_density_object(plan: DensityPlan) -> dict[str, Any]:
    return {
        'simulated': True, 'machine': plan.report.machine,
        'subject': plan.subject, 'keys': dict(plan.keys),
        'notes': list(plan.notes),
        'curves': [{
            'scenario': curve.scenario,
            'guests': plan.guests[curve.scenario], 'density': curve.density,
            'first_failing': curve.first_failing, 'binds': curve.binds,
            'latency_density': curve.latency_density,
            'points': [asdict(point) for point in curve.points]}
            for curve in plan.report.curves],
        'ratios': list(map(asdict, plan.report.ratios)),
        'fitted': [{'machine': machine, 'parameter': one.name,
                    'value': one.value, 'source': one.source}
                   for machine, one in plan.fitted],
        'sensitivity': [{
            'machine': shift.machine, 'parameter': shift.parameter.name,
            'factor': shift.factor,
            'ratios': [asdict(ratio) for ratio in shift.report.ratios]}
            for shift in plan.shifts],
        'search': plan.found and {
            'keys': plan.best_extra_specs, 'density': plan.found.curve.density,
            'tried': plan.found.tried, 'guests': plan.found_guests}}


# -- table --------------------------------------------------------------------


def render_plan_as_text(plan: CapacityPlan, densities: Sequence[DensityPlan]
                        ) -> str:
    """Render a capacity plan with its container densities as text tables.

    :param densities: predictions of how many containers run well on machines.
    """
    first_plans = {one.fitted: one for one in reversed(densities)}
    return '\n\n'.join([*_yield_plan_sections(plan), *(
        part for one in densities
        for part in _yield_density_sections(one, first_plans[one.fitted]))])


def _yield_plan_sections(plan: CapacityPlan) -> Iterator[str]:
    yield (f'{_format_count(plan.hosts, "host")} of '
           f'{_format_count(plan.kinds, "kind")}')
    for flavor in plan.flavors:
        yield (f'Flavor {flavor.flavor.name}: '
               f'{_format_count(flavor.guests, "more guest")}\n'
               + _render_host_table(flavor.hosts))
        if any(host.more for host in flavor.hosts):
            yield (f'What one more on one host would buy, flavor '
                   f'{flavor.flavor.name}\n' +
                   _render_additional_guests(flavor.hosts))
    if plan.mix:
        mixed = ' + '.join(f'{count} {name}'
                           for name, count in plan.mix.mix.items())
        counts = ', '.join(f'{count} {name}'
                           for name, count in plan.mix.guests.items())
        yield (f'Mix {mixed}: {counts}; then there is no host for '
               f'{plan.mix.stopped_by}\n' + _render_host_table(plan.mix.hosts))
    if plan.notes:
        yield 'Notes\n' + _render_list(plan.notes)


def _render_list(notes: Sequence[str]) -> str:
    return '\n'.join(textwrap.fill(
        note, 79, initial_indent='- ', subsequent_indent='  ')
        for note in notes)


def _render_host_table(hosts: Sequence[HostPlan]) -> str:
    shown = sorted(hosts, key=lambda host: -len(host.hosts))[:MOST_KINDS]
    table = render_table(
        ('hosts', 'guests on each', 'without nodes', 'whole nodes',
         'the next guest lacks'),
        ([_format_names(host.hosts), _format_guest_numbers(host), host.pooled,
          f'{host.whole_before} -> {host.whole_after} of {host.nodes}',
          '\n'.join(_format_shortages(host.lacks))] for host in shown))
    return table + _format_omitted(len(hosts) - len(shown), 'kinds of hosts')


def _format_guest_numbers(host: HostPlan) -> str:
    """Return the number of guests on a host as text.

    If the plan is for a mix of flavors, the text has the number of guests of
    each flavor, such as ``2 large + 5 small``.
    """
    if host.pooled is not None or not host.by_flavor:
        return str(host.guests)
    return ' + '.join(f'{count} {name}'
                      for name, count in sorted(host.by_flavor.items()))


def _render_additional_guests(hosts: Sequence[HostPlan]) -> str:
    """Render a table of how many more guests fit if a host has more resources.

    :param hosts: plans of the hosts, with the result for one more unit of each
        resource.
    """
    alike: dict[tuple[str, str, int], list[int | None]] = {}
    for host in hosts:
        for one in host.more:
            alike.setdefault((
                _format_names(host.hosts),
                lack.describe_amount(one.amount, one.resource),
                one.guests), []).append(one.node)
    shown = sorted(alike, key=lambda row: -row[2])[:4 * MOST_KINDS]
    rows = ([names, what, _format_nodes(alike[names, what, guests]), guests]
            for names, what, guests in shown)
    return (render_table(('host', 'one more', 'on node', 'guests'), rows)
            + _format_omitted(len(alike) - len(shown), 'rows'))


def _format_nodes(nodes: Sequence[int | None]) -> str | None:
    known = [node for node in nodes if node is not None]
    return cpulist.render_cpu_list(known) if known else None


def _format_omitted(number: int, noun: str) -> str:
    return f'\nand {number} more {noun}; JSON has them all' if number else ''


def _format_names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f'{len(names)} as {names[0]}'


def _format_shortages(lacks: Sequence[Lack]) -> Iterator[str]:
    """Yield a line of text for each reason why a guest does not fit on hosts.

    The line begins with the numbers of the host NUMA nodes that lack the
    resource.
    """
    alike: dict[str, list[int | None]] = {}
    for one in lacks:
        alike.setdefault(one.text, []).append(one.node)
    for text, nodes in alike.items():
        known = _format_nodes(nodes)
        yield (f'node {known}: ' if known else '') + text


def _format_count(number: int, noun: str) -> str:
    return f'{number} {noun}' + ('' if number == 1 else 's')


def _yield_density_sections(plan: DensityPlan,
                            first: DensityPlan) -> Iterator[str]:
    """Yield the text sections of a prediction of container densities.

    A density is how many containers run well on a machine.

    :param plan: the prediction for one flavor and machine.
    :param first: the first prediction in the output with the same fitted model
        parameters; only its sections list the parameters.
    """
    report = plan.report
    yield (f'Density of {plan.subject} on {report.machine} (simulated)\n'
           f'containers of {plan.workload.container_vcpus} vCPUs and '
           f'{plan.workload.container_memory_mb} MB in '
           f'{_format_guest_count(plan.guests)}, '
           f'keys: {_format_keys(plan.keys)}\n'
           + render_table(
               ('scenario', 'density', 'p99 there', 'first failing',
                'p99 there ', 'bound by'),
               ([density.SCENARIOS[curve.scenario], curve.density,
                 _format_p99(curve.points, curve.density), curve.first_failing,
                 _format_p99(curve.points, curve.first_failing), curve.binds]
                for curve in report.curves))
           + ('\n' + _render_list(plan.notes) if plan.notes else ''))
    yield (f'ghsched on {report.machine} against (simulated)\n' + render_table(
        ('against', 'containers', 'ratio'),
        ([ratio.against, ratio.line, _format_ratio(ratio)]
         for ratio in report.ratios)))
    if plan.fitted:
        yield _render_fitted_parameters(plan, first)
        yield ('Ratios when one of them is another (simulated)\n'
               + render_table(
                   ('machine', 'parameter', 'times',
                    *(ratio.against for ratio in report.ratios)),
                   ([shift.machine, shift.parameter.name, f'{shift.factor:g}',
                     *map(_format_ratio, shift.report.ratios)]
                    for shift in plan.shifts)))
    if plan.found:
        yield _render_search_result(plan)


def _render_fitted_parameters(plan: DensityPlan, first: DensityPlan) -> str:
    """Render the fitted parameters of the model that predicts a density.

    Several predictions may have the same parameters. Only the first of them
    shows the list; the others refer to it.

    :param plan: prediction to render.
    :param first: first prediction in the output with the same parameters; may
        be ``plan`` itself.
    """
    if plan is not first:
        names = ', '.join(f'{one.name} of {machine}'
                          for machine, one in plan.fitted)
        return textwrap.fill(f'Fitted parameters: {names}, as under '
                             f'"Density of {first.subject} on '
                             f'{first.report.machine}"', 79)
    return 'Fitted parameters\n' + render_table(
        ('machine', 'parameter', 'value', 'fitted to'),
        ([machine, one.name, f'{one.value:g}',
          '\n'.join(textwrap.wrap(one.source, 45))]
         for machine, one in plan.fitted))


def _format_guest_count(guests: Mapping[str, int]) -> str:
    text = _format_count(guests['ghsched'], 'guest')
    if guests['static'] != guests['ghsched']:
        text += f' ({guests["static"]} without the keys)'
    return text


def _render_search_result(plan: DensityPlan) -> str:
    assert plan.found is not None  # noqa: S101
    text = (f'Best keys of {plan.found.tried} that were tried (simulated)\n'
            f'{_format_keys(plan.best_extra_specs)}: '
            f'density {plan.found.curve.density}, '
            f'bound by {plan.found.curve.binds}')
    if plan.found_guests is not None:
        text += (
            '; Placement has room for '
            + _format_count(plan.found_guests, 'such guest') + ' on the host')
    return text


def _format_keys(keys: Any) -> str:
    return ' '.join(f'{key}={value}' for key, value in keys.items()) or 'none'


def _format_p99(points: Sequence[Any], number: int | None) -> str | None:
    return next((f'{point.p99:.3f}' for point in points
                 if point.n == number), None)


def _format_ratio(ratio: Ratio) -> str:
    return f'{ratio.value:.2f}'


FORMATS: dict[str, Callable[[CapacityPlan, Sequence[DensityPlan]], str]] = {
    'json': render_plan_as_json, 'table': render_plan_as_text}
