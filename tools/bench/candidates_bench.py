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

"""Processor time to find the host NUMA nodes of a guest on one host.

For the worst flavor of each kind, with 1 to 16 guest NUMA nodes on a host of
16 nodes: some guest nodes without a group that names their host node, VFs that
may be anywhere, a host node that is full, up to 1000 candidates. The search
has a limit of steps; this shows how long they are. The hosts are simulated.

usage::

    python tools/bench/candidates_bench.py [--nodes 16]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import random
import statistics
import time
from typing import Any

from ghsched_placement import candidates
from ghsched_placement import gradient
from ghsched_placement import matching
from ghsched_placement import names
from ghsched_placement import node_assignment

#: Number of ways that nova-scheduler tries on a host: the default of
#: [ghsched]max_candidates_per_host.
TRIED = 64

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

    def host(self, chance: random.Random) -> candidates.Host:
        """Return a host with two PFs on each node, on two sockets."""
        every = range(self.nodes)
        return candidates.Host(
            {f'node{node}': node for node in every},
            {f'pf{node}-{number}': node
             for node in every for number in range(2)},
            {node: node * 2 // self.nodes for node in every},
            {node: (float(chance.random() < .2),
                    float(chance.randrange(10)), chance.random())
             for node in every} if self.is_busy else {})

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

    :param seconds: of a processor.
    :param ways: number of ways that were found, at most :data:`TRIED`.
    """

    seconds: float
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
    begin = time.process_time()
    ways, _lack = node_assignment.assign_host_nodes(
        offered, wanted, host, lambda _guest, node: node != full, cost,
        steps)
    found = len(list(itertools.islice(ways, TRIED)))
    return Result(time.process_time() - begin, steps.taken, found)


def cases(guests: Sequence[int], nodes: int) -> Iterator[Case]:
    """Yield each kind of question, with each number of guest nodes."""
    shapes: tuple[Mapping[str, Any], ...] = (
        {'count': 1}, {}, {'is_full': True}, {'is_busy': True},
        {'is_costed': True}, {'is_busy': True, 'is_costed': True, 'count': 1})
    for kind, guest, shape in itertools.product(KINDS, guests, shapes):
        yield Case(kind, guest, nodes, **shape)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--nodes', type=int, default=16)
    parser.add_argument('--guests', type=int, nargs='+',
                        default=list(range(1, 17)))
    options = parser.parse_args()
    print('kind, guest nodes, candidates, full/busy/costed: ms of a '
          'processor, steps, ways')
    results = []
    for case in cases([number for number in options.guests
                       if number <= options.nodes], options.nodes):
        result = measure(case)
        results.append(result)
        shape = ''.join(letter if is_so else '-' for letter, is_so in (
            ('f', case.is_full), ('b', case.is_busy), ('c', case.is_costed)))
        print(f'{case.kind:20} {case.guest:2} {case.count:4} {shape} '
              f'{result.seconds * 1e3:7.2f} {result.steps:6} '
              f'{result.ways:3}', flush=True)
    times = sorted(result.seconds * 1e3 for result in results)
    print(f'median {statistics.median(times):.1f} ms, most {times[-1]:.1f} '
          f'ms, most steps {max(result.steps for result in results)}')


if __name__ == '__main__':
    main()
