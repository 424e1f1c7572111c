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

"""Search for two moves that relieve a bottleneck together (pure)."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
import dataclasses
import math

from ghsched_placement.features.rebalance.move_plan import CloudState
from ghsched_placement.features.rebalance.move_plan import Guest
from ghsched_placement.features.rebalance.move_plan import Move
from ghsched_placement.features.rebalance.move_plan import Moved
from ghsched_placement.features.rebalance.move_plan import Settings
from ghsched_placement.features.rebalance.move_plan import Spot

#: Number of pairs of guests that a plan compares in its search of two moves.
PAIR_STEPS = 20_000

#: Number of NUMA nodes, the least crowded first, that the search of two moves
#: tries for a guest.
PAIR_NODES = 64


class Budget:
    """Number of further moves that a plan may contain, in all and by host.

    Guests that were moved recently must not be moved again.

    :param history: past moves.
    :param now: current time in seconds, by the clock of the history.
    """

    def __init__(self, settings: Settings, history: tuple[Moved, ...],
                 now: float) -> None:
        recent = [moved for moved in history
                  if now - moved.time < settings.period]
        self.remaining_moves = settings.moves - len(recent)
        self._resting = {moved.guest for moved in history
                         if now - moved.time < settings.cool_down}
        self._most = settings.per_host
        self._by_host: dict[str, int] = {}
        for moved in recent:
            self._count_hosts(moved.hosts)

    def _count_hosts(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            self._by_host[host] = self._by_host.get(host, 0) + 1

    def count_move(self, move: Move) -> None:
        self.remaining_moves -= 1
        self._resting.add(move.guest)
        self._count_hosts({move.origin.host, move.destination.host})

    def is_guest_resting(self, guest: Guest) -> bool:
        return guest.uuid in self._resting or self.is_host_full(
            guest.spot.host)

    def is_host_full(self, host: str) -> bool:
        return self._by_host.get(host, 0) >= self._most

    def can_make_moves(self, *moves: tuple[Spot, Spot]) -> bool:
        """Return whether more moves are within the limits of the plan.

        The number of moves is limited for the whole plan and for each host.

        :param moves: host NUMA node before and after each move.
        """
        hosts = Counter(host for way in moves
                        for host in {spot.host for spot in way})
        return len(moves) <= self.remaining_moves and all(
            self._by_host.get(host, 0) + count <= self._most
            for host, count in hosts.items())


def list_overloaded_nodes(state: CloudState) -> list[Spot]:
    """Return the overloaded host NUMA nodes, the most loaded first."""
    return sorted((spot for spot in state.nodes if state.is_overloaded(spot)),
                  key=lambda spot: (-state.get_relative_load(spot), spot))


class PairSearch:
    """Search for two moves that relieve a bottleneck only together.

    Once a search finds no such moves, later searches of the same plan end at
    once.

    :param state: load and free resources after the moves planned so far.
    :param budget: number of moves that are still allowed.
    :param steps: maximum number of pairs of guests to compare in all searches.
    """

    def __init__(self, state: CloudState, budget: Budget, steps: int) -> None:
        self._state = state
        self._budget = budget
        self._steps = steps
        self._is_vain = False
        self._rooms: dict[str, list[Spot]] = {}

    def find_best_move_pair(self) -> tuple[Move, ...]:
        """Find two moves that relieve an overloaded host node only together.

        A guest leaves the overloaded node, and a second guest makes room for
        it elsewhere. The most loaded node for which such a pair saves enough
        is relieved.

        :returns: the best two moves; empty if there are none.
        """
        if self._is_vain:
            return ()
        self._rooms = {}
        state = self._state
        open_nodes = sorted(
            (spot for spot, node in state.nodes.items()
             if node.open and not node.bottleneck
             and not math.isnan(state.get_relative_load(spot))),
            key=lambda spot: (state.get_relative_load(spot), spot))
        movable = {spot: self._list_movable_guests(spot)
                   for spot in open_nodes[:PAIR_NODES]}
        for origin in list_overloaded_nodes(state):
            best = max(self._yield_move_pairs(origin, movable), default=(),
                       key=lambda pair: (
                           sum(move.gain - move.cost for move in pair),
                           [(move.guest, move.destination)
                            for move in pair]))
            if best:
                return best
        self._is_vain = True
        return ()

    def _list_movable_guests(self, spot: Spot) -> list[Guest]:
        found = [self._state.guests[uuid]
                 for uuid in sorted(self._state.at[spot])]
        return [guest for guest in found if guest.cpu is not None
                and not self._budget.is_guest_resting(guest)]

    def _yield_move_pairs(
            self, origin: Spot,
            movable: Mapping[Spot,
                             Sequence[Guest]]) -> Iterator[tuple[Move, ...]]:
        """Yield pairs of moves that together relieve an overloaded host node.

        One guest leaves the overloaded node; another guest makes room for it.

        :param origin: overloaded host NUMA node.
        :param movable: movable guests by their host NUMA node, for the least
            loaded nodes that accept guests.
        """
        state = self._state
        for guest in self._list_movable_guests(origin):
            for destination, others in movable.items():
                if destination == origin:
                    continue
                for other in others:
                    self._steps -= 1
                    if self._steps < 0:
                        return
                    if not state.get_relative_load(
                            destination,
                            (guest.cpu or 0.0) - (other.cpu or 0.0),
                            guest.bandwidth
                            - other.bandwidth) < state.hysteresis_load:
                        continue
                    if not state.is_move_possible(guest, destination,
                                                  other):
                        continue
                    for room in (origin, *self._list_cheapest_destinations(
                            other, movable)):
                        yield from self._yield_profitable_pair(
                            guest, destination, other, room)

    def _list_cheapest_destinations(
            self, guest: Guest, candidates: Collection[Spot]) -> list[Spot]:
        """Return the host nodes to which moving a guest costs the least.

        At most four nodes are returned, the cheapest first.

        :param candidates: host NUMA nodes to choose from.
        """
        if guest.uuid not in self._rooms:
            self._steps -= len(candidates)
            state = self._state
            self._rooms[guest.uuid] = sorted(
                (spot for spot in candidates
                 if state.can_take_guest(guest, spot, state.hysteresis_load)),
                key=lambda spot: (state.get_move_cost(guest, spot),
                                  state.get_relative_load(spot), spot))[:4]
        return self._rooms[guest.uuid]

    def _yield_profitable_pair(
            self, guest: Guest, destination: Spot, other: Guest,
            other_destination: Spot) -> Iterator[tuple[Move, ...]]:
        """Yield the moves of two guests if allowed and if they save enough.

        :param guest: guest to move to the node of the other guest.
        :param destination: NUMA node of the other guest, to which the guest
            moves.
        :param other: guest that makes room for it.
        :param other_destination: NUMA node to which the other guest moves.
        """
        state, origin = self._state, guest.spot
        if not self._budget.can_make_moves((origin, destination),
                                           (destination, other_destination)):
            return
        is_other_first = state.is_move_possible(other, other_destination)
        if not is_other_first and not (
                other_destination == origin
                and state.is_move_possible(guest, destination)
                and state.is_move_possible(other, other_destination, guest)):
            return
        gain = self._compute_saved_cpus(
            guest, destination, other,
            other_destination) * state.settings.horizon
        costs = state.get_move_cost(guest, destination), state.get_move_cost(
            other, other_destination)
        cost = sum(costs)
        if not gain > cost * state.settings.margin:
            return
        reason = f'{origin} is a bottleneck'
        # As the costs, so that each of them pays.
        shares = [gain * part / cost if cost else gain / 2 for part in costs]
        moves = (Move(guest.uuid, origin, destination, reason, shares[0],
                      costs[0], other.uuid),
                 Move(other.uuid, destination, other_destination,
                      f'makes room on {destination}', shares[1], costs[1],
                      guest.uuid))
        yield moves[::-1] if is_other_first else moves

    def _compute_saved_cpus(self, guest: Guest, destination: Spot,
                            other: Guest, other_destination: Spot) -> float:
        """Return how many CPUs two moves of guests would save together.

        :param guest: guest to move to the node of the other guest.
        :param destination: NUMA node of the other guest, to which the guest
            moves.
        :param other: guest that makes room for it.
        :param other_destination: NUMA node to which the other guest moves.
        """
        state = self._state
        origin = guest.spot
        change: dict[Spot, list[float]] = {}
        for one, spot, sign in ((guest, origin, -1), (guest, destination, 1),
                                (other, destination,
                                 -1), (other, other_destination, 1)):
            sums = change.setdefault(spot, [0.0, 0.0])
            sums[0] += sign * (one.cpu or 0.0)
            sums[1] += sign * one.bandwidth
        if not state.get_relative_load(
                origin, *change[origin]) < state.get_relative_load(origin):
            return 0.0
        gain = math.fsum(
            state.get_excess_cpus(spot) - state.get_excess_cpus(spot, *sums)
            for spot, sums in change.items())
        before = self._compute_traffic_cpus(guest, other)
        moved = (dataclasses.replace(guest, spot=destination),
                 dataclasses.replace(other, spot=other_destination))
        try:
            state.guests.update((one.uuid, one) for one in moved)
            return gain + before - self._compute_traffic_cpus(*moved)
        finally:
            state.guests.update({guest.uuid: guest, other.uuid: other})

    def _compute_traffic_cpus(self, guest: Guest, other: Guest) -> float:
        """Return how many CPUs the network traffic of two guests keeps busy.

        Traffic between the two guests counts once. The CPUs are estimated, not
        measured.
        """
        state = self._state
        found = (state.estimate_traffic_cpus(guest, guest.spot)
                 + state.estimate_traffic_cpus(other, other.spot))
        strength = state.peers.get(guest.uuid, {}).get(other.uuid, 0.0)
        if guest.spot.host != other.spot.host:
            return found - strength * state.settings.far
        if guest.spot != other.spot:
            return found - strength * state.settings.across
        return found
