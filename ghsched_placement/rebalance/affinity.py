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


"""Which guests belong together, by what they say to each other (pure).

Between two guests there is a tie: bytes per second, as a mean over the recent
past that halves with every half-life in which they say nothing (numa-icon:
``s = s / 2^t``). Guests with ties, and guests that a flavor or a server group
puts together, are merged to groups, the smaller load into the larger one, as
long as the whole stays within bounds.

What is counted is what passes the host: the traffic of a VF does not. Guests
share no memory on their host, so that is no source either.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import enum
import heapq
import math

#: Two guests, in order.
Pair = tuple[str, str]


class Level(enum.IntEnum):
    """How strong a tie is among others."""

    WEAK = 1
    MEDIUM = 2
    STRONG = 3


@dataclass(frozen=True)
class Settings:
    """How ties are kept.

    :param half_life: seconds in which a tie that is not used halves.
    :param least: bytes per second below which a tie has decayed. 1 MB/s is
        a hundredth of a 1 Gbit/s port: less gains nothing by being near.
    :param delay: seconds until guests with a tie that has decayed part.
    """

    half_life: float = 300.0
    least: float = 1e6
    delay: float = 900.0


@dataclass(frozen=True)
class Bounds:
    """What no group exceeds: one of a single member may.

    :param load: CPUs that its members keep busy.
    :param members: how many.
    :param memory: MiB.
    """

    load: float = math.inf
    members: int = 16
    memory: float = math.inf

    def hold(self, group: 'Group') -> bool:
        return (group.load <= self.load and len(group.members) <= self.members
                and group.memory <= self.memory)


@dataclass(frozen=True)
class Tie:
    """What two guests say to each other.

    :param strength: bytes per second, see :class:`Settings`.
    :param alive: when it last had not decayed, seconds.
    """

    strength: float
    alive: float


@dataclass(frozen=True)
class Ties:
    """All ties at a time.

    :param time: seconds, of any clock that only goes forward.
    """

    time: float = 0.0
    by_pair: Mapping[Pair, Tie] = field(default_factory=dict)

    def strength(self, one: str, other: str) -> float:
        """Bytes per second; 0 without a tie, or with one that has decayed."""
        tie = self.by_pair.get(pair(one, other))
        return tie.strength if tie and tie.alive == self.time else 0.0


@dataclass(frozen=True)
class Member:
    """A guest that may belong to a group.

    :param load: CPUs that it keeps busy.
    :param memory: MiB.
    :param declared: group that it was put into, with whose it is: names of
        different projects are different names. Empty for none.
    """

    uuid: str
    load: float = 0.0
    memory: float = 0.0
    declared: str = ''


@dataclass(frozen=True)
class Group:
    """Guests that belong together.

    :param lead: the member that the others are brought to: that of the
        larger part each time that two were merged.
    """

    lead: str
    members: frozenset[str]
    load: float
    memory: float

    @property
    def size(self) -> tuple[float, float, str]:
        """Which of two groups is the larger; equal ones differ by name."""
        return self.load, self.memory, self.lead


def pair(one: str, other: str) -> Pair:
    """Two guests; it does not matter who talks to whom."""
    return (one, other) if one <= other else (other, one)


def observed(ties: Ties, sent: Mapping[Pair, float], now: float,
             settings: Settings) -> Ties:
    """The ties after some more time.

    The mean is one of an exponential window: it does not depend on how the
    time is cut into periods, and with nothing said it is s / 2^t, with t in
    half-lives.

    :param sent: bytes between two guests since ``ties.time``, in either
        order, both of which are counted.
    :param now: not before ``ties.time``.
    """
    elapsed = now - ties.time
    if elapsed <= 0:
        return ties
    rates = _rates(sent, elapsed)
    left = 2.0 ** (-elapsed / settings.half_life)
    found = {}
    for key in ties.by_pair.keys() | rates.keys():
        before = ties.by_pair.get(key, Tie(0.0, ties.time))
        rate = rates.get(key, 0.0)
        strength = rate + (before.strength - rate) * left
        alive = now if strength >= settings.least else before.alive
        if now - alive < settings.delay or strength >= settings.least:
            found[key] = Tie(strength, alive)
    return Ties(now, found)


def strongest(ties: Ties, names: Iterable[str], most: int) -> Ties:
    """Return the strongest ties of each of some names.

    :param most: number of ties that a name keeps.
    """
    by_name: dict[str, list[Pair]] = {name: [] for name in names}
    for key in ties.by_pair:
        for name in key:
            if name in by_name:
                by_name[name].append(key)
    kept = {key for keys in by_name.values() for key in heapq.nlargest(
        most, keys, key=lambda key: (ties.by_pair[key].strength, key))}
    return replace(ties, by_pair={key: tie for key, tie
                                  in ties.by_pair.items() if key in kept})


def _rates(sent: Mapping[Pair, float], seconds: float) -> dict[Pair, float]:
    summed: dict[Pair, list[float]] = {}
    for (one, other), count in sent.items():
        if one != other and count > 0:
            summed.setdefault(pair(one, other), []).append(count / seconds)
    return {key: math.fsum(counts) for key, counts in summed.items()}


def groups(members: Iterable[Member], ties: Ties,
           bounds: Bounds) -> tuple[Group, ...]:
    """Every guest in one group, the largest first.

    What is declared comes first, then the strongest ties. Two groups that
    would exceed a bound together stay apart, and a later, weaker tie may
    still merge each of them with another.
    """
    known = {member.uuid: member for member in members}
    at = {uuid: Group(uuid, frozenset({uuid}), member.load, member.memory)
          for uuid, member in known.items()}
    for one, other in (*_declared(known.values()), *_strongest(ties)):
        if one not in at or other not in at:
            continue
        mine, theirs = at[one], at[other]
        if mine is theirs:
            continue
        whole = _merged(mine, theirs, known)
        if bounds.hold(whole):
            at.update(dict.fromkeys(whole.members, whole))
    return tuple(sorted(set(at.values()), key=lambda group: group.size,
                        reverse=True))


def _declared(members: Iterable[Member]) -> list[Pair]:
    """Each declared member with the largest of its name."""
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


def _strongest(ties: Ties) -> list[Pair]:
    return sorted(ties.by_pair,
                  key=lambda key: (-ties.by_pair[key].strength, key))


def _merged(one: Group, other: Group, known: Mapping[str, Member]) -> Group:
    """Sums are taken of all members, so that they are the same each time."""
    members = one.members | other.members
    return Group(
        max(one, other, key=lambda group: group.size).lead, members,
        math.fsum(known[uuid].load for uuid in members),
        math.fsum(known[uuid].memory for uuid in members))


def declared(members: Iterable[Member], ties: Ties,
             strength: float) -> Ties:
    """Ties with those of a wish, which need not say a word.

    Each member of a name is tied to the largest of it.

    :param strength: bytes per second that a wish counts for at least.
    """
    found = dict(ties.by_pair)
    for one, other in _declared(members):
        key = pair(one, other)
        if ties.strength(one, other) < strength:
            found[key] = Tie(strength, ties.time)
    return Ties(ties.time, found)


def belonging(group: Group, ties: Ties) -> dict[str, float]:
    """Bytes per second of each member to all others of its group."""
    return {uuid: math.fsum(ties.strength(uuid, other)
                            for other in group.members - {uuid})
            for uuid in sorted(group.members)}


def levels(strengths: Mapping[str, float]) -> dict[str, Level]:
    """Strengths as weak, medium and strong, by thirds of their range.

    All are strong where they are equal and above 0, and weak at 0.
    """
    if not strengths:
        return {}
    low, high = min(strengths.values()), max(strengths.values())
    if low == high:
        return dict.fromkeys(strengths,
                             Level.STRONG if high else Level.WEAK)
    return {name: _level((value - low) / (high - low))
            for name, value in strengths.items()}


def _level(part: float) -> Level:
    return Level(min(3, 1 + int(3 * part)))


def weakest_first(group: Group, ties: Ties) -> Sequence[str]:
    """Members in the order in which they may leave."""
    strengths = belonging(group, ties)
    return sorted(strengths, key=lambda uuid: (strengths[uuid], uuid))
