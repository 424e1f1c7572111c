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


"""Checks of hosts that fail, and of the scheduler's second choice."""

from typing import Any

from aio import cli
from aio import host
from aio import process
from e2e_move_room import MoveRoom
from openstack import exceptions


class Evacuation(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_evacuation(self) -> None:
        """A host fails, its guest is evacuated, the host comes back."""
        server = self._on('evacuated', 'bw30', 2)
        self._fails(2)
        self.lab.cloud.compute.evacuate_server(server)
        # Since microversion 2.95 it does not run at once.
        self._settled(server, 'SHUTOFF')
        # Until its host is back, the records of that are as they were.
        self.checks.equal('host', self.lab.server(server).compute_host,
                          self._host(1).host.name)
        self._comes_back(2)
        self._is_on(server, 1, 'SHUTOFF')
        self.lab.cloud.compute.start_server(server)
        self._settled(server, 'ACTIVE')
        self._is_on(server, 1)

    def test_host_reboot(self) -> None:
        """A host fails and comes back with its guest, which is started."""
        server = self._on('rebooted', 'bw30', 2)
        self._fails(2)
        self._comes_back(2)
        self.lab.until(
            lambda: self.lab.server(server).status == 'SHUTOFF', 240,
            'Nova does not see that the guest has ended')
        self.lab.cloud.compute.start_server(server)
        self._settled(server, 'ACTIVE')
        self._is_on(server, 2)

    def test_rescheduled(self) -> None:
        """Where no group can be made there is no guest; the other host has.
        """
        with self._faults({'mkdir': {
                'error': 'ENOSPC', 'status': 'Out of CLOSIDs'}}):
            self.lab.create_many('many', 'bw60', 2)
            servers = [self._active(self.lab.wait(one))
                       for one in self.lab.servers()]
            for server in servers:
                self._is_on(server, 2)

    def test_multi_create(self) -> None:
        """Four guests of 60 % take the four nodes of the two hosts."""
        self.lab.create_many('many', 'bw60', 4)
        servers = [self._active(self.lab.wait(one))
                   for one in self.lab.servers()]
        self._agrees('all booted')
        held = sorted(name for one in servers
                      for name, resources in self.lab.allocations(one).items()
                      if 'CUSTOM_MEM_BW_PCT' in resources)
        self.checks.equal('nodes', held, sorted(
            f'{one.host.hypervisor}_NUMA{node}'
            for one in self.settings.each_host
            for node in range(one.host.nodes)))

    # -- parts of tests -------------------------------------------------------

    def _service(self, number: int) -> Any:
        found, = self.lab.cloud.compute.services(
            binary='nova-compute', host=self._host(number).host.name)
        return found

    def _fails(self, number: int) -> None:
        """A host is gone with all that ran on it."""
        settings = self._host(number)
        process.kill(self.services.compute(settings))
        host.down(settings)
        self.lab.cloud.compute.update_service_forced_down(
            self._service(number), forced=True)

    def _comes_back(self, number: int) -> None:
        """A host is there again, and nova-compute clears up at its start.

        Until it has, nova-api does not let it be forced up.
        """
        settings = self._host(number)
        host.up(settings)
        self.services.compute(settings).start()
        self.lab.until(lambda: self._is_let_up(number), 120,
                       'nova-api does not let the host be forced up')
        cli.up(self.settings)

    def _is_let_up(self, number: int) -> bool:
        try:
            self.lab.cloud.compute.update_service_forced_down(
                self._service(number), forced=False)
        except exceptions.BadRequestException:
            return False
        return True
