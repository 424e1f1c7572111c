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
"""The configuration that nova-compute has, as far as it is needed here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ghsched_placement import cpulist


def section(files: Sequence[str] | None = None) -> Any:
    """Return the section ``[ghsched]``.

    :param files: None for those that nova-compute itself would read.
    :raises oslo_config.cfg.Error: they cannot be read, or make no sense.
    """
    from oslo_config import cfg

    from ghsched_nova import conf

    options = cfg.ConfigOpts()
    conf.register(options)
    _read(options, files)
    return options.ghsched


def dedicated_cpus(files: Sequence[str] | None = None) -> frozenset[int]:
    """``[compute]cpu_dedicated_set``; empty without one.

    :raises: as :func:`section`, and ValueError for what is no list of CPUs.
    """
    from oslo_config import cfg

    options = cfg.ConfigOpts()
    options.register_opt(cfg.StrOpt('cpu_dedicated_set', default=''),
                         'compute')
    _read(options, files)
    return cpulist.parse_cpus(options.compute.cpu_dedicated_set)


def state_path(files: Sequence[str] | None = None) -> Path:
    """Return nova-compute's ``[DEFAULT]state_path``.

    :raises oslo_config.cfg.Error: as :func:`section`.
    """
    from oslo_config import cfg

    options = cfg.ConfigOpts()
    options.register_opt(cfg.StrOpt('state_path', default='/var/lib/nova'))
    _read(options, files)
    return Path(options.state_path)


def default_files(directory: Path = Path('/etc/nova')) -> list[str]:
    """Return the files that Nova's services read on this node, in order.

    Units of packages name a file of ghsched before Nova's files, for the
    scheduler, and one after them, for nova-compute.
    """
    from oslo_config import cfg

    before, after = (
        [str(path)] if path.is_file() else []
        for path in (directory / 'ghsched-scheduler.conf',
                     directory / 'ghsched-compute.conf'))
    return [*before, *cfg.find_config_files(project='nova',
                                            prog='nova-compute'), *after]


def _read(options: Any, files: Sequence[str] | None) -> None:
    if files is None:
        options([], project='nova', prog='nova-compute',
                default_config_files=default_files())
    else:
        options([], project='nova', default_config_files=list(files),
                default_config_dirs=[])


def node_bandwidth() -> dict[int, int]:
    """Return the configured bandwidth of host NUMA nodes, in MB/s; empty
    without any.

    For commands that need no configuration: one that cannot be read says
    nothing to them.
    """
    from oslo_config import cfg

    from ghsched_nova import conf

    try:
        return conf.by_node(section(), 'node_bandwidth')
    except (cfg.Error, ValueError):
        return {}
