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

"""``ghsched-status install --check``: what is missing on this node."""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
import shutil
import sys
from typing import Any

from oslo_config import cfg

from ghsched_nova.features.doctor import checks
from ghsched_nova.features.doctor import node
from ghsched_placement.base import exits
from ghsched_placement.base import text_table

#: Programs of nova-api, by distribution and release.
_API_PROGRAMS = ('nova-api', 'nova-api-wsgi')
_PASTE = 'api-paste.ini'
#: Directories of api-paste.ini; nova-api reads the first file that exists. The
#: unit of ghsched-api makes a copy of the file in the first directory.
_DIRECTORIES = (Path('/run/ghsched-api'), Path('/etc/nova'))


def check_api_pipeline(api_paste: str | None) -> Iterator[checks.Check]:
    """Yield the result of a check that nova-api's pipeline has our filter.

    The filter validates the flavors of admins.

    :param api_paste: text of api-paste.ini; None without nova-api.
    """
    if api_paste is None:
        yield checks.Check('api filter', 'skipped',
                           'nova-api is not installed here')
    elif any('ghsched' in line.partition('=')[2].split()
             for line in api_paste.splitlines()):
        yield checks.Check('api filter', 'ok', 'in the pipeline')
    else:
        yield checks.Check(
            'api filter', 'error', f'no pipeline of {_PASTE} has it',
            'install ghsched-api, or put "ghsched" before '
            'osapi_compute_app_v21')


def read_api_paste(directories: Sequence[Path] = _DIRECTORIES) -> str | None:
    """Return the text of api-paste.ini; None if nova-api is not installed.

    :raises OSError: when the file cannot be read.
    """
    if not any(map(shutil.which, _API_PROGRAMS)):
        return None
    path = next((directory / _PASTE for directory in directories
                 if (directory / _PASTE).exists()), None)
    return path.read_text(errors='replace') if path else ''


def check_exporter_installed(
    is_compute_host: bool, program: str | None
) -> Iterator[checks.Check]:
    """Yield a warning if the Prometheus exporter is missing on a compute host.

    :param is_compute_host: whether the node is a compute host.
    :param program: path of the exporter's program; None if not installed.
    """
    if is_compute_host and program is None:
        yield checks.Check('exporter', 'warning',
                           'the exporter for Prometheus is not installed',
                           'install ghsched-exporter, if Prometheus is used')


def _check_installed_parts(files: Sequence[str] | None
                           ) -> Iterator[checks.Check]:
    """Check whether all parts of ghsched are installed; yield failed checks.

    :param files: configuration files; None for those of nova-compute.
    """
    facts = node.read_node_facts(files)
    yield from (check for check in (*checks.run_node_checks(facts),
                                    *check_api_pipeline(read_api_paste()))
                if check.status == 'error')
    yield from check_exporter_installed(
        facts.is_compute_host, shutil.which('ghsched-exporter')
    )


def render_missing_parts(missing: Sequence[checks.Check]) -> str:
    """Render a table of the parts of ghsched that are missing on a node.

    If none is missing, the result is a sentence that says so.
    """
    if not missing:
        return 'Nothing is missing on this node.'
    return text_table.render_table(
        ('Missing', 'Found', 'To do'),
        [(check.name, check.text, check.remedy) for check in missing],
        max_width=34)


def add_install_command(subparsers: Any) -> None:
    """Add the sub-command ``install`` to the parser of ``ghsched-status``."""
    parser = subparsers.add_parser(
        'install',
        help='install --check: list what is missing on this node',
        description='List what is missing on this node.',
        epilog='Exit status: 0 if nothing is missing, 1 if something is, 2 if '
               'that is unknown.')
    parser.add_argument('--check', action='store_true', required=True,
                        help='list what is missing on this node and how to '
                             'install it; changes nothing')
    parser.add_argument('--config-file', action='append', metavar='FILE',
                        help='configuration file of the Nova service (repeat '
                             'for several; default: the files that '
                             'nova-compute reads)')
    parser.set_defaults(run=print_missing_parts)


def print_missing_parts(arguments: argparse.Namespace) -> int:
    """Print the parts of ghsched that are missing on this node.

    :returns: exit status: 0 if nothing is missing, 1 if something is missing,
        and 2 if this is unknown. A missing exporter does not count, because it
        is optional.
    """
    try:
        missing = tuple(_check_installed_parts(arguments.config_file))
    except (cfg.Error, OSError) as error:
        print(f'ghsched-status: {error}', file=sys.stderr)
        return exits.COULD_NOT
    print(render_missing_parts(missing))
    return exits.FOUND if checks.has_failed_check(missing) else exits.DONE
