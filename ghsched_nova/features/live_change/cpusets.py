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

"""Control groups that restrict the memory of a running QEMU to NUMA nodes."""

from pathlib import Path

from ghsched_placement.base import cpulist

#: Mount point of control groups.
ROOT = Path('/sys/fs/cgroup')
#: File of a control group that holds its NUMA nodes.
MEMS = 'cpuset.mems'


def find_cpuset_groups(pid: int, proc: Path = Path('/proc'),
                       root: Path = ROOT) -> list[Path]:
    """Return the cpuset control groups of a QEMU process and of its threads.

    Groups that QEMU may share with other processes are left out.

    :returns: directories of the groups.
    """
    found: dict[Path, None] = {}
    try:
        tasks = sorted((proc / str(pid) / 'task').iterdir())
    except OSError:
        return []
    for task in tasks:
        path = _directory(task, root)
        if path is not None:
            found[path] = None
    return list(found)


def _directory(task: Path, root: Path) -> Path | None:
    try:
        lines = (task / 'cgroup').read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _number, controllers, name = line.split(':', 2)
        if controllers in ('', 'cpuset') and len(Path(name).parts) > 2:
            path = root / controllers / name.lstrip('/')
            if (path / MEMS).exists() and '..' not in path.parts:
                return path
    return None


def read_cpuset_mems(path: Path) -> frozenset[int] | None:
    """Read the NUMA nodes on which a control group may allocate memory.

    :param path: directory of the group.
    :returns: None if the nodes are unknown.
    """
    return cpulist.read_cpu_list(path / MEMS)
