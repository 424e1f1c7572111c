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

"""Part of a surveyed state that changes of resctrl have left as it was (pure).

The second survey of a reconciliation proves that its changes hold. It reads
only the groups that the changes concern.
"""

from collections.abc import Sequence
from dataclasses import replace

from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming

#: Kinds of changes after which the threads of a guest are read again: threads
#: may have been created just before their creator was moved.
_MOVING: tuple[model.Kind, ...] = ('make group', 'move threads')


def select_unchanged_state(actual: model.Actual,
                           actions: Sequence[model.Action]) -> model.Actual:
    """Return what a survey need not read again after changes of resctrl.

    A change concerns its control group, and the groups that the moved threads
    and devices leave.

    :param actual: state before the changes.
    :param actions: the changes, including those that failed.
    """
    left, unclear = _find_left_groups(actual, actions), _find_unclear_groups(
        actual)
    touched = left | {naming.parse_group_name(action.group).top
                      for action in actions}
    moving = unclear | {naming.parse_group_name(action.group).top
                        for action in actions if action.kind in _MOVING}
    moved = {guest.domain.uuid for name in moving
             for guest in actual.members.get(name, ())}
    counters = actual.counters
    return replace(
        actual,
        groups={name: group for name, group in actual.groups.items()
                if name not in touched | moving},
        threads={uuid: threads for uuid, threads in actual.threads.items()
                 if uuid not in moved},
        monitors_of_others={
            name: count for name, count in actual.monitors_of_others.items()
            if name and name not in touched},
        others={name: shown for name, shown in actual.others.items()
                if name not in touched},
        counters=counters and replace(counters, assigned={
            counted: domains for counted, domains in counters.assigned.items()
            if naming.parse_group_name(counted[0]).top not in touched}))


def _find_left_groups(actual: model.Actual,
                      actions: Sequence[model.Action]) -> set[str]:
    """Return the groups that had threads or devices which changes move."""
    threads = {tid for action in actions for tid in action.threads}
    devices = {number for action in actions for number in action.devices}
    return {name for name, group in actual.groups.items()
            if group.tasks & threads or group.devices & devices}


def _find_unclear_groups(actual: model.Actual) -> set[str]:
    """Return the groups that were not read, or whose guest was not found.

    A guest without a pid file is found by the threads in its group, so that
    it may be found after other threads have left.
    """
    return {name for name, group in actual.groups.items() if group.error} | {
        name for name, guests in actual.members.items()
        if not all(actual.threads.get(guest.domain.uuid)
                   for guest in guests)}
