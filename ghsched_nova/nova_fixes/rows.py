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

"""The repairs of Nova; their list needs no Nova, so the manual has it."""

from dataclasses import dataclass
import importlib
from typing import Any

from ghsched_nova.nova_seams import registry


@dataclass(frozen=True)
class Fix:
    """A fix of one Nova bug, applied as a patch of Nova's functions.

    :param name: name of the page in ``doc/source/contributor/upstream`` and
        of the module in this package.
    :param processes: services that apply the fix.
    :param servers: servers on which the fix acts. ``ours`` are those whose
        flavor has extra specs of ghsched. ``none`` means that it acts on a
        connection of the process, not on servers.
    :param bug: number of the bug in Launchpad; None if it is not reported.
    """

    name: str
    processes: tuple[str, ...]
    servers: str = 'ours'
    bug: int | None = None

    def import_module(self) -> Any:
        """Import and return the module that applies this fix of a Nova bug.

        A service imports only the modules of fixes that it applies.
        """
        name = self.name.replace('-', '_')
        return importlib.import_module(f'ghsched_nova.nova_fixes.{name}')

    def list_nova_functions(self, process: str | None = None
                            ) -> frozenset[str]:
        """Return the Nova functions that this fix of a Nova bug relies on.

        :param process: only those used in this service; None for all services.
        :returns: dotted names of the functions.
        """
        user = self.import_module().__name__
        return frozenset(
            seam.name for seam in registry.SEAMS.values()
            if user in seam.users
            and (process is None or process in seam.processes))


_API, _SCHEDULER, _COMPUTE = registry.PROCESSES

FIXES = (
    Fix('cut-off-live-migration', (_COMPUTE,)),
    Fix('deleted-while-resized', (_API,)),
    Fix('devices-of-far-pf', (_COMPUTE, _SCHEDULER)),
    Fix('evacuated-devices', (_COMPUTE,)),
    Fix('evacuated-live-migration', (_API, _COMPUTE)),
    Fix('failed-build', (_COMPUTE,)),
    Fix('failed-live-migration', (_COMPUTE,)),
    Fix('failed-post-live-migration', (_COMPUTE,)),
    Fix('failed-rebuild', (_COMPUTE,)),
    Fix('failed-resize-flavor', (_COMPUTE,)),
    Fix('libvirtd-restart-deadlock', (_COMPUTE,), servers='none'),
    Fix('live-migrated-devices', (_COMPUTE,)),
    # A conductor of an older release names no limits to a host of 34 either.
    Fix('live-migration-limits', (_COMPUTE,), bug=2153425),
    Fix('placement-retries', (_API, _COMPUTE)),
    Fix('rolled-back-resize', (_API,)))
