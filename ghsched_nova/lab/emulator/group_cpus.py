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

"""CPUs of groups: content of ``cpus`` and ``cpus_list``."""

from collections.abc import Callable
import errno

from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging

Group = grouplib.Group
ResctrlError = staging.ResctrlError


class GroupCpus:
    """The CPUs whose threads of the default group count for another one."""

    def __init__(self, machine: machines.Machine, groups: grouplib.Groups):
        self._machine = machine
        self._groups = groups
        self.owners: dict[int, Group] = {}

    def owner(self, cpu: int) -> Group:
        """The group that threads of the default group count for on a CPU.

        Its cap holds for them as well (resctrl.rst, "Resource allocation
        rules" and "Resource monitoring rules").
        """
        return self.owners.get(cpu, self._groups.root)

    def note_owners(self) -> None:
        """Update the owner of each CPU after a change of groups or of their
        CPUs.
        """
        self.owners = {
            cpu: group for group in self._groups.every_group()
            if group is not self._groups.root for cpu in group.cpus
        }

    def show_mask(self, group: Group) -> str:
        """``cpus``."""
        width = max(self._machine.cpus, default=0) + 1
        return cpusets.format_mask(group.cpus, width) + '\n'

    @staticmethod
    def show_list(group: Group) -> str:
        """``cpus_list``."""
        return cpusets.format_list(group.cpus) + '\n'

    def write_mask(self, group: Group, text: str, _caller: int) -> None:
        """Write ``cpus``.

        :raises ResctrlError: EINVAL.
        """
        self._store_cpus(group, text, cpusets.parse_mask)

    def write_list(self, group: Group, text: str, _caller: int) -> None:
        """Write ``cpus_list``.

        :raises ResctrlError: EINVAL.
        """
        last = max(self._machine.cpus)
        self._store_cpus(
            group, text, lambda text: cpusets.parse_written(text, last))

    def _store_cpus(
        self, group: Group, text: str,
        parse: Callable[[str], frozenset[int]],
    ) -> None:
        try:
            cpus = parse(text)
        except ValueError:
            raise ResctrlError(
                errno.EINVAL, 'Bad CPU list/mask\n'
            ) from None
        if cpus - self._machine.cpus:
            raise ResctrlError(
                errno.EINVAL, 'Can only assign online CPUs\n'
            )
        if group.parent is None:
            self._store_control_cpus(group, cpus)
        else:
            self._store_monitor_cpus(group, group.parent, cpus)
        self.note_owners()

    def _store_control_cpus(
        self, group: Group, cpus: frozenset[int]
    ) -> None:
        dropped = group.cpus - cpus
        if dropped and group is self._groups.root:
            raise ResctrlError(
                errno.EINVAL, "Can't drop CPUs from default group\n"
            )
        self._groups.root.cpus |= dropped
        for other in self._groups.controls():
            if other is not group:
                other.cpus -= cpus - group.cpus
                for child in other.children.values():
                    child.cpus &= other.cpus
        group.cpus = cpus
        for child in group.children.values():
            child.cpus = frozenset()

    @staticmethod
    def _store_monitor_cpus(
        group: Group, parent: Group, cpus: frozenset[int]
    ) -> None:
        if cpus - parent.cpus:
            raise ResctrlError(
                errno.EINVAL,
                'Can only add CPUs to mongroup that belong to parent\n',
            )
        for sibling in parent.children.values():
            sibling.cpus -= cpus
        group.cpus = cpus
