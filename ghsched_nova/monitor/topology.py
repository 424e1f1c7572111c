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


"""Which host NUMA nodes a figure belongs to, from resctrl and sysfs.

A directory ``mon_L3_NN`` is an L3 cache, ``mon_MB_NN`` a NUMA node. A node
can have several L3 caches, and their figures are summed. Where an L3 cache
spans several nodes (Intel's sub-NUMA clusters), the kernel has a directory
``mon_sub_L3_NN`` for each node since Linux 6.11; before, the figure belongs
to all of them together (Documentation/filesystems/resctrl.rst).
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
import re
from typing import NamedTuple

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import sysfs as sysfs_files

_NUMBER = re.compile(r'[0-9]{1,9}')

#: Host NUMA nodes, ascending; more than one where a figure is of all of them
#: together, none where they are not known.
Nodes = tuple[int, ...]


#: Bytes of which no rate is made (Documentation/filesystems/resctrl.rst,
#: "llc_occupancy").
_OCCUPANCY = dialects.Monitor('L3_MON', 'mon_L3_', 'llc_occupancy',
                              'counter_bytes')


class MonitorUnavailable(Exception):  # noqa: N818
    """This host reports no memory bandwidth; says why."""


class Place(NamedTuple):
    """Where the figure of one domain is.

    :param domain: the number in the name of its directory, without zeros;
        with the number of the node where the domain is divided (``0/1``).
    :param path: its file, below a group's directory.
    :param nodes: host NUMA nodes of the domain.
    """

    domain: str
    path: str
    nodes: Nodes


@dataclass(frozen=True)
class Host:
    """What is read once of a host.

    :param title: name of the dialect for people.
    :param dialect: None where the host controls no bandwidth, or where its
        lines are not known; it can be measured all the same.
    :param monitor: where bandwidth is reported.
    :param l3: L3 caches by host NUMA node.
    :param capacity: bytes per second that a host NUMA node can deliver, where
        known.
    :param control: domains of the MB line by host NUMA node.
    :param no_cap: the cap that is none.
    :param occupancy: where it is told how many bytes of an L3 cache a group
        fills; None where it is not.
    """

    title: str
    dialect: dialects.Dialect | None
    monitor: dialects.Monitor
    l3: Mapping[int, frozenset[int]] = field(default_factory=dict)
    capacity: Mapping[int, int] = field(default_factory=dict)
    control: Mapping[int, Nodes] = field(default_factory=dict)
    no_cap: int = 100
    occupancy: dialects.Monitor | None = None


def read_host(resctrl: Path, sysfs: Path,
              told: Mapping[int, int] | None = None) -> Host:
    """Find out where a host reports bandwidth.

    :param told: MB/s (10^6 bytes per second) that host NUMA nodes can
        deliver, by an admin; takes precedence over what the firmware says.
    :raises MonitorUnavailable: when it reports none.
    """
    told = told or {}
    info = _read_info(resctrl)
    dialect = _dialect(resctrl, info)
    monitor = _monitor(dialect, info)
    if monitor is None:
        raise MonitorUnavailable(
            'this host reports no memory bandwidth: neither info/L3_MON nor '
            f'info/MB_MON of {resctrl} offers it')
    nodes = dict(sysfs_files.nodes(sysfs))
    cpus = {node: sysfs_files.cpus_of(path) for node, path in nodes.items()}
    l3 = {node: _l3_caches(sysfs, of) for node, of in cpus.items() if of}
    capacity = {node: told[node] * resctrl_host.TOLD_UNIT if node in told
                else sysfs_files.rated_bandwidth(path)
                for node, path in nodes.items()}
    control, no_cap = _control(resctrl, sysfs, told, dialect, l3)
    return Host(
        title=dialect.title if dialect else 'an unknown kind of resctrl',
        dialect=dialect, monitor=monitor, l3=l3,
        capacity={node: rate for node, rate in capacity.items() if rate},
        control=control, no_cap=no_cap,
        occupancy=_OCCUPANCY if _OCCUPANCY.announced(info) else None)


def places(resctrl: Path, host: Host,
           monitor: dialects.Monitor | None = None) -> tuple[Place, ...]:
    """The domains that are there now, as the root group shows them.

    All groups have the same; CPUs that go offline can take one away.

    :param monitor: one of the host's; that of bandwidth if not given.
    """
    monitor = monitor or host.monitor
    found = []
    top = resctrl / 'mon_data'
    for name in _names(top):
        number = name.removeprefix(monitor.prefix)
        if number == name or not _NUMBER.fullmatch(number):
            continue
        found += list(_places_of(top, name, int(number), host, monitor))
    return tuple(sorted(found, key=_order))


def _order(place: Place) -> tuple[Nodes, list[int]]:
    return place.nodes, [int(part) for part in place.domain.split('/')]


def _places_of(top: Path, name: str, domain: int, host: Host,
               monitor: dialects.Monitor) -> Iterator[Place]:
    prefix = 'mon_sub' + monitor.prefix.removeprefix('mon')
    subs = [sub for sub in (_names(top / name) if monitor.file else [])
            if sub.startswith(prefix)
            and _NUMBER.fullmatch(sub.removeprefix(prefix))]
    for sub in subs:
        node = int(sub.removeprefix(prefix))
        yield Place(f'{domain}/{node}',
                    f'mon_data/{name}/{sub}/{monitor.file}', (node,))
    if not subs:
        yield Place(str(domain), f'mon_data/{name}/{monitor.file}'.rstrip('/'),
                    _nodes_of(domain, host, monitor))


def _nodes_of(domain: int, host: Host, monitor: dialects.Monitor) -> Nodes:
    if monitor.info == 'MB_MON':
        return (domain,)
    return tuple(sorted(node for node, caches in host.l3.items()
                        if domain in caches))


# -- the dialect --------------------------------------------------------------


def _dialect(resctrl: Path,
             info: Mapping[str, str]) -> dialects.Dialect | None:
    try:
        root = schemata.read(
            sysfs_files.text(resctrl / 'schemata') or '')
    except schemata.SchemataError:
        return None
    return dialects.detect(info, root, frozenset(_names(resctrl)))


def _monitor(dialect: dialects.Dialect | None,
             info: Mapping[str, str]) -> dialects.Monitor | None:
    """Where the bandwidth is; counters at the L3 caches need no dialect.

    What ``MB_MON`` counts cannot be told without one.
    """
    choice = ((dialect.monitor, dialect.other_monitor) if dialect
              else (dialects.INTEL.monitor,))
    return next((monitor for monitor in choice
                 if monitor is not None and monitor.announced(info)), None)


def _control(
        resctrl: Path, sysfs: Path, told: Mapping[int, int],
        dialect: dialects.Dialect | None,
        l3: Mapping[int, frozenset[int]]) -> tuple[dict[int, Nodes], int]:
    """Domains of the MB line by node, and the cap that is none."""
    if dialect is None:
        return {}, 100
    try:
        host = resctrl_host.read_host(
            resctrl, sysfs, resctrl_host.Told(node_bandwidth=told))
    except resctrl_host.ResctrlUnavailable:
        # It is not known what a node can deliver; caps are shown all the
        # same.
        knob = dialect.knob('maximum')
        no_cap = knob.default if knob and knob.default else 100
        if dialect.domain_kind != 'l3':
            return {}, no_cap
        return {node: tuple(sorted(caches))
                for node, caches in l3.items()}, no_cap
    return dict(host.domains_by_node), host.no_cap


def _read_info(resctrl: Path) -> dict[str, str]:
    try:
        return resctrl_host.read_info(resctrl)
    except resctrl_host.ResctrlUnavailable as error:
        raise MonitorUnavailable(error.reason) from error


def _l3_caches(sysfs: Path, cpus: frozenset[int]) -> frozenset[int]:
    """Ids of the L3 caches of some CPUs, as far as they are known."""
    return frozenset(number for number in sysfs_files.l3_caches(sysfs, cpus)
                     if number is not None)


def _names(path: Path) -> list[str]:
    return [entry.name for entry in sysfs_files.entries(path)]
