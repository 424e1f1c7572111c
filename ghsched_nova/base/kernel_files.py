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

"""Writes of a root process to files of kernel file systems.

Other users choose the names, so no link is followed, no file is created, and
the file must be on a file system of the kernel.
"""

from collections.abc import Collection
from collections.abc import Iterable
import ctypes
import errno
import os
from pathlib import Path

#: File system types (``f_type`` of statfs(2), <linux/magic.h>).
PROC = frozenset({0x9fa0})
CGROUPS = frozenset({0x63677270, 0x27e0eb})

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def get_file_system_type(path: str | int) -> int:
    """Return the type of the file system that a file is on.

    The type is ``f_type`` of statfs(2); 0 means that it is unknown.

    :param path: path or descriptor of the file.
    """
    found = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None)
    failed = (libc.fstatfs(path, found) if isinstance(path, int)
              else libc.statfs(os.fsencode(path), found))
    return 0 if failed else int(found[0])


def write_kernel_file(top: Path, names: Iterable[str], text: str,
                      file_systems: Collection[int]) -> None:
    """Write to an existing sysfs, procfs or resctrl file in one system call.

    :param top: directory that only root can replace.
    :param names: names of the directories below ``top`` and of the file.
    :param file_systems: file system types that are accepted.
    :raises OSError: if a name is a symbolic link, or the file is on another
        file system.
    """
    *directories, last = names
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in directories:
            descriptor = _open_in_directory(descriptor, name, _DIRECTORY)
        descriptor = _open_in_directory(
            descriptor, last, os.O_WRONLY | os.O_NOFOLLOW
            | os.O_CLOEXEC | os.O_NONBLOCK)
        if get_file_system_type(descriptor) not in file_systems:
            raise OSError(errno.EXDEV, 'not on a file system of the kernel',
                          str(Path(top, *names)))
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _open_in_directory(directory: int, name: str, flags: int) -> int:
    """Open a file in an open directory, and close the directory.

    :param directory: descriptor of the directory.
    :param name: name of the file, without a slash.
    """
    if name in ('', '.', '..') or '/' in name:
        raise FileNotFoundError(errno.ENOENT, 'not the name of a file', name)
    found = os.open(name, flags, dir_fd=directory)
    os.close(directory)
    return found
