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
from collections.abc import Sequence
from pathlib import Path
import sys
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from ghsched_nova.base import bounds
from ghsched_nova.base import guest_changes
from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.cmd import domains
from ghsched_nova.cmd import host_output
from ghsched_nova.features import declared_host
from ghsched_nova.host import engine
from ghsched_nova.host import host_parts
from ghsched_nova.host import readings
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import measure
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_placement.base import exits


class ControlGroups(NamedTuple):
    """Control groups of a host: how they are compared, and measured.

    :param change: function that plans or makes the changes of groups.
    :param measure_bandwidth: function that measures what the kernel makes of
        a percentage; None to measure nothing.
    """

    change: Callable[[reconcile.HostPaths, model.Wanted], reconcile.Report]
    measure_bandwidth: readings.Measure | None = None

    def compare(self, host: engine.HostEngine, guests: host_parts.HostGuests,
                before: Iterable[str]) -> host_output.GroupChanges:
        """Plan or make the changes of control groups that policies need.

        :param before: groups that existed before the guests were listed.
        :raises ResctrlUnavailable: if a guest has a policy and the host has no
            resctrl.
        """
        wanted, refused = host.make_wanted_state(guests.running, before)
        bounds.check(wanted)
        report = reconcile.Report(
            foreign=tuple(sorted(naming.list_foreign_groups(before))))
        if wanted.guests or wanted.removable:
            report = self.change(reconcile.HostPaths(
                Path(guests.section.resctrl_path),
                Path(guests.section.libvirt_run_path)), wanted)
        return host_output.GroupChanges(wanted, reconcile.Report(
            report.actions, (*refused, *report.problems), report.foreign,
            report.unmeasured, report.overlaps))


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of ``ghsched-host``."""
    top = argparse.ArgumentParser(prog='ghsched-host', description=(
        'Compare the control groups of this compute host with the policies '
        'of the guests that run on it.'))
    console.add_version_option(top)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    console.add_host_command(
        commands, 'plan', _run_plan,
        'show what reconcile would change, and change nothing; exit status '
        '0: nothing to change, 1: changes are needed, or the policy of a '
        'guest cannot be applied, 2: wrong usage or an error')
    console.add_host_command(
        commands, 'reconcile', _run_reconcile,
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


def _run_plan(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-host plan``: print changes that ``reconcile`` would make.

    Nothing is changed on the host.

    :returns: exit status.
    """
    groups, others = _print_changes(
        arguments, ControlGroups(reconcile.preview_reconciliation),
        [part.plan for part in declared_host.PARTS])
    found = (groups.problems or others.problems
             or groups.actions or others.actions)
    return exits.FOUND if found else exits.DONE


def _run_reconcile(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-host reconcile``: apply the bandwidth policies of guests.

    :returns: exit status.
    """
    groups, others = _print_changes(
        arguments,
        ControlGroups(reconcile.reconcile, measure.measure_percentages),
        [part.apply for part in declared_host.PARTS])
    failed = groups.problems or others.problems
    return exits.FOUND if failed else exits.DONE


def _print_changes(
    arguments: argparse.Namespace,
    groups: ControlGroups,
    calls: Sequence[Callable[[host_parts.HostGuests],
                             guest_changes.Report[Any]]],
) -> tuple[reconcile.Report, guest_changes.Report[guest_changes.Change]]:
    """Plan or make the changes of all parts of this host, and print them.

    :param calls: functions of the parts beside the control groups.
    :returns: changes of the control groups, and those of the other parts.
    """
    section = configured.read_ghsched_options(arguments.config_file)
    # Root writes no file into a directory of another user.
    host = engine.HostEngine(section, readings.RoundingCache(
        Path(section.resctrl_path),
        configured.read_state_path(arguments.config_file) / readings.FILE,
        groups.measure_bandwidth, saves=False))
    # Groups first: a group of a guest that starts now must not look left.
    before = host.list_resctrl_groups()
    guests = host_parts.HostGuests(
        section, configured.read_dedicated_cpus(arguments.config_file),
        domains.list_running_domains(arguments.connect))
    found = groups.compare(host, guests, before)
    others = host_parts.collect_changes(calls, guests)
    render = (host_output.render_changes_as_json
              if arguments.format == 'json'
              else host_output.render_changes_as_tables)
    print(render(found, others, _read_resctrl_host(host, found.wanted)))
    return found.report, others


def _read_resctrl_host(
    host: engine.HostEngine, wanted: model.Wanted
) -> resctrl_host.ResctrlHost | None:
    """Return the resctrl features of the host.

    :returns: None if no guest has a policy.
    """
    return host.read_resctrl_host() if wanted.guests else None


if __name__ == '__main__':
    sys.exit(main())
