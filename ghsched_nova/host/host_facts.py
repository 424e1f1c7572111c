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

"""Options, resctrl, control groups and NUMA distances of a compute host.

Uses no Nova object.
"""

from dataclasses import dataclass
import logging
from pathlib import Path
from typing import Any

from ghsched_nova import conf
from ghsched_nova.host import readings
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import host_texts
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement.providers import cpuless_nodes

LOG = logging.getLogger(__name__)


def make_host_settings(section: Any) -> resctrl_host.HostSettings:
    """Return the configured properties of a host that resctrl does not report.

    Every description of a compute host is made with these.

    :param section: the ``[ghsched]`` section of the configuration.
    :raises ValueError: if an option is invalid.
    """
    return resctrl_host.HostSettings(
        node_bandwidth=conf.parse_node_values(section, 'node_bandwidth'),
        cap=section.bandwidth_cap,
        l3_ways_shared=section.l3_ways_shared)


@dataclass(frozen=True)
class NodeDistances:
    """Distances between the NUMA nodes of a host, read from sysfs at once.

    :param every: distance of each pair of host NUMA nodes (ACPI SLIT).
    :param nearest: nearest NUMA node with CPUs, by node without CPUs.
    :param to_devices: distances by which devices appear on the nearest guest
        node. Without ``[ghsched]device_numa_nearest``, only those from nodes
        without CPUs to the nearest nodes with CPUs. Empty without an SLIT.
    """

    every: dict[int, dict[int, int]]
    nearest: dict[int, int]
    to_devices: dict[int, dict[int, int]]


class HostFacts:
    """Facts of one compute host, from its configuration, kernel and files.

    :param section: the ``[ghsched]`` section of the configuration.
    :param rounding: cache of the measured rounding of bandwidth percentages;
        None if the rounding is unknown and must not be measured.
    """

    def __init__(self, section: Any,
                 rounding: readings.RoundingCache | None = None) -> None:
        self.section = section
        self._rounding = rounding or readings.RoundingCache(self.root)
        # The last host, and what it was made of.
        self._made: tuple[Any, resctrl_host.ResctrlHost] | None = None

    def read_resctrl_host(self) -> resctrl_host.ResctrlHost:
        """Read from resctrl which memory bandwidth controls this host has.

        :raises ResctrlUnavailable: if the kernel has no bandwidth control.
        """
        host = self._read_host()
        if (host.unmeasured
                and self._rounding.measure_missing_percentages(host)):
            return self._read_host()
        return host

    def _read_host(self) -> resctrl_host.ResctrlHost:
        """Return the bandwidth controls of this host, from a cache if valid.

        The cached result is valid while the kernel's description of the host,
        the configuration and the measured percentages are unchanged.
        """
        root, sysfs = self.root, self._sysfs
        settings = make_host_settings(self.section)
        basis = (host_texts.read_files(root, sysfs), settings,
                 self._rounding.get_measured_rounding())
        made = self._made
        if made is None or made[0] != basis:
            made = self._made = basis, resctrl_host.make_host(*basis)
        return made[1]

    def list_resctrl_groups(self) -> frozenset[str]:
        """Return the names of the host's resctrl groups.

        These are all control groups, and the monitoring groups that
        nova-compute created in the kernel's default group. The result is empty
        if resctrl is not available.

        Call this before listing libvirt's domains. A group is created after
        its domain has started, so each returned group has its domain in that
        list, unless the domain has stopped.
        """
        return frozenset(
            name for name in group_ids.list_directories(self.root)
            if name not in naming.NOT_GROUPS) | frozenset(
                naming.MONITORS + name for name
                in group_ids.list_directories(self.root / naming.MONITORS)
                if naming.parse_group_name(name).uuid)

    def read_distances(self) -> NodeDistances:
        """Return the distances between host NUMA nodes, for devices.

        A warning is logged if they are needed and the host has none.
        """
        every = sysfs_files.read_distances(self._sysfs)
        nearest = self._find_nearest_nodes(every)
        if not self.section.device_numa_nearest:
            return NodeDistances(every, nearest, {
                node: {other: every[node][other]}
                for node, other in nearest.items()})
        if not every:
            LOG.warning('ghsched: cannot read host NUMA distances from sysfs; '
                        'not assigning passthrough devices to the nearest '
                        'guest NUMA node')
        return NodeDistances(every, nearest, every)

    def read_device_node(self, address: str) -> int | None:
        """Return the host NUMA node of a PCI device.

        On a host with one node it is this node.

        :param address: PCI address of the device.
        :returns: None if the node is unknown.
        """
        found = sysfs_files.read_device_node(self._sysfs, address)
        nodes = [node for node, _path
                 in sysfs_files.iterate_numa_nodes(self._sysfs)]
        return nodes[0] if found is None and len(nodes) == 1 else found

    def read_device_windows(self, address: str) -> int:
        """Return the bytes of all 64-bit memory windows of a PCI device."""
        return sysfs_files.read_device_windows(self._sysfs, address)

    def list_caches(self, cpus: frozenset[int]) -> list[frozenset[int]]:
        """Return which CPUs of a host NUMA node share an L3 cache.

        :param cpus: CPUs of the node.
        :returns: the CPUs of each cache; empty if there is only one, or if the
            kernel does not say.
        """
        found = [shared & cpus for _number, shared
                 in sysfs_files.iterate_l3_caches(self._sysfs, cpus)]
        return found if len(found) > 1 and all(found) else []

    def find_nearest_nodes(self) -> dict[int, int]:
        """Return the nearest NUMA node with CPUs for each node without CPUs.
        """
        return self._find_nearest_nodes(
            sysfs_files.read_distances(self._sysfs))

    def _find_nearest_nodes(self, distances: dict[int, dict[int, int]]
                            ) -> dict[int, int]:
        return cpuless_nodes.find_nearest_nodes(distances, {
            node for node, path in sysfs_files.iterate_numa_nodes(self._sysfs)
            if sysfs_files.read_node_cpus(path)})

    @property
    def _sysfs(self) -> Path:
        return Path(self.section.sysfs_path)

    def warn_if_any_user_can_lock(self) -> None:
        """Log a warning if unprivileged users can lock the resctrl directory.

        Such a lock prevents libvirt from starting guests.
        """
        if fs.can_any_user_lock(self.root):
            LOG.warning('ghsched: any user can lock the resctrl directory '
                        '%(root)s and prevent guests from starting; to '
                        'restrict access, run: chgrp nova %(root)s && chmod '
                        '0750 %(root)s', {'root': self.root})

    @property
    def can_share_groups(self) -> bool:
        """Whether guests on this host may share resctrl control groups.

        Guests with equal policies can share a group, as the number of groups
        is limited.
        """
        return bool(self.section.group_sharing)

    @property
    def has_default_cap(self) -> bool:
        """Whether guests without a bandwidth policy share a common cap."""
        return bool(self.section.default_bandwidth_max < 100)

    @property
    def root(self) -> Path:
        """Mount point of resctrl on this host."""
        return Path(self.section.resctrl_path)

    @property
    def run_path(self) -> Path:
        """Directory of libvirt's PID files of QEMU processes."""
        return Path(self.section.libvirt_run_path)

    @property
    def all_threads(self) -> bool:
        """Whether control groups contain all QEMU threads, not only vCPUs.

        Then the limits also apply to the emulator and I/O threads.
        """
        return bool(self.section.control_threads == 'all')
