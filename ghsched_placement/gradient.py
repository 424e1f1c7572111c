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

"""Where a guest leaves least that the next guests cannot use (pure).

Fragmentation gradient descent, as in Weng et al., "Beware of Fragmentation",
USENIX ATC 2023, for what a host NUMA node has: CPUs, memory, memory
bandwidth, devices, and the control groups of the host. What is free on a host
is fragmented for a kind of guest as far as it is on nodes that cannot back a
node of such a guest; all of it is where the host cannot hold the guest. The
mean over the kinds of guests that are expected is the fragmentation of the
host, and a guest goes where that grows least.

What is expected is what came before: :class:`Mix` learns it.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from collections import deque
from dataclasses import dataclass
from dataclasses import field
import threading

#: What a host node has, or a guest node takes: dedicated CPUs, shared CPUs,
#: MiB of memory, percent of memory bandwidth, devices.
Amounts = tuple[int, int, int, int, int]

#: How many requests are remembered, and of how many kinds the most frequent
#: are looked at: both bound what a request costs.
REMEMBERED = 512
KINDS = 8


@dataclass(frozen=True)
class Kind:
    """Guests that take the same.

    :param nodes: of each guest NUMA node.
    :param group: whether they take a control group.
    """

    nodes: tuple[Amounts, ...]
    group: bool = False


@dataclass(frozen=True)
class Room:
    """What is free on a host.

    :param free: of each NUMA node, by its number.
    :param total: what the nodes have in all; what a node has none of does not
        count.
    :param groups: free control groups; None where nobody knows.
    """

    free: Mapping[int, Amounts]
    total: Mapping[int, Amounts]
    groups: int | None = None

    def without(self, kind: Kind, order: Sequence[int]) -> 'Room':
        """With a guest placed.

        :param order: host node of each guest node.
        """
        free = dict(self.free)
        for node, taken in zip(order, kind.nodes, strict=False):
            if node in free:
                cpus, shared, memory, bandwidth, devices = (
                    have - less for have, less
                    in zip(free[node], taken, strict=True))
                free[node] = cpus, shared, memory, bandwidth, devices
        groups = self.groups
        if groups is not None:
            groups -= kind.group
        return Room(free, self.total, groups)


def fragmented(room: Room, kind: Kind) -> float:
    """What is free on a host and no use to a kind of guest, in nodes."""
    of_node = {node: _part(free, room.total[node])
               for node, free in room.free.items()}
    fitting = [frozenset(node for node, free in room.free.items()
                         if _holds(free, taken)) for taken in kind.nodes]
    # Enough where the nodes of one are among those of the next, as where all
    # guest nodes take the same.
    held = all(len(nodes) > number for number, nodes
               in enumerate(sorted(fitting, key=len)))
    if not held or (kind.group and room.groups is not None
                    and room.groups < 1):
        return sum(of_node.values())
    usable = frozenset[int]().union(*fitting)
    return sum(part for node, part in of_node.items() if node not in usable)


def gradient(room: Room, after: Room, mix: Mapping[Kind, float]) -> float:
    """By how much the fragmentation of a host grows."""
    return sum(weight * (fragmented(after, kind) - fragmented(room, kind))
               for kind, weight in mix.items())


def _part(free: Amounts, total: Amounts) -> float:
    return sum(max(0, have) / of for have, of in zip(free, total, strict=True)
               if of > 0)


def _holds(free: Amounts, taken: Amounts) -> bool:
    return all(need <= have or not need
               for need, have in zip(taken, free, strict=True))


@dataclass
class Mix:
    """The guests of the last requests, with or without success.

    Those that were refused are in it as well: room is to be kept for what is
    asked for, and not for what happens to fit.
    """

    _last: deque[Kind] = field(default_factory=deque)
    _count: Counter[Kind] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, kind: Kind) -> None:
        with self._lock:
            self._last.append(kind)
            self._count[kind] += 1
            if len(self._last) > REMEMBERED:
                oldest = self._last.popleft()
                self._count[oldest] -= 1
                if not self._count[oldest]:
                    del self._count[oldest]

    def shares(self) -> dict[Kind, float]:
        """Parts of the most frequent kinds, which add up to 1."""
        with self._lock:
            return dict(_shares(self._count))


def _shares(count: Counter[Kind]) -> Iterator[tuple[Kind, float]]:
    frequent = count.most_common(KINDS)
    total = sum(number for _kind, number in frequent)
    for kind, number in frequent:
        yield kind, number / total
