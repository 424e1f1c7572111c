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

"""Files that a command writes: whole, or not at all.

A new file takes the name of the one that was there. Where that cannot be,
the one that is there is written: a device, a pipe, a file that the command
was given open, a mount point, a file in a directory that is not writable.
"""

from collections.abc import Callable
import errno
import os
from pathlib import Path
import stat

from ghsched_nova import atomic_file

#: No other file can take this name: it is a mount point, or the directory is
#: not writable, or the owner cannot be kept. See rename(2) and chown(2).
_NAME_IS_FIXED = {errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS}


def check_writable(path: Path) -> None:
    """Check that a file can be written, without changing any file.

    :raises OSError: with the path, when it cannot be written.
    """
    _write_by_name_or_in_place(path, _try_temporary_file, _try_open)


def save_file(path: Path, content: str | bytes) -> None:
    """Replace a file's content atomically; readers see the old or the new one.

    A file that cannot be replaced is written in place. Mode and owner are
    preserved.

    :raises OSError: with the path, when the file cannot be written.
    """
    def replace(target: Path) -> None:
        _try_existing(target)
        atomic_file.write_file(target, content)

    def write(given: Path) -> None:
        if isinstance(content, str):
            given.write_text(content, encoding='utf-8')
        else:
            given.write_bytes(content)

    _write_by_name_or_in_place(path, replace, write)


def _write_by_name_or_in_place(path: Path, by_name: Callable[[Path], None],
                               in_place: Callable[[Path], None]) -> None:
    """Call one of two writers, for a file to replace or to write in place.

    :param by_name: writer that replaces a file; gets the resolved path.
    :param in_place: writer for pipes and the like; gets the path as given.
    """
    try:
        if _is_replaceable(path):
            try:
                by_name(path.resolve())
                return
            except OSError as error:
                if error.errno not in _NAME_IS_FIXED or not path.exists():
                    raise
        in_place(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _is_replaceable(path: Path) -> bool:
    """Return whether a path is a regular file, or does not exist yet.

    Files under /proc/self/fd are open already and are not replaceable.
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


def _try_temporary_file(target: Path) -> None:
    """Create and remove a temporary file in a path's directory.

    :raises OSError: when that is not possible.
    """
    _try_existing(target)
    with atomic_file.create_temporary_file(target):
        pass


def _try_existing(target: Path) -> None:
    """Check that an existing path can be opened for writing.

    :raises OSError: when it cannot.
    """
    if target.exists():
        _try_open(target)


def _try_open(path: Path) -> None:
    """Open a path for writing and close it.

    :raises OSError: when it cannot be opened.
    """
    if not path.is_fifo():
        with path.open('a', encoding='utf-8'):
            return
    # Its reader would take the end of the check for the end of the text.
    if not os.access(path, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
