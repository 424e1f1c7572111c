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

"""Rules of nova-api's policy file for what ghsched adds to its API.

Each is asked with the project and the user of the server as its target, as
Nova asks its own: ``project_id:%(project_id)s`` in a rule is the server's.
"""

from collections.abc import Mapping
from typing import Any

from oslo_policy import policy

from ghsched_nova.nova_seams import api

SET = 'os_compute_api:ghsched:server-set'
DRY_RUN = 'os_compute_api:ghsched:dry-run'
MOVE = 'os_compute_api:ghsched:move-nodes'

_OPERATIONS: Any = [{'method': 'POST', 'path': '/servers/{server_id}/action '
                                               '(ghsched)'}]
#: Nova's, too.
_SCOPES = ['project']


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """Return the rules with what holds where no policy file names them."""
    return [
        policy.DocumentedRuleDefault(
            SET, 'rule:context_is_admin',
            'Change the bandwidth policy of a server while it runs. Who may '
            'raise a share takes it from a host that others are on, within '
            'the limits of the project.', _OPERATIONS,
            scope_types=_SCOPES),
        policy.DocumentedRuleDefault(
            DRY_RUN, f'rule:{SET}',
            'Find out whether a server could be changed or moved; nothing is '
            'changed.', _OPERATIONS, scope_types=_SCOPES),
        policy.DocumentedRuleDefault(
            MOVE, f'rule:{SET}',
            'Move a server to other NUMA nodes of its host. That names nodes '
            'and CPUs of the host, and moves all memory of the server.',
            _OPERATIONS, scope_types=_SCOPES)]


def authorize(context: Any, rule: str, target: Mapping[str, Any]) -> None:
    """Refuse a user that nova-api's policy does not allow something.

    :param target: ``project_id`` and ``user_id`` of the server.
    :raises Forbidden: of Nova.
    """
    api.authorize(context, list_rules(), rule, target)
