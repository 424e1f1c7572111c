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


"""What one host can hold, read from resctrl and sysfs without a write."""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import os
from pathlib import Path
import re

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import schemata
from ghsched_placement import host as placement_host

_NUMBER = re.compile(r'[0-9]{1,18}')
_RANGE = re.compile(r'([0-9]{1,5})(?:-([0-9]{1,5}))?')
_NODE = re.compile(r'node([0-9]{1,5})')


class ResctrlUnavailable(Exception):  # noqa: N818
    """This host can not control memory bandwidth; says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class ResctrlHost:
    """One host's control of memory bandwidth.

    :param dialect: with the knobs that this host has.
    :param num_closids: control groups, the kernel's default group counted;
        the least of all control resources, as the kernel does.
    :param num_rmids: monitoring groups, 0 when there is no monitor.
    :param min_bandwidth: lowest cap, percent.
    :param granularity: caps are multiples of it, percent.
    :param domains_by_node: domains of the MB line by host NUMA node; only
        nodes on which a limit can be held.
    :param monitored: whether memory bandwidth is reported.
    :param priority_default: priority of the root group, which a guest that
        asks for none is given; None without such a knob.
    :param left_out: the other host NUMA nodes, and why.
    :param libvirt_reads: whether an upstream libvirt can use the lines that
        there are, see :mod:`ghsched_nova.resctrl.own`.
    """

    dialect: dialects.Dialect
    num_closids: int
    num_rmids: int
    min_bandwidth: int
    granularity: int
    domains_by_node: Mapping[int, tuple[int, ...]]
    monitored: bool
    priority_default: int | None = None
    left_out: Mapping[int, str] = field(default_factory=dict)
    libvirt_reads: bool = True

    def capabilities(self) -> frozenset[str]:
        """Keys of ghsched_placement.names.CAPABILITY_TRAITS it can hold."""
        held = self.dialect.capabilities()
        return held if self.monitored else held - {'MEM_BW_MONITOR'}

    def description(
            self, reserved_groups: int = 0) -> placement_host.HostDescription:
        """What Placement needs to know of this host.

        :param reserved_groups: control groups that are kept for others than
            guests; the kernel's default group comes on top.
        """
        return placement_host.HostDescription(
            nodes=tuple(sorted(self.domains_by_node)),
            control_groups=max(0, self.num_closids - 1 - reserved_groups),
            capabilities=self.capabilities())


def read_host(resctrl: Path, sysfs: Path) -> ResctrlHost:
    """Find out what a host can hold.

    :param resctrl: where resctrl is mounted, usually /sys/fs/resctrl.
    :param sysfs: where sysfs is mounted, usually /sys.
    :raises ResctrlUnavailable: when resctrl is not mounted, offers no control
        of memory bandwidth, or speaks a dialect that is not known.
    """
    info = _read_info(resctrl)
    root = _read_root(resctrl)
    dialect = dialects.detect(info, root)
    if dialect is None:
        raise ResctrlUnavailable(
            f'the resctrl at {resctrl} is of an unknown kind: '
            + dialects.why_unknown(info, root))
    domains = frozenset(root.values(_line(dialect, 'maximum')) or {})
    by_node, left_out = _map_nodes(dialect, domains, sysfs)
    monitored = _monitored(dialect, info)
    return ResctrlHost(
        dialect=dialect,
        num_closids=_closids(info),
        num_rmids=_rmids(dialect, info) if monitored else 0,
        min_bandwidth=_info_number(info, 'MB/min_bandwidth', lowest=1),
        granularity=_info_number(info, 'MB/bandwidth_gran', lowest=1),
        domains_by_node=by_node, monitored=monitored,
        priority_default=_root_priority(dialect, root), left_out=left_out,
        libvirt_reads=schemata.libvirt_reads(root))


# -- info/ and the root group -------------------------------------------------


def _read_info(resctrl: Path) -> dict[str, str]:
    top = resctrl / 'info'
    if not os.path.isdir(top):  # False for a dead mount, too
        raise ResctrlUnavailable(
            f'there is no {top}; is resctrl mounted? '
            f'(mount -t resctrl resctrl {resctrl})')
    info = {}
    for directory in _entries(top):
        for file in _entries(directory):
            if os.path.isfile(file):
                info[f'{directory.name}/{file.name}'] = _text(file) or ''
    if not any(name.startswith('MB/') for name in info):
        raise ResctrlUnavailable(
            f'there is no {top / "MB"}: this processor, or its kernel, has '
            'no control of memory bandwidth')
    return info


def _read_root(resctrl: Path) -> schemata.Schemata:
    path = resctrl / 'schemata'
    text = _text(path)
    if text is None:
        raise ResctrlUnavailable(f'{path} can not be read')
    try:
        return schemata.parse(text)
    except schemata.SchemataError as exc:
        raise ResctrlUnavailable(f'{path}: {exc}') from exc


def _info_number(info: Mapping[str, str], name: str, lowest: int) -> int:
    text = info.get(name)
    if text is None:
        raise ResctrlUnavailable(f'there is no info/{name}')
    if not _NUMBER.fullmatch(text.strip()) or int(text) < lowest:
        # A 0 would do for the kernel, but libvirt takes it for a broken
        # host and starts no guest with a limit there.
        raise ResctrlUnavailable(f'info/{name} is {text.strip()!r}, not a '
                                 f'number from {lowest} on')
    return int(text)


def _closids(info: Mapping[str, str]) -> int:
    _info_number(info, 'MB/num_closids', lowest=1)
    return min(_info_number(info, name, lowest=1) for name in info
               if name.endswith('/num_closids'))


def _monitored(dialect: dialects.Dialect, info: Mapping[str, str]) -> bool:
    monitor = dialect.monitor
    if monitor is None:
        return False
    features = info.get(f'{monitor.info}/mon_features', '')
    return monitor.file in features.split()


def _rmids(dialect: dialects.Dialect, info: Mapping[str, str]) -> int:
    assert dialect.monitor is not None  # noqa: S101
    return _info_number(info, f'{dialect.monitor.info}/num_rmids', lowest=0)


def _root_priority(dialect: dialects.Dialect,
                   root: schemata.Schemata) -> int | None:
    knob = dialect.knob('priority')
    if knob is None:
        return None
    # Where an admin gave the root group one priority per domain, the least
    # one favours no guest that did not ask for it.
    return min((root.values(knob.line) or {}).values(), default=knob.default)


def _line(dialect: dialects.Dialect, role: dialects.Role) -> str:
    knob = dialect.knob(role)
    if knob is None:
        raise ResctrlUnavailable(f'{dialect.title} has no {role}')
    return knob.line


# -- host NUMA nodes and domains ----------------------------------------------

_NodeMap = tuple[dict[int, tuple[int, ...]], dict[int, str]]


def _map_nodes(dialect: dialects.Dialect, domains: frozenset[int],
               sysfs: Path) -> _NodeMap:
    """Domains by node, and the nodes left out with the reason.

    A node is left out when a limit on it could not hold: when it has no
    domain, or has CPUs of which the domain is unknown. A node without CPUs
    (memory alone) can back no guest node with vCPUs and is left out, too. A
    domain may belong to several nodes (sub-NUMA clusters below one L3); each
    of them has it then.
    """
    by_node: dict[int, tuple[int, ...]] = {}
    left_out: dict[int, str] = {}
    for node, path in _nodes(sysfs):
        cpus = _cpu_list(_text(path / 'cpulist') or '')
        if not cpus:
            left_out[node] = 'it has no CPU'
            continue
        found = ({node} if dialect.domain_kind == 'numa'
                 else _l3_domains(sysfs, cpus))
        if found is None:
            left_out[node] = 'a CPU of it has no cache/index3/id in sysfs'
        elif not found <= domains:
            missing = ', '.join(str(d) for d in sorted(found - domains))
            left_out[node] = f'the MB line has no domain {missing}'
        else:
            by_node[node] = tuple(sorted(found))
    if not by_node:
        reasons = '; '.join(f'node {node}: {reason}'
                            for node, reason in sorted(left_out.items()))
        raise ResctrlUnavailable('no host NUMA node has a domain of the MB '
                                 f'line ({reasons or "there is no node"})')
    return by_node, left_out


def _nodes(sysfs: Path) -> Iterator[tuple[int, Path]]:
    for path in _entries(sysfs / 'devices' / 'system' / 'node'):
        match = _NODE.fullmatch(path.name)
        if match:
            yield int(match[1]), path


def _l3_domains(sysfs: Path, cpus: frozenset[int]) -> set[int] | None:
    """Ids of the L3 caches of some CPUs; None when one is not known."""
    domains = set()
    rest = set(cpus)
    while rest:
        cpu = min(rest)
        cache = (sysfs / 'devices' / 'system' / 'cpu' / f'cpu{cpu}' / 'cache'
                 / 'index3')
        number = (_text(cache / 'id') or '').strip()
        if not _NUMBER.fullmatch(number):
            return None
        domains.add(int(number))
        shared = _cpu_list(_text(cache / 'shared_cpu_list') or '')
        rest -= shared | {cpu}
    return domains


def _cpu_list(text: str) -> frozenset[int]:
    """A list in the kernel's format ("0-3,8"); empty when it is none."""
    cpus: set[int] = set()
    for part in text.strip().split(','):
        match = _RANGE.fullmatch(part)
        if not match:
            return frozenset()
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cpus)


# -- files --------------------------------------------------------------------


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str | None:
    """Content of a file, None when it can not be read.

    Some files of info/ refuse to be read on some hosts; that they are there
    is a fact all the same.
    """
    try:
        return path.read_text(encoding='utf-8', errors='replace')
    except OSError:
        return None
