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

"""Tables that fit the width of a terminal.

cliff and prettytable wrap cells, but not headings, and the headings of seven
columns of numbers alone are wider than 80 characters.
"""

import argparse
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import TextIO

from cliff.formatters import table as cliff_table
from cliff import utils
import prettytable

#: Characters that prettytable adds to each cell, and before the first cell.
_AROUND, _FIRST = 3, 1


def fit_column_widths(full: Sequence[int], minimum: Sequence[int],
                      available: int) -> list[int]:
    """Return column widths with which a table fits into a terminal line.

    Narrow columns keep their full width. The wide columns share the rest
    evenly.

    :param full: width of each column if no text is wrapped.
    :param minimum: minimum width of each column.
    :param available: number of characters that all columns may have together.
    """
    def narrowed(limit: int) -> list[int]:
        return [max(min(wide, limit), min(wide, narrow))
                for wide, narrow in zip(full, minimum, strict=True)]

    limit = max(full, default=0)
    while limit and sum(narrowed(limit)) > available:
        limit -= 1
    return narrowed(limit)


def choose_minimum_widths(words: Sequence[int], keys: Collection[int],
                          available: int) -> list[int]:
    """Return minimum column widths with which a split table fits into a line.

    Words are cut only if the key columns and one more do not fit otherwise.

    :param words: width of the longest text in each column that is not to be
        cut.
    :param keys: positions of the columns that name a row.
    :param available: number of characters in a line.
    """
    cut = available
    while True:
        found = [min(cut, width) for width in words]
        others = [width for place, width in enumerate(found)
                  if place not in keys]
        together = [*(found[place] for place in keys), max(others, default=0)]
        if cut <= 1 or _FIRST + sum(
                _AROUND + width for width in together) <= available:
            return found
        cut -= 1


def split_columns(minimum: Sequence[int], keys: Collection[int],
                  available: int) -> Iterator[list[int]]:
    """Yield the columns of each part of a table that is too wide.

    Each part has the key columns and at least one more. A table that is not
    too wide is yielded as a whole.

    :param minimum: minimum width of each column.
    :param keys: positions of the columns that name a row.
    :param available: number of characters in a line.
    """
    widths = [_AROUND + width for width in minimum]
    others = [place for place in range(len(widths)) if place not in keys]
    begun = available - _FIRST - sum(widths[place] for place in keys)
    part: list[int] = []
    left = begun
    for place in others:
        if part and widths[place] > left:
            yield sorted([*keys, *part])
            part, left = [], begun
        part.append(place)
        left -= widths[place]
    yield sorted([*keys, *part])


class WrappedTableFormatter(cliff_table.TableFormatter):
    """Table formatter of cliff that also wraps column headings.

    Headings are wrapped between words, so that tables fit into the terminal.
    A table that does not fit even so is split into several, one below the
    other.

    :param keys: names of the columns that name a row; each of the tables
        begins with them, and they are not wrapped.
    """

    def __init__(self, keys: Collection[str]) -> None:
        super().__init__()
        self._keys = keys

    def emit_list(self, column_names: Sequence[str],
                  data: Iterable[Sequence[Any]], stdout: TextIO,
                  parsed_args: argparse.Namespace) -> None:
        rows = list(data)
        limit = _get_max_line_length(parsed_args)
        whole = prettytable.PrettyTable(column_names)
        self.add_rows(whole, column_names, rows)
        rule = whole.get_string().splitlines()[0]
        if not rows or limit is None or len(rule) <= limit:
            super().emit_list(column_names, rows, stdout, parsed_args)
            return
        full = [len(part) - 2 for part in rule.split('+')[1:-1]]
        keys = [place for place, name in enumerate(column_names)
                if name in self._keys]
        minimum = choose_minimum_widths([
            full[place] if place in keys else _measure_longest_word(
                [name, *(row[place] for row in whole.rows)])
            for place, name in enumerate(column_names)], keys, limit)
        stdout.write('\n\n'.join(
            self._render_part(column_names, rows, part, full, minimum, limit)
            for part in split_columns(minimum, keys, limit)) + '\n')

    def _render_part(self, column_names: Sequence[str],
                     rows: Sequence[Sequence[Any]], part: Sequence[int],
                     full: Sequence[int], minimum: Sequence[int],
                     limit: int) -> str:
        """Return the text of a table with some of the columns.

        :param part: positions of the columns.
        :param full: width of each column if no text is wrapped.
        :param minimum: minimum width of each column.
        :param limit: maximum length of a line.
        """
        names = [column_names[place] for place in part]
        # With a header prettytable never makes a column narrower than that.
        fitted = prettytable.PrettyTable(names, header=False)
        fitted.add_row(names, divider=True)
        self.add_rows(fitted, names,
                      [[row[place] for place in part] for row in rows])
        # Set as a whole, a width of each column is taken from 3.15 on.
        fitted.max_width.update(zip(names, fit_column_widths(
            [full[place] for place in part],
            [minimum[place] for place in part],
            limit - _FIRST - _AROUND * len(part)), strict=True))
        return str(fitted.get_string())


def _measure_longest_word(cells: Iterable[Any]) -> int:
    """Return the length of the longest word in the cells of a column."""
    return max((len(word) for cell in cells for word in str(cell).split()),
               default=0)


def _get_max_line_length(parsed_args: argparse.Namespace) -> int | None:
    """Return the maximum length of a line of output.

    :returns: None if there is no limit.
    """
    if parsed_args.max_width > 0:
        return int(parsed_args.max_width)
    return utils.terminal_width() if parsed_args.fit_width else None
