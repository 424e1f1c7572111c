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

"""Files and directories of the emulated file system."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ghsched_nova.lab.emulator import groups as grouplib


@dataclass(frozen=True)
class Entry:
    """A file or directory: a directory has ``children``, a file ``read``.

    :param operation: name of a read in the fault file.
    :param keeps_status: whether a write leaves last_cmd_status as it is.
    :param clears_status: whether a read clears it.
    """

    mode: int
    children: 'Callable[[], dict[str, Entry]] | None' = None
    read: Callable[[], str] | None = None
    write: Callable[[str, int], None] | None = None
    group: grouplib.Group | None = None
    role: Literal['group', 'mon_groups', 'other'] = 'other'
    operation: str = 'read'
    keeps_status: bool = False
    clears_status: bool = False


def directory(children: Callable[[], dict[str, Entry]]) -> Entry:
    """Return a directory in which nothing can be made."""
    return Entry(0o555, children=children)


def constant(text: str) -> Entry:
    """Return a file with constant content."""
    return Entry(0o444, read=lambda: text)
