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


"""nova-compute of a simulated host, whose memory is on no node of the host.

The kernel of this machine may have one NUMA node, so no page of a guest can be
moved between the nodes of a simulated host. Here a file of each guest records
on which nodes its memory is. All else of a move inside the host is as on any
other: the claim, CPUs, control groups, the XML and Placement.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
import sys

from ghsched_nova.cmd import compute
from ghsched_nova.cmd import service_program


class RecordedMemory:
    """Mover of guests' memory that only records NUMA nodes.

    :param run_path: directory with libvirt's PID files, and the records.
    """

    def __init__(self, run_path: Path, _rate: int) -> None:
        self._run_path = run_path

    def explain_unmovable_memory(self, domain_name: str) -> str:
        return '' if self._qemu(domain_name) else 'the domain does not run'

    def read_allowed_nodes(self, domain_name: str) -> frozenset[int] | None:
        """Return the nodes that are recorded since QEMU was started."""
        path = self._path(domain_name)
        pid, *nodes = path.read_text().split() if path.exists() else ['']
        return (frozenset(map(int, nodes))
                if pid and pid == self._qemu(domain_name) else None)

    def move_guest_memory(self, domain_name: str, new_nodes: Mapping[int, int],
                          old_nodes: Sequence[int]) -> None:
        nodes = sorted({new_nodes.get(node, node) for node in old_nodes})
        self._path(domain_name).write_text(' '.join(
            [self._qemu(domain_name), *map(str, nodes)]))

    def _qemu(self, domain_name: str) -> str:
        """Return the process ID of a guest; empty if it does not run."""
        path = self._run_path / f'{domain_name}.pid'
        return path.read_text().strip() if path.exists() else ''

    def _path(self, domain_name: str) -> Path:
        return self._run_path / f'{domain_name}.nodes'


def main() -> None:
    # Nova's module comes first: it chooses the threading model.
    service_program.import_nova_program(
        service_program.COMPUTE, 'nova.cmd.compute')
    from ghsched_nova.features.live_change import page_move
    page_move.MemoryMover = RecordedMemory
    compute.main()


if __name__ == '__main__':
    sys.exit(main())
