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

"""Sphinx extension: the flavor extra specs, from the table that defines them.

``.. ghsched-keys::`` becomes a table of all keys of
:data:`ghsched_placement.keys.KEYS`, and one section per key.
"""

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

from ghsched_placement import keys


def tabulate() -> Iterator[str]:
    """Yield the lines of a table of all keys, with links to their sections."""
    yield from ('.. list-table:: All keys', '   :header-rows: 1',
                '   :widths: 30 22 48', '',
                '   * - Key', '     - Value', '     - Meaning')
    for key in keys.KEYS:
        yield f'   * - `{key.extra_spec}`_'
        yield f'     - {_values(key)}'
        yield f'     - {key.summary}'
    yield ''


def describe(key: keys.Key) -> Iterator[str]:
    """Yield the lines of one key's section."""
    yield key.extra_spec
    yield '-' * len(key.extra_spec)
    yield ''
    yield f'{key.summary} {key.details}'.rstrip()
    yield ''
    yield f':Value: {_values(key)}'
    yield f':Default: {key.default_text}'
    if key.per_node:
        yield f':For guest NUMA node N alone: ``{key.extra_spec}.N``'
    yield ''


def _values(key: keys.Key) -> str:
    if key.kind == 'bool':
        return '``true`` or ``false``'
    if key.kind == 'enum':
        return ', '.join(f'``{choice}``' for choice in key.choices)
    if key.kind == 'name':
        return 'a name'
    if key.kind == 'devices':
        return '``ALIAS:COUNT``, or several separated by commas'
    if key.kind == 'vcpus':
        return 'a list of vCPUs, as ``2-3``; ``^0-1`` for all but these'
    return f'a whole number from {key.minimum} to {key.maximum}'


class KeysDirective(SphinxDirective):
    """All keys, in the order of the table."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(keys.__file__)
        lines = [*tabulate(), *(line for key in keys.KEYS
                                for line in describe(key))]
        section = nodes.section()
        section.document = self.state.document
        nested_parse_with_titles(
            self.state, StringList(lines, source=keys.__file__), section)
        return section.children


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive('ghsched-keys', KeysDirective)
    return {'version': '1', 'parallel_read_safe': True,
            'parallel_write_safe': True}
