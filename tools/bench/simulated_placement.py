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


"""A real Placement, in this process on SQLite, with simulated hosts."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
import json
import math
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from typing import Any
from urllib import parse
import uuid

from placement.objects import allocation_candidate
from placement.objects import research_context

from ghsched_placement.providers.host import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.tests.fixtures import placement_process

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
    :ivar sets: sets of host NUMA nodes that the answer has for the guest, by
        host; hosts without any are left out.
    :ivar peak: growth of the process's peak memory, in bytes.
    """

    seconds: float | None
    walked: int = 0
    made: int = 0
    returned: int = 0
    sets: tuple[int, ...] = ()
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


@contextlib.contextmanager
def database() -> Iterator[str]:
    """A connection string to an SQLite file that goes at the end."""
    with tempfile.TemporaryDirectory() as directory:
        yield f'sqlite:///{directory}/placement.db'


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
        settings: Mapping[tuple[str, str], Any], limit: float,
        guest: Sequence[str] = ()) -> Answer:
    """GET /allocation_candidates once, in a process of its own.

    :param limit: processor time that it may take, in seconds.
    :param guest: for each guest NUMA node the suffix of a group whose
        provider is its host node or below it.
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
            len(found['allocation_requests']), tuple(_sets(found, guest)),
            _peak() - before)
    answer = in_child(work, limit)
    return Answer(None) if answer is None else answer


def _sets(found: Mapping[str, Any],
          guest: Sequence[str]) -> Iterator[int]:
    summaries = found['provider_summaries']
    hosts: dict[str, set[frozenset[str]]] = {}
    for candidate in found['allocation_requests']:
        nodes = set()
        for suffix in guest:
            (provider,) = candidate['mappings'][suffix]
            summary = summaries[provider]
            nodes.add(summary['parent_provider_uuid']
                      if VF_CLASS in summary['resources'] else provider)
        if guest and len(nodes) == len(guest):
            hosts.setdefault(summary['root_provider_uuid'],
                             set()).add(frozenset(nodes))
    yield from sorted(map(len, hosts.values()))


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


def processor() -> str:
    """The model of this machine's processor, and how many there are."""
    with open('/proc/cpuinfo', encoding='utf-8') as stream:
        models = [line.partition(':')[2].strip() for line in stream
                  if line.startswith('model name')]
    return f'{models[0] if models else "unknown"}, {os.cpu_count()} CPUs'
