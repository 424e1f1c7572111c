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

"""Files that another takes the place of: whole, and on the disk."""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import secrets
import shutil
from typing import TextIO


def replace(path: Path, text: str) -> None:
    """Write a file; readers have the old one or the new one, none a part.

    A new file takes the name, also of a link. It is on the disk before, and
    no two writers share one.

    :raises OSError: when it cannot be written; what was there stays.
    """
    with neighbour(path) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).replace(path)
    with contextlib.suppress(PermissionError):
        _sync(path.parent)


def _sync(directory: Path) -> None:
    """Put the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY
                         | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def neighbour(target: Path) -> Iterator[TextIO]:
    """Make a new file beside another, with the rights of that if it is there.

    It is gone at the end, if it has not become the other.
    """
    beside = target.with_name(f'.ghsched-{secrets.token_hex(8)}')
    # O_EXCL follows no link.
    with beside.open('x', encoding='utf-8') as file:
        try:
            if target.is_file() and not target.is_symlink():
                owned = target.stat()
                os.fchown(file.fileno(), owned.st_uid, owned.st_gid)
                shutil.copymode(target, beside)
            yield file
        finally:
            beside.unlink(missing_ok=True)
