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

"""Find domains and control groups that contradict Nova's flavors (pure).

A host reports its domains and control groups in the diagnostics of its
guests, see :mod:`ghsched_placement.audit.diagnostics`.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import Finding
from ghsched_placement.audit.findings import Server
from ghsched_placement.fit import capacity
from ghsched_placement.flavor.policy import NodePolicy

_NEXT_REPORT = ('nova-compute puts it right with its next report; look at '
                'its log if it does not')


#: Kinds of findings that come from the host's list of its domains and groups.
REPORTED_KINDS = frozenset({'domain-without-server', 'group-without-guest'})


def find_wrong_guest_limits(host: capacity.HostInventory, server: Server,
                            shared: bool) -> Iterator[Finding]:
    """Yield a finding for each NUMA node where a guest's limits are wrong.

    The limits in the guest's libvirt domain and in its resctrl control group
    are compared with its flavor. Differences due to the host's rounding are
    not reported.

    :param shared: whether several guests share the control group; a missing
        bandwidth cap is then not reported.
    """
    if server.effective is None or server.policy is None:
        return
    for number, node_policy in enumerate(server.policy.nodes):
        if number >= len(server.nodes):
            return
        node = server.nodes[number]
        reported = server.effective.get(node)
        other = _describe_domain_difference(node_policy, reported)
        text = other or _describe_control_group_difference(node_policy,
                                                           reported, shared)
        if text:
            yield Finding(
                host.name, 'domain-differs' if other else 'host-differs',
                server.uuid, f'{server.name}: on NUMA node {node} {text}',
                'set its policy with "openstack ghsched server set", or '
                'hard-reboot it' if other else
                'run "ghsched-host plan" on the host; ' + _NEXT_REPORT)


def _describe_domain_difference(node_policy: NodePolicy,
                                reported: diagnostics.GuestNodeReport | None
                                ) -> str:
    """Describe how a guest's libvirt domain differs from its flavor, as text.

    The text is empty if there is no difference, or if the host has not
    reported the domain's values.

    :param node_policy: bandwidth policy of the flavor for a guest NUMA node.
    :param reported: limits of the guest as the host reports them.
    """
    if reported is None or None in (reported.asked_minimum,
                                    reported.asked_maximum):
        return ''
    found = reported.asked_minimum, reported.asked_maximum
    if found == (node_policy.minimum, node_policy.maximum):
        return ''
    return (f'its domain asks for {found[0]} % to {found[1]} %, its flavor '
            f'for {node_policy.minimum} % to {node_policy.maximum} %')


def _describe_control_group_difference(
        node_policy: NodePolicy, reported: diagnostics.GuestNodeReport | None,
        shared: bool) -> str:
    """Describe how a guest's control group differs from its flavor, as text.

    The text is empty if there is no difference, or if the host has not
    reported the group's limits.

    :param node_policy: bandwidth policy of the flavor for a guest NUMA node.
    :param reported: limits of the guest as the host reports them.
    :param shared: whether several guests share the control group; their
        bandwidth caps may then add up to no cap at all.
    """
    if reported is None:
        return 'no control group is set for it'
    is_held = reported.get_compliance(node_policy.minimum, node_policy.maximum)
    if is_held:
        return ''       # a cap near to all of a node can be none, for example
    minimum, maximum = reported.minimum or 0, reported.maximum
    if minimum < node_policy.minimum:
        return f'{minimum} % are guaranteed instead of {node_policy.minimum} %'
    if node_policy.is_capped and not shared and (maximum or 0) >= 100:
        return f'there is no cap instead of {node_policy.maximum} %'
    if is_held is False:
        cap = '' if maximum is None else f' and caps at {maximum:g} %'
        return (f'its control group guarantees {minimum} %{cap}, which does '
                'not follow from the policies of its guests')
    return ''


def find_excess_guarantees(host: capacity.HostInventory,
                           servers: Iterable[Server],
                           allocated: Mapping[int, int]) -> Iterator[Finding]:
    """Yield a finding for each host node that guarantees more than allocated.

    The bandwidth that resctrl control groups guarantee to guests is compared
    with the bandwidth, bursts included, that the guests have in Placement.

    :param allocated: percent of bandwidth allocated from each host NUMA node.
    """
    answering = [one for one in servers if one.effective is not None]
    for node in host.nodes:
        if node.number is None:
            continue
        # The kernel guarantees a part of each burst, in all no more than the
        # node's pool for bursts.
        bursts = (min(node.bursts.total, node.bursts.used) if node.bursts
                  else 0)
        most = allocated.get(node.number, 0) + bursts
        held = sum(yield_group_guarantees(
            reported for one in answering for number, reported
            in (one.effective or {}).items() if number == node.number))
        if held > most:
            yield Finding(
                host.name, 'guarantees-exceed', node.name,
                f'its guests are guaranteed {held} %, and {most} % of it '
                'are allocated',
                'put right the allocations named beside this one')


def yield_group_guarantees(
        guests: Iterable[diagnostics.GuestNodeReport]) -> Iterator[int]:
    """Yield the percent of bandwidth that each control group guarantees.

    Several guests that share a control group yield one value.

    :param guests: reported limits of the guests on one host NUMA node.
    """
    shared: dict[str, int] = {}
    for reported in guests:
        if reported.as_wanted and reported.asked_minimum is not None:
            yield reported.asked_minimum
        elif reported.group:
            shared[reported.group] = reported.minimum or 0
        else:
            yield reported.minimum or 0
    yield from shared.values()


def find_leftover_domains_and_groups(host: capacity.HostInventory,
                                     servers: Iterable[Server],
                                     reports: Iterable[diagnostics.GuestReport]
                                     ) -> Iterator[Finding]:
    """Yield findings for libvirt domains and control groups without a server.

    :param servers: servers that are on this host according to Nova.
    :param reports: reports of nova-compute about the guests of this host.
    """
    reports = list(reports)
    domains = {uuid for report in reports for uuid in report.domains or ()}
    groups = {name for report in reports for name in report.left}
    for uuid in sorted(domains - {server.uuid for server in servers}):
        yield Finding(
            host.name, 'domain-without-server', uuid,
            'a domain with a policy runs, and Nova has no such server on '
            'this host', 'if the server is in ERROR on no host, delete it; '
            'nova-compute treats the domain of a deleted server as '
            '[DEFAULT]running_deleted_instance_action says')
    for name in sorted(groups):
        yield Finding(
            host.name, 'group-without-guest', name,
            'the control group is there, and its guest does not run',
            _NEXT_REPORT)


def find_malformed_reports(host: capacity.HostInventory,
                           reports: Iterable[diagnostics.GuestReport]
                           ) -> Iterator[Finding]:
    """Yield a finding if reports of a host contain malformed records.

    :param reports: reports of nova-compute about the guests of this host.
    """
    malformed = [report.malformed for report in reports if report.malformed]
    if malformed:
        names = ', '.join(sorted(set().union(*malformed)))
        yield Finding(
            host.name, 'report-malformed', host.name,
            f'nova-compute reports values of a wrong type or out of range '
            f'({names}) with {len(malformed)} servers; they are not used',
            'update the ghsched of the host or of this command; if both are '
            'of one release, somebody else writes these reports')


def find_unreported_servers(host: capacity.HostInventory,
                            servers: Iterable[Server],
                            state: str | None) -> Iterator[Finding]:
    """Yield a finding for each server missing from nova-compute's reports.

    If nova-compute is down, a single finding for the host is yielded instead.

    :param state: state of nova-compute; None if Nova does not know the host.
    """
    if state != 'up':
        yield Finding(
            host.name, NOT_CHECKED, host.name,
            'nova-compute is down' if state else
            'Nova has no compute node of this name',
            'start nova-compute' if state else
            'delete its resource providers if the host is gone for good')
        return
    for server in servers:
        if server.silent:
            yield Finding(
                host.name, NOT_CHECKED, server.uuid,
                f'{server.name}: {server.silent}',
                'look at the log of nova-compute')


#: Kind of the findings of servers and hosts that could not be compared.
NOT_CHECKED = 'not-checked'
