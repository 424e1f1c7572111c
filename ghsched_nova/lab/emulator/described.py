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


"""Machines whose kernel describes its controls itself, as data.

No kernel up to Linux 7.3 does. Layout, names and defaults are those of the
linux-kernel list: the proof of concept of 29 May 2026 ("Generic schema
description") with its answers for MPAM (``MB_MIN`` from 0, ``MB`` backed by
``MB_MAX``), for RISC-V (CBQRI: ``MB_MIN`` from 1, whose sum is bounded, and
``MB_WGHT``) and for Intel's region-aware RDT (``MB_REGIONn_OPT``, ``_MIN`` and
``_MAX``, all 255 in a new group), and AMD's ``GMB`` (30 April 2026).
"""

from collections.abc import Callable
from collections.abc import Collection
import dataclasses

from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator.machines import Description
from ghsched_nova.lab.emulator.machines import Line
from ghsched_nova.lab.emulator.machines import Machine

_PERCENT = Description(scope='L3')


def _with(machine: Machine, dialect: str, described: dict[str, Description],
          more: tuple[Line, ...]) -> Machine:
    """Return a machine with descriptions of its lines, and further lines."""
    lines = tuple(dataclasses.replace(
        line, description=described.get(line.name)) for line in machine.lines)
    return dataclasses.replace(machine, dialect=dialect,
                               lines=lines + more)


def described_line(name: str, scope: machines.Scope, highest: int,
                   default: int, description: Description,
                   **more: object) -> Line:
    """Return a line that is in no file of info/ but its description."""
    line = Line(name, scope, 0, highest, default, label=name,
                description=description)
    return dataclasses.replace(line, **more)    # type: ignore[arg-type]


def mpam(nodes: str) -> Machine:
    """MPAM with a guarantee: 16 bits are taken, the hardware has seven."""
    share = Description(resolution=65535, tolerance=256, scope='L3')
    maximum = described_line(
        'MB_MAX', 'l3', 65535, 65535, dataclasses.replace(
            share, parent='MB'), backs='MB')
    minimum = described_line('MB_MIN', 'l3', 65535, 0, share,
                             rounding='nearest', granularity=512)
    return _with(machines.mpam(nodes), 'mpam-described', {'MB': _PERCENT},
                 (maximum, minimum))


def intel(nodes: str) -> Machine:
    """Intel's region-aware RDT: local memory and memory of CXL."""
    step = Description(resolution=255, scope='L3')
    return _with(machines.intel(nodes), 'intel-regions', {'MB': _PERCENT},
                 tuple(described_line(f'MB_REGION{region}_{word}', 'l3', 255,
                                      255, step, minimum=1)
                       for region in (0, 1)
                       for word in ('OPT', 'MIN', 'MAX')))


def intel_optimal(nodes: str) -> Machine:
    """Intel's other hierarchy: ``MB`` is backed by ``MB_OPT``.

    Of the answers of 10 June 2026, which also name the directory otherwise.
    """
    directory = 'resource_schema'
    step = Description(resolution=255, scope='L3', directory=directory)
    return _with(
        machines.intel(nodes), 'intel-optimal',
        {'MB': dataclasses.replace(_PERCENT, directory=directory)}, (
            described_line('MB_OPT', 'l3', 255, 255, dataclasses.replace(
                step, parent='MB'), minimum=1, backs='MB'),
            *(described_line(f'MB_{word}', 'l3', 255, 255, step, minimum=1)
              for word in ('MAX', 'MIN'))))


def amd(nodes: str) -> Machine:
    """AMD with a cap for all L3 caches of a node and one for each cache.

    The kernel's own work can be bound to a group.
    """
    each = Description(unit='GBps', resolution=8, scope='L3')
    node = Description(unit='GBps', resolution=1, scope='NODE')
    return dataclasses.replace(
        _with(machines.amd(nodes), 'amd-gmb', {'MB': each}, (
            described_line('GMB', 'node', 4096, 4096, node, minimum=1),)),
        kernel_mode=True)


def riscv(nodes: str) -> Machine:
    """RISC-V CBQRI: a guarantee of which each group has some, no cap."""
    machine = machines.mpam('0=0')
    blocks = Description(resolution=819, scope='L3')
    weight = Description(kind='scalar', resolution=255, scope='L3')
    return dataclasses.replace(
        machine,
        dialect='riscv',
        nodes=machines.parse_nodes(nodes, lambda node, _place: 72 + node),
        lines=(
            described_line('MB_WGHT', 'l3', 255, 255, weight),
            described_line('MB_MIN', 'l3', 819, 1, blocks, minimum=1,
                           bound=819),
            dataclasses.replace(machine.lines[1], sparse_masks=False),
        ),
        monitors=(machines.Monitor('L3', 'l3', (
            'llc_occupancy', 'mbm_total_bytes')),),
        num_closids=64,
        num_rmids=256,
        rmids_per_closid=0,
        cap='MB_WGHT',
    )


#: Name on the command line -> machine from its nodes.
MACHINES: dict[str, Callable[[str], Machine]] = {
    'mpam-described': mpam,
    'intel-regions': intel,
    'intel-optimal': intel_optimal,
    'amd-gmb': amd,
    'riscv': riscv,
}


def build(name: str, nodes: str, closids: int | None = None,
          rmids: int | None = None, limbo_seconds: float = 0.0,
          without: Collection[str] = ()) -> Machine:
    """Return a machine, of this module or as :func:`machines.build`."""
    return machines.build(name, nodes, closids, rmids, limbo_seconds, without,
                          machines.DIALECTS | MACHINES)
