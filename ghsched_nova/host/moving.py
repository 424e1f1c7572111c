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

Nova's record of the guest says where it belongs: until that is written the
guest belongs on its old nodes, from then on on the new ones. What is under way
stands in the domain (:mod:`ghsched_nova.guest.move_record`), from before the
first step until after the last. So whoever finds it there, after a crash too,
has but to bring the domain to where Nova has the guest. Each step finds out
whether it is done already.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import threading
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import metadata
from ghsched_nova.guest import move_record
from ghsched_nova.guest import node_move as domains
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.host import live
from ghsched_nova.live import messages
from ghsched_nova.live import move_messages
from ghsched_nova.threads import pages
from ghsched_placement.node_move import GuestCell

LOG = logging.getLogger(__name__)

#: Of virDomainSetMetadata and virDomainPinVcpuFlags (libvirt-domain.h).
_ELEMENT = 2
_LIVE = 1
_CONFIG = 2

#: Enters the claim of the new nodes; gives what writes Nova's record.
Claim = Callable[[], contextlib.AbstractContextManager[Callable[[], None]]]
#: Reads Nova's record: the NUMA nodes of the guest.
Record = Callable[[], Sequence[GuestCell]]


class Mover:
    """The moves of a host.

    :param memory: see :class:`ghsched_nova.threads.pages.Memory`.
    :param changing: to be entered while the policy of a guest changes.
    """

    def __init__(self, own_engine: engine.HostEngine, memory: pages.Memory,
                 changing: contextlib.AbstractContextManager[Any]) -> None:
        self._engine = own_engine
        self._memory = memory
        self._changing = changing
        # Who is being moved by a call; all others with a record of a move
        # have lost whoever moved them.
        self._busy: set[str] = set()
        self._guard = threading.Lock()

    def run(self, domain: live.Domain, packed: move_messages.Packed,
            claim: Claim, record: Record) -> None:
        """Move a domain, or leave all as it was.

        :raises NotChanged: with the reason, and what could not be put back.
        """
        with self._alone(domain.guest.uuid):
            try:
                with claim() as commit:
                    self._claimed(domain, packed, commit, record)
            except live.NotChanged:
                raise
            except Exception as error:
                raise live.NotChanged(str(error) or repr(error)) from error
            self._done(domain)

    def _claimed(self, domain: live.Domain, packed: move_messages.Packed,
                 commit: Callable[[], None], record: Record) -> None:
        """The new nodes are held until all is back, too."""
        request = move_messages.unpack(packed)
        try:
            self._note(domain, move_record.render_record(packed))
            self._bring(domain, request)
            commit()
        except Exception as error:
            self._give_up(domain, request, record, error)

    def _give_up(self, domain: live.Domain, request: move_messages.Request,
                 record: Record, error: Exception) -> None:
        """Put back, unless the record was written before something failed.
        """
        LOG.warning('ghsched: %(name)s is not moved: %(error)r',
                    {'name': domain.guest.name, 'error': error})
        try:
            if move_record.read_record(domain.live) is not None:
                if same(request.move.after, record()):
                    return
                self._bring(domain, move_messages.Request(
                    request.move.back(), request.shared))
                self._done(domain)
        except Exception as worse:
            LOG.exception('ghsched: %s is between NUMA nodes',
                          domain.guest.name)
            raise live.NotChanged(
                f'{error}; the guest could not be put back: {worse}; that is '
                'tried again with the next report of the host', left=True
            ) from error
        raise live.NotChanged(str(error) or repr(error)) from error

    def is_busy(self, uuid: str) -> bool:
        """Whether a call moves a guest just now."""
        with self._guard:
            return uuid in self._busy

    def repair(self, domain: live.Domain,
               cells: Sequence[GuestCell]) -> bool:
        """Bring a domain that was being moved to where Nova has the guest.

        :param cells: its NUMA nodes on Nova's record.
        :returns: whether there was anything to do.
        """
        packed = move_record.read_record(domain.live)
        if packed is None:
            return False
        try:
            request = move_messages.unpack(packed)
        except messages.MessageError:
            self._done(domain)
            return True
        for move in (request.move, request.move.back()):
            if same(move.after, cells):
                self._bring(domain, move_messages.Request(move,
                                                          request.shared))
                break
        LOG.warning('ghsched: a move of %(name)s between NUMA nodes was '
                    'interrupted; it is on %(nodes)s now',
                    {'name': domain.guest.name,
                     'nodes': [cell.host_node for cell in cells]})
        self._done(domain)
        return True

    # -- the steps ------------------------------------------------------------

    def _bring(self, domain: live.Domain,
               request: move_messages.Request) -> None:
        """Bring a domain to where a move ends.

        Control groups first, so that no CPU runs there without a limit.
        """
        move = request.move
        with self._changing:
            wanted = domains.policy_after_move(domain.live, move)
            if (wanted is not None
                    and metadata.read_policy(domain.live) != wanted):
                domain.write(wanted)
            self._engine.reconcile_guest(desired.of(domain.live,
                                                    domain.guest.id))
        self._pin(domain, request)
        self._memory.move(domain.guest.name, dict(move.moved.values()),
                          [cell.host_node for cell in move.before])
        stored = self._engine.domain_xml.retune(domains.render(
            domain.stored, move, request.shared))
        if stored != domain.stored:
            domain.define(stored)

    def _pin(self, domain: live.Domain,
             request: move_messages.Request) -> None:
        before = domains.parse_pins(domain.live)
        after = domains.parse_pins(domains.render(domain.live, request.move,
                                                  request.shared))
        most = max((max(cpus) for cpus in after.values() if cpus),
                   default=-1)
        handle = domain.guest._domain
        for (kind, number), cpus in after.items():
            if cpus == before[kind, number]:
                continue
            where = tuple(cpu in cpus for cpu in range(most + 1))
            if kind == 'vcpupin':
                handle.pinVcpuFlags(number, where, _LIVE)
            elif kind == 'emulatorpin':
                handle.pinEmulator(where, _LIVE)
            else:
                handle.pinIOThread(number, where, _LIVE)

    def _note(self, domain: live.Domain, text: str | None) -> None:
        domain.guest._domain.setMetadata(
            _ELEMENT, text, move_record.PREFIX, move_record.NAMESPACE,
            _LIVE | _CONFIG)

    def _done(self, domain: live.Domain) -> None:
        """What is written down after the move is only for who repairs it."""
        try:
            self._note(domain, None)
        except Exception as error:
            LOG.warning('ghsched: the record of a move stays in %(name)s '
                        'until the next report: %(error)s',
                        {'name': domain.guest.name, 'error': error})

    @contextlib.contextmanager
    def _alone(self, uuid: str) -> Iterator[None]:
        with self._guard:
            self._busy.add(uuid)
        try:
            yield
        finally:
            with self._guard:
                self._busy.discard(uuid)


def same(one: Sequence[GuestCell], other: Sequence[GuestCell]) -> bool:
    """Whether a guest has the same host nodes and CPUs in both."""
    def key(cell: GuestCell) -> tuple[Any, ...]:
        return cell.host_node, dict(cell.pins), cell.reserved
    return [*map(key, one)] == [*map(key, other)]
