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

"""Advisory index of the free resources of each host (pure).

The index proposes hosts, and Placement decides: an error in the index only
costs time. Resources that a host does not report are assumed to suffice.

The threads of nova-scheduler share one index. A lock guards changes, and is
held for one host at a time, or to copy a list of hosts. Readers iterate over
immutable views of the hosts without a lock.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import itertools
import random
import threading

from ghsched_nova.features.index.host_capacity import HostView
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_placement.features.index import headroom

#: Number of feasible hosts at which a walk ends; the best are proposed.
POOL = 32

#: Seconds after which a claim that its host has never reported is dropped.
CLAIM_AGE = 180.0

#: Maximum number of refused needs that are remembered of one host.
_REFUSALS = 64

#: Maximum number of guests whose host is remembered.
_PLACED = 10000


@dataclass
class _Claim:
    """A guest that this scheduler has placed on a host.

    :ivar need: resources of the guest.
    :ivar nodes: number of the host NUMA node of each guest NUMA node.
    :ivar time: time of the claim in seconds of the monotonic clock.
    :ivar missing_in_report: whether the host's last report does not include
        the guest, so that its CPUs, memory and devices must be subtracted.
    :ivar missing_in_placement: whether the figures from Placement do not
        include the guest, so that its bandwidth and control group must be
        subtracted.
    :ivar started: whether the host has started the guest.
    """

    need: RequestNeed
    nodes: tuple[int, ...]
    time: float
    missing_in_report: bool = True
    missing_in_placement: bool = True
    started: bool = False

    def subtract_claim_from(self, view: HostView) -> HostView:
        """Return a host's free resources after this claim uses some of them.

        A claim is a guest that the scheduler has just placed on the host.

        :param view: free resources of the host without the claim.
        """
        need = self.need.read_amounts(view.row.table, self.missing_in_report,
                                      self.missing_in_placement)
        return view if need is None else replace(
            view, amounts=view.amounts.subtract_guest(need, self.nodes))


class IndexedHost:
    """Host in the index: its last report, and later claims of this scheduler.

    Not thread-safe; :class:`Index` calls the methods under its lock.

    :ivar view: free resources after these claims. Each change replaces the
        object, so that other threads can read it without a lock.
    """

    def __init__(self, row: ReportedHost) -> None:
        self._claims: dict[str, _Claim] = {}
        self._bandwidth: dict[int, int] = {}
        self._groups: int | None = None
        self._corrected_at = float('inf')
        self._read_headroom(row.placement_headroom)
        self.view = HostView(row, row.amounts)
        self._recompute(row, 0.0)

    def _read_headroom(self, left: headroom.Headroom | None) -> None:
        self._corrected_at = float('inf')
        if left is not None:
            self._bandwidth, self._groups = dict(left.bandwidth), left.groups

    @property
    def has_changes_since_report(self) -> bool:
        """Whether the free resources differ from those in the last report.

        They differ while this scheduler has claims on the host that the report
        lacks, or after it has read newer values from Placement.
        """
        return bool(self._claims) or self._corrected_at != float('inf')

    def update_report(self, row: ReportedHost, now: float) -> None:
        """Replace this host's resource report by a newer or the same report.

        Old claims, and old values that were read from Placement, are dropped.

        :param row: the report.
        """
        was = self.view.row
        self._clear_flag_of_oldest_claims('missing_in_report',
                                          row.guests - was.guests)
        old, new = was.placement_headroom, row.placement_headroom
        if new is not None and new != old:
            started = [claim for claim in self._claims.values()
                       if claim.started and claim.missing_in_placement]
            for claim in started:
                claim.missing_in_placement = False
            self._clear_flag_of_oldest_claims(
                'missing_in_placement',
                new.guests - (old.guests if old else 0) - len(started))
            self._read_headroom(new)
        elif now - self._corrected_at >= CLAIM_AGE:
            self._read_headroom(new)
        self._recompute(row, now)

    def _clear_flag_of_oldest_claims(self, flag: str, count: int) -> None:
        """Stop subtracting the oldest claims, which a new report includes.

        A claim is a guest that the scheduler has placed on the host. While the
        flag of a claim is set, the guest's resources are subtracted from those
        of the report.

        :param flag: ``missing_in_report`` for CPUs, memory and devices,
            ``missing_in_placement`` for bandwidth and control groups.
        :param count: number of guests that are new in the report, which is the
            number of flags to clear.
        """
        for claim in self._claims.values():
            if count > 0 and getattr(claim, flag):
                setattr(claim, flag, False)
                count -= 1

    def set_free_amounts(self, bandwidth: Mapping[int, int],
                         groups: int | None, queried_at: float,
                         now: float) -> None:
        """Set a host's free bandwidth and control groups read from Placement.

        :param bandwidth: percent of bandwidth that is free, by NUMA node.
        :param groups: number of free control groups; None if unknown.
        :param queried_at: time when Placement was queried. Guests claimed
            later are subtracted from the values.
        :param now: present time.
        """
        self._corrected_at = queried_at
        self._bandwidth.update(bandwidth)
        self._groups = groups
        for claim in self._claims.values():
            claim.missing_in_placement = (
                claim.missing_in_placement and claim.time >= queried_at)
        self._recompute(self.view.row, now)

    def add_claim(self, consumer: str, need: RequestNeed, now: float,
                  nodes: Sequence[int] | None = None) -> None:
        """Subtract a new guest's resources from this host's free resources.

        They are subtracted until the host's own report includes the guest.

        :param consumer: UUID of the guest.
        :param nodes: host NUMA node of each guest NUMA node; None if unknown.
        """
        nodes = nodes or self.view.assign_nodes(need)
        if nodes is not None:
            claim = self._claims[consumer] = _Claim(
                need, tuple(nodes), now)
            self.view = claim.subtract_claim_from(self.view)

    def confirm_claim(self, consumer: str) -> None:
        """Stop subtracting a guest that the host has started from its report.

        Nova saves the report before it starts the guest. The number of guests
        does not show that if another guest was deleted at the same time.

        :param consumer: UUID of the guest.
        """
        claim = self._claims.get(consumer)
        if claim is not None:
            claim.started, claim.missing_in_report = True, False
            self._recompute(self.view.row, claim.time)

    def drop_claim(self, consumer: str) -> None:
        """Drop a guest's claim, so that its resources count as free again.

        :param consumer: UUID of the guest.
        """
        claim = self._claims.pop(consumer, None)
        if claim is not None:
            self._recompute(self.view.row, claim.time)

    def add_refusal(self, need: RequestNeed, now: float) -> None:
        """Record that this host refused a request.

        For up to one minute, the host is not proposed for requests for the
        same resources.
        """
        refused = dict(self.view.refused)
        refused.pop(need, None)
        refused[need] = now
        if len(refused) > _REFUSALS:
            del refused[next(iter(refused))]
        self.view = replace(self.view, refused=refused)

    def _recompute(self, row: ReportedHost, now: float) -> None:
        """Compute the free resources of the host from its last report.

        Resources of guests that were placed on the host later are subtracted.

        :param row: the host's resource report.
        :param now: time in seconds; older claims are forgotten.
        """
        self._claims = {
            consumer: claim for consumer, claim in self._claims.items()
            if (claim.missing_in_report or claim.missing_in_placement)
            and now - claim.time < CLAIM_AGE}
        view = HostView(row, row.read_amounts(self._bandwidth, self._groups))
        for claim in self._claims.values():
            view = claim.subtract_claim_from(view)
        if not view.has_more_free_than(self.view):
            view = replace(view, refused=self.view.refused)
        self.view = view


class Index:
    """Free resources of all hosts of a cloud, kept in memory.

    They are shared by the threads of a scheduler process.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, IndexedHost] = {}
        self._walk: tuple[IndexedHost, ...] = ()
        self._placed: dict[str, str] = {}    # consumer -> host
        self._unavailable: frozenset[str] = frozenset()
        self._chance = chance or random.Random()  # noqa: S311

    def __len__(self) -> int:
        return len(self._walk)

    def has_host(self, uuid: str) -> bool:
        """Return whether a host is in the index.

        :param uuid: UUID of the host.
        """
        return uuid in self._hosts

    def list_views(self) -> list[HostView]:
        """Return the current free resources of all hosts in the index.

        The index holds the free resources of all hosts in nova-scheduler's
        memory.
        """
        return [host.view for host in self._walk]

    def update_hosts(self, rows: Iterable[ReportedHost],
                     removed: Iterable[str],
                     now: float) -> None:
        """Update the scheduler's in-memory index of hosts with new reports.

        :param rows: resource reports of hosts.
        :param removed: UUIDs of the hosts to remove.
        """
        changed = 0
        for row in rows:
            with self._lock:
                changed += self._update_host(row, now)
        with self._lock:
            for uuid in removed:
                host = self._hosts.pop(uuid, None)
                if host is not None:
                    changed += 1
            if changed:
                self._walk = tuple(self._hosts.values())

    def _update_host(self, row: ReportedHost, now: float) -> bool:
        """Store a host's resource report in the scheduler's index of hosts.

        :returns: whether the host is new.
        """
        known = self._hosts.get(row.uuid)
        if known is None:
            self._hosts[row.uuid] = IndexedHost(row)
        elif known.view.row != row:
            known.update_report(row, now)
        return known is None

    def set_unavailable_hosts(self, host_names: Collection[str]) -> None:
        """Set the hosts that the index must not propose.

        :param host_names: names of all hosts that are disabled or down.
        """
        with self._lock:
            self._unavailable = frozenset(host_names)

    def has_cpus_and_memory_for(self, need: RequestNeed) -> bool:
        """Return whether a host reports enough CPUs and memory for a request.

        If not, Nova's filters refuse every host, too: they read the same
        reports. Claims of this scheduler are not subtracted, because they may
        be those of guests that are gone.

        :param need: resources that the request needs on one host.
        """
        bare = need.cpus_and_memory
        return any(
            HostView(row, row.amounts).assign_nodes(bare) is not None
            for row in (host.view.row for host in self._walk))

    def propose_hosts(self, need: RequestNeed,
                      allows: Callable[[ReportedHost], bool],
                      tried: Collection[str], now: float,
                      at_once: int = 1) -> list[HostView]:
        """Return hosts that seem to have enough free resources for a request.

        The search starts at a random host.

        :param allows: function that returns whether a host may be proposed.
        :param tried: UUIDs of hosts that were already proposed for the
            request.
        :param at_once: number of guests that each host must hold.
        """
        with self._lock:
            hosts, unavailable = self._walk, self._unavailable
        found: list[HostView] = []
        start = self._chance.randrange(len(hosts)) if hosts else 0
        for host in itertools.chain(hosts[start:], hosts[:start]):
            view = host.view
            row = view.row
            if (row.name not in unavailable and row.uuid not in tried
                    and not view.has_refused(need, now) and allows(row)
                    and view.assign_nodes(need) is not None
                    and (at_once == 1
                         or view.count_guests(need, at_once) == at_once)):
                found.append(view)
                if len(found) == POOL:
                    break
        return found

    def add_claim(self, uuid: str, consumer: str, need: RequestNeed,
                  now: float,
                  nodes: Sequence[int] | None = None) -> None:
        """Subtract a placed guest from its host's free resources in the index.

        :param uuid: UUID of the host.
        :param consumer: UUID of the guest.
        :param nodes: host NUMA node of each guest NUMA node; None if unknown.
        """
        with self._lock:
            self._drop_claim(consumer)
            host = self._hosts.get(uuid)
            if host is not None:
                self._placed[consumer] = uuid
                host.add_claim(consumer, need, now, nodes)
                if len(self._placed) > _PLACED:
                    del self._placed[next(iter(self._placed))]

    def confirm_claims(self, host_name: str,
                       consumers: Iterable[str]) -> None:
        """Stop subtracting guests that a host has started from its report.

        :param consumers: UUIDs of the guests.
        """
        for consumer in consumers:
            with self._lock:
                host = self._hosts.get(self._placed.get(consumer, ''))
                if host is not None and host.view.row.name == host_name:
                    host.confirm_claim(consumer)

    def drop_claim(self, consumer: str, host_name: str | None = None) -> None:
        """Drop a placed guest's claim, so that its resources count as free.

        This is called when the guest was deleted, and before it is scheduled
        again.

        :param consumer: UUID of the guest.
        :param host_name: name of the host whose claim to drop; None for any.
        """
        with self._lock:
            host = self._hosts.get(self._placed.get(consumer, ''))
            if host_name is None or (
                    host is not None and host.view.row.name == host_name):
                self._drop_claim(consumer)

    def _drop_claim(self, consumer: str) -> None:
        uuid = self._placed.pop(consumer, '')
        host = self._hosts.get(uuid)
        if host is not None:
            host.drop_claim(consumer)

    def set_free_amounts(self, uuid: str, bandwidth: Mapping[int, int],
                         groups: int | None, queried_at: float,
                         now: float) -> None:
        """Set a host's free bandwidth and control groups read from Placement.

        :param uuid: UUID of the host.
        :param bandwidth: percent of bandwidth that is free, by NUMA node.
        :param groups: number of free control groups; None if unknown.
        :param queried_at: time when Placement was queried. Guests claimed
            later are subtracted from the values.
        :param now: present time.
        """
        with self._lock:
            host = self._hosts.get(uuid)
            if host is not None:
                host.set_free_amounts(bandwidth, groups, queried_at, now)

    def drop_old_changes(self, now: float) -> None:
        """Drop old claims, and old values that were read from Placement.

        A new report of a host does this as well. This method is for hosts
        whose report does not change.

        :param now: present time in seconds of the monotonic clock.
        """
        for host in self._walk:
            if not host.has_changes_since_report:
                continue
            with self._lock:
                row = host.view.row
                if self._hosts.get(row.uuid) is host:
                    host.update_report(row, now)

    def add_refusals(self, uuids: Iterable[str], need: RequestNeed,
                     now: float) -> None:
        """Record that hosts refused a request.

        For up to one minute, these hosts are not proposed for requests for the
        same resources.

        :param uuids: UUIDs of the hosts.
        :param need: resources that the request needs on one host.
        :param now: present time in seconds of the monotonic clock.
        """
        with self._lock:
            for uuid in uuids:
                if uuid in self._hosts:
                    self._hosts[uuid].add_refusal(need, now)

    def shuffle_hosts(self, uuids: Iterable[str]) -> list[str]:
        """Return UUIDs of hosts in a random order."""
        shuffled = list(uuids)
        self._chance.shuffle(shuffled)
        return shuffled
