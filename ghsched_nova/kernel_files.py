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

"""Writes to files of the kernel's own file systems.

A process that is root writes there by names that others choose, so no link is
followed, no file is made, and the file must be one of the kernel's.
"""

from collections.abc import Collection
from collections.abc import Iterable
import ctypes
import errno
import os
from pathlib import Path

#: ``f_type`` of statfs(2), <linux/magic.h>.
PROC = frozenset({0x9fa0})
CGROUPS = frozenset({0x63677270, 0x27e0eb})

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def file_system(path: str | int) -> int:
    """Return ``f_type`` of a path or a descriptor; 0 for none.

    It is the first word of the structure of statfs(2).
    """
    found = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None)
    failed = (libc.fstatfs(path, found) if isinstance(path, int)
              else libc.statfs(os.fsencode(path), found))
    return 0 if failed else int(found[0])


def write(top: Path, names: Iterable[str], text: str,
          file_systems: Collection[int]) -> None:
    """Write a text in one piece to a file that is there.

    :param top: a directory that nobody but root can replace.
    :param names: of the directories below it and of the file.
    :param file_systems: types that the file may be on.
    :raises OSError: when a name is a link, or the file is elsewhere.
    """
    *directories, last = names
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in directories:
            descriptor = _replaced(descriptor, name, _DIRECTORY)
        descriptor = _replaced(descriptor, last, os.O_WRONLY | os.O_NOFOLLOW
                               | os.O_CLOEXEC | os.O_NONBLOCK)
        if file_system(descriptor) not in file_systems:
            raise OSError(errno.EXDEV, 'not on a file system of the kernel',
                          str(Path(top, *names)))
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _replaced(directory: int, name: str, flags: int) -> int:
    """Open a file in a directory, and close the directory."""
    if name in ('', '.', '..') or '/' in name:
        raise FileNotFoundError(errno.ENOENT, 'not the name of a file', name)
    found = os.open(name, flags, dir_fd=directory)
    os.close(directory)
    return found
