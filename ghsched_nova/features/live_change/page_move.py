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

"""Migration of the memory of a running QEMU to other NUMA nodes."""

from pathlib import Path
import time

from ghsched_nova.base import qemu
from ghsched_nova.features.live_change import cpusets
from ghsched_nova.features.live_change import numa_maps
from ghsched_nova.features.live_change import privileged

#: Number of attempts to move pages; I/O of QEMU pins some of them for a short
#: time.
_TRIES = 10
_MIB = 1 << 20


class MemoryMover:
    """Mover of guests' memory between the NUMA nodes of this host.

    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    :param rate: maximum rate at which memory pages are moved, in MiB per
        second; 0 for no limit.
    """

    def __init__(self, run_path: Path, rate: int) -> None:
        self._run_path, self._rate = run_path, rate

    def explain_unmovable_memory(self, domain_name: str) -> str:
        """Return why a guest's memory cannot move between host NUMA nodes.

        The text is empty if the memory can move.

        :param domain_name: domain name of the guest.
        """
        process = qemu.find_qemu_process(self._run_path, domain_name)
        if process is None:
            return 'the process of the domain is not known'
        if not cpusets.find_cpuset_groups(process):
            return ('QEMU is in no cpuset control group of its own, so its '
                    'memory cannot be bound to other NUMA nodes; see '
                    'cgroup_controllers in qemu.conf of libvirt')
        return ''

    def read_allowed_nodes(self, domain_name: str) -> frozenset[int] | None:
        """Read the host NUMA nodes on which a guest may allocate memory.

        :param domain_name: domain name of the guest.
        :returns: None if the nodes are unknown.
        """
        process = qemu.find_qemu_process(self._run_path, domain_name)
        found = cpusets.find_cpuset_groups(process) if process else []
        return cpusets.read_cpuset_mems(found[0]) if found else None

    def move_guest_memory(
        self, domain_name: str, new_nodes: dict[int, int], old_nodes: list[int]
    ) -> None:
        """Move a running guest's memory to new host NUMA nodes.

        The memory is bound to the new nodes, and its pages are moved.

        :param domain_name: domain name of the guest.
        :param new_nodes: new host node by old one.
        :param old_nodes: all host nodes of the guest before the move.
        :raises MemoryMoveError: if pages cannot be moved.
        """
        process = qemu.find_qemu_process(self._run_path, domain_name)
        if process is None or not cpusets.find_cpuset_groups(process):
            raise numa_maps.MemoryMoveError(
                self.explain_unmovable_memory(domain_name))
        guest = (domain_name, process)
        steps = numa_maps.plan_cpuset_mems(new_nodes, old_nodes)
        new = steps[-1]
        if not any(cpusets.read_cpuset_mems(path) == new
                   for path in cpusets.find_cpuset_groups(process)):
            for step in steps[:-1]:
                _raise_problem(
                    privileged.restrict_memory_to_nodes(guest, step))
            if len(steps) > 1:
                self._move_pages(guest, new_nodes, new)
        _raise_problem(privileged.restrict_memory_to_nodes(guest, new))
        self._move_stray_pages(guest)

    def _move_pages(self, guest: privileged.Guest, moved: dict[int, int],
                    new: frozenset[int]) -> None:
        """Move a guest's memory pages to their new host NUMA nodes.

        During the move, the guest may use the old and the new nodes.

        :param moved: new host node by old one.
        :param new: all host nodes of the guest after the move.
        """
        for area in privileged.read_bound_areas(guest):
            target = (min(new) if len(new) == 1
                      else moved.get(area.node, area.node))
            self._move_area(guest, area, target)

    def _move_area(self, guest: privileged.Guest, area: numa_maps.Area,
                   target: int) -> None:
        for first, last in numa_maps.split_area_into_pieces(
                area, privileged.PIECE):
            begun = time.monotonic()
            count = privileged.move_guest_pages(
                guest, first, last, area.page_size, target)
            if self._rate:
                due = count * area.page_size / (self._rate * _MIB)
                time.sleep(max(0.0, begun + due - time.monotonic()))

    def _move_stray_pages(self, guest: privileged.Guest) -> None:
        """Move a guest's memory pages that are on wrong NUMA nodes.

        The move is tried several times.

        :raises MemoryMoveError: if pages are still on wrong nodes.
        """
        for _turn in range(_TRIES):
            left = _find_areas_with_stray_pages(guest)
            if not left:
                return
            for area in left:
                self._move_area(guest, area, area.node)
            time.sleep(0.1)
        left = _find_areas_with_stray_pages(guest)
        if left:
            count = sum(area.stray_pages for area in left)
            raise numa_maps.MemoryMoveError(
                f'{count} pages of its memory cannot be moved: the kernel '
                'keeps them where they are')


def _find_areas_with_stray_pages(
        guest: privileged.Guest) -> list[numa_maps.Area]:
    """Return the memory areas of a guest that have pages on wrong nodes.

    Each area is bound to one host NUMA node, and all its pages should be
    there.
    """
    return [area for area in privileged.read_bound_areas(
        guest) if area.stray_pages]


def _raise_problem(problem: str) -> None:
    if problem:
        raise numa_maps.MemoryMoveError(problem)
