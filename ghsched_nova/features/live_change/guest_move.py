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

"""Moves a running guest to other NUMA nodes of its host.

Nova's record decides where the guest belongs: on its old nodes until Nova's
record is written, on the new nodes afterwards. A record of the move stands in
the domain (:mod:`ghsched_nova.features.live_change.move_xml`) from before the
first step until after the last. After a crash, the next report finds this
record and moves the domain to the nodes in Nova's record. Each step does
nothing if it is done already.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import threading
from typing import Any

from oslo_log import log as logging

from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.features.live_change import page_move
from ghsched_nova.features.live_change import policy_change
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import thread_pins
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_placement.fit.cells import GuestCell

LOG = logging.getLogger(__name__)

#: Enters the claim of the new nodes; yields a function that writes Nova's
#: record.
Claim = Callable[[], contextlib.AbstractContextManager[Callable[[], None]]]
#: Reads the NUMA nodes of the guest from Nova's record.
Record = Callable[[], Sequence[GuestCell]]


class Mover:
    """Mover of running domains between the NUMA nodes of this host.

    :param own_engine: engine that enforces policies on this host.
    :param memory: mover of guests' memory.
    :param changing: lock that is held while the policy of a guest changes.
    """

    def __init__(self, own_engine: engine.HostEngine,
                 memory: page_move.MemoryMover,
                 changing: contextlib.AbstractContextManager[Any]) -> None:
        self._engine = own_engine
        self._memory = memory
        self._changing = changing
        # UUIDs of guests that a call moves now. The move of any other guest
        # with a record of a move was interrupted.
        self._busy: set[str] = set()
        self._guard = threading.Lock()

    def move_guest(self, domain: policy_change.LiveDomain,
                   packed: move_messages.PackedMove,
                   claim: Claim, record: Record) -> None:
        """Move a running domain to other host NUMA nodes; undo after an error.

        :param packed: the move in the wire format of RPC calls.
        :param claim: function that claims the new nodes in Nova.
        :param record: function that reads the guest's NUMA nodes in Nova's
            record.
        :raises NotChanged: with the reason, which names anything that could
            not be restored.
        """
        with self._mark_busy(domain.guest.uuid):
            try:
                with claim() as commit:
                    self._move_claimed(domain, packed, commit, record)
            except policy_change.NotChanged:
                raise
            except Exception as error:
                raise policy_change.NotChanged(
                    str(error) or repr(error)) from error
            self._remove_record(domain)

    def _move_claimed(self, domain: policy_change.LiveDomain,
                      packed: move_messages.PackedMove,
                      commit: Callable[[], None], record: Record) -> None:
        """Move a domain to its claimed NUMA nodes and update Nova's record.

        After an error the domain is moved back. The new nodes stay claimed
        until then.

        :param packed: the move in the wire format of RPC calls.
        :param commit: function that writes the new nodes to Nova's record.
        :param record: function that reads the guest's NUMA nodes in Nova's
            record.
        """
        request = move_messages.unpack_move(packed)
        try:
            self._write_record(domain, move_xml.render_move_record(packed))
            self._move_domain(domain, request)
            commit()
        except Exception as error:
            self._roll_back(domain, request, record, error)

    def _roll_back(self, domain: policy_change.LiveDomain,
                   request: move_messages.MoveRequest, record: Record,
                   error: Exception) -> None:
        """Move a domain back to its old NUMA nodes after a failed move.

        If Nova's record already has the new nodes, the domain stays there.

        :param error: error of the move.
        """
        LOG.warning('ghsched: cannot move guest %(name)s to other host NUMA '
                    'nodes; moving the guest back to its old nodes: '
                    '%(error)r',
                    {'name': domain.guest.name, 'error': error})
        try:
            if move_xml.read_move_record(domain.live_xml) is not None:
                if has_same_nodes_and_cpus(request.move.after, record()):
                    return
                self._move_domain(domain, move_messages.MoveRequest(
                    request.move.make_reverse_plan(), request.shared_cpus))
                self._remove_record(domain)
        except Exception as worse:
            LOG.exception('ghsched: cannot move guest %s back to its old host '
                          'NUMA nodes; retrying in the next periodic task',
                          domain.guest.name)
            raise policy_change.NotChanged(
                f'{error}; the guest could not be returned to its old NUMA '
                f'nodes: {worse}; the next report of the host will retry',
                incomplete=True) from error
        raise policy_change.NotChanged(str(error) or repr(error)) from error

    def is_moving(self, uuid: str) -> bool:
        """Whether a guest is being moved between host NUMA nodes now."""
        with self._guard:
            return uuid in self._busy

    def resolve_interrupted_move(self, domain: policy_change.LiveDomain,
                                 cells: Sequence[GuestCell]) -> bool:
        """Move a domain to Nova's recorded nodes if its move was interrupted.

        A move between host NUMA nodes is interrupted if nova-compute stops. It
        is finished if Nova's record has the new nodes, and undone otherwise.

        :param cells: NUMA nodes of the guest in Nova's record.
        :returns: whether a move of the domain was interrupted.
        """
        packed = move_xml.read_move_record(domain.live_xml)
        if packed is None:
            return False
        try:
            request = move_messages.unpack_move(packed)
        except messages.MessageError:
            self._remove_record(domain)
            return True
        for move in (request.move, request.move.make_reverse_plan()):
            if has_same_nodes_and_cpus(move.after, cells):
                self._move_domain(
                    domain,
                    move_messages.MoveRequest(move, request.shared_cpus))
                break
        LOG.warning('ghsched: resolved an interrupted move of guest %(name)s '
                    'between host NUMA nodes; the guest now runs on host NUMA '
                    'nodes %(nodes)s',
                    {'name': domain.guest.name,
                     'nodes': [cell.host_node for cell in cells]})
        self._remove_record(domain)
        return True

    # -- the steps ------------------------------------------------------------

    def _move_domain(self, domain: policy_change.LiveDomain,
                     request: move_messages.MoveRequest) -> None:
        """Move a domain's control group, CPUs and memory to new NUMA nodes.

        The control group is moved first, so that no vCPU runs without limits
        on a new node. The persistent XML is changed as well.
        """
        move = request.move
        with self._changing:
            wanted = move_xml.make_policy_after_move(domain.live_xml, move)
            if (wanted is not None
                    and metadata.read_policy(domain.live_xml) != wanted):
                domain.write_policy(wanted)
            self._engine.reconcile_guest(
                desired.parse_running_domain(domain.live_xml, domain.guest.id))
        with self._changing:
            self._pin_threads(domain, request)
        self._memory.move_guest_memory(
            domain.guest.name, dict(move.nodes_moved.values()),
            [cell.host_node for cell in move.before])
        xml = self._engine.domain_xml.update_memorytune(
            move_xml.apply_move_to_xml(domain.persistent_xml, move,
                                       request.shared_cpus))
        if xml != domain.persistent_xml:
            domain.define(xml)

    def _pin_threads(self, domain: policy_change.LiveDomain,
                     request: move_messages.MoveRequest) -> None:
        before, after = (
            thread_pins.parse_pins(document.parse_element(xml))
            for xml in (domain.live_xml, move_xml.apply_move_to_xml(
                domain.live_xml, request.move, request.shared_cpus)))
        most = max((max(cpus) for cpus in after.values() if cpus),
                   default=-1)
        handle = domain.guest._domain
        for (kind, number), cpus in after.items():
            if cpus == before[kind, number]:
                continue
            where = tuple(cpu in cpus for cpu in range(most + 1))
            if kind == 'vcpu':
                handle.pinVcpuFlags(number, where, policy_change.LIVE)
            elif kind == 'emulator':
                handle.pinEmulator(where, policy_change.LIVE)
            else:
                handle.pinIOThread(number, where, policy_change.LIVE)

    def _write_record(self, domain: policy_change.LiveDomain,
                      text: str | None) -> None:
        domain.write_metadata(text, move_xml.PREFIX,
                              move_xml.NAMESPACE)

    def _remove_record(self, domain: policy_change.LiveDomain) -> None:
        """Remove the record of a move from a domain's metadata; never raises.

        The domain has the record while it is moved between NUMA nodes. If the
        record cannot be removed now, nova-compute's next periodic report
        removes it.
        """
        try:
            self._write_record(domain, None)
        except Exception as error:
            LOG.warning('ghsched: cannot remove the record of a finished move '
                        'from the metadata of guest %(name)s; retrying in the '
                        'next periodic task: %(error)s',
                        {'name': domain.guest.name, 'error': error})

    @contextlib.contextmanager
    def _mark_busy(self, uuid: str) -> Iterator[None]:
        with self._guard:
            self._busy.add(uuid)
        try:
            yield
        finally:
            with self._guard:
                self._busy.discard(uuid)


def has_same_nodes_and_cpus(first: Sequence[GuestCell],
                            second: Sequence[GuestCell]) -> bool:
    """Whether two records of a guest name the same host nodes and CPUs."""
    def key(cell: GuestCell) -> tuple[Any, ...]:
        return cell.host_node, dict(cell.pins), cell.reserved
    return [*map(key, first)] == [*map(key, second)]
