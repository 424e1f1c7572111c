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

"""``openstack ghsched audit``."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import time
from typing import Any

from ghsched_placement.audit import audit_host
from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import Finding
from ghsched_placement.audit import repair
from ghsched_placement.base import exits
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import observe

COLUMNS = ('Host', 'Kind', 'Subject', 'Finding', 'Remedy', 'Fixable')


class Audit(base.Lister):
    """Report differences between the records of Placement, Nova and the hosts.

    For each host, the audit compares the allocations in Placement with the
    servers and the migrations in progress in Nova, and with the libvirt
    domains and control groups that nova-compute reports. Exit status: 0 no
    difference was found, 1 there are differences, 2 no difference was found
    but something could not be checked.
    """

    SHORT = COLUMNS[:-1]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('hosts', nargs='*', metavar='<host>',
                            help='Check these compute hosts only')
        parser.add_argument(
            '--no-effective', action='store_true',
            help='Do not ask the hosts; compare Placement and Nova only')
        parser.add_argument(
            '--fix', action='store_true',
            help='Correct the allocations that can be corrected; shows the '
                 'changes and asks for consent first')
        parser.add_argument('--yes', action='store_true',
                            help='Do not ask for consent (with --fix)')
        host_commands.add_accounting_option(parser)
        # An allocation is not lowered on a guess.
        parser.set_defaults(accounting=None)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.get_client(self.app)
        seen = audit_hosts(client, parsed_args)
        plans = [one for each in seen for one in list_planned_repairs(each)]
        if parsed_args.fix and plans:
            self._confirm_repairs(plans, parsed_args.yes)
            self._apply_repairs(client, plans, parsed_args)
            seen = collect_host_records(client, parsed_args.hosts, parsed_args)
        elif parsed_args.fix and any(one.findings for one in seen):
            self.log.warning('nothing of this can be corrected from here: '
                             'follow the remedy of each finding')
        found = [finding for one in seen for finding in one.findings]
        unchecked = [finding for one in seen for finding in one.unchecked]
        self.status = get_audit_exit_status(found, unchecked)
        self.nothing = describe_audit_without_findings(seen)
        return COLUMNS, list(list_finding_rows((*found, *unchecked), [
            one for each in seen for one in list_planned_repairs(each)]))

    def _confirm_repairs(self, plans: Iterable[repair.Repair],
                         is_confirmed: bool) -> None:
        """Print the planned repairs and ask the user whether to make them.

        :param is_confirmed: whether the user has already agreed; the user is
            not asked then.
        :raises CommandError: if the user does not agree.
        """
        for one in plans:
            self.log.warning('host %s: planned repair of consumer %s: %s',
                             one.host, one.consumer, one.text)
        if not is_confirmed:
            base.require_user_consent()

    def _apply_repairs(self, client: clients.Client,
                       plans: Sequence[repair.Repair],
                       parsed_args: argparse.Namespace) -> None:
        """Write the planned repairs of allocations to Placement.

        Each host is audited again first. Repairs that are no longer needed are
        skipped.

        :param plans: the planned repairs.
        """
        again = collect_host_records(client, sorted({
            one.host for one in plans}), parsed_args)
        current = [one for each in again
                   for one in list_planned_repairs(each)]
        for one in plans:
            if one not in current:
                self.log.warning('host %s: skipping the repair of consumer '
                                 '%s: no longer needed', one.host,
                                 one.consumer)
                continue
            problem = client.write_allocation_repair(one)
            if problem:
                self.log.error('host %s: cannot repair the allocations of '
                               'consumer %s: %s', one.host, one.consumer,
                               problem)


def describe_audit_without_findings(
        hosts: Sequence[observe.HostRecords]) -> str:
    """Return a message for the user that an audit found no differences.

    An audit compares the records of Placement, Nova and the hosts.

    :param hosts: the audited hosts.
    """
    if not hosts:
        return base.NO_HOSTS
    servers = sum(len(one.servers) for one in hosts)
    return (f'All records agree: {base.format_count(len(hosts), "host")}, '
            f'{base.format_count(servers, "server")}.')


def collect_host_records(
        client: clients.Client, host_names: Sequence[str],
        parsed_args: argparse.Namespace) -> list[observe.HostRecords]:
    """Read the records of Placement, Nova and hosts that an audit compares.

    :param host_names: names of the hosts to audit; empty for all hosts.
    """
    return observe.collect_host_records(client, host_names,
                                        not parsed_args.no_effective,
                                        parsed_args.accounting)


def audit_hosts(
        client: clients.Client,
        parsed_args: argparse.Namespace) -> list[observe.HostRecords]:
    """Audit hosts and return their records with the confirmed findings.

    Only hosts with findings are audited a second time. Findings that the
    second audit does not confirm are dropped, because they were due to changes
    in progress. The result also contains the hosts without findings.
    """
    first = collect_host_records(client, parsed_args.hosts, parsed_args)
    doubted = {one.host.name: one for one in first if one.findings}
    if not doubted:
        return first
    if any(finding.kind in audit_host.REPORTED_KINDS
           for one in first for finding in one.findings):
        # A server that is built or deleted now is still in, or not yet in,
        # the host's list.
        time.sleep(diagnostics.LISTED_FOR_S + 1)
    again = {one.host.name: observe.select_confirmed_findings(
        one, doubted[one.host.name]) for one
        in collect_host_records(client, sorted(doubted), parsed_args)}
    return [again.get(one.host.name, one) for one in first]


def list_planned_repairs(observed: observe.HostRecords) -> list[repair.Repair]:
    """Return the repairs of allocations that ``--fix`` makes for a host.

    :param observed: host with the findings of an audit.
    """
    return list(repair.plan_repairs(
        observed.host, observed.servers, observed.holdings, observed.findings,
        observed.state == 'up', observed.accounting,
        observed.is_accounting_known))


def get_audit_exit_status(found: Sequence[Finding],
                          unchecked: Sequence[Finding]) -> int:
    """Return the exit status of the audit command.

    The status is 0 if nothing was found, 1 if records differ, and 2 if records
    do not differ but some could not be compared.

    :param found: differences between the records.
    :param unchecked: records that could not be compared.
    """
    if found:
        return exits.FOUND
    return exits.COULD_NOT if unchecked else exits.DONE


def list_finding_rows(found: Iterable[Finding],
                      repairs: Iterable[repair.Repair]
                      ) -> Iterator[tuple[Any, ...]]:
    """Yield a table row for each finding of an audit, with its planned repair.

    :param repairs: planned repairs of findings; not every finding has one.
    """
    texts = {(one.host, one.consumer): one.text for one in repairs}
    for one in found:
        text = texts.get((one.host, one.subject))
        fixable = text is not None and repair.is_repairable(one)
        yield (one.host, one.kind, one.subject, one.text,
               f'--fix: {text}' if fixable else one.remedy, fixable)
