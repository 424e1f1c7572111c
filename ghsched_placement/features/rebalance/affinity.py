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


"""Groups of guests that exchange much network traffic (pure).

Two guests that exchange traffic have a tie: its strength is their traffic in
bytes per second, as an exponential mean over the recent past that halves with
every half-life without traffic (numa-icon: ``s = s / 2^t``). Guests with ties,
and guests that a flavor or a server group puts together, are merged to groups,
the smaller load into the larger one, as long as the merged group stays within
its bounds.

Only traffic that passes the host's bridges is measured: the traffic of a VF is
not. Guests share no memory on their host, so memory makes no tie.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import heapq
import math

#: Two guests, in order.
Pair = tuple[str, str]


@dataclass(frozen=True)
class AffinitySettings:
    """Settings of how measured traffic between two guests decays over time.

    :param half_life: seconds without traffic after which the mean traffic of
        two guests has halved.
    :param least: bytes per second below which the traffic counts as 0. The
        default of 1 MB/s is about 1 percent of a 1 Gbit/s port; guests with
        less traffic gain nothing from being near each other.
    :param delay: seconds after which a pair of guests whose traffic counts as
        0 is forgotten.
    """

    half_life: float = 300.0
    least: float = 1e6
    delay: float = 900.0


@dataclass(frozen=True)
class Bounds:
    """Upper limits on the size of a group of guests.

    A single guest may exceed them.

    :param load: number of CPUs that the members keep busy together.
    :param members: number of guests.
    :param memory: memory of all members in MiB.
    """

    load: float = math.inf
    members: float = 16
    memory: float = math.inf

    def can_hold_group(self, group: 'AffinityGroup') -> bool:
        """Return whether a group of guests is within these limits.

        The CPUs that the group keeps busy, its number of guests and its memory
        are limited.
        """
        return (group.load <= self.load and len(group.members) <= self.members
                and group.memory <= self.memory)


@dataclass(frozen=True)
class PairTraffic:
    """Mean network traffic between two guests.

    :param strength: bytes per second, decayed as :class:`AffinitySettings`
        says.
    :param alive: last time at which the traffic was not below
        ``AffinitySettings.least``, in seconds of the clock of
        :class:`TrafficAverages`.
    """

    strength: float
    alive: float


@dataclass(frozen=True)
class TrafficAverages:
    """Mean network traffic of all pairs of guests at one time.

    :param time: seconds of a monotonic clock.
    :param by_pair: traffic by the sorted UUIDs of the two guests.
    """

    time: float = 0.0
    by_pair: Mapping[Pair, PairTraffic] = field(default_factory=dict)

    def get_mean_traffic(self, first: str, second: str) -> float:
        """Return the mean traffic between two guests, in bytes per second.

        The result is 0 if the guests have not exchanged traffic lately.

        :param first: UUID of a guest.
        :param second: UUID of another guest.
        """
        tie = self.by_pair.get(make_pair_key(first, second))
        return tie.strength if tie and tie.alive == self.time else 0.0


@dataclass(frozen=True)
class Member:
    """Guest that can be put into a group of guests.

    :param load: number of CPUs that the guest keeps busy.
    :param memory: memory of the guest in MiB.
    :param declared: name, with the project, of the group into which the user
        has put the guest; empty if the user has not.
    """

    uuid: str
    load: float = 0.0
    memory: float = 0.0
    declared: str = ''


@dataclass(frozen=True)
class AffinityGroup:
    """Group of guests that should run on the same host NUMA node.

    :param lead: UUID of the guest to whose node the others are moved. When two
        groups are merged, the lead of the larger group is kept.
    :param members: UUIDs of all guests of the group.
    :param load: number of CPUs that the members keep busy together.
    :param memory: memory of all members in MiB.
    """

    lead: str
    members: frozenset[str]
    load: float
    memory: float

    @property
    def size_key(self) -> tuple[float, float, str]:
        """Sort key that orders groups of guests by size.

        The key is the CPU load and the memory of all members, and the UUID of
        the lead guest.
        """
        return self.load, self.memory, self.lead


def make_pair_key(first: str, second: str) -> Pair:
    """Return the UUIDs of two guests in sorted order.

    The result is the key under which the traffic of the two guests is stored.

    :param first: UUID of a guest.
    :param second: UUID of another guest.
    """
    return (first, second) if first <= second else (second, first)


def update_traffic_averages(averages: TrafficAverages,
                            sent: Mapping[Pair, float], now: float,
                            settings: AffinitySettings) -> TrafficAverages:
    """Add new measurements to the mean network traffic between guests.

    The means are weighted exponentially: the weight of a measurement halves
    with each half-life in the settings.

    :param averages: mean traffic of each pair of guests so far.
    :param sent: bytes that each pair of guests exchanged since
        ``averages.time``; both orders of a pair are added up.
    :param now: current time in seconds, not before ``averages.time``.
    :returns: the means with the measurements, without pairs whose mean has
        been below ``settings.least`` for ``settings.delay`` seconds.
    """
    elapsed = now - averages.time
    if elapsed <= 0:
        return averages
    rates = _sum_rates(sent, elapsed)
    left = 2.0 ** (-elapsed / settings.half_life)
    found = {}
    for key in averages.by_pair.keys() | rates.keys():
        before = averages.by_pair.get(key, PairTraffic(0.0, averages.time))
        rate = rates.get(key, 0.0)
        strength = rate + (before.strength - rate) * left
        alive = now if strength >= settings.least else before.alive
        if now - alive < settings.delay or strength >= settings.least:
            found[key] = PairTraffic(strength, alive)
    return TrafficAverages(now, found)


def select_busiest_pairs(averages: TrafficAverages, uuids: Iterable[str],
                         limit: int) -> TrafficAverages:
    """Return only the traffic of the pairs of guests with the most traffic.

    For each of the given guests, the pairs with its busiest peers are kept.
    All other pairs are dropped.

    :param averages: mean traffic of each pair of guests.
    :param uuids: UUIDs of the guests.
    :param limit: maximum number of pairs that each guest contributes.
    """
    by_name: dict[str, list[Pair]] = {name: [] for name in uuids}
    for key in averages.by_pair:
        for name in key:
            if name in by_name:
                by_name[name].append(key)
    kept = {key for keys in by_name.values() for key in heapq.nlargest(
        limit, keys, key=lambda key: (averages.by_pair[key].strength, key))}
    return replace(averages, by_pair={
        key: tie for key, tie in averages.by_pair.items() if key in kept})


def _sum_rates(
        sent: Mapping[Pair, float], seconds: float) -> dict[Pair, float]:
    summed: dict[Pair, list[float]] = {}
    for (one, other), count in sent.items():
        if one != other and count > 0:
            summed.setdefault(make_pair_key(one, other),
                              []).append(count / seconds)
    return {key: math.fsum(counts) for key, counts in summed.items()}


def group_guests_by_traffic(members: Iterable[Member],
                            averages: TrafficAverages,
                            bounds: Bounds) -> tuple[AffinityGroup, ...]:
    """Group guests that exchange much network traffic.

    The guests of a group should run on the same host NUMA node. Groups that
    users have declared are formed first. Then the guests with the most traffic
    are grouped, as long as a group stays within the bounds.

    :param members: guests to group.
    :param averages: mean traffic of each pair of guests.
    :param bounds: limits on the size of a group.
    :returns: groups, the largest first. Each guest is in exactly one group.
    """
    known = {member.uuid: member for member in members}
    at = {uuid: AffinityGroup(uuid, frozenset({uuid}), member.load,
                              member.memory)
          for uuid, member in known.items()}
    for one, other in (*_pair_declared_members(known.values()),
                       *_sort_pairs(averages)):
        if one not in at or other not in at:
            continue
        mine, theirs = at[one], at[other]
        if mine is theirs:
            continue
        whole = _merge_groups(mine, theirs, known)
        if bounds.can_hold_group(whole):
            at.update(dict.fromkeys(whole.members, whole))
    return tuple(sorted(set(at.values()), key=lambda group: group.size_key,
                        reverse=True))


def _pair_declared_members(members: Iterable[Member]) -> list[Pair]:
    """Return pairs of guests that users have put into the same group.

    The largest guest of each group is paired with every other member.
    """
    by_name: dict[str, list[Member]] = {}
    for member in members:
        if member.declared:
            by_name.setdefault(member.declared, []).append(member)
    found = []
    for _name, named in sorted(by_name.items()):
        named.sort(key=lambda member: (member.load, member.memory,
                                       member.uuid), reverse=True)
        found += [(named[0].uuid, other.uuid) for other in named[1:]]
    return found


def _sort_pairs(averages: TrafficAverages) -> list[Pair]:
    return sorted(averages.by_pair,
                  key=lambda key: (-averages.by_pair[key].strength, key))


def _merge_groups(first: AffinityGroup, second: AffinityGroup,
                  known: Mapping[str, Member]) -> AffinityGroup:
    """Merge two groups of guests into one.

    The guests of a group should run on the same host NUMA node. Load and
    memory are summed over all members again, so that the sums do not depend on
    the order of merges.

    :param known: all guests, by UUID.
    """
    members = first.members | second.members
    return AffinityGroup(
        max(first, second, key=lambda group: group.size_key).lead, members,
        math.fsum(known[uuid].load for uuid in members),
        math.fsum(known[uuid].memory for uuid in members))


def add_server_group_traffic(members: Iterable[Member],
                             averages: TrafficAverages,
                             minimum: float) -> TrafficAverages:
    """Raise the traffic between guests of a server group to a minimum.

    With a soft-affinity group, a user asks for servers to be near each other.
    The largest member of a group therefore counts as exchanging at least the
    minimum with every other member.

    :param members: guests, with the group that a user has put them into.
    :param averages: mean traffic of each pair of guests.
    :param minimum: minimum traffic in bytes per second.
    :returns: a copy of ``averages`` with the raised values.
    """
    found = dict(averages.by_pair)
    for one, other in _pair_declared_members(members):
        key = make_pair_key(one, other)
        if averages.get_mean_traffic(one, other) < minimum:
            found[key] = PairTraffic(minimum, averages.time)
    return TrafficAverages(averages.time, found)
