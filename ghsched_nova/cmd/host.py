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

"""``ghsched-host``: what a compute host's control groups should be.

Runs as root on the host, beside nova-compute or without it: it reads Nova's
configuration files for ``[ghsched]`` and asks libvirt for the domains that
run. nova-compute and this command take the same lock, so each sees what the
other has done.

The keys of the JSON are stable: none is renamed or removed.

host
    ``dialect``, ``control_groups`` (those that there can be beside the
    kernel's own), ``foreign``, the names of groups that are nobody's here,
    and ``notes``, sentences on controls of the kernel that ghsched leaves
    alone; ``dialect`` is null without a guest that has a policy.
guests
    ``uuid``, ``name``, ``id`` and ``group`` of each guest with a policy, and
    of those without one that are capped in ``ghsched-default``.
actions
    ``kind`` (``make group``, ``write line``, ``move threads``, ``remove
    group``, ``move devices``, ``release devices``, ``set class``, ``set
    CPUs`` or ``steer interrupt``), ``group`` (null for the last three),
    ``guest`` (UUID, null for a removal, for a release, and for what is done
    for all guests that share a group),
    ``line`` (for these the scheduling class or the CPUs), ``threads``,
    ``devices`` (IOMMU groups) and ``reason``.
problems
    ``guest`` (UUID or null), ``group`` (null for scheduling classes and
    interrupts) and ``reason``.
overlaps
    ``guest``, ``group`` and ``reason`` of guests whose own ways of the L3 a
    control group of other software has, too.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import json
from pathlib import Path
import sys
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from ghsched_nova.base import guest_changes
from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.cmd import domains
from ghsched_nova.cmd import tables
from ghsched_nova.features.blame import blame
from ghsched_nova.features.doctor import retire
from ghsched_nova.features.interrupts import engine as interrupts_engine
from ghsched_nova.features.interrupts import interrupts
from ghsched_nova.features.interrupts import model as interrupts_model
from ghsched_nova.features.real_time import engine as threads
from ghsched_nova.features.real_time import host_scheduling
from ghsched_nova.features.real_time import model as threads_model
from ghsched_nova.host import engine
from ghsched_nova.host import readings
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import measure
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import wanted_check
from ghsched_placement.base import exits

_URI = 'qemu:///system'
_PROC = Path('/proc')
_ACTION_HEADER = ('Action', 'Group', 'What', 'Why')


class _GuestChanges(NamedTuple):
    """Changes of guests' threads and interrupts, made or planned.

    :param problems: reasons why parts of policies cannot be enforced.
    """

    actions: Sequence[threads_model.Action | interrupts_model.Action]
    problems: Sequence[guest_changes.Problem]


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of ``ghsched-host``."""
    top = argparse.ArgumentParser(prog='ghsched-host', description=(
        'Compare the control groups of this compute host with the policies '
        'of the guests that run on it.'))
    console.add_version_option(top)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    _add_command(
        commands,
        'plan',
        _run_plan,
        'show what reconcile would change, and change nothing; exit status '
        '0: nothing to change, 1: changes are needed, or the policy of a '
        'guest cannot be applied, 2: wrong usage or an error',
    )
    _add_command(
        commands,
        'reconcile',
        _run_reconcile,
        'correct the control groups of this host; exit status 0: all are '
        'correct now, 1: the policy of a guest cannot be applied, 2: wrong '
        'usage or an error',
    )
    blame.add_blame_options(_add_command(
        commands, 'blame', blame.run_blame_command,
        'find out which guest disturbs another one by memory, from shares of '
        'the bandwidth, their correlation with its own figure, and trials '
        'with caps; exit status 0: there is an answer, 2: wrong usage or an '
        'error'))
    retire.add_retire_options(_add_command(
        commands, 'retire', retire.run_retire_command,
        'remove from Placement what this host has reported to it, before its '
        'nova-compute starts with the stock driver; exit status 0: removed, '
        '1: a guest or an allocation is still there, 2: wrong usage or an '
        'error', formats=('table',)))
    return top


def _add_command(
    subparsers: Any,
    name: str,
    run: Callable[..., int],
    help_text: str,
    formats: Sequence[str] = ('table', 'json'),
) -> argparse.ArgumentParser:
    """Add a sub-command to ``ghsched-host``; return the command's parser.

    :param run: function that runs the command.
    """
    command: argparse.ArgumentParser = subparsers.add_parser(
        name, help=help_text, description=help_text)
    if len(formats) > 1:
        command.add_argument('--format', choices=formats,
                             default=formats[0])
    command.add_argument(
        '--config-file', action='append', metavar='FILE',
        help='configuration file of nova-compute (repeat for several; '
             'default: the files that nova-compute reads)')
    command.add_argument('--connect', default=_URI, metavar='URI',
                         help=f'URI of libvirt (default: {_URI})')
    command.set_defaults(run=run)
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ghsched-host``, the command for administrators of a compute host.

    :returns: exit status.
    """
    arguments = make_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (domains.HostError, resctrl_host.ResctrlUnavailable,
            fs.GroupError, cfg.Error, ValueError) as error:
        print(f'ghsched-host: {error}', file=sys.stderr)
        return exits.COULD_NOT


def _run_plan(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-host plan``: print changes that ``reconcile`` would make.

    Nothing is changed on the host.

    :returns: exit status.
    """
    groups, changed = _apply_policies_and_print_changes(
        arguments,
        reconcile.preview_reconciliation,
        threads.plan_thread_changes,
        interrupts.InterruptMover.report_misplaced,
        None,
    )
    found = (groups.problems or changed.problems
             or groups.actions or changed.actions)
    return exits.FOUND if found else exits.DONE


def _run_reconcile(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-host reconcile``: apply the bandwidth policies of guests.

    :returns: exit status.
    """
    groups, changed = _apply_policies_and_print_changes(
        arguments,
        reconcile.reconcile,
        _set_scheduling_classes,
        interrupts.InterruptMover.move_interrupts,
        measure.measure_percentages,
    )
    failed = groups.problems or changed.problems
    return exits.FOUND if failed else exits.DONE


def _set_scheduling_classes(
    guests: Sequence[threads_model.Guest], run_path: Path
) -> threads.Report:
    """Set the kernel's scheduling classes of guests' threads, as root."""
    # This command runs as root and needs no privileged helper. The import is
    # slow, and "plan" does not need it.
    from ghsched_nova.features.real_time import privileged

    return threads.reconcile_threads(
        guests, run_path, privileged.apply_thread_change_as_root
    )


def _apply_policies_and_print_changes(
    arguments: argparse.Namespace,
    change_groups: Callable[..., reconcile.Report],
    change_threads: Callable[..., threads.Report],
    change_interrupts: Callable[..., interrupts_engine.Report],
    measure_bandwidth: readings.Measure | None,
) -> tuple[reconcile.Report, _GuestChanges]:
    """Apply guests' policies to this host and print the changes.

    ``plan`` passes functions that only report changes, and no measurement.
    """
    section = configured.read_ghsched_options(arguments.config_file)
    # Root writes no file into a directory of another user.
    host = engine.HostEngine(section, readings.RoundingCache(
        Path(section.resctrl_path),
        configured.read_state_path(arguments.config_file) / readings.FILE,
        measure_bandwidth, saves=False))
    before = host.list_resctrl_groups()
    running = domains.list_running_domains(arguments.connect)
    wanted, refused = host.make_wanted_state(running, before)
    wanted_check.check_desired_state(wanted)
    report = reconcile.Report(
        foreign=tuple(sorted(naming.list_foreign_groups(before)))
    )
    if wanted.guests or wanted.removable:
        report = change_groups(reconcile.HostPaths(Path(
            section.resctrl_path), Path(section.libvirt_run_path)), wanted)
    report = reconcile.Report(
        report.actions, (*refused, *report.problems), report.foreign,
        report.unmeasured, report.overlaps)
    changed = _merge_reports(
        change_threads(host_scheduling.list_guests_with_classes(running),
                       Path(section.libvirt_run_path)),
        change_interrupts(interrupts.InterruptMover(
            section, configured.read_dedicated_cpus(arguments.config_file),
            _PROC, _set_interrupt_cpus_as_root), running))
    render = (_render_changes_as_json if arguments.format == 'json'
              else _render_changes_as_tables)
    print(render(wanted, report, changed, _read_resctrl_host(host, wanted)))
    return report, changed


def _merge_reports(
    thread_report: threads.Report, interrupt_report: interrupts_engine.Report
) -> _GuestChanges:
    """Merge the reports on guests' threads and on guests' interrupts."""
    return _GuestChanges((*thread_report.actions, *interrupt_report.actions),
                         (*thread_report.problems, *interrupt_report.problems))


def _set_interrupt_cpus_as_root(action: interrupts_model.Action) -> str:
    """Set the CPUs that handle an interrupt, as root.

    :returns: error message; empty on success.
    """
    # The import is slow, as that for threads.
    from ghsched_nova.features.interrupts import privileged

    return privileged.set_interrupt_cpus_as_root(action)


def _read_resctrl_host(
    host: engine.HostEngine, wanted: model.Wanted
) -> resctrl_host.ResctrlHost | None:
    """Return the resctrl features of the host.

    :returns: None if no guest has a policy.
    """
    return host.read_resctrl_host() if wanted.guests else None


def _render_changes_as_json(
    wanted: model.Wanted,
    report: reconcile.Report,
    changed: _GuestChanges,
    host: resctrl_host.ResctrlHost | None,
) -> str:
    """Render the changes of a host, planned or made, as JSON.

    :param report: changes of resctrl groups.
    :param changed: changes of guests' threads and interrupts.
    """
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
        'problems': [{'guest': problem.guest or None,
                      'group': problem.group, 'reason': problem.reason}
                     for problem in report.problems]
        + [{'guest': problem.uuid, 'group': None, 'reason': problem.reason}
           for problem in changed.problems],
        'unmeasured': _problems_to_dicts(report.unmeasured),
        'overlaps': _problems_to_dicts(report.overlaps),
    }, indent=2)


def _problems_to_dicts(
    problems: Iterable[model.Problem],
) -> list[dict[str, str]]:
    """Convert problems of guests' resctrl groups to dictionaries for JSON."""
    return [{'guest': problem.guest, 'group': problem.group,
             'reason': problem.reason} for problem in problems]


def _render_changes_as_tables(
        wanted: model.Wanted, report: reconcile.Report, changed: _GuestChanges,
        host: resctrl_host.ResctrlHost | None) -> str:
    """Render the changes of a host, planned or made, as text tables.

    :param report: changes of resctrl groups.
    :param changed: changes of guests' threads and interrupts.
    """
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
    report: reconcile.Report, changed: _GuestChanges
) -> list[tuple[str, ...]]:
    """Return a table row (action, group, what, reason) for each change.

    :param report: changes of resctrl groups.
    :param changed: changes of guests' threads and interrupts.
    """
    rows: list[tuple[str, ...]] = [
        (action.kind, action.group, action.details, action.reason)
        for action in report.actions]
    rows += [(action.kind, '-', action.details, action.reason)
             for action in changed.actions]
    return rows


def _make_problem_rows(
    guest_names: Mapping[str, str], problems: Iterable[model.Problem]
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


if __name__ == '__main__':
    sys.exit(main())
