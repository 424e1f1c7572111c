#!/usr/bin/env python3
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

"""Write the parts of the reference that are made from the code.

usage: tools/reference_pages.py [--check]

A part begins with a comment ``.. made of NAME``, ends with ``.. end``, and is
plain reStructuredText, so that it can be read without Sphinx. With --check
nothing is written; it fails when a page is not what the code gives.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import importlib
from pathlib import Path
import re
import sys
import textwrap
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP), str(TOP / 'tools')]

import command_pages  # noqa: E402
from ghsched_nova import conf  # noqa: E402
from ghsched_nova.nova_fixes import rows  # noqa: E402
from ghsched_nova.nova_seams import registry  # noqa: E402
from ghsched_placement.flavor import key_names  # noqa: E402
from ghsched_placement.flavor import keys  # noqa: E402

PAGES = tuple(
    page for page in sorted((TOP / 'doc/source/reference').rglob('*.rst'))
    if '.. made of ' in page.read_text())

_PART = re.compile(r'(?<=^\.\. made of )(.+?)\n\n.*?^(?=\.\. end$)',
                   re.MULTILINE | re.DOTALL)
_SERVERS = {'ours': 'with a key of ghsched', 'none': 'a connection, no server'}


def render_page(text: str) -> str:
    """Return a page with its parts as the code gives them."""
    def replace(found: re.Match[str]) -> str:
        name, _, argument = found[1].partition(' ')
        lines = PARTS[name](*argument.split())
        return found[1] + '\n\n' + '\n'.join(lines).rstrip() + '\n\n'
    return _PART.sub(replace, text)


def _render_table(head: tuple[str, ...], widths: str,
                  body: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from ('.. list-table::', '   :header-rows: 1',
                f'   :widths: {widths}', '')
    for row in (head, *body):
        for number, cell in enumerate(row):
            yield f'   {"  - " if number else "* - "}{cell}'.rstrip()
    yield ''


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, 79, initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False)


# -- extra specs --------------------------------------------------------------

def describe_keys() -> Iterator[str]:
    """Yield the lines of a table of all keys, and of a section for each."""
    yield from _render_table(
        ('Key', 'Value', 'Meaning'), '30 22 48', (
            (f'`{key.extra_spec}`_', _describe_values(key), key.summary)
            for key in key_names.KEYS))
    for key in key_names.KEYS:
        yield from (key.extra_spec, '-' * len(key.extra_spec), '')
        yield from _wrap(f'{key.summary} {key.details}'.rstrip(), '')
        yield from ('', f':Value: {_describe_values(key)}',
                    f':Default: {key.default_text}')
        if key.per_node:
            yield f':For guest NUMA node N alone: ``{key.extra_spec}.N``'
        if key.per_class:
            yield f':For a vCPU class alone: ``{key.extra_spec}.CLASS``'
        yield ''


def _describe_values(key: keys.Key) -> str:
    texts = {'bool': '``true`` or ``false``', 'name': 'a name',
             'enum': ', '.join(f'``{choice}``' for choice in key.choices),
             'devices': '``ALIAS:COUNT``, or several separated by commas',
             'classes': '``NAME:VCPUS``, or several separated by commas, as '
                        '``latency:0-3,batch:6``',
             'vcpus': 'a list of vCPUs, as ``2-3``; ``^0-1`` for all but '
                      'these'}
    return texts.get(key.kind) or (
        f'a whole number from {key.minimum} to {key.maximum}')


# -- options ------------------------------------------------------------------

def describe_options() -> Iterator[str]:
    """Yield the lines of a definition list of the options of [ghsched]."""
    for option in (*conf.OPTS, *conf.DEPRECATED_OPTS):
        yield f'``{option.name}``'
        yield f'    :Type: {_describe_type(str(option.type))}'
        yield f'    :Default: {_describe_default(option.default)}'
        for old in option.deprecated_opts:
            yield f'    :Old name: ``{old.name}``'
        if option.deprecated_for_removal:
            yield f'    :Deprecated: {option.deprecated_reason}'
        yield ''
        for paragraph in str(option.help).split('\n\n'):
            yield from (*_wrap(paragraph, '    '), '')


def _describe_type(text: str) -> str:
    """Return a type of oslo.config, which prints it, for a reader."""
    listed = re.fullmatch(r'(List|Dict) of (.*)', text)
    if listed:
        kind = 'list of values' if listed[1] == 'List' else 'KEY:VALUE, ...'
        return f'{kind}, each {_describe_type(listed[2])}'
    return text.lower().replace('(', ' (', 1)


def _describe_default(value: Any) -> str:
    if value in (None, '', {}, []):
        return 'none'
    if isinstance(value, dict):
        value = ','.join(f'{name}:{one}' for name, one in value.items())
    elif isinstance(value, list):
        value = ','.join(map(str, value))
    elif isinstance(value, bool):
        value = str(value).lower()
    return f'``{value}``'


# -- metrics ------------------------------------------------------------------

def describe_metrics(module: str) -> Iterator[str]:
    """Yield the lines of a table of a module's metrics.

    :param module: name of a module below ghsched_nova.features.
    """
    metrics = importlib.import_module(f'ghsched_nova.features.{module}')
    return _render_table(
        ('Metric', 'Type', 'Labels', 'Meaning'), '30 10 20 40', (
            (f'``{one.exported_name}``',
             'counter' if one.counter else 'gauge',
             ', '.join(f'``{label}``' for label in one.labels),
             f'{one.text} {one.details}'.rstrip())
            for one in metrics.METRICS))


# -- changes to Nova ----------------------------------------------------------

def describe_fixes() -> Iterator[str]:
    """Yield the lines of the table of repairs of Nova."""
    return _render_table(
        ('Repair', 'Services', 'Bug', 'Fixed in Nova', 'Servers'),
        '30 20 10 20 20', (
            (f':doc:`{fix.name} </contributor/upstream/{fix.name}>`',
             ', '.join(fix.processes),
             f'`{fix.bug} <https://launchpad.net/bugs/{fix.bug}>`_'
             if fix.bug else 'none yet',
             fix.fixed_in or 'no release yet',
             _SERVERS[fix.servers]) for fix in rows.FIXES))


def list_uses() -> list[tuple[str, registry.Use]]:
    """Return the uses of names of Nova that are replaced or private."""
    registry.load_all_seams()
    return sorted((name, use) for name, seam in registry.SEAMS.items()
                  for use in seam.uses)


def describe_replacements() -> Iterator[str]:
    """Yield the lines of the table of what features replace in Nova."""
    return _render_table(
        ('Name in Nova', 'Services', 'What for, and why this way'),
        '45 15 40', (
            (f'``{name}``', ', '.join(use.processes), use.reason)
            for name, use in list_uses() if use.kind == 'replaced'))


def describe_private_names() -> Iterator[str]:
    """Yield the lines of the table of private names of Nova relied on."""
    return _render_table(
        ('Private name in Nova', 'Used how', 'Why'), '45 15 40', (
            (f'``{name}``', use.kind, use.reason)
            for name, use in list_uses() if '._' in name))


PARTS: dict[str, Callable[..., Iterable[str]]] = {
    'keys': describe_keys, 'options': describe_options,
    'metrics': describe_metrics, 'fixes': describe_fixes,
    'replacements': describe_replacements,
    'private-names': describe_private_names,
    'command': command_pages.describe_command,
    'cloud-commands': command_pages.describe_cloud_commands,
    'docstring': command_pages.describe_docstring}


def find_stale_pages() -> dict[Path, str]:
    """Return the text of each page that is not what the code gives."""
    rendered = {page: render_page(page.read_text()) for page in PAGES}
    return {page: text for page, text in rendered.items()
            if page.read_text() != text}


def main() -> None:
    if sys.argv[1:] not in ([], ['--check']):
        sys.exit(__doc__)
    stale = find_stale_pages()
    if '--check' in sys.argv:
        sys.exit('\n'.join(f'{page.relative_to(TOP)} is not what '
                           'tools/reference_pages.py writes'
                           for page in stale) or None)
    for page, text in stale.items():
        page.write_text(text)


if __name__ == '__main__':
    main()
