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

"""Arguments of the commands that change a server's bandwidth policy."""

import argparse
from collections.abc import Iterator

from ghsched_placement.features.live_change import change as changes
from ghsched_placement.flavor import policy as policies


def add_change_arguments(parser: argparse.ArgumentParser,
                         identifier: str) -> None:
    """Add command-line arguments for changing a server's bandwidth policy.

    :param parser: parser to which the arguments are added.
    :param identifier: kind of name that identifies the server, such as
        ``UUID``, for the help text.
    """
    parser.add_argument('server', metavar='SERVER',
                        help=f'{identifier} of the server')
    for key in changes.CHANGEABLE:
        parser.add_argument(
            '--' + key.name.replace('_', '-'), dest=key.name,
            action='append', default=[], metavar='[N=]VALUE', help=(
                f'{key.summary} With N= for guest NUMA node N alone (repeat '
                'for several)'))
    parser.add_argument(
        '--unset', action='append', default=[], metavar='KEY[.N]',
        help='remove a key, for example mem_bw_priority or mem_bw_max.0; its '
             'default then applies, or the value for all guest NUMA nodes')
    parser.add_argument('--dry-run', action='store_true',
                        help='check whether the change is possible; changes '
                             'nothing')


def parse_change_arguments(arguments: argparse.Namespace) -> dict[str,
                                                                  str | None]:
    """Return the extra specs that the command line asks to change.

    :returns: new value by extra spec; None removes the extra spec.
    :raises PolicyError: for an extra spec that cannot be changed, a value
        outside its range, or an extra spec that is named twice.
    """
    found: dict[str, str | None] = {}
    for name, text in _yield_named_changes(arguments):
        extra_spec = changes.get_changeable_extra_spec(name)
        if extra_spec in found:
            raise policies.PolicyError(extra_spec, 'is given twice')
        found[extra_spec] = text
    if not found:
        raise policies.PolicyError(
            'server set', 'no change is given, see --help')
    # The values alone, without the guest.
    changes.merge_requested_changes({}, found)
    return found


def _yield_named_changes(arguments: argparse.Namespace
                         ) -> Iterator[tuple[str, str | None]]:
    for key in changes.CHANGEABLE:
        for text in getattr(arguments, key.name):
            node, equals, value = text.rpartition('=')
            yield key.name + ('.' + node if equals else ''), value
    for name in arguments.unset:
        yield name, None
