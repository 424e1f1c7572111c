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
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import json
import math
import multiprocessing
import resource
import signal
import tempfile
import time
from typing import Any
from urllib import parse
import uuid

from placement.objects import allocation_candidate
from placement.objects import research_context
import ratios

from ghsched_placement.features.flavor_check import query
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.query import request
from ghsched_placement.tests.fixtures import placement_process

GUEST_NODES = 2
FLAVOR = query.FlavorAmounts(vcpus=160, pcpus=0, memory_mb=240 * 1024,
                             disk_gb=10)
VF_CLASS = 'CUSTOM_PCI_15B3_101E'

_PROC = '/proc/self/'


@dataclass(frozen=True)
class Shape:
    """A simulated host.

    :param nodes: NUMA nodes.
    :param pfs: PFs of each.
    :param vfs: VFs of each PF.
    """

    nodes: int = 8
    pfs: int = 4
    vfs: int = 64


@dataclass(frozen=True)
class Answer:
    """Answer of Placement to GET /allocation_candidates, and its cost.

    :ivar seconds: processor time, None when it was stopped.
    :ivar walked: combinations that Placement looked at.
    :ivar made: candidates that it made of them, before ``limit``.
    :ivar returned: candidates of the answer.
    :ivar peak: growth of the process's peak memory, in bytes.
    """

    seconds: float | None
    walked: int = 0
    made: int = 0
    returned: int = 0
    peak: int = 0


class Placement(placement_process.Application):
    """Placement's WSGI application on a database file."""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request.

        :raises RuntimeError: with the answer, when Placement refuses.
        """
        status, text = self.send_request(method, path, body)
        if status >= 400:
            raise RuntimeError(f'{method} {path}: {text}')
        return json.loads(text) if text else None

    def add_host(self, name: str, shape: Shape) -> None:
        """A compute node as nova-compute with our driver reports it."""
        nodes = tuple(range(shape.nodes))
        providers = tree.build_providers(
            str(uuid.uuid4()), name,
            HostDescription(nodes=nodes, numa_nodes=nodes, control_groups=31,
                            capabilities=frozenset({'MEM_BW_MIN',
                                                    'MEM_BW_MAX'})),
            tree.Config())
        root, *numa = providers
        self._add(root.uuid, name, None, {
            'VCPU': 640, 'MEMORY_MB': 2 << 20, 'DISK_GB': 4096,
            **{key: record['total']
               for key, record in root.inventories.items()}},
            {*root.traits, names.OWNER_TRAIT})
        for node in numa:
            self._add(node.uuid, node.name, root.uuid,
                      {key: record['total']
                       for key, record in node.inventories.items()},
                      node.traits)
            for pf in range(shape.pfs):
                self._add(str(uuid.uuid4()), f'{node.name}_PF{pf}', node.uuid,
                          {VF_CLASS: shape.vfs}, {names.OWNER_TRAIT})

    def _add(self, key: str, name: str, parent: str | None,
             totals: Mapping[str, int | float], traits: Any) -> None:
        self.call('POST', '/resource_providers', {
            'name': name, 'uuid': key, 'parent_provider_uuid': parent})
        path = f'/resource_providers/{key}'
        self.call('PUT', path + '/inventories', {
            'resource_provider_generation': 0,
            'inventories': {name: tree.make_inventory(int(total))
                            for name, total in totals.items()}})
        self.call('PUT', path + '/traits', {
            'resource_provider_generation': 1, 'traits': sorted(traits)})

    def prepare(self) -> None:
        """Make the tables, and the classes and traits of our hosts."""
        self.create_schema()
        for name in (VF_CLASS, names.MEM_BW_PCT, names.RESCTRL_GROUP):
            self.call('PUT', f'/resource_classes/{name}')
        for name in (names.NUMA_NODE_TRAIT,
                     *names.CAPABILITY_TRAITS.values()):
            self.call('PUT', f'/traits/{name}')


def in_child(function: Callable[[], Any], limit: float | None = None) -> Any:
    """The result of a function, run in a process of its own.

    :param limit: processor time that it has, in seconds.
    :returns: None when that was not enough.
    """
    def work() -> None:
        if limit is not None:
            most = math.ceil(limit)
            resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
        sender.send(function())

    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=work)
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGXCPU:
            return None
        raise RuntimeError('a measurement ended before its time') from None
    finally:
        child.join()


def fill(connection: str, shape: Shape, first: int, last: int) -> None:
    """Add hosts, in a process of its own; the first makes the database."""
    def work() -> bool:
        placement = Placement(connection)
        if not first:
            placement.prepare()
        for number in range(first, last):
            placement.add_host(f'host{number}', shape)
        return True
    in_child(work)


def ask(connection: str, query: Sequence[tuple[str, str]],
        settings: Mapping[tuple[str, str], Any], limit: float) -> Answer:
    """GET /allocation_candidates once, in a process of its own.

    :param limit: processor time that it may take, in seconds.
    """
    def work() -> Answer:
        placement = Placement(connection, settings)
        # The caches of traits and classes fill up.
        placement.call('GET', '/allocation_candidates?resources=VCPU:1')
        counts = _count()
        before = _reset_peak()
        begin = time.process_time()
        found = placement.call(
            'GET', '/allocation_candidates?' + parse.urlencode(query))
        seconds = time.process_time() - begin
        return Answer(
            seconds, counts['walked'], counts['made'],
            len(found['allocation_requests']), _peak() - before)
    answer = in_child(work, limit)
    return Answer(None) if answer is None else answer


def _count() -> dict[str, int]:
    """Make Placement count what it walks and what it makes."""
    counts = {'walked': 0, 'made': 0}
    generate = allocation_candidate._generate_areq_lists
    context = research_context.RequestWideSearchContext
    limit = context.limit_results

    def count_walked(*args: Any) -> Iterator[Any]:
        for counts['walked'], found in enumerate(generate(*args), start=1):
            yield found

    def limited(self: Any, requests: Any, summaries: Any) -> Any:
        counts['made'] = len(requests)
        return limit(self, requests, summaries)

    allocation_candidate._generate_areq_lists = count_walked
    context.limit_results = limited
    return counts


def _reset_peak() -> int:
    """Forget the peak of this process's memory; bytes that it has now."""
    with open(_PROC + 'clear_refs', 'w', encoding='ascii') as stream:
        stream.write('5')
    return _peak()


def _peak() -> int:
    with open(_PROC + 'status', encoding='ascii') as stream:
        (line,) = (line for line in stream if line.startswith('VmHWM:'))
    return int(line.split()[1]) * 1024


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
    """

    name: str
    parameters: Sequence[tuple[str, str]]


def one_group_per_vf(vfs: int) -> Asked:
    """Return the query that Nova sends for ``pci_passthrough:alias``."""
    groups = tuple(request.GranularGroup(names.make_vf_suffix(_id(0), number),
                                         {VF_CLASS: 1})
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
    devices = [request.PciRequest(
        item.guest_node, _id(item.guest_node), VF_CLASS,
        (item.count // pfs,) * pfs) for item in policy.vfs]
    wanted = request.build_request(policy, 'min', devices, locality)
    told = f'{bandwidth} %' if bandwidth else 'no'
    name = f'ghsched:vfs, {vfs} VFs, {locality}, {told} bandwidth'
    return Asked(
        name if pfs == 1 else f'{name}, {pfs} PFs per guest node',
        query.make_candidates_query(FLAVOR, wanted))


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
        answers.append(ask(
            connection, asked.parameters, settings, limit))
        if answers[-1].seconds is None:
            break
    return answers


def list_seconds(answers: Sequence[Answer]) -> list[float]:
    """Return processor times; none if an answer took too long."""
    times = [answer.seconds for answer in answers
             if answer.seconds is not None]
    return times if len(times) == len(answers) else []


def run(options: argparse.Namespace, connection: str) -> None:
    """Measure and print, for each number of hosts."""
    shape = Shape(options.nodes, options.pfs)
    known = 0
    for hosts in sorted(options.hosts):
        fill(connection, shape, known, hosts)
        known = hosts
        print(f'\n{hosts} simulated hosts of {shape.nodes} NUMA nodes with '
              f'{shape.pfs} PFs of {shape.vfs} VFs each')
        for asked in requests(options.vfs, options.alone):
            print(f'{asked.name}', flush=True)
            base: list[float] = []
            for number, (name, settings) in enumerate(SETTINGS.items()):
                answers = measure(connection, asked, settings, options.count,
                                  options.limit)
                times, answer = list_seconds(answers), answers[0]
                base = base if number else times
                peak = max(one.peak for one in answers) / 2 ** 20
                print(ratios.format_row(
                    f'  {name}', times, base,
                    f'  +{peak:.0f} MiB  walked {answer.walked}  made '
                    f'{answer.made}  answer: {answer.returned} candidates')
                    if times else f'  {name}: more than {options.limit:g} s',
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
    print('Placement in process on SQLite; '
          + ratios.describe_conditions(options.count, 0))
    with tempfile.TemporaryDirectory() as directory:
        run(options, f'sqlite:///{directory}/placement.db')
