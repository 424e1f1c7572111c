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

"""Formats of values: short on a terminal, complete for programs."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cliff import columns


class Unknown(columns.FormattableColumn[None]):
    """Table cell with an unknown value.

    It is shown as a dash in tables and as null in formats for programs. It is
    sorted before all known values.
    """

    def __init__(self) -> None:
        super().__init__(None)

    def human_readable(self) -> str:
        return '-'

    def __lt__(self, other: object) -> bool:
        return not isinstance(other, Unknown)

    def __gt__(self, other: object) -> bool:
        return False


def mark_unknown(value: Any) -> Any:
    """Return a table cell with a value; None becomes an "unknown" mark."""
    return Unknown() if value is None else value


class MultilineCell(columns.FormattableColumn[Sequence[Any]]):
    """Table cell with several values, one per line."""

    def human_readable(self) -> str:
        return '\n'.join(map(self.line, self._value)) or '-'

    def line(self, item: Any) -> str:
        return str(item)


class CommaListCell(MultilineCell):
    """Table cell with several values, separated by commas."""

    def human_readable(self) -> str:
        return ', '.join(map(self.line, self._value)) or '-'


class PercentsCell(CommaListCell):
    """Table cell with a percentage for each NUMA node.

    A dash is shown for an unknown percentage.
    """

    def line(self, item: int | None) -> str:
        return '-' if item is None else str(item)


class VfsCell(MultilineCell):
    """Table cell with the number of free and of all VFs of each PF."""

    def line(self, item: Mapping[str, Any]) -> str:
        return f'{item["pf"]} {item["free"]}/{item["total"]}'


class _PlainCell(columns.FormattableColumn[Any]):
    """Table cell as plain text, for output formats such as CSV.

    It is sorted by the value of the original cell.

    :param cell: the original cell.
    :param blank: text for an unknown value.
    """

    def __init__(self, cell: columns.FormattableColumn[Any],
                 blank: str) -> None:
        super().__init__(cell._value)
        self._cell = cell
        self._blank = blank

    def human_readable(self) -> str:
        return str(self._cell.human_readable())

    def machine_readable(self) -> Any:
        text = self.human_readable()
        return self._blank if text == '-' else '; '.join(text.split('\n'))


class _BlankCell(Unknown):
    """Unknown value for output formats that have no null.

    :param text: text for the unknown value.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def machine_readable(self) -> Any:
        return self._text


def make_plain_cell(cell: Any, unknown_text: str = '') -> Any:
    """Return a table cell as plain text for output formats such as CSV.

    :param unknown_text: text to use for an unknown value.
    """
    if isinstance(cell, Unknown):
        return _BlankCell(unknown_text)
    if isinstance(cell, columns.FormattableColumn):
        return _PlainCell(cell, unknown_text)
    return cell
