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


"""Measure Placement on requests for VFs on hosts with many PFs.

The hosts are simulated: 8 NUMA nodes with 4 PFs of 64 VFs each. Placement is
the real one, in process on SQLite. The guest has two NUMA nodes and 40 VFs,
with counted memory bandwidth and without. Each request is made in a process
of its own, with Placement's default settings and with others. For comparison
there are requests with one group per VF, as Nova makes them of
``pci_passthrough:alias``; they ask for fewer VFs.

usage::

    python tools/bench/wide_host_bench.py [--hosts 1 4 16]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import platform
import statistics
from typing import Any
import uuid

import simulated_placement
from simulated_placement import Answer
from simulated_placement import Shape

from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names
from ghsched_placement.query import query
from ghsched_placement.query import request

GUEST_NODES = 2
FLAVOR = query.Flavor(vcpus=160, pcpus=0, memory_mb=240 * 1024, disk_gb=10)

Settings = Mapping[tuple[str, str], Any]


def bounded(most: int) -> Settings:
    """Placement stops at a number of candidates, taken from all hosts."""
    return {('placement', 'max_allocation_candidates'): most,
            ('placement', 'allocation_candidates_generation_strategy'):
            'breadth-first'}


#: Placement's settings by what the output calls them, those that the others
#: are compared with first.
SETTINGS: dict[str, Settings] = {
    'defaults': {},
    'optimized': {
        ('workarounds', 'optimize_for_wide_provider_trees'): True},
    'at most 1000': bounded(1000),
    'at most 10000': bounded(10000),
}


@dataclass(frozen=True)
class Asked:
    """A request.

    :param parameters: of GET /allocation_candidates.
    :param guest: see :func:`simulated_placement.ask`.
    """

    name: str
    parameters: Sequence[tuple[str, str]]
    guest: Sequence[str] = ()


def one_group_per_vf(vfs: int) -> Asked:
    """Return the query that Nova sends for ``pci_passthrough:alias``."""
    groups = tuple(request.Group(names.make_vf_suffix(_id(0), number),
                                 {simulated_placement.VF_CLASS: 1})
                   for number in range(vfs))
    return Asked(f'one group per VF, {vfs} VFs',
                 query.make_candidates_query(FLAVOR, request.Request(groups)))


def ours(vfs: int, locality: str, bandwidth: int, pfs: int = 1) -> Asked:
    """Return the query that the request filter sends for ``ghsched:vfs``.

    :param bandwidth: percent for each guest node.
    :param pfs: PFs to take the VFs of each guest node of.
    """
    specs = {'ghsched:vfs': f'nic:{vfs}', 'ghsched:vfs_locality': locality}
    if bandwidth:
        specs['ghsched:mem_bw_min'] = str(bandwidth)
    policy = policies.parse_policy(specs, GUEST_NODES)
    devices = [request.Devices(
        item.guest_node, _id(item.guest_node), simulated_placement.VF_CLASS,
        (item.count // pfs,) * pfs) for item in policy.vfs]
    wanted = request.build_request(policy, 'min', devices, locality)
    told = f'{bandwidth} %' if bandwidth else 'no'
    name = f'ghsched:vfs, {vfs} VFs, {locality}, {told} bandwidth'
    return Asked(
        name if pfs == 1 else f'{name}, {pfs} PFs per guest node',
        query.make_candidates_query(FLAVOR, wanted),
        [names.make_bandwidth_suffix(node) if bandwidth
         else names.make_vf_suffix(_id(node), 0)
         for node in range(GUEST_NODES)]
        if bandwidth or locality == 'node' else ())


def _id(number: int) -> str:
    return str(uuid.UUID(int=number))


def requests(vfs: int, alone: Sequence[int]) -> Iterator[Asked]:
    """Return the requests that are sent for each number of hosts.

    :param alone: numbers of VFs with a group for each.
    """
    yield from map(one_group_per_vf, alone)
    yield ours(vfs, 'node', 0)
    yield ours(vfs, 'any', 0)
    yield ours(vfs, 'node', 30)
    yield ours(vfs, 'any', 30)
    yield ours(vfs, 'node', 30, pfs=2)


def measure(connection: str, asked: Asked, settings: Settings, count: int,
            limit: float) -> list[Answer]:
    """Answers to a request; the last is without time if it took too long."""
    answers: list[Answer] = []
    while len(answers) < count:
        answers.append(simulated_placement.ask(
            connection, asked.parameters, settings, limit, asked.guest))
        if answers[-1].seconds is None:
            break
    return answers


def median(answers: Sequence[Answer]) -> float | None:
    """Processor time; None when one of the answers took too long."""
    times = [answer.seconds for answer in answers
             if answer.seconds is not None]
    return statistics.median(times) if len(times) == len(answers) else None


def line(answers: Sequence[Answer], limit: float,
         base: float | None) -> str:
    """Figures of a request.

    :param base: processor time that they are compared with; None when that
        took too long.
    """
    middle = median(answers)
    if middle is None:
        return f'more than {limit:g} s'
    ratio = middle / (base or limit)
    times = [answer.seconds or 0 for answer in answers]
    peak = max(answer.peak for answer in answers) / 2 ** 20
    answer = answers[0]
    sets = (f'{len(answer.sets)} hosts, {statistics.median(answer.sets):g} '
            'sets of nodes each' if answer.sets else '-')
    return (f'{middle:8.3f} s ({min(times):.3f}..{max(times):.3f})  ratio '
            f'{"" if base else "<"}{ratio:.3f}  +{peak:.0f} MiB  walked '
            f'{answer.walked}  made {answer.made}  answer: '
            f'{answer.returned} candidates, {sets}')


def run(options: argparse.Namespace, connection: str) -> None:
    """Measure and print, for each number of hosts."""
    shape = Shape(options.nodes, options.pfs)
    known = 0
    for hosts in sorted(options.hosts):
        simulated_placement.fill(connection, shape, known, hosts)
        known = hosts
        print(f'\n{hosts} simulated hosts of {shape.nodes} NUMA nodes with '
              f'{shape.pfs} PFs of {shape.vfs} VFs each')
        for asked in requests(options.vfs, options.alone):
            print(f'{asked.name}', flush=True)
            base: float | None = None
            for number, (name, settings) in enumerate(SETTINGS.items()):
                answers = measure(connection, asked, settings, options.count,
                                  options.limit)
                base = base if number else median(answers)
                print(f'  {name:14} {line(answers, options.limit, base)}',
                      flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--hosts', type=int, nargs='+', default=[1, 4, 16],
                        help='numbers of hosts (1 4 16)')
    parser.add_argument('--nodes', type=int, default=8,
                        help='NUMA nodes of a host (8)')
    parser.add_argument('--pfs', type=int, default=4,
                        help='PFs of a NUMA node (4)')
    parser.add_argument('--vfs', type=int, default=40,
                        help='VFs of the guest (40)')
    parser.add_argument('--alone', type=int, nargs='+', default=[2, 3, 4],
                        help='VFs with a group for each (2 3 4)')
    parser.add_argument('--count', type=int, default=3,
                        help='runs of each (3)')
    parser.add_argument('--limit', type=float, default=20,
                        help='processor seconds that an answer may take (20)')
    options = parser.parse_args()
    print(f'Placement in process on SQLite, Python '
          f'{platform.python_version()}, {simulated_placement.processor()}; '
          f'processor time, median (and range) of {options.count}; ratio to '
          "Placement's default settings")
    with simulated_placement.database() as connection:
        run(options, connection)


if __name__ == '__main__':
    main()
