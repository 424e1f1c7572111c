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


"""Order of writes where guarantees of all groups have a bounded sum (pure).

On RISC-V each control group has some of the guaranteed bandwidth, the default
group has the rest, and the kernel refuses a value that makes the sum exceed
what there is (``cbqri_apply_rbwb()`` of the patches of June 2026). So the
default group gives its rest away, and values are lowered before others are
raised.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import replace

from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import schemata
from ghsched_placement.base import decimals


def order_guarantee_writes(
    plan: model.Plan, actual: model.Actual, wanted: model.Wanted
) -> model.Plan:
    """Order a plan so that some guarantees are lowered before others rise.

    Some kernels refuse a guarantee that makes the sum of all control groups
    exceed the bandwidth. The plan therefore removes groups first, then lowers
    the guarantee of the kernel's default group in the resctrl domains in which
    guests have guarantees, then lowers the guarantees of other groups.

    :param plan: planned changes of resctrl.
    :returns: the reordered plan. On other kernels it is unchanged.
    """
    if not wanted.bounded:
        return plan
    removals = [action for action in plan.actions
                if action.kind == 'remove group']
    first: list[model.Action] = []
    later: list[model.Action] = []
    for action in plan.actions:
        line = _parse_written_line(action)
        if line is None or line.name not in wanted.bounded:
            later += [] if action.kind == 'remove group' else [action]
            continue
        current = actual.groups.get(action.group, model.Group()).schemata
        lowered, raised = _split_lowered_values(line, current)
        first += _make_value_write(action, line.name, lowered)
        later += _make_value_write(action, line.name, raised)
    return replace(plan, actions=(
        *removals, *_lower_default_guarantee(actual, wanted), *first, *later))


def _parse_written_line(action: model.Action) -> schemata.Line | None:
    if action.kind != 'write line' or action.file != 'schemata':
        return None
    return schemata.parse_schemata(action.line).lines[0]


_Values = tuple[tuple[int, str], ...]


def _split_lowered_values(line: schemata.Line, current: schemata.Schemata
                          | None
                          ) -> tuple[_Values, _Values]:
    """Split a schemata line's new values into lowered and raised ones.

    :param line: line to write, with all its new values.
    :param current: present schemata of the control group; None if unknown.
    :returns: the lowered values, and all other values.
    """
    found = current.line(line.name) if current else None
    before = dict(found.values) if found else {}

    def lowered(item: tuple[int, str]) -> bool:
        return int(item[1]) < (decimals.parse_decimal(before.get(item[0], ''))
                               or 0)

    return (tuple(filter(lowered, line.values)),
            tuple(item for item in line.values if not lowered(item)))


def _make_value_write(
    action: model.Action, name: str, values: _Values
) -> Iterator[model.Action]:
    if values:
        yield replace(
            action, line=f'{name}:{schemata.render_values(values)}\n')


def _lower_default_guarantee(
    actual: model.Actual, wanted: model.Wanted
) -> Iterator[model.Action]:
    """Yield writes that lower the default group's guaranteed bandwidth.

    The default group is the kernel's group for all threads without a control
    group. Only resctrl domains in which a guest has a guarantee are written.
    """
    for name, reset in wanted.bounded.items():
        line = actual.root.line(name) if actual.root else None
        taken = _find_guaranteed_domains(
            name, reset, (guest.desired for guest in wanted.guests)
        )
        values = tuple(
            (domain, str(reset)) for domain, text
            in (line.values if line else ())
            if domain in taken and (decimals.parse_decimal(text) or 0) > reset)
        if values:
            yield model.Action(
                'write line', '', 'guests are guaranteed what the default '
                'group holds of it', part=name,
                line=f'{name}:{schemata.render_values(values)}\n')


def _find_guaranteed_domains(
    name: str, initial: int, desired: Iterable[differences.Desired]
) -> set[int]:
    """Return the resctrl domains in which a guest has a guarantee.

    A guest has a guarantee if its value is higher than the initial value.

    :param name: name of the schemata line of guarantees.
    :param initial: value of this line in a new control group.
    :param desired: desired schemata values of each guest.
    """
    return {domain for lines in desired
            for domain, value in lines.get(name, {}).items()
            if value > initial}
