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

"""State of the fixes of Nova bugs in this process.

``[ghsched]nova_fixes`` chooses: ``auto`` applies all that suit this Nova,
``none`` applies nothing, names apply those. A repair of what the installed
Nova has fixed itself is never applied.
"""

from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass
import functools
import pathlib
from typing import Any

import nova
from oslo_log import log as logging

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes.rows import Fix
from ghsched_nova.nova_fixes.rows import FIXES
from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams import signatures

LOG = logging.getLogger(__name__)

AUTO = 'auto'
NONE = 'none'


#: Directory of the package nova.
SOURCE = pathlib.Path(nova.__path__[0])

_BY_NAME = {fix.name: fix for fix in FIXES}


@dataclass(frozen=True)
class FixState:
    """Whether a fix of a Nova bug is applied, and if not, why.

    :param text: ``applied``, or the reason why the fix is not applied:
        ``off``, ``not needed`` with the reason, or the functions of Nova that
        differ.
    """

    applied: bool
    text: str


def list_fix_only_functions() -> frozenset[str]:
    """Return the Nova functions that only ghsched's fixes of Nova bugs use.

    :returns: dotted names of the functions.
    """
    return frozenset(seam.name for seam in registry.SEAMS.values() if all(
        user.startswith('ghsched_nova.nova_fixes.') for user in seam.users))


def find_unknown_fix_names(configured: Collection[str]) -> Iterator[str]:
    """Yield the values of ``[ghsched]nova_fixes`` that name no known fix."""
    return (word for word in configured
            if word not in _BY_NAME and word not in (AUTO, NONE))


@functools.cache
def read_nova_source(module: str) -> str:
    """Return the source of a module of the installed Nova, in one line.

    The module is not imported.

    :returns: the source with single spaces for white space; empty if this Nova
        has no such file.
    """
    path = SOURCE.joinpath(*module.split('.')[1:]).with_suffix('.py')
    try:
        return ' '.join(path.read_text().split())
    except OSError:
        return ''


def is_fixed_in_nova(fix: Fix) -> bool:
    """Return whether the installed Nova already contains the fix of a bug."""
    return bool(fix.fixed_source) and all(
        text in read_nova_source(module)
        for _patch, module, text in fix.fixed_source)


def get_fix_state(fix: Fix, configured: Collection[str],
                  mismatches: Collection[registry.Mismatch]
                  ) -> FixState:
    """Return whether a fix of a Nova bug is to be applied, and if not, why.

    :param configured: values of ``[ghsched]nova_fixes``.
    :param mismatches: functions that the fix relies on, and that differ in the
        installed Nova.
    :returns: whether the fix is applied, and a text: ``applied``, or the
        reason why it is not.
    """
    if fix.name not in configured and AUTO not in configured:
        return FixState(False, 'off')
    if is_fixed_in_nova(fix):
        return FixState(False, 'not needed, the installed Nova has the fix')
    if mismatches:
        return FixState(False,
                        'not applied, ' + '; '.join(map(str, mismatches)))
    return FixState(True, 'applied')


def get_local_fix_state(fix: Fix, process: str | None = None) -> FixState:
    """Return whether this host applies a fix of a Nova bug, and if not, why.

    The installed Nova and the configuration decide.

    :param process: the service to check; None for all services of the fix.
    :returns: whether the fix is applied, and a text: ``applied``, or the
        reason why it is not.
    """
    return get_fix_state(
        fix, shared.config().ghsched.nova_fixes,
        signatures.list_mismatches(sorted(fix.list_nova_functions(process))))


def is_fix_applied(name: str, process: str) -> bool:
    """Return whether a service on this host applies a fix of a Nova bug.

    A fix that does not suit the installed Nova is not applied, and is logged.

    :param name: name of the fix.
    :param process: name of the service.
    """
    found = get_local_fix_state(_BY_NAME[name], process)
    if not found.applied and found.text.startswith('not applied'):
        LOG.warning('ghsched: cannot apply Nova bug fix %(name)s to this '
                    'service because the installed Nova differs from what the '
                    'fix needs: %(state)s',
                    {'name': name, 'state': found.text})
    return found.applied


#: Names of the fixes of Nova bugs that this process applies.
APPLIED: set[str] = set()


def apply_fixes(process: str) -> None:
    """Apply the fixes of Nova bugs to this service.

    A second call changes nothing.

    :param process: name of the service.
    """
    for fix in FIXES:
        if process in fix.processes and is_fix_applied(fix.name, process):
            APPLIED.add(fix.name)
            patches.apply_patches(fix.import_module().__name__, process)


def is_fix_applied_to(name: str, instance: Any) -> bool:
    """Return whether this process applies a fix of a Nova bug to a server.

    :param name: name of the fix.
    """
    return name in APPLIED and servers.has_ghsched_flavor(instance)


def require_known_fixes() -> None:
    """Refuse to start a service whose configuration names unknown fixes.

    :raises ghsched_nova.nova_seams.registry.IncompatibleNova: with each value
        of ``[ghsched]nova_fixes`` that names no fix.
    """
    wrong = sorted(find_unknown_fix_names(shared.config().ghsched.nova_fixes))
    if wrong:
        raise registry.IncompatibleNova(
            '[ghsched]nova_fixes has unknown names of fixes: '
            f'{", ".join(wrong)}; known: {", ".join(sorted(_BY_NAME))}')
