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

"""Control group to which the kernel's own work is bound (pure).

AMD processors with privilege-level zero association can count and limit the
work of the kernel in one control group, whichever thread it is done for. An
admin binds the group with ``info/kernel_mode`` ("Add kernel-mode (e.g., PLZA)
support to the resctrl subsystem", v2 to v4 of 2026 on linux-kernel; not in
Linux 7.3). The mode in force is in brackets::

    inherit_ctrl_and_mon
    [global_assign_ctrl_inherit_mon_per_cpu:group=ctrl1//]
    global_assign_ctrl_assign_mon_per_cpu:group=uninitialized

In v2 the group is in a file of its own, ``info/kernel_mode_assignment``.
"""

from dataclasses import dataclass

from ghsched_nova.resctrl import naming

#: Mode without a bound group: the kernel works in the group of the thread.
_INHERIT = 'inherit_ctrl_and_mon'
_GROUP = 'group='


@dataclass(frozen=True)
class KernelBinding:
    """Resctrl group to which the kernel's own work is bound.

    :param mode: name of the mode, as the kernel gives it.
    :param group: control group, or a monitoring group in it.
    """

    mode: str
    group: naming.GroupName = naming.GroupName()

    @property
    def is_measured_apart(self) -> bool:
        """Whether the work is measured in the bound group as well."""
        return 'assign_mon' in self.mode


def parse_kernel_mode(mode: str, assignment: str = '') -> KernelBinding | None:
    """Parse the resctrl group to which the kernel's own work is bound.

    :param mode: text of ``info/kernel_mode``.
    :param assignment: text of ``info/kernel_mode_assignment``.
    :returns: None if the work is done in the group of each thread.
    """
    active = next((line.strip() for line in mode.splitlines()
                   if line.lstrip().startswith('[')), '')
    name, _, fields = active.replace('[', '').replace(']', '').partition(':')
    if name in ('', _INHERIT):
        return None
    path = next((field.removeprefix(_GROUP) for field in fields.split(';')
                 if field.startswith(_GROUP)), assignment.strip())
    control, slash, monitor = path.partition('/')
    return KernelBinding(name, naming.GroupName(
        control, monitor.strip('/')) if slash else naming.GroupName())
