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


"""Portions of the cache for the traffic of devices (``io_alloc``).

AMD's hardware can put what devices write into the L3 by a control of its own.
Followed are resctrl_io_alloc_write() and what is beside it in
fs/resctrl/ctrlmondata.c: the highest CLOSID is taken for it, so that there is
one control group less.
"""

import errno
import re

from ghsched_nova.lab.emulator import entries
from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging


class IoAlloc:
    """The files of one line of the cache.

    :param line: whose ``info/`` directory they are in.
    """

    def __init__(
        self, machine: machines.Machine, groups: grouplib.Groups,
        line: machines.Line,
    ):
        self._machine = machine
        self._groups = groups
        self._line = line

    def files(self) -> dict[str, entries.Entry]:
        """Return the files of io_alloc in the line's directory."""
        return {
            'io_alloc': entries.Entry(
                0o644, read=lambda: 'enabled\n' if self._groups.io_alloc
                else 'disabled\n', write=self._switch),
            'io_alloc_cbm': entries.Entry(
                0o644, read=self._show, write=self._write,
                clears_status=True),
        }

    def _switch(self, text: str, _caller: int) -> None:
        enable = staging.read_bool(text)
        if enable == (self._groups.io_alloc is not None):
            return
        if not enable:
            self._groups.io_alloc = None
            return
        number = (self._line.closids or self._machine.num_closids) - 1
        if number >= self._machine.num_closids:
            raise staging.ResctrlError(
                errno.EINVAL, f'io_alloc CLOSID (ctrl_hw_id) {number} is not '
                'available\n')
        for group in self._groups.controls():
            if group.closid == number:
                raise staging.ResctrlError(
                    errno.ENOSPC, f'CLOSID (ctrl_hw_id) {number} for io_alloc '
                    f'is used by {group.name} group\n')
        try:
            values = self._groups.new_values()
        except staging.ResctrlError as error:
            raise staging.ResctrlError(
                error.number, f'{error.status}'
                'Failed to initialize io_alloc allocations\n') from error
        self._groups.io_alloc = grouplib.Group(
            'io_alloc', number, 0, values=values, mode='')

    def _group_values(self) -> staging.Values:
        group = self._groups.io_alloc
        if group is None:
            raise staging.ResctrlError(
                errno.EINVAL,
                f'io_alloc is not enabled on {self._line.name}\n')
        return group.values

    def _show(self) -> str:
        masks = self._group_values()[self._line.name]
        return ';'.join(f'{domain}={self._line.show(mask)}'
                        for domain, mask in masks.items()) + '\n'

    def _write(self, text: str, _caller: int) -> None:
        """``DOMAIN=MASK;...``, or ``*=MASK``: all or none."""
        row = staging.terminated(text)
        values = self._group_values()
        held = values[self._line.name]
        staged: dict[int, int] = {}
        while row:
            item, _, row = row.partition(';')
            number, equals, mask = item.partition('=')
            if equals and number == '*':
                self._stage(staged, list(held), mask)
                if row:
                    raise staging.ResctrlError(
                        errno.EINVAL, "Configurations after global '*'\n")
            elif not equals or not re.fullmatch(r'\+?[0-9]+', number):
                raise staging.ResctrlError(
                    errno.EINVAL, "Missing '=' or non-numeric domain\n")
            elif int(number) not in held:
                raise staging.ResctrlError(
                    errno.EINVAL, f'Invalid domain {int(number)}\n')
            else:
                self._stage(staged, [int(number)], mask)
        for line in self._machine.lines:
            if line.base == 16:    # with CDP, code and data hold the same
                values[line.name] |= staged

    def _stage(self, staged: dict[int, int], domains: list[int],
               mask: str) -> None:
        neighbours = [staging.Neighbour(group.mode == 'exclusive',
                                        group.values)
                      for group in self._groups.controls()]
        for domain in domains:
            if domain in staged:
                raise staging.ResctrlError(
                    errno.EINVAL, f'Duplicate domain {domain}\n')
            staged[domain] = staging.parse_value(
                self._line, mask.strip(), domain, neighbours=neighbours)
