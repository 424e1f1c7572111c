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


"""Checks of guests that fight for a CPU of the virtual compute node (real).

Kernel and QEMU are real and so is what they count; the CPUs are emulated.
"""

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
import statistics
import time
from typing import Any
import uuid

from e2e_guest_room import BANDWIDTH
from e2e_vfs_room import VfsRoom
from openstack import exceptions
from vnode import machine

#: Measurements of a host that count; the one before them began too early.
_RECORDS = 2
#: Seconds until the next one, on a busy machine.
_NEXT = 180
#: Percent of bandwidth that each of the two guests is guaranteed.
_SHARE = 30


@dataclass(frozen=True)
class _Moment:
    """Counters at one moment.

    :param rounds: by name of a guest: seconds of its clock, and its rounds.
    :param ran: seconds that the machine let each CPU of the node run.
    """

    time: float
    rounds: dict[str, tuple[float, int]]
    ran: dict[int, float]


@dataclass(frozen=True)
class _Measured:
    """Figures over some measurements of the host.

    :param waiting: by node, the mean of the measurements.
    :param rate: by name of a guest, rounds per second.
    :param of_cpu: likewise, per second that its CPU could run. What the
        machine does beside its virtual node takes time from its CPUs, and
        the node's kernel does not see that.
    """

    waiting: dict[int, float]
    rate: dict[str, float]
    of_cpu: dict[str, float]


class VfsBusy(VfsRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        self._flavor('bw30', vcpus=1, hw__numa_nodes=1,
                     ghsched__mem_bw_min=_SHARE)

    def test_two_busy(self) -> None:
        """A busy guest moves from a node with two to the idle node."""
        self._keep_off_guests()
        pair = self._on_one_node()
        node, = self.lab.allocated_nodes(pair[0])
        for server in pair:
            self.lab.tell(server, 'count')
        before = self._measure(pair, dict.fromkeys(
            (server.name for server in pair), node))
        self.checks.note(0.35 < before.waiting[node] < 0.65,
                         f'waiting on node {node}: '
                         f'{before.waiting[node]:.3f}, expected about 0.5')
        self._shown(node, True)
        moved = self._rebalance(pair, node)
        for server in pair:
            self._is_on_node(server, 1 - node if server.id == moved else node,
                             _SHARE)
        after = self._measure(pair, {
            server.name: 1 - node if server.id == moved else node
            for server in pair})
        for one, share in after.waiting.items():
            self.checks.note(share < 0.15, f'waiting on node {one}: '
                             f'{share:.3f}, expected about 0')
            self._shown(one, False)
        self._compare(before, after)
        self._stays()
        self.lab.delete(*pair)
        self.nothing_left()

    # -- parts of tests -------------------------------------------------------

    def _keep_off_guests(self) -> None:
        """Keep all but guests off the CPUs of guests, and off node 1.

        Emulated, it takes half of a node.
        """
        # Some threads of the kernel are bound to their CPU.
        self.lab.on_host('sh', '-c', 'for one in /proc/[0-9]*; do '
                         f'taskset -apc {machine.HOUSEKEEPING} '
                         '"${one#/proc/}"; done > /dev/null 2>&1; true')

    def _on_one_node(self) -> list[Any]:
        """Two guests that had to share a node, and a node that is idle now.
        """
        with self._without(1):
            pair = [self.lab.create(name, 'bw30', host=machine.NAME)
                    for name in ('one', 'two')]
            pair = [self._active(self.lab.wait(server)) for server in pair]
        self.checks.equal('nodes of the two',
                          [self.lab.allocated_nodes(server)
                           for server in pair], [[0]] * 2)
        for server in pair:
            self._ready(server)
        return pair

    @contextlib.contextmanager
    def _without(self, node: int) -> Iterator[None]:
        """Somebody else has the bandwidth of a node in Placement, for a while.

        A guest that has it would take minutes to boot.
        """
        path = f'/allocations/{uuid.uuid4()}'
        placement = self.lab.cloud.placement
        exceptions.raise_from_response(placement.put(
            path, microversion='1.28', json={
                'allocations': {self.lab.node_provider(node).uuid: {
                    'resources': {BANDWIDTH: 75}}},
                'project_id': str(uuid.uuid4()), 'user_id': str(uuid.uuid4()),
                'consumer_generation': None}))
        try:
            yield
        finally:
            exceptions.raise_from_response(placement.delete(path))

    def _rebalance(self, pair: list[Any], node: int) -> str:
        """Make and apply the plan; return the guest that was moved."""
        plan = self.lab.openstack('rebalance', 'plan')
        for row in plan:
            print(f'        {row}')
        self.checks.equal(
            'moves that are planned',
            [(row['From'], row['To']) for row in plan],
            [(f'{machine.NAME} node {node}',
              f'{machine.NAME} node {1 - node}')])
        made = self.lab.openstack('rebalance', 'apply', '--yes')
        self.checks.equal('moves that were made',
                          [row['Result'] for row in made], ['moved'])
        moved, = (row['Server'] for row in made)
        self.checks.holds('server that was moved', moved in {
            server.id for server in pair}, 'one of the two')
        return str(moved)

    def _stays(self) -> None:
        """Check that no further move is planned, now or later."""
        for options in ((), ('--cool-down', '0', '--period', '0')):
            self.checks.equal(' '.join(('moves that are planned', *options)),
                              self.lab.openstack('rebalance', 'plan',
                                                 *options), [])

    # -- what is measured -----------------------------------------------------

    def _measure(self, pair: list[Any], nodes: dict[str, int]) -> _Measured:
        """Load and waiting as the host reports them, and what guests count.

        :param nodes: by name of a guest, that it is on.
        """
        self._next()
        begin = self._moment(pair)
        records = [self._next() for _number in range(_RECORDS)]
        end = self._moment(pair)
        waiting = {
            node: statistics.mean(record[node].get('cpu_wait', 0)
                                  for record in records)
            for node in range(machine.NODES)}
        rate, of_cpu = {}, {}
        for name, (seconds, rounds) in end.rounds.items():
            since, counted = begin.rounds[name]
            cpu = machine.shared_cpu(nodes[name])
            ran = (end.ran[cpu] - begin.ran[cpu]) / (end.time - begin.time)
            rate[name] = (rounds - counted) / (seconds - since)
            of_cpu[name] = rate[name] / ran
            print(f'        {name} on node {nodes[name]}: {rate[name]:.1f} '
                  f'rounds/s in {seconds - since:.0f} s; CPU {cpu} ran for '
                  f'{ran:.2f} of the time: {of_cpu[name]:.1f} rounds/s of it')
        return _Measured(waiting, rate, of_cpu)

    def _next(self) -> dict[int, Any]:
        """The next measurement that the host reports, by its nodes."""
        def reported() -> Any:
            return self.lab.reported('ghsched_load', machine.NAME) or {}
        last = reported().get('time')

        def newer() -> Any:
            found = reported()
            return found if found.get('time') != last else None
        found = self.lab.until(newer, _NEXT, 'the host measures nothing')
        for node in found['nodes']:
            print(f'        {found["period"]:.0f} s: {node}')
        return {node['node']: node for node in found['nodes']}

    def _moment(self, pair: list[Any]) -> _Moment:
        return _Moment(time.monotonic(),
                       {server.name: self._rounds(server) for server in pair},
                       self.lab.ran())

    def _rounds(self, server: Any) -> tuple[float, int]:
        """Return the guest's last line: seconds of its clock, and rounds."""
        words = [line.split() for line in self.lab.printed(server)
                 if line.startswith('GUEST-COUNT ')][-1]
        return int(words[1]) / 100, int(words[2])

    def _shown(self, node: int, bottleneck: bool) -> None:
        """Check what an admin sees of a node."""
        found = {one['node']: one for one in self.lab.openstack(
            'host', 'show', machine.NAME)['load']}
        self.checks.equal(f'waiting makes node {node} a bottleneck',
                          'cpu_wait' in found[node]['bottlenecks'],
                          bottleneck)

    def _compare(self, before: _Measured, after: _Measured) -> None:
        """Both together: two that share a CPU do not get the same of it."""
        times, by_clock = (
            sum(now.values()) / sum(then.values()) for now, then in (
                (after.of_cpu, before.of_cpu), (after.rate, before.rate)))
        self.checks.note(
            1.6 < times < 2.6, f'they count {times:.2f} times as much while '
            f'their CPUs run, expected about 2; by the clock {by_clock:.2f}')
