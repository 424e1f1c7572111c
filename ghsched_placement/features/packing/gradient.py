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

"""Choice of the host that one more guest fragments least (pure).

Fragmentation gradient descent, as in Weng et al., "Beware of Fragmentation",
USENIX ATC 2023, for the resources of a host NUMA node (CPUs, memory, memory
bandwidth and devices) and the control groups of the host. Free capacity of a
host is fragmented for a kind of guest if it is on nodes that are too full for
a node of such a guest; all free capacity is, if such a guest does not fit on
the host. The fragmentation of the host is the mean over the expected kinds of
guests. The host on which a guest increases it least is chosen.

The expected kinds of guests are those of recent requests, see :class:`Mix`.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from collections import deque
from dataclasses import dataclass
from dataclasses import field
import threading

#: Amounts of a host node or a guest node: dedicated CPUs, shared CPUs, MiB of
#: memory, percent of memory bandwidth, devices.
Amounts = tuple[int, int, int, int, int]

#: Number of recent requests that :class:`Mix` counts.
REMEMBERED = 512

#: Number of the most frequent kinds of guests for which fragmentation is
#: computed. It bounds the time for a request. In a cloud with many flavors, a
#: smaller number lets fewer guests fit.
KINDS = 16


@dataclass(frozen=True)
class GuestKind:
    """Amounts of resources that guests of one kind take.

    :param nodes: amounts of each guest NUMA node.
    :param group: whether such a guest needs a control group.
    """

    nodes: tuple[Amounts, ...]
    group: bool = False


@dataclass(frozen=True)
class FreeCapacity:
    """Free and total amounts of a host's NUMA nodes.

    :param free: free amounts by host NUMA node.
    :param total: total amounts by host NUMA node; a resource of which a node
        has a total of 0 does not count.
    :param groups: number of free control groups; None if unknown.
    """

    free: Mapping[int, Amounts]
    total: Mapping[int, Amounts]
    groups: int | None = None

    def subtract_guest(self, kind: GuestKind,
                       host_nodes: Sequence[int]) -> 'FreeCapacity':
        """Return the free capacity of a host after placing a guest on it.

        :param kind: amounts that the guest takes.
        :param host_nodes: host NUMA node of each guest NUMA node.
        """
        free = dict(self.free)
        for node, taken in zip(host_nodes, kind.nodes, strict=False):
            if node in free:
                cpus, shared, memory, bandwidth, devices = (
                    have - less for have, less
                    in zip(free[node], taken, strict=True))
                free[node] = cpus, shared, memory, bandwidth, devices
        groups = self.groups
        if groups is not None:
            groups -= kind.group
        return FreeCapacity(free, self.total, groups)


class FragmentationGrowth:
    """Computes by how much one more guest would fragment a host.

    Fragmentation is the free capacity that guests like those of recent
    requests could not use.

    :param capacity: free and total amounts of the host's NUMA nodes.
    :param mix: fraction of the recent requests by kind of guest.
    """

    def __init__(self, capacity: FreeCapacity,
                 mix: Mapping[GuestKind, float]) -> None:
        self._room, self._mix = capacity, mix
        self._parts = _sum_free_fractions_by_node(capacity)
        self._fitting = _find_fitting_nodes(capacity, dict.fromkeys(
            taken for kind in mix for taken in kind.nodes))
        self._before = self._compute_mean_fragmentation(self._parts,
                                                        self._fitting,
                                                        capacity.groups)
        self._known: dict[frozenset[tuple[int, Amounts]], float] = {}

    def compute_fragmentation_growth(self, kind: GuestKind,
                                     host_nodes: Sequence[int]) -> float:
        """Return by how much one more guest increases a host's fragmentation.

        Fragmentation is the free capacity that guests like those of recent
        requests could not use. The host with the least growth is the best.

        :param kind: amounts that the guest takes.
        :param host_nodes: host NUMA node of each guest NUMA node.
        """
        key = frozenset(zip(host_nodes, kind.nodes, strict=False))
        if key not in self._known:
            self._known[key] = self._compute_growth(kind, host_nodes)
        return self._known[key]

    def _compute_growth(self, kind: GuestKind, order: Sequence[int]) -> float:
        after = self._room.subtract_guest(kind, order)
        changed = FreeCapacity({node: after.free[node] for node in order
                                if node in after.free}, after.total)
        fitting = {
            taken: self._fitting[taken].difference(order) | nodes
            for taken,
            nodes in _find_fitting_nodes(changed, self._fitting).items()}
        return self._compute_mean_fragmentation(
            {**self._parts, **_sum_free_fractions_by_node(changed)}, fitting,
            after.groups) - self._before

    def _compute_mean_fragmentation(self, parts: Mapping[int, float],
                                    fitting: Mapping[Amounts, frozenset[int]],
                                    groups: int | None) -> float:
        return sum(weight * _sum_unusable_capacity(parts, fitting, groups,
                                                   kind)
                   for kind, weight in self._mix.items())


def _sum_unusable_capacity(free_fractions: Mapping[int, float],
                           fitting: Mapping[Amounts, frozenset[int]],
                           groups: int | None, kind: GuestKind) -> float:
    """Return how much free capacity of a host a kind of guest cannot use.

    It is the free capacity of the host NUMA nodes that are too full for a NUMA
    node of such a guest, or of all nodes if the host cannot take such a guest.

    :param free_fractions: sum of the free fractions of all resources, by host
        node.
    :param fitting: host nodes with enough free, by amounts of a guest node.
    :param groups: free control groups; None if unknown.
    :param kind: amounts that such a guest takes.
    """
    nodes_of = [fitting[taken] for taken in kind.nodes]
    # Enough where the nodes of one are among those of the next, as where all
    # guest nodes take the same.
    held = all(len(nodes) > number for number, nodes
               in enumerate(sorted(nodes_of, key=len)))
    if not held or (kind.group and groups is not None and groups < 1):
        return sum(free_fractions.values())
    usable = frozenset[int]().union(*nodes_of)
    return sum(part for node, part in free_fractions.items()
               if node not in usable)


def _sum_free_fractions_by_node(capacity: FreeCapacity) -> dict[int, float]:
    return {node: _sum_free_fractions(free, capacity.total[node])
            for node, free in capacity.free.items()}


def _find_fitting_nodes(capacity: FreeCapacity, needs: Iterable[Amounts]
                        ) -> dict[Amounts, frozenset[int]]:
    """Return the host nodes with enough free capacity for each guest node.

    :param needs: amounts that a guest node takes, for each kind of guest node.
    :returns: numbers of host NUMA nodes by amounts of the guest node.
    """
    return {taken: frozenset([node for node, free in capacity.free.items()
                              if _has_enough(free, taken)]) for taken in needs}


def _sum_free_fractions(free: Amounts, total: Amounts) -> float:
    return sum(max(0, have) / of for have, of in zip(free, total, strict=True)
               if of > 0)


def _has_enough(free: Amounts, taken: Amounts) -> bool:
    for need, have in zip(taken, free, strict=True):
        if need > have and need:
            return False
    return True


@dataclass
class Mix:
    """Kinds of the guests of the most recent requests.

    Requests that found no host count, too, because hosts should keep capacity
    free for all guests that users request.
    """

    _last: deque[GuestKind] = field(default_factory=deque)
    _count: Counter[GuestKind] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_request(self, kind: GuestKind) -> None:
        with self._lock:
            self._last.append(kind)
            self._count[kind] += 1
            if len(self._last) > REMEMBERED:
                oldest = self._last.popleft()
                self._count[oldest] -= 1
                if not self._count[oldest]:
                    del self._count[oldest]

    def get_kind_shares(self) -> dict[GuestKind, float]:
        """Return the fraction of recent requests for each kind of guest.

        Guests that take the same amounts are of the same kind. Only the most
        frequent kinds are returned, and their fractions sum to 1.
        """
        with self._lock:
            return dict(_yield_kind_shares(self._count))


def _yield_kind_shares(count: Counter[GuestKind]) -> Iterator[tuple[GuestKind,
                                                                    float]]:
    frequent = count.most_common(KINDS)
    total = sum(number for _kind, number in frequent)
    for kind, number in frequent:
        yield kind, number / total
