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

"""Changes of guests' threads and interrupts, and problems with them.

Threads and interrupts of guests are reported alike.
"""

from dataclasses import dataclass
from typing import Generic
from typing import Protocol
from typing import TypeVar

Action = TypeVar('Action')


class Change(Protocol):
    """Change of a guest's thread or interrupt, as commands print it."""

    @property
    def kind(self) -> str:
        """Kind of the change, such as ``set class``."""

    @property
    def uuid(self) -> str:
        """UUID of the guest."""

    @property
    def subject(self) -> str:
        """Thread or interrupt that is changed."""

    @property
    def line(self) -> str:
        """Text of the value to set."""

    @property
    def threads(self) -> tuple[int, ...]:
        """Kernel ids of the threads that are changed."""

    @property
    def details(self) -> str:
        """Text for admins: thread or interrupt that is changed, and its value.
        """

    @property
    def reason(self) -> str:
        """Text for the log: the value that is found before the change."""


@dataclass(frozen=True)
class Problem:
    """Reason why a guest's policy cannot be enforced in part.

    :param uuid: UUID of the guest.
    """

    uuid: str
    reason: str

    def __str__(self) -> str:
        return f'guest {self.uuid}: {self.reason}'


@dataclass(frozen=True)
class ChangeReport(Generic[Action]):
    """Changes that were made or are planned, and problems that prevent others.
    """

    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()
