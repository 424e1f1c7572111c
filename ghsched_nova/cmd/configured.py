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
"""``[ghsched]`` of the configuration that nova-compute has."""

from collections.abc import Sequence
from typing import Any


def section(files: Sequence[str] | None = None) -> Any:
    """The section.

    :param files: None for those that nova-compute itself would read.
    :raises oslo_config.cfg.Error: they cannot be read, or make no sense.
    """
    from oslo_config import cfg

    from ghsched_nova import conf

    options = cfg.ConfigOpts()
    conf.register(options)
    if files is None:
        options([], project='nova', prog='nova-compute')
    else:
        options([], project='nova', default_config_files=list(files),
                default_config_dirs=[])
    return options.ghsched


def node_bandwidth() -> dict[int, int]:
    """What an admin says of host NUMA nodes, in MB/s; else nothing.

    For commands that need no configuration: one that cannot be read says
    nothing to them.
    """
    from oslo_config import cfg

    from ghsched_nova import conf

    try:
        return conf.by_node(section(), 'node_bandwidth')
    except (cfg.Error, ValueError):
        return {}
