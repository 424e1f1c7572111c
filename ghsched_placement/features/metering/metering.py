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

"""Measurements of servers for metering and rating services (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from ghsched_placement.features.service_level.service_level import LevelKey
from ghsched_placement.features.service_level.service_level import LevelPeriod
from ghsched_placement.features.service_level.service_level import Owner

#: Event type of the notification that has the measurements.
EVENT = 'ghsched.server.bandwidth'

#: Names of the meters: the allocated share, and the share that was used.
ALLOCATED, USED = f'{EVENT}.allocated', f'{EVENT}.used'

#: Percent of the bandwidth of one host NUMA node. A server with half of each
#: of two nodes has 100.
UNIT = '%'


def make_bandwidth_notification(host: str, seconds: float,
                                periods: Mapping[LevelKey,
                                                 tuple[Owner, LevelPeriod]]
                                ) -> dict[str, Any]:
    """Return the payload of a bandwidth notification on a host's servers.

    :param host: name of the host.
    :param seconds: time between the two measurements of the bandwidth.
    :param periods: each server's owner and bandwidth, by server and host NUMA
        node.
    """
    return {'host': host, 'seconds': round(seconds, 1),
            'measurements': list(_yield_measurements(periods))}


def _yield_measurements(periods: Mapping[LevelKey, tuple[Owner, LevelPeriod]]
                        ) -> Iterator[dict[str, Any]]:
    by_server: dict[str, list[tuple[Owner, LevelPeriod]]] = {}
    for key, found in sorted(periods.items()):
        by_server.setdefault(key.server, []).append(found)
    for server, nodes in by_server.items():
        owner = nodes[0][0]
        labels = {'unit': UNIT, 'server': server, 'project': owner.project,
                  'flavor': owner.flavor}
        yield {'name': ALLOCATED, 'value': sum(
            period.allocated or 0.0 for _owner, period in nodes), **labels}
        used = [period.got for _owner, period in nodes]
        known = [value for value in used if value is not None]
        if len(known) == len(used):
            yield {'name': USED, 'value': round(sum(known), 2), **labels}
