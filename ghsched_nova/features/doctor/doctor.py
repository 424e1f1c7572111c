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

"""``ghsched-status doctor``: whether this node is set up for ghsched.

The JSON is a list of checks. Its keys are stable: none is renamed or removed.

name
    Of the check.
status
    ``ok``, ``warning``, ``error`` or ``skipped``, for what is not about this
    node.
text
    What was found.
remedy
    What to do about it; empty when there is nothing to do.
"""

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import json
import sys
from typing import Any


from ghsched_nova.features.doctor import checks
from ghsched_placement.base import exits
from ghsched_placement.base import text_table


def add_doctor_command(subparsers: Any) -> None:
    """Add the sub-command ``doctor`` to the parser of ``ghsched-status``."""
    parser = subparsers.add_parser(
        'doctor', help='check whether this node is set up for ghsched',
        description='Check this node: releases of Nova and Placement, '
                    'driver, resctrl, filter and scheduler. Changes nothing. '
                    'Checks that do not apply to this node are skipped.',
        epilog='Exit status: 0 nothing is wrong, 1 something is, 2 wrong '
               'usage, or a configuration that cannot be read.')
    parser.add_argument(
        '--config-file', action='append', metavar='FILE',
        help='configuration file of the Nova service on this node (repeat '
             'for several; default: the files that nova-compute reads)')
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument('--leftovers', action='store_true',
                         help='list what has to be removed from this node '
                              'before the package is uninstalled; exit status '
                              '0: nothing, 1: something')
    instead.add_argument('--kernel', action='store_true',
                         help='list the guests of this host, running or not, '
                              'and whether the booted kernel can enforce the '
                              'policy of each')
    parser.add_argument('--connect', default='qemu:///system', metavar='URI',
                        help='libvirt URI for --kernel (default: %(default)s)')
    parser.add_argument('--format', choices=('table', 'json'),
                        default='table')
    parser.set_defaults(run=run_doctor_command)


def run_doctor_command(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-status doctor``: check this node and print the results.

    :returns: exit status.
    """
    # The other commands need neither of these.
    from oslo_config import cfg

    from ghsched_nova.cmd import domains
    from ghsched_nova.features.doctor import kernel_guests
    from ghsched_nova.features.doctor import leftovers
    from ghsched_nova.features.doctor import node
    found: Sequence[checks.Check]
    try:
        if arguments.leftovers:
            found = leftovers.make_leftover_checks(
                leftovers.find_leftovers(arguments.config_file))
        elif arguments.kernel:
            found = kernel_guests.check_guests_on_kernel(
                arguments.config_file, arguments.connect
            )
        else:
            found = checks.run_node_checks(
                node.read_node_facts(arguments.config_file)
            )
    except (cfg.Error, domains.HostError) as error:
        print(f'ghsched-status doctor: {error}', file=sys.stderr)
        return exits.COULD_NOT
    print(render_checks_as_json(found) if arguments.format ==
          'json' else render_checks_as_table(found))
    if arguments.leftovers:
        return (exits.DONE if all(check.status == 'ok' for check in found)
                else exits.FOUND)
    return exits.FOUND if checks.has_failed_check(found) else exits.DONE


def render_checks_as_json(results: Iterable[checks.Check]) -> str:
    """Return the results of node checks as a JSON list."""
    return json.dumps([dataclasses.asdict(check) for check in results],
                      indent=2)


def render_checks_as_table(results: Iterable[checks.Check]) -> str:
    """Return the results of node checks as a text table."""
    return text_table.render_table(
        ('Check', 'Status', 'What', 'To do'),
        [(check.name, check.status, check.text, check.remedy)
         for check in results], max_width=30)
