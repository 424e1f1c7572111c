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

"""Files that a command writes completely or not at all.

A new file takes the name of the one that was there. Where that cannot be,
the one that is there is written: a device, a pipe, a file that the command
was given open, a mount point, a file in a directory that is not writable.
"""

from collections.abc import Callable
import errno
import os
from pathlib import Path
import stat

from ghsched_nova.base import atomic_file

#: Errors of rename(2) and chown(2) after which the file is written in place:
#: the path is a mount point, its directory is not writable, or the owner
#: cannot be kept.
_NAME_IS_FIXED = {errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS}


def check_writable(path: Path) -> None:
    """Check that a file can be written, without changing it.

    :raises OSError: if the file cannot be written. The error has the path.
    """
    _replace_or_write_in_place(
        path, _check_replaceable, _check_path_writable
    )


def replace_file_content(path: Path, content: str | bytes) -> None:
    """Replace the content of a file atomically, keeping its mode and owner.

    Readers see either the old or the new content. A file that cannot be
    replaced, such as a pipe, is written in place.

    :raises OSError: if the file cannot be written. The error has the path.
    """
    def replace(target: Path) -> None:
        _check_existing_file_writable(target)
        atomic_file.write_file(target, content)

    def write(given: Path) -> None:
        if isinstance(content, str):
            given.write_text(content, encoding='utf-8')
        else:
            given.write_bytes(content)

    _replace_or_write_in_place(path, replace, write)


def _replace_or_write_in_place(path: Path, replace: Callable[[Path], None],
                               write_in_place: Callable[[Path], None]) -> None:
    """Call one of two writers: to replace a file, or to write it in place.

    :param replace: writer that replaces a regular file; gets the resolved
        path.
    :param write_in_place: writer for files such as pipes; gets the path as
        given.
    """
    try:
        if _is_replaceable(path):
            try:
                replace(path.resolve())
                return
            except OSError as error:
                if error.errno not in _NAME_IS_FIXED or not path.exists():
                    raise
        write_in_place(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _is_replaceable(path: Path) -> bool:
    """Whether a new file can be moved to a path, in place of the old one.

    This is so if the path is a regular file or does not exist. Files under
    /proc/self/fd are already open and cannot be replaced.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return True
    while path.is_symlink():
        if path.parent.resolve().is_relative_to('/proc'):
            return False
        path = path.parent / path.readlink()
    return stat.S_ISREG(mode)


def _check_replaceable(target: Path) -> None:
    """Check that a file can be replaced, by creating a temporary file.

    If the file exists, it must also be writable.

    :raises OSError: if the file cannot be replaced.
    """
    _check_existing_file_writable(target)
    with atomic_file.create_temporary_file(target):
        pass


def _check_existing_file_writable(target: Path) -> None:
    """Check that a file can be opened for writing, if it exists.

    :raises OSError: if it cannot be opened.
    """
    if target.exists():
        _check_path_writable(target)


def _check_path_writable(path: Path) -> None:
    """Check that a path can be opened for writing.

    A FIFO is not opened, because its reader would see an end of file.

    :raises OSError: if the path cannot be opened.
    """
    if not path.is_fifo():
        with path.open('a', encoding='utf-8'):
            return
    # Its reader would take the end of the check for the end of the text.
    if not os.access(path, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
