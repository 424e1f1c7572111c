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

from oslo_config import cfg
import prettytable

from ghsched_nova.cmd import checks
from ghsched_nova.cmd import node
from ghsched_placement import exits

#: Programs of nova-api, by distribution and release.
_API_PROGRAMS = ('nova-api', 'nova-api-wsgi')
_PASTE = 'api-paste.ini'
#: Where nova-api reads api-paste.ini, the first that exists: the copy that the
#: unit of ghsched-api makes, then Nova's own.
_DIRECTORIES = (Path('/run/ghsched-api'), Path('/etc/nova'))


def check_api(paste: str | None) -> Iterator[checks.Check]:
    """Check that the pipeline of nova-api has the filter of ghsched.

    :param paste: text of api-paste.ini; None without nova-api.
    """
    if paste is None:
        yield checks.Check('api filter', 'skipped',
                           'nova-api is not installed here')
    elif any('ghsched' in line.partition('=')[2].split()
             for line in paste.splitlines()):
        yield checks.Check('api filter', 'ok', 'in the pipeline')
    else:
        yield checks.Check(
            'api filter', 'error', f'no pipeline of {_PASTE} has it',
            'install ghsched-api, or put "ghsched" before '
            'osapi_compute_app_v21')


def read_paste(directories: Sequence[Path] = _DIRECTORIES) -> str | None:
    """Return the text of api-paste.ini; None if nova-api is not installed.

    :raises OSError: when the file cannot be read.
    """
    if not any(map(shutil.which, _API_PROGRAMS)):
        return None
    path = next((directory / _PASTE for directory in directories
                 if (directory / _PASTE).exists()), None)
    return path.read_text(errors='replace') if path else ''


def check_exporter(compute: bool,
                   program: str | None) -> Iterator[checks.Check]:
    """Yield a warning if a compute host has no Prometheus exporter.

    :param compute: whether the node is a compute host.
    :param program: path of the exporter's program; None without one.
    """
    if compute and program is None:
        yield checks.Check('exporter', 'warning',
                           'the exporter for Prometheus is not installed',
                           'install ghsched-exporter, if Prometheus is used')


def _list_missing(files: Sequence[str] | None) -> Iterator[checks.Check]:
    """Yield a check for each missing part of ghsched on this node."""
    facts = node.read_facts(files)
    yield from (check for check in (*checks.run_checks(facts),
                                    *check_api(read_paste()))
                if check.status == 'error')
    yield from check_exporter(facts.is_compute_host,
                              shutil.which('ghsched-exporter'))


def render_missing(missing: Sequence[checks.Check]) -> str:
    """Render a table of the missing parts, or a sentence if none is missing.
    """
    if not missing:
        return 'Nothing is missing on this node.'
    table = prettytable.PrettyTable(['Missing', 'Found', 'To do'])
    table.align = 'l'
    table.max_width = 34
    for check in missing:
        table.add_row([check.name, check.text, check.remedy])
    return str(table)


def main(argv: Sequence[str]) -> int:
    """Print the missing parts of ghsched on this node; return exit status.

    0: nothing is missing; 1: something is missing; 2: unknown. A missing
    exporter does not count, because it is optional.
    """
    parser = argparse.ArgumentParser(
        prog='ghsched-status', description=__doc__.partition(': ')[2])
    parser.add_argument('command', choices=('install',))
    parser.add_argument('--check', action='store_true', required=True,
                        help='list what is missing on this node and how to '
                             'install it; changes nothing')
    parser.add_argument('--config-file', action='append', metavar='FILE',
                        help='configuration file of the Nova service (repeat '
                             'for several; default: the files that '
                             'nova-compute reads)')
    arguments = parser.parse_args(argv)
    try:
        missing = tuple(_list_missing(arguments.config_file))
    except (cfg.Error, OSError) as error:
        print(f'ghsched-status: {error}', file=sys.stderr)
        return exits.COULD_NOT
    print(render_missing(missing))
    return exits.FOUND if checks.has_error(missing) else exits.DONE
