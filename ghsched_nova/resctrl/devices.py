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

"""The traffic of passthrough devices in control groups (pure).

On openEuler's OLK-6.6 the ``tasks`` of a group takes and lists IOMMU groups
as well (``iommu_group:17``). What the devices in one of them read and write
in memory then counts for the control group, and its limits hold for it. An
IOMMU group is in one control group at most; the default group lists none.
"""

from collections.abc import Iterator
from dataclasses import replace

from ghsched_nova.resctrl import model


def add_device_moves(plan: model.Plan, actual: model.Actual,
                     wanted: model.Wanted) -> model.Plan:
    """Add moves of passthrough devices to a plan for resctrl.

    A device in a control group is subject to the bandwidth limits of the
    group. Devices leave a group before the group is removed. They join a
    guest's group after the threads of the guest.

    :param plan: planned changes of resctrl.
    :returns: the extended plan.
    """
    groups = {guest.domain.uuid: name
              for name, guests in actual.members.items() for guest in guests
              if guest.devices}
    removed = {action.group for action in plan.actions
               if action.kind == 'remove group'}
    there = actual.groups.keys() | {
        action.group for action in plan.actions if action.kind == 'make group'}
    looked_after = removed | (
        set(actual.members) if wanted.devices else set())
    return replace(
        plan,
        actions=(
            *_release_devices(actual, wanted, looked_after),
            *plan.actions,
            *(
                action
                for guest in wanted.guests
                if guest.devices and groups[guest.domain.uuid] in there
                for action in _move_missing_devices(
                    guest, groups[guest.domain.uuid], actual
                )
            ),
        ),
    )


def _move_missing_devices(
    guest: model.ResctrlGuest, name: str, actual: model.Actual
) -> Iterator[model.Action]:
    missing = guest.devices - actual.groups.get(name, model.Group()).devices
    if missing:
        yield model.Action(
            'move devices', name,
            f'passthrough devices of the guest are not in it '
            f'({_format_iommu_groups(missing)})', guest.domain.uuid,
            devices=tuple(sorted(missing)))


def _release_devices(actual: model.Actual, wanted: model.Wanted,
                     groups: set[str]) -> Iterator[model.Action]:
    """Yield moves of unused devices out of control groups.

    Devices that no running guest uses are moved to the kernel's default group.

    :param groups: names of the control groups that the devices leave.
    """
    used = frozenset[int]().union(
        *(guest.devices for guest in wanted.guests))
    for name in sorted(groups & actual.groups.keys()):
        left = actual.groups[name].devices - used
        if left:
            yield model.Action(
                'release devices', name,
                f'no guest that runs has them ({_format_iommu_groups(left)})',
                devices=tuple(sorted(left)))


def _format_iommu_groups(numbers: frozenset[int]) -> str:
    return ', '.join(f'iommu_group:{number}' for number in sorted(numbers))
