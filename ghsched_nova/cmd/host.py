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

"""``ghsched-host``: plan or correct the control groups of a compute host.

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
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import replace
import functools
from pathlib import Path
import sys

from oslo_config import cfg

from ghsched_nova.base import bounds
from ghsched_nova.base import guest_changes
from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.cmd import domains
from ghsched_nova.cmd import host_output
from ghsched_nova.features import declared_host
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import engine
from ghsched_nova.host import readings
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import measure
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import resctrl_host
from ghsched_placement.base import exits


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of ``ghsched-host``."""
    top = argparse.ArgumentParser(prog='ghsched-host', description=(
        'Compare the control groups of this compute host with the policies '
        'of the guests that run on it.'))
    console.add_version_option(top)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    console.add_host_command(
        commands, 'plan', functools.partial(_run, applies=False),
        'show what reconcile would change, and change nothing; exit status '
        '0: nothing to change, 1: changes are needed, or the policy of a '
        'guest cannot be applied, 2: wrong usage or an error')
    console.add_host_command(
        commands, 'reconcile', functools.partial(_run, applies=True),
        'correct the control groups of this host; exit status 0: all are '
        'correct now, 1: the policy of a guest cannot be applied, 2: wrong '
        'usage or an error')
    for add_command in declared_host.COMMANDS:
        add_command(commands)
    return top


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


def _run(arguments: argparse.Namespace, applies: bool) -> int:
    """Plan or make the changes that guests' policies need; print them.

    :param applies: whether to make the changes.
    :returns: exit status.
    """
    section = configured.read_ghsched_options(arguments.config_file)
    # Root writes no file into a directory of another user.
    host = engine.HostEngine(section, readings.RoundingCache(
        Path(section.resctrl_path),
        configured.read_state_path(arguments.config_file) / readings.FILE,
        measure.measure_percentages if applies else None, saves=False))
    # Groups first: a group of a guest that starts now must not look left.
    before = host.list_resctrl_groups()
    guests = compute_hooks.HostGuests(
        section, configured.read_dedicated_cpus(arguments.config_file),
        domains.list_running_domains(arguments.connect))
    groups = _change_groups(host, guests, before, applies)
    reports = [(part.apply if applies else part.plan)(guests)
               for part in declared_host.PARTS]
    others = guest_changes.ChangeReport(
        tuple(action for report in reports for action in report.actions),
        tuple(problem for report in reports for problem in report.problems))
    render = (host_output.render_changes_as_json
              if arguments.format == 'json'
              else host_output.render_changes_as_tables)
    # Without a policy of a guest, resctrl may be missing.
    print(render(groups, others,
                 host.read_resctrl_host() if groups.wanted.guests else None))
    found = groups.report.problems or others.problems or not applies and (
        groups.report.actions or others.actions)
    return exits.FOUND if found else exits.DONE


def _change_groups(host: engine.HostEngine, guests: compute_hooks.HostGuests,
                   before: Iterable[str],
                   applies: bool) -> host_output.GroupChanges:
    """Plan or make the changes of control groups that policies need.

    :param before: groups that existed before the guests were listed.
    :raises ResctrlUnavailable: if a guest has a policy and the host has no
        resctrl.
    """
    wanted, refused = host.make_wanted_state(guests.running, before)
    bounds.check(wanted)
    report = reconcile.ReconcileReport(
        foreign=tuple(sorted(naming.list_foreign_groups(before))))
    if wanted.guests or wanted.removable:
        change = (reconcile.reconcile_groups if applies
                  else reconcile.preview_reconciliation)
        report = change(reconcile.HostPaths(host.root, host.run_path), wanted)
    return host_output.GroupChanges(wanted, replace(
        report, problems=(*refused, *report.problems)))


if __name__ == '__main__':
    sys.exit(main())
