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

"""Changes a guest's policy: in Placement, on its host, in Nova's records.

At each moment, also after a crash, the host enforces at most what Placement
has allocated. A guarantee is raised in Placement first and then on the host,
and lowered on the host first; so does the rollback, which runs newest step
first. Uses no Nova object and no wire format; Records, Host and
GuestAllocation are passed in.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol
import uuid

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import rollback
from ghsched_placement.features.live_change import change as changes
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.providers import names

#: A policy in wire format, see
#: :mod:`ghsched_nova.features.live_change.messages`.
PackedPolicy = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class GuestRecord:
    """Nova's record of a guest.

    :param compute_node: UUID of the guest's compute node, and of the root
        provider.
    :param host_nodes: host NUMA node of each guest NUMA node.
    :param extra_specs: extra specs of the instance's copy of the flavor.
    :param running: whether the guest has a QEMU process.
    :param vcpus: number of vCPUs.
    :param evacuation_sources: UUIDs of compute nodes that the guest was
        evacuated from and that are still down; the guest holds allocations on
        them until they are back.
    :param abandoned: whether the server is still locked by a change or move
        that must have ended by now.
    """

    uuid: str
    name: str
    host: str
    compute_node: str
    host_nodes: tuple[int, ...]
    extra_specs: Mapping[str, str]
    running: bool
    evacuation_sources: tuple[str, ...] = ()
    vcpus: int = 0
    abandoned: bool = False


class PolicyChangeRecords(rollback.ServerLock, Protocol):
    """Reader and writer of Nova's records of one guest."""

    def read_guest(self) -> GuestRecord:
        """Read a guest's flavor, host and NUMA nodes from Nova's records.

        :raises Refused: if the guest cannot be changed now.
        """

    def save_extra_specs(self, extra_specs: Mapping[str, str]) -> None:
        """Save new extra specs of a server's flavor, and unlock the server.

        The server has been locked for the change. If saving fails, the old
        extra specs are restored.

        :raises RollbackIncomplete: if the old extra specs could not be
            restored.
        """


class PolicyChangeClient(Protocol):
    """Client of the guest's compute host.

    Implemented by
    :class:`ghsched_nova.features.live_change.rpcapi.HostClient`.

    Each method may raise HostSilent, or Refused with the host's reason.
    """

    def check_policy(self, guest: GuestRecord, policy: PackedPolicy
                     ) -> dict[str, Any]:
        """Ask a compute host whether it can enforce a new bandwidth policy.

        :returns: dictionary with the policy of the running guest
            (``policy``), whether it equals the new policy (``same``), the
            values that the host would enforce (``effective``), and the number
            of guests in the control group (``guests``). Hosts of an older
            release omit ``guests``.
        """

    def set_policy(
        self, guest: GuestRecord, policy: PackedPolicy, call_id: str,
        lock_id: str
    ) -> None:
        """Ask a compute host to enforce a guest's new bandwidth policy.

        :param call_id: ID of this call, by which it can be cancelled.
        :param lock_id: ID of the lock that the server must still have.
        :raises HostRollbackFailed: if the host failed and could not restore
            the old policy.
        """

    def cancel_call(self, guest: GuestRecord, call_id: str
                    ) -> PackedPolicy | None:
        """Cancel a pending call to a compute host; return the guest's policy.

        A call is pending until the host begins to carry it out.

        :param call_id: ID of the call to cancel.
        :returns: bandwidth policy that the host enforces for the guest.
        """


class AllocationClient(Protocol):
    """Client that reads and changes a guest's allocation in Placement.

    Implemented by
    :class:`ghsched_nova.features.live_change.placement.GuestAllocation`.
    """

    def read_allocated_amounts(self) -> dict[tuple[str, str], int]:
        """Read a guest's allocated amounts by provider and resource class."""

    def write_amounts(self, amounts: changes.Amounts) -> bool:
        """Change the amounts in a guest's allocation in Placement.

        :param amounts: new amount by provider and resource class. Other
            amounts in the allocation are unchanged.
        :returns: whether the allocation was changed.
        """

    def check_capacity(self, amounts: changes.Amounts) -> None:
        """Refuse amounts for which Placement has too little free capacity.

        :param amounts: new amount of the guest by provider and resource class.
        """

    def check_policy_traits(
        self, compute_node_uuid: str, policy: GuestPolicy
    ) -> None:
        """Refuse a policy that needs Placement traits the compute node lacks.
        """


@dataclass(frozen=True)
class PolicyChangePlan:
    """Plan of a change of a guest's bandwidth policy.

    :param amounts_before: percent of bandwidth in the guest's allocation
        before the change, by provider and resource class.
    :param amounts_after: percent in the allocation after the change.
    :param running: policy of the running guest; None if it is stopped.
    :param effective: values that the host would enforce for the new policy,
        one dictionary per resctrl domain. Its keys are ``guest_node``,
        ``host_node``, ``domain``, ``min``, ``max`` (percent), ``hardlimit``
        and ``priority``. A value that the host cannot set is None.
    :param needed: whether anything has to be changed.
    :param guests: number of guests in the guest's control group.
    """

    guest: GuestRecord
    change: changes.PolicyChange
    amounts_before: changes.Amounts
    amounts_after: changes.Amounts
    running: PackedPolicy | None
    effective: Sequence[Mapping[str, Any]]
    needed: bool
    guests: int = 1

    @property
    def packed_policy(self) -> PackedPolicy:
        """New bandwidth policy of the guest in the wire format of RPC calls.
        """
        return messages.pack_policy(self.change.after, self.guest.host_nodes)


@dataclass(frozen=True)
class PolicyChanger:
    """Changes the bandwidth policy of one guest.

    :param records: Nova's records of the guest.
    :param make_allocation_client: function that returns a client of the
        guest's allocation in Placement.
    :param host: client of the guest's compute host.
    :param accounting: ``[ghsched]bandwidth_accounting``.
    """

    records: PolicyChangeRecords
    make_allocation_client: Callable[[GuestRecord], AllocationClient]
    host: PolicyChangeClient
    accounting: Accounting

    def change_policy(
        self, new_values: changes.RequestedChanges, dry_run: bool = False
    ) -> PolicyChangePlan:
        """Change the bandwidth policy of a server, or only check the change.

        Nothing is written if the server has the policy already, and was not
        left locked.

        :param new_values: new values by key of the policy.
        :param dry_run: only check whether the change is possible.
        :raises PolicyError: naming the invalid key.
        :raises Refused: if the change failed, and nothing is changed.
        :raises RollbackIncomplete: if the change failed, and something is left
            to do by hand.
        """
        plan = self._check_and_plan_change(new_values, dry_run)
        if dry_run or not (plan.needed or plan.guest.abandoned):
            return plan
        with rollback.lock_idle_guest(self.host, plan.guest,
                                      self.records) as undo:
            # Plan again: only the lock keeps others from changing the guest.
            plan = self._plan(new_values)
            self._carry_out(plan, undo)
        return plan

    def _check_and_plan_change(
        self, new_values: changes.RequestedChanges, dry_run: bool
    ) -> PolicyChangePlan:
        """Check a change of a bandwidth policy; return the plan of the change.

        Nothing is changed.

        :raises PolicyError: if a value is invalid.
        :raises Refused: for any other error.
        """
        try:
            plan = self._plan(new_values)
            if dry_run and plan.needed:
                self.make_allocation_client(plan.guest).check_capacity(
                    plan.amounts_after)
        except (errors.Refused, policies.PolicyError):
            raise
        except Exception as error:
            raise errors.Refused(rollback.describe_error(error)) from error
        return plan

    def _plan(self, new_values: changes.RequestedChanges) -> PolicyChangePlan:
        guest = self.records.read_guest()
        change = changes.make_policy_change(
            guest.extra_specs, new_values, len(guest.host_nodes), guest.vcpus
        )
        if not change.after.needs_control_group:
            raise policies.PolicyError(
                changes.get_changeable_extra_spec(
                    next(iter(new_values), 'mem_bw_max')),
                'the guest has no bandwidth policy that could be changed')
        allocation = self.make_allocation_client(guest)
        allocation.check_policy_traits(guest.compute_node, change.after)
        answer = self._check_host(guest, change)
        before = allocation.read_allocated_amounts()
        after = changes.compute_allocation_amounts(
            change.after, self.accounting, guest.host_nodes,
            guest.compute_node, {names.MEM_BW_PCT})
        return PolicyChangePlan(
            guest, change, before, after, answer['policy'],
            answer['effective'],
            needed=(dict(guest.extra_specs) != dict(change.extra_specs)
                    or before != after
                    or (guest.running and not answer['same'])),
            guests=answer.get('guests', 1))

    def _check_host(self, guest: GuestRecord,
                    change: changes.PolicyChange) -> dict[str, Any]:
        try:
            return self.host.check_policy(
                guest,
                messages.pack_policy(change.after, guest.host_nodes))
        except errors.HostSilent as error:
            raise errors.Refused(str(error)) from error

    # -- doing ----------------------------------------------------------------

    def _carry_out(self, plan: PolicyChangePlan, undo: rollback.Rollback
                   ) -> None:
        allocation = self.make_allocation_client(plan.guest)
        undo.steps.append(lambda: self._restore_allocation(plan))
        # Nothing is released before the host has agreed: another guest could
        # take it, and it could not be restored.
        larger = _get_larger_amounts(plan)
        allocation.write_amounts(larger)
        if plan.guest.running:
            self._set(plan, undo)
        if larger != plan.amounts_after:
            self.records.check_lock()
            undo.steps.append(lambda: self._reallocate_amounts(plan, undo))
            allocation.write_amounts(plan.amounts_after)
        self.records.save_extra_specs(plan.change.extra_specs)

    def _set(self, plan: PolicyChangePlan, undo: rollback.Rollback) -> None:
        call_id = str(uuid.uuid4())
        undo.steps.append(
            lambda: self._restore_host_policy(plan, call_id, undo))
        try:
            self.host.set_policy(
                plan.guest, plan.packed_policy, call_id, undo.lock_id
            )
        except errors.HostRollbackFailed:
            raise  # the undo step asks the host to restore again
        except errors.Refused:
            undo.steps.pop()  # the host has restored the old policy
            raise
        except errors.HostSilent as silent:
            self._resolve_unanswered_call(plan, call_id, silent, undo)

    def _resolve_unanswered_call(
        self, plan: PolicyChangePlan, call_id: str, timeout: errors.HostSilent,
        undo: rollback.Rollback
    ) -> None:
        """Find out whether a host that did not answer has set the new policy.

        The call is cancelled if the host has not begun it. The method returns
        normally if the host has set the new policy.

        :param timeout: error of the call.
        :param undo: undo steps of the change. Those that the result makes
            unnecessary are removed.
        :raises Refused: if the host has kept the old policy.
        :raises HostSilent: the given error, if the result stays unknown. The
            only undo step is then to allocate the larger amounts of both
            policies.
        """
        try:
            now = self.host.cancel_call(plan.guest, call_id)
        except errors.GuestGone:
            undo.steps.pop()
            raise
        except (errors.HostSilent, errors.Refused):
            undo.steps[:] = [lambda: self._allocate_larger_amounts(plan)]
            raise timeout from None
        if now == plan.packed_policy:
            return
        undo.steps.pop()
        raise errors.Refused(f'{timeout}; the guest keeps its old policy')

    # -- undoing --------------------------------------------------------------

    def _reallocate_amounts(
        self, plan: PolicyChangePlan, undo: rollback.Rollback
    ) -> str:
        """Allocate the larger amounts of a guest's old and new policy again.

        This rolls back the release of the old amounts, before the host
        enforces the old policy. If another guest has taken the released
        amounts, the host and Placement keep the new policy, which is lower.

        :param undo: undo steps of the change that have not run yet; all are
            removed if the amounts cannot be allocated.
        :returns: steps left to do by hand; empty if there are none.
        """
        try:
            self.make_allocation_client(plan.guest).write_amounts(
                _get_larger_amounts(plan))
        except errors.GuestGone:
            return ''
        except Exception as error:
            undo.steps.clear()
            where = (f'The host {plan.guest.host} enforces the new policy, '
                     'and' if plan.guest.running else 'The server is stopped.')
            return (
                f'{where} Placement has at least the amounts of the new '
                'policy allocated, but not those of the old policy '
                f'({rollback.describe_error(error)}); the flavor of the '
                'server may have the old values. Run this command again with '
                'the new values to complete the change, or with the old '
                'values when Placement can allocate them')
        return ''

    def _restore_host_policy(self, plan: PolicyChangePlan, call_id: str,
                             undo: rollback.Rollback) -> str:
        """Make a host enforce a guest's old bandwidth policy again.

        If the host may still enforce the new policy, the larger amounts of
        both policies are allocated.

        :param call_id: ID of the call that set the new policy, by which it can
            be cancelled.
        :param undo: undo steps of the change that have not run yet. If the
            policy cannot be restored, they are replaced by that allocation.
        :returns: steps left to do by hand; empty if the policy was restored.
        """
        try:
            self.host.cancel_call(plan.guest, call_id)
            self.host.set_policy(
                plan.guest, plan.running or (), str(uuid.uuid4()),
                undo.lock_id
            )
        except errors.GuestGone:
            return ''
        except Exception as error:
            undo.steps[:] = [lambda: self._restore_allocation(
                plan, _get_larger_amounts(plan))]
            return (
                f'the host {plan.guest.host} may still enforce the new '
                f'policy ({rollback.describe_error(error)}). The larger '
                'amounts of the old and the new policy are allocated in '
                'Placement. Run this command with the old values; if it '
                'fails, hard reboot the server before'
            )
        return ''

    def _restore_allocation(self, plan: PolicyChangePlan,
                            amounts: changes.Amounts | None = None) -> str:
        """Restore a guest's allocation after a failed change of its policy.

        :param amounts: amounts to allocate; None for those before the change.
        :returns: steps left to do by hand; empty if there are none.
        """
        return rollback.restore_allocated_amounts(
            self.make_allocation_client(plan.guest).write_amounts,
            plan.amounts_before if amounts is None else amounts)

    def _allocate_larger_amounts(self, plan: PolicyChangePlan) -> str:
        """Allocate the larger amounts of a guest's old and new policy.

        This is used if it is unknown which of the policies the host enforces.

        :returns: steps left to do by hand.
        """
        return ' '.join(filter(None, [
            f'It is unknown whether the host {plan.guest.host} enforces the '
            'new policy. The larger amounts of the old and the new policy are '
            'allocated in Placement; the flavor of the server is unchanged. '
            'When the host is back, run this command again with the new or '
            'the old values.',
            self._restore_allocation(plan, _get_larger_amounts(plan))]))


def _get_larger_amounts(plan: PolicyChangePlan) -> changes.Amounts:
    """Return the larger of the amounts before and after a change of a policy.

    :returns: amount by provider and resource class.
    """
    return changes.merge_by_larger_amount(plan.amounts_before,
                                          plan.amounts_after)
