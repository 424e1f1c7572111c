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

"""The repairs of Nova, and which of them this process applies.

``[ghsched]nova_fixes`` chooses: ``auto`` applies what this release of Nova
lacks, ``none`` applies nothing, names apply those.
"""

from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass
import importlib
from typing import Any

from oslo_log import log as logging

from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams import signatures

LOG = logging.getLogger(__name__)

AUTO = 'auto'
NONE = 'none'


@dataclass(frozen=True)
class Fix:
    """A repair of one defect of Nova.

    :param name: of the page in ``doc/source/contributor/upstream``, and of
        the module in this package.
    :param processes: where it is applied.
    :param servers: ``ours``: servers whose flavor has a key of ghsched;
        ``none``: it acts on no server, but on a connection of the process.
    :param bug: number at Launchpad.
    :param until: release of Nova that has the repair; None for none.
    """

    name: str
    processes: tuple[str, ...]
    servers: str = 'ours'
    bug: int | None = None
    until: int | None = None

    def module(self) -> Any:
        """Import the module of the repair; a service imports only its own
        repairs.
        """
        name = self.name.replace('-', '_')
        return importlib.import_module(f'ghsched_nova.nova_fixes.{name}')

    def names(self, process: str | None = None) -> frozenset[str]:
        """Return the names of Nova that the repair relies on.

        :param process: for those of one service; None for all.
        """
        user = self.module().__name__
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
    Fix('failed-live-migration', (_COMPUTE,)),
    Fix('failed-rebuild', (_COMPUTE,)),
    Fix('failed-resize-flavor', (_COMPUTE,)),
    Fix('libvirtd-restart-deadlock', (_COMPUTE,), servers='none'),
    # A conductor of an older release names no limits to a host of 34 either.
    Fix('live-migration-limits', (_COMPUTE,), bug=2153425),
    Fix('placement-retries', (_API, _COMPUTE)),
    Fix('rolled-back-resize', (_API,)))

_BY_NAME = {fix.name: fix for fix in FIXES}


@dataclass(frozen=True)
class State:
    """Whether a repair is applied, and why not.

    :param text: ``applied``, ``not needed``, ``off`` or what differs.
    """

    applied: bool
    text: str


def own_names() -> frozenset[str]:
    """Return the names of Nova that only repairs rely on."""
    return frozenset(seam.name for seam in registry.SEAMS.values() if all(
        user.startswith('ghsched_nova.nova_fixes.') for user in seam.users))


def unknown(chosen: Collection[str]) -> Iterator[str]:
    """Yield the words of ``[ghsched]nova_fixes`` that are not the name of a
    repair (pure).
    """
    return (word for word in chosen
            if word not in _BY_NAME and word not in (AUTO, NONE))


def state(fix: Fix, chosen: Collection[str], release: int,
          differ: Collection[signatures.Mismatch]) -> State:
    """Return whether a repair is applied, and the reason if not (pure).

    :param chosen: words of ``[ghsched]nova_fixes``.
    :param differ: functions of the repair that this Nova has otherwise.
    """
    if fix.name not in chosen and AUTO not in chosen:
        return State(False, 'off')
    if fix.until is not None and release >= fix.until and (
            fix.name not in chosen):
        return State(False, 'not needed')
    if differ:
        return State(False, 'not applied, ' + '; '.join(map(str, differ)))
    return State(True, 'applied')


def state_here(fix: Fix, process: str | None = None) -> State:
    """Return whether a repair is applied with the installed Nova and
    configuration.

    :param process: the service that is asked for; None for all of the fix.
    """
    return state(fix, shared.config().ghsched.nova_fixes,
                 signatures.release(),
                 signatures.mismatches(sorted(fix.names(process))))


def applies(name: str, process: str) -> bool:
    """Whether a repair is to be applied; log a repair that the installed Nova
    does not fit.
    """
    found = state_here(_BY_NAME[name], process)
    if not found.applied and found.text.startswith('not applied'):
        LOG.warning('ghsched: cannot apply the repair %(name)s of Nova: '
                    '%(state)s', {'name': name, 'state': found.text})
    return found.applied


#: Names of the repairs that this process applies.
APPLIED: set[str] = set()


def install(process: str) -> None:
    """Apply the repairs of one service; harmless when done twice."""
    function = f'install_in_{process.removeprefix("nova-")}'
    for fix in FIXES:
        if process in fix.processes and applies(fix.name, process):
            APPLIED.add(fix.name)
            getattr(fix.module(), function)()


def acts_on(name: str, instance: Any) -> bool:
    """Whether this process applies a repair to a server."""
    return name in APPLIED and servers.is_ours(instance)


def require(process: str) -> None:
    """Refuse to start a process if Nova or the configuration does not fit the
    repairs.

    :raises ghsched_nova.nova_seams.registry.SeamsDiffer: naming what
        differs, and a word of ``[ghsched]nova_fixes`` that names no repair.
    """
    wrong = sorted(unknown(shared.config().ghsched.nova_fixes))
    if wrong:
        raise registry.SeamsDiffer(
            f'[ghsched]nova_fixes names no repair of Nova: '
            f'{", ".join(wrong)}; known: {", ".join(sorted(_BY_NAME))}')
    signatures.require(process, own_names())
