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

"""An advisory index of what is left on each host (pure).

It proposes hosts, and Placement decides: whatever is wrong in here costs time
and nothing else. What is not known of a host is taken to be enough.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import itertools
import random
from typing import Any

from ghsched_placement import headroom

#: Feasible hosts that are looked for; the best of them are proposed.
POOL = 32

#: Seconds after which a claim that its host has never reported is forgotten.
CLAIM_AGE = 180.0

#: Seconds for which a host that Placement refused is not proposed again, if
#: it reports nothing new.
REFUSAL_AGE = 60.0

#: Guests that are remembered, with their hosts.
_PLACED = 10000

#: Gains that are remembered.
_GAINS = 10000

#: Vendor and product of a device, as Nova's PCI pools have them.
Device = tuple[str, str]


@dataclass(frozen=True)
class NodeNeed:
    """What a guest NUMA node takes.

    :param pinned: CPUs of its own.
    :param shared: vCPUs that share CPUs.
    :param memory: MiB.
    :param page: KiB of the pages that it is backed by; 0 for any.
    :param bandwidth: percent.
    :param devices: passthrough devices of the same host node.
    """

    pinned: int = 0
    shared: int = 0
    memory: int = 0
    page: int = 0
    bandwidth: int = 0
    devices: tuple[tuple[Device, int], ...] = ()


@dataclass(frozen=True)
class Need:
    """What a request takes.

    :param groups: control groups.
    :param steered: whether the host has to run our driver.
    :param label: all else that Placement may refuse a host for.
    :param unreported: whether it takes what a host may offer more of without
        a report.
    """

    nodes: tuple[NodeNeed, ...]
    groups: int = 0
    steered: bool = False
    label: Hashable = None
    unreported: bool = False


@dataclass(frozen=True)
class NodeRoom:
    """What a host NUMA node has left.

    :param cpus: for pinned guests, of which ``pinned`` are left.
    :param pages: MiB by size of the pages in KiB; 0 is the memory of all.
    :param bandwidth: None when it is not known.
    """

    number: int
    cpus: int = 0
    pinned: int = 0
    shared: int = 0
    pages: Mapping[int, int] = field(default_factory=dict)
    bandwidth: int | None = None
    devices: Mapping[Device, int] = field(default_factory=dict)

    def holds(self, need: NodeNeed) -> bool:
        return (self.pinned >= need.pinned and self.shared >= need.shared
                and self.pages.get(need.page, 0) >= need.memory
                and (self.bandwidth is None
                     or self.bandwidth >= need.bandwidth)
                and all(self.devices.get(device, 0) >= count
                        for device, count in need.devices))

    def without(self, need: NodeNeed, claimed: bool,
                counted: bool) -> 'NodeRoom':
        """After a guest node.

        :param claimed: take what Nova counts.
        :param counted: take bandwidth.
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
class Row:
    """A host as it has reported itself.

    :param updated: changes with each report.
    :param guests: how many the report counts.
    :param steered: whether it runs our driver.
    """

    uuid: str
    name: str
    cell: str
    updated: Hashable
    nodes: tuple[NodeRoom, ...] = ()
    guests: int = 0
    steered: bool = False
    left: headroom.Headroom | None = None


@dataclass
class _Claim:
    """A guest that this scheduler has placed.

    :ivar nodes: place of the host node of each guest node.
    :ivar claimed: whether it is not in what Nova reports of the host yet.
    :ivar counted: whether it is not in the figures of Placement's resources.
    """

    need: Need
    nodes: tuple[int, ...]
    time: float
    claimed: bool = True
    counted: bool = True


class Host:
    """A host, and what this scheduler has done to it since its report."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.refused: dict[Need, float] = {}
        self._claims: dict[str, _Claim] = {}
        self._bandwidth: dict[int, int] = {}
        self._groups: int | None = None
        self._hear(row.left)
        self._settle(0.0)

    def _hear(self, left: headroom.Headroom | None) -> None:
        if left is not None:
            self._bandwidth, self._groups = dict(left.bandwidth), left.groups

    def report(self, row: Row, now: float) -> bool:
        """Take a newer report.

        :returns: whether the host may have more now than before.
        """
        before, was, had = self.rooms, self.row, self.groups
        self._arrive('claimed', row.guests - was.guests)
        if row.left is not None and row.left != was.left:
            self._arrive('counted', row.left.guests
                         - (was.left.guests if was.left else 0))
            self._hear(row.left)
        self.row = row
        self._settle(now)
        more = (_gained(before, self.rooms) or row.steered > was.steered
                or (self.groups or 0) > (had or 0))
        if more:
            self.refused.clear()
        return more

    def _arrive(self, what: str, count: int) -> None:
        """So many more guests are in a report: the oldest claims."""
        for claim in self._claims.values():
            if count > 0 and getattr(claim, what):
                setattr(claim, what, False)
                count -= 1

    def hear(self, bandwidth: Mapping[int, int], groups: int | None,
             now: float) -> None:
        """Take what Placement itself says is left."""
        self._bandwidth.update(bandwidth)
        self._groups = groups
        for claim in self._claims.values():
            claim.counted = False
        self._settle(now)

    def claim(self, consumer: str, need: Need, now: float) -> None:
        nodes = self.fit(need)
        if nodes is not None:
            self._claims[consumer] = _Claim(need, nodes, now)
            self._settle(now)

    def release(self, consumer: str) -> None:
        claim = self._claims.pop(consumer, None)
        if claim is not None:
            self._settle(claim.time)

    def _settle(self, now: float) -> None:
        """Work out what is left."""
        self._claims = {
            consumer: claim for consumer, claim in self._claims.items()
            if (claim.claimed or claim.counted)
            and now - claim.time < CLAIM_AGE}
        rooms = [replace(node, bandwidth=self._bandwidth.get(node.number))
                 for node in self.row.nodes]
        groups = self._groups
        for claim in self._claims.values():
            if groups is not None and claim.counted:
                groups -= claim.need.groups
            for place, need in zip(claim.nodes, claim.need.nodes,
                                   strict=True):
                if place < len(rooms):
                    rooms[place] = rooms[place].without(
                        need, claim.claimed, claim.counted)
        self.rooms, self.groups = tuple(rooms), groups

    def fit(self, need: Need) -> tuple[int, ...] | None:
        """Place of a host node for each guest node; None if there is none.

        The largest guest node first, each on the tightest host node. That
        is exact for guest nodes that are alike.
        """
        if need.steered and not self.row.steered:
            return None
        if self.groups is not None and self.groups < need.groups:
            return None
        taken: dict[int, int] = {}
        order = sorted(range(len(need.nodes)), reverse=True,
                       key=lambda number: _size(need.nodes[number]))
        for number in order:
            wanted = need.nodes[number]
            places = [place for place, room in enumerate(self.rooms)
                      if place not in taken.values() and room.holds(wanted)]
            if not places:
                return None
            taken[number] = min(places, key=lambda place: _cost(
                self.rooms[place], wanted))
        return tuple(taken[number] for number in range(len(need.nodes)))

    def is_refused(self, need: Need, now: float) -> bool:
        when = self.refused.get(need)
        return when is not None and now - when < REFUSAL_AGE


def _size(need: NodeNeed) -> tuple[int, ...]:
    return (sum(count for _device, count in need.devices), need.bandwidth,
            need.pinned, need.shared, need.memory)


def _cost(room: NodeRoom, need: NodeNeed) -> tuple[bool, bool, int]:
    """Whole nodes, and nodes with devices, are for those that need them."""
    spare = not need.devices and any(room.devices.values())
    return room.pinned == room.cpus, spare, room.pinned - need.pinned


def _gained(before: Sequence[NodeRoom], after: Sequence[NodeRoom]) -> bool:
    if len(before) != len(after):
        return True
    return any(
        new.pinned > old.pinned or new.shared > old.shared
        or new.bandwidth != old.bandwidth and (
            new.bandwidth is None or old.bandwidth is None
            or new.bandwidth > old.bandwidth)
        or _more(old.pages, new.pages) or _more(old.devices, new.devices)
        for old, new in zip(before, after, strict=True))


def _more(old: Mapping[Any, int], new: Mapping[Any, int]) -> bool:
    return any(left > old.get(name, 0) for name, left in new.items())


class Index:
    """All hosts of a cloud.

    :ivar gains: how often a host had, or may have had, more than before.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self.hosts: dict[str, Host] = {}
        self.gains = 0
        self._gained: collections.deque[str] = collections.deque(
            maxlen=_GAINS)
        self._order: list[str] = []
        self._placed: dict[str, str] = {}    # consumer -> host
        self._unavailable: frozenset[str] = frozenset()
        self._chance = chance or random.Random()  # noqa: S311

    def report(self, rows: Iterable[Row], gone: Iterable[str],
               now: float) -> None:
        """Take the reports of some hosts."""
        for row in rows:
            known = self.hosts.get(row.uuid)
            if known is None:
                self.hosts[row.uuid] = Host(row)
                self._order.append(row.uuid)
                self._gain(row.uuid)
            elif (known.row.updated != row.updated
                    and known.report(row, now)):
                self._gain(row.uuid)
        lost = {uuid for uuid in gone if self.hosts.pop(uuid, None)}
        if lost:
            self._order = [uuid for uuid in self._order if uuid not in lost]

    def set_unavailable(self, names: Collection[str]) -> None:
        """Which hosts are disabled or down."""
        back = self._unavailable - set(names)
        self._unavailable = frozenset(names)
        for uuid, host in self.hosts.items() if back else ():
            if host.row.name in back:
                self._gain(uuid)

    def _gain(self, uuid: str) -> None:
        self.gains += 1
        self._gained.append(uuid)

    def may_fit_since(self, need: Need, gains: int) -> bool:
        """Whether a host that has more now seems to have room.

        :param gains: as the index had them then.
        """
        count = self.gains - gains
        if count > len(self._gained):
            return True
        gained = set(itertools.islice(reversed(self._gained), count))
        return any(host.fit(need) is not None for host in map(
            self.hosts.get, gained) if host is not None)

    def propose(self, need: Need, allowed: Callable[[Row], bool],
                tried: Collection[str], now: float) -> list[Host]:
        """Hosts that seem to have room, walking on from a random one.

        :param allowed: whether a host may be proposed at all.
        :param tried: those that were proposed for the request already.
        """
        count = len(self._order)
        start = self._chance.randrange(count) if count else 0
        found: list[Host] = []
        for step in range(count):
            host = self.hosts[self._order[(start + step) % count]]
            if (host.row.name in self._unavailable or host.row.uuid in tried
                    or host.is_refused(need, now)
                    or not allowed(host.row) or host.fit(need) is None):
                continue
            found.append(host)
            if len(found) == POOL:
                break
        return found

    def claim(self, uuid: str, consumer: str, need: Need,
              now: float) -> None:
        """A guest was placed on a host."""
        self.release(consumer)
        host = self.hosts.get(uuid)
        if host is not None:
            self._placed[consumer] = uuid
            host.claim(consumer, need, now)
            if len(self._placed) > _PLACED:
                del self._placed[next(iter(self._placed))]

    def release(self, consumer: str) -> None:
        """A guest is scheduled again: it is not where it was to be."""
        host = self.hosts.get(self._placed.pop(consumer, ''))
        if host is not None:
            host.release(consumer)

    def refuse(self, uuids: Iterable[str], need: Need, now: float) -> None:
        """Nova or Placement had no use for some hosts."""
        for uuid in uuids:
            if uuid in self.hosts:
                self.hosts[uuid].refused[need] = now

    def choose(self, best: Sequence[str], count: int) -> list[str]:
        """Some of the best at random: rivals have the same index."""
        return self._chance.sample(list(best), min(count, len(best)))
