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

"""What a compute host is and has: its options, its resctrl, its groups.

Knows no Nova object.
"""

import logging
import os
from pathlib import Path
from typing import Any

from ghsched_nova import conf
from ghsched_nova.host import readings
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import sysfs as sysfs_files

LOG = logging.getLogger(__name__)


class HostFacts:
    """One compute host, as its configuration, kernel and files say.

    :param section: the ``[ghsched]`` section of the configuration.
    :param shown: what lines show of written percentages; None: nothing is
        known, and nothing is measured.
    """

    def __init__(self, section: Any,
                 shown: readings.Readings | None = None) -> None:
        self.section = section
        self._shown = shown or readings.Readings(self.root)

    def host(self) -> resctrl_host.ResctrlHost:
        """What the kernel offers now.

        :raises ResctrlUnavailable: when it offers no bandwidth control.
        """
        told = resctrl_host.Told(
            node_bandwidth=conf.by_node(self.section, 'node_bandwidth'),
            cap=self.section.bandwidth_cap,
            l3_ways_shared=self.section.l3_ways_shared,
            burst_ratio=self.section.burst_ratio_max)
        host = self._read_host(told)
        if host.unmeasured and self._shown.complete(host):
            return self._read_host(told)
        return host

    def _read_host(self, told: resctrl_host.Told) -> resctrl_host.ResctrlHost:
        return resctrl_host.read_host(
            self.root, Path(self.section.sysfs_path), told,
            self._shown.known())

    def groups(self) -> frozenset[str]:
        """Names of the control groups that there are; none without resctrl.

        With those of the monitoring groups that were made here in the
        kernel's default group.

        Ask before libvirt is asked for its domains: a group is made after
        its domain was started, so one whose domain is not listed afterwards
        has none.
        """
        names = {name for name in self._entries('')
                 if name not in naming.NOT_GROUPS}
        names |= {naming.MONITORS + name
                  for name in self._entries(naming.MONITORS)
                  if naming.own_uuid(name)}
        return frozenset(
            name for name in names if os.path.isdir(self.root / name))

    def _entries(self, directory: str) -> list[str]:
        try:
            return os.listdir(self.root / directory)
        except OSError:
            return []

    def distances(self) -> dict[int, dict[int, int]]:
        """ACPI SLIT of the host, by node and node; empty without one.

        Empty, too, where no device is shown on the nearest node.
        """
        if not self.section.device_numa_nearest:
            return {}
        found = sysfs_files.distances(Path(self.section.sysfs_path))
        if not found:
            LOG.warning('ghsched: the distances of the NUMA nodes cannot be '
                        'read')
        return found

    def warn_of_open_directory(self) -> None:
        """For a host whose resctrl was mounted without further ado."""
        if fs.anybody_can_lock(self.root):
            LOG.warning('ghsched: any user of this host can lock %(root)s and '
                        'so keep guests from starting; give it to the group '
                        'of nova-compute: chgrp nova %(root)s && chmod 0750 '
                        '%(root)s', {'root': self.root})

    @property
    def shares(self) -> bool:
        """Whether guests that start share groups."""
        return bool(self.section.group_sharing)

    @property
    def caps_all(self) -> bool:
        """Whether guests that ask for nothing are held to something."""
        return bool(self.section.default_bandwidth_max < 100)

    @property
    def root(self) -> Path:
        return Path(self.section.resctrl_path)

    @property
    def run_path(self) -> Path:
        return Path(self.section.libvirt_run_path)

    @property
    def all_threads(self) -> bool:
        return bool(self.section.control_threads == 'all')
