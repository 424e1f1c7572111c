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


"""The text of a ``schemata`` file and what it says.

The format is that of the kernel (Documentation/filesystems/resctrl.rst): one
line per resource, ``<name>:<domain>=<value>;<domain>=<value>...``, with blanks
and zeros as padding when read. Names are taken exactly up to the colon, so
that ``MBPRI`` is never mistaken for ``MB``. What a value means is not known
here; it is kept as it was written, and so is every line of a resource that
nobody here has heard of. A line that begins with ``#`` is kept verbatim: it
is how a kernel shows controls to software that does not know them (RFC of
October 2025, "Generic schema description" on the linux-kernel list).
"""

import collections
from dataclasses import dataclass
import re
from typing import Annotated

from ghsched_nova.base import bounds

#: Name of a line whose values ghsched writes.
LineName = Annotated[str, bounds.Text('[A-Z][A-Z0-9_]*', 32)]
#: Number of a resctrl domain, IOMMU group or vCPU, or a count.
Number = Annotated[int, bounds.Range(0, 2 ** 31 - 1)]
#: Value in a line.
Value = Annotated[int, bounds.Range(0, 2 ** 32 - 1)]

_NAME = re.compile(r'[!-9<>-~]+')
_DOMAIN = re.compile(r'[0-9]{1,9}')
_VALUE = re.compile(r'[!-:<>-~]+')
_DIGITS = {10: re.compile(r'[0-9]{1,18}'),
           16: re.compile(r'[0-9a-fA-F]{1,32}')}
_CACHE_LINE = re.compile(r'L[0-9]+(CODE|DATA)?')
#: Bandwidth lines that openEuler's libvirt can parse (virresctrl.c).
_OPENEULER_LINES = frozenset({'MB', 'MBHDL', 'MBPRI', 'MBMIN'})


class SchemataError(ValueError):
    """Reason, with the line, why a schemata file is malformed."""


@dataclass(frozen=True)
class Line:
    """Line of a schemata file: values of a control by resctrl domain.

    :param name: text before the colon, e.g. ``MB``; empty for a line that
        begins with ``#``.
    :param values: pairs of domain id and text of the value, in the order of
        the file.
    :param body: text after the colon if it has words instead of values, such
        as ``L3:uninitialized`` of a group that will be pseudo-locked, or
        ``L2:S;2=fc;S`` of OLK-5.10, where S stands for fully shared caches;
        the whole text of a line that begins with ``#``.
    """

    name: str
    values: tuple[tuple[int, str], ...] = ()
    body: str = ''


@dataclass(frozen=True)
class Schemata:
    """All the lines of one ``schemata`` file."""

    lines: tuple[Line, ...] = ()

    def line(self, name: str) -> Line | None:
        """Return the schemata line of a resource, e.g. ``MB``.

        Returns None if there is no such line.
        """
        return next((line for line in self.lines if line.name == name), None)

    def values(self, name: str, base: int = 10) -> dict[int, int] | None:
        """Return the values of a schemata line by domain id.

        :param name: name of the line, e.g. ``MB``.
        :param base: 10 for bandwidth, 16 for cache bit masks.
        :returns: None if there is no such line.
        :raises SchemataError: for a value that is not a number of that base.
        """
        line = self.line(name)
        if line is None:
            return None
        if line.body:
            raise SchemataError(f'{name}: {line.body!r} is not a list of '
                                'domain=value')
        return {domain: _parse_number(name, value, base)
                for domain, value in line.values}


def parse_schemata(text: str) -> Schemata:
    """Parse the text of a resctrl schemata file.

    The file contains the limits of a control group.

    :raises SchemataError: for a line without a name, a malformed domain id, a
        missing value, or a duplicate name or domain.
    """
    lines = tuple(
        _parse_line(row) for row in text.split('\n') if row.strip(' \t')
    )
    for name, count in collections.Counter(
            line.name for line in lines if line.name).items():
        if count > 1:
            raise SchemataError(f'{name}: the line is duplicate')
    return Schemata(lines)


def parse_kernel_schemata(text: str) -> Schemata:
    """Parse a schemata file of the kernel, and refuse an incomplete text.

    :raises SchemataError: if the text is malformed or its end is cut off.
    """
    if not text:
        raise SchemataError('the file is empty')
    if not text.endswith('\n'):
        raise SchemataError('the file does not end with a newline, so it is '
                            'incomplete')
    return parse_schemata(text)


def render_values(values: tuple[tuple[int, str], ...]) -> str:
    """Return the values of a schemata line as text, such as ``0=50;1=100``.

    :param values: pairs of domain id and value.
    """
    return ';'.join(f'{domain}={value}' for domain, value in values)


def _parse_line(row: str) -> Line:
    if row.lstrip(' \t').startswith('#'):
        if not row.replace('\t', ' ').isprintable():
            raise SchemataError(f'{row!r} has control characters')
        return Line('', body=row)
    name, colon, body = row.partition(':')
    name, body = name.strip(' \t'), body.strip(' \t')
    if not colon:
        raise SchemataError(f'{row!r} has no colon')
    if not _NAME.fullmatch(name):
        raise SchemataError(f'{row!r} does not begin with a resource name')
    if not body:
        return Line(name)
    items = [item.strip(' \t') for item in body.split(';')]
    if any(item and '=' not in item for item in items):
        if not body.isprintable():
            raise SchemataError(f'{row!r} has control characters')
        return Line(name, body=body)
    values = tuple(_parse_value(row, item) for item in items)
    if len({domain for domain, _value_ in values}) != len(values):
        raise SchemataError(f'{row!r} names a domain more than once')
    return Line(name, values)


def _parse_value(row: str, item: str) -> tuple[int, str]:
    domain, equals, value = (part.strip(' \t')
                             for part in item.partition('='))
    if not equals or not _DOMAIN.fullmatch(domain):
        raise SchemataError(f'{row!r}: {item!r} does not begin with the '
                            'number of a domain')
    if not _VALUE.fullmatch(value):
        raise SchemataError(f'{row!r}: {item!r} has no value')
    return int(domain), value


def _parse_number(name: str, value: str, base: int) -> int:
    if not _DIGITS[base].fullmatch(value):
        raise SchemataError(f'{name}: {value!r} is not a number of base '
                            f'{base}')
    return int(value, base)


def can_libvirt_parse(root: Schemata) -> bool:
    """Whether upstream libvirt can parse a host's schemata file."""
    return all(line.name == 'MB' if line.name.startswith('MB')
               else _CACHE_LINE.fullmatch(line.name) is not None
               for line in root.lines if line.name.startswith(('MB', 'L')))


def can_openeuler_libvirt_parse(root: Schemata) -> bool:
    """Whether openEuler's libvirt can parse a host's schemata file.

    It fails on further lines that begin with ``MB``, such as those of OLK-5.10
    mount options and of NVIDIA.
    """
    return all(line.name in _OPENEULER_LINES for line in root.lines
               if line.name.startswith('MB'))
