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

"""Steps to find the host NUMA nodes of a guest, for the worst flavors.

For each kind of flavor, with 1 to 16 guest NUMA nodes on a host of 16 nodes:
some guest nodes without a group that names their host node, VFs that may be
anywhere, a host node that is full, up to 1000 candidates.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import random
from typing import Any

from ghsched_placement.features.packing import gradient
from ghsched_placement.providers import names
from ghsched_placement.query import candidates
from ghsched_placement.query import matching
from ghsched_placement.query import node_assignment
from ghsched_placement.tests import base

#: Number of ways that nova-scheduler tries on a host.
TRIED = node_assignment.MOST_TRIED

#: Kinds of flavors: guest nodes with counted bandwidth, and with VFs.
KINDS = ('first counted', 'last counted', 'all counted', 'VFs', 'half VFs',
         'VFs and last counted')


@dataclass(frozen=True)
class Case:
    """A question to one host.

    :param kind: of :data:`KINDS`.
    :param guest: number of guest NUMA nodes.
    :param nodes: number of host NUMA nodes.
    :param count: number of candidates.
    :param is_full: whether one host node has no room.
    :param is_busy: whether the load of the host nodes is known.
    :param is_costed: whether the cost to other guests is compared.
    """

    kind: str
    guest: int
    nodes: int = 16
    count: int = 1000
    is_full: bool = False
    is_busy: bool = False
    is_costed: bool = False

    def list_counted_nodes(self) -> set[int]:
        """Return the guest nodes with a group for their bandwidth."""
        return {'first counted': {0}, 'last counted': {self.guest - 1},
                'all counted': set(range(self.guest)),
                'VFs and last counted': {self.guest - 1}}.get(
                    self.kind, set())

    def with_vfs(self) -> set[int]:
        """Return the guest nodes with VFs."""
        if self.kind == 'half VFs':
            return set(range(0, self.guest, 2))
        return set(range(self.guest)) if 'VFs' in self.kind else set()

    def wanted(self) -> candidates.NodeRequestGroups:
        """Return what the candidates are read for."""
        counted = self.list_counted_nodes()
        return candidates.NodeRequestGroups(
            {node: names.make_bandwidth_suffix(node) if node in counted
             else names.make_node_suffix(node)
             for node in counted | self.with_vfs()},
            [candidates.VfRequest(node, f'vf{node}', 2)
             for node in sorted(self.with_vfs())], 'any', self.guest)

    def host(self, chance: random.Random) -> candidates.HostProviders:
        """Return a host with two PFs on each node, on two sockets."""
        every = range(self.nodes)
        costs = {node: (float(chance.random() < .2),
                        float(chance.randrange(10)), chance.random())
                 for node in every} if self.is_busy else {}
        return candidates.HostProviders(
            {f'node{node}': node for node in every},
            {f'pf{node}-{number}': node
             for node in every for number in range(2)},
            {node: node * 2 // self.nodes for node in every},
            lambda: costs)

    def offered(self, chance: random.Random) -> list[dict[str, Any]]:
        """Return candidates as Placement answers, each with other nodes."""
        pfs = [f'pf{node}-{number}' for node in range(self.nodes)
               for number in range(2)]
        found = []
        for _number in range(self.count):
            mappings = {'': ['root']}
            for node in self.list_counted_nodes():
                mappings[names.make_bandwidth_suffix(node)] = [
                    f'node{chance.randrange(self.nodes)}']
            for vf in self.wanted().vfs:
                mappings[vf.list_vf_group_suffixes()[0]] = [chance.choice(pfs)]
            found.append({'allocations': {}, 'mappings': mappings})
        candidates.map_vfs_to_pfs(found, self.wanted().vfs)
        return found

    def cost(self, chance: random.Random) -> candidates.Cost:
        """Return the cost to 16 kinds of guests, of unlike guest nodes."""
        def amounts() -> gradient.Amounts:
            return (chance.randint(1, 8), 0, chance.choice([1024, 8192]),
                    chance.choice([0, 10, 30]), chance.choice([0, 1]))
        kind = gradient.GuestKind(tuple(amounts()
                                        for _node in range(self.guest)))
        mix = {gradient.GuestKind(tuple(amounts() for _node in range(
            chance.choice([1, 2, 4])))): 1 / 16 for _number in range(16)}
        growth = gradient.FragmentationGrowth(gradient.FreeCapacity(
            {node: (chance.randint(0, 32), 0, 65536, 90, 8)
             for node in range(self.nodes)},
            dict.fromkeys(range(self.nodes), (32, 0, 65536, 100, 8)),
            30), mix)
        return lambda order: (
            round(growth.compute_fragmentation_growth(kind, order), 9),)


@dataclass(frozen=True)
class Result:
    """Cost of one question.

    :param ways: number of ways that were found, at most :data:`TRIED`.
    """

    steps: int
    ways: int


def measure(case: Case) -> Result:
    """Find as many ways as nova-scheduler tries when all but the last fail.
    """
    chance = random.Random(1)  # noqa: S311
    offered, host = case.offered(chance), case.host(chance)
    cost = case.cost(chance) if case.is_costed else None
    wanted, full = case.wanted(), case.nodes - 1 if case.is_full else -1
    steps = matching.Steps(node_assignment.MAX_STEPS)
    ways, _lack = node_assignment.assign_host_nodes(
        offered, wanted, host, lambda _guest, node: node != full, cost,
        steps)
    found = len(list(itertools.islice(ways, TRIED)))
    return Result(steps.taken, found)


def cases(guests: Sequence[int], nodes: int) -> Iterator[Case]:
    """Yield each kind of question, with each number of guest nodes."""
    shapes: tuple[Mapping[str, Any], ...] = (
        {'count': 1}, {}, {'is_full': True}, {'is_busy': True},
        {'is_costed': True}, {'is_busy': True, 'is_costed': True, 'count': 1})
    for kind, guest, shape in itertools.product(KINDS, guests, shapes):
        yield Case(kind, guest, nodes, **shape)


#: Numbers of guest NUMA nodes that are more than Placement has groups for.
GUESTS = (8, 10, 12, 16)


class StepsTest(base.TestCase):
    """A step is less than a microsecond of a processor that is not busy."""

    def test_place_takes_about_20_ms_at_most(self):
        for case in cases(GUESTS, 16):
            result = measure(case)
            # Without a way all candidates are read.
            self.assertLess(result.steps, node_assignment.MAX_STEPS * (
                1.15 if result.ways else 1.3), case)
            if case.is_full and case.guest == 16:
                self.assertEqual(0, result.ways, case)

    def test_place_with_few_guest_nodes_takes_20_ms_at_most(self):
        """More guest nodes with groups take too long in Placement itself."""
        for case in cases((1, 2, 4, 5, 6, 7), 16):
            result = measure(case)
            self.assertLess(result.steps, 1.15 * node_assignment.MAX_STEPS,
                            case)

    def test_place_of_one_candidate_finds_as_many_ways_as_are_tried(self):
        for kind in KINDS[:2]:
            for guest in range(3, 17):
                case = Case(kind, guest, count=1)
                self.assertEqual(TRIED, measure(case).ways, case)

    def test_place_without_a_limit_of_steps_takes_more(self):
        case = Case('VFs', 6, is_busy=True)
        self.patch(node_assignment, 'MAX_STEPS', 10 ** 9)
        self.assertGreater(measure(case).steps, 50000)
