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

"""Writes of all lines of a resource, for kernels that need them (pure).

OLK-5.10 keeps the values that were written last, one set for each domain of a
resource, and a line that is written to a group also gives it the other lines
of the resource as they are in this set
(``resctrl_group_update_domain_ctrls()`` in arch/arm64/kernel/mpam): values of
whichever group was written before. So when one line of a group has to be
written, all lines of its resource are written, and the set is that of the
group afterwards. Two lines cannot be in one write (``duplicate domain``).

A group that has just been made needs none of this: its values are what was
written last.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace
import re

from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import schemata
from ghsched_placement.base import decimals

_RESOURCE = re.compile('L[0-9]+(CODE|DATA)?|MB')
#: Suffix of the names of guarantee lines. They are written first, so that a
#: group never gets the guarantee of another guest.
_GUARANTEE = 'MIN'

_Values = dict[str, dict[int, str]]


def add_writes_of_unchanged_lines(
    plan: model.Plan, actual: model.Actual, wanted: model.Wanted
) -> model.Plan:
    """Add writes of unchanged schemata lines to a plan for resctrl.

    All schemata lines of a resource are written if one of them changes. This
    is needed on OLK-5.10: if one line of a group is written, the kernel
    overwrites the other lines with those of the group that was written before.

    :param plan: planned changes of resctrl.
    :returns: the extended plan.
    """
    if not wanted.staged:
        return plan
    fresh = {action.group for action in plan.actions
             if action.kind == 'make group'}
    actions: list[model.Action] = []
    done = set()
    for action in plan.actions:
        current = actual.root if not action.group else (
            actual.groups.get(action.group, model.Group()).schemata)
        if (action.kind != 'write line' or action.group in fresh
                or current is None):
            actions.append(action)
            continue
        what = action.group, _parse_resource(action.line)
        if what not in done:
            done.add(what)
            actions += _write_all_lines(action, current, wanted.writes, (
                one for one in plan.actions if one.kind == 'write line'
                and (one.group, _parse_resource(one.line)) == what))
    return replace(plan, actions=tuple(actions))


def _write_all_lines(
    first: model.Action, current: schemata.Schemata,
    writes: differences.Writes, actions: Iterable[model.Action]
) -> Iterator[model.Action]:
    """Yield writes of all schemata lines of a resource in one control group.

    Lines that the plan does not change are written with their present values.

    :param first: first planned write of the resource.
    :param current: schemata of the group.
    :param actions: planned writes of the resource.
    """
    planned: _Values = {}
    reasons: dict[str, str] = {}
    for action in actions:
        for line in schemata.parse_schemata(action.line).lines:
            planned.setdefault(line.name, {}).update(line.values)
            reasons[line.name] = action.reason
    domains = {domain for values in planned.values() for domain in values}
    lines = [line for line in current.lines if line.values
             and _parse_resource(line.name) == _parse_resource(first.line)]
    for line in sorted(lines, key=lambda one: not one.name.endswith(
            _GUARANTEE)):
        values = {domain: _convert_to_written_value(writes, line.name, text)
                  for domain, text in line.values if domain in domains}
        values |= planned.get(line.name, {})
        reason = reasons.get(line.name, 'another line of the resource is '
                                        'written, and changes this one')
        yield replace(
            first, reason=reason,
            line=f'{line.name}:'
                 f'{schemata.render_values(tuple(values.items()))}\n')


def _convert_to_written_value(
    writes: Mapping[str, Mapping[int, int]], line: str, text: str
) -> str:
    value = decimals.parse_decimal(text)
    if value is None or line not in writes:
        return text
    return str(differences.get_value_to_write(writes, line, value))


def _parse_resource(line: str) -> str:
    match = _RESOURCE.match(line)
    return match[0] if match else line
