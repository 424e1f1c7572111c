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

The keys are described in the files under etc/ghsched/hosts, and their types in
hostfile.json beside this module. Every mistake is refused, with the file, the
key and the reason; nothing is guessed.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import json
import operator
from pathlib import Path
from typing import Any

from ghsched_nova.features.planner import host_pfs
from ghsched_nova.features.planner import schema
from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl.resctrl_host import compute_settable_percentages
from ghsched_nova.resctrl.resctrl_host import HostSettings
from ghsched_nova.resctrl.resctrl_host import ResctrlHost
from ghsched_nova.resctrl import rounding
from ghsched_placement.base import cpulist
from ghsched_placement.features.density import documents
from ghsched_placement.features.density.machine import CONTROLS
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density.machine import MachineError
from ghsched_placement.features.density import shipped
from ghsched_placement.providers import cpuless_nodes
from ghsched_placement.providers import tree

_SCHEMA = Path(__file__).parent / 'hostfile.json'

#: Schema of the section ``contention``. It excludes keys of the contention
#: model whose values come from other sections.
_CONTENTION = {'type': 'object', 'propertyNames': {
    'not': {'enum': ['name', 'nodes', 'nics', 'controls']}}}

_Section = dict[str, Any]


class HostFileError(Exception):
    """Reason, with the key, why a host file is invalid."""


@dataclass(frozen=True)
class DescribedNode:
    """NUMA node of a host that a host file describes.

    :param id: number of the node.
    :param cpus: numbers of the CPUs that guests may use.
    :param memory_mb: memory that guests may use, in MiB.
    :param socket: number of the node's socket; None if unknown.
    :param distances: distances (ACPI SLIT) to the nodes of the host file, in
        its order; empty if unknown.
    :param latency_ns: latency of the node's memory from its own CPUs, in
        nanoseconds; 0 if unknown.
    :param bandwidth_mb: bandwidth of the node's memory in MB/s; 0 if unknown.
    :param pages: number of huge pages by size in KiB, which are part of the
        memory; None if unknown.
    :param caches: CPUs of each L3; empty if all share one, or unknown.
    """

    id: int
    cpus: frozenset[int]
    memory_mb: int
    socket: int | None = None
    distances: tuple[int, ...] = ()
    latency_ns: int = 0
    bandwidth_mb: int = 0
    pages: Mapping[int, int] | None = None
    caches: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True)
class Compute:
    """Settings of nova-compute on a host that a host file describes.

    :param dedicated: [compute]cpu_dedicated_set. Guests without dedicated CPUs
        use all other CPUs.
    :param cpu_ratio: CPU allocation ratio of the shared CPUs; the default is
        that of [DEFAULT]initial_cpu_allocation_ratio.
    :param ram_ratio: memory allocation ratio.
    :param disk_gb: disk space for guests in GiB; None for no limit.
    :param device_cells: whether guests see NUMA nodes without CPUs for their
        devices.
    """

    dedicated: frozenset[int] = frozenset()
    cpu_ratio: float = 4.0
    ram_ratio: float = 1.0
    disk_gb: int | None = None
    device_cells: bool = False


@dataclass(frozen=True)
class HostFile:
    """Content of a host file: NUMA nodes, resctrl, PFs and settings.

    :param name: name of the host; the prefix of its providers' names.
    :param nodes: NUMA nodes in ascending order of their numbers.
    :param resctrl: memory bandwidth and L3 cache control of the host.
    :param attributes: attributes of ``<memorytune>`` that the host's libvirt
        supports: ``extended``, ``basic``, or ``none`` if libvirt cannot
        create control groups on the host.
    :param reserved_groups: number of control groups reserved for other
        software.
    :param tree_config: the host's [ghsched] settings for Placement.
    :param pfs: PFs whose VFs guests may use.
    :param contention: machine for the simulation of memory contention; None
        if the host file does not describe it.
    :param compute: settings of nova-compute.
    :param libvirt_monitors: whether libvirt creates the monitoring groups of
        guests without a control group.
    :param burst_ratio: ratio of the sum of all guests' bursts to the bandwidth
        reserved for bursts. On a real host, nova-compute derives it from the
        measured use.
    """

    name: str
    nodes: tuple[DescribedNode, ...]
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
        """Socket number of each host NUMA node."""
        return {node.id: node.socket for node in self.nodes}

    @property
    def distances(self) -> dict[int, dict[int, int]]:
        """Distance (ACPI SLIT) of each pair of NUMA nodes.

        The value is empty if the host file does not give distances.
        """
        return {node.id: dict(zip((other.id for other in self.nodes),
                                  node.distances, strict=True))
                for node in self.nodes if node.distances}

    @property
    def nearest_nodes_with_cpus(self) -> dict[int, int]:
        """Nearest NUMA node with CPUs, by number of each node without CPUs."""
        return cpuless_nodes.find_nearest_nodes(
            self.distances, {node.id for node in self.nodes if node.cpus})

    @property
    def aliases(self) -> dict[str, str]:
        """Resource class of VFs in Placement, by PCI alias."""
        return {pf.alias: pf.resource_class for pf in self.pfs}

    @property
    def has_all_memorytune_attributes(self) -> bool:
        """Whether the host's libvirt supports all ``<memorytune>`` attributes.
        """
        return self.attributes == 'extended'

    def node(self, number: int) -> DescribedNode | None:
        return next((n for n in self.nodes if n.id == number), None)


def load_host_file(path: str) -> HostFile:
    """Read a host file: a YAML file that describes a compute host.

    :raises HostFileError: if the file is missing or has a mistake.
    """
    try:
        return _build_described_host(schema.validate_document(
            documents.load_yaml(path), _load_host_file_schema()))
    except (documents.DensityFileError, schema.Invalid) as error:
        raise HostFileError(f'{path}: {error}') from None


def _load_host_file_schema() -> dict[str, Any]:
    """Return the JSON schema for host files.

    The known variants of resctrl (dialects) are filled in.
    """
    found: dict[str, Any] = json.loads(_SCHEMA.read_text(encoding='utf-8'))
    resctrl = found['properties']['resctrl']['properties']
    resctrl['dialect'] = {'enum': sorted(dialects.BY_NAME)}
    return found


def _build_described_host(top: _Section) -> HostFile:
    """Build the host that a YAML file describes.

    :param top: content of the file, which has passed the JSON schema.
    """
    nodes, domains = _parse_nodes(top['nodes'])
    resctrl = _build_resctrl_host(top['resctrl'], domains,
                                  {node['id']: node.get('bandwidth_mb', 0)
                                   for node in top['nodes']})
    settings = top.get('ghsched', {})
    configured = settings.get('memorytune_attributes')
    known = frozenset(node.id for node in nodes)
    pfs = _parse_pfs(top.get('pfs', ()), known)
    return HostFile(
        top['name'],
        nodes,
        resctrl,
        configured or ('basic' if resctrl.libvirt_reads else 'none'),
        settings.get('reserved_control_groups', 0),
        _parse_inventory_settings(settings, known),
        pfs,
        _build_simulated_machine(
            top.get('contention'), top['name'], nodes, resctrl, pfs
        ),
        _parse_nova_compute_settings(top.get('nova', {}), nodes),
        configured != 'none' if configured
        else resctrl.dialect.libvirt_monitors,
        float(settings.get('bandwidth_burst_ratio', 1.0)),
    )


def _build_simulated_machine(
        section: Any, name: str, nodes: Sequence[DescribedNode],
        resctrl: ResctrlHost,
        pfs: Sequence[host_pfs.HostPf]) -> Machine | None:
    """Build the machine by which the contention model simulates a host.

    If the host file has no latency curve, the machine gets the shipped curve
    that suits it best.

    :param section: section ``contention`` of the host file.
    :returns: None if the host file does not have this section.
    """
    if section is None:
        return None
    schema.validate_document(section, _CONTENTION, 'contention')
    known = {
        'name': name, 'nics': [pf.node for pf in pfs],
        'nodes': [{'id': node.id, 'threads': len(node.cpus),
                   'memory_mb': node.memory_mb, 'socket': node.socket or 0}
                  for node in nodes],
        'controls': resctrl.capabilities() & set(CONTROLS)}
    try:
        machine = Machine.from_mapping(
            {str(key): value for key, value in section.items()} | known)
    except MachineError as error:
        raise schema.Invalid(f'contention.{error}') from None
    return machine if machine.curve else replace(
        machine, curve=shipped.load_closest_curve(resctrl.dialect.x86))


def _parse_cpu_list(name: str, value: str | int) -> frozenset[int]:
    """Parse a list of CPUs in a host file.

    :param name: name of the value, for error messages.
    """
    try:
        # YAML makes a number of a single CPU.
        return cpulist.parse_cpu_list(str(value))
    except cpulist.CpuListError as error:
        raise schema.Invalid(f'{name}: {error}') from None


def _parse_nova_compute_settings(
        section: _Section, nodes: Sequence[DescribedNode]) -> Compute:
    """Parse the nova-compute settings of a host file."""
    default = Compute()
    dedicated = default.dedicated
    if 'dedicated_cpus' in section:
        dedicated = _parse_cpu_list(
            'nova.dedicated_cpus', section['dedicated_cpus']
        )
    missing = dedicated.difference(*(node.cpus for node in nodes))
    if missing:
        raise schema.Invalid('nova.dedicated_cpus: no node has CPU '
                             + cpulist.render_cpu_list(missing))
    return Compute(
        dedicated,
        float(section.get('cpu_allocation_ratio', default.cpu_ratio)),
        float(section.get('ram_allocation_ratio', default.ram_ratio)),
        section.get('disk_gb', default.disk_gb),
        section.get('device_cells', default.device_cells))


def _parse_pfs(sections: Sequence[_Section],
               nodes: frozenset[int]) -> tuple[host_pfs.HostPf, ...]:
    """Parse the PFs of a host file.

    :raises Invalid: if a PF is given twice or has an unknown NUMA node.
    """
    found: dict[str, host_pfs.HostPf] = {}
    classes: dict[str, str] = {}
    for place, section in enumerate(sections):
        pf = host_pfs.HostPf(**(section | {
            'address': section['address'].lower()}))
        if pf.address in found:
            raise schema.Invalid(f'pfs[{place}].address: {pf.address} is '
                                 'given twice')
        if pf.node not in nodes:
            raise schema.Invalid(f'pfs[{place}].node: the host has no NUMA '
                                 f'node {pf.node}')
        if classes.setdefault(pf.alias, pf.resource_class) != (
                pf.resource_class):
            raise schema.Invalid(
                f'pfs[{place}].resource_class: another PF of the alias '
                f'{pf.alias} has {classes[pf.alias]}')
        found[pf.address] = pf
    return tuple(found.values())


def _parse_nodes(sections: Sequence[_Section]) -> tuple[
        tuple[DescribedNode, ...], dict[int, tuple[int, ...]]]:
    """Parse the NUMA nodes of a host file, each with its resctrl domains."""
    nodes: dict[int, DescribedNode] = {}
    taken: frozenset[int] = frozenset()
    for place, section in enumerate(sections):
        number, name = section['id'], f'nodes[{place}]'
        cpus = _parse_cpu_list(f'{name}.cpus', section['cpus'])
        if number in nodes:
            raise schema.Invalid(f'{name}.id: node {number} is given twice')
        if cpus & taken:
            raise schema.Invalid(
                f'{name}.cpus: {cpulist.render_cpu_list(cpus & taken)}'
                ' is on another node already')
        taken |= cpus
        nodes[number] = DescribedNode(
            number, cpus, section['memory_mb'], section.get('socket'),
            tuple(section.get('distances', ())), section.get('latency_ns', 0),
            section.get('bandwidth_mb', 0),
            _parse_huge_pages(f'{name}.pages', section),
            _parse_caches(f'{name}.caches', section, cpus))
        if len(section.get('distances', sections)) != len(sections):
            raise schema.Invalid(
                f'nodes: the distances of node {number} must be one for each '
                f'of the {len(sections)} nodes')
    return (tuple(nodes[number] for number in sorted(nodes)),
            {section['id']: tuple(section.get('domains', ()))
             for section in sorted(sections, key=operator.itemgetter('id'))})


def _parse_caches(name: str, section: _Section,
                  cpus: frozenset[int]) -> tuple[frozenset[int], ...]:
    """Parse the CPUs of each L3 cache of a NUMA node.

    :param name: name of the value, for error messages.
    :param section: the NUMA node.
    :param cpus: CPUs of the node.
    :returns: empty if the host file does not list the caches.
    :raises Invalid: if a CPU of the node is in no cache, or in two.
    """
    found = tuple(_parse_cpu_list(f'{name}[{place}]', value)
                  for place, value in enumerate(section.get('caches', ())))
    wrong = {cpu for cpu in cpus if sum(cpu in one for one in found) != 1}
    if found and wrong:
        raise schema.Invalid(f'{name}: each CPU must be in one cache: '
                             + cpulist.render_cpu_list(wrong))
    return found


def _parse_huge_pages(name: str, section: _Section) -> dict[int, int] | None:
    """Parse the number of huge pages of a NUMA node, by size in KiB.

    :param name: name of the value, for error messages.
    :param section: the NUMA node.
    :returns: None if the host file does not list the pages.
    :raises Invalid: if the pages are larger than the node's memory.
    """
    if 'pages' not in section:
        return None
    pages = {int(size): int(count)
             for size, count in section['pages'].items()}
    needed = sum(size * count for size, count in pages.items()) // 1024
    if needed > section['memory_mb']:
        raise schema.Invalid(f'{name}: they need {needed} MiB, and the node '
                             f'has {section["memory_mb"]}')
    return pages


def _build_resctrl_host(
        section: _Section, domains: Mapping[int, tuple[int, ...]],
        speeds: Mapping[int, int]) -> ResctrlHost:
    """Build the resctrl capabilities that a host file describes.

    :param domains: resctrl domains of each host NUMA node.
    :param speeds: rated bandwidth of each host NUMA node, in MB/s.
    """
    dialect = _select_resctrl_dialect(section)
    (cap,) = (knob for knob in dialect.knobs if knob.role == 'maximum')
    num_rmids = section.get('num_rmids', 0)
    host = ResctrlHost(
        dialect=dialect if num_rmids else replace(dialect, monitor=None),
        num_rmids=num_rmids,
        num_closids=section['num_closids'],
        min_bandwidth=section['min_bandwidth'],
        granularity=section['bandwidth_gran'],
        no_cap=cap.default or 100,
        node_bandwidth=_convert_rated_bandwidths(dialect, domains, speeds),
        domains_by_node=_complete_resctrl_domains(dialect, domains),
        cache=_build_cache(section.get('ways', 0),
                           _complete_resctrl_domains(dialect, domains)),
        priority_default=_parse_default_priority(section, dialect),
        left_out={number: 'its CPUs have no domain in the MB line'
                  for number, ids in domains.items() if not ids}
        if dialect.domain_kind != 'numa' else {},
        # As nova-compute finds out from the root group.
        libvirt_reads=dialect.libvirt and all(
            knob.line == 'MB' for knob in dialect.knobs))
    step = (host.granularity, host.min_bandwidth)
    if cap.fraction and step not in rounding.FRACTIONS:
        raise schema.Invalid(
            f'resctrl.bandwidth_gran: no control of {dialect.title} has a '
            f'granularity of {step[0]} and a lowest cap of {step[1]}')
    return replace(host, scales=compute_settable_percentages(
        dialect, host.min_bandwidth, host.granularity))


def _build_cache(ways: int, domains: Mapping[int, tuple[int, ...]]
                 ) -> CacheWays | None:
    """Return the L3 caches of a host; None if the host file has no ways.

    :param ways: number of ways of each L3 that guests can reserve.
    :param domains: ids of the L3 caches by NUMA node.
    """
    if not ways:
        return None
    region = (1 << ways) - 1
    return CacheWays(('L3',),
                     (region << HostSettings().l3_ways_shared) | region,
                     region, 1, domains)


def _select_resctrl_dialect(section: _Section) -> dialects.Dialect:
    """Return the variant of resctrl (dialect) that a host file names.

    The variant supports only the bandwidth controls that the file lists.
    """
    dialect = dialects.BY_NAME[section['dialect']]
    if 'lines' in section:
        schema.validate_document(section['lines'], {'items': {
            'enum': [knob.line for knob in dialect.knobs]}}, 'resctrl.lines')
        dialect = dialect.restrict_to_lines(frozenset(section['lines']))
    if len([knob for knob in dialect.knobs if knob.role == 'maximum']) != 1:
        raise schema.Invalid('resctrl.lines: must name ' + ' or '.join(
            knob.line for knob in dialects.BY_NAME[section['dialect']].knobs
            if knob.role == 'maximum'))
    if 'cap' not in section:
        return dialect
    # Only where the kernel does not say.
    if dialect.hardlimit_fixed is not None or dialect.find_knob('hardlimit'):
        raise schema.Invalid('resctrl.cap: unknown key')
    return replace(dialect, hardlimit_fixed=section['cap'] == 'hard')


def _convert_rated_bandwidths(
    dialect: dialects.Dialect,
    domains: Mapping[int, tuple[int, ...]],
    speeds: Mapping[int, int],
) -> dict[int, int]:
    """Convert the rated bandwidth of NUMA nodes to bytes per second.

    The rated bandwidth is needed only if caps in resctrl are absolute.

    :param dialect: the host's variant of resctrl.
    :param domains: resctrl domains by NUMA node.
    :param speeds: rated MB/s by NUMA node.
    :returns: bytes per second by NUMA node; empty if caps are percentages.
    """
    if not dialect.has_absolute_caps:
        return {}
    for place, number in enumerate(speeds):
        if domains[number] and not speeds[number]:
            raise schema.Invalid(
                f'nodes[{place}].bandwidth_mb: is missing; caps of the '
                f'{dialect.title} are absolute bandwidths')
    return {number: speed * 10 ** 6 for number, speed in speeds.items()}


def _complete_resctrl_domains(
    dialect: dialects.Dialect, domains: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Check and complete the resctrl domain numbers in a host file.

    If the variant of resctrl numbers domains like NUMA nodes, the host file
    may leave the numbers out. For other variants, it must give some, and NUMA
    nodes without domains are not in the result.

    :param dialect: the host's variant of resctrl.
    :param domains: domain numbers from the host file, by NUMA node.
    :returns: domain numbers by NUMA node.
    :raises Invalid: if the numbers do not suit the variant of resctrl.
    """
    if dialect.domain_kind != 'numa':
        if not any(domains.values()):
            raise schema.Invalid('nodes: no node has domains, which the '
                                 f'{dialect.title} needs')
        return {number: ids for number, ids in domains.items() if ids}
    for place, (number, ids) in enumerate(domains.items()):
        if ids not in ((), (number,)):
            raise schema.Invalid(
                f'nodes[{place}].domains: the {dialect.title} numbers its '
                f'domains as NUMA nodes; leave it out or say [{number}]')
    return {number: (number,) for number in domains}


def _parse_default_priority(
    section: _Section, dialect: dialects.Dialect
) -> int | None:
    """Return the default bandwidth priority in a host file.

    :returns: None if the host has no control of priorities.
    """
    knob, given = (
        dialect.find_knob('priority'),
        section.get('priority_default'),
    )
    if knob is None:
        if given is not None:
            raise schema.Invalid('resctrl.priority_default: unknown key')
        return None
    if given is None:
        return knob.minimum if knob.default is None else knob.default
    schema.validate_document(
        given,
        {'minimum': knob.minimum, 'maximum': knob.maximum},
        'resctrl.priority_default',
    )
    return int(given)


def _parse_inventory_settings(
    settings: _Section, nodes: frozenset[int]
) -> tree.Config:
    """Parse a host file's settings of the inventories that ghsched reports."""
    reserved = dict(settings.get('reserved_bandwidth',
                                 {tree.ELSEWHERE: tree.UNDELIVERED}))
    elsewhere = reserved.pop(tree.ELSEWHERE, 0)
    return tree.Config(
        reserved_bandwidth=_parse_percents_by_node(
            'reserved_bandwidth', reserved, nodes
        ),
        reserved_elsewhere=elsewhere,
        allocation_ratio=float(
            settings.get('bandwidth_allocation_ratio', 1.0)
        ),
        bursts=_parse_percents_by_node(
            'bandwidth_bursts', settings.get('bandwidth_bursts', {}), nodes
        ),
    )


def _parse_percents_by_node(name: str, percents: _Section,
                            nodes: frozenset[int]) -> dict[int, int]:
    """Parse percentages that a host file gives by host NUMA node.

    :raises Invalid: if the host does not have a NUMA node.
    """
    by_name = {str(node): node for node in nodes}
    for name_of_node in percents:
        if name_of_node not in by_name:
            raise schema.Invalid(f'ghsched.{name}.{name_of_node}: the host '
                                 'has no such NUMA node')
    return {by_name[node]: percent for node, percent in percents.items()}
