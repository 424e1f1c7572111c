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


"""Checks of live migration."""

import os
import signal
from typing import Any

from aio import cli
from aio import host
from aio import process
from aio.settings import ComputeHost
from e2e_move_room import MoveRoom

#: Seconds after the beginning of a copy, which takes about one.
_WHILE_COPIED = (0, 0.3, 0.6, 1)


class LiveMigration(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_live_migration(self) -> None:
        """A running guest goes to the other host, and back."""
        server = self._on('1', 'bw30', 1)
        for number in (2, 1):
            server = self._live(server)
            self._is_on(server, number)
            self._goes_on(server)

    def test_live_two_nodes(self) -> None:
        """A guest of two nodes finds them the other way round."""
        server = self._on('wide', 'two-nodes', 1)
        cells = [cell['host_node'] for cell in self.lab.topology(server)]
        # The bigger share must not fit where it has been.
        fillers = [self._on(f'filler{number}', 'bw75', 2)
                   for number in (1, 2)]
        there = self.lab.on(ComputeHost(2))
        for filler in fillers:
            if there.allocated_nodes(filler) != [cells[1]]:
                self.lab.delete(filler)
        server = self._live(server)
        self._is_on(server, 2)
        self.checks.equal(
            'host nodes of the guest nodes',
            [cell['host_node'] for cell in self.lab.topology(server)],
            cells[::-1])

    def test_live_change_before_and_after(self) -> None:
        """A share that was changed goes along, and can be changed again."""
        server = self._on('changed', 'bw30', 1)
        for number, share in ((2, 45), (1, 15)):
            self._change(server, share)
            self._agrees(f'share changed to {share}')
            server = self._live(server)
            self._is_on(server, number)

    def test_live_failing(self) -> None:
        """The new host's QEMU is killed: the guest stays where it was."""
        # The guest would be on another node of the other host.
        self._on('filler', 'bw75', 1)
        server = self._on('failing', 'bw30', 1)
        self.lab.cloud.compute.live_migrate_server(
            server, host=None, block_migration='auto')
        self._kill_qemu(server, 2)
        self._rolled_back(server)
        self._is_on(server, 1)
        self._is_on(self._live(server), 2)

    def test_live_cut_off(self) -> None:
        """nova-compute dies after the copy: the server is where it runs."""
        server = self._on('cut-off', 'bw30', 1)
        name = self.lab.domain_name(server)
        compute = self.services.compute(self._host(1))
        self.lab.cloud.compute.live_migrate_server(
            server, host=None, block_migration='auto')
        host.run(self._host(2), (
            'sh', '-c', f'until [ -e /run/libvirt/qemu/{name}.pid ]; do '
                        'sleep 0.05; done'))
        # libvirt goes on alone.
        os.kill(compute.pid, signal.SIGSTOP)
        host.run(self._host(1), (
            'sh', '-c', f'while virsh dominfo {name} > /dev/null 2>&1; do '
                        'sleep 0.2; done'))
        process.kill(compute)
        cli.up(self.settings)
        server = self._settled(server, 'ACTIVE')
        self._is_on(server, 2)
        self._goes_on(server)
        # Nothing that it has left there is in its way.
        self._is_on(self._live(server), 1)

    def test_live_libvirtd_restarts(self) -> None:
        """libvirtd of the source dies meanwhile: the guest is on one host."""
        server = self._on('unseen', 'bw30', 1)
        name = self.lab.domain_name(server)
        for delay in _WHILE_COPIED:
            here = self._number(server)
            self.lab.cloud.compute.live_migrate_server(
                server, host=None, block_migration='auto')
            host.run(self._host(3 - here), (
                'sh', '-c', f'until [ -e /run/libvirt/qemu/{name}.pid ]; do '
                            f'sleep 0.05; done; sleep {delay}'))
            host.control(self._host(here), 'restart-libvirtd', '--kill')
            self._rolled_back(server)
            self._is_on(server, self._number(server))
        # It has printed what it boots with where it has stayed.
        lab = self.lab.at(server)
        lab.type(server, 'idle')
        lab.until(lambda: 'GUEST-LOAD idle' in lab.printed(server), 60,
                  f'{server.name} does not answer')
        self.checks.holds('boots', lab.printed(server).count(
            'GUEST-READY') <= 1, 'none, or the first')

    def _number(self, server: Any) -> int:
        """The host that a server is on, as in ``_host``."""
        name = self.lab.server(server).compute_host
        return [one.host.name for one in self.settings.each_host].index(
            name) + 1

    def test_live_no_group_there(self) -> None:
        """A guest arrives where no group can be made, and gets one later."""
        server = self._on('late', 'bw30', 1)
        with self._faults({'mkdir': {
                'error': 'ENOSPC', 'status': 'Out of CLOSIDs'}}, 2):
            server = self._live(server)
            self.checks.equal('status', server.status, 'ACTIVE')
        self._agrees('after the next report')

    def test_live_between_dialects(self) -> None:
        """Migrate from openEuler's MPAM to Intel with libvirt's groups."""
        self.lab.flavor('cap45', hw__numa_nodes=1, ghsched__mem_bw_max=45)
        before = self.settings.hosts
        cli.up_with(self.settings, (ComputeHost(), ComputeHost(2, 'intel')))
        try:
            server = self._on('cap', 'cap45', 1)
            for number in (2, 1):
                server = self._live(server)
                self._is_on(server, number)
                lab = self.lab.at(server)
                node, = (cell['host_node'] for cell in lab.topology(server))
                self.checks.holds(
                    'MB of its group', 45 <= int(
                        lab.group(server).schemata['MB'][node]) <= 50,
                    '45, or the next step of the host')
        finally:
            self.lab.clean()
            cli.up_with(self.settings, before)

    def test_live_shared_group(self) -> None:
        """Two equal guests with one control group move one by one."""
        with self._with(self._computes, ('ghsched', 'group_sharing', 'on')):
            servers = [self._on(name, 'bw30', 1) for name in '12']
            for server in servers:
                self._is_on(self._live(server), 2)
            for server in servers:
                self._is_on(self._live(server), 1)
