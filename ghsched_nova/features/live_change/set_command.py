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

"""``ghsched server set``: another bandwidth policy for a guest that runs.

Runs where nova-manage runs: it needs Nova's API database, the message bus and
the credentials of ``[placement]``, all from nova.conf. ``openstack ghsched
server set`` asks nova-api for the same
(:mod:`ghsched_nova.api.server_filter`).
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import json
import sys
from typing import Any
import uuid
import warnings


from ghsched_nova.base import action_errors as errors
from ghsched_placement.base import exits
from ghsched_placement.base import text_table
from ghsched_placement.features.live_change import change_arguments
from ghsched_placement.features.live_change import change_report
from ghsched_placement.flavor import policy as policies


#: Seconds to wait for an answer of Placement, and of Keystone on the way to
#: it, where nova.conf has no ``[placement]timeout``.
PLACEMENT_TIMEOUT_S = 10


class NotHere(Exception):  # noqa: N818
    """Raised if the command cannot run on this node; has the reason."""


def add_server_set_command(subparsers: Any) -> None:
    """Add the sub-command ``server set`` to the parser of ``ghsched``."""
    server = subparsers.add_parser(
        'server', help='change existing servers').add_subparsers(
            dest='server_command', metavar='COMMAND', required=True)
    text = 'change the bandwidth policy of a server without a restart'
    parser = server.add_parser(
        'set', help=text,
        description=f'{text[0].upper()}{text[1:]}. Run it where nova-manage '
                    'runs.',
        epilog='Exit status: 0 changed, or nothing to change; 1 refused, '
               'nothing was changed; 2 wrong usage, or the change has to be '
               'completed by hand.')
    change_arguments.add_change_arguments(parser, 'UUID')
    parser.add_argument(
        '--config-file', action='append', metavar='FILE',
        help='configuration file of Nova that names the API database (repeat '
             'for several; default: the files that nova-manage reads)')
    parser.add_argument('--format', choices=('table', 'json'),
                        default='table')
    parser.set_defaults(run=run_server_set_command)


def run_server_set_command(arguments: argparse.Namespace) -> int:
    """Run ``ghsched server set``: change a server's bandwidth policy.

    :returns: exit status.
    """
    def render_change(plan: Any) -> str:
        show = (
            render_change_as_json
            if arguments.format == 'json'
            else render_change_as_table
        )
        return show(plan, arguments.dry_run)

    return print_function_result(
        lambda: render_change(change_server_policy(arguments)),
        'ghsched server set',
    )


def print_function_result(function: Callable[[], str], command: str) -> int:
    """Call a function and print its result, or the error that it raises.

    :param function: function that returns a text.
    :param command: name of the command, printed before an error.
    :returns: exit status of the command.
    """
    try:
        print(function())
    except (policies.PolicyError, errors.Refused) as error:
        print(f'{command}: refused: {error}', file=sys.stderr)
        return exits.FOUND
    except (NotHere, errors.RollbackIncomplete) as error:
        print(f'{command}: {error}', file=sys.stderr)
        return exits.COULD_NOT
    return exits.DONE


def change_server_policy(arguments: argparse.Namespace) -> Any:
    """Change the bandwidth policy of the server named on the command line.

    :returns: the change, a
        :class:`ghsched_nova.features.live_change.change.PolicyChangePlan`.
    :raises NotHere: if Nova's configuration is not on this node.
    :raises PolicyError: if an extra spec is invalid; names the extra spec.
    :raises Refused: if the change is refused and nothing has changed.
    :raises RollbackIncomplete: if the change failed and was not rolled back in
        full.
    """
    asked = change_arguments.parse_change_arguments(arguments)
    try:
        server = str(uuid.UUID(arguments.server))
    except ValueError:
        raise errors.Refused(
            f'{arguments.server!r} is not the UUID of a server') from None
    load_nova_api_conf(arguments.config_file)
    # Nova reads its configuration while it is imported.
    from ghsched_nova.features.live_change import records
    from ghsched_nova.features.live_change import servers
    with records.open_cell_context(server) as context:
        return servers.change_server_policy(
            context, server, asked, arguments.dry_run
        )


def load_nova_api_conf(files: Sequence[str] | None) -> None:
    """Load Nova's configuration with the credentials of the API database.

    :raises NotHere: if this node does not have these credentials.
    """
    options = read_nova_service_conf('ghsched', files)
    from nova import objects
    if not options.api_database.connection:
        raise NotHere(
            'nova.conf has no [api_database]connection here; run this where '
            'nova-manage runs, or name the file with --config-file')
    objects.register_all()


def read_nova_service_conf(
    program: str, files: Sequence[str] | None, **parse_options: bool
) -> Any:
    """Read Nova's configuration in the same way as a service of Nova.

    :param program: name of the service.
    :param parse_options: further arguments of nova.config.parse_args.
    :raises NotHere: if Nova is not installed, or nova.conf is invalid.
    """
    # A library of Nova's imports it if it is there; nothing here uses it.
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    try:
        from nova import conf as nova_conf
        from nova import config
    except ImportError as error:
        raise NotHere('cannot import Nova, run this where nova-manage runs: '
                      f'{error}') from error
    from oslo_config import cfg
    try:
        config.parse_args(
            [program], default_config_files=files, **parse_options
        )
    except cfg.Error as error:
        raise NotHere(f'cannot read nova.conf: {error}') from error
    except Exception as error:
        # Of the transport_url, which has many ways to be wrong.
        raise NotHere(f'invalid nova.conf: {error}') from error
    # Nova has none; a command ends where Placement or Keystone are silent.
    nova_conf.CONF.set_default('timeout', PLACEMENT_TIMEOUT_S,
                               group='placement')
    return nova_conf.CONF


# -- output -------------------------------------------------------------------


def render_change_as_json(plan: Any, dry_run: bool) -> str:
    """Return the report of a server's bandwidth policy change as JSON."""
    return json.dumps(
        change_report.make_change_report(plan, dry_run), indent=2
    )


def render_change_as_table(plan: Any, dry_run: bool) -> str:
    """Return the report of a server's bandwidth policy change as a table."""
    shown = change_report.make_change_report(plan, dry_run)
    table = text_table.render_table(change_report.HEADER,
                                    change_report.list_change_rows(shown))
    return f'{table}\n{change_report.summarize_change(shown)}'
