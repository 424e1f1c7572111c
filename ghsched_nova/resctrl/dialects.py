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


"""Descriptions of the kernels' variants of resctrl, as data.

All of them have a directory ``info/MB`` and a line that caps memory
bandwidth. They differ in the lines beside it, in the unit of the cap, in what
a domain is (a NUMA node or an L3 cache), in whether a cap is hard, and in
where and in what unit the bandwidth is reported. Each difference is a field
of :class:`Dialect`; a further kernel of this kind is a further value at the
end of this module, and no code. Another name than ``MB`` would need code:
doc/source/contributor/testing.rst lists the places.

Sources, read in the kernels themselves:

* Intel and AMD: Documentation/filesystems/resctrl.rst,
  arch/x86/kernel/cpu/resctrl/core.c and fs/resctrl/ctrlmondata.c of mainline;
* MPAM of mainline: drivers/resctrl/mpam_resctrl.c;
* openEuler 5.10: arch/arm64/kernel/mpam/mpam_resctrl.c and mpam_ctrlmon.c of
  OLK-5.10, and its MPAM operation manual;
* openEuler 6.6: drivers/platform/mpam/mpam_resctrl.c, fs/resctrl and
  Documentation/arch/arm64/mpam.md of OLK-6.6;
* NVIDIA: Documentation/filesystems/resctrl.rst of NVIDIA's NV-Kernels
  (``max_lim``, ``MB_HLIM``) and its tools/testing/selftests/resctrl.
"""

from collections.abc import Mapping
from collections.abc import Set
from dataclasses import dataclass
from dataclasses import replace
from typing import Literal

from ghsched_nova.resctrl.knobs import DomainKind
from ghsched_nova.resctrl.knobs import EIGHTH_GB
from ghsched_nova.resctrl.knobs import Knob
from ghsched_nova.resctrl.knobs import MIB
from ghsched_nova.resctrl.knobs import PERCENT
from ghsched_nova.resctrl.knobs import Role
from ghsched_nova.resctrl.knobs import Unit

#: Files of the directories in info/, by path below info/ ("MB/num_closids").
Info = Mapping[str, str]

_NOTHING: Set[str] = frozenset()

#: Schemata lines that limit bandwidth in addition to the cap in the MB line,
#: unless they have their highest value, as in a new group. ``GMB`` caps all L3
#: caches of a NUMA node together (AMD's Global Memory Bandwidth Allocation,
#: patches of April 2026).
LIMITING = ('GMB',)


@dataclass(frozen=True)
class Monitor:
    """Files and unit in which the kernel reports bandwidth of a group.

    :param info: name of the directory in info/ that describes the monitor.
    :param prefix: prefix of the names in mon_data/. The rest of a name is the
        id of the resctrl domain.
    :param file: name of the file in each directory of mon_data/; empty if
        mon_data/ has files instead of directories.
    :param unit: ``counter_bytes`` for a growing number of bytes, ``rate_mb``
        for the present rate in MB/s.
    """

    info: str
    prefix: str
    file: str
    unit: Literal['rate_mb', 'counter_bytes']

    def is_available(self, info: Info) -> bool:
        """Whether a host has this kind of bandwidth monitor.

        :param info: text of the files below resctrl's info/, by path.
        """
        if not self.file:
            return f'{self.info}/num_rmids' in info
        features = info.get(f'{self.info}/mon_features', '')
        return self.file in features.split()


@dataclass(frozen=True)
class DialectEvidence:
    """Files and schemata lines of the kernel that identify a dialect.

    A host must meet all of the conditions.

    :param files: files that info/ must have.
    :param no_files: files that info/ must not have.
    :param content: required text of files of info/; a missing file is no
        contradiction.
    :param any_line: schemata lines of which the root group must have one,
        unless info/ has a file of ``any_file``. If both are empty, nothing is
        required.
    :param any_file: files of info/ that serve in place of ``any_line``.
    :param group_file: file that the root group must have, unless one of its
        caps exceeds 100.
    :param no_group_file: file that the root group must not have.
    :param unpadded: whether values of the MB line must not be padded with
        zeros.
    :param throttled: whether the host must have
        info/MB/thread_throttle_mode, or the steps of caps that only Intel has.
    """

    files: tuple[str, ...] = ()
    no_files: tuple[str, ...] = ()
    content: tuple[tuple[str, str], ...] = ()
    any_line: tuple[str, ...] = ()
    any_file: tuple[str, ...] = ()
    group_file: str = ''
    no_group_file: str = ''
    unpadded: bool = False
    throttled: bool = False


@dataclass(frozen=True)
class Dialect:
    """A variant of resctrl: its lines, values, domains and monitors.

    :param name: short name, used in host files.
    :param title: display name.
    :param knobs: the bandwidth controls, each a schemata line, in the order
        in which their lines are written. If two have the same role, a host
        has only one of them.
    :param domain_kind: kind of the domains of the MB line.
    :param monitor: files that report memory bandwidth; None if none do.
    :param hardlimit_fixed: whether caps are always hard (True) or always soft
        (False); None if a schemata line sets it, or if it is unknown.
    :param evidence: conditions that identify a host of this dialect.
    :param unit: unit of caps.
    :param passive: further bandwidth lines, which restrict nothing unless
        somebody writes to them.
    :param libvirt: whether libvirt can create control groups, provided that
        it can parse the lines of the host.
    :param libvirt_monitors: whether libvirt can create the monitoring group
        of a guest without a control group, for which it parses no line.
    :param other_monitor: files that report memory bandwidth on machines
        without those of ``monitor``.
    :param devices: whether control groups can contain devices, see
        :mod:`ghsched_nova.resctrl.devices`.
    :param per_core: whether a cap applies to each CPU core separately, and
        not to all threads of the group together.
    :param own_rmids: whether each control group has its own monitoring ids
        (PMG of MPAM). Otherwise all control groups share them.
    :param x86: whether the processors have the x86 instruction set; the others
        are of Arm.
    :param staged: whether a write to one line of a group also changes its
        other lines, see :mod:`ghsched_nova.resctrl.staged`.
    """

    name: str
    title: str
    knobs: tuple[Knob, ...]
    domain_kind: DomainKind
    monitor: Monitor | None
    hardlimit_fixed: bool | None
    evidence: DialectEvidence = DialectEvidence()
    unit: Unit = PERCENT
    passive: tuple[str, ...] = ()
    libvirt: bool = True
    libvirt_monitors: bool = True
    other_monitor: Monitor | None = None
    devices: bool = False
    per_core: bool = False
    own_rmids: bool = True
    x86: bool = False
    staged: bool = False

    def find_knob(self, role: Role) -> Knob | None:
        """Return the schemata line for a purpose, e.g. for bandwidth caps.

        :param role: the purpose, e.g. ``maximum`` for caps.
        :returns: None if this variant of resctrl has no such line.
        """
        return next((k for k in self.knobs if k.role == role), None)

    def find_monitor(self, info: Info) -> Monitor | None:
        """Return the files in which a host reports memory bandwidth, if any.

        :param info: text of the files below resctrl's info/, by path.
        """
        return next((one for one in (self.monitor, self.other_monitor)
                     if one is not None and one.is_available(info)), None)

    @property
    def cap_or_guarantee_knob(self) -> Knob:
        """Schemata line that caps bandwidth.

        If this variant of resctrl has no caps, the value is the line that
        guarantees bandwidth. The resctrl domains of the host are read from
        this line.
        """
        return (
            self.find_knob('maximum')
            or self.find_knob('minimum')
            or self.knobs[0]
        )

    @property
    def has_absolute_caps(self) -> bool:
        """Whether bandwidth caps are in bytes per second instead of percent.
        """
        return self.unit.size is not None

    def capabilities(self) -> frozenset[str]:
        """Return the bandwidth controls that this variant of resctrl has.

        The results are keys of names.CAPABILITY_TRAITS, e.g. MEM_BW_MAX for a
        cap on memory bandwidth.
        """
        roles = {knob.role for knob in self.knobs}
        cap, free = 'maximum' in roles, 'hardlimit' in roles
        held = {
            'MEM_BW_MAX': cap,
            'MEM_BW_MIN': 'minimum' in roles,
            'MEM_BW_HARDLIMIT': cap and (free or self.hardlimit_fixed is True),
            'MEM_BW_SOFTLIMIT': cap and (
                free or self.hardlimit_fixed is False),
            'MEM_BW_PRIORITY': 'priority' in roles,
            'MEM_BW_MONITOR': self.monitor is not None,
        }
        return frozenset(name for name, held in held.items() if held)

    @property
    def line_names(self) -> frozenset[str]:
        """Names of the schemata lines that this resctrl variant has."""
        return frozenset(knob.line for knob in self.knobs).union(
            self.passive, LIMITING)

    def restrict_to_lines(self, lines: frozenset[str]) -> 'Dialect':
        """Return a copy of this dialect that has only a host's lines.

        Kernels of one dialect differ in the lines of their schemata files.

        :param lines: names of the host's schemata lines.
        """
        return replace(self, knobs=tuple(
            knob for knob in self.knobs if knob.line in lines))


OPENEULER_66 = Dialect(
    name='openeuler-6.6',
    title='openEuler 24.03 (OLK-6.6) MPAM',
    knobs=(
        Knob('maximum', 'MB', 1, 100, 100, stepped=True, lowest=0,
             measured=True),
        Knob('hardlimit', 'MBHDL', 0, 1, 1),
        Knob('priority', 'MBPRI', 0, 7, 3),
        Knob('minimum', 'MBMIN', 0, 100, 0, stepped=True, measured=True),
    ),
    domain_kind='numa',
    # A rate: Documentation/arch/arm64/mpam.md of OLK-6.6, against the name.
    monitor=Monitor('MB_MON', 'mon_MB_', 'mbm_total_bytes', 'rate_mb'),
    hardlimit_fixed=None,
    # The lines beside MB are openEuler's. OLK-5.10 has them too, but other
    # monitor files, and it alone has a file "features".
    evidence=DialectEvidence(no_files=('MB/features',),
                             any_line=('MBHDL', 'MBPRI', 'MBMIN')),
    devices=True,
)

OPENEULER_510 = Dialect(
    name='openeuler-5.10',
    title='openEuler 22.03 (OLK-5.10) MPAM',
    knobs=(
        # The mount option mbMax replaces MB by MBMAX, with the same meaning.
        Knob('maximum', 'MBMAX', 1, 100, 100, stepped=True, lowest=0,
             measured=True, feature='mbMax'),
        Knob('maximum', 'MB', 1, 100, 100, stepped=True, lowest=0,
             measured=True),
        Knob('hardlimit', 'MBHDL', 0, 1, 1, feature='mbHdl'),
        # The bits of the field, and so its highest value, are the machine's.
        Knob('priority', 'MBPRI', 0, 7, None, feature='mbPrio'),
        Knob('minimum', 'MBMIN', 0, 100, 0, stepped=True, measured=True,
             feature='mbMin'),
    ),
    domain_kind='numa',
    # The manual of OLK-5.10 names no unit; that of OLK-6.6 says MB/s at this
    # moment for the same hardware, and the manual's sample fits that.
    monitor=Monitor('MB_MON', 'mon_MB_', '', 'rate_mb'),
    # What a cap is without the mount option mbHdl is not documented.
    hardlimit_fixed=None,
    evidence=DialectEvidence(files=('MB/features',),
                             no_files=('MB_MON/mon_features',
                                       'MB/delay_linear')),
    # A bit map of portions, which is full unless somebody wrote to it.
    passive=('MBPBM',),
    # rmid_alloc() takes all ids from one bit map.
    own_rmids=False,
    staged=True,
    # It wants info/L3_MON/mon_features, and ids of L3 caches in the L3 line.
    # Without, a guest that has any memorytune does not start: "Resource
    # control is not supported on this host".
    libvirt=False,
    libvirt_monitors=False,
)

_L3_MONITOR = Monitor('L3_MON', 'mon_L3_', 'mbm_total_bytes', 'counter_bytes')

_NOT_INTEL = ('MB/features', 'MB/max_lim', 'MB_MON/mon_features')

INTEL = Dialect(
    name='intel-rdt',
    title='Intel RDT',
    knobs=(Knob('maximum', 'MB', 1, 100, 100, stepped=True),),
    domain_kind='l3',
    monitor=_L3_MONITOR,
    # MBA slows the requests of a core down, whether others wait or not.
    hardlimit_fixed=True,
    # A line MB is no evidence: AMD has it (in units of 1/8 GB/s, up to 2048),
    # Intel's own software controller (mount option mba_MBps) has it in
    # MiB/s, and mainline MPAM has it in percent, with info/MB/delay_linear at
    # 1 just as on Intel. The kernel shows thread_throttle_mode where the
    # throttle mode is defined, which is on Intel alone, since Linux 5.12.
    # Before, the steps are evidence: those of all processors so far (10 and
    # 10) are those of no binary fraction.
    evidence=DialectEvidence(files=('MB/delay_linear',), no_files=_NOT_INTEL,
                             throttled=True, no_group_file='mba_MBps_event'),
    # Documentation/filesystems/resctrl.rst, "Memory bandwidth Allocation":
    # the control is per core, at the link to the L3 cache.
    per_core=True,
    own_rmids=False,
    x86=True,
)

INTEL_MBPS = Dialect(
    name='intel-mba-mbps',
    title='Intel RDT with the software controller (mba_MBps)',
    # U32_MAX, which is what a fresh group holds, is no limit. Older kernels
    # round up to a multiple of bandwidth_gran here, too; newer ones take the
    # value as it is. A multiple is right for both.
    knobs=(Knob('maximum', 'MB', 1, 2 ** 32 - 1, 2 ** 32 - 1, stepped=True,
                lowest=0),),
    domain_kind='l3',
    monitor=_L3_MONITOR,
    # The kernel's feedback loop keeps the use below the value at all times.
    hardlimit_fixed=True,
    # Older kernels lack the file. There a cap above 100 is evidence, and a
    # fresh root group has one.
    evidence=DialectEvidence(files=('MB/delay_linear',), no_files=_NOT_INTEL,
                             throttled=True, group_file='mba_MBps_event'),
    unit=MIB,
    # Before 10.8 libvirt refuses values above 100.
    libvirt=False,
    own_rmids=False,
    x86=True,
)

AMD = Dialect(
    name='amd-qos',
    title='AMD QoS',
    # The highest value is a power of two that the processor gives, 2048 in
    # the kernel's documentation; it is what a fresh group holds, and no
    # limit.
    knobs=(Knob('maximum', 'MB', 1, 2 ** 24, 2048, stepped=True, lowest=0,
                power=True),),
    domain_kind='l3',
    monitor=_L3_MONITOR,
    hardlimit_fixed=True,
    # __rdt_get_mem_config_amd(): no delay, so delay_linear is 0 (the kernel
    # refuses it on Intel), no throttle mode, and any value from 0 on.
    evidence=DialectEvidence(
        files=('MB/delay_linear', 'MB/min_bandwidth', 'MB/bandwidth_gran'),
        no_files=('MB/thread_throttle_mode',),
        content=(('MB/delay_linear', '0'), ('MB/min_bandwidth', '0'),
                 ('MB/bandwidth_gran', '1'))),
    unit=EIGHTH_GB,
    # libvirt takes a min_bandwidth of 0 for a broken host, and before 10.8
    # it refuses values above 100.
    libvirt=False,
    own_rmids=False,
    x86=True,
)

MPAM = Dialect(
    name='mpam',
    title='mainline Linux MPAM',
    knobs=(Knob('maximum', 'MB', 1, 100, 100, fraction=True, lowest=0),),
    domain_kind='l3',
    # From Linux 7.3 on, with counters that are assigned; none before.
    monitor=_L3_MONITOR,
    # The driver clears HARDLIM, and does not show whether the hardware has a
    # choice (MPAMF_MBW_IDR.MAX_LIM).
    hardlimit_fixed=None,
    # mpam_resctrl_control_init(): linear, no throttle mode, sparse masks.
    # The steps are evidence against the rest: no Intel processor has them.
    evidence=DialectEvidence(
        files=('MB/delay_linear',),
        no_files=('MB/thread_throttle_mode', 'MB/features', 'MB/max_lim',
                  'MB_MON/mon_features'),
        content=(('MB/delay_linear', '1'), ('L3/sparse_masks', '1'),
                 ('L2/sparse_masks', '1'))),
)

NVIDIA = Dialect(
    name='nvidia-mpam',
    title='NVIDIA MPAM',
    knobs=(
        Knob('maximum', 'MB', 1, 100, 100, fraction=True, lowest=0),
        Knob('hardlimit', 'MB_HLIM', 0, 1, None),
    ),
    # NUMA nodes since the nodes of a GPU (without CPUs) have domains, L3
    # caches before.
    domain_kind='either',
    # Grace counts at the L3, Vera at the memory.
    monitor=_L3_MONITOR,
    other_monitor=Monitor('MB_MON', 'mon_MB_', 'mbm_total_bytes',
                          'counter_bytes'),
    # Without MB_HLIM info/MB/max_lim is not 0: the hardware has no choice,
    # and the kernel's documentation does not say which it has made.
    hardlimit_fixed=None,
    evidence=DialectEvidence(
        files=('MB/delay_linear',),
        no_files=('MB/thread_throttle_mode', 'MB/features'),
        content=(('MB/delay_linear', '1'),),
        # Kernels from before max_lim have counters at the memory already.
        # openEuler's kernels, which have rates there, pad values with zeros.
        any_line=('MB_HLIM',), any_file=('MB/max_lim', 'MB_MON/mon_features'),
        unpadded=True),
)

#: Files of info/ that only kernels with MPAM have: of L3 and L2 caches, whose
#: masks may have holes, and of a monitor at the memory.
MPAM_FILES = frozenset({'L3/sparse_masks', 'L2/sparse_masks',
                        'MB_MON/mon_features'})

#: Dialect of kernels that allocate L3 ways or measure bandwidth, but do not
#: control bandwidth: CAT without MBA, and MPAM whose bandwidth control is
#: left out.
UNCONTROLLED = Dialect(
    name='no-bandwidth-control',
    title='resctrl without control of memory bandwidth',
    knobs=(),
    domain_kind='l3',
    monitor=_L3_MONITOR,
    hardlimit_fixed=None,
    libvirt=False,
    own_rmids=False,
)

#: Dialect of other kernels that describe their controls below info/.
SELF_DESCRIBED = Dialect(
    name='self-described',
    title='self-described resctrl',
    knobs=(),
    domain_kind='l3',
    monitor=_L3_MONITOR,
    # What is done with a cap while bandwidth is idle is not described.
    hardlimit_fixed=None,
    libvirt=False,
)

#: All dialects, by which hosts are recognised.
ALL: tuple[Dialect, ...] = (OPENEULER_66, OPENEULER_510, INTEL, INTEL_MBPS,
                            AMD, MPAM, NVIDIA)

BY_NAME: dict[str, Dialect] = {dialect.name: dialect for dialect in ALL}
