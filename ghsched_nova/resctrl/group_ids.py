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

"""Ids that limit the number of resctrl groups, and the existing groups.

A control group needs a CLOSID (on Arm a PARTID) and a monitoring id (RMID; on
Arm a PMG). A monitoring group needs a monitoring id. ``mkdir`` fails if either
is used up, whoever made the other groups. Kernels differ in two ways:

* On x86 all groups take their RMIDs from one pool, and ``num_rmids`` is its
  size. On Arm each control group has its own PMGs, so a new control group
  always has one (CONFIG_RESCTRL_RMID_DEPENDS_ON_CLOSID).
* On Arm ``num_rmids`` has been the number of PARTIDs times PMGs
  (resctrl_arch_system_num_rmid_idx()), the number of PMGs, and 1 ("num_rmid
  doesn't mean anything for mpam" in older versions of mpam_resctrl.c).
"""

from dataclasses import dataclass
import os
from pathlib import Path

from ghsched_nova.resctrl import naming


@dataclass(frozen=True)
class GroupIds:
    """Number of ids that a kernel has for resctrl groups.

    :param closids: number of CLOSIDs, including that of the default group.
    :param rmids: number of monitoring ids that the kernel reports; 0 if its
        groups need none.
    :param per_group: whether each control group has its own monitoring ids.
    """

    closids: int
    rmids: int
    per_group: bool

    def count_free_control_groups(self, control: int, monitors: int) -> int:
        """Return how many further control groups the kernel can create.

        :param control: number of existing control groups, without the default
            group.
        :param monitors: number of existing monitoring groups.
        """
        free = self.closids - 1 - control
        if self.rmids and not self.per_group:
            free = min(free, self.rmids - 1 - control - monitors)
        return max(0, free)

    def is_monitor_free(self, existing: 'ExistingGroups') -> bool:
        """Whether the kernel can create a monitoring group in the default one.

        True if the kernel does not report how many there can be.
        """
        if not self.rmids:
            return True
        if self.per_group:
            return (existing.default_monitors < self.monitors_per_group
                    or self.rmids == 1)
        return (len(existing.control) + existing.monitors
                < self.rmids - 1)

    def describe_use(self, existing: 'ExistingGroups') -> str:
        """Describe how many ids of the kernel are in use."""
        text = (f'{len(existing.control)} of {self.closids - 1} control '
                'groups')
        if not self.rmids:
            return text + ' are in use'
        if self.per_group:
            return (f'{text} and {existing.default_monitors} monitoring '
                    'groups of the default group are in use')
        used = len(existing.control) + existing.monitors
        return f'{text} and {used} of {self.rmids - 1} RMIDs are in use'

    @property
    def monitors_per_group(self) -> int:
        """Maximum number of monitoring groups within one control group."""
        if not self.per_group:
            return self.spare_monitors
        if self.rmids < self.closids:   # the number of PMGs, or 1
            return max(0, self.rmids - 1)
        return self.rmids // self.closids - 1

    @property
    def spare_monitors(self) -> int:
        """Number of monitoring groups if all control groups exist, too."""
        if self.per_group:
            return self.monitors_per_group * self.closids
        return max(0, self.rmids - self.closids)


@dataclass(frozen=True)
class ExistingGroups:
    """Resctrl groups of a host, whoever created them.

    :param control: names of the control groups, without the default group.
    :param monitors: number of monitoring groups of all control groups.
    :param default_monitors: number of those of the default group.
    """

    control: frozenset[str] = frozenset()
    monitors: int = 0
    default_monitors: int = 0

    @property
    def foreign(self) -> frozenset[str]:
        """Names of the control groups that other software created."""
        return naming.list_foreign_groups(self.control)


def read_existing_groups(resctrl: Path) -> ExistingGroups:
    """Return the existing resctrl groups of a host.

    The result is empty if resctrl is not available.

    :param resctrl: mount point of resctrl.
    """
    control = frozenset(
        name for name in list_directories(resctrl)
        if name not in naming.NOT_GROUPS)
    monitors = {name: len(list_directories(resctrl / name / naming.MONITORS))
                for name in ('', *control)}
    return ExistingGroups(control, sum(monitors.values()), monitors[''])


def list_directories(path: Path) -> list[str]:
    """Return the names of the directories in a directory.

    The result is empty if the directory cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []
