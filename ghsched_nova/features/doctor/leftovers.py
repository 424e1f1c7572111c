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

"""Find leftovers of ghsched on a node that returns to stock Nova.

:func:`find_leftovers` reads configuration files, processes, units and
resctrl; :func:`make_leftover_checks` says what to remove, in this order
(pure).
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
import itertools
import os
from pathlib import Path
import re

from ghsched_nova.cmd import configured
from ghsched_nova.features.doctor import checks
from ghsched_nova.features.doctor import node
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming

#: Names of ghsched in a configuration line, unless they are a part of a path.
_OURS = re.compile(r'(?<![\w/-])(?:ghsched(?![\w/-])|ghsched_\w|Ghsched\w)')
_COMMENT = re.compile(r'\s*[#;]')
_SECTION = re.compile(r'\s*\[([^]]+)\]')

#: Programs of the package that run as services.
SERVICES = ('ghsched-nova-scheduler', 'ghsched-nova-compute',
            'ghsched-exporter')

#: File in the directory of nova.conf that may refer to ghsched.
PASTE = 'api-paste.ini'

#: Directory of systemd units that an administrator creates or changes.
_UNITS = 'etc/systemd/system'

#: Files of ghsched on a node, outside the Python environment.
_FILES = ('etc/nova/rootwrap.d/ghsched*', 'usr/share/nova/rootwrap/ghsched*')

#: Files of ghsched in ``[DEFAULT]state_path``.
_STATE_FILES = 'ghsched-*.json'

_REMEDIES = {
    'compute_driver': 'put libvirt.LibvirtDriver there, see "ghsched-host '
                      'retire"',
    'available_filters': 'remove the line',
    'enabled_filters': f'put NUMATopologyFilter in place of {checks.FILTER}',
    'weight_classes': 'remove the classes of ghsched_nova',
    PASTE: 'remove ghsched from the pipeline, and the section '
           '[filter:ghsched], and start nova-api again; without the package '
           'it does not start with them',
    '[ghsched]': 'remove the section',
}


@dataclass(frozen=True)
class Leftovers:
    """Files, programs and resctrl groups of ghsched found on a node.

    :param files: configuration files that were read.
    :param lines: configuration lines that refer to ghsched, each as a pair of
        file and line.
    :param programs: names of running programs of ghsched.
    :param groups: names of resctrl groups that ghsched created.
    :param units: systemd unit files that start a program of ghsched.
    :param state: other files that ghsched wrote.
    """

    files: tuple[str, ...] = ()
    lines: tuple[tuple[str, str], ...] = ()
    programs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    state: tuple[str, ...] = ()


def make_leftover_checks(leftovers: Leftovers) -> tuple[checks.Check, ...]:
    """Return a warning for each leftover of ghsched on a node.

    If there is no leftover, the result is a single check with the status
    ``ok``.
    """
    found = [*map(_make_line_warning, leftovers.lines),
             *map(_make_program_warning, leftovers.programs),
             *(checks.Check('unit of systemd', 'warning', unit,
                            f'rm {unit}; systemctl daemon-reload')
               for unit in leftovers.units),
             *(checks.Check('file', 'warning', file, f'rm {file}')
               for file in leftovers.state)]
    if leftovers.groups:
        found.append(checks.Check(
            'control groups', 'warning', ', '.join(leftovers.groups),
            'ghsched-host retire'))
    if not leftovers.files:
        found.append(checks.Check(
            'configuration', 'warning', 'no nova.conf was found',
            'name it with --config-file'))
    return tuple(found) or (checks.Check(
        'leftovers', 'ok', 'nothing of ghsched is left on this node; read '
        + ', '.join(leftovers.files)),)


def _make_line_warning(leftover: tuple[str, str]) -> checks.Check:
    """Return a warning about a configuration line that refers to ghsched.

    :param leftover: configuration file and line.
    """
    file, line = leftover
    key = (PASTE if Path(file).name == PASTE else
           line.partition('=')[0].strip())
    return checks.Check(f'configuration {file}', 'warning', line,
                        _REMEDIES.get(key, 'remove it'))


def _make_program_warning(name: str) -> checks.Check:
    """Return a warning about a program of ghsched that is still running."""
    stock = name.removeprefix('ghsched-')
    remedy = (f'start {stock} in its place' if stock.startswith('nova-')
              else 'stop it')
    return checks.Check('program', 'warning', f'{name} runs', remedy)


# -- the node -----------------------------------------------------------------


def find_leftovers(
    files: Sequence[str] | None,
    proc: Path = Path('/proc'),
    root: Path = Path('/'),
) -> Leftovers:
    """Find ghsched's files, programs and resctrl groups on a node.

    :param files: configuration files; None for those that nova-compute reads,
        and api-paste.ini.
    :param root: root directory of the node's files.
    :raises oslo_config.cfg.Error: if a file cannot be read.
    """
    options = node.read_node_options(files)
    found = [Path(file) for file in options.config_file or ()]
    found += sorted({path.with_name(PASTE) for path in found
                     if path.with_name(PASTE).is_file()} - set(found))
    return Leftovers(
        tuple(map(str, found)),
        tuple(
            (str(path), line)
            for path in found
            for line in find_ghsched_lines(path.read_text(errors='replace'))
        ),
        node.find_running_programs(SERVICES, proc),
        _find_resctrl_groups(Path(options.ghsched.resctrl_path)),
        tuple(_find_systemd_units(root / _UNITS)),
        tuple(
            map(
                str,
                sorted(
                    itertools.chain(
                        configured.read_state_path(files).glob(_STATE_FILES),
                        *map(root.glob, _FILES))
                ),
            )
        ),
    )


def find_ghsched_lines(text: str) -> Iterator[str]:
    """Yield the lines of a configuration file that refer to ghsched.

    Of a section that belongs to ghsched, only the header is yielded.
    """
    section = ''
    for line in text.splitlines():
        head = _SECTION.match(line)
        if head:
            section = head[1].strip()
            if _OURS.search(section):
                yield f'[{section}]'
        elif (not _OURS.search(section) and not _COMMENT.match(line)
              and _OURS.search(line)):
            yield line.strip()


def _find_systemd_units(directory: Path) -> Iterator[str]:
    """Yield systemd unit files and drop-ins that start a ghsched program."""
    for path in sorted({*directory.glob('*.service'),
                        *directory.glob('*.service.d/*.conf')}):
        # A masked unit is a link to /dev/null; one may be gone by now.
        with contextlib.suppress(OSError):
            if any(service in line for service in SERVICES
                   for line in path.read_text(errors='replace').splitlines()
                   if not _COMMENT.match(line)):
                yield str(path)


def list_own_groups(files: fs.Files, root: Path) -> Iterator[Path]:
    """Yield the paths of the resctrl groups that ghsched created."""
    for directory in (root / naming.MONITORS, root):
        if os.path.isdir(directory):
            yield from (directory / name
                        for name in files.directories(directory)
                        if name.startswith(naming.PREFIX))


def _find_resctrl_groups(resctrl_path: Path) -> tuple[str, ...]:
    """Return the names of the resctrl groups that ghsched created."""
    try:
        return tuple(sorted(
            path.name for path in list_own_groups(fs.Files(),
                                                  resctrl_path)))
    except OSError:
        return ()
