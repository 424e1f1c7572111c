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

from aio.lab import LogReader
from e2e_move_room import MoveRoom
import host_failure


class Evacuation(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_evacuation(self) -> None:
        """An evacuated guest stays when its host is back, and is rebuilt."""
        server = self._on('evacuated', 'bw30', 2)
        host_failure.fails(self.lab, self._host(2))
        self.lab.cloud.compute.evacuate_server(server)
        # Since microversion 2.95 it does not run at once.
        self._settled(server, 'SHUTOFF')
        # Until its host is back, the records of that are as they were.
        self.checks.equal('host', self.lab.server(server).compute_host,
                          self._host(1).host.name)
        host_failure.comes_back(self.lab, self._host(2))
        self._is_on(server, 1, 'SHUTOFF')
        compute = self.lab.cloud.compute
        image = self.lab.cloud.image.find_image(self.lab.image_name)
        for act in (compute.start_server,
                    lambda one: compute.reboot_server(one, 'HARD'),
                    lambda one: compute.rebuild_server(one, image=image.id)):
            act(server)
            self._settled(server, 'ACTIVE')
            self._is_on(server, 1)

    def test_host_reboot(self) -> None:
        """A host fails and comes back with its guest, which is started."""
        server = self._on('rebooted', 'bw30', 2)
        host_failure.fails(self.lab, self._host(2))
        host_failure.comes_back(self.lab, self._host(2))
        self.lab.until(
            lambda: self.lab.server(server).status == 'SHUTOFF', 240,
            'Nova does not see that the guest has ended')
        self.lab.cloud.compute.start_server(server)
        self._settled(server, 'ACTIVE')
        self._is_on(server, 2)

    def test_rescheduled(self) -> None:
        """A guest starts on the other host if no control group can be made.
        """
        # Both have to be scheduled to the first host: Nova has no second
        # choice for guests of one request that are on both hosts at first.
        # And all of them have the same one, so one node must hold both.
        self.lab.flavor('plain')
        with self._with(('nova-scheduler',), (
                'filter_scheduler', 'num_instances_weight_multiplier',
                '-1000')):
            for name in ('there', 'there-too'):
                self._on(name, 'plain', 2)
            # Nova holds it against a host when a build has failed there.
            self.lab.delete(self._on('first', 'bw30', 1))
            with self._faults({'mkdir': {
                    'error': 'ENOSPC', 'status': 'Out of CLOSIDs'}}), \
                    self.lab.log_of(self._computes[0]) as log:
                self.lab.create_many('many', 'bw30', 2)
                self._both_on_the_second(log)

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
            f'{one.host.name}_NUMA{node}'
            for one in self.settings.each_host
            for node in range(one.host.nodes)))

    # -- parts of tests -------------------------------------------------------

    def _both_on_the_second(self, log: LogReader) -> None:
        servers = [self._active(self.lab.wait(one))
                   for one in self.lab.servers() if '-many-' in one.name]
        for server in servers:
            self._is_on(server, 2)
        self.checks.equal('failed on the first host', [bool(log.lines(
            server.id, 'Insufficient compute resources'))
            for server in servers], [True, True])
