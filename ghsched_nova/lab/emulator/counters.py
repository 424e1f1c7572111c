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


"""Counters of bandwidth that must be assigned to groups.

Follows the mode ``mbm_event`` of Documentation/filesystems/resctrl.rst and of
fs/resctrl/monitor.c: each domain has so many counters, and each pair of a
group and an event takes one. A group gets its counters when it is made, as
far as there are any, and gives them back when it is removed.
"""

from collections.abc import Callable
import errno
import re

from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging

#: A group's number, an event, a domain.
Pair = tuple[int, str, int]

ON_MKDIR = 'mbm_assign_on_mkdir'
_DISABLED = 'mbm_event counter assignment mode is not enabled\n'


class Counters:
    """The counters of one monitor resource.

    :param machine: the machine.
    :param monitor: one of its monitors, with counters.
    :param traffic: bytes so far of a group, by its number, in a domain; a
        counter begins at 0 when it is assigned.
    """

    def __init__(
        self, machine: machines.Machine, monitor: machines.Monitor,
        traffic: Callable[[int, int], float],
    ):
        self.monitor = monitor
        self.domains = machine.domains(monitor.scope)
        self.mode = monitor.modes[0]
        self._on_mkdir = True
        self._traffic = traffic
        #: What had been counted when a counter was assigned.
        self._assigned: dict[Pair, float] = {}

    @property
    def enabled(self) -> bool:
        return self.mode == 'mbm_event'

    def count(self, group: int, event: str, domain: int) -> float | None:
        """Bytes since a counter was assigned; None without one."""
        if not self.enabled:
            return self._traffic(group, domain)
        before = self._assigned.get((group, event, domain))
        return None if before is None else (
            self._traffic(group, domain) - before)

    # A group that comes and goes -----------------------------------------

    def made(self, group: int) -> str:
        """Assign what there is; what ``last_cmd_status`` says of the rest."""
        status = ''
        if self.enabled and self._on_mkdir:
            for event in self.monitor.bandwidth:
                for domain in self.domains:
                    if not self._assign((group, event, domain)):
                        status += _none_left(event, domain)
        return status

    def gone(self, group: int) -> None:
        self._assigned = {
            pair: base for pair, base in self._assigned.items()
            if pair[0] != group
        }

    def _assign(self, pair: Pair) -> bool:
        if pair in self._assigned:
            return True
        if not self._free(pair[2]):
            return False
        self._assigned[pair] = self._traffic(pair[0], pair[2])
        return True

    def _free(self, domain: int) -> int:
        used = sum(pair[2] == domain for pair in self._assigned)
        return self.monitor.counters - used

    # Files ---------------------------------------------------------------

    def show_mode(self) -> str:
        return ''.join(
            f'[{mode}]\n' if mode == self.mode else f'{mode}\n'
            for mode in self.monitor.modes
        )

    def write_mode(self, text: str) -> None:
        """Change the mode; no group has a counter then."""
        mode = _line(text)
        if mode not in self.monitor.modes:
            raise staging.ResctrlError(
                errno.EINVAL, f'Unsupported assign mode {mode}\n'
            )
        if mode != self.mode:
            self.mode = mode
            self._assigned = {}
            self._on_mkdir = True

    def show_all(self) -> str:
        return self._by_domain(lambda _domain: self.monitor.counters)

    def show_free(self) -> str:
        self._check_enabled()
        return self._by_domain(self._free)

    def _by_domain(self, value: Callable[[int], int]) -> str:
        return ';'.join(f'{x}={value(x)}' for x in self.domains) + '\n'

    def show_on_mkdir(self) -> str:
        self._check_enabled()
        return f'{int(self._on_mkdir)}\n'

    def write_on_mkdir(self, text: str) -> None:
        # kstrtobool() looks at the beginning alone, and comes first.
        match = re.match('(?i)([ty1]|on)|([fn0]|of)', text)
        if match is None:
            raise staging.ResctrlError(errno.EINVAL, None)
        self._check_enabled()
        self._on_mkdir = match[1] is not None

    def show(self, group: int) -> str:
        """``mbm_L3_assignments`` of a group."""
        self._check_enabled()
        return ''.join(
            f'{event}:' + ';'.join(
                f'{domain}='
                + ('e' if (group, event, domain) in self._assigned else '_')
                for domain in self.domains
            ) + '\n'
            for event in self.monitor.bandwidth
        )

    def write(self, group: int, text: str) -> None:
        """``EVENT:DOMAIN=e`` or ``_``; ``*`` is every domain.

        What comes before an error is done.
        """
        rows = _line(text).split('\n')
        if not self.enabled:
            raise staging.ResctrlError(
                errno.EINVAL, 'mbm_event mode is not enabled\n')
        for row in rows:
            event, _, rest = row.partition(':')
            if event not in self.monitor.bandwidth:
                raise staging.ResctrlError(
                    errno.ENOENT, f'Invalid event {event}\n'
                )
            while rest:
                item, _, rest = rest.partition(';')
                if self._write_item(group, event, item.strip()):
                    break

    def _write_item(self, group: int, event: str, item: str) -> bool:
        """Whether it was for every domain, which ends an event."""
        number, equals, state = item.partition('=')
        every = number.startswith('*')
        if not every and not number.isdecimal():
            raise staging.ResctrlError(errno.EINVAL, 'Missing domain id\n')
        domains = self.domains if every else (int(number),)
        if not set(domains) <= set(self.domains):
            raise staging.ResctrlError(
                errno.EINVAL, f'Invalid domain id {domains[0]}\n'
            )
        failed = (f"Assign operation '{event}:"
                  f"{'*' if every else domains[0]}="
                  f"{state if equals else '(null)'}' failed\n")
        if state not in ('e', '_'):
            raise staging.ResctrlError(errno.EINVAL, failed)
        if state == '_':
            for domain in domains:
                self._assigned.pop((group, event, domain), None)
            return every
        lacking = [domain for domain in domains
                   if not self._assign((group, event, domain))]
        if lacking:
            raise staging.ResctrlError(errno.ENOSPC, ''.join(
                _none_left(event, domain) for domain in lacking) + failed)
        return every

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise staging.ResctrlError(errno.EINVAL, _DISABLED)


def _none_left(event: str, domain: int) -> str:
    return f'Failed to allocate counter for {event} in domain {domain}\n'


def _line(text: str) -> str:
    if not text.endswith('\n'):
        raise staging.ResctrlError(errno.EINVAL, None)
    return text[:-1]
