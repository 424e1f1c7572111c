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


"""Rank of sets of host NUMA nodes by their sockets and their load (pure)."""

from collections.abc import Sequence
from collections import Counter
import itertools
import math
from typing import Any

from ghsched_placement.query import candidates as offered
from ghsched_placement.query.candidates import HostProviders
from ghsched_placement.query import matching


class NodeLoads:
    """Ranks sets of host nodes by their number of sockets and their load.

    For an incomplete set, the rank is a lower bound of the ranks of all
    complete sets that contain it.

    :param host: socket and load of each host node.
    :param count: number of guest nodes.
    :param steps: counts the steps of the search.
    """

    def __init__(self, host: HostProviders, count: int,
                 steps: matching.Steps) -> None:
        self._host, self._count, self._steps = host, count, steps
        self._nodes = frozenset(host.node_of_numa.values())
        #: For each part of the load cost, pairs of cost and node, the least
        #: loaded first. Empty if the load of a node is unknown.
        self._least_loaded: list[list[tuple[float, int]]] = []
        if self._nodes <= host.busy.keys():
            self._least_loaded = [
                sorted(zip(loads, self._nodes, strict=True)) for loads in zip(
                    *map(host.busy.__getitem__, self._nodes), strict=True)]
        self._known: dict[frozenset[int], tuple[Any, ...]] = {}

    def get_assignment_rank(self, nodes: Sequence[int]) -> tuple[Any, ...]:
        """Return a sort key of an assignment: number of sockets, then load.

        If host nodes are given only for the first guest nodes, the key is a
        lower bound of the keys of all assignments that begin with them.

        :param nodes: host nodes of the first guest nodes, or of all.
        """
        key = frozenset(nodes)
        found = self._known.get(key)
        if found is None:
            self._steps.taken += len(self._nodes)
            missing = self._count - len(nodes)
            busy = (self._compute_least_load(key, missing) if missing
                    else offered.combine_node_costs(nodes, self._host.busy))
            found = self._known[key] = (self._count_sockets(key, missing),
                                        *offered.split_node_cost(busy))
        return found

    def _count_sockets(self, nodes: frozenset[int], missing: int) -> int:
        """Return on how many sockets the guest's host nodes are at least.

        :param nodes: host NUMA nodes chosen for the first guest nodes.
        :param missing: number of guest nodes for which any of the other host
            nodes can be chosen.
        """
        socket_of = self._host.socket_of
        used = {socket_of.get(node) for node in nodes}
        free = Counter(socket_of.get(node) for node in self._nodes - nodes)
        missing -= sum(free.pop(socket, 0) for socket in used)
        found = len(used)
        for count in sorted(free.values(), reverse=True):
            if missing <= 0:
                break
            missing -= count
            found += 1
        return found

    def _compute_least_load(self, nodes: frozenset[int], missing: int
                            ) -> offered.NodeCost:
        """Return a lower bound of the load cost of the guest's host nodes.

        The cost is that of :func:`offered.combine_node_costs` for all nodes.

        :param nodes: host NUMA nodes chosen for the first guest nodes.
        :param missing: number of guest nodes for which any of the other host
            nodes can be chosen.
        :returns: empty if the load of a host node is unknown.
        """
        if not self._least_loaded:
            return ()
        worst, whole = [], []
        for figure, loads in enumerate(self._least_loaded):
            values = [self._host.busy[node][figure] for node in nodes]
            values += itertools.islice(
                (load for load, node in loads if node not in nodes), missing)
            worst.append(max(values))
            whole.append(math.fsum(values))
        return (*worst[:-1], *whole[:-1], worst[-1], whole[-1])
