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

"""Arguments of the server action ``ghsched`` that change a running server.

::

    {"ghsched": {"extra_specs": {"ghsched:mem_bw_min": "30",
                                 "ghsched:mem_bw_max": null},
                 "dry_run": false}}

with the JSON of ``ghsched server set``. ``{"move_nodes": {"0": 1}, "dry_run":
false}`` instead, host NUMA node by guest NUMA node, moves the server inside
its host (:mod:`ghsched_placement.features.live_change.move_report`).
"""

from collections.abc import Mapping
from typing import Any

from ghsched_nova.api import policies as rules
from ghsched_nova.features.live_change import nova_seams
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import servers
from ghsched_placement.features.live_change import change as changes
from ghsched_placement.features.live_change import change_report
from ghsched_placement.features.live_change import move_report
from ghsched_placement.flavor import policy as policies

#: Key of the argument that changes a policy.
KEY = 'extra_specs'


def parse_extra_specs(action: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the extra specs that a server action is to change.

    :param action: argument of the ``ghsched`` server action.
    :raises PolicyError: names the invalid part.
    """
    specs = action.get(KEY)
    if not isinstance(specs, dict) or not specs or not all(
            value is None or isinstance(value, str)
            for value in specs.values()):
        raise policies.PolicyError(
            'extra_specs', 'must map keys to texts, or to null')
    # Check the values alone, without the guest.
    changes.merge_requested_changes({}, specs)
    return specs


def check_dry_run_field(action: Mapping[str, Any], change: str) -> None:
    """Refuse a server action with a malformed or misspelt ``dry_run``.

    :param action: argument of the ``ghsched`` server action.
    :param change: name of the field with the change.
    :raises PolicyError: for another value than true and false, and for a field
        that is neither the change nor the flag.
    """
    if not isinstance(action.get('dry_run', False), bool):
        raise policies.PolicyError('dry_run', 'must be true or false')
    if others := action.keys() - {change, 'dry_run'}:
        raise policies.PolicyError(
            f'{min(others):.64}', f'only dry_run may stand beside {change}')


def change_server(context: Any, uuid: str,
                  action: Mapping[str, Any]) -> dict[str, Any]:
    """Change the bandwidth policy or the NUMA nodes of a server.

    :param action: argument of the ``ghsched`` server action.
    :returns: report of the change or of the dry run.
    :raises nova.exception.Forbidden: if the policy rules do not allow the
        action.
    """
    is_move = move_report.KEY in action
    dry_run = action.get('dry_run') is True
    server = records.get_visible_server(uuid, context)
    target = {'project_id': server.project_id, 'user_id': server.user_id}
    if dry_run:
        rules.authorize(context, rules.DRY_RUN, target)
    # A dry run of a move names nodes and CPUs of the host, as the move does.
    if is_move or not dry_run:
        rules.authorize(context, rules.MOVE if is_move else rules.SET, target)
    records.refuse_locked_server(context, server)
    check_dry_run_field(action, move_report.KEY if is_move else KEY)
    if is_move:
        nodes = move_report.parse_move_request(action)
        with records.open_cell_context(uuid, context) as cell:
            return move_report.make_move_report(
                servers.move_server(cell, uuid, nodes, dry_run), dry_run)
    specs = parse_extra_specs(action)
    after = changes.merge_requested_changes(server.flavor.extra_specs, specs)
    nova_seams.enforce_limits(
        context, server.project_id,
        nova_seams.count_added_usage(server.flavor, after))
    with records.open_cell_context(uuid, context) as cell:
        return change_report.make_change_report(
            servers.change_server_policy(cell, uuid, specs, dry_run), dry_run)
