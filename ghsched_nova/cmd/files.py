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
    """Raise OSError if a path cannot be written; change no file.

    :raises OSError: with the path, when nothing can be written there.
    """
    _write_by_name_or_in_place(path, _try_temporary_file, _try_open)


def save_file(path: Path, content: str | bytes) -> None:
    """Replace a file's content at once; readers see the old or the new one.

    It stays as far as the file can be replaced, which keeps its mode and
    owner.

    :raises OSError: with the path, when it cannot be written.
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
    """Call one of two writers: to replace a file's name, or write in place.

    :param by_name: gets the path that links lead to.
    :param in_place: gets the path as it is: /dev/stdout leads to a pipe, the
        name that can be read there leads nowhere.
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
    """Whether a path is a regular file of its own, or does not exist yet.

    What is behind a link of /proc/self/fd is open already, and whoever
    opened it reads on there.
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
    """Create and remove a temporary file beside a path, to test for errors."""
    _try_existing(target)
    with atomic_file.temporary_neighbour(target):
        pass


def _try_existing(target: Path) -> None:
    """Raise OSError if an existing path cannot be opened for writing."""
    if target.exists():
        _try_open(target)


def _try_open(path: Path) -> None:
    """Raise OSError if a path cannot be opened for writing."""
    if not path.is_fifo():
        with path.open('a', encoding='utf-8'):
            return
    # Its reader would take the end of the check for the end of the text.
    if not os.access(path, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
