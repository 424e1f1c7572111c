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

After each step the records of Placement, Nova, libvirt and resctrl must
agree, see :mod:`aio.records`; the first disagreement ends the run.
"""

import argparse
import collections
import contextlib
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
from keystoneauth1 import exceptions as keystone
from openstack import exceptions
import soak_faults
from soak_operations import FLAVORS
from soak_operations import Operation
from soak_operations import OPERATIONS
from soak_operations import prepare

#: At most so many guests; the machine has to boot them.
_GUESTS = 4
#: Seconds until an operation is over, however it ends, and until all records
#: say so.
_SETTLE = 150
_AGREE = 120

_REFUSED = (exceptions.SDKException, keystone.ClientException)


class Soak:
    """One run.

    :param seed: two runs with the same one draw the same steps, as long as
        the guests fare alike.
    """

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.seed = seed
        self.rng = random.Random(seed)  # noqa: S311 - drawn to be repeated
        self.steps = 0
        self.counts: collections.Counter[str] = collections.Counter()

    def run(self, seconds: float) -> list[str]:
        """Take steps until time is up.

        :returns: the disagreements that ended the run, if any did.
        """
        end = time.monotonic() + seconds
        found: list[str] = []
        while not found and time.monotonic() < end:
            self.steps += 1
            begin = time.monotonic()
            self._step()
            found = self._disagreements()
            print(f'      {time.monotonic() - begin:.0f} s: '
                  + ', '.join(self._states()), flush=True)
        return found

    def _step(self) -> None:
        fault = self.rng.choice((None, *soak_faults.FAULTS))
        servers = self.lab.servers()
        boots = not servers or (len(servers) < _GUESTS
                                and self.rng.random() < 0.3)
        server = None if boots else self.rng.choice(servers)
        operation = (self.rng.choice(OPERATIONS[server.status])
                     if server else None)
        what = f'{operation.name} {server.name}' if operation else 'boot'
        print(f'{self.steps:4} {what}'
              + (f', {fault.name}' if fault else ''), flush=True)
        self.counts[what.partition(' ')[0]] += 1
        with contextlib.ExitStack() as stack:
            try:
                self._request(operation, server)
            except _REFUSED as error:
                # Such as: no host for the guest; a service that is away.
                print(f'      {str(error)[:160]}')
            time.sleep(self.rng.uniform(0, 6))
            if fault:
                self.counts[fault.name] += 1
                stack.enter_context(
                    soak_faults.happening(fault, self.lab, self.rng))
        self._settle()

    def _request(self, operation: Operation | None, server: Any) -> None:
        if operation:
            operation.act(self.lab, server, self.rng)
        else:
            self.lab.create(str(self.steps), self.rng.choice(FLAVORS))

    def _settle(self) -> None:
        """Wait until nothing is done to any guest.

        An operation that was cut off stays so for ever: then the admin
        removes the guest. Nova wants it in an error state for that.
        """
        end = time.monotonic() + _SETTLE
        while busy := [one for one in self.lab.servers() if one.task_state
                       or one.status not in OPERATIONS]:
            if time.monotonic() > end:
                for one in busy:
                    print(f'      {one.name} is stuck: {one.status}, '
                          f'{one.task_state}; deleted')
                    self.counts['stuck'] += 1
                    # No host has taken one that the conductor has lost.
                    with contextlib.suppress(*_REFUSED):
                        self.lab.cloud.compute.reset_server_state(one, 'error')
                self.lab.delete(*busy, seconds=120)
                return
            time.sleep(2)

    def _disagreements(self) -> list[str]:
        end = time.monotonic() + _AGREE
        while True:
            found = records.disagreements(self.lab)
            if not found or time.monotonic() > end:
                return found
            time.sleep(5)

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


def main() -> int:
    parser = argparse.ArgumentParser(prog='tools/soak.sh')
    parser.add_argument('--seed', type=int, default=int.from_bytes(
        os.urandom(3)))
    parser.add_argument('--minutes', type=float, default=60)
    given = parser.parse_args()
    print(f'seed {given.seed}', flush=True)
    lab = Lab(read(), 'soak')
    lab.clean()
    prepare(lab)
    soak = Soak(lab, given.seed)
    try:
        found = soak.run(given.minutes * 60)
    except (CloudError, *_REFUSED) as error:
        found = [str(error)]
    for text in found:
        print(f'FAIL  {text}')
    if found:
        print('logs: ' + collect(lab, f'soak-{soak.seed}-{soak.steps}'))
    else:
        lab.clean()
    print('; '.join(f'{name}: {count}'
                    for name, count in sorted(soak.counts.items())))
    print(f'seed {soak.seed}\n'
          f'{soak.steps - bool(found)} passed, {int(bool(found))} failed')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
