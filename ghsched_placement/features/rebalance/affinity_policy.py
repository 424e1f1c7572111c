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

"""Default rebalance policy: relieve bottlenecks, then gather groups (pure)."""

from collections.abc import Iterable
from collections.abc import Iterator
import itertools

from ghsched_placement.features.rebalance.move_plan import Cloud
from ghsched_placement.features.rebalance.move_plan import CloudState
from ghsched_placement.features.rebalance.move_plan import Guest
from ghsched_placement.features.rebalance.move_plan import Move
from ghsched_placement.features.rebalance.move_plan import Moved
from ghsched_placement.features.rebalance.move_plan import Policy
from ghsched_placement.features.rebalance.move_plan import Settings
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.features.rebalance.pair_search import (
    list_overloaded_nodes)
from ghsched_placement.features.rebalance.pair_search import Budget
from ghsched_placement.features.rebalance.pair_search import PAIR_STEPS
from ghsched_placement.features.rebalance.pair_search import PairSearch


class Affinity(Policy):
    """Rebalance policy that relieves bottlenecks and gathers related guests.

    Related guests exchange much network traffic; they are moved to the same
    host NUMA node. If a node is a bottleneck, the guests that exchange the
    least traffic with guests of the same node are moved away first, and of
    those that exchange equally much the one that reports the most steal.

    :param pair_steps: number of pairs of guests to compare at most, see
        :data:`.pair_search.PAIR_STEPS`; 0 to plan no moves in pairs.
    """

    def __init__(self, pair_steps: int = PAIR_STEPS) -> None:
        self._pair_steps = pair_steps

    def plan(self, cloud: Cloud, settings: Settings,
             history: Iterable[Moved] = (), now: float = 0.0
             ) -> tuple[Move, ...]:
        state = CloudState(cloud, settings)
        budget = Budget(settings, tuple(history), now)
        pairs = PairSearch(state, budget, self._pair_steps)
        found: list[Move] = []
        while budget.remaining_moves > 0:
            relief = _yield_relief_moves(state, budget)
            gathering = _yield_gathering_moves(state, budget)
            moves = (tuple(itertools.islice(relief, 1))
                     or pairs.find_best_move_pair()
                     or tuple(itertools.islice(gathering, 1)))
            if not moves:
                break
            for move in moves:
                state.apply_move(move)
                budget.count_move(move)
                found.append(move)
        return tuple(found)


def _yield_relief_moves(state: CloudState, budget: Budget) -> Iterator[Move]:
    """Yield moves of guests away from overloaded host NUMA nodes.

    The node with the highest load comes first.

    :param state: the cloud after the moves planned so far.
    :param budget: how many moves, and of which guests, are still allowed.
    """
    for spot in list_overloaded_nodes(state):
        guests = [state.guests[uuid] for uuid in state.at[spot]]
        guests.sort(key=lambda guest:
                    (state.get_traffic_with_node(guest, spot), -guest.steal,
                     guest.uuid))
        empty = {spot for spot in state.nodes if not state.at[spot]}
        # Who wants nearly all of a node may have one that nobody else is on.
        for spots, below in ((state.nodes.keys(), state.hysteresis_load), (
                empty, state.hysteresis_load * state.get_relative_load(spot))):
            for guest in guests:
                if budget.is_guest_resting(guest) or not any(
                        one.cpu for one in guest.nodes):
                    continue
                # Its other nodes would share theirs with guests.
                if guest.parts and spots is empty:
                    continue
                move = _find_best_move(state, budget, guest, spots, below,
                                       f'{spot} is a bottleneck')
                if move:
                    yield move


def _find_best_move(state: CloudState, budget: Budget, guest: Guest,
                    destinations: Iterable[Spot], max_load: float,
                    reason: str) -> Move | None:
    """Return the best move of a guest away from an overloaded host NUMA node.

    The best move saves the most CPU time after its own cost.

    :param state: the cloud after the moves planned so far.
    :param budget: how many moves, and of which guests, are still allowed.
    :param destinations: host NUMA nodes to which the guest could move.
    :param max_load: relative load that the destination must stay below.
    :param reason: reason of the move, for the user.
    :returns: None if no move is allowed and saves more than it costs.
    """
    moves = (
        state.make_profitable_move(guest, spot, reason)
        for spot in destinations
        if state.can_take_guest(guest, spot, max_load) and
        (spot.host == guest.spot.host or not budget.is_host_full(spot.host)))
    return max(filter(None, moves), default=None, key=lambda move: (
        move.gain - move.cost, move.inside,
        -state.get_relative_load(move.destination), move.destination))


def _yield_gathering_moves(state: CloudState, budget: Budget
                           ) -> Iterator[Move]:
    """Yield moves of guests to the host NUMA nodes of their peers.

    Peers are guests that exchange much network traffic. The move that saves
    most CPU time comes first.

    :param state: the cloud after the moves planned so far.
    :param budget: how many moves, and of which guests, are still allowed.
    """
    found = []
    for uuid in sorted(state.group):
        guest = state.guests.get(uuid)
        # A guest on several nodes has no node that is next to its peers.
        if guest is None or guest.parts or budget.is_guest_resting(guest):
            continue
        spot = _find_preferred_node(state, guest)
        if spot is None or (
                not state.can_take_guest(guest, spot, state.hysteresis_load)
                or (spot.host != guest.spot.host
                    and budget.is_host_full(spot.host))):
            continue
        move = state.make_profitable_move(
            guest, spot, f'exchanges traffic with guests on {spot}')
        if move:
            found.append(move)
    yield from sorted(found, key=lambda move: (move.cost - move.gain,
                                               move.guest))


def _find_preferred_node(state: CloudState, guest: Guest) -> Spot | None:
    """Return the host NUMA node with which a guest exchanges most traffic.

    Only traffic with guests of the same group counts.

    :param state: the cloud after the moves planned so far.
    :returns: None if the guest is already on that node.
    """
    by_spot: dict[Spot, float] = {}
    for peer, strength in state.peers.get(guest.uuid, {}).items():
        if peer in state.group[guest.uuid].members:
            spot = state.guests[peer].spot
            by_spot[spot] = by_spot.get(spot, 0.0) + strength
    here = by_spot.get(guest.spot, 0.0)
    best = max(by_spot, default=None,
               key=lambda spot: (by_spot[spot], spot))
    if best is None or by_spot[best] <= here:
        return None
    return best
