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

"""A server changed or moved, with all of Nova and Placement that it takes.

It is the same from where nova-manage runs and in nova-api.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from ghsched_nova.live import change as live_changes
from ghsched_nova.live import node_move
from ghsched_nova.live import placement
from ghsched_nova.live import records
from ghsched_nova.nova_seams import shared
from ghsched_nova import rpcapi
from ghsched_placement import names


def change(context: Any, server: str, asked: Mapping[str, str | None],
           dry_run: bool) -> live_changes.Plan:
    """Change a server, and let Nova's list of its actions say so.

    :param context: of the cell of the guest.
    :raises PolicyError: naming the key that is wrong.
    :raises Refused: with the reason; all is as it was.
    :raises LeftOver: when not all could be put back.
    """
    wanted = live_change(context, server)
    if dry_run:
        return wanted.run(asked, dry_run)
    with records.as_action(context, server):
        return wanted.run(asked, dry_run)


def live_change(context: Any, server: str) -> live_changes.LiveChange:
    """The change of one guest, with all that it works with.

    :param context: of the cell of the guest.
    """
    return live_changes.LiveChange(
        records.NovaRecords(context, server),
        lambda guest: _shares(guest, guest.host_nodes, {names.MEM_BW_PCT}),
        rpcapi.HostClient(context),
        shared.config().ghsched.bandwidth_accounting)


def _shares(guest: live_changes.Guest, nodes: Sequence[int],
            classes: Collection[str]) -> placement.Shares:
    """Return what Placement holds of its host for a guest.

    :param nodes: host NUMA nodes that may have a share.
    :param classes: resource classes that are looked at.
    """
    return placement.Shares(
        shared.placement_client(), guest.uuid, guest.compute_node,
        placement.nodes_of(guest.compute_node, nodes), classes,
        placement.providers_of(guest.left))


def move(context: Any, server: str, nodes: Mapping[int, int],
         dry_run: bool) -> node_move.Plan:
    """Move a server, and let Nova's list of its actions say so.

    :param context: of the cell of the guest.
    :param dry_run: find out whether it could be done, and change nothing.
    :raises Refused: with the reason; all is as it was.
    :raises LeftOver: when not all could be put back.
    """
    mover = node_mover(context, server)
    if dry_run:
        return mover.check(nodes)
    with records.as_action(context, server, records.MOVE_EVENT):
        return mover.run(nodes)


def node_mover(context: Any, server: str) -> node_move.NodeMove:
    """The move of one guest, with all that it works with."""
    return node_move.NodeMove(
        records.NovaRecords(context, server),
        lambda guest, nodes: _shares(guest, nodes, names.NODE_CLASSES),
        rpcapi.HostClient(context),
        shared.config().ghsched.bandwidth_accounting)
