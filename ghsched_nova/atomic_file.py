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

"""Atomic replacement of files, complete and synced to disk."""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import secrets
import shutil
from typing import BinaryIO


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically.

    Readers see either the old content or the new content. The file is replaced
    by a new one that was synced to disk. If the path is a symbolic link, the
    link itself is replaced.

    :raises OSError: if the file cannot be written; the old file then remains.
    """
    with create_temporary_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).replace(path)
    with contextlib.suppress(PermissionError):
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Sync a directory to disk, so that renamed files survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY
                         | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def create_temporary_file(target: Path) -> Iterator[BinaryIO]:
    """Within this context, use a temporary file next to a target file.

    The context yields the temporary file, which has the owner and mode of the
    target. It is removed at the end unless it was renamed.
    """
    temporary = target.with_name(f'.ghsched-{secrets.token_hex(8)}')
    # O_EXCL follows no link.
    with temporary.open('xb') as file:
        try:
            if target.is_file() and not target.is_symlink():
                owned = target.stat()
                os.fchown(file.fileno(), owned.st_uid, owned.st_gid)
                shutil.copymode(target, temporary)
            yield file
        finally:
            temporary.unlink(missing_ok=True)
