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


"""Reader of the resctrl monitor files of all groups.

One round reads each file once, group by group. A group that is removed
meanwhile is left out; a figure that cannot be read has a state other than OK,
never the value 0. No lock is taken, so libvirt and nova-compute are not
delayed. A round waits while one of them holds the resctrl lock, so that the
kernel's error text of a refused write (info/last_cmd_status) reaches the
writer, see :func:`fs.wait_for_writer`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import functools
import os
from pathlib import Path
import threading
import time

from ghsched_nova.monitor import rates
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata

#: Maximum length in bytes of the content of a monitor file.
_LONGEST = 64
_SCHEMATA_LONGEST = 65536
#: Seconds after which the NUMA nodes and resctrl features of the host are read
#: again. They may have changed unnoticed: a new mount can have the device and
#: inode numbers of an earlier one.
FRESH = 60.0

Clock = Callable[[], float]
#: Name and inode number of a group, and number of a domain. A new group with
#: the name of an earlier group has another inode number.
Key = tuple[str, int, str]


@dataclass(frozen=True)
class MonitorReadings:
    """Readings of the monitor files of all resctrl groups at one time.

    :param host: NUMA nodes and resctrl features of the host.
    :param files: monitor files that were read in each group.
    :param groups: the resctrl groups. The root group is the first, and each
        monitoring group follows its control group.
    :param readings: bandwidth readings by group and domain.
    :param occupancy: bytes in an L3 cache by group and cache; empty if not
        requested or not reported by the kernel.
    :param energy: joules of processor cores by group and processor package;
        empty if not requested or not reported by the kernel. Values that
        cannot be read are left out.
    """

    host: topology.MonitoredHost
    files: tuple[topology.MonitorFile, ...]
    groups: tuple[view.MonitoredGroup, ...]
    readings: Mapping[Key, rates.Reading]
    occupancy: Mapping[tuple[str, int, topology.MonitorFile],
                       rates.Reading] = field(default_factory=dict)
    energy: Mapping[Key, float] = field(default_factory=dict)


class Reader:
    """Reader of the bandwidth of all resctrl groups of this host.

    The bandwidth is computed from two readings of the monitor files.
    Thread-safe.

    :param resctrl: mount point of resctrl.
    :param sysfs: mount point of sysfs.
    :param configured: MB/s that host NUMA nodes can deliver, see
        :func:`topology.read_monitored_host`.
    :param clock: monotonic clock in seconds.
    :param occupancy: whether to read the L3 cache occupancy of groups, too.
    :param energy: whether to read the energy of processor cores, too.
    """

    def __init__(self, resctrl: Path, sysfs: Path,
                 configured: Mapping[int, int] | None = None,
                 clock: Clock = time.monotonic, *,
                 occupancy: bool = False, energy: bool = False) -> None:
        self._resctrl = resctrl
        self._sysfs = sysfs
        self._configured = configured or {}
        self._clock = clock
        self._occupancy = occupancy
        self._energy = energy
        self._lock = threading.RLock()
        self._mount: tuple[int, ...] = ()
        self._looked = 0.0
        self._host: topology.MonitoredHost | None = None
        self._last: MonitorReadings | None = None
        # Readings that were a number since the group exists.
        self._counted: frozenset[Key] = frozenset()

    @property
    def last_readings(self) -> MonitorReadings | None:
        """Content of the monitor files at the last bandwidth measurement.

        The value is None before the first measurement.
        """
        return self._last

    def get_monitored_host(self) -> topology.MonitoredHost:
        """Return the host's NUMA nodes, with resctrl's monitors and limits.

        The result is cached for FRESH seconds, or until resctrl is mounted
        again.

        :raises MonitorUnavailable: if the host reports no bandwidth.
        """
        with self._lock:
            mount = _identify_inode(self._resctrl / 'info')
            now = self._clock()
            if (self._host is not None and mount == self._mount
                    and now - self._looked < FRESH):
                return self._host
            before, self._host = self._host, None
            host = topology.read_monitored_host(
                self._resctrl, self._sysfs, self._configured)
            if (before is None or mount != self._mount
                    or before.monitor != host.monitor):
                self._last = None
            self._host, self._mount, self._looked = host, mount, now
            return host

    def read_monitor_files(self) -> MonitorReadings:
        """Read the files of all resctrl groups that report bandwidth.

        :raises MonitorUnavailable: if the host reports no bandwidth (any
            more).
        """
        host = self.get_monitored_host()
        fs.wait_for_writer(self._resctrl)
        files = topology.find_monitor_files(self._resctrl, host)
        caches = (
            topology.find_monitor_files(self._resctrl, host, host.occupancy)
            if self._occupancy and host.occupancy else ())
        occupancy: dict[
            tuple[str, int, topology.MonitorFile], rates.Reading] = {}
        groups = []
        readings: dict[Key, rates.Reading] = {}
        for group, path in _list_resctrl_groups(str(self._resctrl)):
            found = {(group.path, group.number, place.domain):
                     _read_monitor_file(f'{path}/{place.path}', self._clock)
                     for place in files}
            if group.path and found and all(
                    reading.state is rates.RateState.MISSING
                    for reading in found.values()):
                continue        # the group was removed
            groups.append(group)
            readings |= found
            occupancy |= {
                (group.path, group.number, cache):
                _read_monitor_file(f'{path}/{cache.path}', self._clock)
                for cache in caches}
        if host.idle_unavailable:
            readings = self._mark_idle_domains(readings)
        return MonitorReadings(host, files, tuple(groups), readings, occupancy,
                               self._read_core_energy(host, groups))

    def _mark_idle_domains(
        self, readings: dict[Key, rates.Reading]
    ) -> dict[Key, rates.Reading]:
        """Mark domains in which no task of a resctrl group has run yet.

        The hardware has reported no number for the group in such a domain
        since this reader knows the group. Their readings get the state IDLE.
        """
        self._counted = frozenset(
            key for key, reading in readings.items()
            if reading.state is rates.RateState.OK or key in self._counted)
        return {
            key: reading._replace(state=rates.RateState.IDLE)
            if (reading.state is rates.RateState.UNAVAILABLE
                and key not in self._counted) else reading
            for key, reading in readings.items()}

    def _read_core_energy(
        self, host: topology.MonitoredHost,
        groups: Sequence[view.MonitoredGroup]
    ) -> dict[Key, float]:
        """Read the energy in joules that processor cores used for each group.

        The result is by resctrl group and processor package. It is empty if
        energy was not requested.
        """
        if not self._energy or host.energy is None:
            return {}
        packages = topology.find_monitor_files(
            self._resctrl, host, host.energy)
        found = {}
        for group in groups:
            for package in packages:
                joules = _read_joules(
                    self._resctrl / group.path / package.path)
                if joules is not None:
                    found[group.path, group.number, package.domain] = joules
        return found

    def measure_group_bandwidth(self) -> view.Usage:
        """Return each resctrl group's bandwidth since the previous call.

        In the first call, bandwidth that is derived from counters is unknown.
        Its state is FIRST.

        :raises MonitorUnavailable: if the host reports no bandwidth.
        """
        with self._lock:
            now = self.read_monitor_files()
            before, self._last = self._last, now
        figures = rates.compute_bandwidths(before.readings if before else {},
                                           now.readings, now.host.monitor.unit)
        cached = _sum_cache_bytes_by_nodes(now.occupancy)
        return view.Usage(
            now.host,
            tuple(
                view.GroupUsage(
                    group, _sum_bandwidth_by_nodes(group, now.files, figures),
                    cached.get((group.path, group.number), {}))
                for group in now.groups),
        )


def _sum_cache_bytes_by_nodes(
    occupancy: Mapping[tuple[str, int, topology.MonitorFile], rates.Reading],
) -> dict[tuple[str, int], dict[topology.Nodes, int]]:
    """Return the bytes of each resctrl group in L3 caches, by NUMA nodes.

    The bytes are summed by the NUMA nodes of the caches. Nodes with an
    unreadable cache are left out.

    :param occupancy: readings by group name, inode number and cache.
    """
    found: dict[tuple[str, int], dict[topology.Nodes, int]] = {}
    unknown = set()
    for (name, number, cache), reading in occupancy.items():
        of_group = found.setdefault((name, number), {})
        of_group[cache.nodes] = of_group.get(cache.nodes, 0) + reading.value
        if reading.state is not rates.RateState.OK:
            unknown.add((name, number, cache.nodes))
    for name, number, nodes in unknown:
        del found[name, number][nodes]
    return found


def _sum_bandwidth_by_nodes(
    group: view.MonitoredGroup,
    files: Sequence[topology.MonitorFile],
    figures: Mapping[Key, rates.Figure],
) -> dict[topology.Nodes, rates.Figure]:
    """Return the bandwidth of a resctrl group by host NUMA nodes.

    The bandwidth is summed over the resctrl domains of the nodes.

    :param files: monitor files, one for each resctrl domain.
    :param figures: bandwidth by group and domain.
    """
    found: dict[topology.Nodes, list[rates.Figure]] = {}
    for place in files:
        figure = figures.get((group.path, group.number, place.domain))
        found.setdefault(place.nodes, []).append(figure or rates.NOTHING)
    return {
        nodes: rates.sum_bandwidths(parts) for nodes, parts in found.items()}


# -- files --------------------------------------------------------------------


def _list_resctrl_groups(resctrl_path: str
                         ) -> list[tuple[view.MonitoredGroup, str]]:
    """Return all resctrl groups: control groups and monitoring groups.

    :param resctrl_path: mount point of resctrl.
    :returns: each group with the path of its directory.
    """
    found = _list_group_and_monitors('', 0, resctrl_path)
    for name, number in _list_directories(resctrl_path):
        if name not in naming.NOT_GROUPS:
            found += _list_group_and_monitors(name, number,
                                              f'{resctrl_path}/{name}')
    return found


def _list_group_and_monitors(
    control: str, number: int, path: str
) -> list[tuple[view.MonitoredGroup, str]]:
    """Return a control group and its monitoring groups, with their paths.

    :param control: name of the control group; empty for the root group.
    :param number: inode number of the group.
    :param path: path of its directory.
    """
    found = [(view.MonitoredGroup(naming.GroupName(control), number,
                                  _read_group_schemata(path)), path)]
    for name, number in _list_directories(f'{path}/{naming.MONITORS}'):
        found.append((view.MonitoredGroup(
            naming.GroupName(control, name), number),
            f'{path}/{naming.MONITORS}{name}'))
    return found


def _list_directories(path: str) -> list[tuple[str, int]]:
    try:
        with os.scandir(path) as entries:
            return sorted((entry.name, entry.inode()) for entry in entries
                          if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _read_group_schemata(path: str) -> schemata.Schemata | None:
    try:
        return _parse_schemata_cached(
            _read_content(f'{path}/schemata', _SCHEMATA_LONGEST))
    except (OSError, schemata.SchemataError):
        return None


@functools.lru_cache(maxsize=1024)
def _parse_schemata_cached(content: bytes) -> schemata.Schemata:
    """Parse the content of a schemata file.

    Equal content is parsed only once, as many groups have equal schemata.
    """
    return schemata.parse_kernel_schemata(content.decode(errors='replace'))


def _read_monitor_file(path: str, clock: Clock) -> rates.Reading:
    try:
        text = _read_content(path, _LONGEST)
    except (FileNotFoundError, NotADirectoryError):
        return rates.Reading(rates.RateState.MISSING, 0, clock())
    except OSError:
        return rates.Reading(rates.RateState.ERROR, 0, clock())
    return rates.parse_monitor_file(text, clock())


def _read_joules(path: Path) -> float | None:
    try:
        return rates.parse_core_energy(_read_content(str(path), _LONGEST))
    except OSError:
        return None


def _read_content(path: str, longest: int) -> bytes:
    # Path.read_bytes() takes several times as long.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, longest)
    finally:
        os.close(handle)


def _identify_inode(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    # The times are left out: they change whenever the inode is loaded again.
    return found.st_dev, found.st_ino
