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

"""Advisory index of the resources that each host has left (pure).

The index proposes hosts, and Placement decides: an error in the index costs
time and nothing else. Resources that a host does not report are taken to be
enough.

The threads of nova-scheduler share one index. A lock guards what changes, and
is held for one host at a time, or to copy a list of hosts. Readers walk over
immutable views of the hosts and hold no lock.

Where few hosts have room, a walk goes by the classes of hosts
(:mod:`ghsched_nova.scheduler.capacity_classes`) and passes over hosts that
cannot. A host that changes its class meanwhile may be left out: it counts as a
gain if it has more than before.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import functools
import itertools
import random
import threading
from typing import Any

from ghsched_nova.scheduler import capacity_classes
from ghsched_placement import headroom
from ghsched_placement import matching

#: Number of feasible hosts at which a walk ends; the best are proposed.
POOL = 32

#: Number of hosts that a walk looks at before it goes by the classes of hosts.
PROBES = 256

#: Seconds after which a claim that its host has never reported is dropped.
CLAIM_AGE = 180.0

#: Seconds for which a host is not proposed again for a need that Placement
#: refused there, unless the host reports more room.
REFUSAL_AGE = 60.0

#: Maximum number of refused needs that are remembered of one host.
_REFUSALS = 64

#: Maximum number of guests whose host is remembered.
_PLACED = 10000

#: Maximum number of gains that are remembered.
_GAINS = 10000

#: Vendor and product of a device, as Nova's PCI pools have them.
Device = tuple[str, str]


@dataclass(frozen=True)
class NodeNeed:
    """Resources that a guest NUMA node needs on its host NUMA node.

    :param pinned: dedicated CPUs.
    :param shared: vCPUs on shared CPUs.
    :param memory: MiB.
    :param page: page size in KiB; 0 for any.
    :param bandwidth: percent of the host node's memory bandwidth.
    :param devices: number of passthrough devices by vendor and product.
    """

    pinned: int = 0
    shared: int = 0
    memory: int = 0
    page: int = 0
    bandwidth: int = 0
    devices: tuple[tuple[Device, int], ...] = ()


@dataclass(frozen=True)
class Need:
    """Resources that a scheduling request needs on one host.

    :param groups: resctrl control groups.
    :param steered: whether the host has to run the driver of ghsched.
    :param label: everything else that Placement may refuse a host for.
    :param unreported: whether the request takes resources of which a host
        can offer more without a report.
    """

    nodes: tuple[NodeNeed, ...]
    groups: int = 0
    steered: bool = False
    label: Hashable = None
    unreported: bool = False

    @functools.cached_property
    def guest_nodes_by_size(self) -> tuple[int, ...]:
        """Numbers of the guest's NUMA nodes, from the largest to the smallest.
        """
        return tuple(sorted(range(len(self.nodes)), reverse=True, key=(
            lambda number: _get_sort_size(self.nodes[number]))))


@dataclass(frozen=True)
class NodeCapacity:
    """Free resources of a host NUMA node.

    :param cpus: total of dedicated CPUs.
    :param pinned: dedicated CPUs that are left.
    :param shared: vCPUs that fit on the shared CPUs.
    :param pages: MiB by page size in KiB; 0 is the memory of all sizes.
    :param bandwidth: percent; None if unknown.
    """

    number: int
    cpus: int = 0
    pinned: int = 0
    shared: int = 0
    pages: Mapping[int, int] = field(default_factory=dict)
    bandwidth: int | None = None
    devices: Mapping[Device, int] = field(default_factory=dict)

    def has_capacity_for(self, need: NodeNeed) -> bool:
        """Return whether a guest NUMA node fits on this host NUMA node."""
        return (self.pinned >= need.pinned and self.shared >= need.shared
                and self.pages.get(need.page, 0) >= need.memory
                and (self.bandwidth is None
                     or self.bandwidth >= need.bandwidth)
                and all(self.devices.get(device, 0) >= count
                        for device, count in need.devices))

    def subtract_guest_node(self, need: NodeNeed, claimed: bool,
                            counted: bool) -> 'NodeCapacity':
        """Return this host node's free resources less those of a guest node.

        A resource that the host's latest report already excludes is not
        subtracted.

        :param need: resources of the guest NUMA node.
        :param claimed: whether to subtract CPUs, memory and devices.
        :param counted: whether to subtract bandwidth.
        """
        room = self
        if claimed:
            wanted = dict(need.devices)
            room = replace(
                room, pinned=room.pinned - need.pinned,
                shared=room.shared - need.shared,
                pages={size: left - need.memory * (size in (0, need.page))
                       for size, left in room.pages.items()},
                devices={device: left - wanted.get(device, 0)
                         for device, left in room.devices.items()})
        if counted and room.bandwidth is not None:
            room = replace(room, bandwidth=room.bandwidth - need.bandwidth)
        return room


@dataclass(frozen=True)
class HostReport:
    """Free resources that a compute host reported to Nova's database.

    :param updated: changes with each report.
    :param guests: number of guests that the report counts.
    :param steered: whether the host runs the driver of ghsched.
    :param left: bandwidth and control groups that are left.
    :param floating: number of devices that are on no known NUMA node.
    """

    uuid: str
    name: str
    cell: str
    updated: Hashable
    nodes: tuple[NodeCapacity, ...] = ()
    guests: int = 0
    steered: bool = False
    left: headroom.Headroom | None = None
    floating: Mapping[Device, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HostView:
    """Free resources of a host at one moment.

    :param rooms: by place of the host NUMA node in the report.
    :param groups: control groups; None if unknown.
    :param refused: needs that Placement or Nova refused on this host, with
        the time of the refusal.
    """

    row: HostReport
    rooms: tuple[NodeCapacity, ...]
    groups: int | None = None
    refused: Mapping[Need, float] = field(default_factory=dict)

    def assign_nodes(self, need: Need) -> tuple[int, ...] | None:
        """Choose a host NUMA node for each guest NUMA node.

        The largest guest node is assigned first, to the host node with the
        fewest free CPUs.

        :param need: resources of each guest NUMA node.
        :returns: the chosen host NUMA nodes, as positions in the host's
            report; None if the guest certainly does not fit on the host.
        """
        if need.steered and not self.row.steered:
            return None
        if self.groups is not None and self.groups < need.groups:
            return None
        choices: dict[NodeNeed, list[int]] = {}
        for node in need.nodes:
            if node not in choices:
                choices[node] = self._list_fitting_nodes(node)
                if not choices[node]:
                    return None
        return matching.match_items_to_places(
            [choices[node] for node in need.nodes], need.guest_nodes_by_size)

    def _list_fitting_nodes(self, need: NodeNeed) -> list[int]:
        """Return the host NUMA nodes on which a guest NUMA node fits.

        :returns: the nodes as positions in the host's report, the node with
            the fewest free CPUs first.
        """
        places = [place for place, room in enumerate(self.rooms)
                  if room.has_capacity_for(need)]
        return sorted(
            places, key=lambda at: _make_node_sort_key(self.rooms[at], need))

    def has_refused(self, need: Need, now: float) -> bool:
        """Return whether the host refused an equal request in the last minute.
        """
        when = self.refused.get(need) if self.refused else None
        return when is not None and now - when < REFUSAL_AGE

    def has_more_free_than(self, earlier: 'HostView') -> bool:
        """Return whether more of any resource is free than in an earlier view.
        """
        return (_nodes_gained(earlier.rooms, self.rooms)
                or self.row.steered > earlier.row.steered
                or _may_have_grown(self.groups, earlier.groups)
                or self.row.guests < earlier.row.guests
                or _amounts_grew(earlier.row.floating, self.row.floating))


@dataclass
class _Claim:
    """A guest that this scheduler has placed on a host.

    :ivar nodes: place of the host node of each guest node.
    :ivar claimed: whether Nova's report of the host lacks the guest.
    :ivar counted: whether the figures of Placement's resources lack it.
    """

    need: Need
    nodes: tuple[int, ...]
    time: float
    claimed: bool = True
    counted: bool = True

    def subtract_claim_from(self, view: HostView) -> HostView:
        """Return a host's free resources after this claim uses some of them.

        A claim is a guest that the scheduler has just placed on the host.

        :param view: free resources of the host without the claim.
        """
        groups = view.groups
        if groups is not None and self.counted:
            groups -= self.need.groups
        rooms = list(view.rooms)
        for place, need in zip(self.nodes, self.need.nodes, strict=True):
            if place < len(rooms):
                rooms[place] = rooms[place].subtract_guest_node(
                    need, self.claimed, self.counted)
        return replace(view, rooms=tuple(rooms), groups=groups)


class Host:
    """Host of the index: its last report, and later claims of this scheduler.

    Not safe for threads: :class:`Index` calls the methods under its lock.

    :ivar view: resources that are left; replaced as a whole.
    """

    def __init__(self, row: HostReport) -> None:
        self._claims: dict[str, _Claim] = {}
        self._bandwidth: dict[int, int] = {}
        self._groups: int | None = None
        self._read_headroom(row.left)
        self.view = HostView(row, ())
        self._recompute(row, 0.0)

    def _read_headroom(self, left: headroom.Headroom | None) -> None:
        if left is not None:
            self._bandwidth, self._groups = dict(left.bandwidth), left.groups

    def update_report(self, row: HostReport, now: float) -> bool:
        """Replace this host's resource report by a newer report.

        :param row: the newer report.
        :returns: whether the host may have more free resources than before.
        """
        was = self.view.row
        self._mark_claims_counted('claimed', row.guests - was.guests)
        if row.left is not None and row.left != was.left:
            before = was.left.guests if was.left else 0
            self._mark_claims_counted('counted', row.left.guests - before)
            self._read_headroom(row.left)
        return self._recompute(row, now)

    def _mark_claims_counted(self, flag: str, count: int) -> None:
        """Mark the oldest claims on a host as included in its newest report.

        A claim is a guest that the scheduler has just placed on the host. Once
        the host's report includes the guest, its resources must not be
        subtracted again.

        :param flag: attribute of the claims to clear.
        :param count: number of guests that are new in the report.
        """
        for claim in self._claims.values():
            if count > 0 and getattr(claim, flag):
                setattr(claim, flag, False)
                count -= 1

    def set_free_amounts(self, bandwidth: Mapping[int, int],
                         groups: int | None, asked: float, now: float) -> bool:
        """Set a host's free bandwidth and control groups read from Placement.

        :param bandwidth: free percent by host NUMA node.
        :param groups: number of free control groups; None if unknown.
        :param asked: time when Placement was queried; guests claimed later are
            subtracted from the values.
        :returns: whether the host may have more free resources than before.
        """
        self._bandwidth.update(bandwidth)
        self._groups = groups
        for claim in self._claims.values():
            claim.counted = claim.counted and claim.time >= asked
        return self._recompute(self.view.row, now)

    def add_claim(self, consumer: str, need: Need, now: float) -> None:
        """Subtract a new guest's resources from this host's free resources.

        They are subtracted until the host's own report includes the guest.

        :param consumer: UUID of the guest.
        """
        nodes = self.view.assign_nodes(need)
        if nodes is not None:
            claim = self._claims[consumer] = _Claim(need, nodes, now)
            self.view = claim.subtract_claim_from(self.view)

    def drop_claim(self, consumer: str) -> bool:
        """Drop a guest's claim, so that its resources count as free again.

        :param consumer: UUID of the guest.
        :returns: whether the host may have more free resources than before.
        """
        claim = self._claims.pop(consumer, None)
        return claim is not None and self._recompute(self.view.row, claim.time)

    def add_refusal(self, need: Need, now: float) -> None:
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

    def _recompute(self, row: HostReport, now: float) -> bool:
        """Recompute this host's free resources.

        These are the resources of its report without the resources of guests
        that were placed on the host later.

        :param row: the host's resource report.
        :returns: whether the host may have more free resources than before.
        """
        self._claims = {
            consumer: claim for consumer, claim in self._claims.items()
            if (claim.claimed or claim.counted)
            and now - claim.time < CLAIM_AGE}
        view = HostView(row, tuple(
            replace(node, bandwidth=self._bandwidth.get(node.number))
            for node in row.nodes), self._groups)
        for claim in self._claims.values():
            view = claim.subtract_claim_from(view)
        more = view.has_more_free_than(self.view)
        if not more:
            view = replace(view, refused=self.view.refused)
        self.view = view
        return more


def _get_sort_size(need: NodeNeed) -> tuple[int, ...]:
    return (sum(count for _device, count in need.devices), need.bandwidth,
            need.pinned, need.shared, need.memory)


def _make_node_sort_key(free: NodeCapacity, need: NodeNeed) -> tuple[int, ...]:
    """Return a host NUMA node's sort key for the placement of a guest node.

    The guest NUMA node is tried on the host nodes in ascending order of their
    keys. Host nodes without guests come last. Host nodes with devices also
    come last if the guest needs no devices.

    :param free: free resources of the host NUMA node.
    :param need: resources of the guest NUMA node.
    """
    spare = not need.devices and any(free.devices.values())
    return free.pinned == free.cpus, spare, free.pinned - need.pinned


def _nodes_gained(before: Sequence[NodeCapacity],
                  after: Sequence[NodeCapacity]) -> bool:
    return len(before) != len(after) or any(
        new.pinned > old.pinned or new.shared > old.shared
        or _may_have_grown(new.bandwidth, old.bandwidth) or _amounts_grew(
            old.pages, new.pages) or _amounts_grew(old.devices, new.devices)
        for old, new in zip(before, after, strict=True))


def _may_have_grown(new: int | None, old: int | None) -> bool:
    """Return whether a free amount may be larger than before.

    An amount of None is unknown, so it may be larger.
    """
    return new != old and (new is None or old is None or new > old)


def _amounts_grew(old: Mapping[Any, int], new: Mapping[Any, int]) -> bool:
    return any(left > old.get(name, 0) for name, left in new.items())


class Index:
    """Free resources of all hosts of a cloud, kept in memory.

    They are shared by the threads of a scheduler process.

    :ivar gains: number of times a host had, or may have had, more than
        before.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self.gains = 0
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._walk: tuple[Host, ...] = ()
        self._classes = capacity_classes.Classes[Host]()
        self._gained: collections.deque[str] = collections.deque(
            maxlen=_GAINS)
        self._placed: dict[str, str] = {}    # consumer -> host
        self._unavailable: frozenset[str] = frozenset()
        self._chance = chance or random.Random()  # noqa: S311

    def __len__(self) -> int:
        return len(self._walk)

    def list_views(self) -> list[HostView]:
        """Return the current free resources of all hosts in the index.

        The index holds the free resources of all hosts in nova-scheduler's
        memory.
        """
        return [host.view for host in self._walk]

    def update_hosts(self, rows: Iterable[HostReport], removed: Iterable[str],
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
                    self._classes.remove_member(uuid)
            if changed:
                self._walk = tuple(self._hosts.values())

    def _update_host(self, row: HostReport, now: float) -> bool:
        """Store a host's resource report in the scheduler's index of hosts.

        :returns: whether the host is new.
        """
        known = self._hosts.get(row.uuid)
        if known is None:
            host = self._hosts[row.uuid] = Host(row)
            self._update_class(host)
            self._record_gain(row.uuid)
        elif known.view.row.updated != row.updated:
            self._record_gain(row.uuid, known.update_report(row, now))
            self._update_class(known)
        return known is None

    def _update_class(self, host: Host) -> None:
        self._classes.set_host_class(
            host.view.row.uuid, host, capacity_classes.classify_host(
                (room.pinned, room.bandwidth) for room in host.view.rooms))

    def set_unavailable_hosts(self, host_names: Collection[str]) -> None:
        """Set the hosts that the index must not propose.

        :param host_names: names of all hosts that are disabled or down.
        """
        with self._lock:
            back = self._unavailable - set(host_names)
            self._unavailable = frozenset(host_names)
            hosts = self._walk
        for host in hosts if back else ():
            if host.view.row.name in back:
                with self._lock:
                    self._record_gain(host.view.row.uuid)

    def _record_gain(self, uuid: str, gained: bool = True) -> None:
        if gained:
            self.gains += 1
            self._gained.append(uuid)

    def may_fit_since(self, need: Need, gains: int) -> bool:
        """Return whether a request may fit on hosts that gained resources.

        Only hosts that gained free resources since an earlier search count.
        The scheduler repeats a search that found no host only if this is true.
        The result may be True for a request that does not fit, but False is
        reliable.

        :param gains: value of :attr:`gains` at the time of the earlier search.
        """
        with self._lock:
            count = self.gains - gains
            if count > len(self._gained):
                return True
            uuids = set(itertools.islice(reversed(self._gained), count))
            hosts = [self._hosts[uuid] for uuid in uuids
                     if uuid in self._hosts]
        return any(host.view.assign_nodes(need) is not None for host in hosts)

    def propose_hosts(self, need: Need, allows: Callable[[HostReport], bool],
                      tried: Collection[str], now: float) -> list[HostView]:
        """Return hosts that seem to have enough free resources for a request.

        The search starts at a random host. Hosts with equal free resources
        form a class. A class in which the request cannot fit is skipped as a
        whole.

        :param allows: function that returns whether a host may be proposed.
        :param tried: UUIDs of hosts that were already proposed for the
            request.
        """
        with self._lock:
            hosts, unavailable = self._walk, self._unavailable
        found: dict[str, HostView] = {}
        seen: set[str] = set()
        start = self._chance.randrange(len(hosts)) if hosts else 0
        # The first hosts are enough for most requests.
        for host in itertools.chain(
                capacity_classes.iterate_hosts_from(hosts, start, PROBES),
                self._iterate_hosts_by_class(need)):
            view = host.view
            row = view.row
            if row.uuid in seen:
                continue
            seen.add(row.uuid)
            if (row.name not in unavailable and row.uuid not in tried
                    and not view.has_refused(need, now) and allows(row)
                    and view.assign_nodes(need) is not None):
                found[row.uuid] = view
                if len(found) == POOL:
                    break
        return list(found.values())

    def _iterate_hosts_by_class(self, need: Need) -> Iterator[Host]:
        """Iterate over the hosts on which a request may fit, in mixed order.

        Hosts with equal free resources form a class. Iteration starts at a
        random host, and successive hosts are from different classes, so that
        the first hosts are as varied as all hosts of the cloud.
        """
        with self._lock:
            known = self._classes.list_classes()
        needs = capacity_classes.round_guest_needs(
            (node.pinned, node.bandwidth) for node in need.nodes)
        chosen = [one for one in known if one.may_fit(needs)]
        with self._lock:
            hosts = self._classes.list_members(chosen)
        start = self._chance.randrange(len(hosts)) if hosts else 0
        return capacity_classes.iterate_hosts_scattered(hosts, start)

    def add_claim(self, uuid: str, consumer: str, need: Need,
                  now: float) -> None:
        """Subtract a placed guest from its host's free resources in the index.

        :param uuid: UUID of the host.
        :param consumer: UUID of the guest.
        """
        with self._lock:
            self._drop_claim(consumer)
            host = self._hosts.get(uuid)
            if host is not None:
                self._placed[consumer] = uuid
                host.add_claim(consumer, need, now)
                self._update_class(host)
                if len(self._placed) > _PLACED:
                    del self._placed[next(iter(self._placed))]

    def drop_claim(self, consumer: str) -> None:
        """Drop a placed guest's claim, so that its resources count as free.

        This is called before the guest is scheduled again.

        :param consumer: UUID of the guest.
        """
        with self._lock:
            self._drop_claim(consumer)

    def _drop_claim(self, consumer: str) -> None:
        uuid = self._placed.pop(consumer, '')
        host = self._hosts.get(uuid)
        if host is not None:
            self._record_gain(uuid, host.drop_claim(consumer))
            self._update_class(host)

    def set_free_amounts(self, uuid: str, bandwidth: Mapping[int, int],
                         groups: int | None, asked: float, now: float) -> None:
        """Set a host's free bandwidth and control groups read from Placement.

        :param uuid: UUID of the host.
        :param bandwidth: free percent by host NUMA node.
        :param groups: number of free control groups; None if unknown.
        :param asked: time when Placement was queried.
        """
        with self._lock:
            host = self._hosts.get(uuid)
            if host is not None:
                self._record_gain(uuid, host.set_free_amounts(
                    bandwidth, groups, asked, now))
                self._update_class(host)

    def add_refusals(self, uuids: Iterable[str], need: Need,
                     now: float) -> None:
        """Record that hosts refused a request.

        For up to one minute, these hosts are not proposed for requests for the
        same resources.

        :param uuids: UUIDs of the hosts.
        """
        with self._lock:
            for uuid in uuids:
                if uuid in self._hosts:
                    self._hosts[uuid].add_refusal(need, now)

    def choose_at_random(self, hosts: Sequence[str], count: int) -> list[str]:
        """Choose some of the best hosts for a request at random.

        The choice is random so that several schedulers with the same data
        rarely choose the same host.

        :param hosts: UUIDs of the best hosts.
        :param count: number of hosts to choose.
        """
        return self._chance.sample(list(hosts), min(count, len(hosts)))
