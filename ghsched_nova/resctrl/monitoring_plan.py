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


"""Plan of the monitoring groups of guests that share a control group (pure).
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
from dataclasses import replace

from ghsched_nova.resctrl import group_plan
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl.model import Action
from ghsched_nova.resctrl.model import ResctrlGuest
from ghsched_nova.resctrl import naming


def add_monitoring(plan: model.Plan, actual: model.Actual,
                   wanted: model.Wanted) -> model.Plan:
    """Add the monitoring groups of guests that share a control group.

    :param plan: planned changes of control groups.
    """
    there = actual.groups.keys() | {action.group for action in plan.actions}
    return replace(plan, actions=(*plan.actions, *_plan_monitoring(
        {name: guests for name, guests in actual.members.items()
         if guests[0].shared and name in there}, actual, wanted)))


def _plan_monitoring(
    shared: Mapping[str, Sequence[ResctrlGuest]],
    actual: model.Actual,
    wanted: model.Wanted,
) -> Iterator[Action]:
    """Yield the changes of monitoring groups within shared control groups.

    Each guest of a shared control group is measured in a monitoring group.
    Groups of guests that have left are removed first. The number of monitoring
    ids (RMIDs) limits how many guests get one. Guests without a policy come
    last.

    :param shared: guests by shared control group.
    """
    spare = wanted.monitors - sum(actual.monitors_of_others.values()) - sum(
        guest.is_only_measured and guest.group not in actual.groups
        for guest in wanted.guests)
    for name, guests in shared.items():
        here = {guest.domain.uuid for guest in guests}
        for uuid in sorted(_get_monitoring_groups(actual, name).keys() - here):
            yield Action(
                'remove group', naming.render_monitor_path(uuid, name),
                f'guest {uuid} does not share the group')
        spare -= len(_get_monitoring_groups(actual, name).keys() & here)
    for name, guests in sorted(shared.items(),
                               key=lambda item: item[0] == naming.DEFAULT):
        there = _get_monitoring_groups(actual, name)
        room = min(spare, wanted.monitors_per_group - len(there))
        for guest in _choose_guests_to_monitor(guests, there.keys(), room):
            uuid = guest.domain.uuid
            path = naming.render_monitor_path(uuid, name)
            if not group_plan.find_vcpu_threads(guest, actual):
                continue
            if uuid not in there:
                spare -= 1
                yield Action('make group', path,
                             'the guest is to be measured', uuid)
            yield from group_plan.plan_thread_moves(
                guest, path, there.get(uuid, frozenset()), actual,
                wanted.all_threads)


def _choose_guests_to_monitor(guests: Iterable[ResctrlGuest],
                              monitored: Set[str],
                              spare: int) -> list[ResctrlGuest]:
    """Choose which guests of a shared control group get a monitoring group.

    The bandwidth of a guest is measured in its monitoring group.

    :param monitored: UUIDs of guests that have a monitoring group already.
    :param spare: number of further monitoring groups that can be created.
    """
    have = [guest for guest in guests if guest.domain.uuid in monitored]
    new = sorted((guest for guest in guests
                  if guest.domain.uuid not in monitored),
                 key=lambda guest: not guest.monitor)
    return have + new[:max(0, spare)]


def _get_monitoring_groups(actual: model.Actual,
                           name: str) -> Mapping[str, frozenset[int]]:
    group = actual.groups.get(name)
    return group.monitors if group else {}
