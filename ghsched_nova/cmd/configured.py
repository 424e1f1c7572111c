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
"""Options of nova-compute's configuration that ghsched's commands read."""

from collections.abc import Sequence
import os
from pathlib import Path
from typing import Any

from ghsched_placement.base import cpulist


def read_ghsched_options(files: Sequence[str] | None = None) -> Any:
    """Read the ``[ghsched]`` options of nova-compute's configuration.

    :param files: configuration files; None for those of nova-compute.
    :raises oslo_config.cfg.Error: when a file cannot be read or an option is
        invalid.
    """
    return _load_options(files).ghsched


def read_dedicated_cpus(files: Sequence[str] | None = None) -> frozenset[int]:
    """Read the CPUs in ``[compute]cpu_dedicated_set``.

    :param files: configuration files; None for those of nova-compute.
    :returns: empty if the option is not set.
    :raises oslo_config.cfg.Error: if a file cannot be read.
    :raises ValueError: if the CPU list is invalid.
    """
    return cpulist.parse_cpu_list(
        _load_options(files).compute.cpu_dedicated_set)


def read_state_path(files: Sequence[str] | None = None) -> Path:
    """Read nova-compute's ``[DEFAULT]state_path``.

    :param files: configuration files; None for those of nova-compute.
    :raises oslo_config.cfg.Error: when a file cannot be read.
    """
    return Path(_load_options(files).state_path)


def _load_options(files: Sequence[str] | None) -> Any:
    """Return ghsched's options, and those of Nova that its commands read."""
    from oslo_config import cfg

    from ghsched_nova import conf

    options = cfg.ConfigOpts()
    conf.register_opts(options)
    options.register_opt(cfg.StrOpt('state_path', default='/var/lib/nova'))
    options.register_opt(cfg.StrOpt('cpu_dedicated_set', default=''),
                         'compute')
    load_conf_files(options, files)
    return options


def list_nova_conf_files(directory: Path = Path('/etc/nova')) -> list[str]:
    """Return the configuration files that Nova services read, in order."""
    from oslo_config import cfg

    before, after = (
        # Not Path.is_file(): it raises if the directory is closed.
        [str(path)] if os.path.isfile(path) else []
        for path in (directory / 'ghsched-scheduler.conf',
                     directory / 'ghsched-compute.conf'))
    return [*before, *cfg.find_config_files(project='nova',
                                            prog='nova-compute'), *after]


def load_conf_files(options: Any, files: Sequence[str] | None) -> None:
    """Load configuration files into an oslo.config object.

    :param files: the files; None for those that nova-compute reads.
    """
    if files is None:
        options([], project='nova', prog='nova-compute',
                default_config_files=list_nova_conf_files())
    else:
        options([], project='nova', default_config_files=list(files),
                default_config_dirs=[])
