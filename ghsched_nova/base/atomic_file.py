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

"""Atomic replacement of files, complete and synced to disk.

Another user may own the directory and change the names in it at any time. So
nothing is done to a path after the file was opened: mode and owner are set by
its descriptor, names are looked up in the directory as it was opened, and a
name that is another file by then is not renamed.
"""

from collections.abc import Iterator
import contextlib
import errno
import functools
import grp
import os
from pathlib import Path
import re
import secrets
import stat
import time
from typing import BinaryIO

#: Mode of a new state file: names, projects and use of servers are for
#: nobody but Nova's services and the group that may read them.
STATE_MODE = 0o640
#: Group of the services of a compute host that may read resctrl and new state
#: files: nova-compute and the exporter.
READERS = 'ghsched-resctrl'
#: Seconds after which a temporary file is left over from a killed writer.
LEFTOVER_S = 3600.0

_TEMPORARY = re.compile('[.]ghsched-[0-9a-f]{16}')


def write_state_file(path: Path, content: str | bytes) -> None:
    """Write a state file atomically; see :func:`write_file`.

    A new file belongs to the group READERS, if this process is a member.

    :raises OSError: if the file cannot be written; the old file then remains.
    """
    is_new = not path.exists()
    try:
        write_file(path, content, STATE_MODE)
    except PermissionError:
        if is_new or path.lstat().st_gid in (os.getegid(), *os.getgroups()):
            raise
        # This process is no member of the file's group any more.
        os.chown(path, -1, os.getegid(), follow_symlinks=False)
        write_file(path, content, STATE_MODE)
    if is_new:
        with contextlib.suppress(KeyError, OSError):
            os.chown(path, -1, grp.getgrnam(READERS).gr_gid,
                     follow_symlinks=False)


def write_file(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file atomically.

    Readers see either the old content or the new content. The file is replaced
    by a new one that was synced to disk. If the path is a symbolic link, the
    link itself is replaced. The new file has the owner and the mode of the old
    one.

    :param mode: mode of the file if there was none, before the umask.
    :raises OSError: if the file cannot be written; the old file then remains.
    """
    remove_leftover_files(path.parent)
    with (_open_directory(path.parent) as directory,
          _create_file(directory, path.name, mode) as (name, file)):
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
        _check_same_file(directory, name, file)
        os.replace(name, path.name, src_dir_fd=directory,
                   dst_dir_fd=directory)
        with contextlib.suppress(PermissionError):
            _sync_directory(directory)


@contextlib.contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    """Within this context, a directory is open; yields its descriptor."""
    # Files can be created in a directory that may not be read.
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_directory(directory: int) -> None:
    """Sync a directory to disk, so that renamed files survive a crash.

    :raises PermissionError: if the directory may not be read.
    """
    descriptor = os.open('.', os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
                         dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _create_file(directory: int, target: str,
                 mode: int) -> Iterator[tuple[str, BinaryIO]]:
    """Within this context, use a temporary file in a directory.

    The context yields its name and the file, which has the owner and mode of
    the target. Its name is removed at the end unless it was renamed.

    :param directory: descriptor of the directory.
    :param target: name of the file that will be replaced.
    :param mode: mode of the file if there is no target, before the umask.
    """
    owned = _find_regular_file(directory, target)
    name = f'.ghsched-{secrets.token_hex(8)}'
    # Nobody may open the file before it has the mode of the target.
    descriptor = os.open(
        name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        | os.O_CLOEXEC, 0o600 if owned else mode, dir_fd=directory)
    with open(descriptor, 'w+b') as file:
        try:
            if owned:
                os.fchmod(descriptor, stat.S_IMODE(owned.st_mode))
                os.fchown(descriptor, owned.st_uid, owned.st_gid)
            yield name, file
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)


def _find_regular_file(directory: int, name: str) -> os.stat_result | None:
    """Return the status of a regular file; None for a link or no file."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _check_same_file(directory: int, name: str, file: BinaryIO) -> None:
    """Check that a name in a directory is still that of an open file.

    :param directory: descriptor of the directory.
    :raises OSError: if it is the name of another file or of none.
    """
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not os.path.samestat(found, os.fstat(file.fileno())):
        raise OSError(errno.ESTALE, 'replaced by another user', name)


@functools.cache
def remove_leftover_files(directory: Path) -> None:
    """Remove temporary files of killed writers; never raise.

    A process does so once for each directory, before its first write there.
    Only files of this process's user that have not changed for LEFTOVER_S are
    removed.
    """
    with (contextlib.suppress(OSError),
          _open_directory(directory) as descriptor):
        for name in os.listdir(f'/proc/self/fd/{descriptor}'):
            if _TEMPORARY.fullmatch(name):
                _remove_if_leftover(descriptor, name)


def _remove_if_leftover(directory: int, name: str) -> None:
    with contextlib.suppress(OSError):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
                and time.time() - found.st_mtime > LEFTOVER_S):
            os.unlink(name, dir_fd=directory)
