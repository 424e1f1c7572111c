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


"""The ``ghsched`` command."""

import argparse
from collections.abc import Sequence
import sys

from ghsched_nova.cmd import console
from ghsched_nova.features import declared_commands


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of ``ghsched`` with its sub-commands."""
    top = argparse.ArgumentParser(
        prog='ghsched',
        description='Memory bandwidth and NUMA for OpenStack guests.',
        epilog=console.EXIT_STATUS)
    console.add_version_option(top)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    for add_command in declared_commands.COMMANDS:
        add_command(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ghsched``, which has one sub-command for each task of an operator.

    :returns: exit status.
    """
    arguments = make_parser().parse_args(argv)
    return console.run_command(f'ghsched {arguments.command}',
                               lambda: int(arguments.run(arguments)))


if __name__ == '__main__':
    sys.exit(main())
