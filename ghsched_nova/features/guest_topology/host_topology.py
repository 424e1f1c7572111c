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


"""Topology of a guest that mirrors the host resources behind it (pure).

``ghsched:guest_topology=host`` adds to the domain XML what Nova omits:
distances of the NUMA nodes (ACPI SLIT), latency and bandwidth of their memory
(ACPI HMAT), sockets, dies, clusters, cores and threads as the vCPUs are
pinned, CPU caches, and the guest's own policy as an OEM string of SMBIOS.

libvirt's rules are those of src/conf/numa_conf.c and src/qemu/qemu_validate.c,
QEMU's those of hw/core/numa.c (``parse_numa_hmat_lb``), read in 9.0.0 and 7.2.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import itertools
import json

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement.base import cpulist
from ghsched_placement.features import declared
from ghsched_placement.features.guest_topology import topology_part
from ghsched_placement.flavor.policy import GuestPolicy

#: First libvirt version that keeps ``clusters`` in a ``<topology>``.
KEEPS_CLUSTERS = (10, 1, 0)

#: SLIT distance of a node to itself, and the largest one of a reachable node.
_LOCAL, _FARTHEST = 10, 254

#: Latency in nanoseconds of memory whose latency is unknown: that of common
#: memory of the own node. Only the order of nodes can matter to a guest, and
#: nodes of unknown latency are all alike.
_NOMINAL_LATENCY_NS = 100

#: QEMU requires bandwidth in whole MiB/s and stores multiples of a common
#: power of two in 16 bits, where 0xffff is reserved.
_MIB = 2 ** 20
_ENTRIES = 0xfffe

#: Prefix of the OEM string of a guest.
OEM_PREFIX = 'ghsched='


@dataclass(frozen=True)
class CpuIds:
    """Ids of the socket, die, cluster and core of a host CPU, from sysfs."""

    socket: int
    die: int
    cluster: int
    core: int


@dataclass(frozen=True)
class HostTopology:
    """NUMA and CPU topology of a host; unknown values are left out.

    :param distances: distance (ACPI SLIT) by NUMA node and other node.
    :param latency: latency, in nanoseconds, of a NUMA node's memory from its
        own CPUs, by node.
    :param bandwidth: bandwidth of a NUMA node's memory in bytes per second, by
        node.
    :param cpus: position by number of the CPU.
    :param clusters: whether libvirt supports clusters of cores.
    """

    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    latency: Mapping[int, int] = field(default_factory=dict)
    bandwidth: Mapping[int, int] = field(default_factory=dict)
    cpus: Mapping[int, CpuIds] = field(default_factory=dict)
    clusters: bool = False


@dataclass(frozen=True)
class CpuTopology:
    """CPU topology whose parts are of equal size, as in ``<topology>``.

    Each value is the number of parts in one part of the level above.
    """

    sockets: int
    dies: int
    clusters: int
    cores: int
    threads: int


def render_topology(xml: str, policy: GuestPolicy, host_nodes: Sequence[int],
                    host: HostTopology) -> str:
    """Return a domain XML that shows the guest the host's topology.

    The topology consists of NUMA distances, bandwidth, latency, cores and
    caches.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :returns: the unchanged text if the policy does not request it.
    :raises DocumentError: if the document is not a domain.
    """
    if not policy.get_part(topology_part.TopologyPart).is_shown:
        return xml
    root = document.parse_document(xml)
    cpu = root.find('cpu')
    if cpu is not None:
        _set_cpu_topology(root, cpu, host)
        _add_cache_element(root, cpu)
        _set_numa(cpu, policy, host_nodes, host)
    _set_oem_string(root, policy)
    return document.render_document(root)


def render_host_topology_elements(policy: GuestPolicy,
                                  host_nodes: Sequence[int],
                                  host: HostTopology) -> tuple[str, ...]:
    """Return the XML elements that show a guest the host's NUMA topology.

    The elements have the NUMA distances, memory latency and bandwidth.
    Elements that depend on CPU pinning are left out.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :returns: empty if the policy does not request the topology.
    """
    if not policy.get_part(topology_part.TopologyPart).is_shown:
        return ()
    found = [
        one
        for node in range(len(host_nodes))
        if (one := _make_distances_element(node, host_nodes, host)
            ) is not None
    ]
    connects = _make_interconnects(policy, host_nodes, host)
    if connects is not None:
        found.append(connects)
    for one in found:
        etree.indent(one)
    found.append(_make_oem_entry(policy))
    return tuple(etree.tostring(one, encoding='unicode') for one in found)


# -- NUMA ---------------------------------------------------------------------


def _set_numa(cpu: etree._Element, policy: GuestPolicy,
              host_nodes: Sequence[int], host: HostTopology) -> None:
    numa = cpu.find('numa')
    cells = [] if numa is None else numa.findall('cell')
    if numa is None or len(cells) != len(host_nodes):
        return
    for node, cell in enumerate(cells):
        found = _make_distances_element(node, host_nodes, host)
        if found is not None and cell.find('distances') is None:
            document.insert_children(cell, [found], 0)
    found = _make_interconnects(policy, host_nodes, host)
    if found is not None and numa.find('interconnects') is None:
        document.insert_children(numa, [found], len(numa))


def compute_guest_distance(
    host: HostTopology, first: int, second: int
) -> int | None:
    """Return the NUMA distance between two host nodes to show to a guest.

    libvirt allows the distance 10 only from a node to itself, so the distance
    of different nodes is at least 11.

    :param first: number of a host node.
    :param second: number of the other host node.
    :returns: None if the distance is unknown.
    """
    if first == second:
        return _LOCAL
    found = host.distances.get(first, {}).get(second)
    return None if found is None else min(max(found, _LOCAL + 1), _FARTHEST)


def _make_distances_element(guest_node: int, host_nodes: Sequence[int],
                            host: HostTopology) -> etree._Element | None:
    """Return XML with the distances from a guest NUMA node to all others.

    :param guest_node: index of the guest NUMA node.
    :param host_nodes: host NUMA node of each guest NUMA node.
    :returns: ``<distances>``; None unless all distances of the guest are
        known.
    """
    known = [[compute_guest_distance(host, one, other) for other in host_nodes]
             for one in host_nodes]
    if len(known) < 2 or any(value is None for row in known for value in row):
        return None
    found = etree.Element('distances')
    for sibling, value in enumerate(known[guest_node]):
        etree.SubElement(found, 'sibling', id=str(sibling), value=str(value))
    return found


def _make_interconnects(policy: GuestPolicy, host_nodes: Sequence[int],
                        host: HostTopology) -> etree._Element | None:
    """Return XML with memory latency and bandwidth of each guest NUMA node.

    The values are those of access from within the node. Linux shows no others,
    and libvirt 9.0 takes the two directions between two nodes for the same
    link and refuses the second one.

    Linux shows a latency of 0 for a node of which only the bandwidth is in the
    table. Such a node therefore gets the largest latency that is known of
    another node of the guest, or else :data:`_NOMINAL_LATENCY_NS`.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :returns: None if no value is known.
    """
    bandwidths = compute_guest_bandwidths(policy, host_nodes, host)
    known = {place: host.latency[node] for place, node
             in enumerate(host_nodes) if host.latency.get(node)}
    derived = max(known.values(), default=_NOMINAL_LATENCY_NS)
    found = etree.Element('interconnects')
    for place in range(len(host_nodes)):
        if place in known or place in bandwidths:
            etree.SubElement(
                found, 'latency', initiator=str(place), target=str(place),
                type='access', value=str(known.get(place, derived)))
    for node, kib in bandwidths.items():
        etree.SubElement(
            found, 'bandwidth', initiator=str(node), target=str(node),
            type='access', value=str(kib), unit='KiB')
    return found if len(found) else None


def compute_guest_bandwidths(policy: GuestPolicy, host_nodes: Sequence[int],
                             host: HostTopology) -> dict[int, int]:
    """Return the bandwidth in KiB/s that each guest NUMA node can expect.

    The bandwidth is the guarantee of the node, rounded down. Without a
    guarantee it is the cap, and without a cap the bandwidth of the whole host
    node.

    :param host_nodes: host NUMA node of each guest NUMA node.
    """
    found = {}
    for place, node in enumerate(host_nodes):
        share = 100
        if place < len(policy.nodes):
            mine = policy.nodes[place]
            share = mine.minimum or mine.maximum
        if mib := host.bandwidth.get(node, 0) * share // 100 // _MIB:
            found[place] = mib
    step = 1
    while max(found.values(), default=0) // step > _ENTRIES:
        step *= 2
    return {place: mib // step * step * 1024
            for place, mib in found.items() if mib >= step}


# -- CPUs ---------------------------------------------------------------------


def compute_cpu_topology(cpus: Sequence[CpuIds]) -> CpuTopology:
    """Return the sockets, dies, clusters, cores and threads of host CPUs.

    For example, 8 CPUs may form 1 socket with 2 dies of 4 cores each. If the
    dies have different numbers of CPUs, or the CPUs of a die do not follow
    each other, the result has one die per socket. The other levels are treated
    in the same way.

    :param cpus: socket, die, cluster and core of each host CPU.
    :returns: number of parts of each level in one part of the level above.
    """
    wholes = [_count_cpus_per_part(cpus, level) for level in range(1, 5)]
    sizes, above = [], len(cpus)
    for size in wholes[:3]:
        above = size if size and above % size == 0 else above
        sizes.append(above)
    threads = wholes[3] or 1
    socket, die, cluster = sizes
    return CpuTopology(len(cpus) // socket, socket // die, die // cluster,
                       cluster // threads, threads)


def _count_cpus_per_part(cpus: Sequence[CpuIds], level: int) -> int:
    """Return how many of the CPUs each socket, die, cluster or core has.

    :param level: 1 for sockets, 2 for dies, 3 for clusters, 4 for cores.
    :returns: 0 if these have different numbers of CPUs, or if the CPUs of one
        do not follow each other.
    """
    keys = [(cpu.socket, cpu.die, cpu.cluster, cpu.core)[:level]
            for cpu in cpus]
    runs = [(key, len(list(run))) for key, run in itertools.groupby(keys)]
    sizes = {size for _key, size in runs}
    return sizes.pop() if len(sizes) == 1 and len(runs) == len(
        set(keys)) else 0


def _set_cpu_topology(root: etree._Element, cpu: etree._Element,
                      host: HostTopology) -> None:
    """Set a domain's ``<topology>`` to the topology of its host CPUs.

    If not each vCPU is pinned to a CPU of its own, only its host NUMA node and
    socket are shown. Guests of which neither is known keep Nova's topology.
    """
    pinned = _list_pinned_cpus(root)
    count = (root.findtext('vcpu') or '').strip()
    if pinned and count == str(len(pinned)) and all(
            one in host.cpus for one in pinned):
        places = [host.cpus[one] for one in pinned]
    else:
        places = _list_unpinned_vcpu_ids(root, cpu, host)
    if not places or count != str(len(places)):
        return
    found = compute_cpu_topology(places)
    element = cpu.find('topology')
    if element is None:
        element = etree.Element('topology')
        numa = cpu.find('numa')
        document.insert_children(cpu, [element], len(cpu) if numa is None
                                 else cpu.index(numa))
    arm = document.read_arch(root) == 'aarch64'
    # QEMU supports dies only on x86, and clusters only on Arm.
    dies = 1 if arm else found.dies
    clusters = found.clusters if arm and host.clusters else 1
    cores = len(places) // (found.sockets * dies * clusters * found.threads)
    element.attrib.clear()
    values = {'sockets': found.sockets, 'dies': dies, 'clusters': clusters,
              'cores': cores, 'threads': found.threads}
    for name, value in values.items():
        if value > 1 or name not in ('dies', 'clusters'):
            element.set(name, str(value))


def _list_unpinned_vcpu_ids(root: etree._Element, cpu: etree._Element,
                            host: HostTopology) -> list[CpuIds]:
    """Return the socket, die and core to show for each unpinned vCPU.

    Each vCPU may run on all CPUs of a host NUMA node. The vCPUs of a guest
    NUMA node are cores of one die, which is in the socket of the host node.

    :returns: empty if the vCPUs or the host socket of a guest NUMA node are
        unknown.
    """
    pins = {pin.get('vcpu', ''): pin.get('cpuset', '')
            for pin in root.findall('cputune/vcpupin')}
    found: dict[int, CpuIds] = {}
    for place, cell in enumerate(cpu.findall('numa/cell')):
        try:
            vcpus = cpulist.parse_cpu_list(cell.get('cpus', ''))
            sockets = {host.cpus[one].socket for vcpu in vcpus
                       for one in cpulist.parse_cpu_list(
                           pins.get(str(vcpu), '')) if one in host.cpus}
        except cpulist.CpuListError:
            return []
        if len(sockets) != 1:
            return []
        socket = sockets.pop()
        found |= {vcpu: CpuIds(socket, place, 0, vcpu) for vcpu in vcpus}
    return [found[vcpu] for vcpu in sorted(found)] if set(found) == set(
        range(len(found))) else []


def _list_pinned_cpus(root: etree._Element) -> list[int]:
    """Return the host CPU to which each vCPU is pinned.

    The result is empty unless each vCPU is pinned to exactly one CPU.
    """
    found = {}
    for pin in root.findall('cputune/vcpupin'):
        try:
            cpus = cpulist.parse_cpu_list(pin.get('cpuset', ''))
        except cpulist.CpuListError:
            return []
        if len(cpus) != 1:
            return []
        found[int(pin.get('vcpu', '0'))] = min(cpus)
    ordered = [found[number] for number in sorted(found)]
    distinct = len(set(ordered)) == len(ordered)
    return ordered if distinct and set(found) == set(
        range(len(found))) else []


def _add_cache_element(root: etree._Element, cpu: etree._Element) -> None:
    """Add the element ``<cache>`` to a domain's CPU unless it has one.

    A CPU of mode ``host-passthrough`` then shows the host's caches, any other
    an emulated L3 cache. Only x86 domains are changed, because QEMU supports
    the element only there.
    """
    mode = cpu.get('mode')
    if (mode is None or document.read_arch(root) not in document.X86
            or cpu.find('cache') is not None):
        return
    if mode == 'host-passthrough':
        cache = etree.Element('cache', mode='passthrough')
    else:
        cache = etree.Element('cache', level='3', mode='emulate')
    topology = cpu.find('topology')
    numa = cpu.find('numa')
    place = (cpu.index(topology) + 1 if topology is not None else
             len(cpu) if numa is None else cpu.index(numa))
    document.insert_children(cpu, [cache], place)


# -- the guest's own policy ---------------------------------------------------


def _set_oem_string(root: etree._Element, policy: GuestPolicy) -> None:
    """Add a guest's bandwidth policy to its domain XML as an OEM string.

    The guest can read the string from SMBIOS, which Nova sets only for x86.
    """
    os = root.find('os')
    if os is None or document.read_arch(root) not in {
            'aarch64', *document.X86}:
        return
    if os.find('smbios') is None:
        document.insert_children(os, [etree.Element('smbios', mode='sysinfo')],
                                 len(os))
    sysinfo = root.find("sysinfo[@type='smbios']")
    if sysinfo is None:
        sysinfo = etree.Element('sysinfo', type='smbios')
        document.insert_children(root, [sysinfo], root.index(os))
    strings = document.find_or_insert_child(sysinfo, 'oemStrings')
    document.insert_children(strings, [_make_oem_entry(policy)], len(strings))


def _make_oem_entry(policy: GuestPolicy) -> etree._Element:
    entry = etree.Element('entry')
    entry.text = OEM_PREFIX + render_policy_for_guest(policy)
    return entry


def render_policy_for_guest(policy: GuestPolicy) -> str:
    """Return the part of a policy that the guest can read, as JSON.

    Features add entries of their own.
    """
    found = policy.describe_bandwidth_for_guest()
    for feature in declared.FEATURES:
        if feature.parse is not None:
            found |= policy.get_part(feature.part).describe_for_guest()
    return json.dumps(found, separators=(',', ':'))
