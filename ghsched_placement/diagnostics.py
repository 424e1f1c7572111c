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

"""What nova-compute reports about a guest in its diagnostics (pure).

Nova hands on what a driver says (``GET /servers/{id}/diagnostics`` before
microversion 2.48, for admins). It is the only way on which an admin learns
through the API what a host has really set for a guest: Nova keeps the stats
of a compute node to itself.
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
    """A guest on a host NUMA node; None for what is not known.

    :param minimum: percent that its control group guarantees, to all that
        have it.
    :param maximum: percent of what the node can deliver; 100 is no cap.
    :param hardlimit: whether the cap holds while bandwidth is idle.
    :param priority: the higher wins.
    :param used: bytes per second since it was asked before.
    :param group: the control group that it has together with others; empty
        when it has its own.
    :param asked_minimum: percent that the host was told to guarantee it.
    :param asked_maximum: the cap that the host was told, percent.
    :param as_wanted: whether the group holds all that the host makes of what
        it was told, by its own rounding.
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
    def held(self) -> Bandwidth:
        return Bandwidth(self.minimum, self.maximum, self.hardlimit,
                         self.priority)

    def holds(self, minimum: int, maximum: int) -> bool:
        """Whether it is known to hold a guarantee and a cap, rounded."""
        return self.as_wanted is True and self._is_of(minimum, maximum)

    def differs(self, minimum: int, maximum: int) -> bool:
        """Whether it is known not to hold what follows from them."""
        return self.as_wanted is False and self._is_of(minimum, maximum)

    def _is_of(self, minimum: int, maximum: int) -> bool:
        return (minimum, maximum) == (self.asked_minimum, self.asked_maximum)


@dataclass(frozen=True)
class HostNode:
    """A host NUMA node as a whole; None for what is not known.

    :param used: bytes per second of all guests and of the host itself.
    :param capacity: bytes per second that it can deliver.
    :param bursts_pool: percent that is there for bursts; None where nothing
        is kept for them. So with all that follows.
    :param bursts_promised: percent that guests are promised as bursts.
    :param bursts_offered: percent that may be promised.
    :param bursts_chance: of the pool being too small in a period, 0 to 1;
        None, too, before enough has been measured.
    :param bursts_periods: measured over the window.
    :param bursts_over: those in which bursts used all of the pool.
    :param bursts_short: those in which the node was full besides.
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
    """What a host reports about one of its guests.

    :param problem: why it can tell nothing.
    :param not_held: why the guest's policy did not hold when nova-compute
        last looked after it; empty when it held.
    :param domains: UUIDs of all domains that run there with a policy; None
        where the host does not tell.
    :param left: names of the control groups there whose guest does not run.
    :param uncounted: why Placement did not count what the guest is promised
        at the last report; empty when it did.
    :param accounting: ``min`` or ``max``, what nova-compute counts in
        Placement; empty where it does not tell.
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

    def by_node(self) -> dict[int, GuestNode]:
        """What is set for the guest, by host NUMA node."""
        return {node.host_node: node for node in self.guest}


def write(report: Report) -> dict[str, Any]:
    """To be added to the diagnostics of a guest."""
    return {KEY: dataclasses.asdict(report)}


def read(diagnostics: Mapping[str, Any]) -> Report | None:
    """What is in the diagnostics of a guest; None when nothing is of ours.
    """
    found = diagnostics.get(KEY)
    if not isinstance(found, Mapping):
        return None
    domains = found.get('domains')
    try:
        return Report(
            tuple(_made(GuestNode, one) for one in found.get('guest') or ()),
            tuple(_made(HostNode, one) for one in found.get('host') or ()),
            str(found.get('problem') or ''), str(found.get('not_held') or ''),
            None if domains is None else tuple(map(str, domains)),
            tuple(map(str, found.get('left') or ())),
            str(found.get('uncounted') or ''),
            str(found.get('accounting') or ''),
            tuple(map(str, found.get('missing_devices') or ())),
            found.get('runs') is not False)
    except (AttributeError, TypeError):
        return Report(problem='it is told in a way that is not known here')


def _made(kind: type[T], told: Mapping[str, Any]) -> T:
    """Of what a nova-compute of any release tells; what is new is dropped.
    """
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in told.items()
                   if name in known})
