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


"""Transactions that bandwidth events count, on kernels where they are
configurable (AMD).

In the mode ``mbm_event`` each event has a filter for the whole machine
(``event_configs/<event>/event_filter``), else one for each domain
(``<event>_config``, known as BMEC). Followed are event_filter_write() of
fs/resctrl/monitor.c and mon_config_write() of rdtgroup.c.
"""

from collections.abc import Sequence
import errno
import re

from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging

#: In the order of their bits (include/linux/resctrl_types.h).
TRANSACTIONS = (
    'local_reads', 'remote_reads', 'local_non_temporal_writes',
    'remote_non_temporal_writes', 'local_reads_slow_memory',
    'remote_reads_slow_memory', 'dirty_victim_writes_all',
)
_LOCAL = 0b0010101


class EventConfigs:
    """Transactions that each event of a monitor counts.

    :param domains: of the monitor.
    """

    def __init__(
        self, monitor: machines.Monitor, domains: Sequence[int]
    ):
        self._monitor = monitor
        self._filters: dict[str, int] = {}
        self.reset_filters()
        self._configs = {event: dict.fromkeys(domains, mask)
                         for event, mask in self._filters.items()}

    def reset_filters(self) -> None:
        """Set the event filters to their defaults, as each change of the mode
        does.
        """
        mask = self._monitor.transactions
        self._filters = {
            event: mask & _LOCAL if event == 'mbm_local_bytes' else mask
            for event in self._monitor.bandwidth
        }

    def show_filter(self, event: str) -> str:
        """``event_filter`` of an event."""
        return ','.join(
            name for bit, name in enumerate(TRANSACTIONS)
            if self._filters[event] >> bit & 1
        ) + '\n'

    def write_filter(self, event: str, text: str) -> bool:
        """Write an ``event_filter``; return whether that changed it.

        :raises ResctrlError: EINVAL; EPERM where it is fixed.
        """
        if not self._monitor.transactions:
            raise staging.ResctrlError(
                errno.EPERM, 'event_filter is not configurable\n')
        mask = 0
        rest = text
        while rest:
            name, _, rest = rest.partition(',')
            name = name.strip()
            if name not in TRANSACTIONS:
                raise staging.ResctrlError(
                    errno.EINVAL, f'Invalid memory transaction type {name}\n')
            mask |= 1 << TRANSACTIONS.index(name)
        changed = mask != self._filters[event]
        self._filters[event] = mask
        return changed

    def show_config(self, event: str) -> str:
        """``<event>_config``."""
        return ';'.join(
            f'{domain}=0x{mask:02x}'
            for domain, mask in self._configs[event].items()) + '\n'

    def write_config(
        self, event: str, text: str, changed: set[int]
    ) -> None:
        """Write ``<event>_config``; items before an error take effect.

        :param changed: gets the domains that count something else then.
        :raises ResctrlError: EINVAL.
        """
        masks = self._configs[event]
        rest = text
        while rest:
            item, _, rest = rest.partition(';')
            domain, mask = self._item(item.strip())
            if domain not in masks:
                raise staging.ResctrlError(errno.EINVAL)  # without a reason
            if masks[domain] != mask:
                masks[domain] = mask
                changed.add(domain)

    def _item(self, item: str) -> tuple[int, int]:
        number, _, value = item.partition('=')
        if not re.fullmatch(r'\+?[0-9]+', number):
            raise staging.ResctrlError(
                errno.EINVAL, "Missing '=' or non-numeric domain id\n")
        if not re.fullmatch(r'\+?(0[xX])?[0-9a-fA-F]+', value):
            raise staging.ResctrlError(
                errno.EINVAL, 'Non-numeric event configuration value\n')
        mask = int(value, 16)
        most = self._monitor.transactions
        if mask & ~most:
            raise staging.ResctrlError(
                errno.EINVAL, 'Invalid event configuration: max valid mask '
                f'is 0x{most:02x}\n')
        return int(number), mask
