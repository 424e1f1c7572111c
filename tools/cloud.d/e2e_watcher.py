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

"""Checks of rebalancing by Watcher; "tools/e2e.sh --watcher"."""

from collections.abc import Iterator
import contextlib
import sys
from typing import Any

from aio.lab import Lab
from aio.settings import read
from e2e_move_room import MOVE
from e2e_move_room import MoveRoom
from e2e_room import main

#: Names of the goals, and of the strategy of each.
_NUMA, _ROOM = 'ghsched_numa', 'ghsched_room'
#: Of the audits: one move for each, whatever was moved before.
_PARAMETERS = ('-p', 'moves=1', '-p', 'period=1')
#: Of the audits for room: flavors that other tests have had refused are left
#: out.
_RECENT = ('-p', 'since=600')
#: Of plans and of their actions.
_ENDED = ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SUPERSEDED')
_LOAD = (('ghsched', 'load_period', '5'), ('ghsched', 'load_smoothing', '0'))


class Watcher(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        super().prepare()
        for audit in self._watcher('audit', 'list'):
            if audit['State'] in ('PENDING', 'ONGOING'):
                self._cancel(audit)

    def test_oneshot(self) -> None:
        """An audit moves one of two busy guests to the other host."""
        with self._busy_pair() as pair:
            audit = self._audit(_NUMA, 'ONESHOT', *_PARAMETERS)
            self._await_moves(audit)
            self._carried_out(audit, pair)

    def test_continuous(self) -> None:
        """A continuous audit moves servers as well, and then checks again."""
        with self._busy_pair() as pair:
            audit = self._audit(_NUMA, 'CONTINUOUS', *_PARAMETERS,
                                '--interval', '10')
            try:
                self._await_moves(audit)
                self.lab.until(lambda: len(self._plans(audit)) > 1, MOVE,
                               'the audit makes no other plan')
            finally:
                self._cancel(audit)
            self._carried_out(audit, pair)

    def test_room(self) -> None:
        """An audit makes room for a flavor that was refused twice."""
        small = self._crowd()
        self._refuse('bw75', 2)
        self._plan_for('bw75')
        audit = self._audit(_ROOM, 'CONTINUOUS', *_RECENT, '--interval', '10')
        try:
            self._await_moves(audit)
        finally:
            self._cancel(audit)
        self._carried_out(audit, [small], target=1)
        self.checks.equal('servers that were moved', [
            action['Parameters']['resource_id']
            for action in self._moves(audit)], [small.id])
        self._active(self.lab.boot('fits', 'bw75'))
        self._agrees('with the flavor that was refused')

    # -- parts of tests -------------------------------------------------------

    @contextlib.contextmanager
    def _busy_pair(self) -> Iterator[list[Any]]:
        """Two guests on one NUMA node of the first host, one too many.

        A third one has the bandwidth of the other node. It is locked: on a
        busy machine it would be moved, too.
        """
        with self._with(self._computes, *_LOAD):
            self.lab.cloud.compute.lock_server(self._on('filler', 'bw75', 1))
            pair = [self._on(name, 'bw30', 1) for name in ('one', 'other')]
            for server in pair:
                self.lab.tell(server, 'part')
            self._await_plan(pair)
            yield pair

    def _crowd(self) -> Any:
        """Fill two hosts so that bw75 fits on neither; return who can leave.

        Percent left on the NUMA nodes: 40 and 40 on the first host, 25 and 70
        on the second. The guest that is alone on the last node also fits on
        the first host. It cannot move inside its host, and the others are
        locked.
        """
        for name, flavor, number in (('left', 'bw60', 1), ('right', 'bw60', 1),
                                     ('filler', 'bw75', 2)):
            self.lab.cloud.compute.lock_server(self._on(name, flavor, number))
        return self._on('small', 'bw30', 2)

    def _refuse(self, flavor: str, count: int) -> None:
        """Ask for servers for which there is no host, one after the other."""
        before = self._count_refusals(flavor)
        refused = [self.lab.boot(f'refused-{number}', flavor)
                   for number in range(count)]
        self._no_host_for(refused)
        self.checks.equal(f'refusals of {flavor} in the record',
                          self._count_refusals(flavor) - before, count)
        self.lab.delete(*refused)

    def _count_refusals(self, flavor: str) -> int:
        return sum(row['Refusals'] for row
                   in self.lab.openstack('refusal', 'list')
                   if row['Name'] == flavor)

    def _plan_for(self, flavor: str) -> None:
        """Check that one migration makes room for a flavor.

        The command does not leave out locked servers, as Watcher does.
        """
        rows = self.lab.openstack('rebalance', 'plan', '--only', 'between',
                                  '--for', flavor)
        self.checks.equal(f'moves for {flavor}: {rows}', len(rows), 1)

    def _await_plan(self, pair: list[Any]) -> None:
        names = {server.name for server in pair}

        def plan() -> list[Any]:
            rows = self.lab.openstack('rebalance', 'plan', '--only',
                                      'between', '--period', '1')
            return [row for row in rows if row['Name'] in names]
        for row in self.lab.until(plan, MOVE, 'nothing is to be moved'):
            print(f'        {row}')

    def _audit(self, name: str, kind: str, *options: str) -> Any:
        return self._watcher(
            'audit', 'create', '--goal', name, '--strategy', name,
            '--audit_type', kind, '--auto-trigger', *options)

    def _cancel(self, audit: Any) -> None:
        self._watcher('audit', 'update', audit['UUID'], 'replace',
                      'state=CANCELLED')

    def _plans(self, audit: Any) -> Any:
        return self._watcher('actionplan', 'list', '--audit', audit['UUID'],
                             '--detail')

    def _moves(self, audit: Any) -> list[Any]:
        return [action for plan in self._plans(audit)
                for action in self._watcher(
                    'action', 'list', '--action-plan', plan['UUID'],
                    '--detail') if action['Action'] == 'migrate']

    def _await_moves(self, audit: Any) -> None:
        """Wait until Watcher has come to an end with a move."""
        self.lab.until(
            lambda: any(action['State'] in _ENDED
                        for action in self._moves(audit)),
            2 * MOVE, 'Watcher moves nobody')

    def _carried_out(self, audit: Any, servers: list[Any],
                     target: int = 2) -> None:
        """Check that the plans of an audit moved a server between hosts.

        :param servers: those of which one or more are to be moved.
        :param target: number of the host that they are moved to.
        """
        self.lab.until(
            lambda: all(plan['State'] in _ENDED
                        for plan in self._plans(audit)),
            2 * MOVE, 'a plan does not end')
        moves = self._moves(audit)
        for action in moves:
            self.checks.equal(f'{action["Parameters"]}', action['State'],
                              'SUCCEEDED')
        gone = [server for server in servers if any(
            action['Parameters']['resource_id'] == server.id
            for action in moves)]
        for server in gone:
            self._is_on(server, target)
            self._goes_on(server)
        self.checks.holds('guests that were moved',
                          [server.name for server in gone], 'one or more')

    def _watcher(self, *arguments: str) -> Any:
        return self.lab.openstack(*arguments, of='optimize')


if __name__ == '__main__':
    sys.exit(main((Watcher,), Lab(read(), 'e2e-watcher'), sys.argv[1:]))
