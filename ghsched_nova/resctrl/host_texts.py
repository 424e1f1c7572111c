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

"""Texts of resctrl and sysfs from which a host's controls are derived."""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
import os
from pathlib import Path

from ghsched_nova.resctrl import described
from ghsched_nova.resctrl.errors import ResctrlUnavailable
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import sysfs as sysfs_files

#: Files of info/ of which only the presence matters. They are not read,
#: because a read of them clears info/last_cmd_status (the functions *_show()
#: in fs/resctrl that call rdt_last_cmd_clear()), which another process may be
#: about to read.
_NOT_READ = frozenset({'available_mbm_cntrs', 'io_alloc_cbm',
                       'mbm_assign_on_mkdir'})

#: Maximum depth of the directories that describe schemata lines.
_DEPTH = 4


@dataclass(frozen=True)
class HostFiles:
    """Contents of the kernel's files that describe a host's controls.

    The controls of a host cannot change while the contents stay the same and
    the host is not rebooted.

    :param resctrl: mount point of resctrl.
    :param sysfs: mount point of sysfs.
    :param info: text of the files below resctrl's info/, by path.
    :param schemata: text of the root group's schemata.
    :param names: names of the files in the root group.
    :param cpus: text of ``cpulist`` by host NUMA node; None if it cannot be
        read.
    :param with_memory: text of ``has_memory``, the host NUMA nodes that have
        memory; None if it cannot be read.
    :param is_arm: whether the processors are 64-bit Arm processors.
    """

    resctrl: Path
    sysfs: Path
    info: Mapping[str, str]
    schemata: str
    names: frozenset[str]
    cpus: Mapping[int, str | None]
    with_memory: str | None = None
    is_arm: bool = False


def read_files(resctrl: Path, sysfs: Path) -> HostFiles:
    """Read the files of resctrl and sysfs that describe a host's controls.

    :raises ResctrlUnavailable: if resctrl is not mounted.
    """
    info = read_info(resctrl)
    names = frozenset(path.name for path in sysfs_files.list_directory(resctrl)
                      if os.path.isfile(path))
    cpus = {node: sysfs_files.read_text(path / 'cpulist')
            for node, path in sysfs_files.iterate_numa_nodes(sysfs)}
    with_memory = sysfs_files.read_text(
        sysfs / 'devices' / 'system' / 'node' / 'has_memory')
    is_arm = sysfs_files.is_arm(sysfs)
    path = resctrl / 'schemata'
    fs.wait_for_writer(resctrl)
    text = sysfs_files.read_text(path)
    if text is None:
        raise ResctrlUnavailable(f'{path} cannot be read')
    return HostFiles(resctrl, sysfs, info, text, names, cpus, with_memory,
                     is_arm)


def read_info(resctrl: Path) -> dict[str, str]:
    """Return the text of the files below resctrl's info/, by path.

    The text of a file that ghsched does not need is empty.

    :param resctrl: mount point of resctrl.
    :raises ResctrlUnavailable: if resctrl is not mounted there, or this
        process may not open it.
    """
    top = resctrl / 'info'
    if os.path.isdir(resctrl) and not os.access(resctrl, os.X_OK):
        raise ResctrlUnavailable(
            f'the user of this process has no access to {resctrl}; give it '
            f'the group of nova-compute (chgrp nova {resctrl})')
    if not os.path.isdir(top):  # False for a dead mount, too
        raise ResctrlUnavailable(
            f'there is no {top}; is resctrl mounted? '
            f'(mount -t resctrl resctrl {resctrl})')
    return {file.relative_to(top).as_posix():
            '' if file.name in _NOT_READ else sysfs_files.read_text(file) or ''
            for file in _list_info_files(top)}


def _list_info_files(directory: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the files of resctrl's info/ that describe controls.

    These are all files in the subdirectories of info/. Of deeper directories,
    only those that describe schemata lines are searched.

    :param directory: info/, or a directory below it.
    :param depth: depth of the directory; 0 for info/.
    """
    for path in sysfs_files.list_directory(directory):
        if os.path.isfile(path):
            if depth:
                yield path
        elif (depth != 1 and depth <= _DEPTH
                or path.name in described.DIRECTORIES):
            yield from _list_info_files(path, depth + 1)
