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

"""Past moves of servers within their hosts, from Nova's server actions."""

from urllib import parse

from ghsched_placement.features.live_change import node_move
from ghsched_placement.osc import nova_reader

#: Nova: actions of servers since a time.
_ACTIONS = '2.58'


def list_moves_within_host(reader: nova_reader.NovaReader, uuid: str,
                           since: str) -> list[str]:
    """Return the times of a server's recent moves within its host.

    :param since: earliest time; all times are in ISO 8601 format.
    """
    path = f'/servers/{uuid}/os-instance-actions'
    query = parse.urlencode({'changes-since': since})
    found = reader.query_nova(f'{path}?{query}', _ACTIONS,
                              default={'instanceActions': []})
    return [one['start_time'] for one in found['instanceActions']
            if one['action'] == node_move.ACTION
            and _is_move_within_host(reader, f'{path}/{one["request_id"]}')]


def _is_move_within_host(reader: nova_reader.NovaReader, path: str) -> bool:
    """Return whether a server action moved the server within its host.

    :param path: URL path of the action in Nova's API.
    """
    found = reader.query_nova(path, _ACTIONS, default={'instanceAction': {}})
    return any(event['event'] == node_move.EVENT for event
               in found['instanceAction'].get('events') or ())
