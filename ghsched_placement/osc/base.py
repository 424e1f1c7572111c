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

"""What all commands have in common: how they end, and how they look.

Exit status: 0 all is well, 1 something was found or refused, 2 wrong usage or
something could not be done or asked. argparse ends with 2 on wrong usage.
"""

import argparse
import logging
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions as sdk_exceptions
from osc_lib.command import command
from osc_lib import exceptions

EXIT_DONE, EXIT_FOUND, EXIT_COULD_NOT = 0, 1, 2

_COULD_NOT = (exceptions.CommandError, sdk_exceptions.SDKException,
              ksa_exceptions.ClientException)


class Refused(exceptions.CommandError):
    """What was asked for is not to be had, and why."""


class _Ending:
    """A command whose exit status is told by what came of it."""

    log: logging.Logger
    #: Of a command that did its work.
    status = EXIT_DONE

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            ended: int = super().run(parsed_args)   # type: ignore[misc]
            return ended or self.status
        except _COULD_NOT as error:
            self.log.error('%s', error)
            self.log.debug('because of:', exc_info=True)
            return (EXIT_FOUND if isinstance(error, Refused)
                    else EXIT_COULD_NOT)


def _fitting(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """A table is as wide as the terminal is, unless somebody says how."""
    parser.set_defaults(fit_width=True)
    return parser


class Lister(_Ending, command.Lister):
    """A command that shows a table."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _fitting(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        raise NotImplementedError


class ShowOne(_Ending, command.ShowOne):
    """A command that shows one thing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _fitting(super().get_parser(prog_name))
