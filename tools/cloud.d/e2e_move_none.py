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


"""Checks of what is done to a guest where it is."""

from collections.abc import Callable
from typing import Any

from e2e_move_room import MoveRoom


class InPlace(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_rebuild(self) -> None:
        """A guest that is rebuilt has its share again."""
        self._through('rebuilt', lambda server: self._compute.rebuild_server(
            server, image=self.lab.cloud.image.find_image(
                self.lab.image_name).id))

    def test_rescue(self) -> None:
        """The rescue system has the share of the guest."""
        self._through('rescued', self._compute.rescue_server, 'RESCUE',
                      self._compute.unrescue_server)

    def test_suspend(self) -> None:
        """A guest that is resumed has its share again."""
        self._through('suspended', self._compute.suspend_server, 'SUSPENDED',
                      self._compute.resume_server)

    def test_pause(self) -> None:
        """A paused guest keeps its control group."""
        self._through('paused', self._compute.pause_server, 'PAUSED',
                      self._compute.unpause_server)

    def test_stop(self) -> None:
        """A stopped guest keeps its share."""
        self._through('stopped', self._compute.stop_server, 'SHUTOFF',
                      self._compute.start_server)

    def test_soft_reboot(self) -> None:
        """Nova restarts a guest that does not answer."""
        self._through('rebooted', lambda server: self._compute.reboot_server(
            server, 'SOFT'))

    def test_snapshot(self) -> None:
        """A snapshot of a running guest leaves its share as it is."""
        self._through('snapshot', lambda server:
                      self._compute.create_server_image(
                          server, 'e2e-moves-snapshot', wait=True))
        self.lab.cloud.image.delete_image(self.lab.cloud.image.find_image(
            'e2e-moves-snapshot'))

    def test_soft_delete(self) -> None:
        """A guest that is restored has its share again."""
        with self._with((*self._computes, 'nova-api'),
                        ('DEFAULT', 'reclaim_instance_interval', '3600')):
            server = self._on('restored', 'bw30', 1)
            self._compute.delete_server(server)
            self._settled(server, 'SOFT_DELETED')
            self._agrees('deleted')
            self._compute.restore_server(server)
            self._settled(server, 'ACTIVE')
            self._is_on(server, 1)
            self._compute.delete_server(server, force=True)
            self.lab.until(lambda: not self.lab.servers(), 60,
                           'the server is not deleted')

    # -- parts of tests -------------------------------------------------------

    @property
    def _compute(self) -> Any:
        return self.lab.cloud.compute

    def _through(self, name: str, there: Callable[[Any], object],
                 state: str = 'ACTIVE',
                 back: Callable[[Any], object] | None = None) -> None:
        """An operation, and the one that undoes it."""
        server = self._on(name, 'bw30', 1)
        there(server)
        self._settled(server, state)
        self._is_on(server, 1, state)
        if back:
            back(server)
            self._settled(server, 'ACTIVE')
            self._is_on(server, 1)
