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

"""Server action ``ghsched`` that finds the guests that slow down a server.

::

    {"ghsched": {"blame": true, "prove": false}}
"""

from collections.abc import Mapping
from typing import Any

from ghsched_nova.api import policies as rules
from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import rpcapi
from ghsched_placement.features.blame import blame_report


def report_slowing_guests(context: Any, uuid: str,
                          action: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report of which guests slow down a server.

    Guests slow each other down by their use of memory bandwidth. The compute
    host of the server makes the report.

    :param action: argument of the ``ghsched`` server action.
    :raises nova.exception.Forbidden: if the policy rules do not allow the
        action.
    :raises Refused: if the host cannot investigate the server.
    """
    server = records.get_visible_server(uuid, context)
    target = {'project_id': server.project_id, 'user_id': server.user_id}
    rules.authorize(context, rules.BLAME, target)
    prove = blame_report.parse_prove_flag(action)
    if prove:
        rules.authorize(context, rules.BLAME_PROVE, target)
        records.refuse_locked_server(context, server)
    with records.open_cell_context(uuid, context) as cell:
        report = get_blame_report(cell, uuid, prove)
    return report if context.is_admin else blame_report.hide_other_guests(
        report, server.project_id)


def get_blame_report(context: Any, server: str, prove: bool) -> dict[str, Any]:
    """Ask a server's host which other guests slow down the server.

    Another guest slows down a server if it uses memory bandwidth or L3 cache
    that the server needs.

    :param context: context of the guest's cell.
    :param server: UUID of the server.
    :param prove: whether the host may test its result: it caps the memory
        bandwidth of another guest for a moment, and measures whether the
        server gets faster. If the host does not answer, it undoes the cap by
        itself.
    :returns: report on the other guests, see
        :mod:`ghsched_placement.features.blame.blame_report`.
    :raises Refused: if the host cannot investigate the server.
    """
    guest = records.NovaRecords(context, server).read_guest()
    if not guest.running:
        raise errors.RefusedByState('the server does not run')
    try:
        report = rpcapi.HostClient(context).get_report(guest, 'blame',
                                                       prove=prove)
    except errors.HostSilent as error:
        raise errors.Refused(str(error)) from error
    report['server']['name'] = guest.name
    return report
