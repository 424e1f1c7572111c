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

"""Compare the guests that a cloud takes by the index and by a full search.

Two schedulers fill a cloud each with the same guests in the same order, until
each of the flavors has been refused: one that was is not asked for again. What
was placed is claimed as nova-compute claims it, and the host reports it. Fails
when a cloud takes 1 % of its guests more or less than in the first mode.

usage: python tools/bench/scheduler_fill.py [--clouds N] [--hosts N]
           [--nodes N] [--flavors N] [--filled PART] [--seed N]
           [--modes MODE,...]
"""

import bench_path  # noqa: F401

import argparse
from dataclasses import dataclass
import json
import multiprocessing
import random
import sys
import time
from typing import Any

import scheduler_lab as labs

from nova.virt import hardware
import sqlalchemy as sa

from ghsched_nova.nova_seams import scheduler_hosts
from ghsched_placement import names
import scheduler_cloud as clouds

_FORK = multiprocessing.get_context('fork')


def flavor(chance: random.Random) -> labs.Kind:
    nodes = chance.choice((1, 1, 2))
    specs: dict[str, str] = {}
    if chance.random() < .85:
        specs['ghsched:mem_bw_min'] = str(chance.choice((5, 20, 40, 70)))
    if chance.random() < .4:
        specs['ghsched:vfs'] = f'nic:{nodes * chance.choice((1, 4, 16))}'
        specs['ghsched:vfs_locality'] = chance.choice(('node', 'any'))
    return labs.Kind(nodes, nodes * chance.choice((2, 8, 16)), specs)


@dataclass
class Filled:
    """Result of filling a cloud.

    :ivar before: guests that were there.
    :ivar placed: guests that came, and ``cpus`` of theirs.
    :ivar lost: claims that the host has refused.
    :ivar seconds: of processor time.
    """

    before: int
    placed: int = 0
    cpus: int = 0
    lost: int = 0
    seconds: float = 0.

    @property
    def guests(self) -> int:
        return self.before + self.placed


class Hosts:
    """The compute hosts of a cloud, which claim and report."""

    def __init__(self, cloud: clouds.Cloud, url: str) -> None:
        self._hosts = {host.uuid: host for host in cloud.hosts}
        self._engine = sa.create_engine(url)

    def claim(self, spec: Any, selection: Any) -> bool:
        """Whether the guest fits under the limits of the scheduler."""
        host = self._hosts[selection.compute_node_uuid]
        limits = selection.limits and selection.limits.numa_topology
        fitted = hardware.numa_fit_instance_to_host(
            clouds.topology(host), spec.numa_topology.obj_clone(), {},
            limits=limits)
        if fitted is None:
            return False
        host.guests += 1
        for cell in fitted.cells:
            host.nodes[cell.id].pinned |= set(cell.cpu_pinning.values())
            host.nodes[cell.id].memory += cell.memory
        self._take(host, json.loads(selection.allocation_request))
        with self._engine.begin() as connection:
            clouds.report(connection, host)
        return True

    @staticmethod
    def _take(host: clouds.Host, request: Any) -> None:
        for provider, allocation in request['allocations'].items():
            took = allocation['resources']
            host.groups -= took.get(names.RESCTRL_GROUP, 0)
            for node in host.nodes:
                if provider == names.make_numa_provider_uuid(
                        host.uuid, node.number):
                    node.used += took[names.MEM_BW_PCT]
                if node.vfs and provider == node.pf:
                    node.vfs -= took[clouds.VF_CLASS]


def fill(options: argparse.Namespace, seed: int, mode: str,
         pipe: Any) -> None:
    chance = random.Random(seed)  # noqa: S311
    mix = [flavor(chance) for _number in range(options.flavors)]
    with labs.make_database_directory('sqlite') as directory:
        urls = clouds.databases('sqlite', directory)
        labs.objects.register_all()
        cloud = clouds.build(urls, options.hosts, seed, options.nodes,
                             options.filled)
        hosts, lab = Hosts(cloud, urls['cell']), labs.Lab(urls, mode)
        scheduler_hosts.cache_host_topologies(2 * options.hosts)
        filled = Filled(sum(host.guests for host in cloud.hosts))
        left, began = set(range(len(mix))), time.process_time()
        while left:
            number = chance.randrange(len(mix))
            if number not in left:
                continue
            spec = lab.spec(mix[number])
            found, _reason = lab.select(spec.obj_clone())
            if not found:
                left.remove(number)
            elif hosts.claim(spec, found[0][0]):
                filled.placed += 1
                filled.cpus += mix[number].vcpus
            else:
                filled.lost += 1
                lab.forget(spec)
        filled.seconds = time.process_time() - began
    pipe.send(filled)


def compare(options: argparse.Namespace, seed: int,
            modes: list[str]) -> list[Filled]:
    """Each way has a cloud and a process of its own, at the same time."""
    pipes = []
    for mode in modes:
        pipe, other = _FORK.Pipe()
        _FORK.Process(target=fill, args=(options, seed, mode, other)).start()
        other.close()
        pipes.append(pipe)
    return [pipe.recv() for pipe in pipes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--clouds', type=int, default=4)
    parser.add_argument('--hosts', type=int, default=40)
    parser.add_argument('--nodes', type=int, default=2,
                        help='NUMA nodes of a host')
    parser.add_argument('--flavors', type=int, default=8)
    parser.add_argument('--filled', type=float, default=.9, metavar='PART',
                        help='of the CPUs that guests have before')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--modes', default='whole,index')
    options = parser.parse_args()
    modes = options.modes.split(',')
    same = True
    for seed in range(options.seed, options.seed + options.clouds):
        found = compare(options, seed, modes)
        for mode, one in zip(modes, found, strict=True):
            more = 100 * (one.guests / found[0].guests - 1)
            same = same and abs(more) <= 1
            print(f'cloud {seed} {mode:12} {one.before} guests and '
                  f'{one.placed} more with {one.cpus} CPUs: {more:+.2f} % of '
                  f'all; {one.lost} claims refused, {one.seconds:.0f} s',
                  flush=True)
    sys.exit(not same)


if __name__ == '__main__':
    main()
