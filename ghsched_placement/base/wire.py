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

"""Parse JSON records of services, hosts and older releases.

A record is a JSON object that names the version of its format. A malformed
record, or one of another version, counts as missing: readers of all releases
continue without it.

The writer of a record is not trusted, so each field has a type, a range and a
bounded length. The functions ``check_*`` return a valid value and raise one of
:data:`MALFORMED` for any other value.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
import errno
import functools
import json
import os
from pathlib import Path
import re
import stat
import types
import typing
from typing import Any
from typing import Generic
from typing import Protocol
from typing import TypeVar

from ghsched_placement.base import decimals

T = TypeVar('T')

#: Exceptions of functions that parse a malformed record.
MALFORMED = (AttributeError, KeyError, OverflowError, RecursionError,
             TypeError, ValueError)

#: Largest integer that every JSON parser represents exactly.
MAX_INTEGER = 2 ** 53 - 1
#: Largest number of a host NUMA node (MAX_NUMNODES of Linux is 1024).
MAX_NODE = 1023
#: Largest load, waiting time or allocation ratio.
MAX_LOAD = 1e6
#: Seconds from 1970 to the end of 9999, the last year that can be displayed.
MAX_TIME = 253402300799
#: Maximum number of items in a list or an object of a record.
MAX_ENTRIES = 4096
#: Maximum length of a text in a record.
MAX_TEXT = 4096
#: Maximum length of a record that a host sends, in characters.
MAX_RECORD = 2 ** 20
#: Maximum length of a record's file in bytes; a longer file is not read.
LONGEST_FILE = 16 * 2 ** 20

#: Control characters, which terminals act on, and halves of characters, which
#: cannot be encoded.
_UNSAFE = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]')


# -- values -------------------------------------------------------------------


def check_integer(value: object, maximum: int = MAX_INTEGER,
                  minimum: int = 0) -> int:
    """Return a value if it is an integer within limits; else raise an error.

    :param maximum: largest value that is allowed.
    :param minimum: smallest value that is allowed.
    :raises TypeError: when the value is not an integer.
    :raises ValueError: when the value is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(_format_type_error(value, 'a number'))
    if not minimum <= value <= maximum:
        raise ValueError(f'a number is not in {minimum}..{maximum}')
    return value


def check_number(value: object, maximum: float = MAX_INTEGER) -> float:
    """Return a value if it is a number from 0 to a maximum.

    :raises TypeError: when the value is not a number.
    :raises ValueError: when the value is out of range, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(_format_type_error(value, 'a number'))
    if not 0 <= value <= maximum:
        raise ValueError(f'a number is not in 0..{maximum}')
    return value


def check_node(value: object) -> int:
    """Return a value if it is the number of a host NUMA node.

    :raises TypeError, ValueError: for any other value.
    """
    return check_integer(value, MAX_NODE)


def check_node_key(text: object) -> int:
    """Return the key of a JSON object as the number of a host NUMA node.

    :raises TypeError, ValueError: if it is not such a number.
    """
    if not isinstance(text, str):
        raise TypeError(_format_type_error(text, 'a text'))
    return check_node(decimals.parse_decimal(text))


def check_flag(value: object) -> bool:
    """Return a value if it is True or False.

    :raises TypeError: for any other value.
    """
    if not isinstance(value, bool):
        raise TypeError(_format_type_error(value, 'true or false'))
    return value


def check_text(value: object, longest: int = MAX_TEXT) -> str:
    """Return a text, cut at a maximum length, without control characters.

    Each control character is replaced by a question mark, except tabs and
    newlines.

    :raises TypeError: when the value is not a text.
    """
    if not isinstance(value, str):
        raise TypeError(_format_type_error(value, 'a text'))
    return _UNSAFE.sub('?', value[:longest])


def check_list(value: object, most: int = MAX_ENTRIES) -> Sequence[Any]:
    """Return a value if it is a list with a limited number of items.

    :raises TypeError: when the value is not a list.
    :raises ValueError: when there are too many items.
    """
    if not isinstance(value, list | tuple):
        raise TypeError(_format_type_error(value, 'a list'))
    return _check_length(value, most)


def check_object(value: object, most: int = MAX_ENTRIES) -> Mapping[str, Any]:
    """Return a value if it is a JSON object with a limited number of fields.

    :raises TypeError: when the value is not a JSON object.
    :raises ValueError: when there are too many fields.
    """
    if not isinstance(value, Mapping):
        raise TypeError(_format_type_error(value, 'an object'))
    return _check_length(value, most)


def _format_type_error(value: object, wanted: str) -> str:
    """Return the error text for a value that is not of the wanted type."""
    return f'{type(value).__name__} is not {wanted}'


_Sized = TypeVar('_Sized', Sequence[Any], Mapping[str, Any])


def _check_length(value: _Sized, most: int) -> _Sized:
    if len(value) > most:
        raise ValueError(f'{len(value)} items (at most {most})')
    return value


#: Check of a field by the type of the field.
_CHECKS: Mapping[Any, Callable[[object], Any]] = {
    int: check_integer, float: check_number, bool: check_flag,
    str: check_text}
#: Fields of all dataclasses that have the number of a host NUMA node.
_NODE_FIELDS = ('node', 'host_node')


def check_fields(dataclass_type: type,
                 found: object) -> dict[str, Any]:
    """Return the values of a JSON object that are fields of a dataclass.

    Unknown values of other releases are left out, and so are fields with lists
    and objects. A number must be from 0 to MAX_INTEGER.

    :param dataclass_type: class with fields of simple types, which may be
        None as well.
    :raises TypeError, ValueError: if a value has another type than its field,
        or is out of range.
    """
    values = check_object(found)
    return {name: None if value is None and optional else check(value)
            for name, check, optional in _list_field_checks(dataclass_type)
            if (value := values.get(name, dataclasses.MISSING))
            is not dataclasses.MISSING}


@functools.cache
def _list_field_checks(dataclass_type: type
                       ) -> list[tuple[str, Callable[[object], Any], bool]]:
    """Return name, check and permission of None for each simple field."""
    found = []
    for field in dataclasses.fields(dataclass_type):
        kinds = (typing.get_args(field.type)
                 if isinstance(field.type, types.UnionType) else (field.type,))
        check = _CHECKS.get(kinds[0])
        if field.name in _NODE_FIELDS:
            check = check_node
        if check is not None:
            found.append((field.name, check, type(None) in kinds))
    return found


# -- files --------------------------------------------------------------------


def read_record_file(path: Path, longest: int = LONGEST_FILE) -> str:
    """Return the text of a record's file.

    Another user may have replaced the file: a link is not followed, and
    opening a FIFO does not wait for a writer.

    :param longest: maximum length of the file in bytes.
    :raises OSError: if the file is a link, not regular, too long, not in UTF-8
        or unreadable.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        | os.O_NOCTTY)
    with open(descriptor, 'rb') as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, 'not a regular file', str(path))
        content = stream.read(longest + 1)
    if len(content) > longest:
        raise OSError(errno.EFBIG, f'longer than {longest} bytes', str(path))
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, 'not in UTF-8', str(path)) from None


def read_file_or_empty(path: Path | None) -> str:
    """Return the text of a record's file; empty if it cannot be read.

    :param path: path of the file; None if there is none.
    """
    try:
        return read_record_file(path) if path else ''
    except OSError:
        return ''


# -- records ------------------------------------------------------------------


def parse_record(text: Any, version: int, build: Callable[[dict[str, Any]], T]
                 ) -> T | None:
    """Parse a JSON record of a known version from another service.

    Services of different releases exchange such records.

    :param text: JSON text of the record; None if there is none.
    :param version: version of the record's format that can be read.
    :param build: builds the result from the parsed JSON object; may raise any
        of :data:`MALFORMED`.
    :returns: None if the record is missing, malformed or of another version.
    """
    try:
        return _build_record(text, version, build)
    except MALFORMED:
        return None


def _build_record(text: Any, version: int,
                  build: Callable[[dict[str, Any]], T]) -> T | None:
    """Parse a JSON record; None if it is missing or of another version.

    :raises MALFORMED: if the record is malformed.
    """
    if text is None or text == '':
        return None
    found = json.loads(text)
    return build(found) if found['version'] == version else None


@dataclass(frozen=True)
class RecordCodec(Generic[T]):
    """Conversion of a record to JSON and back.

    :param name: name of the record: its file in Nova's state_path, or its key
        in stats or diagnostics.
    :param version: version of the format that can be read.
    :param build: builds the record from the parsed JSON object; may raise any
        of :data:`MALFORMED`.
    :param make_fields: returns the fields of a record's JSON object.
    """

    name: str
    version: int
    build: Callable[[dict[str, Any]], T]
    make_fields: Callable[[T], Mapping[str, Any]]

    def render(self, record: T) -> str:
        """Return a record as JSON."""
        return json.dumps({'version': self.version,
                           **self.make_fields(record)}, separators=(',', ':'))


@dataclass(frozen=True)
class FileFormat(RecordCodec[T]):
    """Format of a record in a file of its own.

    :param make_empty: makes the record for a missing or malformed file.
    :param longest: maximum length of the file in bytes.
    """

    make_empty: Callable[[], T]
    longest: int = LONGEST_FILE

    def parse(self, text: str) -> T:
        """Parse a record from JSON; empty if the text is malformed."""
        return (parse_record(text, self.version, self.build)
                or self.make_empty())

    def read(self, path: Path | None) -> T:
        """Read a record from a file; empty if it cannot be read.

        :param path: path of the file; None if there is none.
        """
        return self.parse(read_file_or_empty(path))


class RecordFormat(Protocol):
    """Format of a record that has its own key in stats or diagnostics."""

    @property
    def name(self) -> str:
        """Key of the record in the stats or the diagnostics."""

    def is_malformed(self, fields: Mapping[str, Any]) -> bool:
        """Whether the record is there and cannot be parsed.

        :param fields: a host's stats or diagnostics, by key.
        """


@dataclass(frozen=True)
class Format(RecordCodec[T]):
    """Format of a record that a host sends under a key of its own."""

    def make_field(self, record: T) -> dict[str, str]:
        """Return a record as a field of stats or diagnostics."""
        return {self.name: self.render(record)}

    def parse(self, fields: Mapping[str, Any]) -> T | None:
        """Parse the record among the fields that a host sends.

        :returns: None if it is missing, malformed or of another version.
        """
        try:
            return self._build(fields)
        except MALFORMED:
            return None

    def is_malformed(self, fields: Mapping[str, Any]) -> bool:
        """Whether the fields contain this record, but it is malformed.

        A record of another version is not malformed.
        """
        try:
            self._build(fields)
        except MALFORMED:
            return True
        return False

    def _build(self, fields: Mapping[str, Any]) -> T | None:
        text = fields.get(self.name)
        if text is not None:
            if not isinstance(text, str):
                raise TypeError(_format_type_error(text, 'a text'))
            _check_length(text, MAX_RECORD)
        return _build_record(text, self.version, self.build)
