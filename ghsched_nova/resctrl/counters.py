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

"""Assignment of hardware bandwidth counters to resctrl groups.

Where ``info/<resource>_MON/mbm_assign_mode`` says ``[mbm_event]``, hardware
has fewer counters than groups (Documentation/filesystems/resctrl.rst). The
kernel assigns counters to new groups while some are free: one for each event
in each domain. A guest whose policy requests measurement gets its missing
counters in this order: free counters; counters of local traffic, which
ghsched does not read; counters of guests whose policy does not request
measurement.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata
from ghsched_placement.base import decimals

#: Event that ghsched reads, and events that also occupy counters.
EVENT = 'mbm_total_bytes'
_OTHER_EVENTS = ('mbm_local_bytes',)

#: Resources whose counters may have to be assigned; ``MB`` is NVIDIA's.
_RESOURCES = ('L3', 'MB')


def read_counter_assignments(files: fs.Files, root: Path,
                             groups: Collection[str],
                             known: model.Counters | None = None
                             ) -> model.Counters | None:
    """Return which resctrl groups have the host's bandwidth counters.

    On some hosts there are fewer counters than groups, so counters must be
    assigned to groups.

    :param groups: paths of control groups and monitoring groups below the
        resctrl mount point.
    :param known: assignments that are not read again; None for none.
    :returns: None if the kernel counts the bandwidth of every group anyway.
    """
    for resource in _RESOURCES:
        info = root / 'info' / f'{resource}_MON'
        try:
            if '[mbm_event]' not in files.read(info / 'mbm_assign_mode'):
                continue
            free = _parse_counts(files.read(info / 'available_mbm_cntrs'))
        except (OSError, schemata.SchemataError):
            continue
        file = f'mbm_{resource}_assignments'
        assigned = {one: domains for one, domains in (
            known.assigned if known else {}).items() if one[0] in groups}
        for group in groups:
            if (group, EVENT) in assigned:
                continue
            try:
                assigned |= _parse_assignments(
                    group, files.read(root / group / file)
                )
            except OSError:  # the group has just been removed
                continue
        return model.Counters(file, free, assigned)
    return None


def _parse_counts(text: str) -> Mapping[int, int]:
    return schemata.parse_schemata(f'counters:{text}').values('counters') or {}


def _parse_assignments(
    group: str, text: str
) -> dict[model.Counted, frozenset[int]]:
    """Return the resctrl domains in which a group has a bandwidth counter.

    :param text: lines like ``EVENT:DOMAIN=e;DOMAIN=_``.
    :returns: domains by group and counted event.
    """
    found: dict[model.Counted, frozenset[int]] = {(group, EVENT): frozenset()}
    for line in text.splitlines():
        event, _, rest = line.partition(':')
        found[group, event] = frozenset(
            number for domain, _, state in (
                item.partition('=') for item in rest.split(';'))
            if state == 'e' and (number := decimals.parse_decimal(domain))
            is not None)
    return found


def add_counter_assignments(
    plan: model.Plan, actual: model.Actual
) -> model.Plan:
    """Add assignments of bandwidth counters to a plan for resctrl.

    The counters are assigned to the groups in which guests are measured.
    Groups that the plan creates are left out, because the kernel assigns
    counters to new groups.

    :param plan: planned changes of resctrl.
    :returns: the extended plan.
    """
    counters = actual.counters
    if counters is None:
        return plan
    measured = {group: guest for group, guest in map_guests_by_measured_group(
        actual.members).items()
        if guest.monitor and (group, EVENT) in counters.assigned}
    assigner = _CounterAssigner(counters, measured.keys())
    lacking = {group: [domain for domain in sorted(counters.free)
                       if domain not in counters.assigned[group, EVENT]
                       and not assigner.assign_counter(group, domain)]
               for group in sorted(measured)}
    return replace(
        plan, actions=(*plan.actions, *assigner.yield_actions(measured)),
        unmeasured=tuple(model.PolicyProblem(
            measured[group].domain.uuid, group,
            'no counter of bandwidth is left in domain '
            + ', '.join(map(str, domains)))
            for group, domains in lacking.items() if domains))


def map_guests_by_measured_group(
    members: model.Members
) -> dict[str, model.ResctrlGuest]:
    """Return the guest whose bandwidth each resctrl group measures.

    :param members: guests by resctrl group.
    :returns: guests by path of the control group or monitoring group.
    """
    return {
        naming.render_monitor_path(guest.domain.uuid, name)
        if naming.parse_group_name(name).is_shared
        else name: guest
        for name, guests in members.items()
        for guest in guests
    }


class _CounterAssigner:
    """Planner of the assignment of hardware bandwidth counters to groups.

    :param counters: present assignment of the counters.
    :param measured_groups: resctrl groups whose bandwidth must be measured.
        Their counters of :data:`EVENT` are not taken away.
    """

    def __init__(self, counters: model.Counters,
                 measured_groups: Iterable[str]):
        self._file = counters.file
        self._free = dict(counters.free)
        self._assigned = dict(counters.assigned)
        keep = {(group, EVENT) for group in measured_groups}
        self._donors = sorted(
            self._assigned.keys() - keep, key=lambda one: (
                one[1] not in _OTHER_EVENTS, one))
        self._added: dict[model.Counted, list[int]] = {}
        self._released: dict[model.Counted, list[int]] = {}

    def assign_counter(self, group: str, domain: int) -> bool:
        """Assign a bandwidth counter of a resctrl domain to a group.

        If no counter is free, one is taken from a group that need not be
        measured.

        :returns: False if the domain has no counter left.
        """
        if self._free[domain] > 0:
            self._free[domain] -= 1
        elif not self._release_counter(domain):
            return False
        self._added.setdefault((group, EVENT), []).append(domain)
        return True

    def _release_counter(self, domain: int) -> bool:
        for donor in self._donors:
            if domain in self._assigned[donor]:
                self._assigned[donor] -= {domain}
                self._released.setdefault(donor, []).append(domain)
                return True
        return False

    def yield_actions(self, guests: Mapping[str, model.ResctrlGuest]
                      ) -> Iterator[model.Action]:
        """Yield the changes that assign and release the counters.

        :param guests: guest that each resctrl group measures.
        """
        for (group, event), domains in self._released.items():
            yield model.Action(
                'release counters', group, 'a guest is to be measured',
                line=_render_assignment(event, domains, '_'), file=self._file)
        for (group, event), domains in self._added.items():
            yield model.Action(
                'assign counters',
                group,
                'the guest is to be measured',
                guests[group].domain.uuid,
                line=_render_assignment(event, domains, 'e'),
                file=self._file,
            )


def _render_assignment(event: str, domains: Iterable[int], state: str) -> str:
    return (f'{event}:' + ';'.join(f'{domain}={state}' for domain in domains)
            + '\n')
