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


"""What kernels offer under the name of resctrl, as data.

All of them have a line ``MB`` and a directory ``info/MB``. They differ in the
lines beside it, in what a domain is (a NUMA node or an L3 cache), in whether
a cap is hard, and in where and in what unit the bandwidth is reported. Each
difference is a field of :class:`Dialect`; a further kernel is a further
value at the end of this module, and no code.

Sources: Documentation/filesystems/resctrl.rst of the mainline kernel and
Documentation/arch/arm64/mpam.md of openEuler's OLK-6.6.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Literal

from ghsched_nova.resctrl import schemata

Role = Literal['maximum', 'minimum', 'hardlimit', 'priority']

#: Files of the directories in info/, by path below info/ ("MB/num_closids").
Info = Mapping[str, str]


@dataclass(frozen=True)
class Knob:
    """One line of schemata that holds a part of a guest's policy.

    :param role: the part of the policy.
    :param line: name of the line, exactly.
    :param minimum: lowest value the kernel takes.
    :param maximum: highest value the kernel takes.
    :param default: what a fresh group holds when nobody wrote to it.
    :param stepped: whether the value is a multiple of
        info/MB/bandwidth_gran.
    """

    role: Role
    line: str
    minimum: int
    maximum: int
    default: int
    stepped: bool = False


@dataclass(frozen=True)
class Monitor:
    """Where the memory bandwidth of a group is reported.

    :param info: directory in info/ that announces it.
    :param prefix: directories in mon_data/ begin so; the rest is the domain.
    :param file: the file in them.
    :param unit: ``counter_bytes`` grows and is differentiated by the reader;
        ``rate_mb`` is MB/s at this moment, whatever the file's name says.
    """

    info: str
    prefix: str
    file: str
    unit: Literal['rate_mb', 'counter_bytes']


@dataclass(frozen=True)
class Evidence:
    """What gives a dialect away, below info/ and in the root's schemata.

    :param files: all of these must be in info/.
    :param no_files: none of these may be.
    :param any_line: at least one of these lines must be in the root's
        schemata; empty asks for nothing.
    """

    files: tuple[str, ...] = ()
    no_files: tuple[str, ...] = ()
    any_line: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialect:
    """One kind of resctrl.

    :param name: short name, as in files that describe a host.
    :param title: name for people.
    :param knobs: the lines, in the order in which they are written.
    :param domain_kind: what the domain ids of the MB line number.
    :param monitor: None when memory bandwidth is not reported.
    :param hardlimit_fixed: whether a cap is always (True) or never (False)
        hard; None when the hardlimit knob decides, or nobody knows.
    :param evidence: how to recognise it.
    """

    name: str
    title: str
    knobs: tuple[Knob, ...]
    domain_kind: Literal['numa', 'l3']
    monitor: Monitor | None
    hardlimit_fixed: bool | None
    evidence: Evidence = Evidence()

    def knob(self, role: Role) -> Knob | None:
        """The line of one part of the policy, None when there is none."""
        return next((k for k in self.knobs if k.role == role), None)

    def capabilities(self) -> frozenset[str]:
        """Keys of ghsched_placement.names.CAPABILITY_TRAITS it can hold."""
        roles = {knob.role for knob in self.knobs}
        free = 'hardlimit' in roles
        held = {
            'MEM_BW_MAX': 'maximum' in roles,
            'MEM_BW_MIN': 'minimum' in roles,
            'MEM_BW_HARDLIMIT': free or self.hardlimit_fixed is True,
            'MEM_BW_SOFTLIMIT': free or self.hardlimit_fixed is False,
            'MEM_BW_PRIORITY': 'priority' in roles,
            'MEM_BW_MONITOR': self.monitor is not None,
        }
        return frozenset(name for name, held in held.items() if held)

    def narrowed(self, lines: frozenset[str]) -> 'Dialect':
        """The same without the knobs that this hardware has no line for."""
        return replace(self, knobs=tuple(
            knob for knob in self.knobs if knob.line in lines))


def detect(info: Info, root: schemata.Schemata) -> Dialect | None:
    """The dialect that a host speaks, with the knobs that it has.

    It is read off what the kernel shows; a command line or a mount option
    says what somebody wanted, not what came of it.

    :param info: the files of the directories in info/.
    :param root: schemata of the root group.
    :returns: None when no dialect, or more than one, fits;
        :func:`why_unknown` has the reason.
    """
    fitting = [dialect for dialect in ALL if not mismatch(dialect, info, root)]
    if len(fitting) != 1:
        return None
    return fitting[0].narrowed(frozenset(line.name for line in root.lines))


def why_unknown(info: Info, root: schemata.Schemata) -> str:
    """Why :func:`detect` found nothing, in one sentence."""
    reasons = [f'not {dialect.title}, because '
               f'{mismatch(dialect, info, root) or "others fit as well"}'
               for dialect in ALL]
    return '; '.join(reasons)


def mismatch(dialect: Dialect, info: Info,
             root: schemata.Schemata) -> str | None:
    """Why a host does not speak a dialect; None when it does."""
    evidence = dialect.evidence
    names = frozenset(line.name for line in root.lines)
    for file in evidence.files:
        if file not in info:
            return f'there is no info/{file}'
    for file in evidence.no_files:
        if file in info:
            return f'there is an info/{file}'
    if evidence.any_line and names.isdisjoint(evidence.any_line):
        return ('the root group has none of the lines '
                + ', '.join(evidence.any_line))
    return _foreign_line(dialect, names) or _foreign_value(dialect, root)


def _foreign_line(dialect: Dialect, names: frozenset[str]) -> str | None:
    # A bandwidth line that the dialect does not know may change what the
    # known ones mean (NVIDIA's MB_HLIM, openEuler 5.10's MBPBM); a line of a
    # cache can not.
    known = {knob.line for knob in dialect.knobs}
    for name in sorted(names - known):
        if name.startswith('MB'):
            return f'the root group has an unknown line {name}'
    return None


def _foreign_value(dialect: Dialect, root: schemata.Schemata) -> str | None:
    for knob in dialect.knobs:
        try:
            values = root.values(knob.line)
        except schemata.SchemataError as exc:
            return str(exc)
        if values is None and knob.role == 'maximum':
            return f'the root group has no line {knob.line}'
        for domain, value in (values or {}).items():
            if not knob.minimum <= value <= knob.maximum:
                return (f'{knob.line} of domain {domain} is {value}, outside '
                        f'{knob.minimum}..{knob.maximum}')
    return None


OPENEULER_66 = Dialect(
    name='openeuler-6.6',
    title='openEuler 24.03 (OLK-6.6) MPAM',
    knobs=(
        Knob('maximum', 'MB', 1, 100, 100, stepped=True),
        Knob('hardlimit', 'MBHDL', 0, 1, 1),
        Knob('priority', 'MBPRI', 0, 7, 3),
        Knob('minimum', 'MBMIN', 0, 100, 0, stepped=True),
    ),
    domain_kind='numa',
    # A rate: Documentation/arch/arm64/mpam.md of OLK-6.6, against the name.
    monitor=Monitor('MB_MON', 'mon_MB_', 'mbm_total_bytes', 'rate_mb'),
    hardlimit_fixed=None,
    # The lines beside MB are openEuler's. OLK-5.10 has them too, but other
    # monitor files, and it alone has a file "features".
    evidence=Evidence(no_files=('MB/features',),
                      any_line=('MBHDL', 'MBPRI', 'MBMIN')),
)

INTEL = Dialect(
    name='intel-rdt',
    title='Intel RDT',
    knobs=(Knob('maximum', 'MB', 1, 100, 100, stepped=True),),
    domain_kind='l3',
    monitor=Monitor('L3_MON', 'mon_L3_', 'mbm_total_bytes', 'counter_bytes'),
    # MBA slows the requests of a core down, whether others wait or not.
    hardlimit_fixed=True,
    # MB alone tells little: AMD has it (in units of 1/8 GB/s, up to 2048),
    # Intel's own software controller (mount option mba_MBps) has it in MB/s,
    # and mainline MPAM has it in percent, with info/MB/delay_linear at 1 just
    # as on Intel. The kernel shows thread_throttle_mode where the throttle
    # mode is defined, which is on Intel alone, since Linux 5.12; the range
    # of the values then tells the software controller apart. An Intel host
    # with an older kernel can not be told from MPAM and stays unknown.
    evidence=Evidence(files=('MB/delay_linear', 'MB/thread_throttle_mode')),
)

#: Every dialect, and all that there is to add for a further one.
ALL: tuple[Dialect, ...] = (OPENEULER_66, INTEL)

BY_NAME: dict[str, Dialect] = {dialect.name: dialect for dialect in ALL}
