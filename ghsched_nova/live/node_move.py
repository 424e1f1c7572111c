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

"""Other host NUMA nodes for a running guest, asked for from elsewhere.

Knows no Nova object and no wire; what it works with is given to it.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Protocol
import uuid

from ghsched_nova.live import change
from ghsched_nova.live import errors
from ghsched_nova.live import move_messages
from ghsched_placement import change as changes
from ghsched_placement import names
from ghsched_placement import node_move
from ghsched_placement import policy as policies
from ghsched_placement.policy import Accounting


@dataclass(frozen=True)
class Place:
    """Where Nova has a guest on record, and what its host has beside.

    :param devices: PCI addresses of its passthrough devices.
    """

    guest: change.Guest
    cells: tuple[node_move.GuestCell, ...]
    host: Mapping[int, node_move.HostCell]
    devices: tuple[str, ...] = ()


class Records(Protocol):
    """Nova's databases, for one guest."""

    def place(self) -> Place:
        """:raises Refused: when the guest cannot be moved now."""

    def lock(self) -> str:
        """See :meth:`change.Records.lock`."""

    def unlock(self) -> str:
        """See :meth:`change.Records.unlock`."""


class Host(Protocol):
    """The compute host, see :class:`ghsched_nova.rpcapi.HostClient`."""

    def check_move(self, guest: change.Guest,
                   move: move_messages.Packed) -> None:
        """:raises Refused: with the reason of the host.

        :raises HostSilent: when it does not answer.
        """

    def move_nodes(self, guest: change.Guest, move: move_messages.Packed,
                   token: str, lock: str) -> None:
        """Move it, and write that into Nova's record; else as before."""

    def policy_of(self, guest: change.Guest, void: str) -> object:
        """See :meth:`change.Host.policy_of`."""


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    :param held: what Placement holds now of the host's NUMA nodes.
    :param wanted: what it is to hold.
    """

    guest: change.Guest
    request: move_messages.Request
    held: changes.Amounts
    wanted: changes.Amounts

    @property
    def needed(self) -> bool:
        """Placement may have been left with both places of a guest."""
        return self.request.move.needed or self.held != self.wanted

    @property
    def nodes(self) -> tuple[int, ...]:
        """Host NUMA nodes of the host."""
        return tuple(self.request.shared)


@dataclass
class NodeMove:
    """A move of one guest.

    :param shares_of: what Placement holds for a guest.
    :param accounting: ``[ghsched]bandwidth_accounting``.
    """

    records: Records
    shares_of: Callable[[change.Guest, tuple[int, ...]], change.Shares]
    host: Host
    accounting: Accounting
    _undo: list[Callable[[], str]] = field(default_factory=list)

    def check(self, wish: Mapping[int, int]) -> Plan:
        """Find out whether it could be done; nothing is changed.

        :param wish: host NUMA node by guest NUMA node.
        :raises Refused: with the reason.
        """
        try:
            plan = self._plan(wish)
            if plan.request.move.needed:
                if plan.wanted:
                    self._shares(plan).check_room(plan.wanted)
                self.host.check_move(plan.guest,
                                     move_messages.pack(plan.request))
        except errors.Refused:
            raise
        except (node_move.NotMovable, errors.HostSilent,
                policies.PolicyError) as error:
            raise errors.Refused(str(error)) from error
        except Exception as error:
            raise errors.Refused(change.reason(error)) from error
        return plan

    def run(self, wish: Mapping[int, int]) -> Plan:
        """Do it: room in Placement first, which holds both places meanwhile.

        A guest that is there already, in Placement too, is not written to.

        :raises Refused: all is as it was.
        :raises LeftOver: it is not, and there is something to do by hand.
        """
        plan = self.check(wish)
        if not plan.needed:
            return plan
        self._undo = []
        try:
            lock = self.records.lock()
            # Once more: only now nobody else can change the guest.
            plan = self.check(wish)
            self._carry_out(plan, lock)
        except BaseException as error:
            steps, self._undo = self._undo, []
            change.give_up(error, steps, self.records.unlock)
        left = self.records.unlock()
        if left:
            raise errors.LeftOver('the server was moved', [left])
        return plan

    def _carry_out(self, plan: Plan, lock: str) -> None:
        if plan.wanted:
            self._undo.append(lambda: change.put_back(self._shares(plan),
                                                      plan.held))
            self._shares(plan).put(changes.take_maxima(plan.held, plan.wanted))
        if plan.request.move.needed:
            self._move(plan, lock)
        # From here on the guest is there; nothing is taken back.
        self._undo = []
        self._give_back(plan)

    def _move(self, plan: Plan, lock: str) -> None:
        token = str(uuid.uuid4())
        try:
            self.host.move_nodes(plan.guest, move_messages.pack(
                plan.request), token, lock)
        except errors.HalfDone as error:
            self._undo = []
            raise errors.LeftOver(str(error), self._left(plan)) from error
        except errors.HostSilent as silent:
            self._after_silence(plan, token, silent)

    def _after_silence(self, plan: Plan, token: str,
                       silent: errors.HostSilent) -> None:
        """See that the host does nothing later, and what Nova has now."""
        try:
            self.host.policy_of(plan.guest, token)
        except (errors.HostSilent, errors.Refused) as error:
            self._undo = []
            raise errors.LeftOver(str(silent), self._left(plan)) from error
        cells = self.records.place().cells
        if [cell.host_node for cell in cells] != [
                cell.host_node for cell in plan.request.move.after]:
            raise errors.Refused(f'{silent}; the server is where it was')

    def _give_back(self, plan: Plan) -> None:
        try:
            if plan.wanted:
                self._shares(plan).put(plan.wanted)
        except errors.Gone:
            return
        except Exception as error:
            raise errors.LeftOver(
                f'the server was moved: {change.reason(error)}',
                [self._both(plan)]) from error

    @staticmethod
    def _left(plan: Plan) -> list[str]:
        """Return what is left to do when the guest may be on either nodes."""
        there = (f'the server is on one of both places on the host '
                 f'{plan.guest.host}, or between them; when its nova-compute '
                 'runs, it brings the server to one of them')
        if plan.held == plan.wanted:
            return [there]
        return [f'{there}. Placement holds both places; "openstack ghsched '
                'audit --fix", or this command once more, gives up the other '
                'one after that']

    @staticmethod
    def _both(plan: Plan) -> str:
        return ('Placement holds both places of the server on the host '
                f'{plan.guest.host}; "openstack ghsched audit --fix", or this '
                'command once more, gives up the one that it has left')

    def _shares(self, plan: Plan) -> change.Shares:
        return self.shares_of(plan.guest, plan.nodes)

    def _plan(self, wish: Mapping[int, int]) -> Plan:
        place = self.records.place()
        guest = place.guest
        if not guest.running:
            raise errors.Refused('the server does not run; only a running '
                                 'one is moved between NUMA nodes')
        if not place.cells:
            raise errors.Refused(
                'the server has no NUMA nodes (hw:numa_nodes): Nova has not '
                'placed it on any of the host')
        move = node_move.plan(place.cells, place.host, wish, place.devices)
        held, wanted = self._room(place, [cell.host_node
                                          for cell in move.after])
        return Plan(guest, move_messages.Request(
            move, {node: cell.shared for node, cell in place.host.items()}),
            held, wanted)

    def _room(self, place: Place, nodes: Sequence[int]
              ) -> tuple[changes.Amounts, changes.Amounts]:
        """What Placement holds and is to hold, of all nodes of the host.

        All classes of a node go with the guest. Both are empty for a guest
        that nothing of a node is counted for.
        """
        guest = place.guest
        policy = policies.parse(guest.extra_specs, len(place.cells),
                                guest.vcpus)
        if policy is None or not policy.resources(self.accounting):
            return {}, {}
        wanted = changes.compute_amounts(policy, self.accounting, nodes,
                                         guest.compute_node,
                                         names.NODE_CLASSES)
        held = self.shares_of(guest, tuple(place.host)).held()
        return held, {key: wanted.get(key, 0) for key in held}
