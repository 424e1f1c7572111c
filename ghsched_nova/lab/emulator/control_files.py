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

"""``schemata`` and ``mode`` of control groups."""

import errno

from ghsched_nova.lab.emulator import faults as faultlib
from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import links
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging
from ghsched_nova.lab.emulator import traffic as trafficlib

Group = grouplib.Group
ResctrlError = staging.ResctrlError


class ControlFiles:
    """Files of control groups: schemata, size, mode and event."""

    def __init__(
        self,
        machine: machines.Machine,
        groups: grouplib.Groups,
        traffic: trafficlib.Traffic,
        injector: faultlib.Injector,
    ):
        self._machine = machine
        self._groups = groups
        self._traffic = traffic
        self._injector = injector

    def show_schemata(self, group: Group) -> str:
        """``schemata``."""
        return staging.show(self._machine, group.values)

    def show_size(self, group: Group) -> str:
        """``size``."""
        return staging.sizes(self._machine, group.values)

    def write_schemata(self, group: Group, text: str, _caller: int) -> None:
        """All lines, or none of them.

        :raises ResctrlError: EINVAL.
        """
        ignored = self._injector.strike_lines(
            staging.line_names(text), group.name)
        # Traffic so far was under the old values.
        for one in group.family:
            self._traffic.account(one, force=True)
        if self._groups.staged:
            staged = self._groups.staged.write(text)
        else:
            staged = staging.stage(
                self._machine, text, group.mode == 'exclusive',
                [
                    staging.Neighbour(x.mode == 'exclusive', x.values)
                    for x in self._groups.holders() if x is not group
                ],
                group.values if not ignored else None,
            )
        staged = {name: values for name, values in staged.items()
                  if name not in ignored}
        links.check_sums(self._machine, [
            one.values for one in self._groups.controls() if one is not group
        ], staged)
        for name, values in links.followed(self._machine, staged).items():
            group.values[name] |= values

    @staticmethod
    def show_mode(group: Group) -> str:
        """``mode``."""
        return f'{group.mode}\n'

    def write_mode(self, group: Group, text: str, _caller: int) -> None:
        """``shareable`` or ``exclusive``.

        :raises ResctrlError: EINVAL.
        """
        mode = staging.terminated(text)
        self._injector.strike('mode', group.name)
        if mode not in ('shareable', 'exclusive'):
            raise ResctrlError(
                errno.EINVAL, 'Unknown or unsupported mode\n'
            )
        if mode == 'exclusive' and group.mode != mode:
            self._check_exclusive(group)
        group.mode = mode

    @staticmethod
    def show_event(group: Group) -> str:
        """``mba_MBps_event``: what a cap in MiB/s is held by."""
        return f'{group.event}\n'

    def write_event(self, group: Group, text: str, _caller: int) -> None:
        """Write ``mba_MBps_event``.

        :raises ResctrlError: EINVAL.
        """
        event = staging.terminated(text)
        if not any(event in monitor.bandwidth
                   for monitor in self._machine.monitors):
            raise ResctrlError(
                errno.EINVAL, f"Unsupported event id '{event}'\n")
        group.event = event

    def _check_exclusive(self, group: Group) -> None:
        caches = [x for x in self._machine.lines if x.base == 16]
        if not caches:
            raise ResctrlError(
                errno.EINVAL, 'Cannot be exclusive without CAT/CDP\n'
            )
        if any(line.shareable for line in caches) or any(
            staging.overlap(line, group.values[line.name], other.values)
            for line in caches for other in self._groups.holders()
            if other is not group
        ):
            raise ResctrlError(errno.EINVAL, 'Schemata overlaps\n')
