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

"""``ghsched-status``: commands that check this node, or list changes of Nova.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import sys
from typing import Any

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from ghsched_nova.cmd import console
from ghsched_nova.features.doctor import checks
from ghsched_nova.features.doctor import doctor
from ghsched_nova.features.doctor import guaranteed
from ghsched_nova.features.doctor import install
from ghsched_nova.features.doctor import node

#: Commands that list what ghsched changes in Nova, and what each lists.
LISTS = {
    'seams': 'functions of Nova that ghsched relies on',
    'fixes': 'repairs of Nova, and whether this node applies them'}

_CODES = {'ok': upgradecheck.Code.SUCCESS,
          'skipped': upgradecheck.Code.SUCCESS,
          'warning': upgradecheck.Code.WARNING,
          'error': upgradecheck.Code.FAILURE}


def make_upgrade_result(
    results: Iterable[checks.Check],
) -> upgradecheck.Result:
    """Combine the results of node checks to one result of oslo.upgradecheck.

    The combined result has the worst status and the remedies of all problems.
    """
    results = tuple(results)
    code = max((_CODES[check.status] for check in results),
               default=upgradecheck.Code.SUCCESS)
    return upgradecheck.Result(code, '; '.join(
        f'{check.name}: {check.text}'
        + (f' ({check.remedy})' if check.remedy else '')
        for check in results if _CODES[check.status]
        is not upgradecheck.Code.SUCCESS) or None)


def _make_upgrade_check(
    check_node: Callable[[checks.MachineFacts], Iterator[checks.Check]],
) -> Callable[['Checks'], upgradecheck.Result]:
    """Convert a check of this node to a check of oslo.upgradecheck.

    :param check_node: function that runs the check.
    """

    def check(commands: 'Checks') -> upgradecheck.Result:
        return make_upgrade_result(
            check_node(
                node.read_node_facts(_get_user_conf_files(commands.options))
            )
        )

    return check


def _check_guaranteed(commands: 'Checks') -> upgradecheck.Result:
    files = _get_user_conf_files(commands.options)
    return make_upgrade_result(
        guaranteed.check_guaranteed_bandwidth(
            node.read_node_facts(files), node.read_node_options(files)
        )
    )


def _check_nova_functions(_commands: 'Checks') -> upgradecheck.Result:
    """Check the installed Nova; a node without Nova passes."""
    try:
        from ghsched_nova.features.doctor import nova_changes
        return make_upgrade_result(nova_changes.check_nova_functions())
    except ModuleNotFoundError as error:
        if error.name == 'nova':
            return upgradecheck.Result(upgradecheck.Code.SUCCESS)
        return upgradecheck.Result(
            upgradecheck.Code.WARNING,
            f'cannot check the functions of Nova: {error}')


def _get_user_conf_files(options: cfg.ConfigOpts) -> list[str] | None:
    """Return the configuration files that the user has named.

    :returns: None if the default files are used.
    """
    found = options.get_location('config_file')
    by_user = found is not None and found.location.is_user_controlled
    return list(options.config_file) if by_user else None


class Checks(upgradecheck.UpgradeCommands):
    """Checks of ``ghsched-status``, run on a node before an upgrade."""

    def __init__(self, options: cfg.ConfigOpts) -> None:
        self.options = options

    _upgrade_checks = (
        (
            'Releases and configuration',
            _make_upgrade_check(checks.check_releases_and_options),
        ),
        ('Functions of Nova', _check_nova_functions),
        ('Placement', _make_upgrade_check(checks.check_placement_retries)),
        ('Guaranteed bandwidth', _check_guaranteed),
        ('Compute host', _make_upgrade_check(checks.check_compute_host)),
        ('Scheduler', _make_upgrade_check(checks.check_scheduler_node)),
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of ``ghsched-status``.

    The command ``upgrade check`` has a parser of its own, that of
    oslo.upgradecheck; here it has a line in the help alone.
    """
    top = argparse.ArgumentParser(
        prog='ghsched-status',
        description='Check what is wrong, missing or changed on this node.',
        epilog='"ghsched-status COMMAND --help" lists the options of a '
               'command.')
    console.add_version_option(top)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    doctor.add_doctor_command(commands)
    install.add_install_command(commands)
    upgrade = commands.add_parser(
        'upgrade',
        help='upgrade check: check this node before and after an upgrade')
    upgrade.add_argument('what', choices=('check',))
    upgrade.add_argument('--json', action='store_true')
    for name, text in LISTS.items():
        _add_list_command(commands, name, text)
    return top


def _add_list_command(subparsers: Any, name: str, text: str) -> None:
    """Add the sub-command ``seams`` or ``fixes``."""
    parser = subparsers.add_parser(name, help=f'list the {text}',
                                   description=f'List the {text}.')
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table', help='format of the output')
    parser.add_argument('--config-file', action='append', metavar='FILE',
                        help='configuration file of the Nova service (repeat '
                             'for several)')
    parser.set_defaults(run=_run_list_command)


def _run_list_command(arguments: argparse.Namespace) -> int:
    """Print the Nova functions that ghsched uses, or its fixes of Nova bugs.
    """
    # These need Nova, which the checks do not.
    from ghsched_nova.features.doctor import nova_changes
    return nova_changes.print_nova_changes(arguments.command, arguments.format,
                                           arguments.config_file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ghsched-status``.

    :returns: exit status; of ``upgrade check`` 0 for success, 1 for warnings,
        2 for errors.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    # Options of oslo.config may stand before "upgrade".
    if not argv or argv[0] in ('-h', '--help', '--version', 'doctor',
                               'install', *LISTS):
        arguments = make_parser().parse_args(argv)
        return console.run_command(f'ghsched-status {arguments.command}',
                                   lambda: int(arguments.run(arguments)))
    options = cfg.ConfigOpts()
    return int(upgradecheck.main(
        options, project='nova', upgrade_command=Checks(options),
        argv=argv))


if __name__ == '__main__':
    sys.exit(main())
