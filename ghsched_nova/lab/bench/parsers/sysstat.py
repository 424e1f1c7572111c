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

"""Tables of mpstat, pidstat and sar (sysstat), printed while they measure.

All three print blocks: a line of names, then lines of values, each with the
time before it, and blank lines between blocks. They must run in the C locale
(``LC_ALL=C S_TIME_FORMAT=ISO``).
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import re

from ghsched_nova.lab.bench import errors

_BANNER = re.compile(r'\S+ \S+ \(.*\)\s+\S+\s+_\S+_\s+\([0-9]+ CPU\)')
_TIME = re.compile('[0-9]{2}:[0-9]{2}:[0-9]{2}|[0-9]{9,11}')
_AVERAGE = 'Average:'


@dataclass(frozen=True)
class Row:
    """A line of values that a program of sysstat printed.

    :param time: as printed; "Average:" for the line at the end.
    :param values: by name of the column.
    """

    time: str
    values: Mapping[str, str]

    def number(self, column: str) -> float:
        """Return a value as a number.

        :raises ParseError: when the column is missing, or is none.
        """
        text = self.values.get(column, '')
        try:
            return float(text)
        except ValueError:
            raise errors.ParseError(
                'sysstat', f'{column} of {dict(self.values)} is no number'
            ) from None


def parse(text: str) -> tuple[Row, ...]:
    """Return all rows but those of averages over the whole time.

    :raises ParseError: when there is none, or when a line does not fit the
        names above it.
    """
    rows = [row for block in _blocks(text) for row in _rows(block)]
    if not rows:
        raise errors.ParseError('sysstat', 'no line of values', text)
    return tuple(row for row in rows if row.time != _AVERAGE)


def _blocks(text: str) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*text.splitlines(), '']:
        if _BANNER.fullmatch(line.strip()):
            continue
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def _rows(block: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a block; several have no blank line in between."""
    names = _split(block[0].removeprefix('#'), None)[1]
    for line in block[1:]:
        if line.startswith('#'):
            names = _split(line.removeprefix('#'), None)[1]
            continue
        time, values = _split(line, len(names))
        if len(values) != len(names):
            raise errors.ParseError(
                'sysstat', f'{len(values)} values below {len(names)} names',
                line)
        yield Row(time, dict(zip(names, values, strict=True)))


def _split(line: str, columns: int | None) -> tuple[str, list[str]]:
    """Time and fields; a command in the last column may hold blanks."""
    time, _blank, rest = line.strip().partition(' ')
    if time not in ('Time', _AVERAGE) and not _TIME.fullmatch(time):
        raise errors.ParseError('sysstat', 'there is no time in a line', line)
    fields = rest.split(None, columns - 1 if columns else -1)
    if fields[:1] in (['AM'], ['PM']):
        fields = rest.split(None, columns if columns else -1)[1:]
    return time, [field.strip() for field in fields]


def having(rows: Sequence[Row], column: str) -> list[Row]:
    """Return the rows of the table that has a column."""
    return [row for row in rows if column in row.values]
