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
from dataclasses import dataclass
from typing import Protocol

from ghsched_nova.live import change
from ghsched_nova.live import errors
from ghsched_nova.live import move_messages
from ghsched_placement import change as changes
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


class Host(Protocol):
    """The compute host, see :class:`ghsched_nova.rpcapi.HostClient`."""

    def check_move(self, guest: change.Guest,
                   move: move_messages.Packed) -> None:
        """:raises Refused: with the reason of the host.

        :raises HostSilent: when it does not answer.
        """


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    :param wanted: percent that Placement is to hold, by provider.
    """

    guest: change.Guest
    request: move_messages.Request
    wanted: Mapping[str, int]

    @property
    def needed(self) -> bool:
        return self.request.move.needed


@dataclass(frozen=True)
class NodeMove:
    """A move of one guest.

    :param shares_of: what Placement holds for a guest.
    :param accounting: ``[ghsched]bandwidth_accounting``.
    """

    records: Records
    shares_of: Callable[[change.Guest, tuple[int, ...]], change.Shares]
    host: Host
    accounting: Accounting

    def check(self, wish: Mapping[int, int]) -> Plan:
        """Find out whether it could be done; nothing is changed.

        :param wish: host NUMA node by guest NUMA node.
        :raises Refused: with the reason.
        """
        try:
            plan = self._plan(wish)
            if plan.needed:
                self._check_room(plan)
                self.host.check_move(plan.guest,
                                     move_messages.pack(plan.request))
        except errors.Refused:
            raise
        except (node_move.NotMovable, errors.HostSilent,
                policies.PolicyError) as error:
            raise errors.Refused(str(error)) from error
        except Exception as error:
            raise errors.Refused(f'{type(error).__name__}: {error}'
                                 ) from error
        return plan

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
        policy = policies.parse(guest.extra_specs, len(place.cells))
        if policy and any(node.l3_ways for node in policy.nodes):
            raise errors.Refused(
                'the server has ways of the L3 to itself (ghsched:l3_ways), '
                'which are not moved while it runs')
        if policy and any(node.counted_burst(self.accounting)
                          for node in policy.nodes):
            raise errors.Refused(
                'the server has a burst of bandwidth (ghsched:mem_bw_burst), '
                'which is not moved while it runs')
        wanted = {} if policy is None else changes.shares(
            policy, self.accounting,
            [cell.host_node for cell in move.after], guest.compute_node)
        return Plan(guest, move_messages.Request(
            move, {node: cell.shared for node, cell in place.host.items()}),
            {provider: share for provider, share in wanted.items() if share})

    def _check_room(self, plan: Plan) -> None:
        if plan.wanted:
            self.shares_of(plan.guest, tuple(
                cell.host_node for cell in plan.request.move.after)
            ).check_room(plan.wanted)
