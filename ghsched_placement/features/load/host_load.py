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

"""Column of ``openstack ghsched host show`` with the load of a host."""

from collections.abc import Mapping
from typing import Any

from ghsched_placement.features.load import load
from ghsched_placement.osc import columns


def make_load_cell(reported: Mapping[str, Any]) -> 'LoadsCell':
    """Return a table cell with the measured load of a host.

    :param reported: host stats that nova-compute reports.
    """
    measured = load.parse_load_stats(reported)
    return LoadsCell([{name: value for name, value in vars(node).items()
                       if value is not None}
                      for node in (measured.nodes if measured else ())])


class LoadsCell(columns.MultilineCell):
    """Table cell with load and waiting time of each NUMA node, one per line.
    """

    def line(self, item: Mapping[str, Any]) -> str:
        parts = []
        for name in load.RESOURCES:
            if name in item:
                value = (f'{item[name]:.1f} requests' if name == 'io_wait'
                         else f'{100 * item[name]:.0f} %')
                parts.append(f'{name.replace("_", " ")} {value}')
        if 'remote' in item:
            parts.append(f'{100 * item["remote"]:.0f} % remote memory')
        if item.get('bottlenecks'):
            parts.append('a bottleneck by '
                         + ' and '.join(item['bottlenecks']))
        return (f'node {item["node"]}: '
                + (', '.join(parts) or 'nothing is known'))
