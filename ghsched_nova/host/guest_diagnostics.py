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

"""Adds a guest's memory bandwidth to its diagnostics in Nova's API.

The diagnostics are computed for each request of an admin, and must never fail
because of ghsched.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import threading
import time
from types import MappingProxyType
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_placement.audit import diagnostics
from ghsched_placement.flavor.policy import GuestPolicy

LOG = logging.getLogger(__name__)


class GuestDiagnostics:
    """Source of guests' diagnostics; thread-safe.

    :param host: engine that enforces policies on this host.
    """

    def __init__(self, host: engine.HostEngine) -> None:
        # Not that of the periodic report: each measures the time since its
        # last use.
        self._use = bandwidth_use.BandwidthMeter(host.section)
        self._host = host
        self._listing = threading.Lock()
        self._listed: tuple[float, tuple[str, ...],
                            tuple[str, ...]] | None = None

    def add_to_diagnostics(
            self, diagnostics_of_nova: dict[str, Any], guest: Any,
            missing_devices: Callable[[], tuple[str, ...]] = tuple
    ) -> dict[str, Any]:
        """Add memory bandwidth to a guest's diagnostics.

        Errors are logged and not raised.

        :param diagnostics_of_nova: diagnostics of Nova's driver.
        :param guest: guest of nova.virt.libvirt.guest.
        :param missing_devices: function that returns a text for each PCI
            request of the guest that got too few devices.
        :returns: the extended diagnostics.
        """
        try:
            policy = metadata.read_policy(guest.get_xml_desc())
            if policy is not None:
                diagnostics_of_nova |= diagnostics.make_guest_diagnostics(
                    dataclasses.replace(
                        self._make_report(guest, policy),
                        missing_devices=missing_devices(),
                        not_held=self._host.not_held.get(guest.uuid, ''),
                        uncounted=self._host.uncounted.get(guest.uuid, ''),
                        accounting=self._host.section.bandwidth_accounting))
        except Exception as error:
            LOG.warning('ghsched: cannot read the memory bandwidth of guest '
                        '%(name)s; omitting it from the guest diagnostics: '
                        '%(error)r',
                        {'name': guest.name, 'error': error})
        return diagnostics_of_nova

    def _make_report(self, guest: Any, policy: metadata.DomainPolicy
                     ) -> diagnostics.GuestReport:
        """Return the bandwidth of a guest, or the reason why it is unknown.

        :param guest: guest of nova.virt.libvirt.guest.
        """
        monitored = view.MonitoredGuest(guest.name, guest.uuid, guest.id,
                                        policy)
        try:
            snapshot = self._use.take_bandwidth_snapshot((monitored,))
        except topology.MonitorUnavailable as error:
            return diagnostics.GuestReport(problem=str(error))
        usage, = (one for one in snapshot.guests if one.guest == monitored)
        domains, left = self._list_domains_and_leftovers()
        report = make_bandwidth_report(
            snapshot, usage, self._compare_guest_schemata(usage, policy))
        return dataclasses.replace(report, domains=domains, left=left)

    def _list_domains_and_leftovers(
            self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return domains with a policy, and control groups without a domain.

        The result is cached for a moment, because an audit requests the
        diagnostics of all guests of a host, one after the other.

        :returns: UUIDs of the domains, and names of the control groups without
            a running domain.
        """
        with self._listing:
            now = time.monotonic()
            if self._listed is None or (
                    now - self._listed[0] > diagnostics.LISTED_FOR_S):
                # Groups first: a group is made after its guest was started.
                groups = self._host.list_resctrl_groups()
                running = tuple(self._host.running())
                leftover = list_leftover_groups(
                    groups, [one.domain for one in running])
                self._listed = now, tuple(sorted(
                    one.domain.uuid for one in running
                    if desired.may_have_policy(one.xml))), leftover
            return self._listed[1:]

    def _compare_guest_schemata(
            self, usage: view.GuestUsage,
            domain: metadata.DomainPolicy) -> dict[int, bool]:
        """Check whether resctrl limits a guest's bandwidth as its policy says.

        :returns: by host NUMA node, whether the schemata (the kernel's limits)
            are those of the policy; empty if the desired schemata are unknown.
        """
        policy = domain.policy
        try:
            host = self._host.read_resctrl_host()
            if domain.shared and policy.needs_control_group:
                guests = self._host.count_group_guests(
                    usage.guest.uuid, policy, domain.host_nodes)
                policy = resolve.multiply_policy_by_guests(
                    host, policy, guests)
            if usage.classes:
                found = [compare_schemata_with_policy(
                    host, policy.select_class(one.vcpu_class),
                    domain.host_nodes, one.control_groups)
                    for one in usage.classes]
                return {node: all(one.get(node, False) for one in found)
                        for node in domain.host_nodes} if any(found) else {}
            return compare_schemata_with_policy(
                host, policy, domain.host_nodes, usage.control_groups)
        except desired.POLICY_ERRORS:
            return {}


def list_leftover_groups(groups: Iterable[str],
                         running: Iterable[model.Domain]) -> tuple[str, ...]:
    """Return the control and monitoring groups whose guest does not run.

    Such resctrl groups are left over. Shared groups are never returned,
    because they belong to no single guest.

    :param groups: names of all control and monitoring groups.
    :param running: all running domains, with or without a policy.
    """
    uuids, numbers = set(), set()
    for domain in running:
        uuids.add(domain.uuid)
        numbers.add(domain.id)
    found = []
    for name in groups:
        group = naming.parse_group_name(name)
        if (group.uuid is not None and group.uuid not in uuids) or (
                group.machine is not None
                and group.machine[0] not in numbers):
            found.append(name)
    return tuple(sorted(found))


def compare_schemata_with_policy(
        host: resctrl_host.ResctrlHost, policy: GuestPolicy,
        host_nodes: tuple[int, ...],
        groups: Iterable[view.MonitoredGroup]) -> dict[int, bool]:
    """Check whether resctrl limits a guest's bandwidth as its policy says.

    The schemata, which hold the kernel's limits of a control group, are
    compared with the policy.

    :param policy: policy of the group; for a shared group, of all its guests.
    :param host_nodes: host NUMA node of each guest NUMA node.
    :param groups: control groups with these limits.
    :returns: by host NUMA node, whether the schemata are those of the policy;
        empty if the guest has no group.
    :raises PolicyRefused: if the host cannot enforce the policy.
    """
    wanted = resolve.make_desired_lines(
        host, resolve.resolve_settings(host, policy, host_nodes))
    lines = [group.lines for group in groups if group.lines is not None]
    wrong = {
        difference.domain
        for one in lines
        for difference in differences.find_schemata_differences(
            one, wanted, tolerance=host.tolerance
        )
    }
    return {node: wrong.isdisjoint(host.domains_by_node.get(node, ()))
            for node in host_nodes} if lines else {}


_NOTHING = effective_limits.EffectiveLimits()
_NOT_KNOWN: Mapping[int, bool] = MappingProxyType({})


def make_bandwidth_report(
        snapshot: view.Snapshot, usage: view.GuestUsage,
        schemata_match: Mapping[int, bool] = _NOT_KNOWN
) -> diagnostics.GuestReport:
    """Return a guest's memory bandwidth, as shown in its diagnostics.

    :param snapshot: measured bandwidth of the host.
    :param usage: measured bandwidth of the guest.
    :param schemata_match: by host NUMA node, whether the guest's schemata are
        those of its policy.
    """
    shared = next((group.path for group in usage.control_groups
                   if group.name.is_shared), '')
    return diagnostics.GuestReport(
        tuple(
            node for row in usage.nodes
            for node in _describe_guest_node(row, shared, schemata_match)),
        tuple(
            diagnostics.HostNodeReport(row.nodes[0], _get_rate(row),
                                       row.capacity)
            for row in snapshot.nodes if len(row.nodes) == 1))


def _describe_guest_node(row: view.GuestNodeBandwidth, shared: str,
                         schemata_match: Mapping[int, bool]
                         ) -> Iterator[diagnostics.GuestNodeReport]:
    """Yield a guest NUMA node's bandwidth for the guest's diagnostics.

    There is one entry for each host node with memory of the guest node. A
    bandwidth measured for several host nodes together is left out.

    :param row: measured bandwidth of the guest NUMA node.
    :param shared: name of the guest's shared control group; empty for none.
    :param schemata_match: by host NUMA node, whether the guest's schemata are
        those of its policy.
    """
    held = row.effective or _NOTHING
    for node in row.nodes:
        yield diagnostics.GuestNodeReport(
            node, held.minimum, held.maximum, held.hardlimit, held.priority,
            _get_rate(row) if len(row.nodes) == 1 else None, shared,
            row.asked.minimum if row.asked else None,
            row.asked.maximum if row.asked else None,
            schemata_match.get(node))


def _get_rate(row: view.GuestNodeBandwidth | view.NodeUsage) -> int | None:
    return None if row.used.rate is None else round(row.used.rate)
