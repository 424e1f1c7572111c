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

"""Document that is rendered as Markdown, reStructuredText or HTML."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
import html
import re
import unicodedata


@dataclass(frozen=True)
class Heading:
    """A heading of a report; ``level`` counts from 1."""

    text: str
    level: int


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of a report; each row is as long as the head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """SVG file that belongs to the document.

    :param svg: its text, which HTML takes into itself.
    :param text: for those who do not see it.
    """

    name: str
    svg: str
    text: str


Block = Heading | Paragraph | Items | Table | Picture


def pictures(blocks: Sequence[Block]) -> list[Picture]:
    """Return all pictures of a document."""
    return [block for block in blocks if isinstance(block, Picture)]


# -- Markdown -----------------------------------------------------------------

#: What begins something in the middle of a line.
_MD_SPECIAL = re.compile(r'([\\`*_\[\]<>|&~])')
#: What begins something at the start of a line.
_MD_START = re.compile(r'^( *)(#|\+|-|=|[0-9]+(?=[.)](?: |$)))')


def _md(text: str) -> str:
    """Return text escaped for CommonMark."""
    line = _MD_SPECIAL.sub(r'\\\1', ' '.join(text.split()))
    return _MD_START.sub(
        lambda match: match[1] + (match[2] + '\\' if match[2].isdigit()
                                  else '\\' + match[2]), line)


def _md_row(cells: Sequence[str]) -> str:
    return '| ' + ' | '.join(map(_md, cells)) + ' |'


def _markdown(block: Block) -> list[str]:
    if isinstance(block, Heading):
        return ['#' * block.level + ' ' + _md(block.text)]
    if isinstance(block, Paragraph):
        return [_md(block.text)]
    if isinstance(block, Items):
        return ['* ' + _md(item) for item in block.items]
    if isinstance(block, Table):
        return [_md_row(block.head), '|' + ' --- |' * len(block.head),
                *map(_md_row, block.rows)]
    return [f'![{_md(block.text)}]({block.name})']


# -- reStructuredText ---------------------------------------------------------

_RST_SPECIAL = re.compile(r'([\\`*_|])')
#: What may begin something at the start of a line: a bullet, an enumerator, a
#: comment, a field, an option, a doctest, a transition.
_RST_START = re.compile(r'[^\w\\"\']|\w{1,9}[.)](?: |$)')
_UNDERLINES = '=-~^'


def _rst(text: str) -> str:
    """Return text escaped for reStructuredText."""
    line = _RST_SPECIAL.sub(r'\\\1', ' '.join(text.split()))
    # Two colons at its end announce a literal block.
    line = re.sub('::$', r':\:', line)
    return '\\' + line if _RST_START.match(line) else line


def _columns(title: str) -> int:
    """Return the width of a title in columns, at least 4; wide letters take
    two.
    """
    return max(4, sum(1 + (unicodedata.east_asian_width(letter) in 'WF')
                      for letter in title))


def _rst_cells(cells: Sequence[str]) -> list[str]:
    return [f'   {"* -" if place == 0 else "  -"} {_rst(cell)}'.rstrip()
            for place, cell in enumerate(cells)]


def _restructured(block: Block) -> list[str]:
    if isinstance(block, Heading):
        title = _rst(block.text)
        return [title, _UNDERLINES[block.level - 1] * _columns(title)]
    if isinstance(block, Paragraph):
        return [_rst(block.text)]
    if isinstance(block, Items):
        return ['* ' + _rst(item) for item in block.items]
    if isinstance(block, Table):
        lines = ['.. list-table::', '   :header-rows: 1', '']
        for row in (block.head, *block.rows):
            lines += _rst_cells(row)
        return lines
    return [f'.. image:: {block.name}', f'   :alt: {_rst(block.text)}']


# -- HTML ---------------------------------------------------------------------

_STYLE = ('body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;'
          'padding:0 1em}table{border-collapse:collapse;margin:1em 0}'
          'th,td{border:1px solid #bbb;padding:.2em .6em;text-align:left}'
          'th{background:#eee}svg{max-width:100%;height:auto}')


def _row(cells: Sequence[str], tag: str) -> str:
    return '<tr>' + ''.join(
        f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells) + '</tr>'


def _html(block: Block) -> list[str]:
    if isinstance(block, Heading):
        return [f'<h{block.level}>{html.escape(block.text)}'
                f'</h{block.level}>']
    if isinstance(block, Paragraph):
        return [f'<p>{html.escape(block.text)}</p>']
    if isinstance(block, Items):
        return ['<ul>', *(f'<li>{html.escape(item)}</li>'
                          for item in block.items), '</ul>']
    if isinstance(block, Table):
        return ['<table>', _row(block.head, 'th'),
                *(_row(row, 'td') for row in block.rows), '</table>']
    # An XML declaration has no place in HTML.
    return ['<figure>', block.svg[block.svg.index('<svg'):].rstrip(),
            f'<figcaption>{html.escape(block.text)}</figcaption>',
            '</figure>']


def _page(blocks: Sequence[Block], body: str) -> str:
    title = next((html.escape(block.text) for block in blocks
                  if isinstance(block, Heading)), 'Report')
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<title>{title}</title>\n<style>{_STYLE}</style></head>\n'
            f'<body>\n{body}</body></html>\n')


# -- all three ----------------------------------------------------------------

_WRITERS: dict[str, Callable[[Block], list[str]]] = {
    'md': _markdown, 'rst': _restructured, 'html': _html}

#: Names of the forms, which are the suffixes of files.
FORMS = tuple(_WRITERS)


def render(blocks: Sequence[Block], form: str) -> str:
    """Return the text of a document.

    :param form: one of :data:`FORMS`.
    """
    body = '\n\n'.join('\n'.join(_WRITERS[form](block)) for block in blocks)
    return _page(blocks, body + '\n') if form == 'html' else body + '\n'
