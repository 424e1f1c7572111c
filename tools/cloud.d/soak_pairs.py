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


"""Every operation with every fault; called by tools/soak.sh --pairs."""

import collections
from collections.abc import Sequence
from collections.abc import Set
import json
import sys
from typing import Any

from aio.lab import Lab
from aio.settings import Settings
import soak
from soak_faults import EVACUATIONS
from soak_faults import Fault
from soak_faults import FAULTS
from soak_operations import FLAVORS
from soak_operations import Operation
from soak_operations import OPERATIONS

#: Names of an operation and a fault.
Pair = tuple[str, str]

_BOOT = 'boot'
#: Nothing is done to the guest.
_RUN = Operation('run', lambda _lab, _server, _rng: None)
#: These are on both hosts.
_MOVES = ('live-migrate', 'abort', 'migrate', 'resize',
          'confirm_server_resize', 'revert_server_resize')
#: What to do with a guest that a fault has left so is no operation of a user.
_LOST = 'ERROR'
#: With these there is room to move on the other host.
_SMALL = (FLAVORS[0], FLAVORS[2])
#: What leads to the state in which something else can be done.
_BEFORE = {'unshelve': 'shelve', 'unrescue': 'rescue', 'unpause': 'pause',
           'resume': 'suspend', 'start': 'stop',
           'confirm_server_resize': 'migrate',
           'revert_server_resize': 'resize'}

ALL = frozenset(
    (name, fault.name) for fault in FAULTS for name in (
        _BOOT, _RUN.name, *(one.name for status, some in OPERATIONS.items()
                            if status != _LOST for one in some))
) | {(_RUN.name, fault.name) for fault in EVACUATIONS}

#: Rows and columns of the table on the page "Faults and what happens", in its
#: order, by the operations and faults that they stand for.
ROWS = {
    'spawn': (_BOOT,), 'guest that runs': (_RUN.name,),
    'delete, stop, start': ('delete', 'stop', 'start'),
    'hard reboot': ('hard reboot',), 'soft reboot': ('soft reboot',),
    'pause, suspend, rescue': ('pause', 'unpause', 'suspend', 'resume',
                               'rescue', 'unrescue'),
    'rebuild': ('rebuild',),
    'resize, cold migration, confirm, revert': (
        'resize', 'migrate', 'confirm_server_resize',
        'revert_server_resize'),
    'live migration, abort': ('live-migrate', 'abort'),
    'shelve, unshelve': ('shelve', 'unshelve'), 'snapshot': ('snapshot',),
    'live change': ('change', 'move-node')}
COLUMNS = {
    'service killed': ('kill nova-compute', 'kill nova-conductor',
                       'kill nova-scheduler'),
    'libvirtd': ('restart libvirtd',), 'QEMU dies': ('kill QEMU',),
    'no resctrl': ('unmount resctrl',),
    'no group left': ('no control groups',),
    'write refused': ('refuse writes',), 'privsep dies': ('kill privsep',),
    'host reboots, is lost': ('reboot', 'lose host'),
    'services away, disk full': ('stop rabbitmq', 'stop mariadb',
                                 'stop placement', 'fill disk')}


def table(done: Set[Pair]) -> str:
    """Return the missing pairs of each cell of the manual's table."""
    lines = [' ' * 40 + ', '.join(COLUMNS)]
    for row, names in ROWS.items():
        missing = [sum((name, fault) not in done
                       for name in names for fault in faults)
                   for faults in COLUMNS.values()]
        lines.append(f'{row:<40}' + ' '.join(map(str, missing)))
    evacuating = [fault.name for fault in EVACUATIONS
                  if (_RUN.name, fault.name) not in done]
    lines.append('missing: ' + ', '.join(evacuating or ['no evacuation']))
    return '\n'.join(lines)


class Pairs(soak.Soak):
    """A run that chooses what has not been tried."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self._path = lab.settings.home / 'soak-pairs.json'
        self._tried: frozenset[Pair] = frozenset()
        self._done: frozenset[Pair] = frozenset()
        self._rests = False
        if self._path.exists():
            self._done = ALL.intersection(
                map(tuple, json.loads(self._path.read_text())))
        print(f'{len(self._done)} of {len(ALL)} pairs are tried')
        print(table(self._done))

    def _is_done(self) -> bool:
        return self._done == ALL

    def _agreed(self) -> None:
        self._done |= {pair for pair in self._tried
                       if pair[0] not in self.refused}
        self._path.write_text(json.dumps(sorted(self._done)))
        print(f'      {len(self._done)} of {len(ALL)} pairs')

    def _plan(self) -> soak.Round:
        """The fault with which most can be tried at the same time.

        Before it guests are made ready without a fault: what was lost to the
        last one would keep the next from many pairs.
        """
        self.refused.clear()
        self._tried = frozenset()
        servers = self.lab.servers()
        self.rng.shuffle(servers)
        self._rests = not self._rests
        if self._rests and (steps := [*self._tidied(servers),
                                      *self._prepared(servers)]):
            return soak.Round(None, None, steps)
        rounds = [soak.Round(fault, where, self._steps(fault, where, servers))
                  for fault in (*FAULTS, *EVACUATIONS)
                  for where in (self.settings.each_host if fault.of_host
                                else (self.settings,))]
        most = max(len(one.steps) for one in rounds)
        if not most:
            # Guests are in no state in which something is left to do.
            return soak.Round(None, None, self.drawn())
        best = self.rng.choice([one for one in rounds
                                if len(one.steps) == most])
        self._tried = frozenset(
            (operation.name, best.fault.name)
            for operation, _server in best.steps
            if operation and best.fault) & ALL
        return best

    @property
    def settings(self) -> Settings:
        return self.lab.settings

    def _steps(self, fault: Fault, where: Settings, servers: Sequence[Any]
               ) -> list[soak.Step]:
        """Return the operations to try with a fault, each on one guest."""
        found: list[soak.Step] = []
        names = {name for name, other in ALL - self._done
                 if other == fault.name}
        if _BOOT in names and len(servers) < soak.GUESTS:
            found.append((_boot(where if fault.of_host else None), None))
        for server in servers:
            missing = [one for one in self._operations(server, where)
                       if one.name in names and (
                           one.name in (*_MOVES, 'unshelve')
                           or not fault.of_host
                           or server.compute_host == where.host.name)]
            if missing:
                one = self.rng.choice(missing)
                names.remove(one.name)
                found.append((one, server))
        return found

    def _operations(self, server: Any, where: Settings) -> list[Operation]:
        if server.status == _LOST:
            return []
        some = list(OPERATIONS[server.status])
        if server.status == 'ACTIVE':
            some.append(_RUN)
        return [_unshelve(where) if one.name == 'unshelve' else one
                for one in some]

    def _tidied(self, servers: Sequence[Any]) -> list[soak.Step]:
        """Guests of which nothing can be tried go, and new ones come."""
        left = {name for name, _fault in ALL - self._done}
        useless = [one for one in servers if one.status == _LOST
                   or one.status != 'ACTIVE' and left.isdisjoint(
                       each.name for each in OPERATIONS[one.status])]
        delete = next(one for one in OPERATIONS[_LOST]
                      if one.name == 'delete')
        return [(_boot(None, _SMALL), None)] * (
            soak.GUESTS - len(servers) + len(useless)) + [
                (delete, one) for one in useless]

    def _prepared(self, servers: Sequence[Any]) -> list[soak.Step]:
        """Half of the guests that run get ready for what is left."""
        left = collections.Counter(name for name, _fault in ALL - self._done)
        ready = [one for one in servers if one.status == 'ACTIVE']
        found: list[soak.Step] = []
        for server in ready[::2]:
            wanted = max(_BEFORE, key=lambda name: left[name])
            if left[wanted] > 0:
                left[wanted] -= len(FAULTS) // 3
                found.append((next(
                    one for one in OPERATIONS['ACTIVE']
                    if one.name == _BEFORE[wanted]), server))
        return found


def _boot(where: Settings | None, flavors: Sequence[str] = FLAVORS
          ) -> Operation:
    """A boot, on a host if there is one."""
    more = {'host': where.host.name} if where else {}
    return Operation(_BOOT, lambda lab, _server, rng: lab.create(
        f'b{rng.randrange(10 ** 6)}', rng.choice(flavors), **more))


def _unshelve(where: Settings) -> Operation:
    return Operation('unshelve', lambda lab, server, _rng:
                     lab.cloud.compute.unshelve_server(
                         server, host=where.host.name))


if __name__ == '__main__':
    sys.exit(soak.main(Pairs))
