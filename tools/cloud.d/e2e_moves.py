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


"""End-to-end checks of moves between two hosts; "tools/e2e.sh --moves"."""

import contextlib
import sys
import time
import traceback
from typing import Any

from aio import cli
from aio.lab import Lab
from aio import records
from aio.settings import CloudError
from aio.settings import Settings
from e2e import Checks
from e2e import main

#: Seconds for a move; a busy machine without hardware virtualisation needs
#: some.
_MOVE = 240


class Moves:
    """The tests; a method's name without ``test_`` is the test's name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lab = Lab(settings, 'e2e-moves')
        self.checks = Checks()

    def prepare(self) -> None:
        self.lab.clean()
        self.lab.flavor('bw60', hw__numa_nodes=1, ghsched__mem_bw_min=60)
        self.lab.flavor('bw30', hw__numa_nodes=1, ghsched__mem_bw_min=30)
        self.lab.flavor('two-nodes', vcpus=2, ram=256, hw__numa_nodes=2,
                        ghsched__mem_bw_min__at__0=20,
                        ghsched__mem_bw_min__at__1=30)

    # -- tests ----------------------------------------------------------------

    def test_live_migration(self) -> None:
        """A running guest goes to the other host, and back."""
        server = self._on('1', 'bw30', 1)
        for number in (2, 1):
            server = self._live(server)
            self._is_on(server, number)
            self._agrees('after the move')
            self._goes_on(server)

    # -- parts of tests -------------------------------------------------------

    def _on(self, name: str, flavor: str, number: int) -> Any:
        """An active server on a host, with whose records all is well."""
        server = self.lab.wait(self.lab.create(
            name, flavor, host=self._host(number)))
        if server.status != 'ACTIVE':
            raise CloudError(f'{server.name}: {self.lab.fault(server)}')
        self.lab.console(server)
        self._agrees(f'{name} booted')
        return server

    def _host(self, number: int) -> str:
        return self.settings.hosts[number - 1].name

    def _live(self, server: Any, **more: Any) -> Any:
        self.lab.cloud.compute.live_migrate_server(
            server, host=None, block_migration='auto', **more)
        return self._settled(server, 'ACTIVE')

    def _settled(self, server: Any, *states: str) -> Any:
        return self.lab.wait(server, *states, 'ERROR', seconds=_MOVE)

    def _is_on(self, server: Any, number: int) -> None:
        self.checks.equal('host', self.lab.server(server).compute_host,
                          self._host(number))

    def _goes_on(self, server: Any) -> None:
        """A guest that has moved answers, and has not booted again."""
        lab = self.lab.at(server)
        lab.type(server, 'idle')

        def printed() -> list[str]:
            return [line for line in lab.printed(server)
                    if not line.startswith('GUEST-PCI')]

        lab.until(lambda: 'GUEST-LOAD idle' in printed(), 60,
                  f'{server.name} does not answer')
        self.checks.equal('printed on the new host', set(printed()),
                          {'GUEST-LOAD idle'})

    def _agrees(self, text: str) -> None:
        """The records agree, at once or after the hosts' next reports."""
        seen = records.disagreements(self.lab)
        end = time.monotonic() + 30
        while seen and time.monotonic() < end:
            time.sleep(3)
            seen = records.disagreements(self.lab)
        self.checks.equal(f'disagreements of the records, {text}', seen, [])


def run(tests: Moves, names: list[str]) -> None:
    tests.prepare()
    for name in names:
        test = getattr(tests, f'test_{name}')
        begin = time.monotonic()
        print(f'\n== {name}: {test.__doc__} ==', flush=True)
        try:
            test()
            tests.lab.clean()
            tests._agrees('without guests')
        except Exception as error:
            if not isinstance(error, CloudError):
                traceback.print_exc()
            tests.checks.error(f'{name}: {error}')
            with contextlib.suppress(Exception):
                cli.up(tests.settings)
                tests.lab.clean()
        print(f'     {time.monotonic() - begin:.1f} s', flush=True)


if __name__ == '__main__':
    sys.exit(main(Moves, run, sys.argv[1:]))
