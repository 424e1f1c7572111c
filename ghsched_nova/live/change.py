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

"""Change a guest's policy: in Placement, on its host, in Nova's records.

In this order, because Placement is where room is given out: nobody else can
take what the host is about to hold. If a later step refuses, the earlier ones
are taken back, the latest first. Knows no Nova object and no wire; what it
works with is given to it.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import NoReturn
from typing import Protocol
import uuid

from ghsched_nova.live import errors
from ghsched_nova.live import messages
from ghsched_placement import change as changes
from ghsched_placement import names
from ghsched_placement import policy as policies
from ghsched_placement.policy import Accounting
from ghsched_placement.policy import GuestPolicy

#: A policy as it crosses, see :mod:`ghsched_nova.live.messages`.
Packed = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Guest:
    """What Nova has on record.

    :param compute_node: UUID of its compute node, which is that of the root
        provider, too.
    :param host_nodes: host NUMA node of each guest NUMA node.
    :param extra_specs: of its own copy of the flavor.
    :param running: whether it has a QEMU process.
    :param vcpus: how many it has.
    :param left: UUIDs of compute nodes that it was evacuated from, and that
        have not come back since; it holds their resources until they do.
    """

    uuid: str
    name: str
    host: str
    compute_node: str
    host_nodes: tuple[int, ...]
    extra_specs: Mapping[str, str]
    running: bool
    left: tuple[str, ...] = ()
    vcpus: int = 0


class Records(Protocol):
    """Nova's databases, for one guest."""

    def read(self) -> Guest:
        """:raises Refused: when the guest cannot be changed now."""

    def lock(self) -> str:
        """Keep everybody else from starting something with the guest.

        :returns: what tells this lock from any other.
        :raises Refused: when something else has begun.
        """

    def unlock(self) -> str:
        """Give it free; says what to do by hand when that fails."""

    def save(self, extra_specs: Mapping[str, str]) -> None:
        """Put these into its flavor and unlock, or leave all as it was.

        :raises LeftOver: when it could do neither.
        """


class Host(Protocol):
    """The compute host, see :class:`ghsched_nova.rpcapi.HostClient`.

    Each call may raise HostSilent, and Refused with the host's reason.
    """

    def check(self, guest: Guest, policy: Packed) -> dict[str, Any]:
        """``policy`` that the guest has, ``same``, ``effective``, ``guests``.

        A host of an older release does not tell the last one.
        """

    def set(self, guest: Guest, policy: Packed, token: str,
            lock: str) -> None:
        """Have the guest run with a policy, while it has this lock.

        :raises HalfDone: when it did not, and could not put all back.
        """

    def policy_of(self, guest: Guest, void: str) -> Packed | None:
        """The policy that it runs with; forget a call of :meth:`set`."""


class Shares(Protocol):
    """See :class:`ghsched_nova.live.placement.Shares`."""

    def held(self) -> dict[tuple[str, str], int]:
        """Amount by provider and resource class."""

    def put(self, wanted: changes.Amounts) -> bool:
        """Have Placement hold these."""

    def check_room(self, wanted: changes.Amounts) -> None:
        """Whether it could."""

    def check_traits(self, compute_node_uuid: str,
                     policy: GuestPolicy) -> None:
        """Whether the host can hold a policy."""


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    :param held: percent that Placement holds now.
    :param wanted: percent that it is to hold.
    :param running: policy that the guest runs with; None when it does not.
    :param effective: what the host makes of the policy, one entry per resctrl
        domain: ``guest_node``, ``host_node``, ``domain``, ``min``, ``max``
        (percent), ``hardlimit`` and ``priority``, None for what it has not.
        The values are those of the guest's control group.
    :param needed: whether anything is to be done at all.
    :param guests: how many guests have that group together.
    """

    guest: Guest
    change: changes.Change
    held: changes.Amounts
    wanted: changes.Amounts
    running: Packed | None
    effective: Sequence[Mapping[str, Any]]
    needed: bool
    guests: int = 1

    @property
    def packed(self) -> Packed:
        return messages.pack(self.change.after.nodes, self.guest.host_nodes)


@dataclass
class LiveChange:
    """One change of one guest.

    :param shares_of: what Placement holds for a guest.
    :param accounting: ``[ghsched]bandwidth_accounting``.
    """

    records: Records
    shares_of: Callable[[Guest], Shares]
    host: Host
    accounting: Accounting
    _undo: list[Callable[[], str]] = field(default_factory=list)
    _lock: str = ''
    _host_may_differ: bool = False

    def run(self, wish: changes.Wish, dry_run: bool = False) -> Plan:
        """Do it, or find out whether it could be done.

        A wish that is fulfilled already writes nothing.

        :raises PolicyError: naming the key that is wrong.
        :raises Refused: all is as it was.
        :raises LeftOver: it is not, and there is something to do by hand.
        """
        self._undo, self._host_may_differ = [], False
        plan = self._first_look(wish, dry_run)
        if dry_run or not plan.needed:
            return plan
        try:
            self._lock = self.records.lock()
            # Once more: only now nobody else can change the guest.
            plan = self._plan(wish)
            self._carry_out(plan)
        except BaseException as error:
            self._give_up(error)
        return plan

    def _first_look(self, wish: changes.Wish, dry_run: bool) -> Plan:
        """Whatever goes wrong here, nothing has been done."""
        try:
            plan = self._plan(wish)
            if dry_run and plan.needed:
                self.shares_of(plan.guest).check_room(plan.wanted)
        except (errors.Refused, policies.PolicyError):
            raise
        except Exception as error:
            raise errors.Refused(reason(error)) from error
        return plan

    def _plan(self, wish: changes.Wish) -> Plan:
        guest = self.records.read()
        change = changes.check_change(guest.extra_specs, wish,
                                      len(guest.host_nodes))
        if not change.after.controlled:
            raise policies.PolicyError(
                changes.to_extra_spec(next(iter(wish), 'mem_bw_max')),
                'the guest has no policy that could change')
        shares = self.shares_of(guest)
        shares.check_traits(guest.compute_node, change.after)
        answer = self._asked(guest, change)
        held = shares.held()
        wanted = changes.compute_amounts(
            change.after, self.accounting, guest.host_nodes,
            guest.compute_node, {names.MEM_BW_PCT})
        return Plan(
            guest, change, held, wanted, answer['policy'],
            answer['effective'],
            needed=(dict(guest.extra_specs) != dict(change.extra_specs)
                    or held != wanted
                    or (guest.running and not answer['same'])),
            guests=answer.get('guests', 1))

    def _asked(self, guest: Guest, change: changes.Change) -> dict[str, Any]:
        try:
            return self.host.check(guest, messages.pack(change.after.nodes,
                                                        guest.host_nodes))
        except errors.HostSilent as error:
            raise errors.Refused(str(error)) from error

    # -- doing ----------------------------------------------------------------

    def _carry_out(self, plan: Plan) -> None:
        shares = self.shares_of(plan.guest)
        self._undo.append(lambda: self._room_back(plan))
        # What the guest gives up could be somebody else's before the host has
        # refused, and then it could not go back.
        shares.put(changes.take_maxima(plan.held, plan.wanted))
        if plan.guest.running:
            self._set(plan)
        shares.put(plan.wanted)
        self.records.save(plan.change.extra_specs)

    def _set(self, plan: Plan) -> None:
        token = str(uuid.uuid4())
        self._undo.append(lambda: self._set_back(plan, token))
        try:
            self.host.set(plan.guest, plan.packed, token, self._lock)
        except errors.HalfDone:
            raise              # and is asked once more to put all back
        except errors.Refused:
            self._undo.pop()   # the host has put back what it had
            raise
        except errors.HostSilent as silent:
            self._after_silence(plan, token, silent)

    def _after_silence(self, plan: Plan, token: str,
                       silent: errors.HostSilent) -> None:
        """Find out what the host did, and see that it does nothing later."""
        try:
            now = self.host.policy_of(plan.guest, token)
        except errors.Gone:
            self._undo.pop()
            raise
        except (errors.HostSilent, errors.Refused):
            self._undo = [lambda: self._keep_both(plan)]
            raise silent from None
        if now == plan.packed:
            return
        self._undo.pop()
        raise errors.Refused(f'{silent}; it has kept the old policy')

    # -- undoing --------------------------------------------------------------

    def _give_up(self, error: BaseException) -> NoReturn:
        """Put back what was done, and tell what cannot be."""
        steps, self._undo = self._undo, []
        give_up(error, steps, self.records.unlock)

    def _set_back(self, plan: Plan, token: str) -> str:
        try:
            self.host.policy_of(plan.guest, token)
            self.host.set(plan.guest, plan.running or (),
                          str(uuid.uuid4()), self._lock)
        except errors.Gone:
            return ''
        except Exception as error:
            self._host_may_differ = True
            return (f'the host {plan.guest.host} may still hold the new '
                    f'policy ({reason(error)}), and Placement holds the '
                    'larger share of both; give the server the old values '
                    'with this command, or hard reboot it before that')
        return ''

    def _room_back(self, plan: Plan) -> str:
        """What the host may hold must not be given to somebody else."""
        held = plan.held
        if self._host_may_differ:
            held = changes.take_maxima(held, plan.wanted)
        return put_back(self.shares_of(plan.guest), held)

    def _keep_both(self, plan: Plan) -> str:
        """Nobody knows which policy holds: Placement has room for either."""
        told = put_back(self.shares_of(plan.guest),
                        changes.take_maxima(plan.held, plan.wanted))
        return ' '.join(filter(None, [
            f'whether the host {plan.guest.host} has the new policy is not '
            'known; Placement holds the larger share of both, and the flavor '
            'of the server is as before. When the host is back, run this '
            'command again with the new or the old values.', told]))


def give_up(error: BaseException, undo: Sequence[Callable[[], str]],
            unlock: Callable[[], str]) -> NoReturn:
    """Take back what was done, and tell what could not be.

    :param undo: the steps back, in the order in which things were done.
    :raises Refused: all is as it was.
    :raises LeftOver: it is not.
    """
    # Newest first, the lock last of all.
    left = [_tried(step) for step in (*reversed(undo), unlock)]
    left = [one for one in left if one]
    if isinstance(error, errors.LeftOver):
        raise errors.LeftOver(error.reason, [*error.left, *left]) from error
    if left:
        raise errors.LeftOver(reason(error), left) from error
    if isinstance(error, (errors.Refused, policies.PolicyError)):
        raise error
    if isinstance(error, Exception):
        raise errors.Refused(reason(error)) from error
    raise error


def put_back(shares: Shares, held: changes.Amounts) -> str:
    """Have Placement hold what it held; return what is left to do by hand."""
    try:
        shares.put(held)
    except errors.Gone:
        return ''
    except errors.Refused as error:
        return (f'Placement holds another share for the server than before '
                f'({error}); it should be '
                + ', '.join(f'{amount} {name} of {provider}' for
                            (provider, name), amount in held.items()))
    return ''


def _tried(step: Callable[[], str]) -> str:
    """One step back; whatever happens, the others are taken, too."""
    try:
        return step()
    except Exception as error:
        return f'a step back failed: {reason(error)}'


def reason(error: BaseException) -> str:
    """Why something failed, in words."""
    known = isinstance(error, (errors.Refused, errors.HostSilent,
                               policies.PolicyError))
    return str(error) if known else f'{type(error).__name__}: {error}'
