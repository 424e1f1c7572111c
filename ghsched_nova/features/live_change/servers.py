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

"""Entry points that change or move a server, for nova-manage and nova-api."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from ghsched_nova.features.live_change import change as live_changes
from ghsched_nova.features.live_change import node_move
from ghsched_nova.features.live_change import placement
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import rpcapi
from ghsched_nova.nova_seams import shared
from ghsched_placement.providers import names


def change_server_policy(
    context: Any,
    server: str,
    new_values: Mapping[str, str | None],
    dry_run: bool,
) -> live_changes.PolicyChangePlan:
    """Change a server's bandwidth policy, recorded as an instance action.

    :param context: context of the guest's cell.
    :param server: UUID of the server.
    :param new_values: new value by key of the policy; None removes the key.
    :param dry_run: only check whether the change is possible.
    :raises PolicyError: naming the invalid key.
    :raises Refused: if the change is refused; nothing is changed.
    :raises RollbackIncomplete: if something is left to do by hand.
    """
    changer = make_policy_changer(context, server)
    if dry_run:
        return changer.change_policy(new_values, dry_run)
    with records.record_action(context, server):
        return changer.change_policy(new_values, dry_run)


def make_policy_changer(context: Any,
                        server: str) -> live_changes.PolicyChanger:
    """Return an object that changes the bandwidth policy of a server.

    :param context: context of the guest's cell.
    :param server: UUID of the server.
    """
    return live_changes.PolicyChanger(
        records.NovaRecords(context, server, _get_max_change_duration()),
        lambda guest: _make_allocation_client(
            guest, guest.host_nodes, {names.MEM_BW_PCT}
        ),
        rpcapi.HostClient(context),
        shared.config().ghsched.bandwidth_accounting,
    )


#: Most calls of a compute host, one after the other, in a change that fails.
_CALLS = 6


def _get_max_change_duration() -> int:
    """Return the maximum duration of a policy change, in seconds."""
    return _CALLS * rpcapi.get_rpc_timeout()


def _make_allocation_client(
    guest: live_changes.GuestRecord, nodes: Sequence[int],
    classes: Collection[str]
) -> placement.GuestAllocation:
    """Return a client of a guest's Placement allocation on host NUMA nodes.

    :param nodes: host NUMA nodes.
    :param classes: resource classes that are read and written.
    """
    return placement.GuestAllocation(
        shared.get_placement_client(),
        guest.uuid,
        guest.compute_node,
        placement.map_numa_providers_to_nodes(guest.compute_node, nodes),
        classes,
        placement.list_possible_numa_providers(guest.evacuation_sources),
    )


def move_server(context: Any, server: str, new_nodes: Mapping[int, int],
                dry_run: bool) -> node_move.NodeMovePlan:
    """Move a server to other NUMA nodes of its host.

    The move is recorded as an instance action.

    :param context: context of the guest's cell.
    :param server: UUID of the server.
    :param new_nodes: new host NUMA node by guest NUMA node.
    :param dry_run: only check whether the move is possible.
    :raises Refused: if the move is refused; nothing is changed.
    :raises RollbackIncomplete: if something is left to do by hand.
    """
    mover = make_node_mover(context, server)
    if dry_run:
        return mover.plan_move(new_nodes)
    with records.record_action(context, server, records.MOVE_EVENT):
        return mover.move_guest(new_nodes)


def make_node_mover(context: Any, server: str) -> node_move.NodeMover:
    """Return an object that moves a server between NUMA nodes of its host.

    :param context: context of the guest's cell.
    :param server: UUID of the server.
    """
    return node_move.NodeMover(
        records.NovaRecords(
            context, server,
            _get_max_change_duration() + shared.config().long_rpc_timeout),
        lambda guest, nodes: _make_allocation_client(
            guest, nodes, names.NODE_CLASSES
        ),
        rpcapi.HostClient(context),
        shared.config().ghsched.bandwidth_accounting,
    )
