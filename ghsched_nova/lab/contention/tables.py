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

"""The figures of the administrator guide, as reStructuredText (pure).

``tools/contention-tables`` writes them; a test compares what the guide has.
All of them are *simulated*.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace

from ghsched_nova.lab.contention import leave_one_out
from ghsched_nova.lab.contention import ranges
from ghsched_placement.features.density import calibrate
from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density import density
from ghsched_placement.features.density.density import Curve
from ghsched_placement.features.density.density import DensityReport
from ghsched_placement.features.density.density import ParameterShift
from ghsched_placement.features.density.machine import BASES
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density.queueing import CONTROLLER
from ghsched_placement.features.density.queueing import ENTRANCE
from ghsched_placement.features.density.workload import REFERENCE
from ghsched_placement.features.density.workload import SCENARIOS
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import GuestPolicy

#: What others want of each node in the table of noisy neighbours, as a part
#: of what a node delivers.
NOISE = (0.25, 0.5, 0.75)

#: vCPUs of the class of the observed container, and where its priority acts:
#: one container of each guest, and about half of those at 28 containers.
CLASS_CASES = (('0-1', CONTROLLER), ('0-7,80-87', CONTROLLER),
               ('0-1', ENTRANCE))

Row = Sequence[str]


def render_comparison_tables(ours: Machine, other: Machine) -> str:
    """Render tables that compare how many containers run well on two machines.

    :param ours: machine with bandwidth control.
    :param other: machine without bandwidth control to compare with.
    """
    report = density.predict_scenarios(ours, against=other)
    parts = [_render_parameters(ours, other),
             _render_published_points(ours, other, report),
             _render_densities((report, density.predict_scenarios(other))),
             _render_ratios(report), _render_fitted_shifts(ours, other),
             _render_unfitted_parameter_shifts(ours, other),
             _render_buffers(ours), _render_neighbours(ours)]
    notice = ('.. Written by tools/contention-tables. Change the model or the '
              'host files\n   and run it again.\n')
    return '\n'.join([notice, *parts])


def _render_list_table(title: str, head: Row, rows: Sequence[Row]) -> str:
    lines = [f'.. list-table:: {title}', '   :header-rows: 1', '']
    for row in (head, *rows):
        for place, cell in enumerate(row):
            lines.append(f'   {"* -" if place == 0 else "  -"} {cell}'
                         .rstrip())
    return '\n'.join([*lines, ''])


def _render_parameters(*machines: Machine) -> str:
    return _render_list_table(
        'Parameters',
        ('Host file', 'Parameter', 'Value', 'Basis', 'From'),
        [(machine.name, f'``{one.name}``', f'{one.value:g}', one.basis,
          one.source)
         for machine in machines for one in machine.parameters])


def _render_published_points(
        ours: Machine, other: Machine, report: DensityReport) -> str:
    none, best = report.get_curve('none'), report.get_curve('ghsched')
    carried = density.predict_latencies(
        other.replace_parameter('demand_mb', ours['demand_mb']), 'none')
    gain = calibrate.get_memory_speedup_of_binding(ours)
    return _render_list_table(
        'Published points and the model (simulated)',
        ('Point', 'Published', 'Model', 'Use'),
        [(f'{ours.name}, no control: first number that fails', '28',
          str(none.first_failing), 'fitted (``demand_mb``)'),
         (f'{other.name}, no control: last number that passes', '48',
          str(density.predict_latencies(other, 'none').density),
          f'fitted (``demand_mb`` of {other.name})'),
         ('NUMA-ICON: gain of one instance bound to a node', '32.2 and 27.9 %',
          f'{gain - 1:.1%}', 'fitted (``far_latency``)'),
         ('NUMA-ICON: cost of an access across nodes', '30 % or more',
          f'{ours["near_latency"] - 1:.0%} and '
          f'{ours["far_latency"] - 1:.0%}',
          'specified (``near_latency``), and fitted as above'),
         (f'{ours.name}, optimised: last number that passes', '60 or more',
          str(best.density), 'predicted'),
         (f'optimised / {other.name}', '1.25 (60/48)',
          f'{report.ratios[1].value:.2f}', 'predicted'),
         (f'{other.name} with the ``demand_mb`` of {ours.name}', '48',
          f'{carried.density} (latency alone: {carried.latency_density})',
          'predicted; does not agree')])


def _render_densities(reports: Sequence[DensityReport]) -> str:
    return _render_list_table(
        'Density of the published test (simulated)',
        ('Host file', 'Scenario', 'Density', 'First that fails', 'Binds',
         'p99 at 28, 48 and 60', 'Latency alone at N=1',
         'Density by latency alone', 'All judged', 'Busiest node, link'),
        [(report.machine, curve.scenario, *_make_curve_cells(curve))
         for report in reports for curve in report.curves])


def _make_curve_cells(curve: Curve) -> Row:
    p99 = {point.n: point.p99 for point in curve.points}
    return (str(curve.density), str(curve.first_failing or 'none'),
            curve.binds,
            ', '.join(f'{p99[n]:.3f}' for n in (28, 48, 60) if n in p99),
            f'{curve.alone:.3f}', str(curve.latency_density),
            str(curve.all_density),
            f'{curve.node_busy:.1%}, {curve.link_busy:.1%}')


def _render_ratios(report: DensityReport) -> str:
    return _render_list_table(
        f'{report.machine} with ghsched against other lines (simulated)',
        ('Line', 'Containers', 'Ratio', 'Ratio by latency alone'),
        [(one.against, str(one.line), f'{one.value:.2f}',
          f'{one.latency_value:.2f}') for one in report.ratios])


def _render_fitted_shifts(ours: Machine, other: Machine) -> str:
    return _render_shifts(
        'Each fitted parameter moved by 20 %, all others as they '
        'are (simulated)', density.compute_sensitivity(ours, against=other))


def _render_unfitted_parameter_shifts(ours: Machine, other: Machine) -> str:
    """Render how a density comparison depends on uncertain model parameters.

    A density is how many containers run well on a machine. Each parameter that
    was not fitted to the published density is made 20 % smaller and larger.

    :param ours: machine with bandwidth control.
    :param other: machine without bandwidth control to compare with.
    """
    return _render_shifts(
        f'Each other parameter of {ours.name} moved by 20 %, demand_mb fitted '
        'again (simulated)',
        [shift for shift in density.compute_sensitivity(
            ours, against=other, refit=calibrate.fit_machine_to_density,
            bases=[basis for basis in BASES if basis != 'fitted'])
         if shift.machine == ours.name])


def _render_shifts(title: str, shifts: Sequence[ParameterShift]) -> str:
    def rows() -> Iterator[Row]:
        for shift in shifts:
            curves = shift.report.curves
            yield (shift.machine, f'``{shift.parameter.name}``',
                   f'{shift.factor - 1:+.0%}',
                   ', '.join(str(curve.density) for curve in curves),
                   *(f'{ratio.value:.2f}' for ratio in shift.report.ratios))

    first = shifts[0].report.ratios
    return _render_list_table(title, (
        'Host file', 'Parameter', 'Moved', 'none, static, ghsched',
        *(f'against {ratio.against}' for ratio in first)), [*rows()])


def render_density_ranges(
        machine: Machine, curves: Mapping[str, LatencyCurve | None],
        count: int,
        last_row_curves: Sequence[LatencyCurve | None] = ()) -> str:
    """Render a table of predicted container densities by latency curve.

    A density is how many containers run well on the machine. Each row has the
    range over many random draws of the model parameters.

    :param curves: latency curves by name; None models memory as a queue.
    :param count: number of random draws for each curve.
    :param last_row_curves: curves that the last row draws from; if empty,
        all of ``curves``.
    """
    def row(name: str, chosen: Sequence[LatencyCurve | None],
            baseline: str) -> Row:
        found = ranges.predict_random_densities(
            machine, chosen, count, baselines=[baseline])
        return (name, _BASELINES[baseline],
                *(_format_spread(values, digits) for values, digits in (
                    (found.densities, 0), (found.by_latency, 0),
                    (found.over_static, 2))), f'{found.fraction_at_goal:.0%}')

    rows = [row(name, chosen, baseline) for baseline in ranges.BASELINES
            for name, chosen in _list_curve_choices(curves, last_row_curves)]
    return ('.. Written by tools/contention-tables.\n\n' + _render_list_table(
        f'{machine.name} with ghsched at 5, 50 and 95 % of {count} draws '
        '(simulated)',
        ('Latency curve', 'Baseline', 'Density', 'By latency alone',
         'Over the best static bind',
         f'Part of the draws that reach {ranges.GOAL}'), rows))


def _list_curve_choices(
        curves: Mapping[str, LatencyCurve | None],
        last_row_curves: Sequence[LatencyCurve | None]
) -> list[tuple[str, Sequence[LatencyCurve | None]]]:
    return [*((name, [curve]) for name, curve in curves.items()),
            ('all', [*(last_row_curves or curves.values())])]


def render_class_gains(
        machine: Machine, curves: Mapping[str, LatencyCurve | None],
        count: int,
        last_row_curves: Sequence[LatencyCurve | None] = ()) -> str:
    """Render a table of what vCPU classes add, by latency curve and class.

    :param curves: latency curves by name; None models memory as a queue.
    :param count: number of random draws for each curve.
    :param last_row_curves: curves that the last row draws from; if empty,
        all of ``curves``.
    """
    cases = [({keys.VCPU_CLASSES.extra_spec: f'latency:{vcpus}',
               keys.MEM_BW_PRIORITY.extra_spec + '.latency': '7',
               keys.DEVICE_NUMA.extra_spec: 'preferred'}, scope)
             for vcpus, scope in CLASS_CASES]
    found = {name: ranges.predict_random_gains_of_classes(
        machine, chosen, count, cases)
        for name, chosen in _list_curve_choices(curves, last_row_curves)}
    rows = [
        (f'``latency:{vcpus}``', scope, name,
         _format_spread(gains[number].by_latency, 0),
         *(_format_spread(values, 2) for values in (
             gains[number].over_static, gains[number].over_guest,
             gains[number].traffic_over_static,
             gains[number].traffic_over_guest,
             gains[number].all_over_guest)))
        for number, (vcpus, scope) in enumerate(CLASS_CASES)
        for name, gains in found.items()]
    return ('.. Written by tools/contention-tables.\n\n' + _render_list_table(
        f'{machine.name} with vCPU classes, baseline bound, at 5, 50 and 95 '
        f'% of {count} draws (simulated)',
        ('Class', 'Priority acts in', 'Latency curve', 'By latency alone',
         'Over the best static bind', 'Over keys of the guest',
         'Traffic at 28, over the bind',
         'Traffic at 28, over keys of the guest',
         'All judged, over keys of the guest'), rows))


def render_latency_prediction_errors(
        curves: Mapping[str, LatencyCurve]) -> str:
    """Render a table of the errors of predicting a machine's memory latency.

    Each machine's latency is predicted from that of all other machines.

    :param curves: measured latency curve of each machine.
    """
    def cell(ones: Sequence[leave_one_out.LatencyPrediction],
             number: int) -> str:
        if number >= len(ones):
            return ''
        one = ones[number]
        return f'{one.error:+.0%}' + (
            '' if one.is_in_range_of_others else ' *')

    places = range(len(leave_one_out.UTILISATIONS) - 1)
    rows = [(name, *(cell(ones, number) for number in places),
             f'{max(abs(one.error) for one in ones):.0%}') for name, ones in
            leave_one_out.predict_latency_from_other_machines(curves).items()]
    return ('.. Written by tools/contention-tables.\n\n' + _render_list_table(
        'Error of the median of the other machines, by utilisation; '
        '* is outside the range of the other machines',
        ('Machine', *(f'{leave_one_out.UTILISATIONS[number]:.0%}'
                      for number in places), 'Largest'), rows))


_BASELINES = {'none': 'anywhere', 'static': 'bound'}


def _format_spread(values: Sequence[float], digits: int) -> str:
    return ' / '.join(f'{ranges.get_percentile(values, one):.{digits}f}'
                      for one in (5, 50, 95))


def _render_neighbours(machine: Machine) -> str:
    def rows() -> Iterator[Row]:
        for part in NOISE:
            workload = replace(REFERENCE,
                               neighbour_mb=part * machine['capacity_mb'])
            found = density.search_best_policy(machine, workload)
            curves = [
                density.predict_latencies(machine, scenario, workload=workload)
                for scenario in SCENARIOS]
            yield (f'{part:.0%}',
                   *(f'{curve.density} ({curve.alone:.2f})'
                     for curve in curves),
                   f'{found.curve.density} ({found.curve.alone:.2f})',
                   _format_keys(found.keys))

    return _render_list_table(
        f'{machine.name} with neighbours that nobody controls: density, and '
        'in brackets latency at N=1 (simulated)',
        ('They want of each node', 'none', 'static', 'ghsched, default keys',
         'ghsched, keys of the search', 'Keys of the search'), [*rows()])


def _render_buffers(machine: Machine) -> str:
    def rows() -> Iterator[Row]:
        for own, where in ((False, 'a node that the guest has VFs on'),
                           (True, "the container's own node")):
            for scenario in ('static', 'ghsched'):
                curve = density.predict_latencies(
                    machine, scenario,
                    workload=replace(REFERENCE, own_buffers=own))
                yield (scenario, where if own or scenario == 'ghsched'
                       else 'all nodes of the guest', str(curve.density),
                       curve.binds, str(curve.latency_density),
                       f'{curve.node_busy:.1%}, {curve.link_busy:.1%}')

    return _render_list_table(
        f'{machine.name}: buffers and interrupts of VFs (simulated)',
        ('Scenario', 'Buffers on', 'Density', 'Binds',
         'Density by latency alone', 'Busiest node, link'), [*rows()])


def _format_keys(policy: GuestPolicy) -> str:
    node = policy.nodes[0]
    found = [f'device_numa={policy.device_numa}']
    if node.minimum:
        found.append(f'mem_bw_min={node.minimum}')
    if node.is_capped:
        found += [f'mem_bw_max={node.maximum}',
                  f'mem_bw_hardlimit={str(node.hardlimit).lower()}']
    if node.priority is not None:
        found.append(f'mem_bw_priority={node.priority}')
    return ', '.join(f'``{one}``' for one in found)
