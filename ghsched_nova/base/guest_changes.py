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

"""Changes to what guests have of the kernel, and problems that prevent them.

Threads and interrupts of guests are reported alike.
"""

from dataclasses import dataclass
from typing import Generic
from typing import TypeVar

Action = TypeVar('Action')


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
class Report(Generic[Action]):
    """Changes that were or are to be made, and problems that prevent others.
    """

    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()
