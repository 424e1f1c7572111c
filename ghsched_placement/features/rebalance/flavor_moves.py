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

"""Moves of running guests that make room for guests of one flavor (pure).

The search finds the cheapest of the smallest sets of moves. Moves within a
host are tried before moves between hosts. The number of steps is limited; in a
step, the free resources of one host are checked.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import math

from ghsched_placement.features.rebalance.move_plan import Move
from ghsched_placement.features.rebalance.move_plan import Settings
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.fit import capacity
from ghsched_placement.fit import counting
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand

#: Maximum number of moves to make room for one more guest.
MOVES_PER_GUEST = 2

#: Maximum number of search steps to make room for one more guest. In each
#: step one host is checked.
STEPS = 20_000

#: Maximum number of other hosts that are tried as destinations of a guest.
DESTINATIONS = 8


@dataclass(frozen=True)
class MovableGuest:
    """A running guest with one NUMA node that can be moved.

    :param spot: host NUMA node on which it runs.
    :param demand: resources that it uses on its host.
    :param memory: RAM in MiB.
    :param vcpus: number of its vCPUs.
    :param inside: whether it can be moved to another NUMA node of its host.
    :param between: whether it can be migrated to another host.
    :param by_cache: number of its dedicated CPUs of each L3 cache of its host
        NUMA node; empty if unknown.
    """

    uuid: str
    spot: Spot
    demand: GuestDemand
    memory: int
    vcpus: int = 1
    inside: bool = True
    between: bool = True
    by_cache: tuple[int, ...] = ()

    def leave(self, host: capacity.HostInventory) -> capacity.HostInventory:
        """Return the guest's host with the resources of the guest free."""
        return fitting.give_guest(host, self.demand, (self.spot.node,),
                                  (self.by_cache,))


@dataclass(frozen=True)
class RoomPlan:
    """Planned moves that make room for new guests of a flavor.

    :param moves: moves in the order in which they are to be made.
    :param fits: number of new guests of the flavor that fit after the moves.
    :param is_cut: whether the search was stopped by its limit of steps, so
        that a better plan may exist.
    """

    moves: tuple[Move, ...] = ()
    fits: int = 0
    is_cut: bool = False


@dataclass(frozen=True)
class _Cloud:
    """Hosts with their free capacity, and running guests, after some moves.

    :param hosts: hosts by name.
    :param guests: guests by UUID.
    """

    hosts: Mapping[str, capacity.HostInventory]
    guests: Mapping[str, MovableGuest]

    def move_guest(self, guest: MovableGuest, spot: Spot) -> '_Cloud':
        """Return a copy of the cloud in which a guest is on another host node.

        :param spot: host NUMA node to move the guest to.
        """
        hosts = {**self.hosts, guest.spot.host: guest.leave(
            self.hosts[guest.spot.host])}
        before, nodes = hosts[spot.host], (spot.node,)
        after = fitting.take_guest(before, guest.demand, nodes)
        by_cache, = fitting.count_taken_by_cache(before, after, nodes)
        return _Cloud({**hosts, spot.host: after}, {
            **self.guests, guest.uuid: replace(guest, spot=spot,
                                               by_cache=by_cache)})


def plan_moves_for_flavor(hosts: Sequence[capacity.HostInventory],
                          guests: Sequence[MovableGuest],
                          demands: Sequence[GuestDemand],
                          count: int = 1,
                          settings: Settings | None = None) -> RoomPlan:
    """Plan moves of running guests so that new guests of a flavor fit.

    The plan is empty if the new guests fit already, or if no moves help.

    :param hosts: hosts that accept guests.
    :param guests: guests on these hosts that may be moved.
    :param demands: resources that each new guest needs, as in
        :func:`ghsched_placement.fit.fitting.count_guests`.
    :param count: number of new guests.
    """
    by_name = {host.name: host for host in hosts}
    cloud = _Cloud(by_name, {guest.uuid: guest for guest in guests
                             if guest.spot.host in by_name})
    fits = {host.name: fitting.count_guests(host, demands).guests
            for host in hosts}
    moves: list[Move] = []
    while sum(fits.values()) < count:
        search = _Search(demands, settings or Settings(), fits)
        found = search.find_fewest_moves(cloud)
        if found is None:
            return RoomPlan(fits=sum(fits.values()), is_cut=search.is_cut)
        steps, cloud = found
        moves += steps
        for name in _list_hosts(steps):
            fits[name] = fitting.count_guests(cloud.hosts[name],
                                              demands).guests
    return RoomPlan(tuple(moves), sum(fits.values()))


class _OutOfSteps(Exception):
    """Raised when the search has reached its limit of steps."""


def _list_hosts(moves: Iterable[Move]) -> frozenset[str]:
    return frozenset(spot.host for move in moves
                     for spot in (move.origin, move.destination))


class _Search:
    """Search for the moves that make room for one more new guest of a flavor.

    :param demands: resources that the new guest needs.
    :param fits: number of guests of the flavor that fit without moves, by
        host.
    :ivar is_cut: whether the search was stopped by its limit of steps.
    """

    def __init__(self, demands: Sequence[GuestDemand], settings: Settings,
                 fits: Mapping[str, int]) -> None:
        self._demands = demands
        self._settings = settings
        self._fits = fits
        self._steps = 0
        self._best: tuple[tuple[Move, ...], _Cloud] | None = None
        self._best_cost = math.inf
        self.is_cut = False

    def find_fewest_moves(self, cloud: _Cloud
                          ) -> tuple[tuple[Move, ...], _Cloud] | None:
        """Find the fewest moves after which one more new guest fits.

        Of equally few moves, the cheapest are returned. If the search ends at
        its step limit, cheaper moves may exist.

        :param cloud: hosts and running guests before the moves.
        :returns: the moves and the cloud after them; None if no moves help.
        """
        for number in range(1, MOVES_PER_GUEST + 1):
            for stay_on_host in (True, False):
                self._steps = 0
                try:
                    self._search_cheapest_moves(
                        cloud, (), number, stay_on_host)
                except _OutOfSteps:
                    self.is_cut = True
                if self._best:
                    return self._best
        return None

    def _search_cheapest_moves(self, cloud: _Cloud, before: tuple[Move, ...],
                               number: int, stay_on_host: bool) -> None:
        """Search for the cheapest moves after which one more new guest fits.

        Every way to complete the moves chosen so far is tried. The cheapest
        one is stored in ``self._best``. The function calls itself with one
        more chosen move.

        :param cloud: state of the cloud after the chosen moves.
        :param before: moves chosen so far.
        :param number: number of moves still to choose.
        :param stay_on_host: whether guests must stay on their hosts.
        """
        touched = _list_hosts(before)
        spent = sum(move.cost for move in before)
        resting = {move.guest for move in before}
        for guest in sorted(cloud.guests.values(), key=lambda one: (
                self._get_move_cost(one, one.spot), one.uuid)):
            if spent + self._get_move_cost(
                    guest, guest.spot) >= self._best_cost:
                return
            if guest.uuid in resting or stay_on_host and (
                    touched and guest.spot.host not in touched
                    or not self._has_enough_free_in_total(
                        cloud.hosts[guest.spot.host])):
                continue
            for spot in self._yield_destinations(cloud, guest, stay_on_host):
                move = Move(guest.uuid, guest.spot, spot, 'makes room', 0.0,
                            self._get_move_cost(guest, spot))
                if touched and not touched & _list_hosts([move]):
                    continue
                after, moves = cloud.move_guest(guest, spot), (*before, move)
                if number > 1:
                    self._search_cheapest_moves(
                        after, moves, number - 1, stay_on_host)
                elif spent + move.cost < self._best_cost and (
                        self._can_fit_more_guests(
                            after, touched | _list_hosts([move]))):
                    self._best = moves, after
                    self._best_cost = spent + move.cost

    def _has_enough_free_in_total(self, host: capacity.HostInventory) -> bool:
        """Return whether a host's free resources in total suffice for a guest.

        The free amounts of its NUMA nodes are added up. If they do not
        suffice, moving guests within the host cannot help.
        """
        return any(counting.count_guests_without_nodes(
            host.amounts, demand.make_need(host, shares_group=True))
            for demand in self._demands)

    def _yield_destinations(self, cloud: _Cloud, guest: MovableGuest,
                            stay_on_host: bool) -> Iterator[Spot]:
        """Yield the host NUMA nodes that a guest can be moved to.

        :param cloud: state of the cloud after the moves so far.
        :param stay_on_host: whether the guest must stay on its host.
        """
        host = guest.leave(cloud.hosts[guest.spot.host])
        for node in host.nodes if guest.inside else ():
            if node.number not in (None, guest.spot.node) and self._check_fit(
                    replace(host, nodes=(node,)), guest.demand).guests:
                yield Spot(host.name, int(node.number or 0))
        if stay_on_host or not guest.between:
            return
        tried = 0
        for other in cloud.hosts.values():
            if other.name == host.name or tried == DESTINATIONS:
                continue
            verdict = self._check_fit(other, guest.demand)
            if verdict.guests and not verdict.needs_shared_group:
                tried += 1
                yield Spot(other.name, verdict.nodes[0])

    def _can_fit_more_guests(self, cloud: _Cloud,
                             hosts: frozenset[str]) -> bool:
        """Return whether more new guests fit on hosts after moves than before.

        :param cloud: state of the cloud after the moves.
        :param hosts: names of the hosts that the moves have changed.
        """
        return sum(self._check_fit(cloud.hosts[name], *self._demands).guests
                   for name in hosts) > sum(self._fits[name]
                                            for name in hosts)

    def _check_fit(self, host: capacity.HostInventory,
                   *demands: GuestDemand) -> fitting.Verdict:
        self._steps += 1
        if self._steps > STEPS:
            raise _OutOfSteps
        return fitting.check_host_capacity(host, *demands)

    def _get_move_cost(self, guest: MovableGuest, spot: Spot) -> float:
        """Return how many CPU seconds it costs to move a guest to a host node.

        :param spot: host NUMA node to move the guest to.
        """
        rate = (self._settings.inside_rate if spot.host == guest.spot.host
                else self._settings.between_rate)
        return (guest.memory / rate
                * (1 + self._settings.slowed * guest.vcpus))


def is_guest_movable(demand: GuestDemand, guest_nodes: int) -> bool:
    """Return whether guests with these resources can be moved by a plan.

    Plans move only guests with one NUMA node, no VFs and a fixed page size or
    none.

    :param demand: resources that the guest uses.
    :param guest_nodes: number of the guest's NUMA nodes.
    """
    return (guest_nodes == 1 and not demand.policy.vfs
            and not isinstance(demand.page_size, str))


def describe_missing_resources(
        hosts: Sequence[capacity.HostInventory], demand: GuestDemand) -> str:
    """Describe which resources for a guest the most suitable host lacks.

    The host with the most free bandwidth counts as the most suitable.

    :param demand: resources that a guest of the flavor needs.
    """
    def free(host: capacity.HostInventory) -> int:
        return sum(node.bandwidth.free for node in host.nodes
                   if node.bandwidth)
    verdicts = [fitting.check_host_capacity(host, demand)
                for host in sorted(hosts, key=free, reverse=True)[:1]]
    return ''.join(f'{one.host}: {"; ".join(one.reason_texts)}'
                   for one in verdicts if one.reason_texts)
