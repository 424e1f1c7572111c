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


"""Checks of a cloud that is being upgraded; "tools/e2e.sh --upgrade".

The control plane and the first host have this tree; the second host has an
older release until it is upgraded, too.
"""

import sys
from typing import Any

from aio.lab import Lab
from aio.settings import read
from e2e_load import Load
from e2e_move_room import MoveRoom
from e2e_room import main

_METRIC = 'ghsched_memory_bytes_per_second'


class Upgrade(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_older_host(self) -> None:
        """Guests boot, change and move between hosts of two releases."""
        self._hosts_are_shown()
        for number, other in ((1, 2), (2, 1)):
            server = self._on(f'from-{number}', 'bw30', number)
            for there, share in ((other, 45), (number, 30)):
                self._change(server, share)
                self._agrees(f'share changed to {share}')
                server = self._live(server)
                self._is_on(server, there)
                self._goes_on(server)
            self._migrated(server, other)
            self.lab.cloud.compute.revert_server_resize(server)
            self._settled(server, 'ACTIVE')
            self._is_on(server, number)
            self._migrated(server, other)
            self._confirm(server, other)
            self._is_exported(server)

    def test_upgraded_host(self) -> None:
        """Guests run on while their host is upgraded, and move after it."""
        running, wide = (self._on(name, flavor, 2) for name, flavor in (
            ('running', 'bw30'), ('wide', 'two-nodes')))
        moved = self._on('moved', 'bw30', 2)
        self._migrated(moved, 1)
        self._change(running, 45)
        threads = self._threads(running, wide)
        self.settings.save('older', False)
        self._restart(self.services.compute(self._host(2)).name)
        self.checks.equal('vCPU threads', self._threads(running, wide),
                          threads)
        self._agrees('upgraded')
        self._hosts_are_shown()
        self.lab.cloud.compute.revert_server_resize(moved)
        self._settled(moved, 'ACTIVE')
        self._is_on(moved, 2)
        self._change(running, 30)
        for server in (running, wide):
            self._is_exported(server)
            self._is_on(self._live(server), 1)
            self._goes_on(server)

    # -- parts of tests -------------------------------------------------------

    def _hosts_are_shown(self) -> None:
        """Commands for operators show both hosts, without a problem."""
        rows = self.lab.openstack('host', 'list')
        self.checks.equal(
            'host list: state and drift of each host',
            {row['Host']: (row['State'], row['Drift']) for row in rows},
            {host.name: ('up', 0) for host in self.settings.hosts})
        for host in self.settings.hosts:
            shown = self.lab.openstack('host', 'show', host.name)
            self.checks.equal(f'host show: drift of {host.name}',
                              shown['drift'], [])

    def _is_exported(self, server: Any) -> None:
        lab = self.lab.at(server)
        load = Load(lab)
        with load.exporter() as address:
            self.checks.equal(
                'nodes of the guest in ghsched-exporter',
                set(load.scrape(address, _METRIC, server)) & set(
                    lab.allocated_nodes(server)),
                set(lab.allocated_nodes(server)))

    def _threads(self, *servers: Any) -> list[dict[int, str]]:
        return [self.lab.at(server).vcpu_threads(server)
                for server in servers]


if __name__ == '__main__':
    sys.exit(main((Upgrade,), Lab(read(), 'e2e-upgrade'), sys.argv[1:]))
