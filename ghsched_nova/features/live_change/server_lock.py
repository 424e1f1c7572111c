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

"""Lock of a server during a policy change or a move inside its host.

The lock is a task state in Nova's record of the server. It says when it was
taken, by which host, and after how many seconds its owner has certainly given
up. Then a later change or move may take it over.
"""

from dataclasses import dataclass
import time
from typing import Any
from typing import Self
import uuid

from nova.compute import task_states

from ghsched_placement.base import decimals

#: Task state that locks a server against other operations of Nova, and that a
#: restarted nova-compute clears (``ComputeManager._init_instance``). Nova uses
#: it for a guest whose flavor is about to change.
LOCKED = task_states.RESIZE_PREP

#: Key of the lock in the system metadata of the instance.
_KEY = 'ghsched_change'

#: Progress of the instance while it is locked, from 1 on; each owner has
#: another. Nova's resize has the same task state, and begins with 0
#: (``nova.compute.api.API.resize``).
_MOST_PROGRESS = 99

#: Maximum length of a host name in the lock; Nova's database permits 255
#: characters for all of it.
_HOST_LENGTH = 150


@dataclass(frozen=True)
class Lock:
    """Lock of a server.

    :param token: ID of the lock's owner, one change or move.
    :param since: seconds since the epoch when the lock was taken.
    :param duration: seconds after which the owner has given up.
    :param host: host of the owner; empty if unknown.
    """

    token: str
    since: int
    duration: int
    host: str

    @classmethod
    def make(cls, duration: int, host: str) -> Self:
        """Return a new lock that begins now."""
        return cls(str(uuid.uuid4()), int(time.time()), duration,
                   host[:_HOST_LENGTH])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the text of a lock; return None if it is malformed."""
        parts = text.split(' ', 3)
        if len(parts) != 4:
            return None
        since, duration = map(decimals.parse_decimal, parts[1:3])
        if since is None or duration is None:
            return None
        return cls(parts[0], since, duration, parts[3])

    @property
    def text(self) -> str:
        """Reason of the lock in Nova's record, also used as its ID in RPC."""
        return f'{self.token} {self.since} {self.duration} {self.host}'

    @property
    def age(self) -> int:
        """Seconds since the lock was taken.

        A time in the future, by a wrong clock of the owner, counts as if it
        were past, so that no lock lasts forever.
        """
        return abs(int(time.time()) - self.since)

    @property
    def is_abandoned(self) -> bool:
        """Whether the owner has given up without unlocking the server."""
        return self.age > self.duration


def is_locked(instance: Any, lock_id: str) -> bool:
    """Whether a server is still locked by the given lock.

    :param lock_id: ID of the lock of a policy change or move.
    """
    return bool(_is_locked_by_any(instance)
                and instance.system_metadata.get(_KEY) == lock_id)


def read_lock(instance: Any) -> Lock | None:
    """Return the lock of a server; None if no change or move has locked it."""
    if not _is_locked_by_any(instance):
        return None
    return Lock.parse(instance.system_metadata.get(_KEY, ''))


def _is_locked_by_any(instance: Any) -> bool:
    return bool(instance.task_state == LOCKED and instance.progress)


def make_lock_columns(instance: Any, lock: Lock) -> dict[str, Any]:
    """Return the columns of Nova's record that lock a server.

    The progress differs from that of the present lock, so that only one of
    several requests can take over a lock.
    """
    return {
        'task_state': LOCKED,
        'progress': (instance.progress or 0) % _MOST_PROGRESS + 1,
        'system_metadata': {**instance.system_metadata, _KEY: lock.text}}


def clear_lock(instance: Any) -> None:
    """Remove the lock of a policy change or move from an instance's record."""
    instance.task_state = None
    instance.progress = 0
    instance.system_metadata.pop(_KEY, None)
