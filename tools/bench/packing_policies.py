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

"""Ways to choose hosts and NUMA nodes, on hosts that are a table of numbers.

No service runs: what a guest takes is subtracted. The two of ghsched use the
functions that nova-scheduler uses.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
import itertools
import random
from typing import TypeAlias

from packing import Flavor
from packing import Shape
from packing import stays
from packing import worth

from ghsched_placement import fragmentation
from ghsched_placement import gradient

#: What guests that come and go ask for at a time, of what is scarcest.
LOAD = 1.15

#: Host and NUMA nodes.
Way: TypeAlias = tuple[int, tuple[int, ...]]
Expected: TypeAlias = Mapping[gradient.GuestKind, float]


def kind_of(guest: Flavor) -> gradient.GuestKind:
    node = guest.node
    return gradient.GuestKind(
        ((node.cpus, 0, node.memory_mb, node.bandwidth, node.vfs),)
        * guest.nodes, bool(node.bandwidth))


@dataclass
class Table:
    """Remaining resources of some hosts."""

    shape: Shape
    rooms: list[gradient.FreeCapacity] = field(default_factory=list)

    def __post_init__(self) -> None:
        node = self.shape.node
        whole = dict.fromkeys(range(self.shape.nodes), (
            node.cpus, 0, node.memory_mb, node.bandwidth, node.vfs))
        self.rooms = [gradient.FreeCapacity(whole, whole, self.shape.groups)
                      for _host in range(self.shape.hosts)]

    def ways(self, guest: Flavor,
             hosts: Iterable[int] | None = None) -> Iterator[Way]:
        """Return the places that a guest fits.

        :param hosts: numbers of the hosts to look at; all by default.
        """
        kind = kind_of(guest)
        for host in range(len(self.rooms)) if hosts is None else hosts:
            room = self.rooms[host]
            if kind.group and not room.groups:
                continue
            fitting = [node for node, free in room.free.items() if all(
                need <= have for need, have
                in zip(kind.nodes[0], free, strict=True))]
            for nodes in itertools.combinations(fitting, guest.nodes):
                yield host, nodes

    def take(self, guest: Flavor, way: Way) -> None:
        host, nodes = way
        self.rooms[host] = self.rooms[host].subtract_guest(kind_of(guest),
                                                           nodes)

    def give(self, guest: Flavor, way: Way) -> None:
        """The reverse of :meth:`take`."""
        kind, (host, nodes) = kind_of(guest), way
        back = gradient.GuestKind(tuple(
            (-a, -b, -c, -d, -e) for a, b, c, d, e in kind.nodes))
        room = self.rooms[host].subtract_guest(back, nodes)
        self.rooms[host] = gradient.FreeCapacity(
            room.free, room.total, (room.groups or 0) + kind.group)


Chooser: TypeAlias = Callable[[Table, Flavor, Expected], Way | None]
#: A guest that runs, with the time of its end before and its place after it.
Live: TypeAlias = tuple[float, Flavor, Way]
MakeRoom: TypeAlias = Callable[[Table, list[Live], Flavor], bool]


def first_fit(table: Table, guest: Flavor, _mix: Expected) -> Way | None:
    return next(table.ways(guest), None)


def tetris(table: Table, guest: Flavor, _mix: Expected) -> Way | None:
    """The most aligned: Grandl et al., SIGCOMM 2014."""
    taken = kind_of(guest).nodes[0]

    def aligned(way: Way) -> float:
        room = table.rooms[way[0]]
        return sum(need * have / all_of ** 2 for node in way[1]
                   for need, have, all_of in zip(
                       taken, room.free[node], room.total[node], strict=True)
                   if all_of)
    return max(table.ways(guest), key=aligned, default=None)


def score(table: Table, guest: Flavor, _mix: Expected) -> Way | None:
    """GhschedFragmentationWeigher; within a host the lowest nodes."""
    first: dict[int, Way] = {}
    for way in table.ways(guest):
        first.setdefault(way[0], way)

    def value(way: Way) -> float:
        nodes = {number: fragmentation.HostNode(
            number,
            pinned=fragmentation.NodeAmount(table.shape.node.cpus, free[0]),
            memory=fragmentation.NodeAmount(table.shape.node.memory_mb,
                                            free[2]),
            devices={f'{number}': free[4]})
            for number, free in table.rooms[way[0]].free.items()}
        of_guest = fragmentation.GuestNode(guest.node.cpus, 0,
                                           guest.node.memory_mb)
        needs = [fragmentation.DeviceNeed(
            guest.node.vfs * guest.nodes,
            frozenset(map(str, nodes)))] if guest.node.vfs else []
        return fragmentation.score_placement(
            list(nodes.values()),
            [fragmentation.PlacedGuestNode(nodes[node], of_guest)
             for node in way[1]],
            needs, guest.nodes).value
    return max(first.values(), key=value, default=None)


def descent(table: Table, guest: Flavor, mix: Expected) -> Way | None:
    """GhschedGradientWeigher, and its choice of nodes within a host."""
    kind = kind_of(guest)

    def grows(way: Way) -> float:
        growth = gradient.FragmentationGrowth(table.rooms[way[0]], mix)
        return round(growth.compute_fragmentation_growth(kind, way[1]), 9)
    return min(table.ways(guest), key=grows, default=None)


#: By name, and whether the mix is known beforehand.
CHOOSERS: Mapping[str, tuple[Chooser, bool]] = {
    'first fit': (first_fit, False),
    'Tetris': (tetris, False),
    'score (today)': (score, False),
    'FGD, learned': (descent, False),
    'FGD, known mix': (descent, True),
}
TODAY = 'score (today)'


def expected(guests: Sequence[Flavor]) -> dict[gradient.GuestKind, float]:
    return {kind: count / len(guests) for kind, count
            in Counter(map(kind_of, guests)).items()}


def arrive(shape: Shape, guests: Sequence[Flavor], chooser: Chooser,
           known: bool) -> float:
    """The worth of those that find room, as parts of all hosts."""
    table, mix, found = Table(shape), gradient.Mix(), 0.0
    beforehand = expected(guests) if known else None
    for guest in guests:
        mix.add_request(kind_of(guest))
        way = chooser(table, guest, beforehand or mix.get_kind_shares())
        if way is not None:
            table.take(guest, way)
            found += worth(shape, guest)
    return found


def clairvoyant(shape: Shape, guests: Sequence[Flavor], tries: int,
                seed: int) -> float:
    """The best of many ways to take each guest that fits.

    Who sees all guests beforehand, and may refuse none that fits, has at
    least as much.
    """
    rng = random.Random(seed)  # noqa: S311

    def anywhere(table: Table, guest: Flavor, mix: Expected) -> Way | None:
        if rng.random() < wild:
            ways = list(table.ways(guest))
            return rng.choice(ways) if ways else None
        return descent(table, guest, mix)
    best = 0.0
    for number in range(tries):
        wild = number / tries / 2
        best = max(best, arrive(shape, guests, anywhere, True))
    return best


def churn(shape: Shape, guests: Sequence[Flavor], chooser: Chooser,
          seed: int, steps: int = 600, load: float = LOAD,
          make_room: MakeRoom | None = None) -> float:
    """The part of the worth times time that is served, of what is asked for.

    Guests arrive at random and stay for an exponential time.

    :param guests: gives the flavors and their frequency.
    :param load: what is asked for at a time, of what is scarcest.
    :param make_room: function that moves guests when one was refused, and
        returns whether that one fits now.
    """
    table, mix = Table(shape), gradient.Mix()
    live: list[Live] = []
    served = asked = 0.0
    for stay in stays(shape, guests, seed, steps, load):
        for _end, guest, way in [one for one in live
                                 if one[0] <= stay.begin]:
            table.give(guest, way)
        live = [one for one in live if one[0] > stay.begin]
        mix.add_request(kind_of(stay.guest))
        chosen = chooser(table, stay.guest, mix.get_kind_shares())
        asked += stay.value
        if chosen is None and make_room and make_room(table, live,
                                                      stay.guest):
            chosen = chooser(table, stay.guest, mix.get_kind_shares())
        if chosen is not None:
            table.take(stay.guest, chosen)
            live.append((stay.end, stay.guest, chosen))
            served += stay.value
    return served / asked
