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


"""Machines that the resctrl emulator supports, as data.

A machine says which schemata lines its kernel shows, their ranges, defaults
and padding, what the domain ids mean, and which monitor files there are. A
new dialect is a new function at the end of this module and one entry in
:data:`DIALECTS`. Facts:

* Intel and AMD: Documentation/filesystems/resctrl.rst,
  arch/x86/kernel/cpu/resctrl/core.c and fs/resctrl of mainline;
* ``mpam``: drivers/resctrl/mpam_resctrl.c of mainline;
* ``openeuler66``, ``kunpeng950``: drivers/platform/mpam, fs/resctrl and
  Documentation/arch/arm64/mpam.md of openEuler's OLK-6.6;
* ``openeuler510``: arch/arm64/kernel/mpam of OLK-5.10 and its manual;
* ``nvidia``: Documentation/filesystems/resctrl.rst of NV-Kernels.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
from typing import Literal

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.lab.emulator import cpusets

#: What the ids of a line's or monitor's domains are.
Scope = Literal['node', 'l3']

#: What becomes of a number that is written, see staging.
Rounding = Literal['up', 'raw', 'silent', 'nearest']

U32_MAX = 2 ** 32 - 1


@dataclass(frozen=True)
class Cache:
    """A level 3 cache, or the part of one that is in one NUMA node.

    :param id: the kernel's id; need not be dense.
    """

    id: int
    cpus: frozenset[int]


@dataclass(frozen=True)
class Node:
    """A NUMA node of an emulated machine.

    :param id: NUMA node number.
    :param cpus: CPU numbers of the node; none on a node of memory alone.
    :param caches: its level 3 caches.
    """

    id: int
    cpus: frozenset[int]
    caches: tuple[Cache, ...] = ()

    @property
    def l3(self) -> int:
        """The id of its first level 3 cache; -1 without one."""
        return self.caches[0].id if self.caches else -1


@dataclass(frozen=True)
class Description:
    """Files of ``info/<resource>/<directory>/<line>``.

    Of the linux-kernel list: "fs/resctrl: Generic schema description",
    October 2025, and its proof of concept of May 2026.

    :param kind: first words of ``type``.
    :param tolerance: None: the file is not there.
    :param scope: empty: the file is not there.
    :param reset: name of the file with the default; empty: there is none.
    :param parent: the line in whose directory this one is.
    :param directory: name of the directory, of which the list has two.
    """

    resource: str = 'MB'
    kind: str = 'scalar linear'
    unit: str = 'all'
    scale: int = 1
    resolution: int = 100
    tolerance: int | None = 0
    scope: str = ''
    reset: str = ''
    parent: str = ''
    directory: str = 'resource_schemata'

    def files(self, line: 'Line') -> dict[str, str]:
        """Return the texts of the files by name."""
        found = {
            'type': self.kind, 'unit': self.unit, 'scale': f'{self.scale}',
            'resolution': f'{self.resolution}', 'min': f'{line.minimum}',
            'max': f'{line.maximum}',
            'tolerance': '' if self.tolerance is None
            else f'{self.tolerance}', 'scope': self.scope}
        if self.reset:
            found[self.reset] = f'{line.default}'
        return {name: f'{text}\n' for name, text in found.items() if text}


@dataclass(frozen=True)
class Line:
    """A line of ``schemata`` of an emulated machine.

    :param name: the name before the colon, exact.
    :param scope: what the domain ids are.
    :param minimum: lowest value that a write may carry; of a bit mask, the
        fewest bits that stand together.
    :param maximum: highest value; of a bit mask, the mask of all bits.
    :param default: value of a new group.
    :param granularity: a value is rounded up to a multiple of it.
    :param base: 10 for a number, 16 for a bit mask.
    :param label: the name as ``schemata`` shows it, with its padding.
    :param digits: a value is shown with at least so many digits, zero padded.
    :param blanks: a value is shown at least so wide, padded with blanks.
    :param info: the directory below ``info/`` that describes the line.
    :param info_minimum: what ``min_bandwidth`` says; ``minimum`` otherwise.
    :param info_granularity: what ``bandwidth_gran`` says; ``granularity``
        otherwise.
    :param linear: what ``delay_linear`` says.
    :param closids: what ``num_closids`` says; the machine's otherwise.
    :param rounding: ``up`` to the granularity; ``raw``, none; ``silent``, up
        to it, and a value out of range is refused without a reason;
        ``nearest``, up or down.
    :param conversion: name of the driver in
        :mod:`ghsched_nova.lab.emulator.conversions` that decides what is
        shown of a written percentage, instead of the granularity.
    :param bits: width of the control, for ``conversion``.
    :param sparse_masks: whether a mask may have holes.
    :param shareable: whether devices use all portions of the cache, too.
    :param peer: the other line of the same portions (CDP).
    :param unit_bytes: size of the cache portion of one mask bit.
    :param description: what the kernel says of the line, if it does.
    :param bound: what the values of all control groups may add up to in a
        domain, those that are not made yet among them; 0: anything.
    :param backs: the line that is another view of this one; each follows the
        other.
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
    blanks: int = 0
    info: str | None = None
    info_minimum: int | None = None
    info_granularity: int | None = None
    linear: int = 1
    closids: int | None = None
    rounding: Rounding = 'up'
    conversion: str = ''
    bits: int = 0
    sparse_masks: bool = False
    shareable: bool = False
    peer: str = ''
    unit_bytes: int = 1835008
    description: Description | None = None
    bound: int = 0
    backs: str = ''

    def with_bits(self, bits: int) -> 'Line':
        """Return the line with another width of its control."""
        table = conversions.table(self.conversion, bits)
        return dataclasses.replace(
            self, bits=bits, granularity=table.bandwidth_gran,
            minimum=table.min_bandwidth if self.info else self.minimum)

    def show(self, value: int) -> str:
        """Return a value as the kernel prints it."""
        kind = 'x' if self.base == 16 else 'd'
        return f'{value:0{self.digits}{kind}}'.rjust(self.blanks)


@dataclass(frozen=True)
class Monitor:
    """Monitor files of one resource.

    :param resource: ``L3`` or ``MB``: ``info/<resource>_MON`` and
        ``mon_data/mon_<resource>_NN``.
    :param scope: what NN is.
    :param features: file names below ``mon_data/mon_<resource>_NN``.
    :param unit: ``bytes`` when the ``mbm_*`` files count bytes since the
        group was made, ``MBps`` when they show the present rate in MB/s.
    :param counters: counters of bandwidth in each domain, where they are
        fewer than the groups and must be assigned; 0 otherwise.
    :param modes: what ``mbm_assign_mode`` offers; the first is on.
    :param transactions: with memory that an event can count, as bits, where
        that can be chosen; 0 elsewhere.
    :param rmids: what ``num_rmids`` says; the machine's otherwise.
    :param nodes: whether there are files of each NUMA node below an L3 cache
        (``mon_sub_L3_NN``).
    """

    resource: str
    scope: Scope
    features: tuple[str, ...]
    unit: Literal['bytes', 'MBps'] = 'bytes'
    counters: int = 0
    modes: tuple[str, ...] = ()
    transactions: int = 0
    rmids: int | None = None
    nodes: bool = False

    @property
    def bandwidth(self) -> tuple[str, ...]:
        """The features that take a counter."""
        return tuple(x for x in self.features if x.startswith('mbm_'))


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
    :param io_alloc: whether the traffic of devices can have portions of the
        cache of its own.
    :param kernel_mode: whether the kernel's own work can be bound to a group.
    :param info_files: constant files below ``info/``, path -> text.
    :param empty_monitors: resources with directories in ``mon_data`` and no
        file in them.
    :param old_layout: the files of OLK-5.10: no ``mode`` and ``size``, a
        ``rmid``, and monitors that are files.
    :param linux73: whether each access to a file of a group empties
        last_cmd_status, and a write without a line feed has a text there.
    :param memory_domains: whether a node without CPUs has a domain.
    :param cap: the line of the cap.
    :param cap_unit: bytes per second of one unit of the cap; 0 where it is a
        percentage.
    :param hard: the line that says whether a cap is hard; without it, it is.
    :param cpu_flags: what /proc/cpuinfo lists of it.
    :param mount_options: with which resctrl is mounted.
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
    io_alloc: bool = False
    kernel_mode: bool = False
    info_files: tuple[tuple[str, str], ...] = ()
    empty_monitors: tuple[tuple[str, Scope], ...] = ()
    old_layout: bool = False
    linux73: bool = False
    memory_domains: bool = False
    cap: str = 'MB'
    cap_unit: int = 0
    hard: str = ''
    cpu_flags: tuple[str, ...] = ()
    mount_options: tuple[str, ...] = ()

    @property
    def is_arm(self) -> bool:
        """Whether its processors are 64-bit Arm processors."""
        return bool(self.rmids_per_closid or self.old_layout)

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset().union(*(node.cpus for node in self.nodes))

    def domains(self, scope: Scope) -> tuple[int, ...]:
        """Domain ids of a scope, ascending."""
        if scope == 'l3':
            return tuple(sorted({
                cache.id for node in self.nodes for cache in node.caches
            }))
        return tuple(
            node.id for node in self.nodes
            if node.cpus or self.memory_domains
        )

    def line(self, name: str) -> Line | None:
        """Return the line of exactly that name."""
        return next((x for x in self.lines if x.name == name), None)

    def node_of(self, cpu: int) -> Node:
        """Return the node of a CPU; the first one of a CPU that is in none."""
        return next(
            (node for node in self.nodes if cpu in node.cpus), self.nodes[0]
        )

    def cache_of(self, cpu: int) -> Cache:
        """Return the level 3 cache of a CPU, with all of its CPUs."""
        mine = next(
            (cache for cache in self.node_of(cpu).caches if cpu in cache.cpus),
            Cache(-1, frozenset()),
        )
        return Cache(mine.id, frozenset().union(*(
            cache.cpus for node in self.nodes for cache in node.caches
            if cache.id == mine.id
        )))


class BadMachine(ValueError):
    """Description of nodes that is not a valid machine."""


def parse_nodes(
    text: str, l3_id: Callable[[int, int], int], caches: int = 1
) -> tuple[Node, ...]:
    """``0=0-3;1=4-7`` (NUMA node = CPU list; ...) -> nodes, ascending.

    A node without CPUs (``2=``) is one of memory alone.

    :param l3_id: gives the id of an L3 cache from the number of its node and
        its place in it.
    :param caches: L3 caches of a node, as far as it has CPUs for them.
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
        nodes[node_id] = Node(node_id, members, tuple(
            Cache(l3_id(node_id, place), frozenset(share))
            for place, share in enumerate(_split(members, caches))
        ))
    if not seen:
        raise BadMachine('a machine needs at least one node with a CPU')
    return tuple(nodes[number] for number in sorted(nodes))


def _split(cpus: Collection[int], count: int) -> list[list[int]]:
    """CPUs in order, in at most ``count`` parts of which none is empty."""
    ordered = sorted(cpus)
    count = min(count, len(ordered))
    return [
        ordered[len(ordered) * n // count:len(ordered) * (n + 1) // count]
        for n in range(count)
    ]


def _mask_line(
    name: str, bits: int, label: str, digits: int, sparse: bool = False,
    scope: Scope = 'l3', closids: int | None = None, minimum: int = 1,
    peer: str = '',
) -> Line:
    full = (1 << bits) - 1
    return Line(
        name, scope, minimum=minimum, maximum=full, default=full, base=16,
        label=label, digits=digits, info=name, sparse_masks=sparse,
        closids=closids, peer=peer,
    )


def _mpam_mask_line(
    name: str, bits: int, label: str, digits: int, scope: Scope = 'l3',
) -> Line:
    """Return a line of cache portions of MPAM.

    All are shareable, because devices use them (shareable_bits in
    mpam_resctrl_control_init() of mainline, mpam_resctrl_resource_init() of
    openEuler), so no group can be exclusive.
    """
    return dataclasses.replace(
        _mask_line(name, bits, label, digits, True, scope), shareable=True)


_L3_FEATURES = ('llc_occupancy', 'mbm_total_bytes', 'mbm_local_bytes')
_INTEL_MONITOR = Monitor('L3', 'l3', _L3_FEATURES, modes=('default',))
#: arch/x86/include/asm/cpufeatures.h
_X86_FLAGS = ('rdt_a', 'cat_l3', 'cdp_l3', 'mba', 'cqm', 'cqm_llc',
              'cqm_occup_llc', 'cqm_mbm_total', 'cqm_mbm_local')


def intel(nodes: str) -> Machine:
    """A two-socket Xeon: MB in steps of 10 % per L3, CAT, byte counters."""
    return Machine(
        dialect='intel',
        nodes=parse_nodes(nodes, lambda node, _place: node),
        lines=(
            Line('MB', 'l3', 10, 100, 100, granularity=10,
                 label='    MB', info='MB'),
            _mask_line('L3', 20, '    L3', 5),
        ),
        monitors=(_INTEL_MONITOR,),
        num_closids=15,
        num_rmids=224,
        info_files=(('MB/thread_throttle_mode', 'max\n'),),
        cpu_flags=_X86_FLAGS,
    )


def intel_snc_cdp(nodes: str) -> Machine:
    """Sub-NUMA clusters, two nodes below an L3, with the option ``cdp``.

    CDP halves the CLOSIDs of the cache; those of MB are as many as before.
    """
    places = sorted(node.id for node in parse_nodes(nodes, lambda n, _p: n))
    machine = intel('0=0')
    return dataclasses.replace(
        machine,
        dialect='intel-snc-cdp',
        nodes=parse_nodes(nodes, lambda node, _p: places.index(node) // 2),
        lines=(
            dataclasses.replace(machine.lines[0], closids=15),
            _mask_line('L3DATA', 15, 'L3DATA', 4, closids=7, peer='L3CODE'),
            _mask_line('L3CODE', 15, 'L3CODE', 4, closids=7, peer='L3DATA'),
        ),
        monitors=(
            dataclasses.replace(_INTEL_MONITOR, nodes=True),
            # Linux 7.0, intel_aet.c: of packages, each of which has one L3.
            Monitor('PERF_PKG', 'l3', ('core_energy', 'activity'), rmids=576),
        ),
        num_closids=7,
        num_rmids=160,
        mount_options=('cdp',),
        info_files=(('MB/thread_throttle_mode', 'per-thread\n'),),
    )


def intel_mbps(nodes: str) -> Machine:
    """The mount option ``mba_MBps``: caps in MiB/s, any number of them."""
    machine = intel(nodes)
    return dataclasses.replace(
        machine,
        dialect='intel-mbps',
        lines=(
            Line('MB', 'l3', 0, U32_MAX, U32_MAX, label='    MB', info='MB',
                 info_minimum=10, info_granularity=10, rounding='raw'),
            machine.lines[1],
        ),
        cap_unit=2 ** 20,
        mount_options=('mba_MBps',),
    )


def amd(nodes: str) -> Machine:
    """An EPYC: two L3 a node, caps in 1/8 GB/s, SMBA, assignable counters."""
    cap = Line('MB', 'l3', 0, 2048, 2048, label='    MB', info='MB', blanks=4,
               linear=0)
    return Machine(
        dialect='amd',
        nodes=parse_nodes(nodes, lambda node, place: 8 * node + place, 2),
        lines=(
            dataclasses.replace(cap, name='SMBA', label='  SMBA',
                                info='SMBA'),
            cap,
            # rdt_init_res_defs_amd(): min_cbm_bits is 0.
            _mask_line('L3', 16, '    L3', 4, sparse=True, minimum=0),
        ),
        monitors=(dataclasses.replace(
            _INTEL_MONITOR, counters=32, modes=('mbm_event', 'default'),
            transactions=0x7f),),
        num_closids=16,
        num_rmids=4096,
        io_alloc=True,
        cap_unit=10 ** 9 // 8,
        cpu_flags=_X86_FLAGS,
    )


def mpam(nodes: str) -> Machine:
    """MPAM of Linux 7.3: MB in percent per L3, four assignable counters."""
    return Machine(
        dialect='mpam',
        nodes=parse_nodes(nodes, lambda node, _place: 5 + 66 * node),
        lines=(
            Line('MB', 'l3', 1, 100, 100, label='    MB', info='MB',
                 conversion='linux').with_bits(7),
            _mpam_mask_line('L3', 16, '    L3', 4),
        ),
        monitors=(Monitor(
            'L3', 'l3', ('llc_occupancy', 'mbm_total_bytes'), counters=4,
            modes=('mbm_event',)),),
        num_closids=32,
        num_rmids=128,
        rmids_per_closid=4,
        linux73=True,
    )


def mpam71(nodes: str) -> Machine:
    """MPAM of Linux 7.1: a fraction of 5 bits, no monitor of bandwidth."""
    machine = mpam(nodes)
    return dataclasses.replace(
        machine,
        dialect='mpam71',
        lines=(
            machine.lines[0].with_bits(5),
            machine.lines[1],
        ),
        monitors=(Monitor('L3', 'l3', ('llc_occupancy',),
                          modes=('default',)),),
        linux73=False,
    )


def openeuler510(nodes: str) -> Machine:
    """Return a Kunpeng 920 under openEuler's OLK-5.10 kernel.

    With the mount options ``caPbm,mbMax,mbMin,mbHdl,mbPrio``. All domains
    are NUMA nodes; an RMID is taken by each group, and there are as many as
    CLOSIDs. The first version of the driver was written for a control of 6
    bits (``MBA_MAX_WD`` in mpam_resource.h).
    """
    return Machine(
        dialect='openeuler510',
        nodes=parse_nodes(nodes, lambda node, _place: node),
        lines=(
            dataclasses.replace(
                _mpam_mask_line('L3PBM', 15, 'L3PBM', 4, 'node'), info='L3'),
            Line('MBPRI', 'node', 0, 7, 3, label='MBPRI', rounding='silent'),
            Line('MBHDL', 'node', 0, 1, 1, label='MBHDL', rounding='silent'),
            Line('MBMAX', 'node', 1, 100, 100, label='MBMAX', info='MB',
                 rounding='silent', conversion='olk-5.10-max').with_bits(6),
            Line('MBMIN', 'node', 0, 100, 0, label='MBMIN',
                 rounding='silent', conversion='olk-5.10-min').with_bits(6),
        ),
        monitors=(
            Monitor('L3', 'node', ('llc_occupancy',)),
            Monitor('MB', 'node', ('mbm_total_bytes',), unit='MBps'),
        ),
        num_closids=16,
        num_rmids=16,
        info_files=(
            ('L3/features', 'caPbm@7fff\n'),
            ('MB/features', 'mbPrio@7\nmbHdl@1\nmbMax@100\nmbMin@100\n'),
        ),
        old_layout=True,
        cap='MBMAX',
        hard='MBHDL',
    )


def openeuler66(nodes: str) -> Machine:
    """Return a Kunpeng 920 under openEuler's OLK-6.6 kernel (MPAM), of 8 bits.

    MB domains are NUMA nodes, L3 domains are sparse cache ids (the manual's
    machine has 1 and 122). One width, that of the L3 mask, pads all values
    (``max_data_width`` in fs/resctrl/rdtgroup.c).
    """
    return Machine(
        dialect='openeuler66',
        nodes=parse_nodes(nodes, lambda node, _place: 1 + 121 * node),
        lines=(
            Line('MB', 'node', 1, 100, 100, label='   MB', digits=7,
                 info='MB', conversion='olk-6.6').with_bits(8),
            Line('MBMIN', 'node', 0, 100, 0, label='MBMIN', digits=7,
                 conversion='olk-6.6').with_bits(8),
            Line('MBPRI', 'node', 0, 7, 3, label='MBPRI', digits=7),
            Line('MBHDL', 'node', 0, 1, 1, label='MBHDL', digits=7),
            _mpam_mask_line('L3', 28, '   L3', 7),
            Line('L3PRI', 'l3', 0, 3, 0, label='L3PRI', digits=7),
        ),
        monitors=(
            Monitor('L3', 'l3', ('llc_occupancy',)),
            Monitor('MB', 'node', ('mbm_total_bytes',), unit='MBps'),
        ),
        num_closids=32,
        num_rmids=128,
        rmids_per_closid=4,
        iommu_groups=True,
        hard='MBHDL',
    )


def openeuler66_6bit(nodes: str) -> Machine:
    """Return openeuler66 with a control of 6 bits, which shows 64 values."""
    return with_bits(openeuler66(nodes), 6, 'openeuler66-6bit')


def openeuler66_7bit(nodes: str) -> Machine:
    """Return openeuler66 with a control of 7 bits, which shows 65 values."""
    return with_bits(openeuler66(nodes), 7, 'openeuler66-7bit')


def kunpeng950(nodes: str) -> Machine:
    """Return a Kunpeng 950 under OLK-6.6: shares of the cache besides."""
    machine = openeuler66(nodes)
    return dataclasses.replace(
        machine,
        dialect='kunpeng950',
        lines=(
            *machine.lines,
            Line('L3MAX', 'l3', 0, 100, 100, label='L3MAX', digits=7),
            Line('L3MIN', 'l3', 0, 100, 0, label='L3MIN', digits=7),
        ),
    )


def nvidia(nodes: str) -> Machine:
    """A Grace under NVIDIA's kernel: MB by NUMA node, hard or soft caps.

    A domain has one counter. Nodes without CPUs, as those of a GPU, have
    domains of MB.
    """
    machine = mpam(nodes)
    return dataclasses.replace(
        machine,
        dialect='nvidia',
        nodes=parse_nodes(nodes, lambda node, _place: node + 1),
        lines=(
            Line('MB', 'node', 1, 100, 100, label='     MB', info='MB',
                 conversion='linux').with_bits(7),
            Line('MB_HLIM', 'node', 0, 1, 0, label='MB_HLIM'),
            _mpam_mask_line('L3', 12, '     L3', 3),
        ),
        monitors=(dataclasses.replace(machine.monitors[0], counters=1),),
        info_files=(
            ('MB/max_lim', '0\n'), ('MB/schema_format', 'percentage\n'),
            ('MB_HLIM/num_closids', '32\n'),
            ('MB_HLIM/schema_format', 'mb_hlim\n'),
        ),
        empty_monitors=(('MB_HLIM', 'node'),),
        linux73=False,
        memory_domains=True,
        hard='MB_HLIM',
    )


def nvidia_vera(nodes: str) -> Machine:
    """Return a Vera: as a Grace, with the counters at the memory."""
    machine = nvidia(nodes)
    return dataclasses.replace(
        machine,
        dialect='nvidia-vera',
        nodes=parse_nodes(nodes, lambda node, _place: node),
        monitors=(
            Monitor('L3', 'l3', ('llc_occupancy',)),
            Monitor('MB', 'node', ('mbm_total_bytes',), counters=4,
                    modes=('mbm_event',)),
        ),
    )


#: Name on the command line -> machine of that dialect from its nodes.
DIALECTS: dict[str, Callable[[str], Machine]] = {
    'intel': intel,
    'intel-snc-cdp': intel_snc_cdp,
    'intel-mbps': intel_mbps,
    'amd': amd,
    'mpam': mpam,
    'mpam71': mpam71,
    'openeuler510': openeuler510,
    'openeuler66': openeuler66,
    'openeuler66-6bit': openeuler66_6bit,
    'openeuler66-7bit': openeuler66_7bit,
    'kunpeng950': kunpeng950,
    'nvidia': nvidia,
    'nvidia-vera': nvidia_vera,
}


def with_bits(machine: Machine, bits: int, dialect: str = '') -> Machine:
    """Return a machine whose MPAM controls have another width."""
    return dataclasses.replace(
        machine, dialect=dialect or machine.dialect, lines=tuple(
            line.with_bits(bits) if line.conversion else line
            for line in machine.lines))


def build(
    dialect: str,
    nodes: str,
    closids: int | None = None,
    rmids: int | None = None,
    limbo_seconds: float = 0.0,
    without: Collection[str] = (),
    known: Mapping[str, Callable[[str], Machine]] = DIALECTS,
) -> Machine:
    """Return a machine of a dialect, with other counts of groups.

    :param nodes: as for :func:`parse_nodes`.
    :param without: lines that this machine's hardware does not have.
    :param known: machines from their nodes, by dialect.
    :raises BadMachine: unknown dialect or line, bad nodes, counts below 1.
    """
    if dialect not in known:
        raise BadMachine(
            f"no dialect '{dialect}'; there are {', '.join(known)}"
        )
    machine = known[dialect](nodes)
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
