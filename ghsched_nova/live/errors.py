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

"""Why a guest keeps the policy that it has."""

from collections.abc import Sequence


class Refused(Exception):  # noqa: N818
    """The change is refused, and all is as it was; says by whom and why.

    :param reason: for an admin; may name hosts and their nodes.
    :param public: for the owner of the server, who must not know them; empty
        where the owner gets no reason.
    """

    def __init__(self, reason: str = '', public: str = '') -> None:
        super().__init__(reason)
        self.public = public


class RefusedByState(Refused):
    """A refusal for the state of the server, which its owner knows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, reason)


class Gone(Refused):
    """There is no such guest any more."""


class HalfDone(Refused):
    """A host refused, and could not put back all that it had changed."""


class HostSilent(Exception):  # noqa: N818
    """A compute host did not answer in time; what it did is unknown."""


class LeftOver(Exception):  # noqa: N818
    """The change failed, and not all could be put back.

    :param reason: why the change failed.
    :param left: what an admin has to do, one sentence each.
    """

    def __init__(self, reason: str, left: Sequence[str]) -> None:
        super().__init__(reason, tuple(left))
        self.reason = reason
        self.left = tuple(left)

    def __str__(self) -> str:
        return '\n'.join([self.reason, *(f'- {one}' for one in self.left)])
