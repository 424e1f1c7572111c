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

"""The group of the kernel's own work (``info/kernel_mode``).

Followed is "x86/resctrl: Add kernel-mode (e.g., PLZA) support to the resctrl
subsystem", v4 of 7 July 2026 on linux-kernel: resctrl_kernel_mode_show(),
resctrl_kernel_mode_write() and rdtgroup_kmode_detach(). Left out: the files
``kmode_cpus`` of the bound group; the traffic of guests stays where it is.
"""

import errno

from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import staging

_INHERIT = 'inherit_ctrl_and_mon'
_INHERIT_MONITOR = 'global_assign_ctrl_inherit_mon_per_cpu'
_MODES = (_INHERIT, _INHERIT_MONITOR, 'global_assign_ctrl_assign_mon_per_cpu')
_PATH_WANTED = 'Group must be <ctrl>/<mon>/\n'


class KernelMode:
    """The file ``info/kernel_mode``.

    A group that is removed is bound no more, see :meth:`show`.
    """

    def __init__(self, groups: grouplib.Groups):
        self._groups = groups
        self._mode = _INHERIT
        self._group: grouplib.Group | None = None

    def show(self) -> str:
        """Return the modes, that in force in brackets."""
        if not any(group is self._group
                   for group in self._groups.every_group()):
            self._mode, self._group = _INHERIT, None
        return ''.join(
            f'[{self._show_mode(mode)}]\n' if mode == self._mode
            else f'{self._show_mode(mode)}\n' for mode in _MODES)

    def _show_mode(self, mode: str) -> str:
        if mode == _INHERIT:
            return mode
        group = self._group if mode == self._mode else None
        if group is None:
            return f'{mode}:group=uninitialized'
        control = group.control.name
        return f'{mode}:group={control}/{group.name if group.parent else ""}/'

    def write(self, text: str, _caller: int) -> None:
        """``MODE`` or ``MODE:group=CONTROL/MONITOR/``.

        :raises ResctrlError: EINVAL.
        """
        mode, given, path = staging.terminated(text).strip().partition(
            ':group=')
        mode = mode.strip()
        if mode not in _MODES:
            raise staging.ResctrlError(errno.EINVAL, 'Unknown kernel mode\n')
        group = None
        if mode != _INHERIT:
            group = self._find(path) if given else self._groups.root
        if mode == _INHERIT_MONITOR and group and group.parent:
            raise staging.ResctrlError(
                errno.EINVAL, f'{mode} requires a control group\n')
        self._mode, self._group = mode, group

    def _find(self, path: str) -> grouplib.Group:
        if path == 'uninitialized':
            raise staging.ResctrlError(
                errno.EINVAL, "Cannot bind to 'uninitialized' group\n")
        if path.count('/') != 2 or not path.endswith('/'):
            raise staging.ResctrlError(errno.EINVAL, _PATH_WANTED)
        control, monitor, _end = path.split('/')
        parent = (self._groups.named.get(control) if control
                  else self._groups.root)
        found = parent and (parent.children.get(monitor) if monitor
                            else parent)
        if not found:
            raise staging.ResctrlError(errno.EINVAL, 'Group not found\n')
        return found
