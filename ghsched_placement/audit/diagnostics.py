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

"""Reports of nova-compute in the diagnostics of a guest (pure).

Nova returns the diagnostics of a virt driver unchanged (``GET
/servers/{id}/diagnostics`` before microversion 2.48, for admins). No other API
shows an admin the limits that a host has really set for a guest: Nova does not
publish the stats of a compute node.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from typing import Any

from ghsched_placement.base import wire
from ghsched_placement.flavor.bandwidth import Bandwidth

KEY = 'ghsched'

#: Seconds for which nova-compute reuses its list of all domains and groups.
LISTED_FOR_S = 5


@dataclass(frozen=True)
class GuestNodeReport:
    """Bandwidth limits and traffic of a guest on a host NUMA node.

    A value is None if it is unknown.

    :param host_node: number of the host NUMA node.
    :param minimum: percent that the guest's control group is guaranteed; if
        several guests share the group, for all of them together.
    :param maximum: cap in percent of the node's bandwidth; 100 is no cap.
    :param hardlimit: whether the cap holds even if bandwidth is idle.
    :param priority: priority of the control group; the highest number is
        served first.
    :param used: bytes per second since the previous request.
    :param group: name of the control group if the guest shares it with others;
        empty if the guest has its own group.
    :param asked_minimum: guarantee in percent, in the guest's policy as
        nova-compute has it.
    :param asked_maximum: cap in percent, in the guest's policy as nova-compute
        has it.
    :param as_wanted: whether the control group has exactly the limits that
        follow from the policy, apart from the host's rounding.
    """

    host_node: int
    minimum: int | None = None
    maximum: float | None = None
    hardlimit: bool | None = None
    priority: int | None = None
    used: int | None = None
    group: str = ''
    asked_minimum: int | None = None
    asked_maximum: int | None = None
    as_wanted: bool | None = None

    @property
    def enforced_limits(self) -> Bandwidth:
        return Bandwidth(self.minimum, self.maximum, self.hardlimit,
                         self.priority)

    def get_compliance(self, minimum: int, maximum: int) -> bool | None:
        """Return whether the guest's control group has a guarantee and cap.

        Values that differ only by the host's rounding count as equal.

        :param minimum: guaranteed percent of bandwidth.
        :param maximum: cap, percent of bandwidth.
        :returns: None if the limits of the group are unknown, or if
            nova-compute has another guarantee or cap as the guest's policy.
        """
        asked = self.asked_minimum, self.asked_maximum
        return self.as_wanted if asked == (minimum, maximum) else None


@dataclass(frozen=True)
class HostNodeReport:
    """Bandwidth and bursts of a host NUMA node; a value is None if unknown.

    A burst is bandwidth above a guest's guarantee. The values on bursts are
    None on a node that reserves no bandwidth for bursts. All percentages are
    of the node's bandwidth.

    :param host_node: number of the host NUMA node.
    :param used: bytes per second of all guests and of the host itself.
    :param capacity: bytes per second that the node can deliver.
    :param bursts_pool: percent that is reserved for bursts.
    :param bursts_promised: percent that is promised to guests as bursts.
    :param bursts_offered: percent that may be promised in total.
    :param bursts_chance: probability, 0 to 1, that the pool is too small in a
        period; None until enough has been measured.
    :param bursts_periods: number of measured periods in the window.
    :param bursts_over: number of periods in which bursts used the whole pool.
    :param bursts_short: number of those periods in which the node could
        deliver no more bandwidth.
    :param bursts_largest_project: percent that is promised as bursts to the
        project that is promised most.
    """

    host_node: int
    used: int | None = None
    capacity: int | None = None
    bursts_pool: float | None = None
    bursts_promised: int | None = None
    bursts_offered: int | None = None
    bursts_chance: float | None = None
    bursts_periods: int | None = None
    bursts_over: int | None = None
    bursts_short: int | None = None
    bursts_largest_project: int | None = None


@dataclass(frozen=True)
class GuestReport:
    """Report of nova-compute about one guest, with the state of its host.

    :param guest: limits and traffic of the guest by host NUMA node.
    :param host: bandwidth of the host's NUMA nodes.
    :param problem: reason why the host cannot report about the guest; empty if
        it can.
    :param not_held: reason why the guest's policy was not enforced at the last
        check of nova-compute; empty if it was.
    :param domains: UUIDs of all libvirt domains with a policy on the host;
        None if the host does not report them.
    :param left: names of control groups on the host whose guest does not run.
    :param uncounted: reason why the guest's amounts were missing in Placement
        at the last report of nova-compute; empty if they were not.
    :param accounting: bandwidth that nova-compute counts in Placement, ``min``
        or ``max``; empty if it does not report it.
    :param missing_devices: a text for each PCI request of the guest for which
        it has fewer devices than requested.
    :param runs: whether the guest runs on the host. If it does not,
        nova-compute reports nothing else.
    :param malformed: keys of the records in the guest's diagnostics that
        cannot be read. nova-compute does not report this.
    """

    guest: tuple[GuestNodeReport, ...] = ()
    host: tuple[HostNodeReport, ...] = ()
    problem: str = ''
    not_held: str = ''
    domains: tuple[str, ...] | None = None
    left: tuple[str, ...] = ()
    uncounted: str = ''
    accounting: str = ''
    missing_devices: tuple[str, ...] = ()
    runs: bool = True
    malformed: tuple[str, ...] = ()

    def get_limits_by_host_node(self) -> dict[int, GuestNodeReport]:
        """Return the guest's limits and traffic by host NUMA node number."""
        return {node.host_node: node for node in self.guest}


def make_guest_diagnostics(report: GuestReport) -> dict[str, Any]:
    """Return nova-compute's report on a guest as Nova's server diagnostics.

    The report has the guest's bandwidth limits and its memory traffic.
    """
    found = dataclasses.asdict(report)
    del found['malformed']
    return {KEY: found}


def parse_guest_diagnostics(
        diagnostics: Mapping[str, Any]) -> GuestReport | None:
    """Parse nova-compute's report on a guest from Nova's server diagnostics.

    The report has the guest's bandwidth limits and its memory traffic.

    :returns: None if the diagnostics contain no report.
    """
    found = diagnostics.get(KEY)
    if found is None:
        return None
    try:
        return _parse_report(wire.check_object(found))
    except wire.MALFORMED:
        return make_malformed_report([KEY])


def make_malformed_report(keys: Iterable[str]) -> GuestReport:
    """Return the report on a guest whose diagnostics cannot be read.

    :param keys: keys of the records that cannot be read.
    """
    return GuestReport(problem='its report is malformed',
                       malformed=tuple(keys))


def _parse_report(found: Mapping[str, Any]) -> GuestReport:
    """Parse nova-compute's report on a guest.

    :raises TypeError, ValueError: if a value has the wrong type, or is out of
        range.
    """
    def parse_texts(name: str) -> tuple[str, ...]:
        return tuple(map(wire.check_text,
                         wire.check_list(found.get(name) or ())))

    def parse_text(name: str) -> str:
        return wire.check_text(found.get(name) or '')

    return GuestReport(
        tuple(GuestNodeReport(**wire.check_fields(GuestNodeReport, one))
              for one in wire.check_list(found.get('guest') or ())),
        tuple(HostNodeReport(**wire.check_fields(HostNodeReport, one))
              for one in wire.check_list(found.get('host') or ())),
        parse_text('problem'), parse_text('not_held'),
        None if found.get('domains') is None else parse_texts('domains'),
        parse_texts('left'), parse_text('uncounted'),
        parse_text('accounting'), parse_texts('missing_devices'),
        wire.check_flag(found.get('runs', True)))
