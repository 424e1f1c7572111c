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

"""Rolls a failed change or move of a locked server back."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
from typing import Any
from typing import NoReturn
from typing import Protocol
import uuid

from ghsched_nova.base import action_errors as errors
from ghsched_placement.features.live_change import change as changes
from ghsched_placement.flavor import policy as policies

#: Function that undoes a step of a change. It returns the steps left to do by
#: hand; empty if there are none.
UndoStep = Callable[[], str]


class ServerLock(Protocol):
    """Lock of a server, which keeps other requests from changing it.

    The lock is a task state in Nova's record of the server.
    """

    def lock_server(self) -> str:
        """Lock the server.

        :returns: ID of the lock.
        :raises Refused: if the server cannot be locked.
        """

    def check_lock(self) -> None:
        """Refuse to go on if another request has taken over the server's lock.

        :raises Refused: if so.
        """

    def unlock_server(self) -> str:
        """Unlock the server; never raises.

        :returns: steps left to do by hand; empty if there are none.
        """


@dataclass(frozen=True)
class Rollback:
    """Undo steps of a change of a server that is in progress.

    :ivar lock_id: ID of the server's lock.
    :ivar steps: one undo step for each finished step of the change, in the
        order of these steps.
    """

    lock_id: str
    steps: list[UndoStep]


class CancellingHostClient(Protocol):
    """Client of a compute host that can cancel calls to the host."""

    def cancel_call(self, guest: Any, call_id: str) -> object:
        """Cancel a pending call, or wait until a call that has begun ends."""


def _wait_for_abandoned_call(host: CancellingHostClient, guest: Any) -> None:
    """Wait until a compute host has finished the call of an abandoned change.

    Nothing is done if the server has no abandoned lock. The lock is taken over
    only when the host is idle. The function is called again afterwards,
    because an old call may have begun in between; later ones are refused.

    :param guest: the guest, a
        :class:`ghsched_nova.features.live_change.change.GuestRecord`.
    :raises Refused: if the host does not answer; the lock is kept.
    """
    if not (guest.abandoned and guest.running):
        return
    try:
        host.cancel_call(guest, str(uuid.uuid4()))
    except errors.HostSilent as error:
        raise errors.Refused(
            'an earlier change of the server did not end, and the host may '
            f'still carry it out: {error}') from error


@contextlib.contextmanager
def lock_idle_guest(host: CancellingHostClient, guest: Any,
                    server: ServerLock) -> Iterator[Rollback]:
    """Within this context, lock a server; roll back if an error is raised.

    The host must have finished all calls of an earlier, abandoned change.

    The context yields a list of undo steps. Before each step of a change, the
    caller appends the undo step for it. After an error the undo steps run, the
    last one first, and the server is unlocked. An undo step may replace those
    that have not run yet. Without an error, the server stays locked.

    :param guest: the guest, a
        :class:`ghsched_nova.features.live_change.change.GuestRecord`.
    :raises Refused: if the host does not answer, or if the change has been
        undone completely.
    :raises RollbackIncomplete: if something is left to do by hand.
    """
    _wait_for_abandoned_call(host, guest)
    with _lock_and_roll_back_on_error(server) as undo:
        _wait_for_abandoned_call(host, guest)
        yield undo


@contextlib.contextmanager
def _lock_and_roll_back_on_error(server: ServerLock) -> Iterator[Rollback]:
    """Within this context, lock a server; roll back if an error is raised.

    :param server: lock of the server.
    :raises Refused: if the change has been undone completely.
    :raises RollbackIncomplete: if something is left to do by hand.
    """
    steps: list[UndoStep] = []
    try:
        yield Rollback(server.lock_server(), steps)
    except BaseException as error:
        texts = []
        if isinstance(error, errors.TakenOver):
            # The request that has the lock has read the present state.
            steps.clear()
        while steps:
            texts.append(_run_undo_step(steps.pop()))
        texts.append(_run_undo_step(server.unlock_server))
        _raise_error_of_change(error, [text for text in texts if text])


def _run_undo_step(step: UndoStep) -> str:
    """Run one undo step of a failed change; never raises.

    :returns: steps left to do by hand; empty if there are none.
    """
    try:
        return step()
    except Exception as error:
        return f'a step of the rollback failed: {describe_error(error)}'


def _raise_error_of_change(error: BaseException,
                           manual_steps: list[str]) -> NoReturn:
    """Raise the error of a change that has been rolled back.

    :param error: error of the step that failed.
    :param manual_steps: steps that the rollback left to do by hand.
    """
    if isinstance(error, errors.RollbackIncomplete):
        raise errors.RollbackIncomplete(
            error.reason, [*error.manual_steps, *manual_steps]) from error
    if manual_steps:
        raise errors.RollbackIncomplete(describe_error(error),
                                        manual_steps) from error
    if isinstance(error, (errors.Refused, policies.PolicyError)):
        raise error
    if isinstance(error, Exception):
        raise errors.Refused(describe_error(error)) from error
    raise error


def restore_allocated_amounts(
        write_amounts: Callable[[changes.Amounts], bool],
        amounts: changes.Amounts) -> str:
    """Restore a guest's former amounts in its allocation in Placement.

    :param write_amounts: function that writes the guest's allocation.
    :param amounts: former amount by provider and resource class.
    :returns: steps left to do by hand; empty if there are none.
    """
    try:
        write_amounts(amounts)
    except errors.GuestGone:
        return ''
    except errors.Refused as error:
        return ("cannot restore the server's allocation in Placement "
                f'({error}); set it to '
                + ', '.join(f'{amount} {name} of {provider}' for
                            (provider, name), amount in amounts.items()))
    return ''


def describe_error(error: BaseException) -> str:
    """Return an error's text, preceded by its class if necessary.

    The class is left out for ghsched's own errors, whose text suffices.
    """
    known = isinstance(error, (errors.Refused, errors.HostSilent,
                               policies.PolicyError))
    return str(error) if known else f'{type(error).__name__}: {error}'
