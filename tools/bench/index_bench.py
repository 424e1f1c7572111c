#!/usr/bin/env python3
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


"""Measure the scheduler's index of hosts alone, without Placement.

Builds an index of generated hosts of four nodes, some of which are full, and
asks it for hosts for several requests. Prints the processor time and the hosts
looked at of one proposal, by the classes of hosts and by a walk over all hosts
in the same process, and the ratio of the two.
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Iterator
import random
import statistics
import time
from unittest import mock

from ghsched_nova.scheduler import host_capacity
from ghsched_nova.scheduler.host_capacity import HostReport
from ghsched_nova.scheduler.host_capacity import Need
from ghsched_nova.scheduler.host_capacity import NodeCapacity
from ghsched_nova.scheduler.host_capacity import NodeNeed
from ghsched_nova.scheduler.host_index import Host
from ghsched_nova.scheduler.host_index import Index
from ghsched_placement import headroom

NODES, CPUS = 4, 32
#: CPUs and percent of bandwidth of a guest node.
GUESTS = ((2, 5), (4, 5), (4, 10), (8, 10), (8, 20), (16, 30))


class LinearIndex(Index):
    """An index that looks at every host in turn."""

    def _iterate_hosts_by_class(self, need: Need) -> Iterator[Host]:
        yield from self._walk


def make_rows(count: int, fill: float, chance: random.Random
              ) -> Iterator[HostReport]:
    """Yield reports of hosts whose nodes hold random guests."""
    for number in range(count):
        nodes, bandwidth = [], {}
        for node in range(NODES):
            cpus, share = CPUS, 100
            target = CPUS * (1 - fill * chance.uniform(0.8, 1.2))
            while cpus > max(0, target):
                wanted, part = chance.choice(GUESTS)
                if wanted > cpus or part > share:
                    break
                cpus, share = cpus - wanted, share - part
            nodes.append(NodeCapacity(
                node, cpus=CPUS, pinned=cpus,
                pages={0: 4096 * cpus, 4: 4096 * cpus}))
            bandwidth[node] = share
        yield HostReport(f'u{number}',
                         f'h{number}',
                         'cell',
                         1,
                         tuple(nodes),
                         guests=1,
                         has_driver=True,
                         placement_headroom=headroom.Headroom(
                             1.0, 1, 99, bandwidth))


def make_need(nodes: int, pinned: int, bandwidth: int) -> Need:
    """Return the need of a guest of several equal nodes."""
    return Need((NodeNeed(pinned=pinned, memory=1024,
                          bandwidth=bandwidth),) * nodes, 1, True)


NEEDS = {'small': make_need(1, 2, 5), 'large': make_need(1, 16, 30),
         'two large nodes': make_need(2, 16, 30),
         'two whole nodes': make_need(2, 32, 20),
         'bandwidth nowhere': make_need(1, 4, 101),
         'CPUs nowhere': make_need(1, 64, 5),
         'two nodes nowhere': make_need(2, 28, 90)}


def measure(index: Index, need: Need, count: int
            ) -> tuple[float, int, int]:
    """Return the median seconds, the hosts looked at and those proposed."""
    times = []
    for _time in range(count):
        began = time.process_time()
        found = index.propose_hosts(need, lambda _row: True, (), 0.0)
        times.append(time.process_time() - began)
    looked = 0
    fit = host_capacity.HostView.assign_nodes

    def count_and_fit(view: host_capacity.HostView, need: Need) -> object:
        nonlocal looked
        looked += 1
        return fit(view, need)
    with mock.patch.object(host_capacity.HostView, 'assign_nodes',
                           count_and_fit):
        index.propose_hosts(need, lambda _row: True, (), 0.0)
    return statistics.median(times), looked, len(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--hosts', type=int, default=100_000)
    parser.add_argument('--fill', type=float, default=0.9,
                        help='part of the CPUs that guests hold')
    parser.add_argument('--count', type=int, default=5)
    options = parser.parse_args()
    rows = list(make_rows(options.hosts, options.fill,
                          random.Random(1)))  # noqa: S311
    by_class, linear = (
        kind(random.Random(2)) for kind in (Index, LinearIndex))  # noqa: S311
    began = time.process_time()
    by_class.update_hosts(rows, (), 0.0)
    took = time.process_time() - began
    linear.update_hosts(rows, (), 0.0)
    classes = len(by_class._classes.list_classes())
    print(f'{options.hosts} hosts, {options.fill:.0%} of the CPUs held: '
          f'{classes} classes, {took:.2f} s to build')
    for name, need in NEEDS.items():
        quick, looked, found = measure(by_class, need, options.count)
        slow, all_looked, _found = measure(linear, need, options.count)
        print(f'{name:20} {1e3 * quick:8.2f} ms, {looked:6} looked at; '
              f'all hosts {1e3 * slow:8.2f} ms, {all_looked:6}; '
              f'{slow / quick:6.1f} times; {found} proposed', flush=True)


if __name__ == '__main__':
    main()
