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

"""Errors of a change of a guest's policy or NUMA nodes."""

from collections.abc import Sequence


class Refused(Exception):  # noqa: N818
    """Raised if a change of a guest is refused; nothing has been changed.

    :param reason: reason for an admin; may name hosts and their nodes.
    :param public: reason that the owner of the server may read, without
        hosts and nodes; empty if the owner gets no reason.
    """

    def __init__(self, reason: str = '', public: str = '') -> None:
        super().__init__(reason)
        self.public = public


class RefusedByState(Refused):
    """Raised if a change is refused because of the server's state.

    The owner of the server may read the reason, because it names only this
    state.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, reason)


class GuestGone(Refused):
    """Raised if a change is refused because the guest no longer exists."""


class TakenOver(Refused):
    """Raised if another change or move has taken over the server's lock."""


class HostRollbackFailed(Refused):
    """Raised if a host failed to change a guest and to undo the change."""


class HostSilent(Exception):  # noqa: N818
    """Raised if a compute host does not answer a call in time.

    The host may or may not have carried out the call.
    """


class RollbackIncomplete(Exception):  # noqa: N818
    """Raised if a failed change could not be rolled back completely.

    :param reason: reason why the change failed.
    :param manual_steps: sentences that describe what an admin has to do.
    """

    def __init__(self, reason: str, manual_steps: Sequence[str]) -> None:
        super().__init__(reason, tuple(manual_steps))
        self.reason = reason
        self.manual_steps = tuple(manual_steps)

    def __str__(self) -> str:
        return '\n'.join([self.reason,
                          *(f'- {step}' for step in self.manual_steps)])
