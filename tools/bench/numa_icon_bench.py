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

"""Simulate the share of time in which NUMA nodes are bottlenecks, with churn.

Guests come, change their load and go for two days, in four clouds that get
the same guests:

* ``none``: the first host and the lowest-numbered node with room.
* ``Nova``: the host and the node with the most vCPUs left, as Nova's default
  weighers and its choice of cells have it.
* ``static``: the best that can be had without a move: the node where least is
  wanted, by what the guest and all others there will want on average for as
  long as they live, which nobody knows.
* ``ours``: the node where least is wanted now, by
  :mod:`ghsched_placement.rebalance.move_plan`, and moves by its plan every
  ten minutes.

Nothing here is measured: loads are random, CPUs are shared out as far as they
go, and what waits for memory is the contention model's.

usage::

    python tools/bench/numa_icon_bench.py [--seeds 20]
"""

import bench_path  # noqa: F401

import argparse
import collections
from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
import math
import random
import statistics

from scipy import stats

from ghsched_placement import bottleneck
from ghsched_placement.contention import queueing
from ghsched_placement.rebalance import affinity
from ghsched_placement.rebalance import affinity_policy
from ghsched_placement.rebalance import move_plan
from ghsched_placement.rebalance.move_plan import Spot

#: Seconds between two looks, and of all.
STEP, END = 600, 2 * 86400
HOSTS, NODES, CPUS = 8, 4, 32
#: vCPUs for a CPU, bytes per second and MiB of a node.
RATIO, BANDWIDTH, MEMORY = 2.0, 100e9, 262144
#: Seconds that a guest lives, and that its load stays what it is.
LIFE, MOOD = 6 * 3600.0, 2 * 3600.0
#: Part of all vCPUs that guests have on average.
FILL = 0.7
#: Part of its vCPUs that a guest keeps busy, and how often.
MOODS = ((0.1, 5), (0.4, 4), (0.95, 2))
SETTINGS = move_plan.Settings()
#: Part by which a host's figures fall before a bottleneck ends.
HOST_HYSTERESIS = bottleneck.HYSTERESIS / 100


@dataclass(frozen=True)
class Guest:
    """A guest, all of whose life is known beforehand.

    :param moods: part of its vCPUs that are busy, by step.
    :param hungry: bytes per second of a busy vCPU.
    :param group: those that it talks to.
    :param talks: bytes per second to each of them.
    """

    name: str
    begin: int
    vcpus: int
    moods: tuple[float, ...]
    hungry: float
    group: int
    talks: float

    @property
    def memory(self) -> int:
        return 2048 * self.vcpus

    def busy(self, step: int) -> float:
        """vCPUs."""
        return self.vcpus * self.moods[step - self.begin]

    @property
    def usual(self) -> float:
        return self.vcpus * statistics.fmean(self.moods)


def guests(rng: random.Random) -> dict[int, list[Guest]]:
    """All guests by the step that they come with."""
    found: dict[int, list[Guest]] = collections.defaultdict(list)
    sizes = (2, 4, 4, 8)
    rate = (HOSTS * NODES * CPUS * RATIO * FILL / statistics.fmean(sizes)
            * STEP / LIFE)
    number = group = 0
    # The cloud begins as full as it stays.
    for step in range(-int(3 * LIFE / STEP), END // STEP):
        come = rng.expovariate(1 / rate)
        while come > 0:
            group += 1
            talks = rng.choice((0.0, 5e7, 2e8))
            for _member in range(rng.choice((1, 1, 2, 3))):
                come, number = come - 1, number + 1
                found[step].append(Guest(
                    f'g{number}', step, rng.choice(sizes), _moods(rng),
                    rng.choice((0.5e9, 1e9, 4e9)), group, talks))
    return found


def _moods(rng: random.Random) -> tuple[float, ...]:
    steps = 1 + int(rng.expovariate(1 / LIFE) / STEP)
    shares, weights = zip(*MOODS, strict=True)
    found: list[float] = []
    while len(found) < steps:
        mood, = rng.choices(shares, weights)
        found += [mood] * (1 + int(rng.expovariate(1 / MOOD) / STEP))
    return tuple(found[:steps])


@dataclass
class Cloud:
    """Fake of Nova: guests by node, and the figures of its hosts."""

    at: dict[str, Spot] = dataclasses.field(default_factory=dict)
    guests: dict[str, Guest] = dataclasses.field(default_factory=dict)
    vcpus: collections.Counter[Spot] = dataclasses.field(
        default_factory=collections.Counter)

    spots = tuple(Spot(f'host{host}', node)
                  for host in range(HOSTS) for node in range(NODES))

    def put(self, guest: Guest, spot: Spot) -> None:
        self.take(guest.name)
        self.at[guest.name], self.guests[guest.name] = spot, guest
        self.vcpus[spot] += guest.vcpus

    def take(self, name: str) -> None:
        spot = self.at.pop(name, None)
        if spot is not None:
            self.vcpus[spot] -= self.guests.pop(name).vcpus

    def room(self, guest: Guest) -> list[Spot]:
        return [spot for spot in self.spots
                if self.vcpus[spot] + guest.vcpus <= RATIO * CPUS]

    def wanted(self, of: Callable[[Guest], float]
               ) -> dict[Spot, tuple[float, float]]:
        """CPUs and bytes per second that are wanted, by node."""
        found = dict.fromkeys(self.spots, (0.0, 0.0))
        for name, spot in self.at.items():
            guest = self.guests[name]
            cpus = of(guest)
            found[spot] = (found[spot][0] + cpus,
                           found[spot][1] + cpus * guest.hungry)
        return found


def pressure(wanted: tuple[float, float]) -> float:
    """Return the pressure as the rebalancer computes it; 1 is a bottleneck."""
    return max(wanted[0] / (CPUS * SETTINGS.cpu),
               wanted[1] / (BANDWIDTH * SETTINGS.memory))


def _most_left(cloud: Cloud, spots: Sequence[Spot], _guest: Guest,
               _step: int) -> Spot:
    hosts: collections.Counter[str] = collections.Counter()
    for spot, vcpus in cloud.vcpus.items():
        hosts[spot.host] += vcpus
    return min(spots, key=lambda spot: (hosts[spot.host], cloud.vcpus[spot],
                                        spot))


def _least(cloud: Cloud, spots: Sequence[Spot], guest: Guest,
           of: Callable[[Guest], float]) -> Spot:
    wanted, cpus = cloud.wanted(of), of(guest)
    return min(spots, key=lambda spot: (pressure((
        wanted[spot][0] + cpus, wanted[spot][1] + cpus * guest.hungry)),
        spot))


def _usual(cloud: Cloud, spots: Sequence[Spot], guest: Guest,
           _step: int) -> Spot:
    return _least(cloud, spots, guest, lambda one: one.usual)


def _now(cloud: Cloud, spots: Sequence[Spot], guest: Guest,
         step: int) -> Spot:
    # What a guest will do is not known when it comes.
    return _least(cloud, spots, guest, lambda one: (
        one.vcpus / 2 if one is guest else one.busy(step)))


#: How a node is chosen, by name, and whether guests are moved.
WAYS: dict[str, tuple[Callable[..., Spot], bool]] = {
    'none': (lambda _cloud, spots, _guest, _step: min(spots), False),
    'Nova': (_most_left, False), 'static': (_usual, False),
    'placed by load': (_now, False), 'ours': (_now, True)}


@dataclass
class Figures:
    """Figures of one cloud, summed over nodes, guests and steps."""

    guests: int = 0
    guest_steps: int = 0
    nodes: int = 0
    bottlenecks: int = 0
    wanted: float = 0.0
    given: float = 0.0
    memory_wait: float = 0.0
    apart: float = 0.0
    talk: float = 0.0
    moves: int = 0
    returns: int = 0
    early: int = 0

    def shown(self) -> dict[str, float]:
        """Return the figures by name and unit."""
        days = self.guest_steps * STEP / 86400
        return {
            'nodes are bottlenecks, % of time':
                100 * self.bottlenecks / self.nodes,
            'CPU that is waited for, % of wanted':
                100 * (1 - self.given / self.wanted),
            'wait for memory, idle latencies':
                self.memory_wait / self.wanted,
            'traffic between nodes, % of bytes':
                100 * self.apart / self.talk,
            'moves per guest-day': self.moves / days,
            'returns within a day per guest-day': self.returns / days,
            'moved twice within the cool-down': float(self.early)}


class Run:
    """Simulation of one cloud over the whole time."""

    policy: move_plan.Policy = affinity_policy.Affinity()
    settings = SETTINGS

    def __init__(self, way: str, seed: int) -> None:
        self.choose, self.moving = WAYS[way]
        self.coming = guests(random.Random(seed))  # noqa: S311
        self.cloud, self.figures = Cloud(), Figures()
        self.history: list[move_plan.Moved] = []
        self.left: dict[tuple[str, Spot], int] = {}
        self.bottlenecks: frozenset[Spot] = frozenset()

    def run(self) -> Figures:
        for step in range(min(self.coming), END // STEP):
            self._churn(step)
            if self.moving and step >= 0:
                self._move(step)
            if step >= 0:
                self._count(step)
        return self.figures

    def _churn(self, step: int) -> None:
        for name, guest in list(self.cloud.guests.items()):
            if step >= guest.begin + len(guest.moods):
                self.cloud.take(name)
        for guest in self.coming[step]:
            room = self.cloud.room(guest)
            if room:
                self.cloud.put(guest, self.choose(
                    self.cloud, room, guest, step))
                self.figures.guests += step >= 0

    def _move(self, step: int) -> None:
        now = step * STEP
        self.history = [moved for moved in self.history
                        if now - moved.time < SETTINGS.cool_down]
        moves = self.policy.plan(
            self._seen(step), self.settings, self.history, now)
        resting = {moved.guest for moved in self.history}
        for move in moves:
            self.figures.moves += 1
            self.figures.early += move.guest in resting
            self.figures.returns += step - self.left.get(
                (move.guest, move.destination), -END) < 86400 // STEP
            self.left[move.guest, move.origin] = step
            self.cloud.put(self.cloud.guests[move.guest], move.destination)
            self.history.append(move_plan.Moved(
                move.guest, now, frozenset({move.origin.host,
                                            move.destination.host})))

    def _seen(self, step: int) -> move_plan.Cloud:
        """Return what the hosts measured in the previous step."""
        cloud, before = self.cloud, max(step - 1, 0)
        wants = {name: guest.busy(max(before, guest.begin))
                 for name, guest in cloud.guests.items()}
        ties = _ties(cloud)
        return move_plan.Cloud(
            tuple(move_plan.Node(
                spot, CPUS, 0.0, BANDWIDTH,
                memory=(RATIO * CPUS - cloud.vcpus[spot]) * 2048,
                bottleneck=spot in self.bottlenecks)
                for spot in cloud.spots),
            tuple(move_plan.Guest(
                name, cloud.at[name], wants[name],
                wants[name] * guest.hungry, guest.memory)
                for name, guest in cloud.guests.items()), ties,
            affinity.group_guests_by_traffic(
                (affinity.Member(name, wants[name], guest.memory)
                 for name, guest in cloud.guests.items()), ties,
                affinity.Bounds(load=CPUS / 2)))

    def _count(self, step: int) -> None:
        figures = self.figures
        wanted = self.cloud.wanted(lambda guest: guest.busy(step))
        found = set()
        for spot, (cpus, traffic) in wanted.items():
            figures.nodes += 1
            calm = 1 - HOST_HYSTERESIS * (spot in self.bottlenecks)
            if pressure((cpus, traffic)) >= calm:
                found.add(spot)
            figures.wanted += cpus
            figures.given += min(cpus, CPUS) * min(
                1.0, BANDWIDTH / traffic if traffic else 1.0)
            figures.memory_wait += cpus * queueing.get_mean_queueing_delay(
                traffic / BANDWIDTH)
        figures.bottlenecks += len(found)
        figures.guest_steps += len(self.cloud.at)
        self.bottlenecks = frozenset(found)
        for (one, other), tie in _ties(self.cloud).by_pair.items():
            figures.talk += tie.strength
            figures.apart += tie.strength * (
                self.cloud.at[one] != self.cloud.at[other])


def _ties(cloud: Cloud) -> affinity.TrafficAverages:
    groups: dict[int, list[Guest]] = collections.defaultdict(list)
    for guest in cloud.guests.values():
        groups[guest.group].append(guest)
    return affinity.TrafficAverages(
        0, {
            affinity.make_pair_key(one.name, other.name): affinity.PairTraffic(
                one.talks, 0) for members in groups.values() for one in members
            for other in members if one.name < other.name and one.talks})


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval (Student's t)."""
    half = (stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values)
            / math.sqrt(len(values)))
    return statistics.fmean(values), float(half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--seeds', type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    results = {way: [Run(way, seed).run() for seed in seeds] for way in WAYS}
    for way, found in results.items():
        print(f'\n{way}: {len(seeds)} seeds, '
              f'{statistics.fmean(one.guests for one in found):.0f} guests '
              'each, simulated')
        shown = [one.shown() for one in found]
        for name in shown[0]:
            mean, half = interval([one[name] for one in shown])
            print(f'  {name:38} {mean:8.3f} +- {half:.3f}')


if __name__ == '__main__':
    main()
