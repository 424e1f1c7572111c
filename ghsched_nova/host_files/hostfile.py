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


"""Files that describe a host for the dry run (``ghsched explain --host``).

The keys are described in the files under etc/ghsched/hosts. Every mistake is
refused, with the file, the key and the reason; nothing is guessed.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import re
from typing import Any
from typing import TypeVar

from ghsched_nova.host_files import host_pfs
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl.host import ResctrlHost
from ghsched_nova.resctrl.host import scales_of
from ghsched_nova.resctrl import rounding
from ghsched_placement.contention.machine import CONTROLS
from ghsched_placement.contention.machine import Machine
from ghsched_placement.contention.machine import MachineError
from ghsched_placement.contention import shipped
from ghsched_placement import cpulist
from ghsched_placement import documents
from ghsched_placement import tree

_T = TypeVar('_T')
_MUST = object()

_PCI_ADDRESS = re.compile('[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:'
                          '[01][0-9a-fA-F][.][0-7]')
_ALIAS = re.compile('[^:,]+')
_CLASS = re.compile('[A-Z0-9_]+')


class HostFileError(Exception):
    """A host file that cannot be used; says which key and why."""


@dataclass(frozen=True)
class HostNode:
    """One host NUMA node.

    :param cpus: CPU numbers that guests may use.
    :param memory_mb: MiB that guests may use.
    :param socket: the socket that it is on, None when it is not told.
    :param distances: SLIT, to each node of the file in its order; empty when
        it is not told.
    :param latency_ns: of its memory from its own CPUs, likewise 0.
    :param bandwidth_mb: what it can deliver in MB/s, likewise 0.
    """

    id: int
    cpus: frozenset[int]
    memory_mb: int
    socket: int | None = None
    distances: tuple[int, ...] = ()
    latency_ns: int = 0
    bandwidth_mb: int = 0


@dataclass(frozen=True)
class Compute:
    """What nova-compute would report beside NUMA nodes.

    :param dedicated: [compute]cpu_dedicated_set; guests that share CPUs are
        on the others.
    :param cpu_ratio: vCPUs for each CPU that is shared; the default is that
        of [DEFAULT]initial_cpu_allocation_ratio.
    :param ram_ratio: how many times over memory may be given out.
    :param disk_gb: GiB for disks of guests; None is not counted.
    """

    dedicated: frozenset[int] = frozenset()
    cpu_ratio: float = 4.0
    ram_ratio: float = 1.0
    disk_gb: int | None = None


@dataclass(frozen=True)
class HostFile:
    """One host.

    :param name: what its providers are named after.
    :param nodes: ascending by id.
    :param resctrl: what resctrl would say on it.
    :param attributes: which attributes of memorytune its libvirt keeps:
        ``extended``, ``basic``, or ``none`` where it cannot use the resctrl
        of the host at all.
    :param reserved_groups: control groups kept for others than guests.
    :param tree_config: the host's [ghsched] settings for Placement.
    :param pfs: PFs whose VFs guests may have.
    :param contention: for the model of contention, None when the file does
        not tell.
    :param compute: other settings of nova-compute.
    :param libvirt_monitors: whether libvirt makes the monitoring group of a
        guest without a control group.
    :param burst_ratio: how many times over what is kept for bursts may be
        promised; nova-compute finds it by measured use.
    """

    name: str
    nodes: tuple[HostNode, ...]
    resctrl: ResctrlHost
    attributes: str
    reserved_groups: int
    tree_config: tree.Config
    pfs: tuple[host_pfs.HostPf, ...] = ()
    contention: Machine | None = None
    compute: Compute = Compute()
    libvirt_monitors: bool = True
    burst_ratio: float = 1.0

    @property
    def sockets(self) -> dict[int, int | None]:
        """Socket by NUMA node."""
        return {node.id: node.socket for node in self.nodes}

    @property
    def aliases(self) -> dict[str, str]:
        """Resource class by PCI alias."""
        return {pf.alias: pf.resource_class for pf in self.pfs}

    @property
    def extended(self) -> bool:
        """Whether the XML carries all attributes."""
        return self.attributes == 'extended'

    def node(self, number: int) -> HostNode | None:
        return next((n for n in self.nodes if n.id == number), None)


def load(path: str) -> HostFile:
    """Read a host file.

    :raises HostFileError: when there is none, or when it has a mistake.
    """
    try:
        return _host(_Mapping('', documents.load(path)))
    except (documents.DocumentError, HostFileError) as error:
        raise HostFileError(f'{path}: {error}') from None


# -- checked access -----------------------------------------------------------


class _Mapping:
    """A mapping of the file whose keys are taken one by one."""

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise HostFileError(f'{where or "the file"}: must be a mapping, '
                                f'is {_kind(value)}')
        self._where = where
        self._left = {str(key): item for key, item in value.items()}

    def name(self, key: str) -> str:
        return f'{self._where}.{key}' if self._where else key

    def take(self, key: str, check: Callable[[str, Any], _T],
             default: Any = _MUST) -> _T:
        if key in self._left:
            return check(self.name(key), self._left.pop(key))
        if default is _MUST:
            raise HostFileError(f'{self.name(key)}: is missing')
        return default

    def done(self) -> None:
        if self._left:
            key = min(self._left)
            raise HostFileError(f'{self.name(key)}: unknown key')

    def items(self) -> Sequence[tuple[str, Any]]:
        return tuple(self._left.items())


def _kind(value: Any) -> str:
    names = {type(None): 'empty', list: 'a list', dict: 'a mapping',
             str: 'text', bool: 'true or false'}
    return names.get(type(value), 'a number')


def _shown(value: Any) -> str:
    """As much of a value as a message can have."""
    return repr(value)[:100]


def _integer(minimum: int, maximum: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise HostFileError(f'{name}: must be a whole number, is '
                                f'{_shown(value)}')
        if not minimum <= value <= maximum:
            raise HostFileError(f'{name}: {value} is not between {minimum} '
                                f'and {maximum}')
        return value
    return check


def _ratio(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise HostFileError(f'{name}: must be a number, is '
                            f'{_shown(value)}')
    if not 0.1 <= value <= 100:
        raise HostFileError(f'{name}: {value} is not between 0.1 and 100')
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise HostFileError(f'{name}: must be text, is {_kind(value)}')
    return value


def _matching(pattern: re.Pattern[str]) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        text = _text(name, value)
        if not pattern.fullmatch(text):
            raise HostFileError(f'{name}: {_shown(text)} is not of the form '
                                f'{pattern.pattern}')
        return text
    return check


def _one_of(words: Sequence[str]) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in words:
            raise HostFileError(f'{name}: {_shown(value)} is none of '
                                + ', '.join(words))
        return str(value)
    return check


def _cpus(name: str, value: Any) -> frozenset[int]:
    # YAML makes a number of a single CPU.
    text = str(value) if isinstance(value, int) else _text(name, value)
    try:
        return cpulist.parse(text)
    except cpulist.CpuListError as error:
        raise HostFileError(f'{name}: {error}') from None


def _list(check: Callable[[str, Any], _T],
          ) -> Callable[[str, Any], tuple[_T, ...]]:
    def check_all(name: str, value: Any) -> tuple[_T, ...]:
        if not isinstance(value, list) or not value:
            raise HostFileError(f'{name}: must be a list with something in '
                                f'it, is {_kind(value or None)}')
        return tuple(check(f'{name}[{place}]', item)
                     for place, item in enumerate(value))
    return check_all


_number = _integer(0, 10 ** 9)
_node_id = _integer(0, 9999)
_percent = _integer(0, 100)


# -- the file -----------------------------------------------------------------


def _host(top: _Mapping) -> HostFile:
    name = top.take('name', _text)
    nodes, domains, speeds = _nodes(top)
    resctrl = _resctrl(_Mapping('resctrl', top.take('resctrl', _any)),
                       domains, speeds)
    settings = _Mapping('ghsched', top.take('ghsched', _any, {}))
    told = settings.take('memorytune_attributes',
                         _one_of(('none', 'basic', 'extended')), None)
    attributes = told or ('basic' if resctrl.libvirt_reads else 'none')
    monitors = told != 'none' if told else resctrl.dialect.libvirt_monitors
    reserved = settings.take('reserved_control_groups', _number, 0)
    known = frozenset(node.id for node in nodes)
    config = _tree_config(settings, known)
    burst_ratio = settings.take('bandwidth_burst_ratio', _ratio, 1.0)
    settings.done()
    pfs = _pfs(top.take('pfs', _list(_Mapping), ()), known)
    machine = _machine(top.take('contention', _any, None), name, nodes,
                       resctrl, pfs)
    compute = _compute(_Mapping('nova', top.take('nova', _any, {})), nodes)
    top.done()
    return HostFile(name, nodes, resctrl, attributes, reserved, config, pfs,
                    machine, compute, monitors, burst_ratio)


def _machine(section: Any, name: str, nodes: Sequence[HostNode],
             resctrl: ResctrlHost,
             pfs: Sequence[host_pfs.HostPf]) -> Machine | None:
    """Return the machine of the contention model, None without the section.

    Without a latency curve of its own it has the one closest to it.
    """
    if section is None:
        return None
    entry = _Mapping('contention', section)
    for key in ('name', 'nodes', 'nics', 'controls'):
        entry.take(key, _refused, None)
    known = {
        'name': name, 'nics': [pf.node for pf in pfs],
        'nodes': [{'id': node.id, 'threads': len(node.cpus),
                   'memory_mb': node.memory_mb, 'socket': node.socket or 0}
                  for node in nodes],
        'controls': resctrl.capabilities() & set(CONTROLS)}
    try:
        machine = Machine.from_mapping(dict(entry.items()) | known)
    except MachineError as error:
        raise HostFileError(f'contention.{error}') from None
    return machine if machine.curve else replace(
        machine, curve=shipped.closest(resctrl.dialect.name))


def _refused(name: str, _value: Any) -> None:
    raise HostFileError(f'{name}: unknown key')


def _compute(entry: _Mapping, nodes: Sequence[HostNode]) -> Compute:
    cpus = frozenset[int]().union(*(node.cpus for node in nodes))
    default = Compute()
    dedicated = entry.take('dedicated_cpus', _cpus, default.dedicated)
    if not dedicated <= cpus:
        raise HostFileError(
            f'{entry.name("dedicated_cpus")}: no node has CPU '
            f'{cpulist.render(dedicated - cpus)}')
    found = Compute(
        dedicated, entry.take('cpu_allocation_ratio', _ratio,
                              default.cpu_ratio),
        entry.take('ram_allocation_ratio', _ratio, default.ram_ratio),
        entry.take('disk_gb', _number, default.disk_gb))
    entry.done()
    return found


def _pfs(entries: Sequence[_Mapping],
         nodes: frozenset[int]) -> tuple[host_pfs.HostPf, ...]:
    found: dict[str, host_pfs.HostPf] = {}
    classes: dict[str, str] = {}
    for entry in entries:
        pf = host_pfs.HostPf(
            address=entry.take('address', _matching(_PCI_ADDRESS)).lower(),
            node=entry.take('node', _node_id),
            vfs=entry.take('vfs', _integer(1, 9999)),
            alias=entry.take('alias', _matching(_ALIAS)),
            resource_class=entry.take('resource_class', _matching(_CLASS)))
        if pf.address in found:
            raise HostFileError(f'{entry.name("address")}: {pf.address} is '
                                'there twice')
        if pf.node not in nodes:
            raise HostFileError(f'{entry.name("node")}: the host has no NUMA '
                                f'node {pf.node}')
        if classes.setdefault(pf.alias, pf.resource_class) != (
                pf.resource_class):
            raise HostFileError(
                f'{entry.name("resource_class")}: the alias {pf.alias} is '
                f'{classes[pf.alias]} elsewhere')
        found[pf.address] = pf
        entry.done()
    return tuple(found.values())


def _any(_name: str, value: Any) -> Any:
    return value


def _nodes(top: _Mapping) -> tuple[tuple[HostNode, ...],
                                   dict[int, tuple[int, ...]],
                                   dict[int, int]]:
    """The nodes, their domains, and what they can deliver in MB/s."""
    nodes: dict[int, HostNode] = {}
    domains: dict[int, tuple[int, ...]] = {}
    speeds: dict[int, int] = {}
    taken: frozenset[int] = frozenset()
    for entry in top.take('nodes', _list(_Mapping)):
        number = entry.take('id', _node_id)
        if number in nodes:
            raise HostFileError(f'{entry.name("id")}: node {number} is there '
                                'twice')
        cpus = entry.take('cpus', _cpus)
        if cpus & taken:
            raise HostFileError(
                f'{entry.name("cpus")}: {cpulist.render(cpus & taken)} is on '
                'another node already')
        taken |= cpus
        speeds[number] = entry.take('bandwidth_mb', _number, 0)
        nodes[number] = HostNode(
            number, cpus, entry.take('memory_mb', _number),
            entry.take('socket', _node_id, None),
            entry.take('distances', _list(_integer(10, 255)), ()),
            entry.take('latency_ns', _integer(1, 10 ** 6), 0),
            speeds[number])
        domains[number] = entry.take('domains', _list(_number), ())
        entry.done()
    for node in nodes.values():
        if node.distances and len(node.distances) != len(nodes):
            raise HostFileError(f'nodes: the distances of node {node.id} must '
                                f'be one for each of the {len(nodes)} nodes')
    return (tuple(nodes[number] for number in sorted(nodes)),
            dict(sorted(domains.items())), speeds)


def _resctrl(entry: _Mapping, domains: Mapping[int, tuple[int, ...]],
             speeds: Mapping[int, int]) -> ResctrlHost:
    known = dialects.BY_NAME
    dialect = known[entry.take('dialect', _one_of(sorted(known)))]
    lines = entry.take('lines', _list(_one_of(
        [knob.line for knob in dialect.knobs])), None)
    if lines is not None:
        dialect = dialect.narrowed(frozenset(lines))
    caps = [knob for knob in dialect.knobs if knob.role == 'maximum']
    if len(caps) != 1:
        raise HostFileError(f'{entry.name("lines")}: must name '
                            + ' or '.join(knob.line for knob in known[
                                dialect.name].knobs
                                if knob.role == 'maximum'))
    dialect = _with_cap(entry, dialect)
    num_rmids = entry.take('num_rmids', _number, 0)
    host = ResctrlHost(
        dialect=dialect, num_rmids=num_rmids,
        num_closids=entry.take('num_closids', _integer(1, 10 ** 6)),
        min_bandwidth=entry.take('min_bandwidth', _integer(0, 100)),
        granularity=entry.take('bandwidth_gran', _integer(1, 100)),
        no_cap=caps[0].default or 100,
        node_bandwidth=_speeds(dialect, domains, speeds),
        domains_by_node=_domains(dialect, domains),
        monitored=num_rmids > 0 and dialect.monitor is not None,
        priority_default=_priority(entry, dialect),
        left_out={number: 'its CPUs have no domain in the MB line'
                  for number, ids in domains.items() if not ids}
        if dialect.domain_kind != 'numa' else {},
        # As nova-compute finds out from the root group.
        libvirt_reads=dialect.libvirt and all(
            knob.line == 'MB' for knob in dialect.knobs))
    entry.done()
    _check_steps(entry, host)
    return replace(host, scales=scales_of(
        dialect, host.min_bandwidth, host.granularity))


def _with_cap(entry: _Mapping, dialect: dialects.Dialect) -> dialects.Dialect:
    """With what an admin says of a cap, where the kernel does not."""
    if dialect.hardlimit_fixed is not None or dialect.knob('hardlimit'):
        return dialect
    cap = entry.take('cap', _one_of(('hard', 'soft')), None)
    return dialect if cap is None else replace(
        dialect, hardlimit_fixed=cap == 'hard')


def _check_steps(entry: _Mapping, host: ResctrlHost) -> None:
    cap = host.dialect.knob('maximum')
    step = (host.granularity, host.min_bandwidth)
    if cap is not None and cap.fraction and step not in rounding.FRACTIONS:
        raise HostFileError(
            f'{entry.name("bandwidth_gran")}: no control of '
            f'{host.dialect.title} has a granularity of {step[0]} and a '
            f'lowest cap of {step[1]}')


def _speeds(dialect: dialects.Dialect, domains: Mapping[int, tuple[int, ...]],
            speeds: Mapping[int, int]) -> dict[int, int]:
    """Bytes per second by node, where a cap is a bandwidth."""
    if not dialect.absolute:
        return {}
    for place, number in enumerate(speeds):
        if domains[number] and not speeds[number]:
            raise HostFileError(
                f'nodes[{place}].bandwidth_mb: is missing; a cap of the '
                f'{dialect.title} is a bandwidth, and no share of one')
    return {number: speed * 10 ** 6 for number, speed in speeds.items()}


def _domains(dialect: dialects.Dialect, given: Mapping[int, tuple[int, ...]],
             ) -> dict[int, tuple[int, ...]]:
    if dialect.domain_kind != 'numa':
        if not any(given.values()):
            raise HostFileError('nodes: no node has domains, which the '
                                f'{dialect.title} needs')
        return {number: ids for number, ids in given.items() if ids}
    for place, (number, ids) in enumerate(given.items()):
        if ids not in ((), (number,)):
            raise HostFileError(
                f'nodes[{place}].domains: the {dialect.title} numbers its '
                f'domains as NUMA nodes; leave it out or say [{number}]')
    return {number: (number,) for number in given}


def _priority(entry: _Mapping, dialect: dialects.Dialect) -> int | None:
    knob = dialect.knob('priority')
    if knob is None:
        return None
    return entry.take('priority_default',
                      _integer(knob.minimum, knob.maximum),
                      knob.minimum if knob.default is None else knob.default)


def _tree_config(settings: _Mapping, nodes: frozenset[int]) -> tree.Config:
    reserved = _by_node(settings, 'reserved_bandwidth',
                        [*map(str, nodes), tree.ELSEWHERE],
                        {tree.ELSEWHERE: tree.UNDELIVERED})
    elsewhere = reserved.pop(tree.ELSEWHERE, 0)
    bursts = _by_node(settings, 'bandwidth_bursts', [*map(str, nodes)], {})
    return tree.Config(
        reserved_bandwidth=_numbered(reserved), reserved_elsewhere=elsewhere,
        allocation_ratio=settings.take('bandwidth_allocation_ratio', _ratio,
                                       1.0),
        bursts=_numbered(bursts))


def _by_node(settings: _Mapping, key: str, nodes: Collection[str],
             default: Mapping[str, int]) -> dict[str, int]:
    """Return percent by host NUMA node."""
    name = settings.name(key)
    found = {}
    for node, value in _Mapping(name, settings.take(
            key, _any, default)).items():
        if node not in nodes:
            raise HostFileError(f'{name}.{node}: the host has no such NUMA '
                                'node')
        found[node] = _percent(f'{name}.{node}', value)
    return found


def _numbered(by_node: Mapping[str, int]) -> dict[int, int]:
    return {int(node): percent for node, percent in by_node.items()}
