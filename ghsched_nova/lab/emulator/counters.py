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
from collections.abc import Sequence
import errno

from ghsched_nova.lab.emulator import event_configs
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
    :param traffic: what of a group, by its number, an event has counted so
        far in a domain; a counter begins at 0 when it is assigned.
    """

    def __init__(
        self, machine: machines.Machine, monitor: machines.Monitor,
        traffic: Callable[[int, str, int], float],
    ):
        self.monitor = monitor
        self.domains = machine.domains(monitor.scope)
        self.mode = monitor.modes[0]
        self._on_mkdir = True
        self._traffic = traffic
        #: What had been counted when a counter was assigned.
        self._assigned: dict[Pair, float] = {}
        self.events = event_configs.EventConfigs(monitor, self.domains)
        #: How often all that a domain had counted was cleared, and for each
        #: pair how often that was at a read, and what had been counted then.
        self._clears = dict.fromkeys(self.domains, 0)
        self._known: dict[Pair, tuple[int, float]] = {}

    @property
    def enabled(self) -> bool:
        return self.mode == 'mbm_event'

    @property
    def configurable(self) -> bool:
        """Whether there are the files of BMEC."""
        return bool(self.monitor.transactions) and not self.enabled

    def count(
        self, groups: Sequence[int], event: str, domain: int
    ) -> float | str:
        """Return bytes since counters were assigned, or a word without any."""
        count = self._of_counter if self.enabled else self._of_all
        counts = [count((group, event, domain)) for group in groups]
        found = [one for one in counts if one is not None]
        if found:
            return sum(found)
        return 'Unassigned' if self.enabled else 'Unavailable'

    def _of_counter(self, pair: Pair) -> float | None:
        before = self._assigned.get(pair)
        return None if before is None else self._traffic(*pair) - before

    def _of_all(self, pair: Pair) -> float | None:
        """Return the traffic since the last clear; None at the first read
        after each clear (resctrl.rst, BMEC).
        """
        clears, before = self._known.get(pair, (0, 0.0))
        if clears == self._clears[pair[2]]:
            return self._traffic(*pair) - before
        self._known[pair] = self._clears[pair[2]], self._traffic(*pair)
        return None

    # A group that comes and goes -----------------------------------------

    def made(self, group: int) -> str:
        """Assign free counters; return the rest's ``last_cmd_status``."""
        status = ''
        self._known |= {(group, event, domain): (clears, 0.0)
                        for event in self.monitor.bandwidth
                        for domain, clears in self._clears.items()}
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
        self._known = {pair: known for pair, known in self._known.items()
                       if pair[0] != group}

    def _assign(self, pair: Pair) -> bool:
        if pair in self._assigned:
            return True
        if not self._free(pair[2]):
            return False
        self._assigned[pair] = self._traffic(*pair)
        return True

    def _free(self, domain: int) -> int:
        used = sum(pair[2] == domain for pair in self._assigned)
        return self.monitor.counters - used

    # Files ---------------------------------------------------------------

    def show_mode(self) -> str:
        return f'[{self.mode}]\n' + ''.join(
            f'{mode}\n' for mode in self.monitor.modes if mode != self.mode)

    def write_mode(self, text: str) -> None:
        """Change the mode; no group has a counter then."""
        mode = staging.terminated(text)
        if mode not in ('default', 'mbm_event'):
            raise staging.ResctrlError(
                errno.EINVAL, 'Unsupported assign mode\n')
        if mode not in self.monitor.modes:
            raise staging.ResctrlError(
                errno.EINVAL, 'Counter assignment mode is not configurable\n'
                if self.enabled else 'mbm_event mode is not supported\n')
        if mode != self.mode:
            self.mode = mode
            self._assigned = {}
            self._on_mkdir = True
            self.events.reset_filters()

    def show_filter(self, event: str) -> str:
        self._check_enabled()
        return self.events.show_filter(event)

    def write_filter(self, event: str, text: str) -> None:
        """Counters of an event that counts something else begin at 0."""
        line = staging.terminated(text)
        self._check_enabled()
        if self.events.write_filter(event, line):
            self._assigned |= {
                pair: self._traffic(*pair)
                for pair in self._assigned if pair[1] == event}

    def write_config(self, event: str, text: str) -> None:
        """Write an event's configuration; clear changed domains."""
        changed: set[int] = set()
        try:
            self.events.write_config(event, staging.terminated(text), changed)
        finally:
            for domain in changed:
                self._clears[domain] += 1

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
        value = staging.read_bool(text)
        self._check_enabled()
        self._on_mkdir = value

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
        rows = staging.terminated(text).split('\n')
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
