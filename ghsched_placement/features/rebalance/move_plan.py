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

"""Plan of moves of guests between host NUMA nodes that save CPU time (pure).

The rules are those of numa-icon: the guests that exchange the least traffic
with their group leave a bottleneck first; a guest leaves the best node for it
only if this node is a bottleneck; and guests of a group are moved to the same
node if they have room there.

Repeated plans come to an end. A node receives a guest only if its load stays
below the load at which a bottleneck ends. An empty node may become a
bottleneck, if its load stays below that of the node that the guest leaves by
the same factor. So each move away from an overloaded node lowers the higher
load of the two nodes, and no other move adds load to an overloaded node. Each
of these other moves brings a guest nearer to its group.

If no single guest can leave a bottleneck, a pair of moves is searched for: a
guest of another node makes room by moving to a third node or, as a swap, to
the bottleneck itself. The pair obeys the same rules.

Guests with several NUMA nodes are moved to another host only, as a whole.
Guests that are bound to no NUMA node, and those that Nova cannot move, count
as load of their nodes. Guests of unknown load are not moved, and no guest is
moved to a node of unknown load.
"""

import abc
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from dataclasses import field
import itertools
import math
from typing import NamedTuple

from ghsched_placement.features.rebalance import affinity

#: Number of ways that are tried to place the NUMA nodes of a guest on a host.
PLACEMENTS = 500

#: Entry point group of rebalance policies.
POLICIES = 'ghsched.rebalance_policies'


class Spot(NamedTuple):
    """A host NUMA node: name of the host and number of the node."""

    host: str
    node: int

    def __str__(self) -> str:
        return f'{self.host} node {self.node}'


@dataclass(frozen=True)
class Node:
    """Capacity of a host NUMA node, and its use by anything but the guests.

    The guests are those of the same :class:`Cloud`.

    :param cpus: number of online CPUs.
    :param cpu: number of CPUs kept busy by anything but the guests; None if
        the load of the node is unknown.
    :param capacity: memory bandwidth in bytes per second; None if it is
        unknown. The node is then never a bottleneck for bandwidth.
    :param bandwidth: bytes per second used by anything but the guests.
    :param memory: free memory in MiB.
    :param guarantee: percent of bandwidth that can still be guaranteed.
    :param bottleneck: whether the host has reported the node as a bottleneck.
    :param open: whether guests can be moved to the node, because nova-compute
        of its host is up and enabled.
    :param left: largest amount that one more guest can allocate from the node,
        by resource class, without the guaranteed bandwidth.
    :param groups: number of free control groups of the host.
    :param traits: traits of the host.
    """

    spot: Spot
    cpus: float
    cpu: float | None = None
    capacity: float | None = None
    bandwidth: float = 0.0
    memory: float = 0.0
    guarantee: float = 100.0
    bottleneck: bool = False
    open: bool = True
    left: Mapping[str, float] = field(default_factory=dict)
    groups: float = math.inf
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Guest:
    """A NUMA node of a guest, its load, and the resources that it uses.

    :param cpu: number of CPUs that it would keep busy if none of its vCPUs had
        to wait; None if unknown.
    :param bandwidth: used memory bandwidth in bytes per second.
    :param memory: memory in MiB.
    :param guarantee: percent of bandwidth that it has allocated in Placement.
    :param inside: whether it can be moved to another NUMA node of its host.
    :param between: whether it can be migrated to another host.
    :param dirty: memory that it writes to, in MiB per second; None if unknown.
    :param counted: amounts that it has allocated from its host NUMA node, by
        resource class, without the bandwidth of ``guarantee``.
    :param groups: number of control groups that it needs on another host.
    :param traits: traits that another host must have.
    :param parts: further NUMA nodes of the guest, on other host NUMA nodes.
    :param steal: percent of its CPU time that the guest reports as taken by
        others. It may lie, so this only orders guests of which each may leave
        a bottleneck.
    """

    uuid: str
    spot: Spot
    cpu: float | None
    bandwidth: float = 0.0
    memory: float = 0.0
    guarantee: float = 0.0
    inside: bool = True
    between: bool = True
    dirty: float | None = None
    counted: Mapping[str, float] = field(default_factory=dict)
    groups: int = 0
    traits: frozenset[str] = frozenset()
    parts: tuple['Guest', ...] = ()
    steal: float = 0.0

    @property
    def nodes(self) -> tuple['Guest', ...]:
        """All NUMA nodes of the guest."""
        return (self, *self.parts)


@dataclass(frozen=True)
class FixedGuest:
    """Running guest that no plan moves, with the reason.

    :param host: name of its host.
    :param nodes: host NUMA nodes on which it runs; empty if it is bound to
        none.
    :param reason: reason why it stays, with what would change that.
    """

    uuid: str
    host: str
    nodes: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Cloud:
    """NUMA nodes and guests of a cloud, for which moves are planned.

    :param ties: mean network traffic of each pair of guests.
    :param groups: groups of guests that should run on the same host NUMA node.
    :param fixed: guests that no plan moves. Those whose load is known are in
        ``guests`` as well; the load of the others counts as that of the node.
    """

    nodes: tuple[Node, ...]
    guests: tuple[Guest, ...]
    ties: affinity.TrafficAverages = field(
        default_factory=affinity.TrafficAverages)
    groups: tuple[affinity.AffinityGroup, ...] = ()
    fixed: tuple[FixedGuest, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Conditions under which a move is worth its cost, and limits on moves.

    :param cpu: fraction of its CPUs in use at which a node is a bottleneck.
    :param memory: fraction of its memory bandwidth in use at which a node is a
        bottleneck.
    :param hysteresis: fraction by which the load of a node must be below these
        limits for the node to receive a guest, or to count as relieved.
    :param horizon: seconds after a move over which its gain is added up.
    :param margin: smallest ratio of the gain of a move to its cost.
    :param inside_rate: MiB per second at which memory is moved within a host.
    :param between_rate: MiB per second at which memory is copied to another
        host (10 Gbit/s).
    :param slowed: fraction of its CPU time that a guest loses during a move.
    :param far: CPU seconds to send a byte to another host, sum of both hosts;
        the default is one CPU for 10 Gbit/s.
    :param across: CPU seconds to send a byte to another NUMA node of the host.
    :param moves: maximum number of moves within a period.
    :param per_host: maximum number of moves from or to a host within a period.
    :param period: length of the period in seconds.
    :param cool_down: seconds after a move in which the same guest is not moved
        again.
    """

    cpu: float = 0.9
    memory: float = 0.8
    hysteresis: float = 0.1
    horizon: float = 3600.0
    margin: float = 2.0
    inside_rate: float = 1024.0
    between_rate: float = 1024.0
    slowed: float = 0.2
    far: float = 1 / 1.25e9
    across: float = 0.3 / 1.25e9
    moves: int = 8
    per_host: int = 2
    period: float = 600.0
    cool_down: float = 3600.0


@dataclass(frozen=True)
class Moved:
    """A past move of a guest.

    :param guest: UUID of the guest.
    :param time: time of the move in seconds, by the clock of the plan's
        ``now``.
    :param hosts: names of the source and the destination host.
    """

    guest: str
    time: float
    hosts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Move:
    """A planned move of a guest to another host NUMA node.

    :param guest: UUID of the guest.
    :param reason: reason of the move, for the user.
    :param gain: CPU seconds that the move saves within the horizon.
    :param cost: CPU seconds that the move itself takes.
    :param partner: UUID of the guest whose move is needed as well; empty if
        the move does not depend on another one.
    :param others: host NUMA node before and after the move, of each further
        NUMA node of the guest.
    """

    guest: str
    origin: Spot
    destination: Spot
    reason: str
    gain: float
    cost: float
    partner: str = ''
    others: tuple[tuple[Spot, Spot], ...] = ()

    @property
    def ways(self) -> tuple[tuple[Spot, Spot], ...]:
        """Host NUMA node before and after, of each NUMA node of the guest."""
        return ((self.origin, self.destination), *self.others)

    @property
    def inside(self) -> bool:
        """Whether the move is between two NUMA nodes of the same host."""
        return self.origin.host == self.destination.host


class Policy(abc.ABC):
    """Base class of plug-ins that plan moves of guests.

    Plug-ins are entry points of the group :data:`POLICIES`.
    """

    @abc.abstractmethod
    def plan(self, cloud: Cloud, settings: Settings,
             history: Iterable[Moved] = (), now: float = 0.0
             ) -> tuple[Move, ...]:
        """Plan moves of guests between NUMA nodes.

        :param cloud: load and free resources of host NUMA nodes, and the
            guests.
        :param history: earlier moves, as far back as the cool-down and the
            period of the settings reach.
        :param now: current time in seconds, by the clock of the history.
        :returns: the moves, in the order in which to make them.
        """


def _map_traffic_by_peer(
        ties: affinity.TrafficAverages, guests: Mapping[str, Guest]
) -> dict[str, dict[str, float]]:
    """Return the bytes per second between guests, by UUID and peer UUID."""
    peers: dict[str, dict[str, float]] = {}
    for (one, other) in ties.by_pair:
        strength = ties.get_mean_traffic(one, other)
        if strength and one in guests and other in guests:
            peers.setdefault(one, {})[other] = strength
            peers.setdefault(other, {})[one] = strength
    return peers


class CloudState:
    """Load and free resources of a cloud's NUMA nodes while moves are planned.

    Each planned move is applied to the state, so that the next one is planned
    as if it had been made.
    """

    def __init__(self, cloud: Cloud, settings: Settings) -> None:
        self.settings = settings
        self.nodes = {node.spot: node for node in cloud.nodes}
        self.guests = {guest.uuid: guest for guest in cloud.guests
                       if all(one.spot in self.nodes for one in guest.nodes)}
        self.nodes_of_host: dict[str, list[Spot]] = {}
        for spot in sorted(self.nodes):
            self.nodes_of_host.setdefault(spot.host, []).append(spot)
        self.cpu = {spot: math.nan if node.cpu is None else node.cpu
                    for spot, node in self.nodes.items()}
        self.bandwidth = {one.spot: one.bandwidth for one in cloud.nodes}
        self.memory = {one.spot: one.memory for one in cloud.nodes}
        self.guarantee = {one.spot: one.guarantee for one in cloud.nodes}
        self.left = {one.spot: dict(one.left) for one in cloud.nodes}
        self.groups = {one.spot.host: one.groups for one in cloud.nodes}
        self.peers = _map_traffic_by_peer(cloud.ties, self.guests)
        self.group = {uuid: group for group in cloud.groups
                      if len(group.members) > 1 for uuid in group.members}
        self.at: dict[Spot, set[str]] = {spot: set() for spot in self.nodes}
        for guest in self.guests.values():
            for part in guest.nodes:
                self.at[part.spot].add(guest.uuid)
                self._count_usage(part, part.spot, 1)

    def _count_usage(self, guest: Guest, spot: Spot, sign: int) -> None:
        self.cpu[spot] += sign * (math.nan if guest.cpu is None
                                  else guest.cpu)
        self.bandwidth[spot] += sign * guest.bandwidth

    def apply_move(self, move: Move) -> None:
        """Update load and free resources of host NUMA nodes for a move.

        The next moves are then planned as if this one had been made.
        """
        guest = self.guests[move.guest]
        for one, (origin, destination) in zip(guest.nodes, move.ways,
                                              strict=True):
            self._take_resources(one, origin, -1)
            self._take_resources(one, destination, 1)
            self.at[origin].discard(move.guest)
            self.at[destination].add(move.guest)
        self.guests[move.guest] = dataclasses.replace(
            guest, spot=move.destination, parts=tuple(
                dataclasses.replace(part, spot=spot) for part, (_origin, spot)
                in zip(guest.parts, move.others, strict=True)))

    def _take_resources(self, guest: Guest, spot: Spot, sign: int) -> None:
        self._count_usage(guest, spot, sign)
        self.memory[spot] -= sign * guest.memory
        self.guarantee[spot] -= sign * guest.guarantee
        self.groups[spot.host] -= sign * guest.groups
        for name, amount in guest.counted.items():
            self.left[spot][name] = (self.left[spot].get(name, 0.0)
                                     - sign * amount)

    def get_relative_load(self, spot: Spot, cpu: float = 0.0,
                          bandwidth: float = 0.0) -> float:
        """Return a host node's load relative to the load that is too much.

        At 1 the node is overloaded. The load of the CPUs or of the memory
        bandwidth counts, whichever is higher.

        :param spot: host NUMA node.
        :param cpu: additional CPUs to assume in use on the node.
        :param bandwidth: additional bytes per second to assume in use.
        :returns: NaN if the load is unknown.
        """
        parts = self._get_relative_loads(spot, cpu, bandwidth)
        return math.nan if math.isnan(parts[0]) else max(parts)

    def _get_relative_loads(self, spot: Spot, cpu: float, bandwidth: float
                            ) -> tuple[float, float]:
        node = self.nodes[spot]
        by_cpu = (self.cpu[spot] + cpu) / (node.cpus * self.settings.cpu)
        by_memory = 0.0 if not node.capacity else (
            (self.bandwidth[spot] + bandwidth)
            / (node.capacity * self.settings.memory))
        return by_cpu, by_memory

    @property
    def hysteresis_load(self) -> float:
        """Load below which a host NUMA node is no longer overloaded.

        It is relative to the load at which a node becomes overloaded, and
        below 1 by the configured hysteresis.
        """
        return 1 - self.settings.hysteresis

    def is_overloaded(self, spot: Spot) -> bool:
        """Return whether a host NUMA node is overloaded after planned moves.

        :param spot: host NUMA node.
        """
        return self.get_relative_load(spot) >= (
            self.hysteresis_load if self.nodes[spot].bottleneck else 1)

    def get_excess_cpus(self, spot: Spot, cpu: float = 0.0,
                        bandwidth: float = 0.0) -> float:
        """Return how many busy CPUs a host node has beyond its load limit.

        The limit is :attr:`hysteresis_load`. The result is 0 if the load is
        below the limit.

        :param spot: host NUMA node.
        :param cpu: additional CPUs to assume in use on the node.
        :param bandwidth: additional bytes per second to assume in use.
        """
        wanted = self.cpu[spot] + cpu
        beyond = max(
            part - self.hysteresis_load
            for part in (*self._get_relative_loads(spot, cpu, bandwidth),
                         self.hysteresis_load))
        return wanted * beyond / (beyond + self.hysteresis_load)

    def can_take_guest(self, guest: Guest, spot: Spot,
                       max_load: float) -> bool:
        """Return whether a host node can take a guest without overload.

        Nova must also be able to move the guest there.

        :param spot: host NUMA node.
        :param max_load: relative load that the node must stay below; at 1 a
            node is overloaded.
        """
        spots = self.find_destinations(guest, spot)
        return bool(spots) and all(
            not self.nodes[there].bottleneck
            and self.get_relative_load(there, one.cpu or 0.0,
                                       one.bandwidth) < max_load
            for one, there in zip(guest.nodes, spots, strict=True))

    def find_destinations(self, guest: Guest, spot: Spot) -> tuple[Spot, ...]:
        """Return the host nodes of all NUMA nodes of a guest after a move.

        Of all possible placements, the one whose most loaded node has the
        lowest load is returned.

        :param spot: host NUMA node to which the guest's first node is moved.
        :returns: empty if the guest cannot be moved there.
        """
        if not guest.parts:
            return (spot,) if self.is_move_possible(guest, spot) else ()
        if (spot.host == guest.spot.host or not guest.between
                or not self._can_host_enforce_policy(guest,
                                                     self.nodes[spot])):
            return ()
        return _find_best_nodes(self, guest, spot)

    def has_room(self, guest: Guest, spot: Spot,
                 leaving: Guest | None = None) -> bool:
        """Return whether an open host node has free resources for a guest.

        :param leaving: another guest that leaves that node first; None if none
            does.
        """
        freed = leaving.memory if leaving else 0.0
        return (self.nodes[spot].open and guest.cpu is not None
                and not math.isnan(self.get_relative_load(spot))
                and self.memory[spot] + freed >= guest.memory
                and self._has_free_resources(guest, spot, leaving))

    def is_move_possible(self, guest: Guest, spot: Spot,
                         leaving: Guest | None = None) -> bool:
        """Return whether Nova could move a guest to a host NUMA node.

        The guest has one NUMA node. The host's state, the guest's policy and
        free resources are checked. The load of the node is not checked.

        :param spot: host NUMA node.
        :param leaving: another guest that leaves that node first; None if none
            does.
        """
        if guest.parts or spot == guest.spot:
            return False
        inside = spot.host == guest.spot.host
        if not (guest.inside if inside else guest.between):
            return False
        return (inside or self._can_host_enforce_policy(
            guest, self.nodes[spot])) and self.has_room(guest, spot, leaving)

    def _has_free_resources(
            self, guest: Guest, spot: Spot, leaving: Guest | None) -> bool:
        """Return whether a host node has enough free resources for a guest.

        The bandwidth guarantee and all other amounts in Placement are checked.

        :param leaving: another guest that leaves the node first, if any.
        """
        left = self.left[spot]
        freed = leaving.counted if leaving else {}
        return (self.guarantee[spot] + (leaving.guarantee if leaving else 0.0)
                >= guest.guarantee and all(
                    left.get(name, 0.0) + freed.get(name, 0.0) >= amount
                    for name, amount in guest.counted.items()))

    def _can_host_enforce_policy(self, guest: Guest, node: Node) -> bool:
        """Return whether a host can enforce a guest's bandwidth policy.

        The host must have the traits that the guest requires, and enough free
        control groups.

        :param node: any NUMA node of the host.
        """
        return (guest.traits <= node.traits
                and self.groups[node.spot.host] >= guest.groups)

    def get_traffic_with_node(self, guest: Guest, spot: Spot) -> float:
        """Return a guest's network traffic with all guests on a host node.

        :param spot: host NUMA node.
        :returns: bytes per second.
        """
        return math.fsum(strength for peer, strength
                         in self.peers.get(guest.uuid, {}).items()
                         if self.guests[peer].spot == spot)

    def estimate_traffic_cpus(self, guest: Guest, spot: Spot) -> float:
        """Return how many CPUs a guest's network traffic would keep busy.

        Traffic to other hosts or NUMA nodes costs CPU time; traffic within a
        node costs none. The CPUs are estimated, not measured.

        :param spot: host NUMA node where the guest is assumed to run.
        """
        found = 0.0
        for peer, strength in self.peers.get(guest.uuid, {}).items():
            there = self.guests[peer].spot
            if there.host != spot.host:
                found += strength * self.settings.far
            elif there.node != spot.node:
                found += strength * self.settings.across
        return found

    def get_cpus_saved_by_move(self, guest: Guest, spot: Spot) -> float:
        """Return how many busy CPUs a move of a guest to a host node saves.

        CPUs are saved if the guest leaves an overloaded node, or comes nearer
        to guests with which it exchanges traffic.

        :param spot: host NUMA node to move the guest to.
        """
        spots = self.find_destinations(guest, spot) if guest.parts else (spot,)
        found = (self.estimate_traffic_cpus(guest, guest.spot)
                 - self.estimate_traffic_cpus(guest, spot))
        for one, there in zip(guest.nodes, spots, strict=False):
            cpu = one.cpu or 0.0
            relief = (self.get_excess_cpus(one.spot)
                      - self.get_excess_cpus(one.spot, -cpu, -one.bandwidth))
            burden = (self.get_excess_cpus(there, cpu, one.bandwidth)
                      - self.get_excess_cpus(there))
            found += relief - burden
        return found

    def get_move_cost(self, guest: Guest, spot: Spot) -> float:
        """Return how many CPU seconds it costs to move a guest to a host node.

        :param spot: host NUMA node to move the guest to.
        :returns: infinity if the migration would never finish.
        """
        settings = self.settings
        rate = settings.inside_rate
        if spot.host != guest.spot.host:
            # What is written meanwhile has to be sent again.
            rate = settings.between_rate - (guest.dirty or 0.0)
        if rate <= 0:
            return math.inf
        return (sum(one.memory for one in guest.nodes) / rate
                * (1 + settings.slowed * sum(one.cpu or 0.0
                                             for one in guest.nodes)))

    def make_profitable_move(
            self, guest: Guest, spot: Spot, reason: str) -> Move | None:
        """Return a guest's move to a host node if it saves more than it costs.

        The CPU time that the move saves must exceed its cost by the margin in
        the settings.

        :param spot: host NUMA node to move the guest to.
        :param reason: reason of the move, for the user.
        :returns: None if the move does not save enough.
        """
        gain = (self.get_cpus_saved_by_move(guest, spot)
                * self.settings.horizon)
        cost = self.get_move_cost(guest, spot)
        # Also false for what is not known.
        if not gain > cost * self.settings.margin:
            return None
        others = zip((part.spot for part in guest.parts),
                     self.find_destinations(guest, spot)[1:], strict=True)
        return Move(guest.uuid, guest.spot, spot, reason, gain, cost,
                    others=tuple(others))


def _find_best_nodes(state: CloudState, guest: Guest, spot: Spot
                     ) -> tuple[Spot, ...]:
    """Return the best host nodes for all NUMA nodes of a guest on a host.

    :param spot: host NUMA node of the guest's first node.
    :returns: empty if there is no room for all of them.
    """
    others = [one for one in state.nodes_of_host[spot.host] if one != spot]
    ways = itertools.islice(itertools.permutations(
        others, len(guest.parts)), PLACEMENTS)
    return min(((spot, *rest) for rest in ways if all(
        map(state.has_room, guest.nodes, (spot, *rest)))),
        default=(), key=lambda way: max(
            state.get_relative_load(there, one.cpu or 0.0, one.bandwidth)
            for one, there in zip(guest.nodes, way, strict=True)))
