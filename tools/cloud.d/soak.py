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


"""Random operations on guests, random faults; called by tools/soak.sh.

After each step "openstack ghsched audit" must find nothing, and the records of
Placement, Nova, libvirt and resctrl nothing that it does not name, see
:mod:`aio.records`; the first disagreement ends the run.
"""

import argparse
import collections
from concurrent import futures
import contextlib
from dataclasses import dataclass
import os
import random
import subprocess
import sys
import time
from typing import Any

from aio.lab import Lab
from aio import records
from aio.settings import CloudError
from aio.settings import read
from aio.settings import Settings
from e2e_move_cold import ColdMoves
from e2e_move_live import LiveMigration
import e2e_room
from keystoneauth1 import exceptions as keystone
from openstack import exceptions
from osc_lib import exceptions as osc_exceptions
import soak_faults
from soak_operations import FLAVORS
from soak_operations import Operation
from soak_operations import OPERATIONS
from soak_operations import prepare

#: Moves that a run with --moves begins with, one after the other.
_MOVES = ('live_migration', 'live_cut_off', 'resize')
#: At most so many guests; the machine has to boot them.
GUESTS = 8
#: So many operations at the same time.
_AT_ONCE = (3, 8)
#: How often something fails meanwhile.
_FAULTY = 0.5
#: Seconds in which nothing changes about an operation that will never end,
#: and in which all records say how the others have ended.
_STUCK = 75
_AGREE = 120
#: Seconds after which an operator heals what Nova has left in Placement
#: because a service was away.
_HEAL = 25

_REFUSED = (exceptions.SDKException, keystone.ClientException,
            osc_exceptions.CommandError)

#: An operation and its server; None: a boot.
Step = tuple[Operation | None, Any]


@dataclass(frozen=True)
class Round:
    """Operations that run at the same time.

    :param where: the host on which the fault happens; drawn if it is None.
    """

    fault: soak_faults.Fault | None
    where: Settings | None
    steps: list[Step]


class Soak:
    """State of one run.

    A step is an operation on a guest. Up to eight are done at the same time,
    in a round, and in every other round there is a fault in the middle.

    :param seed: two runs with the same one draw the same steps, as long as
        the guests fare alike.
    """

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.seed = seed
        self.rng = random.Random(seed)  # noqa: S311 - drawn to be repeated
        self.steps = 0
        self.counts: collections.Counter[str] = collections.Counter()
        # Names of operations that nova-api has not begun.
        self.refused: set[str] = set()
        self._may_heal = False

    def run(self, seconds: float, steps: int = 0) -> list[str]:
        """Take steps until time is up, or so many have been taken.

        :param steps: 0: as many as there is time for.
        :returns: the disagreements that ended the run, if any did.
        """
        end = time.monotonic() + seconds
        found: list[str] = []
        while not found and time.monotonic() < end and (
                not steps or self.steps < steps) and not self._is_done():
            begin = time.monotonic()
            self._round()
            settled = time.monotonic()
            found = self._disagreements()
            if not found:
                self._agreed()
            print(f'      {settled - begin:.0f} s, checked in '
                  f'{time.monotonic() - settled:.0f} s: '
                  + ', '.join(self._states()), flush=True)
        return found

    def _is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return False

    def _agreed(self) -> None:
        """All records agree after a round."""

    def _plan(self) -> Round:
        """Return the next operations."""
        fault = (self.rng.choice(soak_faults.FAULTS)
                 if self.rng.random() < _FAULTY else None)
        return Round(fault, None, self.drawn())

    def _round(self) -> None:
        """Some steps at the same time, and a fault in the middle or none."""
        plan = self._plan()
        fault = plan.fault
        self._may_heal = fault is not None
        with futures.ThreadPoolExecutor(GUESTS) as pool:
            for operation, server in plan.steps:
                self.steps += 1
                name = operation.name if operation else 'boot'
                print(f'{self.steps:4} {name} {server.name if server else ""}',
                      flush=True)
                self.counts[name] += 1
                pool.submit(self._request, operation, server, self.steps,
                            random.Random(self.rng.random()))  # noqa: S311
            time.sleep(self.rng.uniform(0, 4))
            if fault:
                print(f'     {fault.name}', flush=True)
                self.counts[fault.name] += 1
                with soak_faults.happening(fault, self.lab, self.rng,
                                           plan.where):
                    pass
        self._settle()

    def drawn(self) -> list[Step]:
        """Some operations, each on another guest; None: a boot."""
        servers = self.lab.servers()
        wanted = self.rng.randint(*_AT_ONCE)
        boots = min(self.rng.randint(0, wanted), GUESTS - len(servers))
        others = self.rng.sample(servers, min(len(servers), wanted - boots))
        return [(None, None)] * boots + [
            (self.rng.choice(OPERATIONS[one.status]), one) for one in others]

    def _request(self, operation: Operation | None, server: Any, step: int,
                 rng: random.Random) -> None:
        try:
            if operation:
                operation.act(self.lab, server, rng)
            else:
                self.lab.create(str(step), rng.choice(FLAVORS))
        except _REFUSED as error:
            # Such as: no host for the guest, or nobody answers.
            self.refused.add(operation.name if operation else '')
            print(f'      {step}: {str(error)[:160]}', flush=True)

    def _settle(self) -> None:
        """Wait until nothing is done to any guest.

        An operation that was cut off stays so for ever: then the admin
        removes the guest. Nova wants it in an error state for that.
        """
        since = time.monotonic()
        seen: list[tuple[object, ...]] = []
        while busy := [one for one in self.lab.servers() if one.task_state
                       or one.status not in OPERATIONS]:
            before, seen = seen, [(one.id, one.status, one.task_state)
                                  for one in busy]
            if seen != before:
                since = time.monotonic()
            if time.monotonic() > since + _STUCK:
                self._give_up(busy)
                return
            time.sleep(1)

    def _give_up(self, stuck: list[Any]) -> None:
        for one in stuck:
            print(f'      {one.name} is stuck: {one.status}, '
                  f'{one.task_state}; deleted')
            self.counts['stuck'] += 1
            # No host has taken one that the conductor has lost.
            with contextlib.suppress(*_REFUSED):
                self.lab.cloud.compute.reset_server_state(one, 'error')
        self.lab.delete(*stuck, seconds=120)

    def _disagreements(self) -> list[str]:
        """Return the findings that remain after a while."""
        begin = time.monotonic()
        while found := records.disagreements(self.lab):
            waited = time.monotonic() - begin
            if waited > _AGREE:
                break
            if self._may_heal and waited > _HEAL and any(
                    one.startswith(records.FIXABLE) for one in found):
                self._heal(found)
            time.sleep(2)
        return found

    def _heal(self, found: list[str]) -> None:
        """Release what Nova could not release, as an operator does.
        """
        self._may_heal = False
        for text in found:
            print(f'      {text[:200]}')
        print('      audit --fix', flush=True)
        self.counts['healed'] += 1
        subprocess.run(
            [f'{self.lab.settings.venv}/bin/openstack', 'ghsched', 'audit',
             '--fix', '--yes'], env={**os.environ, **self.lab.settings.admin},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)

    def _states(self) -> list[str]:
        return sorted(f'{one.name} {one.status}'
                      for one in self.lab.servers())


def collect(lab: Lab, name: str) -> str:
    """Pack every log; returns the path of the archive."""
    path = lab.settings.home / f'{name}.tar.gz'
    subprocess.run(
        ['tar', '-czf', str(path), '-C', str(lab.settings.home), 'log',
         *(str(one.host_state.relative_to(one.home) / 'log')
           for one in lab.settings.each_host)],
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return str(path)


def main(kind: type[Soak] = Soak) -> int:
    parser = argparse.ArgumentParser(prog='tools/soak.sh')
    parser.add_argument('--seed', type=int, default=int.from_bytes(
        os.urandom(3)))
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument('--steps', type=int, default=0)
    parser.add_argument('--moves', action='store_true')
    given = parser.parse_args()
    lab = Lab(read(), 'soak')
    soak = kind(lab, given.seed)
    sharing = soak.rng.choice(('off', 'on'))
    print(f'seed {given.seed}, group_sharing {sharing}', flush=True)
    lab.clean()
    soak_faults.prepare_hosts(lab, sharing)
    checks = e2e_room.Checks()
    if given.moves:
        checks = e2e_room.run_tests((LiveMigration, ColdMoves), lab, _MOVES)
    prepare(lab)
    try:
        found = soak.run(given.minutes * 60, given.steps)
    except (CloudError, *_REFUSED) as error:
        found = [str(error)]
    for text in found:
        print(f'FAIL  {text}')
    if found:
        # All stays as it is, to be looked at.
        print('logs: ' + collect(lab, f'soak-{soak.seed}-{soak.steps}'))
    else:
        lab.clean()
        soak_faults.restore_hosts(lab)
    print('; '.join(f'{name}: {count}'
                    for name, count in sorted(soak.counts.items())))
    failed = checks.failed + bool(found)
    print(f'seed {soak.seed}\n'
          f'{checks.passed + soak.steps - bool(found)} passed, '
          f'{failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
