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

"""Base classes of all commands: errors, exit status and output."""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import re
import sys
from typing import Any
from typing import NamedTuple

from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions as sdk_exceptions
from osc_lib.command import command
from osc_lib import exceptions

from ghsched_placement.base import exits
from ghsched_placement.osc import columns
from ghsched_placement.osc import tables

#: Errors of requests to the services of a cloud.
SERVICE_ERRORS = (exceptions.CommandError, sdk_exceptions.SDKException,
                  ksa_exceptions.ClientException)


class CommandRefused(exceptions.CommandError):
    """Raised if a request of a command was refused, with the reason."""


class ServerTable(NamedTuple):
    """Table of a server that an option shows in place of its policy.

    :param option: name of the option that asks for the table, without dashes.
    :param list_rows: function that returns the rows; its arguments are the
        client and Nova's record of the server.
    """

    option: str
    help_text: str
    columns: tuple[str, ...]
    list_rows: Callable[[Any, Mapping[str, Any]], list[tuple[Any, ...]]]


#: Text for an unknown value, by output format, for formats that have only text
#: cells.
_PLAIN = {'csv': '', 'shell': '', 'value': '-'}


class _ExitStatusMixin:
    """Mixin for a command that sets its exit status and logs service errors.
    """

    log: logging.Logger
    #: Exit status of the command if no service has reported an error.
    status = exits.DONE

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            ended: int = super().run(parsed_args)   # type: ignore[misc]
            return ended or self.status
        except SERVICE_ERRORS as error:
            self.log.error('%s', format_error(error))
            self.log.debug('traceback of the error:', exc_info=True)
            return (exits.FOUND if isinstance(error, CommandRefused)
                    else exits.COULD_NOT)


def format_error(error: Exception) -> str:
    """Return the message of an error for the user.

    For HTTP status 403, the message says that the command needs admin rights.
    """
    status = getattr(error, 'status_code', getattr(error, 'http_status', 0))
    if status == 403:
        return ('the cloud does not let you do that (HTTP 403). This command '
                'is for admins; see OS_CLOUD or --os-cloud')
    return str(error)


def _fit_tables_to_terminal(
        parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Make a command's tables fit the width of the terminal by default.

    :param parser: parser of the command; returned with the changed default.
    """
    parser.set_defaults(fit_width=True)
    return parser


def _format_cells(row: Iterable[Any], output_format: str) -> list[Any]:
    """Return the cells of a table row in the form that an output format needs.

    Output formats for other programs, such as CSV, get plain text.

    :param output_format: cliff's output format, such as ``table`` or ``csv``.
    """
    if output_format not in _PLAIN:
        return list(row)
    return [
        columns.make_plain_cell(cell, _PLAIN[output_format]) for cell in row]


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun, such as ``1 host`` or ``2 hosts``."""
    return f'{number} {noun}' + ('' if number == 1 else 's')


def parse_count(text: str) -> int:
    """Parse a positive number in a command-line option.

    :raises ArgumentTypeError: if the text is not a positive integer.
    """
    if not re.fullmatch(r'[0-9]{1,9}', text) or not int(text):
        raise argparse.ArgumentTypeError(
            f'not an integer from 1 to 999999999: {text!r}')
    return int(text)


def require_user_consent() -> None:
    """Ask the user on the terminal whether to make the planned changes.

    :raises CommandError: if the user does not agree.
    """
    if not sys.stdin.isatty():
        raise exceptions.CommandError(
            'nothing was done: no terminal to confirm on, pass --yes')
    if input('Do all of this? [y/N] ').strip().lower() not in ('y', 'yes'):
        raise exceptions.CommandError('nothing was done: not confirmed')


#: Message if none of the selected hosts runs ghsched.
NO_HOSTS = ('No compute host in Placement has the driver of ghsched '
            '(compute_driver = ghsched.GhschedLibvirtDriver).')


class Lister(_ExitStatusMixin, command.Lister):
    """Base class of commands that print a table."""

    #: Columns of a table without --long; if empty, the table always has all
    #: columns.
    SHORT: tuple[str, ...] = ()

    #: Number of leading columns that name a row. A table that is too wide for
    #: the terminal is split into several, each of which begins with them.
    KEYS = 1

    #: Sentence that is printed instead of a table without rows. Other output
    #: formats do not print it.
    nothing = 'There is nothing to show.'

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = _fit_tables_to_terminal(super().get_parser(prog_name))
        if self.SHORT:
            parser.add_argument(
                '--long', action='store_true',
                help='Show all columns in a table (other formats always do)')
        return parser

    def produce_output(self, parsed_args: argparse.Namespace,
                       column_names: Sequence[str],
                       data: Iterable[Sequence[Any]]) -> int:
        rows = [_format_cells(row, parsed_args.formatter) for row in data]
        if parsed_args.formatter == 'table':
            if not rows:
                self.app.stdout.write(f'{self.nothing}\n')
                return 0
            self.formatter = tables.WrappedTableFormatter(
                column_names[:self.KEYS])
            if self.SHORT and not (parsed_args.long or parsed_args.columns):
                parsed_args.columns = [name for name in column_names
                                       if name in self.SHORT]
        shown: int = super().produce_output(parsed_args, column_names, rows)
        return shown


class ShowOne(_ExitStatusMixin, command.ShowOne):
    """Base class of commands that print the fields of one object."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _fit_tables_to_terminal(super().get_parser(prog_name))

    def produce_output(self, parsed_args: argparse.Namespace,
                       column_names: Sequence[str],
                       data: Sequence[Any]) -> int:
        shown: int = super().produce_output(
            parsed_args, column_names,
            _format_cells(data, parsed_args.formatter))
        return shown
