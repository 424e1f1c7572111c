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

Nova passes on the diagnostics of a virt driver unchanged (``GET
/servers/{id}/diagnostics`` before microversion 2.48, for admins). It is the
only way in which the API shows an admin the limits that a host has really set
for a guest: Nova does not publish the stats of a compute node.
"""

from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from typing import Any
from typing import TypeVar

from ghsched_placement.bandwidth import Bandwidth

KEY = 'ghsched'

T = TypeVar('T', 'GuestNode', 'HostNode')


@dataclass(frozen=True)
class GuestNode:
    """Limits and traffic of a guest on a host NUMA node; None: unknown.

    :param minimum: percent that its control group guarantees, to all of its
        guests together.
    :param maximum: cap in percent of the node's bandwidth; 100 is no cap.
    :param hardlimit: whether the cap holds while bandwidth is idle.
    :param priority: the higher wins.
    :param used: bytes per second since the previous request.
    :param group: control group that the guest shares with others; empty
        when it has its own.
    :param asked_minimum: percent that the policy on the host guarantees.
    :param asked_maximum: cap of the policy on the host, percent.
    :param as_wanted: whether the control group has all values that follow
        from the policy, by the host's rounding.
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

    def is_enforcing_limits(self, minimum: int, maximum: int) -> bool:
        """Whether the guest's control group has a given guarantee and cap.

        Values that differ only by the host's rounding count as equal. The
        result is False if the limits of the group are unknown.

        :param minimum: guaranteed percent of bandwidth.
        :param maximum: cap, percent of bandwidth.
        """
        return self.as_wanted is True and self._is_requested_policy(minimum,
                                                                    maximum)

    def is_violating_limits(self, minimum: int, maximum: int) -> bool:
        """Whether the guest's control group is known to have wrong limits.

        The result is True only if nova-compute has this guarantee and cap as
        the guest's policy, and reports that the control group does not. It is
        False if the limits of the group are unknown.

        :param minimum: guaranteed percent of bandwidth.
        :param maximum: cap, percent of bandwidth.
        """
        return self.as_wanted is False and self._is_requested_policy(minimum,
                                                                     maximum)

    def _is_requested_policy(self, minimum: int, maximum: int) -> bool:
        return (minimum, maximum) == (self.asked_minimum, self.asked_maximum)


@dataclass(frozen=True)
class HostNode:
    """Bandwidth and bursts of a whole host NUMA node; None: unknown.

    :param used: bytes per second of all guests and of the host itself.
    :param capacity: bytes per second that it can deliver.
    :param bursts_pool: percent reserved for bursts; this and the others are
        None on a node that reserves nothing for bursts.
    :param bursts_promised: percent that guests are promised as bursts.
    :param bursts_offered: percent that may be promised.
    :param bursts_chance: probability, 0 to 1, that the pool is too small in
        a period; None, too, before enough has been measured.
    :param bursts_periods: measured over the window.
    :param bursts_over: periods in which bursts used all of the pool.
    :param bursts_short: periods of these in which the node was full, too.
    :param bursts_largest_project: percent that the guests of one project are
        promised as bursts at most.
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
class Report:
    """Report of a host about one of its guests.

    :param problem: reason why the host cannot report about the guest.
    :param not_held: reason why the guest's policy was not enforced at the
        last check of nova-compute; empty if it was.
    :param domains: UUIDs of all domains of the host with a policy; None if
        the host does not report them.
    :param left: names of control groups of the host whose guest does not run.
    :param uncounted: reason why Placement did not have the guest's amounts at
        the last report; empty if it had.
    :param accounting: ``min`` or ``max``, what nova-compute counts in
        Placement; empty if it does not report it.
    :param missing_devices: for each PCI request of the guest that has fewer
        devices than it asks for, how many of which it has.
    :param runs: whether the guest runs on the host; nova-compute reports
        nothing else about one that does not.
    """

    guest: tuple[GuestNode, ...] = ()
    host: tuple[HostNode, ...] = ()
    problem: str = ''
    not_held: str = ''
    domains: tuple[str, ...] | None = None
    left: tuple[str, ...] = ()
    uncounted: str = ''
    accounting: str = ''
    missing_devices: tuple[str, ...] = ()
    runs: bool = True

    def get_limits_by_host_node(self) -> dict[int, GuestNode]:
        """Return the guest's limits and traffic by host NUMA node number."""
        return {node.host_node: node for node in self.guest}


def to_diagnostics(report: Report) -> dict[str, Any]:
    """Convert nova-compute's report on a guest to Nova's server diagnostics.

    The report has the guest's bandwidth limits and its memory traffic.
    """
    return {KEY: dataclasses.asdict(report)}


def from_diagnostics(diagnostics: Mapping[str, Any]) -> Report | None:
    """Parse nova-compute's report on a guest from Nova's server diagnostics.

    The report has the guest's bandwidth limits and its memory traffic.

    :returns: None if the diagnostics contain no report.
    """
    found = diagnostics.get(KEY)
    if not isinstance(found, Mapping):
        return None
    domains = found.get('domains')
    try:
        return Report(
            tuple(_build_node(GuestNode, one) for one in found.get('guest')
                  or ()), tuple(_build_node(HostNode, one)
                                for one in found.get('host') or ()),
            str(found.get('problem') or ''), str(found.get('not_held') or ''),
            None if domains is None else tuple(map(str, domains)),
            tuple(map(str, found.get('left') or ())),
            str(found.get('uncounted') or ''),
            str(found.get('accounting') or ''),
            tuple(map(str, found.get('missing_devices') or ())),
            found.get('runs') is not False)
    except (AttributeError, TypeError):
        return Report(problem='its report is malformed')


def _build_node(node_class: type[T], record: Mapping[str, Any]) -> T:
    """Build a GuestNode or HostNode from a mapping; ignore unknown keys.

    Other releases of nova-compute may report more keys.
    """
    known = {field.name for field in dataclasses.fields(node_class)}
    return node_class(**{name: value for name, value in record.items()
                         if name in known})
