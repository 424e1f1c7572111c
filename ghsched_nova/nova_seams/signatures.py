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


"""Compare functions of Nova with those that ghsched was written for.

Each process compares its own part of :data:`ghsched_nova.compat.RELIED_ON`
when it starts. A process that a feature cannot work in does not start; a
repair that does not match is left out (:mod:`ghsched_nova.nova_fixes.table`).
"""

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
import functools
import importlib
import inspect
from typing import Any

from nova import version

from ghsched_nova import compat

API = 'nova-api'
SCHEDULER = 'nova-scheduler'
COMPUTE = 'nova-compute'

#: Beginnings of names in :data:`ghsched_nova.compat.RELIED_ON`, by process.
OWNERS: dict[str, tuple[str, ...]] = {
    API: ('nova.policy.', 'nova.compute.api.', 'nova.conductor.api.',
          'nova.limit.', 'nova.objects.flavor.', 'nova.pci.request.'),
    SCHEDULER: ('nova.scheduler.', 'nova.filters.', 'nova.db.',
                'nova.pci.', 'nova.virt.hardware.'),
    COMPUTE: ('nova.virt.', 'nova.compute.resource_tracker.',
              'nova.compute.manager.', 'nova.compute.utils.', 'nova.pci.',
              'nova.compute.provider_tree.')}

#: Parameters of a function whose decorator hides them.
_HIDDEN = ('args', 'kwargs')


@dataclass(frozen=True)
class Mismatch:
    """A function of Nova that differs from what ghsched was written for.

    :param found: its parameters; None if Nova has no such function.
    """

    name: str
    expected: tuple[str, ...]
    found: tuple[str, ...] | None

    def __str__(self) -> str:
        found = ('it is missing' if self.found is None else
                 f'found ({", ".join(self.found)})')
        return f'{self.name}: expected ({", ".join(self.expected)}), {found}'


class SeamsDiffer(Exception):
    """This Nova has other functions than ghsched was written for."""


def release() -> int:
    """Return the major number of the Nova that is installed."""
    return int(version.version_string().partition('.')[0])


def names_of(process: str) -> Iterator[str]:
    """Yield names that a process relies on with this release of Nova."""
    return (name for name in compat.relied_on(release())
            if name.startswith(OWNERS[process]))


def mismatches(names: Iterable[str]) -> tuple[Mismatch, ...]:
    """Return functions that this Nova has otherwise, or does not have."""
    known = compat.relied_on(release())
    found = ((name, known[name], found_parameters(name))
             for name in names if name in known)
    return tuple(Mismatch(*one) for one in found
                 if one[2] not in (one[1], _HIDDEN))


def require(process: str, without: Iterable[str] = ()) -> None:
    """Refuse to start a process that a feature cannot work in.

    :param without: names that repairs alone rely on.
    :raises SeamsDiffer: naming each function, its expected and its found
        parameters.
    """
    differ = mismatches(sorted(set(names_of(process)) - set(without)))
    if differ:
        raise SeamsDiffer(
            f'ghsched does not fit Nova {version.version_string()}, '
            f'{process} does not start: {"; ".join(map(str, differ))}. '
            f'Install the ghsched that supports this Nova, or remove it from '
            f'the configuration of {process}')


@functools.cache
def found_parameters(name: str) -> tuple[str, ...] | None:
    """Return parameters of a function of Nova; None if it is missing.

    Asked once for each name, before anything of ghsched is put around it.
    """
    *path, attribute = name.split('.')
    for length in range(len(path), 0, -1):
        try:
            owner: Any = importlib.import_module('.'.join(path[:length]))
        except ModuleNotFoundError:
            continue
        for part in (*path[length:], attribute):
            owner = getattr(owner, part, None)
        if not callable(owner):
            return None
        found = tuple(inspect.signature(owner).parameters)
        return found[1:] if found[:1] == ('cls',) else found
    return None
