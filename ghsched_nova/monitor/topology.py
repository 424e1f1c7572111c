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


"""Host NUMA nodes of the resctrl monitor files, from resctrl and sysfs.

A directory ``mon_L3_NN`` is an L3 cache, ``mon_MB_NN`` a NUMA node. A node can
have several L3 caches, whose figures are summed. Where an L3 cache spans
several nodes (Intel's sub-NUMA clusters), the kernel has a directory
``mon_sub_L3_NN`` for each node since Linux 6.11; in earlier kernels the figure
is the sum of all these nodes (Documentation/filesystems/resctrl.rst).
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
import re
from typing import NamedTuple

from ghsched_nova.resctrl import detection
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import host_texts
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import sysfs as sysfs_files

_NUMBER = re.compile(r'[0-9]{1,9}')

#: Host NUMA nodes to which a measured bandwidth belongs, in ascending order:
#: several if only their sum is measured, none if they are unknown.
Nodes = tuple[int, ...]


#: Monitor of L3 cache occupancy in bytes
#: (Documentation/filesystems/resctrl.rst, "llc_occupancy").
_OCCUPANCY = dialects.Monitor('L3_MON', 'mon_L3_', 'llc_occupancy',
                              'counter_bytes')
#: Monitor of the energy of processor cores in joules, since Linux 7.0; the
#: domain is a processor package (same file, "core_energy").
_ENERGY = dialects.Monitor('PERF_PKG_MON', 'mon_PERF_PKG_', 'core_energy',
                           'counter_bytes')


class MonitorUnavailable(Exception):  # noqa: N818
    """Reason why the host does not report memory bandwidth."""


class MonitorFile(NamedTuple):
    """Monitor file of a resctrl group for one resctrl domain.

    :param domain: number of the domain, without leading zeros. If the domain
        is divided by NUMA node, the number of the node follows (``0/1``).
    :param path: path of the file below the directory of a group.
    :param nodes: host NUMA nodes of the domain.
    """

    domain: str
    path: str
    nodes: Nodes


@dataclass(frozen=True)
class MonitoredHost:
    """NUMA nodes of a host, with resctrl's monitors and limits for them.

    All values are constant while resctrl stays mounted.

    :param title: displayed name of the host's variant of resctrl.
    :param dialect: the host's variant of resctrl. None if resctrl cannot limit
        bandwidth here or its schemata are unknown; bandwidth can still be
        measured.
    :param monitor: kind of file that reports bandwidth.
    :param l3: IDs of the L3 caches by host NUMA node.
    :param capacity: bytes per second that a host NUMA node can deliver, by
        node. Nodes whose capacity is unknown are left out.
    :param control: resctrl domains that limit the bandwidth of each host NUMA
        node (domains of the schemata line MB).
    :param no_cap: value of the schemata line MB that means no cap.
    :param occupancy: kind of file that reports L3 cache occupancy; None if the
        kernel does not report it.
    :param energy: kind of file that reports the energy of cores; None if the
        kernel does not report it.
    :param idle_unavailable: whether the kernel reports ``Unavailable`` for a
        domain in which no task of the group has run yet. AMD processors
        without assignable counters do so.
    """

    title: str
    dialect: dialects.Dialect | None
    monitor: dialects.Monitor
    l3: Mapping[int, frozenset[int]] = field(default_factory=dict)
    capacity: Mapping[int, int] = field(default_factory=dict)
    control: Mapping[int, Nodes] = field(default_factory=dict)
    no_cap: int = 100
    occupancy: dialects.Monitor | None = None
    energy: dialects.Monitor | None = None
    idle_unavailable: bool = False


def read_monitored_host(
        resctrl_path: Path, sysfs: Path,
        node_bandwidth: Mapping[int, int] | None = None) -> MonitoredHost:
    """Read this host's bandwidth monitors, NUMA nodes and caches.

    :param node_bandwidth: MB/s (10^6 bytes per second) that host NUMA nodes
        can deliver, from the administrator. It overrides the firmware's table.
    :raises MonitorUnavailable: if the host reports no bandwidth.
    """
    node_bandwidth = node_bandwidth or {}
    info = _read_info(resctrl_path)
    dialect = _detect_dialect(resctrl_path, info)
    # Where the dialect is unknown, so is the meaning of MB_MON.
    monitor = (dialect or dialects.INTEL).find_monitor(info)
    if monitor is None:
        raise MonitorUnavailable(
            'this host reports no memory bandwidth: neither info/L3_MON nor '
            f'info/MB_MON of {resctrl_path} offers it')
    nodes = dict(sysfs_files.iterate_numa_nodes(sysfs))
    l3 = {node: _list_l3_cache_ids(sysfs, cpus)
          for node, path in nodes.items()
          if (cpus := sysfs_files.read_node_cpus(path))}
    capacity = {
        node: node_bandwidth[node] * resctrl_host.NODE_BANDWIDTH_UNIT
        if node in node_bandwidth
        else sysfs_files.read_rated_bandwidth(path)
        for node, path in nodes.items()
    }
    control, no_cap = _read_control_domains(
        resctrl_path, sysfs, node_bandwidth, dialect, l3
    )
    return MonitoredHost(
        title=dialect.title if dialect else 'an unknown kind of resctrl',
        dialect=dialect, monitor=monitor, l3=l3,
        capacity={node: rate for node, rate in capacity.items() if rate},
        control=control, no_cap=no_cap,
        occupancy=_OCCUPANCY if _OCCUPANCY.is_available(info) else None,
        energy=_ENERGY if _ENERGY.is_available(info) else None,
        idle_unavailable=_is_idle_unavailable(dialect, info))


def _is_idle_unavailable(dialect: dialects.Dialect | None,
                         info: Mapping[str, str]) -> bool:
    return (dialect is not None and dialect.name == dialects.AMD.name
            and '[mbm_event]' not in info.get('L3_MON/mbm_assign_mode', ''))


def find_monitor_files(
    resctrl_path: Path, host: MonitoredHost,
    monitor: dialects.Monitor | None = None
) -> tuple[MonitorFile, ...]:
    """Return the paths of a resctrl group's files that report measurements.

    There is one file for each resctrl domain, unless all CPUs of the domain
    are offline. The paths are relative to the directory of the group.

    :param resctrl_path: mount point of resctrl.
    :param monitor: kind of measurement; memory bandwidth by default.
    """
    monitor = monitor or host.monitor
    found: list[MonitorFile] = []
    top = resctrl_path / 'mon_data'
    for name in _list_names(top):
        number = name.removeprefix(monitor.prefix)
        if number == name or not _NUMBER.fullmatch(number):
            continue
        found += _find_files_of_domain(top, name, int(number), host, monitor)
    return tuple(sorted(found, key=_make_file_sort_key))


def _make_file_sort_key(place: MonitorFile) -> tuple[Nodes, list[int]]:
    return place.nodes, [int(part) for part in place.domain.split('/')]


def _find_files_of_domain(
        top: Path, name: str, domain: int, host: MonitoredHost,
        monitor: dialects.Monitor) -> Iterator[MonitorFile]:
    prefix = 'mon_sub' + monitor.prefix.removeprefix('mon')
    subs = [sub for sub in (_list_names(top / name) if monitor.file else [])
            if sub.startswith(prefix)
            and _NUMBER.fullmatch(sub.removeprefix(prefix))]
    for sub in subs:
        node = int(sub.removeprefix(prefix))
        yield MonitorFile(f'{domain}/{node}',
                          f'mon_data/{name}/{sub}/{monitor.file}', (node,))
    if not subs:
        yield MonitorFile(str(domain),
                          f'mon_data/{name}/{monitor.file}'.rstrip('/'),
                          _find_domain_nodes(domain, host, monitor))


def _find_domain_nodes(domain: int, host: MonitoredHost,
                       monitor: dialects.Monitor) -> Nodes:
    if monitor.info == 'MB_MON':
        return (domain,)
    return tuple(sorted(node for node, caches in host.l3.items()
                        if domain in caches))


# -- the dialect --------------------------------------------------------------


def _detect_dialect(resctrl: Path,
                    info: Mapping[str, str]) -> dialects.Dialect | None:
    try:
        root = schemata.parse_kernel_schemata(
            sysfs_files.read_text(resctrl / 'schemata') or '')
    except schemata.SchemataError:
        return None
    return detection.detect_dialect(info, root,
                                    frozenset(_list_names(resctrl)))


def _read_control_domains(
        resctrl_path: Path, sysfs: Path, node_bandwidth: Mapping[int, int],
        dialect: dialects.Dialect | None,
        l3: Mapping[int, frozenset[int]]) -> tuple[dict[int, Nodes], int]:
    """Read the resctrl domains that limit the bandwidth of each NUMA node.

    :param node_bandwidth: bandwidth of host NUMA nodes in MB/s, from the
        configuration.
    :param l3: ids of the L3 caches by host NUMA node.
    :returns: resctrl domains by NUMA node, and the value of the schemata line
        MB that means no cap.
    """
    if dialect is None:
        return {}, 100
    try:
        host = resctrl_host.read_host(
            resctrl_path,
            sysfs,
            resctrl_host.HostSettings(node_bandwidth=node_bandwidth),
        )
    except resctrl_host.ResctrlUnavailable:
        # The capacity of the nodes is unknown; caps in percent are shown all
        # the same.
        knob = dialect.find_knob('maximum')
        no_cap = knob.default if knob and knob.default else 100
        if dialect.domain_kind != 'l3':
            return {}, no_cap
        return {
            node: tuple(sorted(caches)) for node, caches in l3.items()
        }, no_cap
    return dict(host.domains_by_node), host.no_cap


def _read_info(resctrl: Path) -> dict[str, str]:
    try:
        return host_texts.read_info(resctrl)
    except resctrl_host.ResctrlUnavailable as error:
        raise MonitorUnavailable(error.reason) from error


def _list_l3_cache_ids(sysfs: Path, cpus: frozenset[int]) -> frozenset[int]:
    """Return the IDs of the L3 caches of some CPUs.

    Caches without an ID are left out.
    """
    return frozenset(
        number
        for number, _cpus in sysfs_files.iterate_l3_caches(sysfs, cpus)
        if number is not None
    )


def _list_names(path: Path) -> list[str]:
    return [entry.name for entry in sysfs_files.list_directory(path)]
