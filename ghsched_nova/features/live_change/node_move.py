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

"""Moves a running guest to other NUMA nodes of its host, as a client.

Reserves the new nodes in Placement, calls the host, then releases the old
nodes. Uses no Nova object and no wire format; Records, Host and
GuestAllocation are passed in.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn
from typing import Protocol
import uuid

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import change
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import rollback
from ghsched_placement.features import declared_cpus
from ghsched_placement.features.live_change import change as changes
from ghsched_placement.features.live_change import node_move
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.providers import names


@dataclass(frozen=True)
class GuestLocation:
    """Nova's records of a guest's NUMA nodes and of its host's NUMA nodes.

    :param guest_cells: NUMA nodes of the guest, each with its host NUMA node.
    :param host_cells: free CPUs and memory by host NUMA node.
    :param devices: PCI addresses of the guest's passthrough devices.
    """

    guest: change.GuestRecord
    guest_cells: tuple[GuestCell, ...]
    host_cells: Mapping[int, HostCell]
    devices: tuple[str, ...] = ()


class NodeMoveRecords(rollback.ServerLock, Protocol):
    """Reader of Nova's records of one guest, which can also lock the server.
    """

    def read_guest_nodes(self) -> GuestLocation:
        """Read the NUMA nodes of a guest and its host from Nova's records.

        :raises Refused: if the guest cannot be moved now.
        """


class NodeMoveClient(Protocol):
    """Client of the guest's compute host.

    Implemented by
    :class:`ghsched_nova.features.live_change.rpcapi.HostClient`.
    """

    def check_move(self, guest: change.GuestRecord,
                   move: move_messages.PackedMove) -> None:
        """Ask a compute host whether it can move a guest between NUMA nodes.

        :raises Refused: with the reason of the host.
        :raises HostSilent: if the host does not answer.
        """

    def move_nodes(self, guest: change.GuestRecord,
                   move: move_messages.PackedMove,
                   call_id: str, lock_id: str) -> None:
        """Ask a compute host to move a guest between the host's NUMA nodes.

        The host also updates Nova's record of the guest. On an error, it moves
        the guest back.

        :param call_id: ID of this call, by which it can be cancelled.
        :param lock_id: ID of the lock that the server must still have.
        """

    def cancel_call(self, guest: change.GuestRecord, call_id: str) -> object:
        """Cancel a pending call of :meth:`move_nodes` to a compute host.

        A call is pending until the host begins to carry it out.

        :param call_id: ID of the call to cancel.
        """


@dataclass(frozen=True)
class NodeMovePlan:
    """Plan of a move of a guest between host NUMA nodes.

    :param amounts_before: amounts in the guest's allocation before the move,
        by provider and resource class.
    :param amounts_after: amounts in the allocation after the move.
    """

    guest: change.GuestRecord
    request: move_messages.MoveRequest
    amounts_before: changes.Amounts
    amounts_after: changes.Amounts

    @property
    def is_needed(self) -> bool:
        """Whether the guest must be moved, or its allocation corrected.

        The allocation must be corrected after an interrupted move, which
        leaves both the old and the new NUMA nodes allocated in Placement.
        """
        return (self.request.move.is_needed
                or self.amounts_before != self.amounts_after)

    @property
    def host_nodes(self) -> tuple[int, ...]:
        """Numbers of all NUMA nodes of a guest's host."""
        return tuple(self.request.shared_cpus)


@dataclass(frozen=True)
class NodeMover:
    """Moves one guest to other NUMA nodes of its host.

    :param records: Nova's records of the guest.
    :param make_allocation_client: function that returns a client of the
        guest's allocation in Placement on given host NUMA nodes.
    :param host: client of the guest's compute host.
    :param accounting: ``[ghsched]bandwidth_accounting``.
    """

    records: NodeMoveRecords
    make_allocation_client: Callable[[change.GuestRecord, tuple[int, ...]],
                                     change.AllocationClient]
    host: NodeMoveClient
    accounting: Accounting

    def plan_move(self, new_nodes: Mapping[int, int]) -> NodeMovePlan:
        """Check whether a guest can move to other NUMA nodes of its host.

        Nothing is changed.

        :param new_nodes: new host NUMA node by guest NUMA node.
        :returns: plan of the move.
        :raises Refused: with the reason why the guest cannot move.
        """
        try:
            plan = self._plan(new_nodes)
            if plan.request.move.is_needed:
                if plan.amounts_after:
                    self._make_allocation_client(plan).check_capacity(
                        plan.amounts_after)
                self.host.check_move(plan.guest,
                                     move_messages.pack_move(plan.request))
        except errors.Refused:
            raise
        except (node_move.NotMovable, errors.HostSilent,
                policies.PolicyError) as error:
            raise errors.Refused(str(error)) from error
        except Exception as error:
            raise errors.Refused(rollback.describe_error(error)) from error
        return plan

    def move_guest(self, new_nodes: Mapping[int, int]) -> NodeMovePlan:
        """Move a guest to other NUMA nodes of its host.

        Old and new nodes are allocated in Placement during the move. Nothing
        is written if guest and allocation are on the new nodes already.

        :param new_nodes: new host NUMA node by guest NUMA node.
        :raises Refused: if the move failed, and nothing is changed.
        :raises RollbackIncomplete: if something is left to do by hand.
        """
        plan = self.plan_move(new_nodes)
        if not (plan.is_needed or plan.guest.abandoned):
            return plan
        with rollback.lock_idle_guest(self.host, plan.guest,
                                      self.records) as undo:
            # Check again: only the lock keeps others from changing the guest.
            plan = self.plan_move(new_nodes)
            self._carry_out(plan, undo)
        left = self.records.unlock_server()
        if left:
            raise errors.RollbackIncomplete('the server was moved', [left])
        return plan

    def _carry_out(self, plan: NodeMovePlan, undo: rollback.Rollback) -> None:
        if plan.amounts_after:
            allocation = self._make_allocation_client(plan)
            undo.steps.append(lambda: rollback.restore_allocated_amounts(
                allocation.write_amounts, plan.amounts_before))
            allocation.write_amounts(changes.merge_by_larger_amount(
                plan.amounts_before, plan.amounts_after))
        if plan.request.move.is_needed:
            self._move(plan, undo)
        # The guest is on its new nodes: from here on nothing is rolled back.
        undo.steps.clear()
        self._release_old_nodes(plan)

    def _move(self, plan: NodeMovePlan, undo: rollback.Rollback) -> None:
        call_id = str(uuid.uuid4())
        try:
            self.host.move_nodes(plan.guest, move_messages.pack_move(
                plan.request), call_id, undo.lock_id)
        except errors.HostSilent as silent:
            self._resolve_unanswered_call(plan, call_id, silent, undo)
        except BaseException as error:
            if (isinstance(error, errors.Refused)
                    and not isinstance(error, errors.HostRollbackFailed)):
                raise    # the guest is on its old NUMA nodes
            self._keep_both_allocations(plan, error, undo)

    def _resolve_unanswered_call(
        self, plan: NodeMovePlan, call_id: str, timeout: errors.HostSilent,
        undo: rollback.Rollback
    ) -> None:
        """Find out whether a host that did not answer has moved the guest.

        The call is cancelled if the host has not begun it. The method returns
        normally if Nova's record of the guest has the new NUMA nodes.

        :param timeout: error of the call.
        :param undo: undo steps of the move. They are all removed if the result
            stays unknown.
        :raises Refused: if the guest is on its old NUMA nodes.
        :raises RollbackIncomplete: if the host does not answer the
            cancellation either, or refuses it, or if Nova's record cannot be
            read; with the steps left to do by hand.
        """
        try:
            self.host.cancel_call(plan.guest, call_id)
            cells = self.records.read_guest_nodes().guest_cells
        except BaseException:
            self._keep_both_allocations(plan, timeout, undo)
        if [cell.host_node for cell in cells] != [
                cell.host_node for cell in plan.request.move.after]:
            raise errors.Refused(f'{timeout}; the server has not been moved')

    def _keep_both_allocations(self, plan: NodeMovePlan, error: BaseException,
                               undo: rollback.Rollback) -> NoReturn:
        """Keep the old and the new NUMA nodes allocated after a failed move.

        It is unknown on which of them the guest is.

        :param error: error of the move.
        :param undo: undo steps of the move, which are removed.
        :raises RollbackIncomplete: with the steps left to do by hand.
        """
        undo.steps.clear()
        raise errors.RollbackIncomplete(
            rollback.describe_error(error),
            self._describe_manual_steps(plan)) from error

    def _release_old_nodes(self, plan: NodeMovePlan) -> None:
        try:
            if plan.amounts_after:
                self._make_allocation_client(plan).write_amounts(
                    plan.amounts_after)
        except errors.GuestGone:
            return
        except Exception as error:
            raise errors.RollbackIncomplete(
                f'the server was moved: {rollback.describe_error(error)}',
                [self._describe_leftover_allocation(plan)]) from error

    @staticmethod
    def _describe_manual_steps(plan: NodeMovePlan) -> list[str]:
        """Return the steps left to do by hand if a move's result is unknown.
        """
        state = ('the server is on its old NUMA nodes, on its new NUMA nodes, '
                 f'or on both, of the host {plan.guest.host}; when '
                 'nova-compute runs there again, it finishes or undoes the '
                 'move')
        if plan.amounts_before == plan.amounts_after:
            return [state]
        return [f'{state}. In Placement the server has allocations on the old '
                'and on the new NUMA nodes; afterwards run "openstack ghsched '
                'audit --fix", or this command again, to remove the one that '
                'is not needed']

    @staticmethod
    def _describe_leftover_allocation(plan: NodeMovePlan) -> str:
        return ('in Placement the server still has its allocation on the old '
                f'NUMA nodes of the host {plan.guest.host}; run "openstack '
                'ghsched audit --fix", or this command again, to remove it')

    def _make_allocation_client(self, plan: NodeMovePlan
                                ) -> change.AllocationClient:
        return self.make_allocation_client(plan.guest, plan.host_nodes)

    def _plan(self, new_nodes: Mapping[int, int]) -> NodeMovePlan:
        place = self.records.read_guest_nodes()
        guest = place.guest
        if not guest.running:
            raise errors.Refused('the server is not running; only a running '
                                 'one can be moved between NUMA nodes')
        if not place.guest_cells:
            raise errors.Refused(
                'the server has no NUMA nodes (hw:numa_nodes), so Nova has '
                'not placed it on NUMA nodes of its host')
        move = node_move.plan_node_move(place.guest_cells, place.host_cells,
                                        new_nodes, place.devices,
                                        declared_cpus.find_cpu_choice(
                                            guest.extra_specs))
        before, after = self._compute_amounts_before_and_after(
            place, [cell.host_node for cell in move.after]
        )
        return NodeMovePlan(guest, move_messages.MoveRequest(
            move, {node: cell.shared
                   for node, cell in place.host_cells.items()}),
            before, after)

    def _compute_amounts_before_and_after(
        self, place: GuestLocation, new_nodes: Sequence[int]
    ) -> tuple[changes.Amounts, changes.Amounts]:
        """Return a guest's allocated amounts before and after a move.

        All resources that are allocated on a NUMA node move with the guest.
        Both results are empty if the guest has no such resources.

        :param place: Nova's records of the guest before the move.
        :param new_nodes: new host NUMA node of each guest NUMA node.
        """
        guest = place.guest
        policy = policies.parse_policy(
            guest.extra_specs, len(place.guest_cells), guest.vcpus)
        if policy is None or not policy.get_resources_by_node(self.accounting):
            return {}, {}
        after = changes.compute_allocation_amounts(
            policy,
            self.accounting,
            new_nodes,
            guest.compute_node,
            names.NODE_CLASSES,
        )
        before = self.make_allocation_client(
            guest, tuple(place.host_cells)
        ).read_allocated_amounts()
        return before, {key: after.get(key, 0) for key in before}
