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


"""The machines that the resctrl emulator can be, as data.

A machine says which schemata lines its kernel shows, their ranges, defaults
and padding, what the domain ids mean, and which monitor files there are.
Facts: ``Documentation/filesystems/resctrl.rst`` for Intel RDT, the MPAM
manual of openEuler's OLK-6.6 kernel (``Documentation/arch/arm64/mpam.md``)
for ``openeuler66``. A new dialect is a new function at the end of this
module and one entry in :data:`DIALECTS`.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
from typing import Literal

from ghsched_nova.testing import cpusets

#: What the ids of a line's or monitor's domains are.
Scope = Literal['node', 'l3']


@dataclass(frozen=True)
class Node:
    """One NUMA node with its own level 3 cache.

    :param id: NUMA node number.
    :param cpus: CPU numbers of the node.
    :param l3: the kernel's id of the node's L3 cache; need not be dense.
    """

    id: int
    cpus: frozenset[int]
    l3: int

    def domain(self, scope: Scope) -> int:
        return self.id if scope == 'node' else self.l3


@dataclass(frozen=True)
class Line:
    """One line of ``schemata``.

    :param name: the name before the colon, exact.
    :param scope: what the domain ids are.
    :param minimum: lowest value that a write may carry (``base`` 10).
    :param maximum: highest value; of a bit mask, the mask of all bits.
    :param default: value of a new group.
    :param granularity: a value is rounded up to a multiple of it.
    :param base: 10 for a number, 16 for a bit mask.
    :param label: the name as ``schemata`` shows it, with its padding.
    :param digits: a value is shown with at least so many digits, zero padded.
    :param shown_minimum: what the error text gives as lowest value, where
        the kernel's text differs from what it enforces.
    :param info: the directory below ``info/`` that describes the line.
    :param sparse_masks: whether a mask may have holes.
    :param unit_bytes: size of the cache portion of one mask bit.
    """

    name: str
    scope: Scope
    minimum: int
    maximum: int
    default: int
    granularity: int = 1
    base: int = 10
    label: str = ''
    digits: int = 1
    shown_minimum: int | None = None
    info: str | None = None
    sparse_masks: bool = False
    unit_bytes: int = 1835008

    def show(self, value: int) -> str:
        """A value as the kernel prints it."""
        kind = 'x' if self.base == 16 else 'd'
        return f'{value:0{self.digits}{kind}}'


@dataclass(frozen=True)
class Monitor:
    """Monitor files of one resource.

    :param resource: ``L3`` or ``MB``: ``info/<resource>_MON`` and
        ``mon_data/mon_<resource>_NN``.
    :param scope: what NN is.
    :param features: file names below ``mon_data/mon_<resource>_NN``.
    :param unit: ``bytes`` when the ``mbm_*`` files count bytes since the
        group was made, ``MBps`` when they show the present rate in MB/s.
    """

    resource: str
    scope: Scope
    features: tuple[str, ...]
    unit: Literal['bytes', 'MBps'] = 'bytes'


@dataclass(frozen=True)
class Machine:
    """A machine with resctrl.

    :param dialect: a key of :data:`DIALECTS`.
    :param nodes: its NUMA nodes, ascending.
    :param lines: schemata lines in the order in which they are shown.
    :param monitors: monitor resources.
    :param num_closids: control groups, the default group included.
    :param num_rmids: monitoring ids, the default group's included.
    :param rmids_per_closid: on MPAM every control group has a PMG space of
        its own; 0 where all groups share one pool.
    :param limbo_seconds: how long a freed RMID cannot be used again.
    :param iommu_groups: whether ``tasks`` takes ``iommu_group:N``.
    :param info_files: constant files below ``info/``, path -> text.
    """

    dialect: str
    nodes: tuple[Node, ...]
    lines: tuple[Line, ...]
    monitors: tuple[Monitor, ...]
    num_closids: int
    num_rmids: int
    rmids_per_closid: int = 0
    limbo_seconds: float = 0.0
    iommu_groups: bool = False
    info_files: tuple[tuple[str, str], ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset().union(*(node.cpus for node in self.nodes))

    def domains(self, scope: Scope) -> tuple[int, ...]:
        """Domain ids of a scope, ascending."""
        return tuple(sorted({node.domain(scope) for node in self.nodes}))

    def line(self, name: str) -> Line | None:
        """The line of exactly that name."""
        return next((x for x in self.lines if x.name == name), None)


class BadMachine(ValueError):
    """A description of nodes that is no machine."""


def parse_nodes(text: str, l3_id: Callable[[int], int]) -> tuple[Node, ...]:
    """``0=0-3;1=4-7`` (NUMA node = CPU list; ...) -> nodes, ascending.

    :param l3_id: gives a node's L3 cache id.
    :raises BadMachine: the text is no such list, or a CPU is in two nodes.
    """
    nodes: dict[int, Node] = {}
    seen: set[int] = set()
    for part in filter(None, text.split(';')):
        try:
            number, cpus = part.split('=')
            node_id, members = int(number), cpusets.parse_list(cpus)
        except ValueError as exc:
            raise BadMachine(
                f"'{part}': want NODE=CPULIST, as in 0=0-3;1=4-7 ({exc})"
            ) from exc
        if node_id < 0 or node_id in nodes or seen & members:
            raise BadMachine(f"'{part}': a node or CPU is given twice")
        seen |= members
        nodes[node_id] = Node(node_id, members, l3_id(node_id))
    if not seen:
        raise BadMachine('a machine needs at least one node with a CPU')
    return tuple(nodes[number] for number in sorted(nodes))


def _mask_line(name: str, bits: int, label: str, digits: int) -> Line:
    full = (1 << bits) - 1
    return Line(
        name, 'l3', minimum=1, maximum=full, default=full, base=16,
        label=label, digits=digits, info=name,
    )


def intel(nodes: str) -> Machine:
    """A two-socket Xeon: MB in steps of 10 % per L3, CAT, byte counters."""
    return Machine(
        dialect='intel',
        nodes=parse_nodes(nodes, lambda node: node),
        lines=(
            Line('MB', 'l3', 10, 100, 100, granularity=10,
                 label='    MB', info='MB'),
            _mask_line('L3', 20, '    L3', 5),
        ),
        monitors=(Monitor('L3', 'l3', (
            'llc_occupancy', 'mbm_total_bytes', 'mbm_local_bytes')),),
        num_closids=15,
        num_rmids=224,
        info_files=(('MB/thread_throttle_mode', 'max\n'),),
    )


def openeuler66(nodes: str) -> Machine:
    """A Kunpeng 920 under openEuler's OLK-6.6 kernel (MPAM).

    MB domains are NUMA nodes, L3 domains are sparse cache ids (the manual's
    machine has 1 and 122). The padding follows the manual's samples, which
    give plain names a field of 5 and the QoS lines a field of 6. The error
    text says [0,100] for MB although 0 is refused.
    """
    return Machine(
        dialect='openeuler66',
        nodes=parse_nodes(nodes, lambda node: 1 + 121 * node),
        lines=(
            Line('MB', 'node', 1, 100, 100, label='   MB', digits=7,
                 shown_minimum=0, info='MB'),
            Line('MBMIN', 'node', 0, 100, 0, label=' MBMIN', digits=5),
            Line('MBPRI', 'node', 0, 7, 3, label=' MBPRI', digits=7),
            Line('MBHDL', 'node', 0, 1, 1, label=' MBHDL', digits=7),
            _mask_line('L3', 28, '   L3', 7),
            Line('L3PRI', 'l3', 0, 3, 0, label=' L3PRI', digits=7),
        ),
        monitors=(
            Monitor('L3', 'l3', ('llc_occupancy',)),
            Monitor('MB', 'node', ('mbm_total_bytes',), unit='MBps'),
        ),
        num_closids=32,
        num_rmids=128,
        rmids_per_closid=4,
        iommu_groups=True,
    )


#: Name on the command line -> machine of that dialect from its nodes.
DIALECTS: dict[str, Callable[[str], Machine]] = {
    'intel': intel,
    'openeuler66': openeuler66,
}


def build(
    dialect: str,
    nodes: str,
    closids: int | None = None,
    rmids: int | None = None,
    limbo_seconds: float = 0.0,
    without: Collection[str] = (),
) -> Machine:
    """A machine of a dialect, with other counts of groups where given.

    :param nodes: as for :func:`parse_nodes`.
    :param without: lines that this machine's hardware does not have.
    :raises BadMachine: unknown dialect or line, bad nodes, counts below 1.
    """
    if dialect not in DIALECTS:
        raise BadMachine(
            f"no dialect '{dialect}'; there are {', '.join(DIALECTS)}"
        )
    machine = DIALECTS[dialect](nodes)
    closids = machine.num_closids if closids is None else closids
    rmids = machine.num_rmids if rmids is None else rmids
    if closids < 1 or rmids < 1:
        raise BadMachine('at least one CLOSID and one RMID are needed')
    for name in without:
        if machine.line(name) is None:
            raise BadMachine(f"{dialect} has no line '{name}'")
    return dataclasses.replace(
        machine, num_closids=closids, num_rmids=rmids,
        limbo_seconds=limbo_seconds,
        lines=tuple(x for x in machine.lines if x.name not in without),
    )


def evenly(cpus: Sequence[int], count: int) -> str:
    """CPUs split over ``count`` nodes in order, as :func:`parse_nodes` reads.

    :raises BadMachine: fewer CPUs than nodes.
    """
    ordered = sorted(cpus)
    if not 1 <= count <= len(ordered):
        raise BadMachine(
            f'{len(ordered)} CPUs cannot be split over {count} NUMA nodes'
        )
    bounds = [len(ordered) * n // count for n in range(count + 1)]
    return ';'.join(
        f'{n}={cpusets.format_list(ordered[bounds[n]:bounds[n + 1]])}'
        for n in range(count)
    )
