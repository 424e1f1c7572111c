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


"""``ghsched explain``: how a flavor fits on a host, without any service."""

import argparse
import sys
from typing import Any

from ghsched_nova.features.explain import explanation
from ghsched_nova.features.explain import output
from ghsched_nova.features.planner import hostfile
from ghsched_placement.base import decimals
from ghsched_placement.base import exits
from ghsched_placement.fit.node_capacity import needs_huge_pages
from ghsched_placement.fit.node_capacity import PAGES_UNKNOWN


def add_explain_command(subparsers: Any) -> None:
    """Add the sub-command ``explain`` to the parser of ``ghsched``."""
    parser = subparsers.add_parser(
        'explain', help='show whether and how a flavor fits on a host',
        description='Show the policy, the Placement query, the provider tree, '
                    'the guest XML and the schemata lines of a guest on an '
                    'empty host, without any service.',
        epilog='Exit status: 0 the host can take the guest, 1 the guest is '
               'refused, 2 wrong usage or a bad host file.')
    parser.add_argument('--host', required=True, metavar='FILE',
                        help='description of the host, as those in '
                             'etc/ghsched/hosts')
    parser.add_argument('--vcpus', required=True, type=_parse_positive,
                        metavar='N', help='vCPUs of the flavor')
    parser.add_argument('--ram', required=True, type=_parse_positive,
                        metavar='MB', help='RAM of the flavor')
    parser.add_argument(
        '--disk',
        default=0,
        type=_parse_non_negative,
        metavar='GB',
        help='root and ephemeral disk of the flavor',
    )
    parser.add_argument('--swap', default=0, type=_parse_non_negative,
                        metavar='MB', help='swap disk of the flavor')
    parser.add_argument('--property', action='append', default=[],
                        type=_parse_extra_spec, metavar='KEY=VALUE',
                        dest='properties',
                        help='extra spec of the flavor; may be repeated')
    parser.add_argument('--node', type=_parse_host_nodes, metavar='N,M,...',
                        help='host NUMA node of each guest NUMA node '
                             '(default: the first nodes that fit)')
    parser.add_argument('--accounting', choices=('min', 'max'), default='min',
                        help='value of [ghsched]bandwidth_accounting '
                             '(default: %(default)s)')
    parser.add_argument('--format', choices=sorted(output.FORMATS),
                        default='table')
    parser.set_defaults(run=run_explain_command)


def run_explain_command(arguments: argparse.Namespace) -> int:
    """Run ``ghsched explain``: print whether and how a flavor fits on a host.

    :returns: exit status.
    """
    try:
        host = hostfile.load_host_file(arguments.host)
    except hostfile.HostFileError as error:
        print(f'ghsched explain: {error}', file=sys.stderr)
        return exits.COULD_NOT
    specs = dict(arguments.properties)
    if len(specs) < len(arguments.properties):
        print('ghsched explain: --property: a key is given twice',
              file=sys.stderr)
        return exits.COULD_NOT
    found = explanation.explain_flavor(explanation.Question(
        host, arguments.vcpus, arguments.ram, arguments.disk, arguments.swap,
        specs, arguments.node, arguments.accounting))
    if (found.guest and needs_huge_pages(found.guest.page_size)
            and any(node.pages is None for node in host.nodes)):
        print('ghsched explain: ' + PAGES_UNKNOWN.format(host.name),
              file=sys.stderr)
    text = output.FORMATS[arguments.format](found)
    if text:
        print(text)
    if found.refusal is None:
        return exits.DONE
    if not text:
        print(f'ghsched explain: refused: {found.refusal}',
              file=sys.stderr)
    return exits.FOUND


def _parse_non_negative(text: str) -> int:
    """Parse a command-line argument as an integer of at least 0."""
    number = decimals.parse_decimal(text)
    if number is None or number >= 10 ** 12:
        raise argparse.ArgumentTypeError(f'{text!r} is not a whole number')
    return number


def _parse_positive(text: str) -> int:
    """Parse a command-line argument as an integer of at least 1."""
    number = _parse_non_negative(text)
    if number == 0:
        raise argparse.ArgumentTypeError('must be at least 1')
    return number


def _parse_extra_spec(text: str) -> tuple[str, str]:
    """Parse the command-line argument ``KEY=VALUE`` as an extra spec."""
    key, equals, value = text.partition('=')
    if not equals or not key:
        raise argparse.ArgumentTypeError(f'{text!r} is not KEY=VALUE')
    return key, value


def _parse_host_nodes(text: str) -> tuple[int, ...]:
    """Parse a command-line list of host NUMA node numbers."""
    return tuple(map(_parse_non_negative, text.split(',')))
