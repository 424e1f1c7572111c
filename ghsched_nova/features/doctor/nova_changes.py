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


"""``ghsched-status seams`` and ``ghsched-status fixes``.

They read the Nova that is installed where the command runs, and the
configuration of that node.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import json

from ghsched_nova.features.doctor import checks
from ghsched_nova.nova_fixes import rows
from ghsched_nova.nova_fixes import table
from ghsched_nova.nova_seams import parts
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams import signatures
from ghsched_placement.base import exits
from ghsched_placement.base import text_table

_SEAMS = ('Function', 'Processes', 'State')
_FIXES = ('Fix', 'Processes', 'Bug', 'Servers', 'State')


def list_nova_functions() -> list[tuple[str, ...]]:
    """Return a table row for each Nova function that ghsched relies on.

    A row has the function's name, the processes that use it, and whether its
    signature differs from the expected one.
    """
    registry.load_all_seams()
    known = sorted(registry.SEAMS)
    differ = {one.name: str(one) for one in signatures.list_mismatches(known)}
    own = table.list_fix_only_functions()
    return [(name, ', '.join(sorted(registry.SEAMS[name].processes)),
             differ.get(name, 'matches') + (' (fix)' if name in own else ''))
            for name in known]


def list_disabled_parts() -> list[tuple[str, str]]:
    """Return each part of ghsched that is disabled with this Nova.

    :returns: Nova service and reason of each.
    """
    registry.load_all_seams()
    return [(process, reason) for process in registry.PROCESSES
            for reason in parts.find_incompatible_parts(process).values()]


def check_nova_functions() -> Iterator[checks.Check]:
    """Check that the installed Nova has the functions that ghsched needs."""
    found = list_disabled_parts()
    for process, reason in found:
        yield checks.Check(
            f'functions of {process}', 'error', reason,
            'install a release of ghsched that supports this Nova')
    if not found:
        yield checks.Check('functions of Nova', 'ok',
                           f'{len(registry.SEAMS)} functions match')


def list_nova_fixes() -> list[tuple[str, ...]]:
    """Return a table row for each fix of a Nova bug that ghsched contains.

    A row says whether the fix is applied on this node.
    """
    return [(fix.name, ', '.join(fix.processes), str(fix.bug or '-'),
             fix.servers, table.get_local_fix_state(fix).text)
            for fix in rows.FIXES]


def render_rows(header: Sequence[str], rows: Sequence[Sequence[str]],
                output_format: str) -> str:
    """Return table rows as a text table or as JSON."""
    if output_format == 'json':
        return json.dumps([dict(zip(header, row, strict=True))
                           for row in rows], indent=2)
    return text_table.render_table(header, rows)


def print_nova_changes(command: str, output_format: str,
                       files: Sequence[str] | None) -> int:
    """Print the Nova functions that ghsched uses, or its fixes of Nova bugs.

    :param command: ``seams`` for the functions or ``fixes`` for the fixes.
    :param output_format: ``table`` or ``json``.
    :param files: configuration files of the Nova service; None for the
        default.
    :returns: exit status.
    """
    shared.config()([], project='nova', default_config_files=files)
    header, rows = ((_SEAMS, list_nova_functions()) if command == 'seams' else
                    (_FIXES, list_nova_fixes()))
    print(render_rows(header, rows, output_format))
    return exits.DONE
