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

"""Assign a guest's NUMA nodes to host NUMA nodes, from candidates (pure).

A candidate names the host NUMA node of a guest NUMA node that has a request
group of its own. The other guest nodes may be on any host node that is near
enough to their VFs and has room for them. Candidates that leave the same
choices are handled once: a matching decides whether there is a way to give
each guest node a host node of its own. The ways are found while they are asked
for, the best first, within a number of steps.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
import heapq
import itertools
from typing import Any
from typing import TypeAlias

from ghsched_placement.fit.lack import Lack
from ghsched_placement.providers import names
from ghsched_placement.query import candidates as offered
from ghsched_placement.query.candidates import Cost
from ghsched_placement.query.candidates import HostProviders
from ghsched_placement.query.candidates import NodeAssignment
from ghsched_placement.query.candidates import NodeRequestGroups
from ghsched_placement.query import matching
from ghsched_placement.query import node_loads
from ghsched_placement.query.request import LOCALITIES

#: Number of ways that are tried on a host before it is refused.
MOST_TRIED = 64

#: Maximum number of ways that are compared by their cost to others. Where
#: more are equal in all that ranks before, the numbers of the nodes decide.
MAX_COSTED = 100

#: Number of steps that are as long as the cost of one guest node.
COST_STEPS = 25

#: Maximum number of steps of one search; about 20 ms of a processor.
MAX_STEPS = 25000

#: Number of steps that are left for the search once the candidates are read.
MIN_SEARCH_STEPS = 5000


def assign_host_nodes(candidates: Sequence[Mapping[str, Any]],
                      groups: NodeRequestGroups, host: HostProviders,
                      has_capacity: offered.HasCapacity | None = None,
                      cost: Cost | None = None,
                      steps: matching.Steps | None = None,
                      ) -> tuple[Iterator[NodeAssignment], Lack | None]:
    """Return the possible assignments of a guest's NUMA nodes to host nodes.

    The assignments come best first. If there are none, the second part of the
    result is the refusal reason.

    :param candidates: Placement's allocation candidates of the host.
    :param groups: request groups that decide the host NUMA nodes.
    :param host: NUMA node and socket of the host's providers.
    :param has_capacity: returns whether a host node has the CPUs and memory
        for a guest node; None if all have.
    :param cost: returns the cost of host nodes to other guests; None prefers
        the lowest node numbers.
    :param steps: limit of the search; None for :data:`MAX_STEPS`.
    """
    steps = steps or matching.Steps(MAX_STEPS)
    reader = _Reader(groups, host,
                     has_capacity or (lambda _guest_node, _node: True))
    alike, refusals = _separate_usable_candidates(candidates, reader, steps)
    steps.limit = max(steps.limit, steps.taken + MIN_SEARCH_STEPS)
    for rows in [rows for rows in alike if not reader.has_assignment(rows)]:
        refusals[offered.ONE_NODE_FOR_TWO] += len(alike.pop(rows))
    if alike:
        return _Assignments(groups, host, reader, alike,
                            steps).yield_assignments_by_rank(cost), None
    if not refusals:
        return iter(()), offered.UNKNOWN_NODES
    return iter(()), min(refusals, key=lambda refusal: (
        _MEANING.index(refusal) if refusal in _MEANING else -1,
        -refusals[refusal], refusal.reason))


def _separate_usable_candidates(candidates: Sequence[Mapping[str, Any]],
                                reader: '_Reader', steps: matching.Steps
                                ) -> tuple[dict['Rows', list[Mapping[
                                    str, Any]]], Counter[Lack]]:
    """Sort allocation candidates into usable and unusable ones.

    At most half of the search's steps are spent on reading candidates.

    :param candidates: Placement's allocation candidates of the host.
    :param reader: finds the host nodes that a candidate allows.
    :param steps: counts the steps of the search.
    :returns: usable candidates, grouped by the host nodes that they allow for
        each guest node, and the number of unusable ones by reason.
    """
    alike: dict[Rows, list[Mapping[str, Any]]] = {}
    refusals: Counter[Lack] = Counter()
    for candidate in candidates:
        rows = reader.find_allowed_nodes(candidate['mappings'], steps)
        if isinstance(rows, Lack):
            refusals[rows] += 1
            continue
        alike.setdefault(rows, []).append(candidate)
        if steps.taken > steps.limit / 2 and reader.has_assignment(rows):
            break
    return alike, refusals


#: Refusal reasons, the most informative first. A reason that is not listed,
#: such as full host nodes, comes before all of them.
_MEANING = (offered.TOO_FAR, offered.UNKNOWN_DEVICE_NODE,
            offered.ONE_NODE_FOR_TWO, offered.UNKNOWN_DEVICES,
            offered.UNKNOWN_NODES)


class _Row:
    """Host nodes that are possible for one guest node, with their costs.

    :ivar costs: cost of each host node; it combines the distances of the guest
        node's VFs into one number, see :meth:`_Reader.split_assignment_cost`.
    :ivar nodes: numbers of these host nodes.
    :ivar best: host node with the lowest cost.
    :ivar least: lowest cost.
    :ivar more: difference between the second lowest and the lowest cost; 0 if
        only one host node is possible.
    """

    def __init__(self, costs: Mapping[int, int]) -> None:
        self.costs = costs
        self.nodes = frozenset(costs)
        self.best, *others = sorted(costs, key=costs.__getitem__)
        self.least = costs[self.best]
        self.more = costs[others[0]] - self.least if others else 0


#: Providers of a guest node for which nothing is requested.
_NO_GROUP: tuple[Any, tuple[str, ...]] = None, ()

#: Possible host nodes of each guest node, in the order of the guest nodes.
Rows: TypeAlias = tuple[_Row, ...]


@dataclass(frozen=True)
class _Guest:
    """Request groups of one guest NUMA node.

    :param number: number of the guest NUMA node.
    :param suffix: suffix of the request group whose provider is the host node;
        empty if nothing is requested for the guest node.
    :param may_lack: whether the group may be missing in a candidate.
    :param vfs: suffix of the request group of each VF.
    :param rows: cache of possible host nodes, by the candidate's providers.
    """

    number: int
    suffix: str
    may_lack: bool
    vfs: tuple[str, ...]
    rows: dict[Any, _Row | Lack] = field(default_factory=dict)


class _Reader:
    """Finds, for each guest node, the host nodes that a candidate allows.

    :param groups: request groups that decide the host NUMA nodes.
    :param host: NUMA node and socket of the host's providers.
    :param has_capacity: returns whether a host node has the CPUs and memory
        for a guest node.
    """

    def __init__(self, groups: NodeRequestGroups, host: HostProviders,
                 has_capacity: offered.HasCapacity) -> None:
        self._host, self._has_capacity = host, has_capacity
        self._most_far = LOCALITIES.index(groups.locality)
        self._node_of_pf = host.map_pfs_to_nodes(groups.device_numa)
        self._with_pfs = set(self._node_of_pf.values())
        self._ways: dict[Any, bool] = {}
        self.guests = tuple(_yield_nodes_to_assign(groups))
        #: Number of steps that take as long as reading one candidate.
        self._size = 1 + sum(1 + len(guest.vfs) // 8
                             for guest in self.guests if guest.suffix)
        #: Factor that is larger than any number of VFs or guest nodes, so that
        #: several of these numbers can be combined into one.
        self._unit = 1 + len(self.guests) + sum(
            vf.count for vf in groups.vfs)

    def find_allowed_nodes(self, mappings: Mapping[str, Sequence[str]],
                           steps: matching.Steps) -> Rows | Lack:
        """Return the host nodes that a candidate allows for each guest node.

        :param mappings: providers of the allocation candidate, by request
            group suffix.
        :param steps: counts the steps of the search.
        :returns: a refusal reason if the candidate cannot be used.
        """
        steps.taken += self._size
        found = []
        for guest in self.guests:
            key = _NO_GROUP
            if guest.suffix:
                providers = mappings.get(guest.suffix)
                key = (providers[0] if providers else providers,
                       tuple([mappings[suffix][0] for suffix in guest.vfs
                              if suffix in mappings]))
            row = guest.rows.get(key)
            if row is None:
                steps.taken += len(self._host.node_of_numa)
                row = guest.rows[key] = self._find_fitting_nodes(guest, *key)
            found.append(row)
        rows = tuple([row for row in found if isinstance(row, _Row)])
        if len(rows) == len(found):
            return rows
        lacks = [row for row in found if isinstance(row, Lack)]
        return next((lack for lack in reversed(_MEANING) if lack in lacks),
                    lacks[0])

    def _find_fitting_nodes(self, guest_node: _Guest, provider: Any,
                            pfs: tuple[str, ...]) -> _Row | Lack:
        """Return the host nodes for one guest node that a candidate allows.

        :param guest_node: guest NUMA node, with its request groups.
        :param provider: UUID of the provider that a candidate gives the guest
            node's own request group.
        :param pfs: UUIDs of the PFs that the candidate gives its VFs.
        :returns: a refusal reason if there are no such host nodes.
        """
        nodes = self._host.node_of_numa
        if provider is None and guest_node.may_lack:
            some = list(nodes.values())
        elif provider in nodes:
            some = [nodes[provider]]
        else:
            return offered.UNKNOWN_NODES
        if len(pfs) < len(guest_node.vfs) or not (
                self._node_of_pf.keys() >= set(pfs)):
            return offered.UNKNOWN_DEVICES
        devices = Counter(map(self._node_of_pf.__getitem__, pfs))
        key = provider, frozenset(devices.items())
        if key not in guest_node.rows:
            near = self._rate_nodes_by_distance(some, devices)
            open_to = [node for node in near
                       if self._has_capacity(guest_node.number, node)]
            wasted = () if guest_node.vfs else self._with_pfs
            unneeded = set(nodes.values()) - self._host.needed if (
                self._host.needed) else ()
            guest_node.rows[key] = (
                offered.UNKNOWN_DEVICE_NODE if not near and None in devices
                else offered.TOO_FAR if not near
                else offered.make_node_capacity_reason(near) if not open_to
                else _Row({node: ((node in unneeded) * self._unit ** 2
                                  + near[node]) * self._unit
                           + (node in wasted) for node in open_to}))
        return guest_node.rows[key]

    def _rate_nodes_by_distance(self, nodes: Iterable[int],
                                devices: Mapping[int | None, int]
                                ) -> dict[int, int]:
        """Return how far a guest node's VFs are from each host node.

        The distances of all VFs are combined into one number. Host nodes that
        are farther from a VF than the flavor allows are left out.

        :param nodes: host NUMA nodes to rate.
        :param devices: number of VFs by the host NUMA node of their PF.
        """
        found = {}
        for node in nodes:
            far = [0, 0, 0]
            for device_node, count in devices.items():
                far[self._host.get_node_distance(node, device_node)] += count
            if not any(far[self._most_far + 1:]):
                found[node] = far[2] * self._unit + far[1] + far[2]
        return dict(sorted(found.items(), key=lambda item: (item[1],
                                                            item[0])))

    def split_assignment_cost(self, cost: int) -> tuple[offered.Far, int, int]:
        """Split an assignment's cost into far VFs, unneeded and wasted nodes.

        Unneeded nodes cost most, so that as many guests boot as are promised.
        A far VF is on another NUMA node or socket than its guest node. A host
        node is unneeded if other guests of the kind fit without it. A host
        node with PFs is wasted if its guest node has no VFs.
        """
        cost, wasted = divmod(cost, self._unit)
        unneeded, far = divmod(cost, self._unit ** 2)
        off_socket, off_node = divmod(far, self._unit)
        return (off_node, off_socket), unneeded, wasted

    def has_assignment(self, rows: Rows) -> bool:
        """Whether every guest node can have a host node of its own.

        :param rows: host nodes that each guest NUMA node may have.
        """
        key = tuple([row.nodes for row in rows])
        if key not in self._ways:
            self._ways[key] = matching.match_items_to_places(
                [row.costs for row in rows]) is not None
        return self._ways[key]


def _yield_nodes_to_assign(groups: NodeRequestGroups) -> Iterator[_Guest]:
    """Yield the guest NUMA nodes to be assigned, with their request groups.

    Nothing is yielded if the guest requests nothing of a host NUMA node.
    """
    if not groups.suffixes:
        return
    for number in sorted({*range(groups.guest_nodes), *groups.suffixes}):
        suffix = groups.suffixes.get(number, '')
        yield _Guest(number, suffix, suffix in (
            '', names.make_node_suffix(number)), tuple(
            itertools.chain.from_iterable(
                vf.list_vf_group_suffixes() for vf in groups.vfs
                if vf.guest_node == number)))


def _compute_least_cost(rows: Rows) -> int:
    """Return a lower bound of the cost of a guest's assignments to host nodes.

    The cost counts VFs far from their guest nodes, host nodes that are not
    needed, and PFs near guest nodes without VFs.

    :param rows: host nodes that each guest NUMA node may have.
    """
    least, most = 0, dict[int, int]()
    for row in rows:
        least += row.least
        if row.more:
            known = most.get(row.best, 0)
            most[row.best] = max(known, row.more)
            least += min(known, row.more)
    return least


#: One choice of host nodes: sort key (cost, sockets, load and sequence
#: number), host node of each guest node, and the rows that allow it.
_Way: TypeAlias = tuple[tuple[Any, ...], tuple[int, ...], Rows]


#: Cost to other guests by the chosen host nodes, as far as it was computed,
#: and the choices themselves.
_Costed: TypeAlias = tuple[Mapping[tuple[int, ...], tuple[float, ...]],
                           Iterable[_Way]]


class _Assignments:
    """Possible assignments of a guest's NUMA nodes to a host's NUMA nodes.

    :param alike: Placement's candidates, grouped by the host nodes that they
        allow for each guest node.
    """

    def __init__(self, groups: NodeRequestGroups, host: HostProviders,
                 reader: _Reader,
                 alike: Mapping[Rows, Sequence[Mapping[str, Any]]],
                 steps: matching.Steps) -> None:
        self._host, self._reader = host, reader
        self._alike, self._steps = alike, steps
        self._ours = groups.list_all_group_suffixes()
        self._vfs = tuple(itertools.chain.from_iterable(
            vf.list_vf_group_suffixes() for vf in groups.vfs))
        self._loads = node_loads.NodeLoads(host, len(reader.guests), steps)
        self._groups: dict[Rows, list[tuple[Any, ...]]] = {}
        self._found = False

    def yield_assignments_by_rank(
            self, cost: Cost | None) -> Iterator[NodeAssignment]:
        """Yield the assignments of the guest to host nodes, best first.

        :param cost: returns the cost of host nodes to other guests; None if
            there is no such cost.
        """
        for costs, ways in self._yield_equal_rank_groups(cost):
            by_order = itertools.groupby(ways, key=lambda way: way[:2])
            for (key, order), same in by_order:
                yield from self._yield_candidate_groups(
                    key, order, costs.get(order, ()),
                    [rows for _key, _order, rows in same])

    def _yield_equal_rank_groups(self, cost: Cost | None) -> Iterator[_Costed]:
        """Yield groups of equally good assignments, the best group first.

        Within a group, assignments are sorted by their cost to other guests.

        :param cost: returns the cost of host nodes to other guests; None if
            there is no such cost.
        """
        if cost is None:
            yield {}, self._yield_assignments_of_candidates()
            return
        # All but the turn, which counts after the cost.
        for _key, ways in itertools.groupby(
                self._yield_assignments_of_candidates(),
                key=lambda way: way[0][:-1]):
            yield self._sort_by_cost(ways, cost)

    def _sort_by_cost(self, ways: Iterator[_Way], cost: Cost) -> _Costed:
        costs: dict[tuple[int, ...], tuple[float, ...]] = {}
        first = []
        for way in ways:
            first.append(way)
            costs[way[1]] = ()
            if len(costs) > self._get_cost_comparison_limit(way[1]):
                return {}, itertools.chain(first, ways)
        self._steps.taken += COST_STEPS * sum(map(len, costs))
        costs = {order: cost(order) for order in costs}
        return costs, sorted(first, key=lambda way: (costs[way[1]], way[:2]))

    def _get_cost_comparison_limit(self, order: Sequence[int]) -> float:
        """Return the largest number of assignments whose costs are compared.

        A cost is that of the assigned host nodes to other guests. Computing it
        takes steps, of which the search has a limited number. If more
        assignments than this have equal rank, their costs are not compared.

        :param order: host nodes of one assignment.
        """
        each = COST_STEPS * max(1, len(order))
        return min(MAX_COSTED,
                   (self._steps.limit - self._steps.taken) / each)

    def _yield_assignments_of_candidates(self) -> Iterator[_Way]:
        """Yield the assignments that all candidates allow, best first.

        Allocation candidates that allow the same host nodes are searched
        together. A group of candidates is searched only when it may have the
        next best assignment.
        """
        heap: list[Any] = []
        for number, rows in enumerate(self._alike):
            least = _compute_least_cost(rows)
            rank = self._loads.get_assignment_rank(())
            heap.append(((least, *rank), (), number, rows, None))
        heapq.heapify(heap)
        while heap:
            key, order, number, rows, ways = heapq.heappop(heap)
            if ways is not None:
                yield key, order, rows
            elif self._steps.has_steps_left or not self._found:
                ways = matching.yield_assignments_by_cost(
                    [row.costs for row in rows],
                    self._loads.get_assignment_rank, self._steps)
            found = next(ways, None) if ways is not None else None
            if found is not None:
                self._found = True
                heapq.heappush(heap, (*found, number, rows, ways))

    def _yield_candidate_groups(self, key: tuple[Any, ...],
                                order: tuple[int, ...],
                                cost: tuple[float, ...],
                                allowed: Sequence[Rows]
                                ) -> Iterator[NodeAssignment]:
        """Yield an assignment to the chosen nodes for each candidate group.

        The candidates of a group differ only in the PFs that VFs are taken
        from. The group with the fewest PFs comes first.

        :param key: sort key of the choice, which begins with the cost of the
            distances of VFs.
        :param order: chosen host node of each guest node.
        :param cost: cost of these host nodes to other guests.
        :param allowed: each set of possible host nodes, as some candidates
            allow it, that contains the chosen ones.
        """
        groups = [group for rows in allowed
                  for group in self._group_candidates_by_other_providers(rows)]
        far, unneeded, wasted = self._reader.split_assignment_cost(key[0])
        for _number, pfs, others, found in sorted(
                groups, key=lambda group: group[:3]):
            yield NodeAssignment(
                {guest.number: node for guest, node
                 in zip(self._reader.guests, order, strict=True)},
                found, others, far, unneeded, wasted,
                len({self._host.socket_of.get(node) for node in order}), pfs,
                cost, offered.combine_node_costs(order, self._host.busy))

    def _group_candidates_by_other_providers(
            self, rows: Rows) -> list[tuple[Any, ...]]:
        """Group allocation candidates that differ only in the PFs of VFs.

        :param rows: host nodes that the candidates allow each guest node.
        :returns: for each group, the number and the UUIDs of the PFs of its
            first candidate, the providers that all its candidates have in
            common, and the candidates, those with the fewest PFs first.
        """
        if rows not in self._groups:
            groups: dict[Any, list[Any]] = {}
            for candidate in self._alike[rows]:
                self._steps.taken += len(candidate['mappings'])
                mappings = candidate['mappings']
                pfs = tuple([mappings.get(suffix, ('',))[0]
                             for suffix in self._vfs])
                groups.setdefault(self._list_other_providers(mappings),
                                  []).append(
                    (len(set(pfs)), pfs, candidate))
            self._groups[rows] = []
            for others, found in groups.items():
                found.sort(key=lambda one: one[:2])
                self._groups[rows].append((*found[0][:2], others, [
                    candidate for _number, _pfs, candidate in found]))
        return self._groups[rows]

    def _list_other_providers(self, mappings: Mapping[str, Sequence[str]]
                              ) -> tuple[Any, ...]:
        """Return the providers of request groups that ghsched has not added.

        Such groups are for devices of ``pci_passthrough:alias``, for instance.

        :param mappings: a candidate's providers by request group suffix.
        """
        return tuple(sorted([
            (suffix, tuple(providers))
            for suffix, providers in mappings.items()
            if suffix and suffix not in self._ours]))
