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

"""Tables that keep to the width of a terminal.

cliff wraps cells, but no heading, and prettytable neither: seven columns of
numbers are wider than 80 characters by their headings alone.
"""

import argparse
from collections.abc import Iterable
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


class WrappedTableFormatter(cliff_table.TableFormatter):
    """Table formatter of cliff that also wraps column headings.

    Headings are wrapped between words, so that tables fit into the terminal.
    """

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
        # With a header prettytable never makes a column narrower than that.
        fitted = prettytable.PrettyTable(column_names, header=False)
        fitted.add_row(list(column_names), divider=True)
        self.add_rows(fitted, column_names, rows)
        # Set as a whole, a width of each column is taken from 3.15 on.
        fitted.max_width.update(zip(column_names, fit_column_widths(
            [len(part) - 2 for part in rule.split('+')[1:-1]],
            [max(map(len, name.split())) for name in column_names],
            limit - _FIRST - _AROUND * len(column_names)), strict=True))
        stdout.write(fitted.get_string() + '\n')


def _get_max_line_length(parsed_args: argparse.Namespace) -> int | None:
    """Return the maximum length of a line of output.

    :returns: None if there is no limit.
    """
    if parsed_args.max_width > 0:
        return int(parsed_args.max_width)
    return utils.terminal_width() if parsed_args.fit_width else None
