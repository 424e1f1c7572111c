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

"""What a guest has of memory bandwidth, among its diagnostics.

Nova's API gives an admin what the driver says of a guest. It is asked for
when somebody looks, and must never fail because of us.
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
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_placement import burst_record
from ghsched_placement import diagnostics
from ghsched_placement import load
from ghsched_placement.policy import GuestPolicy

LOG = logging.getLogger(__name__)

#: Gives what is known of bursts, by host NUMA node.
Bursts = Callable[[], Mapping[int, burst_record.Record]]

#: How long a list of all domains and groups serves, seconds.
_LISTED_FOR = 5


class GuestDiagnostics:
    """Looks at the control groups of guests; safe for threads.

    :param use: not the one that reports to the scheduler, whose rates are
        those between its reports.
    :param host: tells what a policy becomes.
    :param measured: gives the last measurement of load.
    :param bursts: gives what is known of bursts, by host NUMA node.
    """

    def __init__(self, use: bandwidth_use.BandwidthUse,
                 host: engine.HostEngine,
                 measured: Callable[[], load.Load | None] = lambda: None,
                 bursts: Bursts = dict) -> None:
        self._use = use
        self._host = host
        self._measured = measured
        self._bursts = bursts
        self._listing = threading.Lock()
        self._listed: tuple[float, tuple[str, ...],
                            tuple[str, ...]] | None = None

    def add_to_diagnostics(
            self, found: dict[str, Any], guest: Any,
            missing_devices: Callable[[], tuple[str, ...]] = tuple
    ) -> dict[str, Any]:
        """Return what the driver reports about a guest, with our part.

        :param guest: of nova.virt.libvirt.guest.
        :param missing_devices: see :class:`diagnostics.Report`.
        """
        measured = self._measured()
        if measured is not None:
            found |= load.write_of(measured, guest.uuid)
        try:
            policy = metadata.read_policy(guest.get_xml_desc())
            if policy is not None:
                found |= self._written(guest.uuid, dataclasses.replace(
                    self._report_or_problem(view.Guest(
                        guest.name, guest.uuid, guest.id, policy), policy),
                    missing_devices=missing_devices()))
        except Exception as error:
            LOG.warning('ghsched: what guest %(name)s has of memory '
                        'bandwidth cannot be read: %(error)r',
                        {'name': guest.name, 'error': error})
        return found

    def _written(self, uuid: str, told: diagnostics.Report
                 ) -> dict[str, Any]:
        """With what was found when nova-compute last reported."""
        return diagnostics.write(dataclasses.replace(
            told, not_held=self._host.not_held.get(uuid, ''),
            uncounted=self._host.uncounted.get(uuid, ''),
            accounting=shared.config().ghsched.bandwidth_accounting))

    def _report_or_problem(self, guest: view.Guest,
                           told: metadata.DomainPolicy
                           ) -> diagnostics.Report:
        try:
            return self._report(guest, told)
        except topology.MonitorUnavailable as error:
            return diagnostics.Report(problem=str(error))

    def _report(self, guest: view.Guest,
                told: metadata.DomainPolicy) -> diagnostics.Report:
        snapshot = self._use.snapshot((guest,))
        usage, = (one for one in snapshot.guests if one.guest == guest)
        domains, left = self._of_host()
        return dataclasses.replace(
            report(snapshot, usage, self._as_wanted(usage, told),
                   self._bursts()),
            domains=domains, left=left)

    def _of_host(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Domains with a policy, and groups without a domain.

        Who audits a host asks about all of its guests, one after the other,
        so the answer is kept for a moment.
        """
        with self._listing:
            now = time.monotonic()
            if self._listed is None or now - self._listed[0] > _LISTED_FOR:
                # In this order: a group is made after its guest was started.
                groups = self._host.groups()
                running = tuple(self._host.running())
                self._listed = now, tuple(sorted(
                    one.domain.uuid for one in running
                    if desired.has_policy(one.xml))), left_behind(
                        groups, [one.domain for one in running])
            return self._listed[1:]

    def _as_wanted(self, usage: view.GuestUsage,
                   told: metadata.DomainPolicy) -> dict[int, bool]:
        """See :func:`as_wanted`; empty where the host cannot tell."""
        policy = told.policy
        try:
            host = self._host.host()
            if told.shared and policy.controlled:
                guests = self._host.count_group_guests(
                    usage.guest.uuid, policy, told.host_nodes)
                policy = resolve.together(host, policy, guests)
            return as_wanted(host, policy, told.host_nodes, usage)
        except desired.NOT_DESIRED:
            return {}


def left_behind(groups: Iterable[str],
                running: Iterable[model.Domain]) -> tuple[str, ...]:
    """Groups whose guest does not run (pure).

    Those that guests share are looked after with each report, and count for
    nobody alone.

    :param running: all domains that run, with a policy or without.
    """
    uuids, numbers = set(), set()
    for domain in running:
        uuids.add(domain.uuid)
        numbers.add(domain.id)
    found = []
    for name in groups:
        owner, machine = naming.own_uuid(name), naming.machine(name)
        if (owner is not None and owner not in uuids) or (
                machine is not None and machine[0] not in numbers):
            found.append(name)
    return tuple(sorted(found))


def as_wanted(host: resctrl_host.ResctrlHost, policy: GuestPolicy,
              host_nodes: tuple[int, ...],
              usage: view.GuestUsage) -> dict[int, bool]:
    """Whether the groups of a guest hold what a policy becomes (pure).

    :param policy: of all guests that have the group together.
    :returns: by host NUMA node; empty when there is no group.
    :raises PolicyNotHeld: when the host cannot hold the policy.
    """
    wanted = resolve.desired_lines(
        host, resolve.resolve(host, policy, host_nodes))
    lines = [group.lines for group in usage.held if group.lines is not None]
    wrong = {difference.domain for one in lines for difference
             in resolve.differences(one, wanted, tolerance=host.tolerance)}
    return {node: wrong.isdisjoint(host.domains_by_node[node])
            for node in host_nodes} if lines else {}


_NOTHING = view.Effective()
_NOT_KNOWN: Mapping[int, bool] = MappingProxyType({})
_NO_BURSTS: Mapping[int, burst_record.Record] = MappingProxyType({})


def report(snapshot: view.Snapshot, usage: view.GuestUsage,
           right: Mapping[int, bool] = _NOT_KNOWN,
           bursts: Mapping[int, burst_record.Record] = _NO_BURSTS
           ) -> diagnostics.Report:
    """What is reported about one guest of a host (pure).

    :param usage: that of the guest.
    :param right: as of :func:`as_wanted`.
    :param bursts: what is known of them, by host NUMA node.
    """
    shared = next((group.name for group in usage.held
                   if naming.is_shared(group.name)), '')
    return diagnostics.Report(
        tuple(node for row in usage.nodes
              for node in _guest_nodes(row, shared, right)),
        tuple(diagnostics.HostNode(
            row.nodes[0], _rate(row), row.capacity,
            **_bursts(bursts.get(row.nodes[0])))
            for row in snapshot.nodes if len(row.nodes) == 1))


def _bursts(record: burst_record.Record | None) -> dict[str, Any]:
    if record is None:
        return {}
    total = record.total
    return {
        'bursts_pool': record.pool, 'bursts_promised': record.promised,
        'bursts_offered': record.offered, 'bursts_chance': record.chance,
        'bursts_periods': total.periods, 'bursts_over': total.over,
        'bursts_short': total.short,
        'bursts_largest_project': record.uses.largest}


def _guest_nodes(row: view.GuestNode, shared: str, right: Mapping[int, bool]
                 ) -> Iterator[diagnostics.GuestNode]:
    """One for each host node; what several share is left out."""
    held = row.effective or _NOTHING
    for node in row.nodes:
        yield diagnostics.GuestNode(
            node, held.minimum, held.maximum, held.hardlimit, held.priority,
            _rate(row) if len(row.nodes) == 1 else None, shared,
            row.asked.minimum if row.asked else None,
            row.asked.maximum if row.asked else None, right.get(node))


def _rate(row: view.GuestNode | view.NodeUsage) -> int | None:
    return None if row.used.rate is None else round(row.used.rate)
