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

"""Output of ``ghsched-host plan`` and ``ghsched-host reconcile``."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import json
from typing import NamedTuple
from typing import TypeAlias

from ghsched_nova.base import guest_changes
from ghsched_nova.cmd import tables
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import resctrl_host

_ACTION_HEADER = ('Action', 'Group', 'What', 'Why')

Changes: TypeAlias = guest_changes.ChangeReport[guest_changes.Change]


class GroupChanges(NamedTuple):
    """Wanted control groups of a host, and their changes."""

    wanted: model.Wanted
    report: reconcile.ReconcileReport


def render_changes_as_json(
    groups: GroupChanges,
    changed: Changes,
    host: resctrl_host.ResctrlHost | None,
) -> str:
    """Render the changes of a host, planned or made, as JSON.

    :param changed: changes of the host's other parts.
    """
    wanted, report = groups
    return json.dumps({
        'host': {
            'dialect': host.dialect.name if host else None,
            'control_groups': host.num_closids - 1 if host else None,
            'foreign': list(report.foreign),
            'notes': list(host.notes) if host else []},
        'guests': [{'uuid': guest.domain.uuid, 'name': guest.domain.name,
                    'id': guest.domain.id, 'group': guest.group}
                   for guest in wanted.guests],
        'actions': [{'kind': action.kind, 'group': action.group,
                     'guest': action.guest or None,
                     'line': action.line.strip() or None,
                     'threads': list(action.threads),
                     'devices': list(action.devices),
                     'reason': action.reason}
                    for action in report.actions]
        + [{'kind': action.kind, 'group': None, 'guest': action.uuid,
            'line': action.line, 'threads': list(action.threads),
            'devices': [], 'reason': f'{action.subject}: {action.reason}'}
           for action in changed.actions],
        'problems': _problems_to_dicts(report.problems)
        + [{'guest': problem.uuid, 'group': None, 'reason': problem.reason}
           for problem in changed.problems],
        'unmeasured': _problems_to_dicts(report.unmeasured),
        'overlaps': _problems_to_dicts(report.overlaps),
    }, indent=2)


def _problems_to_dicts(
    problems: Iterable[model.PolicyProblem],
) -> list[dict[str, str | None]]:
    """Convert problems of guests' resctrl groups to dictionaries for JSON."""
    return [{'guest': problem.guest or None, 'group': problem.group,
             'reason': problem.reason} for problem in problems]


def render_changes_as_tables(
        groups: GroupChanges, changed: Changes,
        host: resctrl_host.ResctrlHost | None) -> str:
    """Render the changes of a host, planned or made, as text tables.

    :param changed: changes of the host's other parts.
    """
    wanted, report = groups
    names = {domain.uuid: domain.name for domain in wanted.domains}
    parts = []
    actions = _make_action_rows(report, changed)
    if actions:
        parts.append(tables.render_table(_ACTION_HEADER, actions))
    problems = _make_problem_rows(names, report.problems)
    problems += [(names.get(problem.uuid, problem.uuid), '-', problem.reason)
                 for problem in changed.problems]
    if problems:
        parts.append(tables.render_table(('Guest', 'Group', 'Problem'),
                     _merge_rows_of_same_problem(problems)))
    if report.unmeasured:
        parts.append(tables.render_table(
            ('Guest', 'Group', 'Not measured'),
            _make_problem_rows(names, report.unmeasured)))
    if report.overlaps:
        parts.append(tables.render_table(('Guest', 'Group', 'Ways of the L3'),
                     _make_problem_rows(names, report.overlaps)))
    capped = sum(guest.shared == naming.DEFAULT for guest in wanted.guests)
    # Those that were refused are not wanted.
    asking = {guest.domain.uuid for guest in wanted.guests} | (
        {problem.guest for problem in report.problems} & names.keys())
    counts = {'guests with a policy': len(asking) - capped,
              **({'capped without one': capped} if capped else {}),
              'actions': len(actions), 'problems': len(problems),
              'control groups of others': len(report.foreign)}
    if not actions and not problems:
        parts.append('Nothing to do: the control groups are as the policies '
                     'of the guests say.')
    parts += [f'Note: {note}' for note in (host.notes if host else ())]
    parts.append(', '.join(f'{what}: {n}' for what, n in counts.items()))
    return '\n'.join(parts)


def _make_action_rows(
    report: reconcile.ReconcileReport, changed: Changes
) -> list[tuple[str, ...]]:
    """Return a table row (action, group, what, reason) for each change.

    :param report: changes of resctrl groups.
    :param changed: changes of the host's other parts.
    """
    rows: list[tuple[str, ...]] = [
        (action.kind, action.group, action.details, action.reason)
        for action in report.actions]
    rows += [(action.kind, '-', action.details, action.reason)
             for action in changed.actions]
    return rows


def _make_problem_rows(
    guest_names: Mapping[str, str], problems: Iterable[model.PolicyProblem]
) -> list[tuple[str, str, str]]:
    """Return a table row (guest, control group, reason) for each problem."""
    return [(guest_names.get(problem.guest, problem.guest), problem.group,
             problem.reason) for problem in problems]


def _merge_rows_of_same_problem(
    problems: Sequence[tuple[str, str, str]],
) -> list[tuple[str, str, str]]:
    """Merge table rows that have the same control group and problem.

    The names of the guests are joined.
    """
    guests: dict[tuple[str, str], list[str]] = {}
    for guest, group, reason in problems:
        guests.setdefault((group, reason), []).append(guest)
    return [(', '.join(names), group, reason)
            for (group, reason), names in guests.items()]
