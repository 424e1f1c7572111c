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

"""Records that services and hosts of other releases have written (pure).

A record is a JSON object that names the version of its format. One that is
malformed, or of a version with another meaning, counts as none: readers of
all releases go on without it.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import errno
import json
import os
from pathlib import Path
import stat
from typing import Any
from typing import TypeVar

T = TypeVar('T')

#: Raised by code that takes a malformed record apart.
MALFORMED = (AttributeError, KeyError, OverflowError, RecursionError,
             TypeError, ValueError)


#: Maximum length of a record's file in bytes; a longer file is not read.
LONGEST_FILE = 16 * 2 ** 20


def read_record_file(path: Path, longest: int = LONGEST_FILE) -> str:
    """Return the text of a record's file.

    Another user may have put anything else in its place: a link is not
    followed, and opening a FIFO does not wait for a writer.

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


def read_file(path: Path | None) -> str:
    """Return the text of a record's file; empty if it cannot be read.

    :param path: None for no file.
    """
    try:
        return read_record_file(path) if path else ''
    except OSError:
        return ''


def select_fields(dataclass_type: type,
                  found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a JSON object that are fields of a dataclass.

    Other values are of other releases, and are left out.
    """
    return {field.name: found[field.name]
            for field in dataclasses.fields(dataclass_type)
            if field.name in found}


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
        found = json.loads(text or 'null')
        if not isinstance(found, dict) or found['version'] != version:
            return None
        return build(found)
    except MALFORMED:
        return None
