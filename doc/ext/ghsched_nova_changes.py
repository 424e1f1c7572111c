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

"""Sphinx extension: changes of ghsched to Nova, from the lists of them.

``.. ghsched-nova-fixes::`` becomes a table of
:data:`ghsched_nova.nova_fixes.rows.FIXES`, and ``.. ghsched-nova-replaced::``
one of :data:`nova_replaced.REPLACED`, and
``.. ghsched-nova-private::`` one of its ``PRIVATE``.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ghsched_nova.nova_fixes import rows
import nova_replaced

_SERVERS = {'ours': 'with a key of ghsched', 'none': 'a connection, no server'}


def _render(head: tuple[str, ...], widths: str,
            body: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield from ('.. list-table::', '   :header-rows: 1',
                f'   :widths: {widths}', '')
    for row in (head, *body):
        for number, cell in enumerate(row):
            yield f'   {"- " if number else "* - "}{cell}'.replace(
                '   - ', '     - ', 1)


def fixes() -> Iterator[str]:
    """Yield the lines of the table of repairs."""
    return _render(
        ('Repair', 'Services', 'Bug', 'Releases of Nova', 'Servers'),
        '30 20 15 15 20', (
            (f':doc:`{fix.name} </contributor/upstream/{fix.name}>`',
             ', '.join(fix.processes),
             f'`{fix.bug} <https://launchpad.net/bugs/{fix.bug}>`_'
             if fix.bug else 'none yet',
             f'31-{fix.until - 1 if fix.until else ""}',
             _SERVERS[fix.servers]) for fix in rows.FIXES))


def replacements() -> Iterator[str]:
    """Yield the lines of the table of what features replace."""
    return _render(
        ('Name in Nova', 'Services', 'What for, and why this way'),
        '45 15 40', ((f'``{one.name}``', ', '.join(one.processes), one.reason)
                     for one in nova_replaced.REPLACED))


def private() -> Iterator[str]:
    """Yield the lines of the table of private names relied on."""
    return _render(
        ('Private name in Nova', 'Used how', 'Why'), '45 15 40', (
            (f'``{one.name}``',
             'overridden' if one.is_overridden else 'called', one.reason)
            for one in nova_replaced.PRIVATE))


class _TableDirective(SphinxDirective):
    source: str
    table: Callable[[], Iterator[str]]

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(self.source)
        found = nodes.container()
        self.state.nested_parse(
            StringList(list(type(self).table()), source=self.source), 0,
            found)
        return found.children


class FixesDirective(_TableDirective):
    """The repairs of Nova."""

    source = str(rows.__file__)
    table = staticmethod(fixes)


class ReplacedDirective(_TableDirective):
    """Table of the functions and lists of Nova that features replace."""

    source = str(nova_replaced.__file__)
    table = staticmethod(replacements)


class PrivateDirective(_TableDirective):
    """Private names of Nova that features rely on."""

    source = str(nova_replaced.__file__)
    table = staticmethod(private)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive('ghsched-nova-fixes', FixesDirective)
    app.add_directive('ghsched-nova-replaced', ReplacedDirective)
    app.add_directive('ghsched-nova-private', PrivateDirective)
    return {'version': '1', 'parallel_read_safe': True,
            'parallel_write_safe': True}
