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

"""``ghsched plan``: how many more guests fit, and which resource limits them.

Placement's part is :mod:`ghsched_placement.features.planner`; here its
questions are read from the command line and its answers are put together with
those of the contention model.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
import sys
from typing import Any

from ghsched_nova.cmd import console
from ghsched_nova.features.planner import planner_hosts
from ghsched_nova.features.planner import planner_inputs
from ghsched_placement.base import exits
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner.cloud import make_step_progress
from ghsched_placement.features.planner.density import DensityPlan
from ghsched_placement.features.planner.flavors import parse_flavor_mix
from ghsched_placement.features.planner import output
from ghsched_placement.features.planner import plan as planner
from ghsched_placement.features.planner.plan import CapacityPlan
from ghsched_placement.features.planner.plan import PlanSettings
from ghsched_placement.features.planner import plan_picture
from ghsched_placement.features.planner.predict import (
    predict_container_densities)
from ghsched_placement.features.planner.predict import (
    reject_duplicate_machine_names)
from ghsched_placement.features.planner.predict import Target
from ghsched_placement.features.planner.progress import Bar


@dataclass(frozen=True)
class PlanResult:
    """Capacity plan of a cloud, with predicted container densities.

    A density is how many containers run well on a machine.

    :param densities: predictions of a simulation, one for each machine and
        kind of guest.
    """

    plan: CapacityPlan
    densities: tuple[DensityPlan, ...] = ()


def add_plan_command(subparsers: Any) -> None:
    """Add the sub-command ``plan`` to the parser of ``ghsched``."""
    parser = subparsers.add_parser(
        'plan', help='compute how many more guests fit, and what limits them',
        description='Fill hosts with guests in memory and show how many '
                    'fit, which resource of which NUMA nodes runs '
                    'out first, and how many more would fit with more of it. '
                    'A cloud is only read.',
        epilog='Exit status: 0 a guest fits, 1 no guest of any flavor fits, '
               '2 wrong usage, a bad file or a cloud that does not answer.')
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument('--hosts', nargs='+', metavar='FILE[*N]',
                       help='descriptions of hosts, as those in '
                            'etc/ghsched/hosts; FILE*N stands for N of them')
    where.add_argument('--cloud', metavar='NAME',
                       help='name of a cloud in clouds.yaml')
    parser.add_argument(
        '--flavor', required=True, action='append', metavar='FLAVOR',
        dest='flavors',
        help='NAME:vcpus=N,ram=MB[,disk=GB][,swap=MB][,EXTRA:SPEC=VALUE...], '
             'a file of flavors, or the name of a flavor of the cloud (repeat '
             'for several)')
    _add_capacity_options(parser)
    _add_density_options(parser)
    parser.add_argument('--format', choices=('table', 'json', 'svg'),
                        default='table')
    parser.add_argument('--picture', metavar='FILE', type=_parse_picture_path,
                        help='write a picture to FILE as well, as SVG, PNG or '
                             'PDF by its suffix (SVG without one)')
    parser.add_argument('--progress', action='store_true',
                        help='show progress even if standard error is not a '
                             'terminal')
    parser.set_defaults(run=run_plan_command)


def _add_capacity_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options of the capacity plan to a parser."""
    parser.add_argument('--mix', metavar='NAME=N,...',
                        help='fill the hosts with the flavors in this '
                             'proportion as well')
    parser.add_argument(
        '--alias',
        action='append',
        default=[],
        type=_parse_pci_alias,
        metavar='NAME=CLASS',
        dest='aliases',
        help='resource class of a PCI alias, for a cloud',
    )
    parser.add_argument('--accounting', choices=('min', 'max'), default='min',
                        help='value of [ghsched]bandwidth_accounting '
                             '(default: %(default)s)')
    parser.add_argument('--no-more', action='store_false', dest='more',
                        help='do not compute how many more guests would fit '
                             'with more of a resource')


def _add_density_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options of density prediction to a parser.

    A density is how many containers run well on a machine.
    """
    parser.add_argument('--density', action='store_true',
                        help='predict how many containers the guests can run '
                             'before their latency degrades (simulated), for '
                             'hosts whose file has a section "contention"')
    parser.add_argument('--machine', action='append', metavar='FILE',
                        dest='machines',
                        help='descriptions of hosts to predict densities for, '
                             'as with --density (default: those of --hosts)')
    parser.add_argument('--against', metavar='FILE',
                        help='description of the host whose density without '
                             'bandwidth control is the baseline of the '
                             'comparison')
    parser.add_argument('--search', action='store_true',
                        help='search for the keys with which the most '
                             'containers stay within the latency limit')


def run_plan_command(arguments: argparse.Namespace) -> int:
    """Run ``ghsched plan``: compute and print how many more guests fit.

    :returns: exit status.
    """
    bar = Bar(sys.stderr, arguments.progress or sys.stderr.isatty())
    try:
        if arguments.picture:
            console.check_writable(arguments.picture)
        answer = _make_capacity_plan(arguments, bar)
        if arguments.picture:
            arguments.picture.write_bytes(plan_picture.draw_plan(
                answer.plan, answer.densities,
                arguments.picture.suffix.lower()[1:] or 'svg'))
        text = _render_plan(answer, arguments.format)
    except PlannerError as error:
        bar.clear()
        print(f'ghsched plan: {error}', file=sys.stderr)
        return exits.COULD_NOT
    finally:
        bar.clear()
    print(text)
    fits = any(flavor.guests for flavor in answer.plan.flavors)
    return exits.DONE if fits else exits.FOUND


def _render_plan(answer: PlanResult, file_format: str) -> str:
    """Render a capacity plan in the selected format.

    :raises PlannerError: if pictures cannot be drawn.
    """
    if file_format == 'svg':
        return plan_picture.draw_plan(answer.plan, answer.densities).decode()
    return output.FORMATS[file_format](answer.plan, answer.densities)


def _make_capacity_plan(arguments: argparse.Namespace,
                        progress_bar: Bar) -> PlanResult:
    """Return the capacity plan that the command line asks for.

    If the command line asks for container densities, they are predicted, too.
    A density is how many containers run well on a machine.
    """
    given = planner_inputs.read_host_files(arguments.hosts or ())
    connection = (planner_inputs.connect_cloud(arguments.cloud)
                  if arguments.cloud else None)
    flavors = planner_inputs.load_flavors(arguments.flavors, connection)
    mix = (parse_flavor_mix(arguments.mix, {one.name: one for one in flavors})
           if arguments.mix else None)
    settings = PlanSettings(
        arguments.accounting,
        planner_inputs.map_pci_aliases_to_classes(
            given, arguments.aliases, flavors),
        arguments.more)
    targets = _select_target_machines(arguments, given)
    against = (planner_inputs.load_density_machine(arguments.against).machine
               if arguments.against else None)
    reject_duplicate_machine_names(targets, against)
    filling = make_step_progress(progress_bar, 0.0, 0.8 if targets else 1.0)
    if connection is not None:
        found = planner.plan_cloud_capacity(
            planner_inputs.get_placement_client(connection), flavors, mix,
            settings, filling,
            rooms=planner_inputs.read_free_node_capacities(connection))
    else:
        hosts = [planner_hosts.make_planner_host(one.file, name)
                 for one in given for name in one.names]
        found = planner.plan_host_capacity(hosts, flavors, mix, settings,
                                           filling)
    prediction = predict_container_densities(
        found, targets, flavors, settings, against,
        arguments.search, make_step_progress(progress_bar, 0.8, 1.0))
    progress_bar(1.0, 'done')
    found = replace(found, notes=(*found.notes, *prediction.reasons))
    return PlanResult(found, prediction.densities)


def _select_target_machines(
    arguments: argparse.Namespace,
    files: Sequence[planner_inputs.DescribedHosts]
) -> tuple[Target, ...]:
    """Return the machines for which to predict container densities.

    The result is empty if the command line asks for no prediction.

    :param files: hosts that the command line names.
    """
    if arguments.machines:
        return planner_inputs.load_density_machines(arguments.machines, files)
    found = tuple(planner_inputs.make_density_machine(one) for one in files
                  if one.file.contention)
    asked = [option for option in ('density', 'search', 'against')
             if getattr(arguments, option)]
    for option in asked:
        if not found:
            raise PlannerError(f'--{option}: no host file has a section '
                               '"contention"; name one that has with '
                               '--machine')
    return found if asked else ()


def _parse_picture_path(text: str) -> Path:
    """Parse a command-line argument as the path of a picture file.

    :raises argparse.ArgumentTypeError: if the path has a suffix other than
        .svg, .png and .pdf.
    """
    path = Path(text)
    if path.suffix.lower()[1:] not in ('', *plan_picture.FORMATS):
        raise argparse.ArgumentTypeError(
            f'{text}: pictures are SVG, PNG or PDF, name a file that ends '
            'with .svg, .png or .pdf')
    return path


def _parse_pci_alias(text: str) -> tuple[str, str]:
    """Parse ``ALIAS=CLASS``, a PCI alias and the resource class of its VFs."""
    name, equals, value = text.partition('=')
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f'{text!r} is not NAME=CLASS')
    return name, value
