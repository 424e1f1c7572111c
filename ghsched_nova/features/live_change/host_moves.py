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

"""Moves running guests between the NUMA nodes of this host.

Connects :class:`ghsched_nova.features.live_change.guest_move.Mover` with
Nova's records.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nova import context as nova_context
from nova import exception
from nova import objects
from oslo_log import log as logging

from ghsched_nova.features.live_change import guest_move
from ghsched_nova.features.live_change import move_checks
from ghsched_nova.features.live_change import move_claims
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.features.live_change import nova_cells
from ghsched_nova.features.live_change import page_move
from ghsched_nova.features.live_change import policy_change
from ghsched_nova.host import desired
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import messaging
from ghsched_nova.nova_seams import shared
from ghsched_placement.fit.cells import GuestCell

LOG = logging.getLogger(__name__)

EVENT = 'ghsched.server.node_move'


class HostMoves:
    """Moves of guests between NUMA nodes, with Nova's claims and Placement.

    :param virtapi: VirtAPI of Nova's libvirt driver.
    :param mover: mover of the domains of this host.
    :param memory: mover of guests' memory, which also checks whether the
        memory can be moved.
    """

    def __init__(self, virtapi: Any, mover: guest_move.Mover,
                 memory: page_move.MemoryMover) -> None:
        self._virtapi = virtapi
        self._mover = mover
        self._memory = memory

    def check_move(self, domain: policy_change.LiveDomain,
                   move: move_messages.PackedMove) -> None:
        """Check that a guest can move between NUMA nodes of this host.

        Nothing is changed.

        :param domain: the guest's domain.
        :param move: the old and new NUMA nodes, in the wire format of RPC
            calls.
        :raises NotChanged: if the guest cannot move; the text has all reasons.
        """
        found = move_checks.list_node_move_refusals(
            domain.live_xml, move_messages.unpack_move(move), self._memory,
            Path(shared.config().ghsched.sysfs_path))
        if found:
            raise policy_change.NotChanged('; '.join(found))

    def move_guest(self, context: Any, instance: Any,
                   domain: policy_change.LiveDomain,
                   move: move_messages.PackedMove) -> None:
        """Move a guest between NUMA nodes of this host.

        Placement is updated and a notification is sent.

        :param domain: the guest's domain.
        :param move: the old and new NUMA nodes, in the wire format of RPC
            calls.
        :raises NotChanged: if the guest was not moved; the reason names what
            could not be restored.
        """
        self.check_move(domain, move)
        request = move_messages.unpack_move(move)
        if not guest_move.has_same_nodes_and_cpus(
                request.move.before,
                nova_cells.list_guest_cells(instance.numa_topology)):
            raise policy_change.NotChanged(
                'the NUMA nodes or CPUs of the server just changed; retry')
        self._mover.move_guest(
            domain, move, lambda: move_claims.claiming_new_nodes(
                self._virtapi, instance, request.move.after),
            lambda: _list_guest_cells(context, instance.uuid))
        LOG.info('ghsched: moved a running guest to other host NUMA nodes: %s '
                 '(guest NUMA node: old and new host NUMA node)',
                 request.move.nodes_moved, instance=instance)
        self._report_move(context, instance, request)

    def _report_move(self, context: Any, instance: Any,
                     request: move_messages.MoveRequest) -> None:
        """Report a guest's move between NUMA nodes of this host.

        Placement is updated and a notification is sent. Errors are logged and
        not raised. If the update fails, nova-compute's next periodic report
        updates Placement.

        :param request: the move.
        """
        try:
            compute.report_host_resources(self._virtapi, context, instance)
            messaging.send_notification(EVENT, {
                'host': instance.host, 'server': instance.uuid, 'nodes': [
                    {'guest_node': guest, 'before': old, 'after': new}
                    for guest,
                    (old, new) in request.move.nodes_moved.items()]})
        except Exception as error:
            LOG.warning('ghsched: cannot update Placement or send a '
                        'notification after a guest moved between host NUMA '
                        'nodes; updating Placement in the next periodic task: '
                        '%s',
                        error, instance=instance)

    def finish_interrupted_moves(self, running: Iterable[desired.Running],
                                 lock_domain: Any) -> None:
        """Finish or undo moves between NUMA nodes that a crash interrupted.

        :param running: all running domains.
        :param lock_domain: function that returns a context, in which the
            domain of a given UUID is locked.
        """
        for one in running:
            if move_xml.NAMESPACE not in one.xml:
                continue
            uuid = one.domain.uuid
            try:
                if not self._mover.is_moving(uuid):
                    with compute.lock_instance(uuid), (
                            lock_domain(uuid)) as found:
                        self._mover.resolve_interrupted_move(
                            found, _list_guest_cells(
                                nova_context.get_admin_context(), uuid))
            except exception.InstanceNotFound:
                continue
            except Exception:
                LOG.exception('ghsched: cannot resolve an interrupted move of '
                              'server %s between host NUMA nodes; retrying in '
                              'the next periodic task', uuid)


def _list_guest_cells(context: Any, uuid: str) -> tuple[GuestCell, ...]:
    return nova_cells.list_guest_cells(objects.Instance.get_by_uuid(
        context, uuid, expected_attrs=['numa_topology']).numa_topology)
