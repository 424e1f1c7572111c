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

"""Rules of nova-api's policy file for ghsched's API.

Each is asked with the project and the user of the server as its target, as
Nova asks its own: ``project_id:%(project_id)s`` in a rule is the server's.
"""

from collections.abc import Mapping
import functools
from typing import Any

from oslo_policy import policy

from ghsched_nova.nova_seams import api
from ghsched_nova.nova_seams import shared

SET = 'os_compute_api:ghsched:server-set'
DRY_RUN = 'os_compute_api:ghsched:dry-run'
MOVE = 'os_compute_api:ghsched:move-nodes'
BLAME = 'os_compute_api:ghsched:blame'
BLAME_PROVE = 'os_compute_api:ghsched:blame-prove'
LIST_REFUSALS = 'os_compute_api:ghsched:list-refusals'

_OPERATIONS: Any = [{'method': 'POST', 'path': '/servers/{server_id}/action '
                                               '(ghsched)'}]
#: Scope types of the rules; those of Nova's server rules are the same.
_SCOPES = ['project']


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """Return ghsched's rules for nova-api's policy file, with their defaults.
    """
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
            f'changed. A dry run of a move is also asked for {MOVE}, as it '
            'names nodes and CPUs of the host.', _OPERATIONS,
            scope_types=_SCOPES),
        policy.DocumentedRuleDefault(
            MOVE, f'rule:{SET}',
            'Move a server to other NUMA nodes of its host. That names nodes '
            'and CPUs of the host, and moves all memory of the server.',
            _OPERATIONS, scope_types=_SCOPES),
        policy.DocumentedRuleDefault(
            BLAME, 'rule:context_is_admin',
            'Find out which guest disturbs a server by memory. The names of '
            'other projects\' guests are shown to admins only.',
            _OPERATIONS, scope_types=_SCOPES),
        policy.DocumentedRuleDefault(
            BLAME_PROVE, 'rule:context_is_admin',
            'Prove which guest disturbs a server ("prove"), besides the rule '
            f'{BLAME}. Other guests of the host, also those of other '
            'projects, are capped for a moment.',
            _OPERATIONS, scope_types=_SCOPES),
        policy.DocumentedRuleDefault(
            LIST_REFUSALS, 'rule:context_is_admin',
            'List the flavors for which no host was found lately, of all '
            'projects.', [{'method': 'GET', 'path': '/ghsched/refusals'}],
            scope_types=_SCOPES)]


@functools.lru_cache(maxsize=1)
def get_shared_policy_enforcer() -> policy.Enforcer:
    """Return this process's oslo.policy enforcer of ghsched's rules.

    The enforcer is made at the first call.
    """
    return api.make_policy_enforcer(list_rules())


def get_enforcer() -> policy.Enforcer:
    """Return an oslo.policy enforcer with Nova's configuration loaded.

    This is the entry point for programs that write policy files.
    """
    shared.config()([], project='nova')
    return get_shared_policy_enforcer()


def authorize(context: Any, rule: str, target: Mapping[str, Any]) -> None:
    """Refuse an API request that the policy rules forbid to its user.

    :param rule: name of one of ghsched's policy rules.
    :param target: ``project_id`` and ``user_id`` of the server.
    :raises nova.exception.Forbidden: if the rules do not allow the request.
    """
    api.authorize(get_shared_policy_enforcer(), context, rule, target)
