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


"""Interrupts of a host that answers as Linux does (kernel/irq/proc.c)."""

import errno
import os
from pathlib import Path

from ghsched_nova.features.interrupts import model
from ghsched_placement.base import cpulist


class Kernel:
    """``/proc/interrupts`` and ``/proc/irq`` below a directory.

    :param online: CPUs that are.
    """

    def __init__(self, proc: Path, online: int = 8) -> None:
        self.proc = proc
        self.online = frozenset(range(online))
        self.writes: list[tuple[int, str]] = []
        self.refused: dict[int, int] = {}
        (proc / 'irq').mkdir()
        self._lines: dict[int, str] = {}
        self.show()

    def add(self, number: int, *names: str, node: int = -1,
            cpus: str = '0-7', count: int = 3, refused: int = 0) -> None:
        """An interrupt that drivers have asked for.

        :param refused: errno of each try to move it.
        """
        path = self.proc / 'irq' / str(number)
        for name in names:
            (path / name).mkdir(parents=True)
        (path / 'node').write_text(f'{node}\n')
        self._lines[number] = (
            f'{number:4}: ' + f'{count:10} ' * len(self.online)
            + f' IR-PCI-MSI-0000:18:00.2 {number}-edge      '
            + ', '.join(names))
        self.refused[number] = refused
        self._set(number, cpulist.parse_cpu_list(cpus))
        self.show()

    def show(self) -> None:
        header = ''.join(f'       CPU{cpu}' for cpu in self.online)
        (self.proc / 'interrupts').write_text('\n'.join(
            ['     ' + header, *self._lines.values(),
             ' NMI:          1   Non-maskable interrupts', '']))

    def write(self, number: int, text: str) -> int:
        """Write to ``smp_affinity_list``; return 0 or an errno."""
        self.writes.append((number, text))
        if self.refused[number]:
            return self.refused[number]
        cpus = cpulist.parse_cpu_list(text)
        if not cpus & self.online:
            return errno.EINVAL
        self._set(number, cpus)
        return 0

    def steer(self, action: model.InterruptChange) -> str:
        error = self.write(action.interrupt.number, action.line)
        return os.strerror(error) if error else ''

    def cpus(self, number: int) -> str:
        return (self.proc / 'irq' / str(number) / 'smp_affinity_list'
                ).read_text().strip()

    def _set(self, number: int, cpus: frozenset[int]) -> None:
        path = self.proc / 'irq' / str(number)
        (path / 'smp_affinity_list').write_text(cpulist.render_cpu_list(cpus)
                                                + '\n')
        # An x86 gives an interrupt to one CPU.
        (path / 'effective_affinity_list').write_text(
            f'{min(cpus & self.online)}\n')
