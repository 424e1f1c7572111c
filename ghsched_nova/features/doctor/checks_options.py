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

"""Checks for options of ``[ghsched]`` that are unknown or unusable."""

from collections.abc import Iterator
from collections.abc import Sequence
import difflib
from pathlib import Path
from typing import Any

from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import sysfs as sysfs_files

#: Options whose keys are host NUMA nodes.
_BY_NODE = ('reserved_bandwidth', 'node_bandwidth', 'bandwidth_bursts')


def list_unknown_options(options: cfg.ConfigOpts) -> Iterator[str]:
    """Yield a sentence for each unknown option in the section ``[ghsched]``.

    oslo.config ignores unknown options without a warning.

    :param options: options whose configuration files were read.
    """
    known = set()
    for option in conf.OPTS + conf.DEPRECATED_OPTS:
        known |= {option.name, option.dest}
        known |= {old.name for old in option.deprecated_opts if old.name}
    known = {name.replace('-', '_') for name in known}
    for path in _list_files(options):
        for name in _read_option_names(path):
            if name.replace('-', '_') in known:
                continue
            close = difflib.get_close_matches(name, sorted(known), 1)
            yield (f'{path}: [ghsched]{name} is not an option'
                   + (f'; did you mean {close[0]}?' if close else ''))


def _list_files(options: cfg.ConfigOpts) -> list[Path]:
    return [*map(Path, options.config_file or ()), *(
        path for directory in options.config_dir or ()
        for path in sorted(Path(directory).glob('*.conf')))]


def _read_option_names(path: Path) -> Sequence[str]:
    """Return the names in the section ``[ghsched]`` of a configuration file.

    The result is empty if the file cannot be read.
    """
    sections: dict[str, dict[str, Any]] = {}
    try:
        cfg.ConfigParser(str(path), sections).parse()
    except (OSError, ValueError, cfg.Error):
        return ()
    return tuple(sections.get('ghsched', ()))


def find_unusable_option_values(section: Any, sysfs: Path,
                                host: resctrl_host.ResctrlHost | None
                                ) -> Iterator[str]:
    """Yield a sentence for each valid option value that this host cannot use.

    :param section: the ``[ghsched]`` section of the configuration.
    :param host: controls of the host; None if resctrl is unavailable.
    """
    nodes = {node for node, _path in sysfs_files.iterate_numa_nodes(sysfs)}
    for name in _BY_NODE:
        strange = conf.parse_node_values(section, name).keys() - nodes
        if nodes and strange:
            yield (f'{name} names NUMA nodes {sorted(strange)}; this host has '
                   f'{sorted(nodes)}')
    # nova_fixes.rows needs no Nova, its table does.
    from ghsched_nova.nova_fixes import rows
    fixes = {'auto', 'none', *(fix.name for fix in rows.FIXES)}
    for name in section.nova_fixes:
        if name not in fixes:
            yield (f'nova_fixes names {name}, which ghsched-status fixes does '
                   'not list')
    if host is None:
        return
    if section.reserved_control_groups >= host.num_closids:
        yield (f'reserved_control_groups is {section.reserved_control_groups};'
               f' this host has {host.num_closids - 1} control groups')
    ways = host.l3_way_count
    if ways and section.l3_ways_shared >= ways:
        yield (f'l3_ways_shared is {section.l3_ways_shared}; an L3 cache of '
               f'this host has {ways} ways')
