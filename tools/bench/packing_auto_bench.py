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


"""Compare ghsched:numa=auto with flavors of one or of two NUMA nodes.

The guests of a random mix arrive one after the other, in three clouds that
differ in their flavors alone: all guests have one NUMA node, all have two, or
each gets one where any host has room for it on one node, else two. Hosts and
NUMA nodes are chosen by the score of GhschedFragmentationWeigher. Bandwidth
is counted for each guest NUMA node, as by ``ghsched:mem_bw_min``; with
``--plain`` no guest has any. A guest of two nodes whose CPUs are odd is
refused, as Nova does.

That nova-scheduler takes one node wherever there is one is shown by
ghsched_nova.tests.unit.scheduler.test_numa_judge. The hosts are simulated.

usage::

    python tools/bench/packing_auto_bench.py [--mixes 35] [--plain]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import statistics

import packing
from packing import Flavor
from packing import Node
from packing import Shape
import packing_policies

#: Numbers of guest NUMA nodes that are tried, in order.
WAYS: Mapping[str, Sequence[int]] = {'one': (1,), 'two': (2,), 'auto': (1, 2)}


@dataclasses.dataclass(frozen=True)
class Guest:
    """A guest whose number of NUMA nodes is left open.

    :param bandwidth: percent of each of its NUMA nodes.
    """

    vcpus: int
    memory_mb: int
    bandwidth: int

    def split(self, nodes: int) -> Flavor | None:
        """Return the guest with a number of nodes; None if it is uneven."""
        if self.vcpus % nodes or self.memory_mb % nodes:
            return None
        return Flavor(nodes, Node(self.vcpus // nodes,
                                  self.memory_mb // nodes, self.bandwidth, 0))


@dataclasses.dataclass
class Admitted:
    """Guests of a mix that found room.

    :ivar worth: sum of their shares of all CPUs and memory.
    :ivar on_one: guests on one NUMA node.
    """

    guests: int = 0
    worth: float = 0.0
    on_one: int = 0


def draw_guests(shape: Shape, options: argparse.Namespace,
                seed: int) -> list[Guest]:
    """Return the guests of a mix in the order of their arrival."""
    return [Guest(one.nodes * one.node.cpus, one.nodes * one.node.memory_mb,
                  0 if options.plain else one.node.bandwidth)
            for one in packing.mix(shape, seed, options.kinds, options.fill)]


def admit(shape: Shape, guests: Sequence[Guest],
          counts: Sequence[int]) -> Admitted:
    """Place guests as they arrive.

    :param counts: numbers of NUMA nodes that are tried for each guest.
    """
    table, found = packing_policies.Table(shape), Admitted()
    for guest in guests:
        for count in counts:
            flavor = guest.split(count)
            way = flavor and packing_policies.score(table, flavor, {})
            if flavor and way:
                table.take(flavor, way)
                found.guests += 1
                found.on_one += count == 1
                found.worth += _worth(shape, guest)
                break
    return found


def _worth(shape: Shape, guest: Guest) -> float:
    nodes = shape.hosts * shape.nodes
    return (guest.vcpus / (nodes * shape.node.cpus)
            + guest.memory_mb / (nodes * shape.node.memory_mb)) / 2


def _show(name: str, more: Sequence[float]) -> None:
    print(f'auto against {name:22} median {statistics.median(more):+6.1f} %, '
          f'least {min(more):+6.1f} %; more in {sum(x > 1e-9 for x in more)}, '
          f'fewer in {sum(x < -1e-9 for x in more)} of {len(more)} mixes',
          flush=True)


def compare(shape: Shape, options: argparse.Namespace) -> None:
    """Print what auto admits beside the fixed numbers, over all mixes."""
    mixes = []
    for seed in range(options.seed, options.seed + options.mixes):
        guests = draw_guests(shape, options, seed)
        mixes.append({name: admit(shape, guests, counts)
                      for name, counts in WAYS.items()})
        if options.verbose:
            print(seed, len(guests), mixes[-1], flush=True)
    for what in ('guests', 'worth'):
        def more(one: dict[str, Admitted], *others: str,
                 what: str = what) -> float:
            return 100 * (getattr(one['auto'], what) / max(
                getattr(one[other], what) for other in others) - 1)
        for others in (('one',), ('two',), ('one', 'two')):
            _show(f'{" or ".join(others)}, {what}',
                  [more(one, *others) for one in mixes])
    print(f'of the guests of auto '
          f'{sum(one["auto"].on_one for one in mixes)} of '
          f'{sum(one["auto"].guests for one in mixes)} have one NUMA node')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--mixes', type=int, default=35)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--hosts', type=int, default=3)
    parser.add_argument('--nodes', type=int, default=2,
                        help='NUMA nodes of a host (2)')
    parser.add_argument('--kinds', type=int, default=6,
                        help='flavors of a mix (6)')
    parser.add_argument('--fill', type=float, default=1.4,
                        help='how often all guests of a mix would fill the '
                             'hosts (1.4)')
    parser.add_argument('--plain', action='store_true',
                        help='no guest has bandwidth')
    parser.add_argument('--verbose', action='store_true',
                        help='print each mix')
    options = parser.parse_args()
    shape = Shape(hosts=options.hosts, nodes=options.nodes)
    print(f'{shape.hosts} simulated hosts with {shape.nodes} NUMA nodes of '
          f'{shape.node.cpus} CPUs and {shape.node.memory_mb} MB')
    compare(shape, options)


if __name__ == '__main__':
    main()
