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

"""Moves the memory of a running QEMU to other NUMA nodes."""

from pathlib import Path
import time

from ghsched_nova import qemu
from ghsched_nova.threads import cpusets
from ghsched_nova.threads import memory
from ghsched_nova.threads import privileged_pages

#: How often pages that could not be moved are tried; QEMU's own input and
#: output keeps some where they are for a moment.
_TRIES = 10
_MIB = 1 << 20


class Memory:
    """The memory of the guests of this host.

    :param run_path: where libvirt has ``<domain name>.pid``.
    :param rate: MiB that are moved in a second; 0 for no limit.
    """

    def __init__(self, run_path: Path, rate: int) -> None:
        self._run_path, self._rate = run_path, rate

    def refusal(self, name: str) -> str:
        """Why the memory of a domain cannot be moved; empty when it can."""
        process = qemu.process_of(self._run_path, name)
        if process is None:
            return 'the process of the domain is not known'
        if not cpusets.directories(process):
            return ('QEMU is in no cpuset control group of its own, so its '
                    'memory cannot be bound to other NUMA nodes; see '
                    'cgroup_controllers in qemu.conf of libvirt')
        return ''

    def allowed(self, name: str) -> frozenset[int] | None:
        """Nodes that memory of a domain may be on; None: not known."""
        process = qemu.process_of(self._run_path, name)
        found = cpusets.directories(process) if process else []
        return cpusets.nodes(found[0]) if found else None

    def move(self, name: str, moved: dict[int, int],
             nodes: list[int]) -> None:
        """Bind and move the memory of a domain; what is there already stays.

        :param moved: new host node by old one.
        :param nodes: host nodes of the guest before, all of them.
        :raises NotBound: when pages stay where they are.
        """
        process = qemu.process_of(self._run_path, name)
        if process is None or not cpusets.directories(process):
            raise memory.NotBound(self.refusal(name))
        guest = (name, process)
        steps = memory.sequence(moved, nodes)
        new = steps[-1]
        if not any(cpusets.nodes(path) == new
                   for path in cpusets.directories(process)):
            for step in steps[:-1]:
                _checked(privileged_pages.allow_nodes(guest, step))
            if len(steps) > 1:
                self._move_pages(guest, moved, new)
        _checked(privileged_pages.allow_nodes(guest, new))
        self._settle(guest)

    def _move_pages(self, guest: privileged_pages.Guest, moved: dict[int, int],
                    new: frozenset[int]) -> None:
        """While both are allowed; policies are those of before."""
        for area in privileged_pages.areas(guest):
            target = (min(new) if len(new) == 1
                      else moved.get(area.node, area.node))
            self._move_area(guest, area, target)

    def _move_area(self, guest: privileged_pages.Guest, area: memory.Area,
                   target: int) -> None:
        for first, last in memory.pieces(area, privileged_pages.PIECE):
            begun = time.monotonic()
            count = privileged_pages.move_pages(
                guest, first, last, area.page_size, target)
            if self._rate:
                due = count * area.page_size / (self._rate * _MIB)
                time.sleep(max(0.0, begun + due - time.monotonic()))

    def _settle(self, guest: privileged_pages.Guest) -> None:
        """Move what is still elsewhere than its policy says."""
        for _turn in range(_TRIES):
            left = _strays(guest)
            if not left:
                return
            for area in left:
                self._move_area(guest, area, area.node)
            time.sleep(0.1)
        left = _strays(guest)
        if left:
            raise memory.NotBound(
                f'{sum(area.strays for area in left)} pages of its memory '
                'cannot be moved: the kernel keeps them where they are')


def _strays(guest: privileged_pages.Guest) -> list[memory.Area]:
    """Return the areas of a guest with pages on other nodes."""
    return [area for area in privileged_pages.areas(guest) if area.strays]


def _checked(problem: str) -> None:
    if problem:
        raise memory.NotBound(problem)
